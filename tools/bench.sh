#!/usr/bin/env bash
# tools/bench.sh ROUNDS all|bounds: measures what locks cost, beside what people use without the module. The servers are
# the redis-server in PATH, and the newest Redis and Valkey under target/servers. Each program writes a file
# for each server to bench/results, named by the day and the processor. What it wrote earlier that day is
# replaced. With "bounds" it measures only what the bounds of version 1.0 are for: some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: tools/bench.sh ROUNDS all|bounds"
rounds=${1:?$usage} rows=${2:?$usage}

programs=(redis-server)
# These servers come from Debian's packages. On other systems the server in PATH must do.
tools/servers.sh || echo "bench: without the newest servers"
for family in redis valkey; do
  newest=$(find target/servers -mindepth 1 -maxdepth 1 -type d -name "$family-*" 2>/dev/null | sort -V | tail -n 1)
  if [ -n "$newest" ]; then programs+=("$newest/$family-server"); fi
done

results=(--results bench/results)
case $rows in
  # With 10,000 clients some servers take minutes to serve a list.
  all) rivals=() counted=() sizes=2,16,128,1000 ;;
  bounds)
    rivals=(--rows "pair,aof,refused,again,extend,memory")
    counted=(--rows pair --count 1000)
    sizes=16,1000
    ;;
  *)
    echo "$usage" >&2
    exit 2
    ;;
esac

for program in "${programs[@]}"; do
  echo
  echo "== $program"
  target/release/rivals --server "$program" --rounds "$rounds" "${rivals[@]}" "${results[@]}"
  echo
  target/release/server_instructions --server "$program" "${counted[@]}" "${results[@]}"
  target/release/waiting --server "$program" --rows handoff --sizes "$sizes" --rounds "$rounds" "${results[@]}"
  if [ "$rows" = all ]; then
    # Among 1,000 clients Valkey takes milliseconds for an element of a list, and under callgrind much longer.
    case $program in */valkey-server) profiled=16 ;; *) profiled=16,1000 ;; esac
    target/release/waiting --server "$program" --rows profile --sizes "$profiled" "${results[@]}"
    echo
    target/release/places --server "$program" --rounds "$rounds" "${results[@]}"
  fi
done

if [ "$rows" = all ]; then
  echo
  echo "== waiting, all of it, on ${programs[0]}"
  target/release/waiting --server "${programs[0]}" --rounds "$rounds" "${results[@]}"
fi
echo
echo "bench: results are in $PWD/bench/results. Beside their bounds:"
target/release/figures
