#!/usr/bin/env bash
# tools/bench.sh ROUNDS: measures what locks cost, beside what people use without the module. The servers are the
# redis-server in PATH, and the newest Redis and Valkey under target/servers. Each program writes a file and a picture
# for each server to bench/results, named by the day and the processor. What it wrote earlier that day is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:?usage: tools/bench.sh ROUNDS}

programs=(redis-server)
# These servers come from Debian's packages. On other systems the server in PATH must do.
tools/servers.sh || echo "bench: without the newest servers"
for family in redis valkey; do
  newest=$(find target/servers -mindepth 1 -maxdepth 1 -type d -name "$family-*" 2>/dev/null | sort -V | tail -n 1)
  if [ -n "$newest" ]; then programs+=("$newest/$family-server"); fi
done

for program in "${programs[@]}"; do
  echo
  echo "== $program"
  target/release/rivals --server "$program" --rounds "$rounds"
  echo
  target/release/server_instructions --server "$program"
  # With 10,000 clients some servers take minutes to serve a list.
  target/release/waiting --server "$program" --rows handoff --sizes 2,16,128,1000 --rounds "$rounds" \
    --results bench/results
  echo
  target/release/places --server "$program" --rounds "$rounds" --results bench/results
done

echo
echo "== waiting, all of it, on ${programs[0]}"
target/release/waiting --server "${programs[0]}" --rounds "$rounds" --results bench/results
echo
echo "bench: results are in $PWD/bench/results:"
find bench/results -type f | sort
