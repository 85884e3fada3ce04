#!/usr/bin/env bash
# tools/recipes.sh: brings what the recipes of docs/operations need beside servers: the helpers, the program redis-lock,
# Prometheus. What a machine cannot have is left out: its recipes count as not run, and say why.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/agents.sh
tools/install.sh prometheus
