#!/usr/bin/env bash
# tools/lint-python.sh: the linters of the helper for redis-py, and of the scripts that test it. They come by
# tools/install.sh linters-python
set -euo pipefail
cd "$(dirname "$0")/.."

python=${REDIS_LOCK_PYTHON:-$PWD/target/venv/bin/python}
files=(clients/python clients/bench cli/compare cli/tests/program tests/helpers/agents/*.py tests/helpers/suites
  faults/agents
  tests/guide/programs tests/operations/recipes tests/operations examples tools/sizing.py)

"$python" -m ruff format --quiet --check --config clients/python/pyproject.toml "${files[@]}"
"$python" -m ruff check --quiet clients/python
"$python" -m ruff check --quiet --config clients/python/pyproject.toml --ignore T201,PLR2004,D102,D103,N802 examples
"$python" -m mypy --config-file clients/python/pyproject.toml --no-error-summary clients/python/redis_lock_client
