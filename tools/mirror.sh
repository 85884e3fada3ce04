# mirror_of ARCHIVE: prints where the apt of this machine gets debian or debian-security. Sourced by other scripts.
# shellcheck shell=bash

mirror_of() {
  local found
  found=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    sed -nE "s#^(deb|URIs:) (.* )?(https?://[^ ]+/$1)/?( .*)?\$#\\3#p" | sed -n 1p || true)
  echo "${found:-http://deb.debian.org/$1}"
}
