#!/usr/bin/env bash
# tools/reproducible.sh [tarball|jars]...: builds the tarball and the jars for Java of the last commit in two folders of
# different names, the second with another time zone and umask, and compares the bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "reproducible: building the last commit twice; what is not committed takes no part"
home=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

tarball() { tools/package.sh build && BUILT='' tools/package.sh tarball; }

jars() {
  if [ -f "$home/target/helpers/java-is-missing" ]; then
    echo "reproducible: without the jars: $(cat "$home/target/helpers/java-is-missing")"
    return
  fi
  mkdir -p "$home/target/java/repository" target/java
  ln -s "$home/target/java/repository" target/java/repository
  tools/java.sh artifacts
}

# build FOLDER WHAT...: writes the sums of what it built to FOLDER.sums.
build() {
  local folder=$place/$1 what
  git clone -q . "$folder"
  # What bindgen needs where no package manager could install it.
  [ ! -d target/libclang ] || { mkdir "$folder/target" && cp -a target/libclang "$folder/target/"; }
  cd "$folder"
  [ "$1" = one ] || { umask 027 && export TZ=Pacific/Chatham; }
  for what in "${@:2}"; do "$what"; done
  find target -maxdepth 3 \( -path "target/dist/*.tar.gz" -o -path "target/java/redislock-*/*.jar" \) -print0 |
    sort -z | xargs -0r sha256sum >"$folder.sums"
  [ -s "$folder.sums" ]
}

[ $# -gt 0 ] || set -- tarball jars
(build one "$@")
(build another/folder "$@")
diff "$place"/{one,another/folder}.sums
echo "reproducible: both builds gave the same bytes"
cat "$place/one.sums"
