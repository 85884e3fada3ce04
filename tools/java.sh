#!/usr/bin/env bash
# tools/java.sh ARGUMENT...: runs Maven in clients/java. What it downloads and builds lies under target/java.
# tools/java.sh agent builds what the agent of tests/helpers needs, and runs no test.
set -euo pipefail
cd "$(dirname "$0")/../clients/java"

mvn() { command mvn -q -B -T 1C -Dmaven.repo.local="$PWD/../../target/java/repository" "$@"; }

if [ "${1-}" = agent ]; then
  mvn package -pl agent -am -DskipTests -Dmaven.javadoc.skip=true
  exit
fi
mvn "$@"
