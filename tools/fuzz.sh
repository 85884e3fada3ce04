#!/usr/bin/env bash
# tools/fuzz.sh SECONDS [TARGET...]: fuzzes each target for so long, with debug assertions on, from the inputs in
# fuzz/corpus and those that earlier runs left in target/fuzz. The stable compiler will do: no sanitizer is used, for
# there is nothing unsafe in what is fuzzed.
#
# What is found lies in fuzz/artifacts, and is played again with: target/fuzz/bin/TARGET FILE
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
targets=(arguments codec operations)
if [ $# -gt 0 ]; then targets=("$@"); fi

# The compiler's flags are cargo-fuzz's: what was built without them is not to be built anew.
home=$PWD/target/fuzz
mkdir -p "$home"
# shellcheck source=/dev/null
[ ! -f target/libclang/env ] || . ./target/libclang/env
target/cargo-fuzz/bin/cargo-fuzz fuzz build --sanitizer none --debug-assertions --target-dir "$home"
ln -sfn "$(dirname "$(find "$home" -path '*/release/codec' -type f)")" "$home/bin"

for target in "${targets[@]}"; do
  corpus=$home/corpus/$target log=$home/$target.log artifacts=$PWD/fuzz/artifacts/$target
  mkdir -p "$corpus" "$artifacts"
  echo "fuzz: $target for $seconds s"
  "$home/bin/$target" -max_total_time="$seconds" -max_len=2000 -timeout=20 -print_final_stats=1 \
    -artifact_prefix="$artifacts/" "$corpus" "fuzz/corpus/$target" >"$log" 2>&1 || {
    grep -aE 'panicked at|libFuzzer:|Test unit written' -A 4 "$log" | cut -c -400 >&2
    echo "fuzz: $target failed; all of it is in $log" >&2
    exit 1
  }
  echo "fuzz: $target: $(grep -aoE '^Done [0-9]+ runs' "$log"), $(grep -aoE 'cov: [0-9]+' "$log" | tail -n 1 | cut -c 6-) edges covered"
done
