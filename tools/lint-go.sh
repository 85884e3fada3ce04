#!/usr/bin/env bash
# tools/lint-go.sh: gofmt, go vet and the length of lines, for all Go of the repository. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

folders=(clients/go clients/bench/go tests/helpers/agents/go)
failed=
unformatted=$("$(tools/go.sh env GOROOT)/bin/gofmt" -l -s "${folders[@]}")
if [ -n "$unformatted" ]; then
  echo "not as gofmt -s has it:" "$unformatted" >&2
  failed=yes
fi
modules=$(find "${folders[@]}" -name go.mod -exec dirname {} \; | sort)
for folder in $modules; do
  tools/go.sh vet "./$folder/..." || failed=yes
  # What other systems compile, too.
  GOOS=darwin tools/go.sh vet "./$folder/..." || failed=yes
done
find "${folders[@]}" -name '*.go' -exec \
  awk 'length > 120 { print FILENAME ":" FNR ": longer than 120"; bad = 1 } END { exit bad }' {} + >&2 || failed=yes
[ -z "$failed" ]
