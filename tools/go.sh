#!/usr/bin/env bash
# tools/go.sh ARG...: go, with what tools/install.sh go brought: redigo, and the toolchain unless the machine has a newer one.
# enough, and redigo. It knows the modules of this repository as one workspace, and downloads nothing.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

# The machine's own go is good from 1.21 on.
own=$root/target/go/bin
if [ -x "$own/go" ]; then PATH=$own:$PATH; fi

export GOWORK=$root/target/go.work GOCACHE=$root/target/go-cache GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-buildvcs=false
mkdir -p "$root/target"
cat >"$GOWORK.$$" <<END
go 1.21

use (
	$root/clients/go
	$root/tests/helpers/agents/go
)

replace github.com/gomodule/redigo => $root/target/redigo
END
mv "$GOWORK.$$" "$GOWORK"
exec go "$@"
