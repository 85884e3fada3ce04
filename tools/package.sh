#!/usr/bin/env bash
# tools/package.sh WHAT: builds, installs and packs the module and the program redis-lock, on Linux.
#
#   build      builds both into target/package/release, for every processor of this architecture. No path of this
#              machine gets into them, so that another machine builds the same bytes
#   install    copies them with all that belongs to them below $DESTDIR$PREFIX
#   uninstall  removes what install copied
#   tarball    target/dist/redis-lock-VERSION-linux-ARCH.tar.gz, the same with -debug, and SHA256SUMS
#   deb        the same for Debian, as three packages
#   abi        prints which C library and which other libraries the files need
#
# BUILT names the folder with libredis_lock.so and redis-lock. The default is target/package/release.
# DESTDIR is empty and PREFIX is /usr unless they say otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C

built=${BUILT:-target/package/release}
prefix=${PREFIX:-/usr}
dist=target/dist

say() { echo "package: $*"; }

die() {
  echo "package: $*" >&2
  exit 1
}

[ "$(uname)" = Linux ] || die "packages are for Linux. On this system: make build, and load the module from there"

# --- build ---

build() {
  local home=${CARGO_HOME:-$HOME/.cargo} flags
  # In this form the flags replace those of the environment: a processor of this machine's kind would get in by them.
  flags=$(printf '%s\037' "--remap-path-prefix=$PWD=/redis-lock" "--remap-path-prefix=$home=/cargo")
  export CARGO_ENCODED_RUSTFLAGS=${flags%$'\037'} CARGO_TARGET_DIR=${TARGET:-$PWD/target/package}
  export CFLAGS="-ffile-prefix-map=$PWD=/redis-lock -ffile-prefix-map=$home=/cargo"
  cargo build --release --locked
  cargo build --release --locked --package redis-lock-client --features cli
  tools/licences.py >"$CARGO_TARGET_DIR/release/THIRD-PARTY-LICENCES"
}

# --- what is installed ---

check_built() {
  local file
  for file in libredis_lock.so redis-lock; do
    [ -f "$built/$file" ] || die "$built has no $file: build it first, or leave out BUILT"
  done
  command -v objcopy >/dev/null || die "objcopy is missing: install binutils"
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
  # A new file under the name: a server may have the old one in memory.
  objcopy --strip-unneeded --add-gnu-debuglink="$symbols" "$1" "$2.new"
  chmod 755 "$2.new"
  mv -f "$2.new" "$2"
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
  file 644 cli/redis-lock.1 "$root/share/man/man1/redis-lock.1"
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

install_all() {
  stage "${DESTDIR:-}$prefix" "$prefix"
  say "installed below ${DESTDIR:-}$prefix; share/redis-lock/redis-lock.conf has the lines that load the module"
}

uninstall() {
  local root=${DESTDIR:-}$prefix name id
  for name in lib/redis/modules/libredis_lock.so bin/redis-lock; do
    [ -f "$root/$name" ] || continue
    id=$(build_id "$root/$name")
    rm -f "$root/$name" "$root/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    rmdir "$root/lib/debug/.build-id/${id:0:2}" 2>/dev/null || true
  done
  rm -f "$root/share/man/man1/redis-lock.1" "$root/share/bash-completion/completions/redis-lock" \
    "$root/share/zsh/site-functions/_redis-lock" "$root/share/fish/vendor_completions.d/redis-lock.fish"
  rm -rf "${root:?}/share/redis-lock" "$root/share/doc/redis-lock"
  # Of the folders only those that are empty now: others may have files there.
  for name in lib/redis/modules lib/redis lib/debug/.build-id lib/debug share/man/man1 share/man \
    share/bash-completion/completions share/bash-completion share/zsh/site-functions share/zsh \
    share/fish/vendor_completions.d share/fish share/doc share lib bin; do
    rmdir "$root/$name" 2>/dev/null || true
  done
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
    gzip -9n >"$2"
}

sums() {
  (cd $dist && rm -f SHA256SUMS && sha256sum -- * >.sums && mv .sums SHA256SUMS)
}

tarball() {
  local name arch
  arch=$(uname -m)
  name=redis-lock-$(tools/version.py)-linux-$arch
  needs_licences
  mkdir -p $dist "$scratch/$name-debug"
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
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case ${1:-} in
  build) build ;;
  install) install_all ;;
  uninstall) uninstall ;;
  tarball) tarball ;;
  deb)
    needs_licences
    # shellcheck source=tools/deb.sh
    . tools/deb.sh
    ;;
  abi) for name in libredis_lock.so redis-lock; do abi "$built/$name"; done ;;
  *) die "unknown: ${1:-} (the first lines of this file have the list)" ;;
esac
