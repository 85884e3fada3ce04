#!/usr/bin/env bash
# tools/root.sh SUITE PACKAGE...: makes a root of Debian with these packages, and prints its folder:
# target/roots/SUITE-FIRST_PACKAGE. A folder that exists stays as it is: to get it anew, remove it. Needs root.
# The packages come from where the apt of this machine gets them, with today's security updates.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
# shellcheck source=tools/mirror.sh
. tools/mirror.sh

die() {
  echo "root: $*" >&2
  exit 1
}

suite=$1
shift
out=$PWD/target/roots/$suite-$1
log=$PWD/target/roots/$suite.log
if [ -d "$out" ]; then
  echo "$out"
  exit
fi
[ "$(id -u)" = 0 ] || die "to make a root of Debian, debootstrap needs root"
tools/install.sh debootstrap >&2
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C DEBIAN_FRONTEND=noninteractive

new=$out.new
rm -rf "$new"
mkdir -p "$new"
echo "root: Debian $suite with $*" >&2
# No disk cache is flushed between packages: the folder counts only once it is whole.
mkdir -p "$new/etc/dpkg/dpkg.cfg.d"
echo force-unsafe-io >"$new/etc/dpkg/dpkg.cfg.d/unsafe-io"
debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg --include=ca-certificates \
  "$suite" "$new" "$(mirror_of debian)" >"$log" 2>&1 || die "debootstrap $suite failed: see $log"
{
  echo "deb $(mirror_of debian) $suite main"
  echo "deb $(mirror_of debian-security) $suite-security main"
} >"$new/etc/apt/sources.list"
# No package starts a service here.
printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
chmod 755 "$new/usr/sbin/policy-rc.d"
{
  chroot "$new" apt-get -q update
  chroot "$new" apt-get -q -y upgrade
  chroot "$new" apt-get -q -y install --no-install-recommends "$@"
} </dev/null >>"$log" 2>&1 || die "apt-get install $* failed in $suite: see $log"
rm -rf "$new"/var/cache/apt/archives/*.deb "$new/etc/dpkg/dpkg.cfg.d/unsafe-io"
mv "$new" "$out"
echo "$out"
