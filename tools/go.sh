#!/usr/bin/env bash
# tools/go.sh ARG...: go, with what tools/install.sh go brought: the client libraries, and the toolchain unless the
# machine has one that is new enough. It sees the modules of this repository as one workspace, unless GOWORK=off. It
# downloads nothing, unless REDIS_LOCK_GOPROXY says from where, and writes into target/ alone. For example:
# tools/go.sh test ./clients/go/tests/...
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

own=$root/target/go/bin
if [ -x "$own/go" ]; then PATH=$own:$PATH; fi

workspace=$root/target/go.work
export GOWORK=${GOWORK:-$workspace} GOCACHE=$root/target/go-cache GOPATH=$root/target/go-path GOENV=off
export GOTOOLCHAIN=local GOPROXY=${REDIS_LOCK_GOPROXY:-off} GOFLAGS=-buildvcs=false
export XDG_CONFIG_HOME=$root/target/go-config # go counts there how it is used

# In one step, since others may read it now.
mkdir -p "$root/target"
cat >"$workspace.$$" <<END
go 1.26.0

use (
	"$root/clients/bench/go"
	"$root/clients/go"
	"$root/clients/go/lockgocron"
	"$root/clients/go/lockgoredis"
	"$root/clients/go/lockotel"
	"$root/clients/go/lockredigo"
	"$root/clients/go/lockrueidis"
	"$root/clients/go/tests"
	"$root/tests/helpers/agents/go"
)
END
mv "$workspace.$$" "$workspace"
exec go "$@"
