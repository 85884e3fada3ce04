#!/usr/bin/env bash
# tools/agents.sh: installs what the helpers of clients/ need, and builds the agents through which tests/helpers drives
# them, the program of docs/operations/tls.md, and redis-lock. What a machine cannot have is left out: its scenarios
# count as not run, and say why.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install.sh clients node-helper node-tests twine go java
# The whole workspace, as tools/test.py does: else all that they need would be built once more.
cargo build --locked --quiet --workspace --example agent --example tls --bin redis-lock
if [ ! -f target/helpers/go-is-missing ]; then
  tools/go.sh build -o target/helpers/go-agent ./tests/helpers/agents/go
fi
if [ ! -f target/helpers/java-is-missing ]; then tools/java.sh agent; fi
