#!/usr/bin/env bash
# Runs the server tests on every server that tools/servers.sh has brought, prints a line for each, and at the end what was
# not run where, and why. Fails if a test fails; also if one passes that is listed as one that the server cannot run.
# What the tests print is in target/servers/NAME.log.
#
# REDIS_LOCK_TESTED names a server that make test has just passed on, if there is one: on the same version only those tests
# are run again that some server cannot run, to tell what was not run there.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/target/servers
failed=0

# run LOG ARGUMENT...: the server tests.
run() {
  local log=$1
  shift
  cargo test --locked --test server -- "$@" >"$log" 2>&1
}

# count WORD LOG: the number before it in the line that ends a run; none when the run did not come so far.
count() { sed -nE "s/^test result: .* ([0-9]+) $1;.*/\\1/p" "$2"; }

# These say nothing of a server, so they run on the first alone.
once=(--skip readme:: --skip servers:: --skip dashboard::)

# What a server calls itself: Redis 7.0.15.
tested=
if [ -n "${REDIS_LOCK_TESTED:-}" ]; then
  tested=$("$REDIS_LOCK_TESTED" --version | sed -nE 's/^([A-Za-z]+) server v=([0-9.]+) .*/\1 \2/p')
fi
mapfile -t some_cannot < <(sed -nE 's/^ +test: "([a-z_:0-9]+)",$/\1/p' tests/server/servers.rs)

first=yes
for folder in $(printf '%s\n' "$out"/*-*/ | sort -V); do
  name=$(basename "$folder")
  log=$out/$name.log
  read -r family version from <"$folder/version"
  what="${family^} $version"
  export REDIS_LOCK_SERVER=$folder$family-server
  which=("${once[@]}")
  [ -z "$first" ] || which=()
  first=
  rest=
  if [ "$what" = "$tested" ]; then
    which=(--exact "${some_cannot[@]}")
    rest=", and the others by make test"
  fi

  start=$SECONDS
  run "$log" "${which[@]}" || failed=1
  # Parts of one test may have said it more than once.
  grep -o 'not run: .*' "$log" | sort -u >"$out/$name.not-run" || true
  not_run=$(wc -l <"$out/$name.not-run")
  passed=$(count passed "$log")
  printf '%-14s %-20s passed %s%s, failed %s, not run %s, in %s s\n' "$what" "$from" \
    "$((${passed:-0} - not_run))" "$rest" "$(count failed "$log")" "$not_run" "$((SECONDS - start))"
  if [ -z "$passed" ]; then tail -n 20 "$log"; fi
  sed -nE '/^failures:$/,$ s/^    ([a-z_]+::.*)/  failed: \1/p' "$log" | sort -u

  # What cannot run here must fail here, else it has no place in the list.
  if [ "$not_run" -gt 0 ]; then
    mapfile -t tests < <(sed 's/^not run: \([a-z_:0-9]*\): .*/\1/' "$out/$name.not-run")
    REDIS_LOCK_TRY_ALL=1 run "$log.all" --exact "${tests[@]}" || true
    if grep '\.\.\. ok$' "$log.all"; then
      echo "  failed: the tests above are listed as ones that $what cannot run, but they pass (tests/server/servers.rs)"
      failed=1
    fi
  fi
  grep -q "^| $what |" README.md || echo "  (README.md has another version of it)"
done

echo
echo "Not run:"
for file in "$out"/*.not-run; do
  sed "s/^not run:/$(basename "$file" .not-run):/" "$file"
done
exit "$failed"
