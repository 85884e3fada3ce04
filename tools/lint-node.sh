#!/usr/bin/env bash
# tools/lint-node.sh: checks the helper for Node.js: its format and its rules with Biome, its types with tsc, also as an
# application sees them beside both client libraries and OpenTelemetry. tools/install.sh linters-node installs all but
# the libraries, which target/node has. Writes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

node=$PWD/target/node/bin/node
tsc=$PWD/target/typescript/node_modules/typescript/bin/tsc
cd clients/node
"$node" ../../target/biome/node_modules/@biomejs/biome/bin/biome check --error-on-warnings \
  . ../bench ../../tests/helpers/agents/node.mjs ../../tests/helpers/suites/node_suites.mjs \
  ../../faults/agents/redlocks.mjs \
  ../../tests/browser/*.mjs ../../tools/docs/*.mjs ../../examples/job-queue/page
"$node" "$tsc" -p . --noEmit --typeRoots ../../target/typescript/node_modules/@types
"$node" "$tsc" -p tests --noEmit
