#!/usr/bin/env bash
# tools/package.sh WHAT: builds, installs and packs the module and the program redis-lock, on Linux.
#
#   build [FOLDER]
#              builds both into release of FOLDER (target/package), for every processor of this architecture. No path
#              of this machine gets into them, so that another machine builds the same bytes
#   install    copies them with all that belongs to them below $DESTDIR$PREFIX
#   uninstall  removes what install copied
#   tarball    target/dist/redis-lock-VERSION-linux-ARCH.tar.gz, the same with -debug, and SHA256SUMS
#   deb        the same for Debian, as three packages
#   sums       writes SHA256SUMS of what was packed
#   epoch      prints the time that packed files have: that of the last commit
#   abi        prints which C library and which other libraries the files need
#
# BUILT names the folder with libredis_lock.so and redis-lock. The default is target/package/release.
# DESTDIR is empty and PREFIX is /usr unless they say otherwise. DESTDIR may be any folder. Installed files name PREFIX.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C

built=${BUILT:-target/package/release}
prefix=${PREFIX:-/usr}
prefix=${prefix%/}
dist=target/dist

say() { echo "package: $*"; }

die() {
  echo "package: $*" >&2
  exit 1
}

[ "$(uname)" = Linux ] || die "packages are for Linux. On this system: make build, and load the module from there"

# The scratch folder, and a file that is not whole yet, are gone when the script ends or is interrupted.
scratch=$(mktemp -d)
unfinished=
trap 'rm -rf "$scratch" ${unfinished:+"$unfinished"}' EXIT

# alone: waits until no other run of this script or of make image packs.
alone() {
  mkdir -p $dist
  exec 9>target/packages.lock
  flock -n 9 || { say "waiting for another run that packs" && flock 9; }
}

# --- build ---

# build FOLDER
build() {
  local home=${CARGO_HOME:-$HOME/.cargo} flags
  # In this form the flags replace those of the environment: a processor of this machine's kind would get in by them.
  flags=$(printf '%s\037' "--remap-path-prefix=$PWD=/redis-lock" "--remap-path-prefix=$home=/cargo")
  export CARGO_ENCODED_RUSTFLAGS=${flags%$'\037'} CARGO_TARGET_DIR=$1
  # In quotes, which the crate cc reads so: a folder may have a space in its name.
  export CC_SHELL_ESCAPED_FLAGS=1 CFLAGS="'-ffile-prefix-map=$PWD=/redis-lock' '-ffile-prefix-map=$home=/cargo'"
  cargo build --release --locked
  cargo build --release --locked --package redis-lock-cli
  tools/licences.py >"$scratch/licences"
  replace 644 "$scratch/licences" "$1/release/THIRD-PARTY-LICENCES"
}

# --- what is installed ---

check_built() {
  local file
  for file in libredis_lock.so redis-lock; do
    [ -f "$built/$file" ] || die "$built has no $file: build it first, or leave out BUILT"
  done
  command -v objcopy >/dev/null || die "objcopy is missing: install binutils"
}

# replace MODE FROM TO: a new file under the name, since a server may have the old one in memory.
replace() {
  unfinished=$3.new.$$
  mkdir -p "$(dirname "$3")"
  install -m "$1" "$2" "$unfinished"
  mv -fT "$unfinished" "$3"
  unfinished=
}

build_id() { readelf -n "$1" | sed -n 's/^ *Build ID: //p'; }

# strip_to FROM TO ROOT: copies a file without its symbols. They go to lib/debug of ROOT, where debuggers look for them.
strip_to() {
  local id symbols
  id=$(build_id "$1")
  [ -n "$id" ] || die "$1 has no build id: the linker should write one (--build-id)"
  symbols=$3/lib/debug/.build-id/${id:0:2}/${id:2}.debug
  mkdir -p "$(dirname "$symbols")" "$(dirname "$2")"
  objcopy --only-keep-debug --compress-debug-sections "$1" "$symbols"
  chmod 644 "$symbols"
  objcopy --strip-unneeded --add-gnu-debuglink="$symbols" "$1" "$2"
  chmod 755 "$2"
}

# file MODE FROM TO
file() {
  mkdir -p "$(dirname "$3")"
  install -m "$1" "$2" "$3"
}

# stage ROOT PREFIX: all files below ROOT. PREFIX is the place that they will have, for the files that name it.
stage() {
  local root=$1 shell to module=$2/lib/redis/modules/libredis_lock.so
  check_built
  strip_to "$built/libredis_lock.so" "$root/lib/redis/modules/libredis_lock.so" "$root"
  strip_to "$built/redis-lock" "$root/bin/redis-lock" "$root"
  mkdir -p "$root/share/man/man1"
  "$built/redis-lock" __manual >"$root/share/man/man1/redis-lock.1"
  for shell in bash zsh fish; do
    case $shell in
      bash) to=bash-completion/completions/redis-lock ;;
      zsh) to=zsh/site-functions/_redis-lock ;;
      fish) to=fish/vendor_completions.d/redis-lock.fish ;;
    esac
    mkdir -p "$(dirname "$root/share/$to")"
    "$built/redis-lock" completion "$shell" >"$root/share/$to"
  done
  mkdir -p "$root/share/redis-lock"
  sed "s|^loadmodule .*|loadmodule $module|" redis.conf >"$root/share/redis-lock/redis.conf"
  sed "s|@MODULE@|$module|" packaging/redis-lock.conf >"$root/share/redis-lock/redis-lock.conf"
  sed "s|@MODULES@|$2/lib/redis/modules|" packaging/redis-lock-paths.conf \
    >"$root/share/redis-lock/redis-lock-paths.conf"
  for shell in LICENSE CHANGELOG.md; do file 644 "$shell" "$root/share/doc/redis-lock/$shell"; done
  [ ! -f "$built/THIRD-PARTY-LICENCES" ] ||
    file 644 "$built/THIRD-PARTY-LICENCES" "$root/share/doc/redis-lock/THIRD-PARTY-LICENCES"
}

# check_prefix: redis.conf and the unit of systemd name it, as a word of their own.
check_prefix() {
  case $prefix in
    '' | /*) ;;
    *) die "PREFIX is $prefix, and should be a full path, such as /usr/local" ;;
  esac
  [[ $prefix != *[!A-Za-z0-9/._+@=,-]* ]] ||
    die "PREFIX is $prefix: it may have letters, digits and /._+@=,- alone, since redis.conf names it"
}

# remove_symbols ROOT: those of the module and the program that are installed there.
remove_symbols() {
  local name id
  for name in lib/redis/modules/libredis_lock.so bin/redis-lock; do
    [ -f "$1/$name" ] || continue
    id=$(build_id "$1/$name" 2>/dev/null) || say "without readelf of binutils, the symbols of $name stay" >&2
    [ -n "$id" ] || continue
    rm -f "$1/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    rmdir "$1/lib/debug/.build-id/${id:0:2}" 2>/dev/null || true
  done
}

install_all() {
  local root=${DESTDIR:-}$prefix name mode
  check_prefix
  stage "$scratch/all" "$prefix"
  remove_symbols "$root"
  while read -r mode name; do replace "$mode" "$scratch/all/$name" "$root/$name"; done \
    < <(cd "$scratch/all" && find . -type f -printf '%m %P\n' | sort -k 2)
  say "installed below $root; share/redis-lock/redis-lock.conf has the lines that load the module"
}

uninstall() {
  local root=${DESTDIR:-}$prefix name folders=()
  check_prefix
  remove_symbols "$root"
  for name in lib/redis/modules/libredis_lock.so bin/redis-lock share/man/man1/redis-lock.1 \
    share/bash-completion/completions/redis-lock share/zsh/site-functions/_redis-lock \
    share/fish/vendor_completions.d/redis-lock.fish share/redis-lock/redis{,-lock,-lock-paths}.conf \
    share/doc/redis-lock/{LICENSE,CHANGELOG.md,THIRD-PARTY-LICENCES}; do
    rm -f "$root/$name"
  done
  # Of the folders only those that are empty now: others may have files there.
  folders=(share/redis-lock share/doc/redis-lock lib/redis/modules lib/redis lib/debug/.build-id lib/debug
    share/bash-completion/completions share/bash-completion share/zsh/site-functions share/zsh
    share/fish/vendor_completions.d share/fish)
  # Those that the system has anyway, empty or not, stay.
  case $prefix in
    '' | /usr | /usr/local) ;;
    *) folders+=(share/man/man1 share/man share/doc share lib bin) ;;
  esac
  for name in "${folders[@]}"; do rmdir "$root/$name" 2>/dev/null || true; done
  say "removed from $root. A redis.conf that loads the module does not start without it"
}

# --- archives ---

# The time of the last commit, so that the same commit gives the same bytes.
epoch() { echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}"; }

needs_licences() {
  [ -f "$built/THIRD-PARTY-LICENCES" ] || die "$built has no THIRD-PARTY-LICENCES: tools/licences.py prints it"
}

# pack FOLDER OUT: one folder of the scratch place, the same bytes whenever and wherever.
pack() {
  tar -C "$scratch" --sort=name --mtime="@$(epoch)" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$1" |
    gzip -9n >"$scratch/$1.packed"
  replace 644 "$scratch/$1.packed" "$2"
}

sums() {
  (cd $dist && find . -maxdepth 1 -type f -name 'redis-lock*' ! -name '*.new.*' -printf '%P\0' | sort -z |
    xargs -0 sha256sum -- >"$scratch/sums")
  replace 644 "$scratch/sums" "$dist/SHA256SUMS"
}

tarball() {
  local name arch
  arch=$(uname -m)
  name=redis-lock-$(tools/version.py)-linux-$arch
  needs_licences
  alone
  mkdir -p "$scratch/$name-debug"
  stage "$scratch/$name" /usr
  mv "$scratch/$name/lib/debug" "$scratch/$name-debug/debug"
  mkdir "$scratch/$name-debug/lib"
  mv "$scratch/$name-debug/debug" "$scratch/$name-debug/lib/debug"
  rm -f $dist/redis-lock-*-linux-"$arch"{,-debug}.tar.gz
  pack "$name" "$dist/$name.tar.gz"
  pack "$name-debug" "$dist/$name-debug.tar.gz"
  sums
  say "$dist/$name.tar.gz"
}

# --- what the files need ---

# abi FILE: the newest version of the C library that the file must have, and its other libraries.
abi() {
  local version libraries
  # The loader looks at the versions of the file, even where a symbol is weak.
  version=$(readelf -VW "$1" | sed -n 's/.*Name: GLIBC_\([0-9.]*\) *Flags: none.*/\1/p' | sort -Vu | tail -n 1)
  libraries=$(objdump -p "$1" | sed -n 's/^ *NEEDED *//p' | sort | paste -sd ' ')
  echo "$(basename "$1"): glibc $version or newer; $libraries"
}

# For Debian: see tools/deb.sh.
case ${1:-} in
  build) build "${2:-$PWD/target/package}" ;;
  install) install_all ;;
  uninstall) uninstall ;;
  tarball) tarball ;;
  deb)
    needs_licences
    alone
    # shellcheck source=tools/deb.sh
    . tools/deb.sh
    ;;
  sums) sums ;;
  epoch) epoch ;;
  abi) for name in libredis_lock.so redis-lock; do abi "$built/$name"; done ;;
  *) die "unknown: ${1:-} (the first lines of this file have the list)" ;;
esac
