#!/usr/bin/env bash
# make image: target/dist/redis-lock-VERSION-image-ARCH.tar, an OCI archive of a server of Debian with the module, made
# from packaging/Containerfile by buildah. No daemon takes part, and no registry: the root comes from debootstrap.
#
# The server of the image is started once: it must load the module, and grant a lock.
#
# Where no container starts, buildah runs its commands in a chroot: that needs root, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

suite=trixie
version=$(tools/version.py)
arch=$(dpkg --print-architecture)
out=target/dist/redis-lock-$version-image-$arch.tar

die() {
  echo "image: $*" >&2
  exit 1
}

[ "$(id -u)" = 0 ] || die "debootstrap and a chroot need root: run make image as root"
unshare --mount true 2>/dev/null || die "this machine allows no mounts of our own, and buildah needs them"
# Named as tools/deb.sh does.
packages=(target/dist/redis-lock{-module,}_"$(tools/version.py --debian | tr '~' .)-1_$arch".deb)
[ -f "${packages[0]}" ] || die "there is no ${packages[0]}: make deb makes it"

exec 9>target/packages.lock
flock -n 9 || { echo "image: waiting for another run that packs" && flock 9; }

place=$PWD/target/image
rm -rf "$place"
mkdir -p "$place"
trap 'rm -rf "$place"' EXIT
root=$(tools/root.sh $suite redis-server)
tar -C "$root" --one-file-system --exclude=./dev/* --exclude=./proc/* --exclude=./sys/* --exclude=./etc/resolv.conf \
  --exclude=./var/lib/apt/lists/* --exclude=./var/log/* -cf "$place/root.tar" .
cp packaging/Containerfile "$place/"
cp "${packages[0]}" "$place/redis-lock-module.deb"
cp "${packages[1]}" "$place/redis-lock.deb"
{
  # The configuration for production, for an address of its own instead of this machine. protected-mode stays on: from
  # outside the container the server answers once it has a password.
  sed -e 's|^loadmodule .*|loadmodule /usr/lib/redis/modules/libredis_lock.so|' -e 's|^bind .*|bind * -::*|' redis.conf
  echo 'dir /data'
} >"$place/image.conf"

echo "image: building it with buildah, and starting its server"
buildah=(buildah --storage-driver vfs --root "$place/store" --runroot "$place/run")
export BUILDAH_ISOLATION=chroot
"${buildah[@]}" build --quiet --timestamp "$(tools/package.sh epoch)" --tag "redis-lock:$version" "$place" >/dev/null

# The image as it is, with its own user, folder and command; and with a user that it does not know.
container=$("${buildah[@]}" from --pull-never "redis-lock:$version")
for user in redis 12345:0; do
  # shellcheck disable=SC2016 # variables of the shell in the image
  "${buildah[@]}" run --user "$user" "$container" -- sh -euc '
    cd /tmp && rm -f image.*
    redis-server /etc/redis/redis.conf --port 0 --unixsocket /tmp/image.sock --daemonize yes --pidfile /tmp/image.pid \
      --logfile /tmp/image.log >/dev/null
    client="redis-cli -s /tmp/image.sock"
    for try in $(seq 100); do $client PING >/dev/null 2>&1 && break; sleep 0.1; done
    $client MODULE LIST | grep -qx lock || { cat /tmp/image.log; exit 1; }
    fence=$($client LOCK.ACQUIRE image test PX 1000)
    [ "$fence" -gt 0 ]
    $client SAVE
    ls -l /data
    [ -s /data/dump.rdb ]
    $client SHUTDOWN NOSAVE
    rm -rf image.* /data/*
  ' >"$place/said" 2>&1 || die "the server of the image does not work as the user $user: $(cat "$place/said")"
done
[ "$("${buildah[@]}" inspect --type image --format '{{.OCIv1.Config.User}}' "redis-lock:$version")" = redis ] ||
  die "the server of the image does not run as the user redis"
"${buildah[@]}" rm "$container" >/dev/null

"${buildah[@]}" push --quiet "redis-lock:$version" "oci-archive:$place/image.tar:redis-lock:$version"
rm -f target/dist/redis-lock-*-image-"$arch".tar
mv "$place/image.tar" "$out"
tools/package.sh sums
echo "image: $out"
