#!/usr/bin/env bash
# tools/faults.sh short|long [PERCENT]: runs the programs of faults one after the other, each with the rounds of the
# table below, or so many percent of the long ones, on the server that REDIS_LOCK_SERVER names. Fails if a program found
# a violation, or could not have found one.
# The output goes to the terminal and to target/faults/PROGRAM.log. Its first line is the command that repeats the run.
set -euo pipefail
cd "$(dirname "$0")/.."

# program, rounds when short, rounds when long
programs=(
  "history 6 720"
  "stream 7 450"
  "resource 1 60"
  "crash 3 100"
  "failover 3 60"
  "cluster 5 60"
  "clock 8 240"
  "limits 2 60"
  "partition 3 120"
  "quorum 1 60"
  "worst_step 1 5"
)

length=${1:-}
percent=${2:-100}
case $length in short | long) ;; *)
  echo "usage: tools/faults.sh short|long [PERCENT]" >&2
  exit 2
  ;;
esac

mkdir -p target/faults
failed=()
for row in "${programs[@]}"; do
  read -r program short long <<<"$row"
  rounds=$short
  if [ "$length" = long ]; then rounds=$(((long * percent + 99) / 100)); fi
  echo "== $program"
  "target/debug/$program" --rounds "$rounds" 2>&1 | tee "target/faults/$program.log" || failed+=("$program")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
