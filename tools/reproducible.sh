#!/usr/bin/env bash
# make reproducible: builds the tarball of the last commit in two folders of different names, and compares the bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "reproducible: building the last commit twice; what is not committed takes no part"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
for folder in one another/folder; do
  git clone -q . "$place/$folder"
  # What bindgen needs where no package manager could install it.
  [ ! -d target/libclang ] || { mkdir "$place/$folder/target" && cp -a target/libclang "$place/$folder/target/"; }
  (cd "$place/$folder" && tools/package.sh build && BUILT='' tools/package.sh tarball)
done
diff "$place"/{one,another/folder}/target/dist/SHA256SUMS
echo "reproducible: both builds gave the same bytes"
cat "$place/one/target/dist/SHA256SUMS"
