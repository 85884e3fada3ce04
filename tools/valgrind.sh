#!/usr/bin/env bash
# tools/valgrind.sh [ARGUMENT...]: runs the server tests with their servers under valgrind's memcheck. What valgrind
# says of the module counts, not the results of the tests: many are about time, and servers are some 30 times slower
# here. The arguments go to the tests: names and --skip. Without arguments all tests run but those that only take long.
#
# Fails when the module is in the stack of an error (memory that is not its own, freed, or never written) or of lost
# memory. The servers end by SHUTDOWN, so that valgrind reports what is lost. Logs: target/valgrind/logs.
set -euo pipefail
cd "$(dirname "$0")/.."

server=$(command -v "${REDIS_LOCK_SERVER:-redis-server}")
# Valgrind sees an allocator that it can replace: libc's, or a jemalloc that is linked dynamically, as in Debian.
# The module allocates through the server.
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
  --suppressions='$PWD/tools/valgrind.supp' --soname-synonyms='somalloc=*jemalloc*' --log-file=$dir/logs/%p \\
  '$server' "\$@"
END
chmod +x "$dir/server"

if [ $# -eq 0 ]; then
  # Crowds and soaks of thousands, clusters, tests of other programs than a server, and the memory that the server
  # counts.
  set -- --skip soak --skip crowd --skip mass --skip cluster --skip memory:: --skip clients:: --skip connections:: \
    --skip tools:: \
    --skip dashboard:: --skip documents:: --skip examples:: --skip reference:: --skip picture::
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

# A paragraph of a log is an error or a loss, with its stack: at, by, by. Where valgrind knows the line, it prints the
# name of the Rust file instead of the library.
awk -v RS= -v ORS='\n\n' '/ at 0x/ && /redis_lock|\.rs:[0-9]/' < <(
  for log in "$dir"/logs/*; do
    sed -E 's/^==[0-9]+== ?//' "$log"
    echo
  done
) >"$dir/found"
count=$(find "$dir/logs" -type f | wc -l)
ended=$(grep -lE 'LEAK SUMMARY|All heap blocks were freed' "$dir"/logs/* | wc -l)
found=$(awk -v RS= 'END { print NR }' "$dir/found")
echo "valgrind: $count processes of servers, $ended of which reported what they lost"
echo "valgrind: $found errors or losses with the module in the stack"
if [ "$ended" -eq 0 ] || [ -s "$dir/found" ]; then
  head -n 120 "$dir/found" >&2
  exit 1
fi
