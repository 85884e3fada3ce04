#!/usr/bin/env bash
# tools/go.sh ARG...: go, with what tools/install.sh go brought: redigo, and the toolchain unless the machine has a newer
# one. It knows the modules of this repository as one workspace, and downloads nothing. GOWORK=off leaves those out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

own=$root/target/go/bin
if [ -x "$own/go" ]; then PATH=$own:$PATH; fi

workspace=$root/target/go.work
export GOWORK=${GOWORK:-$workspace} GOCACHE=$root/target/go-cache GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-buildvcs=false
mkdir -p "$root/target"
# In one step, since others may read it now.
cat >"$workspace.$$" <<END
go 1.21

use (
	$root/clients/go
	$root/tests/helpers/agents/go
)

replace github.com/gomodule/redigo => $root/target/redigo
END
mv "$workspace.$$" "$workspace"
exec go "$@"
