#!/usr/bin/env bash
# tools/go.sh ARG...: go, with what tools/install.sh go brought: redigo, and the toolchain unless the machine has one
# that is new enough. It sees the modules of this repository as one workspace, unless GOWORK=off. It downloads nothing,
# and writes into target/ alone. For example: tools/go.sh test ./clients/go/...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

own=$root/target/go/bin
if [ -x "$own/go" ]; then PATH=$own:$PATH; fi

workspace=$root/target/go.work
export GOWORK=${GOWORK:-$workspace} GOCACHE=$root/target/go-cache GOPATH=$root/target/go-path GOENV=off
export GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-buildvcs=false
export XDG_CONFIG_HOME=$root/target/go-config # go counts there how it is used

# In one step, since others may read it now.
mkdir -p "$root/target"
cat >"$workspace.$$" <<END
go 1.21

use (
	"$root/clients/go"
	"$root/tests/helpers/agents/go"
)

replace github.com/gomodule/redigo => "$root/target/redigo"
END
mv "$workspace.$$" "$workspace"
exec go "$@"
