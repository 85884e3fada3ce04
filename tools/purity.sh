#!/usr/bin/env bash
# Checks that the folders of src/ use no more of each other than they should. Changes nothing.
#
# - src/lock compiles without the standard library (tests/support/purity) and has no statics.
# - lib -> command -> module -> ffi. command and module may use lock. lock and ffi use no other folder of src.
# - unsafe is in src/ffi alone. The compiler denies it elsewhere; this script finds the attributes that allow it again.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo check --quiet --locked --package purity

failed=0
# refuse WHAT PATTERN FILE...: fails if a line matches, and prints it.
refuse() {
  local what=$1 pattern=$2
  shift 2
  if grep -rnE "$pattern" "$@"; then
    echo "purity: $what" >&2
    failed=1
  fi
}

refuse "src/lock has a static" '^\s*(pub(\(.*\))? )?static |thread_local!' src/lock
refuse "src/lock may use nothing of ours but itself" 'crate::(ffi|module|command)' src/lock
refuse "src/ffi may use nothing of ours but itself" 'crate::(lock|module|command)' src/ffi
refuse "src/module may not use src/command" 'crate::command' src/module
refuse "unsafe is for src/ffi" 'allow\(unsafe_code|unsafe (fn|impl|extern)|unsafe \{' \
  src/lib.rs src/lock src/module src/command
exit "$failed"
