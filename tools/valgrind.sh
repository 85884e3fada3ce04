#!/usr/bin/env bash
# tools/valgrind.sh [ARGUMENT...]: the server tests with their servers under valgrind's memcheck. What counts is what
# valgrind says of the module, not the tests: many of them are about time, and servers are some 30 times slower here.
# The arguments go to the tests, names and --skip; without any, all run but those that only take long.
#
# Fails when the module is seen in an error (memory that is not its own, that is freed, or that was never written), or in
# memory that is lost. The servers end by SHUTDOWN, so that what is lost is told. Logs: target/valgrind/logs.
set -euo pipefail
cd "$(dirname "$0")/.."

server=$(command -v "${REDIS_LOCK_SERVER:-redis-server}")
# Valgrind sees an allocator if it can put its own in its place: libc's, or a jemalloc that is linked dynamically, as
# Debian's is. The module allocates through the server.
if ! "$server" --version | grep -q malloc=libc && ! ldd "$server" 2>/dev/null | grep -q jemalloc; then
  echo "valgrind: $server has an allocator built in that valgrind cannot see" >&2
  exit 1
fi

dir=$PWD/target/valgrind
rm -rf "$dir"
mkdir -p "$dir/logs"
cat >"$dir/server" <<END
#!/bin/sh
exec valgrind --leak-check=full --show-leak-kinds=definite,indirect --num-callers=40 \\
  --suppressions='$PWD/tools/valgrind.supp' --soname-synonyms='somalloc=*jemalloc*' --log-file=$dir/logs/%p '$server' "\$@"
END
chmod +x "$dir/server"

if [ $# -eq 0 ]; then
  # Crowds and soaks of thousands, clusters, what other programs than a server do, and what memory the server counts.
  set -- --skip soak --skip crowd --skip mass --skip cluster --skip memory:: --skip clients:: --skip connections:: \
    --skip tools:: \
    --skip dashboard:: --skip documents:: --skip reference:: --skip picture::
fi
# shellcheck source=/dev/null
[ ! -f target/libclang/env ] || . ./target/libclang/env
cargo test --quiet --locked --test server --no-run
REDIS_LOCK_SERVER=$dir/server REDIS_LOCK_SHUTDOWN=1 REDIS_LOCK_PAYLOADS=${REDIS_LOCK_PAYLOADS:-2000} \
  RUST_TEST_THREADS=${RUST_TEST_THREADS:-2} RUST_BACKTRACE=0 \
  cargo test --quiet --locked --test server -- "$@" </dev/null >"$dir/tests.log" 2>&1 || true
grep -aE '^test result' "$dir/tests.log" || {
  tail -n 20 "$dir/tests.log" >&2
  echo "valgrind: the tests did not run" >&2
  exit 1
}

# A paragraph of a log is an error, or what is lost, with its stack: at, by, by. Where lines are known, the name of the
# library is not shown, but those of Rust are.
awk -v RS= -v ORS='\n\n' '/ at 0x/ && /redis_lock|\.rs:[0-9]/' < <(
  for log in "$dir"/logs/*; do
    sed -E 's/^==[0-9]+== ?//' "$log"
    echo
  done
) >"$dir/found"
count=$(find "$dir/logs" -type f | wc -l)
ended=$(grep -lE 'LEAK SUMMARY|All heap blocks were freed' "$dir"/logs/* | wc -l)
echo "valgrind: $count processes of servers, $ended of which told what they lost: $(awk -v RS= 'END { print NR }' "$dir/found") errors or losses with the module in the stack"
if [ "$ended" -eq 0 ] || [ -s "$dir/found" ]; then
  head -n 120 "$dir/found" >&2
  exit 1
fi
