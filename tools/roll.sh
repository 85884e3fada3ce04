#!/usr/bin/env bash
# tools/roll.sh [COMMIT...]: builds the module of older commits under target/roll, and types what
# docs/operations/upgrading.md says, from each of them to the module of target/release and back. Without a commit: the
# one from which tests/fixtures are, and the last tag. For make roll.
set -euo pipefail
cd "$(dirname "$0")/.."

commits=("$@")
if [ $# = 0 ]; then
  for fixture in tests/fixtures/*/; do commits+=("$(basename "$fixture")"); done
  if tag=$(git describe --tags --abbrev=0 2>/dev/null); then commits+=("$tag"); fi
fi
roll=$PWD/target/roll
mkdir -p "$roll"

for commit in "${commits[@]}"; do
  library=$roll/$commit.so
  if [ ! -f "$library" ]; then
    git cat-file -e "$commit^{commit}" 2>/dev/null || {
      echo "roll: this clone has no commit $commit: git fetch --unshallow brings it" >&2
      exit 1
    }
    echo "== building the module of $commit"
    rm -rf "$roll/source"
    mkdir "$roll/source"
    git archive "$commit" | tar -x -C "$roll/source"
    # Without link-time optimisation: what it does is the same.
    (cd "$roll/source" && CARGO_TARGET_DIR=$roll/build cargo build --quiet --locked --package redis-lock --lib)
    for built in "$roll"/build/debug/libredis_lock.{so,dylib}; do
      if [ -f "$built" ]; then mv "$built" "$library"; fi
    done
    rm -rf "$roll/source"
  fi
  echo "== upgrading from $commit"
  REDIS_LOCK_OLD_MODULE=$library tests/operations/recipes upgrading way_back
done
