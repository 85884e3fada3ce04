#!/usr/bin/env bash
# make example: serves the page of examples/job-queue at a port, beside the server that make run or make demo left
# running. Without one it makes one. Ends with Ctrl-C; the lock server goes on.
#
#   tools/example.sh PORT
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/session.sh
. tools/session.sh

# is_left: a server of make run or make demo answers.
is_left() { [ -f "$run/cli" ] && port=$(<"$run/port") && cli=$(<"$run/cli") && is_up; }

is_left || "${MAKE:-make}" --no-print-directory run
port=$(<"$run/port")
exec target/venv/bin/python examples/job-queue/app.py --port "$1" --redis "redis://127.0.0.1:$port"
