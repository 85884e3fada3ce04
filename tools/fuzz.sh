#!/usr/bin/env bash
# tools/fuzz.sh SECONDS [TARGET...]: fuzzes all targets at once for SECONDS, with debug assertions on. It starts from
# the inputs in fuzz/corpus and in target/fuzz, where earlier runs left theirs. The stable compiler is enough: the
# fuzzed code has no unsafe block, so no sanitizer is needed.
#
# An input that fails is written to fuzz/artifacts. Play it again with: target/fuzz/bin/TARGET FILE
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
targets=(arguments codec operations)
if [ $# -gt 0 ]; then targets=("$@"); fi

# cargo-fuzz has compiler flags of its own. A folder of its own keeps it from rebuilding what other tasks built.
home=$PWD/target/fuzz
mkdir -p "$home"
# shellcheck source=/dev/null
[ ! -f target/libclang/env ] || . ./target/libclang/env
target/cargo-fuzz/bin/cargo-fuzz fuzz build --sanitizer none --debug-assertions --target-dir "$home"
ln -sfn "$(dirname "$(find "$home" -path '*/release/codec' -type f)")" "$home/bin"

# play TARGET
play() {
  local target=$1 corpus=$home/corpus/$1 log=$home/$1.log artifacts=$PWD/fuzz/artifacts/$1
  mkdir -p "$corpus" "$artifacts"
  "$home/bin/$target" -max_total_time="$seconds" -max_len=2000 -timeout=60 -print_final_stats=1 \
    -artifact_prefix="$artifacts/" "$corpus" "fuzz/corpus/$target" >"$log" 2>&1 || {
    grep -aE 'panicked at|libFuzzer:|Test unit written' -A 4 "$log" | cut -c -400 >&2
    echo "fuzz: $target failed; the whole output is in $log" >&2
    return 1
  }
  edges=$(grep -aoE 'cov: [0-9]+' "$log" | tail -n 1 | cut -c 6-)
  echo "fuzz: $target: $(grep -aoE '^Done [0-9]+ runs' "$log"), $edges edges covered"
}

export -f play
export home seconds
echo "fuzz: ${targets[*]} at once, for $seconds s"
printf '%s\n' "${targets[@]}" | xargs -I {} -P 0 bash -c 'play {}'
