#!/usr/bin/env bash
# tools/faults.sh short|long: runs the programs of tests/faults, one after the other, each with as many rounds as the table below says,
# on the server that REDIS_LOCK_SERVER names. Fails if one of them has found a violation, or could not have found one.
# What each prints is on the terminal and in target/faults/PROGRAM.log; the first line repeats the run.
set -euo pipefail
cd "$(dirname "$0")/.."

# program, rounds when short, rounds when long, further options
programs=(
  "history 4 720"
  "resource 1 60"
  "crash 3 100"
  "failover 3 60"
  "cluster 5 60"
  "clock 8 240"
  "limits 2 60"
  "partition 3 120"
)

length=${1:-}
case $length in short | long) ;; *)
  echo "usage: tools/faults.sh short|long" >&2
  exit 2
  ;;
esac

mkdir -p target/faults
failed=()
for row in "${programs[@]}"; do
  read -r program short long options <<<"$row"
  rounds=$short
  if [ "$length" = long ]; then rounds=$long; fi
  log=target/faults/$program${options:+ $options}.log
  echo "== $program $options"
  # shellcheck disable=SC2086 # words, on purpose
  "target/debug/$program" --rounds "$rounds" $options 2>&1 | tee "$log" || failed+=("$program $options")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
