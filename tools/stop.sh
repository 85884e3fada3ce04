#!/usr/bin/env bash
# Stops the server that tools/run.sh or tools/demo.sh left running. It knows the server by its pid, never by a name.
# Never touches another process.
set -euo pipefail
cd "$(dirname "$0")/.."

pidfile=target/run/redis.pid
if [ ! -f "$pidfile" ]; then
  echo "no server to stop: make run and make demo left none"
  exit 0
fi
pid=$(cat "$pidfile")
port=$(cat target/run/port)
cli=$(cat target/run/cli 2>/dev/null || echo redis-cli)

# After a crash or a reboot the pid may belong to another process. Our server answers on our port, with that pid.
if ! "$cli" -h 127.0.0.1 -p "$port" INFO server 2>/dev/null | tr -d '\r' | grep -qx "process_id:$pid"; then
  rm -f "$pidfile"
  echo "no server to stop: the server of the last run is gone"
  exit 0
fi

kill "$pid"
for _ in $(seq 100); do
  # The server removes the file when all its data is on disk.
  if [ ! -f "$pidfile" ]; then
    echo "stopped the server on port $port (pid $pid)"
    exit 0
  fi
  sleep 0.1
done
echo "the server on port $port (pid $pid) does not stop: see target/run/redis.log" >&2
exit 1
