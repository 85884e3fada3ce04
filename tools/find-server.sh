#!/usr/bin/env bash
# Finds a server that can load the module, and prints two paths: of the server, and of the client beside it.
#
#   tools/find-server.sh             redis-server in PATH, else the newest server under target/servers
#   tools/find-server.sh --path      redis-server in PATH
#   tools/find-server.sh --unpacked  the newest server under target/servers
#
# Fails with the reason if there is none. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

server_version_min=7.0

# in_path: prints what PATH has, else says what is wrong with it.
in_path() {
  local server client version oldest
  if ! server=$(command -v redis-server) || ! client=$(command -v redis-cli); then
    echo "redis-server or redis-cli is missing" >&2
    return 1
  fi
  version=$("$server" --version | sed 's/.*[ =]v=\([0-9.]*\).*/\1/')
  oldest=$(printf '%s\n' "$server_version_min" "$version" | sort -V | head -n 1)
  if [ "$oldest" != "$server_version_min" ]; then
    echo "redis-server is $version; the module needs $server_version_min or newer" >&2
    return 1
  fi
  printf '%s\n' "$server" "$client"
}

# unpacked: prints the newest Redis that make servers unpacked, else the newest Valkey.
unpacked() {
  local family newest
  for family in redis valkey; do
    newest=$(compgen -G "$PWD/target/servers/$family-*/$family-server" | sort -V | tail -n 1)
    if [ -n "$newest" ]; then
      printf '%s\n' "$newest" "${newest%-server}-cli"
      return
    fi
  done
  return 1
}

if [ "${1:-}" = --unpacked ]; then
  unpacked && exit
  echo "there is no server in target/servers" >&2
  exit 1
fi
why=$(in_path 2>&1) && echo "$why" && exit
if [ "${1:-}" != --path ]; then
  unpacked && exit
  why+=", and there is none in target/servers"
fi
echo "$why" >&2
exit 1
