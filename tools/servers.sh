#!/usr/bin/env bash
# Unpacks the servers of the tests side by side under target/servers, from Debian's packages. Each server comes with the
# C library and all other libraries that it was built with, and its own dynamic loader starts it:
#
#   target/servers/redis-8.0/redis-server  a command like the real one; redis-cli and the other tools stand beside it
#   target/servers/redis-8.0/version       8.0.2, and the suite that it came from
#   target/servers/redis-8.0/packages      the packages that it was made of, with checksums
#
# Folders are named after the versions found. The script leaves a folder that exists alone: to get it anew, remove it.
# apt verifies the signatures of all downloads, with settings of its own. It reads the settings of the machine (mirrors,
# proxies, keys) and never writes them. The script installs nothing, needs no root, and prints nothing if nothing is
# missing.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

# The source of each server, and the suites that may provide it and its libraries. The newest version is taken.
servers=(
  "redis  bookworm     bookworm bookworm-updates bookworm-security"
  "redis  trixie       trixie trixie-updates trixie-security"
  "valkey trixie       trixie trixie-updates trixie-security"
  "valkey sid          sid"
  "redis  experimental sid experimental"
)

# What modules may need, even if the server itself does not.
module_libraries="libc6 libgcc-s1 libstdc++6"

out=$PWD/target/servers
keys=/usr/share/keyrings/debian-archive-keyring.gpg

say() { echo "servers: $*"; }

die() {
  echo "servers: $*" >&2
  exit 1
}

# there FAMILY SOURCE: true if an earlier run unpacked it.
there() { grep -qsx "$1 [^ ]* from Debian $2" "$out/$1"-*/version; }

# --- apt, with settings of its own ---

# shellcheck source=tools/mirror.sh
. tools/mirror.sh

# apt_for SUITE...: fetches the verified lists of these suites, and writes the settings for them to $apt/apt.conf.
apt_for() {
  local suite uri
  rm -rf "${apt:?}"/*
  mkdir -p "$apt"/{lists/partial,cache/archives/partial,debs}
  : >"$apt/status"
  if [ "$(id -u)" = 0 ] && id _apt >/dev/null 2>&1; then chown _apt "$apt/debs"; fi
  for suite in "$@"; do
    uri=$(mirror_of "$([[ $suite == *-security ]] && echo debian-security || echo debian)")
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' "$uri" "$suite" "$keys"
  done >"$apt/debian.sources"
  # Of the machine's settings those that say how to download stay in force; none that turns verification off does.
  cat >"$apt/apt.conf" <<END
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
Dir::Log "$apt";
Dir::Etc::SourceList "$apt/debian.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::Etc::Trusted "/dev/null";
Dir::Etc::TrustedParts "/dev/null";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Default-Release "";
APT::Update::Error-Mode "any";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
Acquire::PDiffs "false";
Acquire::Retries "3";
END
  apt-get -c "$apt/apt.conf" -qq update >"$apt/log" 2>&1
}

# download PACKAGE[=VERSION]...: downloads to $apt/debs; the signed lists verify each package.
download() { (cd "$apt/debs" && apt-get -c "$apt/apt.conf" -qq download "$@" >>"$apt/log" 2>&1); }

# newest PACKAGE: prints its newest version in the lists.
newest() {
  local version best=
  while read -r version; do
    if [ -z "$best" ] || dpkg --compare-versions "$version" gt "$best"; then best=$version; fi
  done < <(apt-cache -c "$apt/apt.conf" madison "$1" | awk -F ' *[|] *' '{ print $2 }')
  [ -n "$best" ] || die "no package $1"
  echo "$best"
}

# libraries_of PACKAGE=VERSION...: prints all libraries that they need, as PACKAGE=VERSION. The packages name the direct
# ones, which leaves out what a server needs to run as a service. apt finds the libraries of libraries.
libraries_of() {
  local direct
  direct=$(apt-cache -c "$apt/apt.conf" show "$@" | sed -nE 's/^(Pre-)?Depends: //p' | tr ',' '\n' |
    sed -E 's/[|(].*//; s/:any//; s/ //g' | grep -E '^lib' | sort -u)
  # shellcheck disable=SC2086 # words, on purpose
  apt-get -c "$apt/apt.conf" -s --no-install-recommends install $direct $module_libraries |
    sed -nE 's/^Inst ((lib|zlib)[^ :]*)(:[^ ]+)? \(([^ ]+) .*/\1=\4/p' | sort -u
}

# --- one server ---

# unpack FOLDER: unpacks the downloaded packages below FOLDER/root.
unpack() {
  local folder deb
  mkdir -p "$1"/root/usr/{bin,sbin,lib,lib64}
  for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$1/root/$folder"; done
  for deb in "$apt"/debs/*.deb; do
    # tar keeps the links of the line above; older packages have files in /lib.
    dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink --no-same-owner -C "$1/root"
  done
  rm -rf "$1"/root/{etc,var,usr/share}
  (cd "$apt/debs" && sha256sum -- *.deb) >"$1/packages"
}

# wrap FOLDER PROGRAM LOADER: writes a command that starts the program by the loader, in the same process. The command
# finds its folder by itself, so that folders can be moved. The program gets the name of the command: a server that
# restarts itself starts the command again.
wrap() {
  cat >"$1/$2" <<END
#!/bin/sh
here=\$(dirname -- "\$(readlink -f -- "\$0")") || exit 127
exec "\$here/$3" --argv0 "\$here/$2" --library-path "\$here/$(dirname "$3")" "\$here/root/usr/bin/$2" "\$@"
END
  chmod 755 "$1/$2"
}

# check FOLDER PROGRAM LOADER: fails unless each library comes from the folder and the program starts.
check() {
  local loaded
  loaded=$("$1/$3" --library-path "$1/$(dirname "$3")" --list "$1/root/usr/bin/$2") || die "$2: $loaded"
  if grep -v -e linux-vdso -e "$1/root/" <<<"$loaded" >&2; then die "$2 lacks the libraries above"; fi
  case $2 in
    *-server | *-cli) "$1/$2" --version >/dev/null || die "$2 does not start" ;;
  esac
}

# bring FAMILY SOURCE SUITE...: unpacks one server.
bring() {
  local family=$1 source=$2 new=$out/.new version name packages libraries loader program
  shift 2
  say "$family of Debian $source"
  apt_for "$@" || die "no verified package lists of $*: $(cat "$apt/log")"
  version=$(newest "$family-server")
  packages=("$family-server=$version" "$family-tools=$version")
  libraries=$(libraries_of "${packages[@]}") || die "the libraries of $family-server $version are not in $*"
  mapfile -t -O 2 packages <<<"$libraries"
  download "${packages[@]}" || die "download failed: $(cat "$apt/log")"

  # 5:8.0.2-3 is 8.0.2.
  version=$(sed -E 's/^[0-9]+://; s/^([0-9.]+).*/\1/' <<<"$version")
  name=$family-${version%.*}
  # The new folder grows under another name, so that a folder with the final name is always whole.
  rm -rf "$new"
  unpack "$new"
  loader=$(cd "$new" && find root/usr/lib -name 'ld-linux*.so.*' -type f)
  [ -n "$loader" ] || die "$name has no dynamic loader"
  for program in "$new/root/usr/bin/$family"-*; do
    program=$(basename "$program")
    wrap "$new" "$program" "$loader"
    check "$new" "$program" "$loader"
  done
  echo "$family $version from Debian $source" >"$new/version"
  rm -rf "${out:?}/$name"
  mv "$new" "$out/$name"
  say "$name: $version, in target/servers/$name"
}

missing=()
for server in "${servers[@]}"; do
  read -r family source _ <<<"$server"
  there "$family" "$source" || missing+=("$server")
done
[ ${#missing[@]} -gt 0 ] || exit 0

for tool in apt-get apt-cache dpkg dpkg-deb sha256sum; do
  command -v "$tool" >/dev/null ||
    die "$tool is missing: these servers come from Debian's packages, which only Debian and its derivatives can unpack"
done
tools/install.sh keyring

mkdir -p "$out"
arch=$(dpkg --print-architecture)
# Not in target/: for root, the user _apt downloads, and that user may have no access to the repository.
apt=$(mktemp -d)
chmod 755 "$apt"
trap 'rm -rf "$apt" "$out/.new"' EXIT
for server in "${missing[@]}"; do
  read -r -a words <<<"$server"
  bring "${words[@]}"
done
