# Everything one does with this repository, a word each. What a word needs, tools/install.sh brings first.
# Never needs cargo-nextest, never writes outside the repository but through tools/install.sh.

export CARGO_TARGET_DIR := $(CURDIR)/target

# What the tests are told of this machine. Each has the same default in the tests.
export REDIS_LOCK_MODULE   ?= $(CURDIR)/target/release/libredis_lock.so
export REDIS_LOCK_PYTHON   ?= $(CURDIR)/target/venv/bin/python
export REDIS_LOCK_NODE     ?= $(CURDIR)/target/node/bin/node

# The tests wait more than they compute.
export RUST_TEST_THREADS ?= 4

# The file is there when tools/install.sh had to bring libclang without a package manager; it says where.
env = [ ! -f target/libclang/env ] || . ./target/libclang/env;
cargo = $(env) cargo

.PHONY: help build modules run stop test servers test-servers faults torture fuzz valgrind instructions lint bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

build: ## the module for users: target/release/libredis_lock.so
	@tools/install.sh libclang
	@$(cargo) build --release --locked
	@[ ! -f target/release/libredis_lock.dylib ] || ln -sf libredis_lock.dylib target/release/libredis_lock.so

run: build ## a server with the module on a free port, and a short session played on it
	@tools/install.sh server
	@tools/run.sh

stop: ## stop the server that make run left running
	@tools/stop.sh

# Servers load the release module, as users do. The tests themselves are built for debugging: with the assertions on, and
# in less time, because the release profile links every test anew with all its dependencies.
modules: build
	@$(cargo) build --release --locked --package probe-module --package wallclock --package noop

TEST =

test: ## all tests: unit, property, model, real servers, client libraries; TEST=name those whose name contains it
	@tools/install.sh libclang
	@$(env) MAKE='$(MAKE)' tools/test.py '$(TEST)'

servers: ## the Redis and Valkey servers of several Debian suites, side by side, under target/servers
	@tools/servers.sh

test-servers: modules servers ## the tests with real servers, on each of those
	@tools/install.sh clients
	@$(env) tools/test.py --servers

faults: ## programs that break things around servers, and judge what clients saw: a few rounds of each
torture: ## the same for hours
faults torture: build
	@tools/install.sh server
	@$(cargo) build --release --locked --package wallclock
	@$(cargo) build --locked --package faults
	@tools/faults.sh $(if $(filter torture,$@),long,short)

SECONDS = 60

fuzz: ## what is fuzzed (arguments, codec, the core beside its model), each for SECONDS=60
	@tools/install.sh libclang fuzz
	@tools/fuzz.sh $(SECONDS)

valgrind: build ## the server tests with their servers under valgrind: nothing invalid, nothing lost; half an hour
	@tools/install.sh server valgrind
	@$(cargo) build --release --locked --package probe-module --package wallclock
	@tools/valgrind.sh

RECORD =

instructions: ## instructions per command in the core, beside the committed figures; RECORD=1 writes these anew
	@tools/install.sh libclang valgrind
	@$(cargo) bench --quiet --locked --bench instructions -- $(if $(RECORD),--record)

lint: ## format, clippy, docs, the purity of src/lock, links of documents; shellcheck where there is one
	@tools/install.sh libclang
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	@$(cargo) clippy --workspace --all-targets --locked -- -D warnings
	@$(cargo) clippy --manifest-path fuzz/Cargo.toml --no-default-features --locked -- -D warnings
	@$(cargo) doc --no-deps --document-private-items --locked
	tools/purity.sh
	tools/links.py
	@! command -v shellcheck >/dev/null || shellcheck tools/*.sh .ci/run
lint: export RUSTDOCFLAGS := -D warnings

ROUNDS = 5

bench: build ## what locks cost beside what people use without the module, to bench/results, in ROUNDS=5; half an hour
	@tools/install.sh server valgrind
	@$(cargo) build --release --locked --package bench --package noop
	@$(cargo) bench --locked --package redis-lock
	@tools/bench.sh $(ROUNDS)

clean: stop ## remove target/: what was built, installed and run
	cargo clean
