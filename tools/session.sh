# shellcheck shell=bash
# The functions of tools/run.sh and tools/demo.sh: they start a server with the module, send commands, and compare the
# replies. The scripts source this file from the root of the repository. No function touches another server.

run=$PWD/target/run
module=$PWD/target/release/libredis_lock.so

# shellcheck disable=SC2034 # patterns of replies, for the scripts
number='(integer) [1-9]*' null='(nil)'

fail() {
  echo "$0 FAILED: $*" >&2
  exit 1
}

listens() { (: >"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# is_up: a server answers on our port, and its pid is the one in our file.
is_up() {
  "$cli" -h 127.0.0.1 -p "$port" INFO server 2>/dev/null | tr -d '\r' |
    grep -qx "process_id:$(cat "$run/redis.pid" 2>/dev/null)"
}

# start: starts a server on a free port, for this machine only. Sets $server, $cli, $port and $client.
start() {
  local found
  found=$(tools/find-server.sh) || fail "there is no server"
  { read -r server && read -r cli; } <<<"$found"
  tools/stop.sh >/dev/null # the server of an earlier run
  rm -rf "$run"
  mkdir -p "$run/data"

  for port in $(seq 6380 6479); do listens "$port" || break; done
  # What a reader types to connect: redis-cli, or the path of the one that make servers unpacked.
  client="$(if [ "$cli" = "$(command -v redis-cli)" ]; then echo redis-cli; else echo "${cli#"$PWD/"}"; fi) -3 -p $port"
  echo "$port" >"$run/port"
  echo "$cli" >"$run/cli"

  # The redis.conf of the repository with the full path of the module: a relative one would count from --dir.
  { echo "loadmodule \"$module\"" && grep -v '^loadmodule ' redis.conf; } >"$run/redis.conf"
  "$server" "$run/redis.conf" --port "$port" --dir "$run/data" --pidfile "$run/redis.pid" \
    --logfile "$run/redis.log" --daemonize yes || fail "the server did not start"

  for _ in $(seq 100); do
    if is_up; then
      echo "A server with the lock module listens on 127.0.0.1:$port. Below, redis-cli stands for: $client"
      return
    fi
    if grep -q aborting "$run/redis.log" 2>/dev/null; then break; fi
    sleep 0.1
  done
  tail -n 20 "$run/redis.log" >&2 || true
  fail "the server did not come up on port $port"
}

# ask COMMAND...: prints the reply as redis-cli shows it to a person.
ask() { "$cli" -3 --no-raw -h 127.0.0.1 -p "$port" "$@" </dev/null; }

# play TEXT PATTERN COMMAND...: prints the text and the command, sends it, and fails if the reply differs. Sets $reply.
play() {
  local text=$1 pattern=$2
  shift 2
  printf '\n# %s\n$ redis-cli %s\n' "$text" "$*"
  reply=$(ask "$@")
  echo "$reply"
  # shellcheck disable=SC2053 # a pattern, on purpose
  [[ $reply == $pattern ]] || fail "the reply above should be: $pattern"
}

# begin TEXT COMMAND...: the same for a command that waits. The function end reads its reply.
begin() {
  printf '\n# %s\n$ redis-cli %s\n' "$1" "${*:2}"
  # The waiting client must not inherit descriptor 3, a connection of demo.sh: it would keep that open.
  (exec 3>&- && ask "${@:2}" >"$run/waiting") &
  waiting=$!
}

# end TEXT PATTERN: prints the reply of the command that waited. Sets $reply.
end() {
  wait "$waiting" || fail "the command that waited failed"
  reply=$(<"$run/waiting")
  printf '\n# %s\n%s\n' "$1" "$reply"
  # shellcheck disable=SC2053 # a pattern, on purpose
  [[ $reply == $2 ]] || fail "the reply above should be: $2"
}

# until_waiting KEY: returns when a client waits for the key.
until_waiting() {
  for _ in $(seq 100); do
    if [[ $(ask LOCK.INFO "$1") == *"\"waiting\" => (integer) 1"* ]]; then return; fi
    sleep 0.1
  done
  fail "no client waits for $1"
}

# fence: prints the number in $reply.
fence() { echo "${reply#(integer) }"; }

# goodbye: tells what the reader can do next.
goodbye() {
  cat <<EOF

The server keeps running. Its data and its log are in target/run; the next make run or make demo starts anew.
  connect: $client
  stop:    make stop
EOF
}
