#!/usr/bin/env bash
# tools/faults.sh short|long [PERCENT]: plays the scenes of faults, each with the rounds of the table below, or so many
# percent of the long ones, on the server that REDIS_LOCK_SERVER names. Fails if a scene found
# a violation, or could not have found one.
# Two scenes run at once, since most of them wait. What measures time runs first, and alone.
# The output goes to target/faults/SCENE.log, and to the terminal when the scene has ended. Its first line is the
# command that repeats the run.
set -euo pipefail
cd "$(dirname "$0")/.."

# scene, rounds when short, rounds when long; the longest first. A tenth of the long rounds of stream is an hour.
alone=(
  "worst_step 1 5"
  "clock 8 240"
)
together=(
  "failover 3 60"
  "quorum 1 60"
  "crash 3 100"
  "stream 7 4200"
  "cluster 5 60"
  "history 6 720"
  "partition 3 120"
  "limits 2 60"
  "resource 1 60"
)

length=${1:-}
percent=${2:-100}
case $length in short | long) ;; *)
  echo "usage: tools/faults.sh short|long [PERCENT]" >&2
  exit 2
  ;;
esac

# play SCENE SHORT LONG
play() {
  local rounds=$2
  if [ "$length" = long ]; then rounds=$((($3 * percent + 99) / 100)); fi
  target/debug/faults "$1" --rounds "$rounds" >"target/faults/$1.log" 2>&1 || echo "$1" >>target/faults/failed
  printf '== %s\n%s\n' "$1" "$(cat "target/faults/$1.log")"
}
export -f play
export length percent

mkdir -p target/faults
rm -f target/faults/failed
printf '%s\n' "${alone[@]}" | xargs -L 1 -P 1 bash -c 'play "$@"' play
printf '%s\n' "${together[@]}" | xargs -L 1 -P 2 bash -c 'play "$@"' play
if [ -e target/faults/failed ]; then
  # Once more at the end, where it is found without the rest.
  for scene in $(<target/faults/failed); do
    echo "FAILED: $scene"
    grep -E '^(VIOLATION|BLIND|ABOVE)|panicked at' -A 2 "target/faults/$scene.log" | head -n 40 ||
      tail -n 20 "target/faults/$scene.log"
  done
  exit 1
fi
