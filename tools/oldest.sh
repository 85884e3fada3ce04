#!/usr/bin/env bash
# make oldest: builds what make package builds inside of a root of Debian 11, with the compiler of this machine, so that
# the files run with its older C library: target/oldest/release. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=bullseye
echo "oldest: in a root of Debian 11, building module and program into target/oldest/release"
home=${CARGO_HOME:-$HOME/.cargo}
root=$(tools/root.sh $suite libclang-dev gcc libc6-dev make python3 binutils)
# The build in the root reads the crates that are here, and downloads nothing.
cargo fetch --locked
mkdir -p target/oldest "$root/rust" "$root/cargo" "$root/redis-lock"
export root home
toolchain=$(rustc --print sysroot)
export toolchain
# The mounts are gone with the shell that makes them.
# shellcheck disable=SC2016 # variables of that shell
unshare --mount sh -euc '
  mount --bind "$toolchain" "$root/rust"
  mount --bind "$home" "$root/cargo"
  mount --bind . "$root/redis-lock"
  mount -t proc proc "$root/proc"
  exec chroot "$root" env -i HOME=/root PATH=/rust/bin:/usr/bin:/bin CARGO_HOME=/cargo CARGO_NET_OFFLINE=true \
    /redis-lock/tools/package.sh build /redis-lock/target/oldest
'
BUILT=target/oldest/release tools/package.sh abi
