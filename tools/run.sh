#!/usr/bin/env bash
# Starts a server with the lock module, on a free port and for this machine only, and plays a short session on it.
# Fails when a reply is not what the text says. Never touches a server that it did not start.
set -euo pipefail
cd "$(dirname "$0")/.."

run=$PWD/target/run
module=$PWD/target/release/libredis_lock.so

fail() {
  echo "make run FAILED: $*" >&2
  exit 1
}

listens() { (: >"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

is_up() { redis-cli -h 127.0.0.1 -p "$port" INFO server 2>/dev/null | tr -d '\r' | grep -qx "process_id:$(cat "$run/redis.pid" 2>/dev/null)"; }

start() {
  tools/stop.sh >/dev/null # what an earlier make run left
  rm -rf "$run"
  mkdir -p "$run/data"

  for port in $(seq 6380 6479); do listens "$port" || break; done
  echo "$port" >"$run/port"

  # The repository's redis.conf as it is, but for the path of the module: a relative one would count from --dir.
  { echo "loadmodule \"$module\"" && grep -v '^loadmodule ' redis.conf; } >"$run/redis.conf"
  redis-server "$run/redis.conf" --port "$port" --dir "$run/data" --pidfile "$run/redis.pid" \
    --logfile "$run/redis.log" --daemonize yes || fail "redis-server did not start"

  for _ in $(seq 100); do
    if is_up; then return; fi
    if grep -q aborting "$run/redis.log" 2>/dev/null; then break; fi
    sleep 0.1
  done
  tail -n 20 "$run/redis.log" >&2 || true
  fail "the server did not come up on port $port"
}

# ask COMMAND...: the reply as redis-cli shows it to a person.
ask() { redis-cli -3 --no-raw -h 127.0.0.1 -p "$port" "$@" </dev/null; }

# play TEXT PATTERN COMMAND...: says what is about to happen, does it, and fails when the reply is another. Sets $reply.
play() {
  local text=$1 pattern=$2
  shift 2
  [ -z "$text" ] || printf '\n# %s\n' "$text"
  printf '$ redis-cli %s\n' "$*"
  reply=$(ask "$@")
  echo "$reply"
  # shellcheck disable=SC2053 # a pattern, on purpose
  [[ $reply == $pattern ]] || fail "the reply above should be: $pattern"
}

# begin TEXT COMMAND...: the same for a command that waits; its reply is read by end.
begin() {
  printf '\n# %s\n$ redis-cli %s\n' "$1" "${*:2}"
  # Without the connection of the session below: to inherit it would keep it open.
  (exec 3>&- && ask "${@:2}" >"$run/waiting") &
  waiting=$!
}

# end TEXT PATTERN: shows the reply of the command that waited. Sets $reply.
end() {
  wait "$waiting" || fail "the command that waited failed"
  reply=$(<"$run/waiting")
  printf '\n# %s\n%s\n' "$1" "$reply"
  # shellcheck disable=SC2053 # a pattern, on purpose
  [[ $reply == $2 ]] || fail "the reply above should be: $2"
}

# wait_for_line KEY: until somebody waits for it.
wait_for_line() {
  for _ in $(seq 100); do
    if [[ $(ask LOCK.INFO "$1") == *"\"waiting\" => (integer) 1"* ]]; then return; fi
    sleep 0.1
  done
  fail "nobody waits for $1"
}

fence() { echo "${reply#(integer) }"; }

# The resource that the lock protects: it remembers the highest fence it has seen and refuses an older one.
fence_seen=0
disk=empty
store() { # FENCE TEXT
  if (($1 < fence_seen)); then return 1; fi
  fence_seen=$1
  disk=$2
}

session() {
  local alices bobs franks number='(integer) [1-9]*' null='(nil)'

  play "Alice takes the lock for a minute. The number is her fence: each new hold gets a higher one." \
    "$number" LOCK.ACQUIRE report alice PX 60000 NOTE web-1
  alices=$(fence)
  play "Bob asks for it. Null: he does not hold it." \
    "$null" LOCK.ACQUIRE report bob PX 60000
  play "Alice takes it again. It is hers already: same fence, and now she has to release it twice." \
    "(integer) $alices" LOCK.ACQUIRE report alice PX 60000
  play "She needs two minutes from now." \
    "(integer) $alices" LOCK.EXTEND report alice PX 120000
  begin "Bob waits for it, in line, inside the server." LOCK.ACQUIRE report bob PX 60000 BLOCK 0
  wait_for_line report
  play "Who holds it, and who waits?" \
    "*\"holding\" => (integer) 1*\"alice\"*\"fence\" => (integer) $alices*\"web-1\"*\"waiting\" => (integer) 1*\"bob\"*" \
    LOCK.INFO report
  play "Alice releases once; one is left." \
    "(integer) 1" LOCK.RELEASE report alice
  play "And once more: she has left, and in that same step the lock is Bob's." \
    "(integer) 0" LOCK.RELEASE report alice
  end "Bob's call returns. He has it, with a higher fence." "$number"
  (($(fence) > alices)) || fail "Bob's fence should be above $alices"

  play "Deadlocks are refused, and named. Alice takes the disk," \
    "$number" LOCK.ACQUIRE disk alice PX 60000
  begin "and waits for the report, which Bob holds." LOCK.ACQUIRE report alice BLOCK 0
  wait_for_line report
  play "Now Bob wants the disk. That would never end." \
    "(error) DEADLOCK bob -> disk -> alice -> report -> bob" LOCK.ACQUIRE disk bob BLOCK 0
  play "So he gives back what he has," \
    "(integer) 0" LOCK.RELEASE report bob
  end "and Alice goes on." "$number"
  play "She is done with both." \
    "(integer) 0" LOCK.RELEASE report alice
  play "" \
    "(integer) 0" LOCK.RELEASE disk alice

  play "Readers share: Carol reads," \
    "$number" LOCK.RW shelf carol READ PX 60000
  play "and so does Dave, at the same time." \
    "$number" LOCK.RW shelf dave READ PX 60000
  play "Erin wants to write: not while they read." \
    "$null" LOCK.RW shelf erin WRITE PX 60000
  play "Carol has read it," \
    "(integer) 0" LOCK.RELEASE shelf carol
  play "and Dave." \
    "(integer) 0" LOCK.RELEASE shelf dave
  play "Now Erin may write." \
    "$number" LOCK.RW shelf erin WRITE PX 60000

  printf '\n# Frank takes the printer over a connection of his own, for as long as that lasts.\n'
  franks='LOCK.ACQUIRE printer frank PX 60000 SESSION 0'
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf '%s\r\n' "$franks" >&3
  printf '> %s\n' "$franks"
  read -r franks <&3
  echo "$franks"
  [[ $franks == :[1-9]* ]] || fail "Frank should have the printer"
  franks=${franks%$'\r'}
  begin "Grace waits for it." LOCK.ACQUIRE printer grace BLOCK 0
  wait_for_line printer
  printf "\n# Frank's process dies, and its machine closes the connection.\n"
  exec 3>&-
  end "Grace has it, at once: nobody waits for his lease to end." "$number"
  # Fences of new holds are microseconds.
  (($(fence) - ${franks#:} < 30000000)) || fail "Grace should have had it at once"

  play "A lease ends by itself. Alice takes the disk for 200 ms, and then her process hangs." \
    "$number" LOCK.ACQUIRE disk alice PX 200
  alices=$(fence)
  for _ in $(seq 50); do
    if [ "$(ask LOCK.INFO disk)" = "$null" ]; then break; fi
    sleep 0.1
  done
  play "Her lease has run out, so Bob gets it, with a higher fence." \
    "$number" LOCK.ACQUIRE disk bob PX 60000
  bobs=$(fence)
  ((bobs > alices)) || fail "Bob's fence should be above $alices"

  printf '\n# The disk remembers the highest fence it has seen. Bob writes, with his.\n'
  store "$bobs" "Bob's page" || fail "the disk should take fence $bobs"
  echo "disk: fence $bobs accepted, it now has \"$disk\""
  printf '\n# Alice wakes up, believes that she holds the lock, and writes. No clock could have told her in time; the fence does.\n'
  if store "$alices" "Alice's page"; then fail "the disk should refuse fence $alices"; fi
  echo "disk: fence $alices refused, it has seen $fence_seen; it still has \"$disk\""
  play "She asks the lock: null, she does not hold it." \
    "$null" LOCK.EXTEND disk alice PX 60000
}

start
echo "A server with the lock module on 127.0.0.1:$port. Below, redis-cli stands for: redis-cli -3 -p $port"
session
cat <<EOF

The server goes on. Its data and its log are in target/run; the next make run starts afresh.
  connect: redis-cli -3 -p $port
  stop:    make stop
EOF
