# make deb, a part of tools/package.sh: three packages for Debian from the files that make install installs.
# shellcheck shell=bash disable=SC2154 # built, dist and scratch are those of tools/package.sh
#
#   redis-lock-module  the module, and the lines that load it. It changes no redis.conf: a server loads the module once
#                      the operator has put the lines there
#   redis-lock         the program, its manual and completions
#   redis-lock-dbgsym  the symbols of both

summary="native locks for Redis and Valkey"
maintainer="redis-lock maintainers <maintainers@redis-lock.invalid>"
version=$(tools/version.py --debian)-1
# In names of files, GitHub's releases write a dot for the tilde.
named=${version//\~/.}
home=$(tools/version.py --home)
arch=$(dpkg --print-architecture)
# What every Debian package has in /usr/share/doc/NAME.
date=$(date -R -u -d "@$(epoch)")

# libraries FILE: what the file links, in Debian's words: libc6 (>= 2.34), libgcc-s1 (>= 4.2)
libraries() {
  mkdir -p "$scratch/shlibs/debian"
  echo "Source: redis-lock" >"$scratch/shlibs/debian/control"
  (cd "$scratch/shlibs" && dpkg-shlibdeps -O "$1" 2>"$scratch/shlibs/said" | sed -n 's/^shlibs:Depends=//p') ||
    die "dpkg-shlibdeps failed: $(cat "$scratch/shlibs/said")"
}

# deb NAME SECTION DEPENDS EXTRA DESCRIPTION: makes the package of $scratch/NAME.
deb() {
  local root=$scratch/$1 doc=$scratch/$1/usr/share/doc/$1 size
  mkdir -p "$root/DEBIAN" "$doc"
  gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
  printf 'redis-lock (%s) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$date" | gzip -9n >"$doc/changelog.Debian.gz"
  {
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: redis-lock\n'
    printf '\nFiles: *\nCopyright: %s\nLicense: Expat\n' "$(sed -n 's/^Copyright (c) //p' LICENSE)"
    sed -n '5,$s/^/ /p' LICENSE | sed 's/^ $/ ./'
  } >"$doc/copyright"
  [ "$1" = redis-lock-dbgsym ] || gzip -9nc "$built/THIRD-PARTY-LICENCES" >"$doc/THIRD-PARTY-LICENCES.gz"
  size=$(du -k -s --apparent-size "$root/usr" | cut -f 1)
  {
    printf 'Package: %s\nSource: redis-lock\nVersion: %s\nArchitecture: %s\n' "$1" "$version" "$arch"
    printf 'Maintainer: %s\nSection: %s\nPriority: optional\nInstalled-Size: %s\n' "$maintainer" "$2" "$size"
    printf 'Depends: %s\n' "$3"
    [ -z "$4" ] || printf '%s\n' "$4"
    [ -z "$home" ] || printf 'Homepage: %s\n' "$home"
    printf 'Description: %s\n' "$5"
  } >"$root/DEBIAN/control"
  (cd "$root" && find usr -type f -printf '%P\n' | sort | sed 's|^|usr/|' | xargs -d '\n' md5sum >DEBIAN/md5sums)
  chmod 644 "$root/DEBIAN/"{control,md5sums}
  # Debian 11 can read xz, and not zstd. The symbols are compressed already.
  local effort=6
  [[ $1 != *-dbgsym ]] || effort=0
  dpkg-deb --root-owner-group -Zxz -z$effort --build "$root" "$scratch/$1.deb" >/dev/null
  replace 644 "$scratch/$1.deb" "$dist/$1_${named}_$arch.deb"
  say "$dist/$1_${named}_$arch.deb"
}

# move FROM TO PATH...: moves files of one package into another.
move() {
  local from=$scratch/$1/usr to=$scratch/$2/usr path
  shift 2
  for path; do
    mkdir -p "$(dirname "$to/$path")"
    mv "$from/$path" "$to/$path"
  done
}

SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH
rm -f "$dist"/redis-lock*_"$arch".deb

stage "$scratch/all/usr" /usr
# Debian's own place for the completions of packages.
mkdir -p "$scratch/all/usr/share/zsh/vendor-completions"
mv "$scratch"/all/usr/share/zsh/{site-functions,vendor-completions}/_redis-lock
gzip -9n "$scratch/all/usr/share/man/man1/redis-lock.1"
# The module needs no such line below /usr/lib.
rm "$scratch/all/usr/share/redis-lock/redis-lock-paths.conf"
move all redis-lock-dbgsym lib/debug
move all redis-lock-module lib/redis/modules share/redis-lock
move all redis-lock bin share/man share/bash-completion share/zsh/vendor-completions share/fish

cat >"$scratch/prerm" <<'END'
#!/bin/sh
set -e
# The package cannot edit what the operator wrote. Without the module that line keeps the server from starting.
if [ "$1" = remove ]; then
  for conf in /etc/redis/*.conf /etc/valkey/*.conf; do
    if [ -f "$conf" ] && grep -q '^ *loadmodule .*/libredis_lock\.so' "$conf"; then
      echo "redis-lock-module: $conf still loads the module: take that line out before the server starts again" >&2
    fi
  done
fi
END
mkdir -p "$scratch/redis-lock-module/DEBIAN"
install -m 755 "$scratch/prerm" "$scratch/redis-lock-module/DEBIAN/prerm"

module_needs=$(libraries "$scratch/redis-lock-module/usr/lib/redis/modules/libredis_lock.so")
program_needs=$(libraries "$scratch/redis-lock/usr/bin/redis-lock")
deb redis-lock-module database "$module_needs" \
  "Recommends: redis-server (>= 5:7.0) | valkey-server
Suggests: redis-lock" \
  "$summary
 The server module redis-lock: owned, re-entrant, leased and fenced locks, with
 waiting inside the server.
 .
 Installing it changes no server. /usr/share/redis-lock/redis-lock.conf has the
 lines that load the module, for redis.conf or valkey.conf."
deb redis-lock utils "$program_needs" "Suggests: redis-lock-module" \
  "run a command under a lock of a Redis or Valkey server
 The program redis-lock runs a command while it holds a lock, renews the lock,
 and ends the command before another client can hold it. The server needs the
 module of redis-lock-module."
deb redis-lock-dbgsym debug "redis-lock (= $version) | redis-lock-module (= $version)" "" \
  "debug symbols of redis-lock and redis-lock-module
 For gdb, perf and core dumps. The debuggers find them by the build id."
sums
