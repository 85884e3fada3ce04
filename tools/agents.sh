#!/usr/bin/env bash
# tools/agents.sh: installs what the helpers of clients/ need, and builds the agents through which tests/helpers drives
# them, and the program of docs/operations/tls.md. What a machine cannot have is left out: its scenarios count as not
# run, and say why.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install.sh clients node-helper go
cargo build --locked --quiet --package redis-lock-client --example agent --example tls
if [ ! -f target/helpers/go-is-missing ]; then
  tools/go.sh build -o target/helpers/go-agent ./tests/helpers/agents/go
fi
