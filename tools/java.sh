#!/usr/bin/env bash
# tools/java.sh ARGUMENT...: runs Maven in clients/java. What it downloads and builds lies under target/java.
# tools/java.sh agent|bench|curator builds that program with what it needs, and runs no test: the agent of
# tests/helpers, the driver of clients/bench, or that with the one for Curator.
# tools/java.sh artifacts builds what a publisher uploads: jars, their sources and their pages.
# With REDIS_LOCK_NIGHTLY the tests run on the newest JDK in /usr/lib/jvm, and each place is waited at in both ways.
set -euo pipefail
cd "$(dirname "$0")/../clients/java"

mvn() { command mvn -q -B -T 1C -Dmaven.repo.local="$PWD/../../target/java/repository" "$@"; }

case ${1-} in
  agent | bench | curator)
    mvn package -Pcurator -pl "$1" -am -DskipTests -Dmaven.javadoc.skip=true
    exit
    ;;
  artifacts)
    # A jar has the rights of the files that go into it.
    umask 022
    mvn package source:jar-no-fork -pl core,lettuce,jedis,kit,micrometer,shedlock,spring,boot -Dmaven.test.skip=true
    exit
    ;;
esac
if [ -n "${REDIS_LOCK_NIGHTLY-}" ]; then
  newest=0
  for file in /usr/lib/jvm/*/release; do
    [ -f "$file" ] || continue
    version=$(sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$file")
    [ "${version:-0}" -gt "$newest" ] || continue
    newest=$version
    java=${file%release}bin/java
  done
  [ "$newest" = 0 ] || set -- "-Djvm=$java" "$@"
fi
mvn "$@"
