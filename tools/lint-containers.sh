#!/usr/bin/env bash
# tools/lint-containers.sh: hadolint over the Dockerfiles, and the Compose file and the objects of Kubernetes by their
# schemas. tools/install.sh linters-containers brings what it needs.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD/target/containers
python=target/venv/bin/python
target/containers/bin/hadolint contrib/docker/Dockerfile packaging/Containerfile
found=$("$python" -m check_jsonschema --builtin-schema vendor.compose-spec contrib/docker/compose.yaml) || {
  echo "$found" >&2
  exit 1
}
"$python" -m kubernetes_validate --quiet --strict contrib/kubernetes/*.yaml
