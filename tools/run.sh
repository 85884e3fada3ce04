#!/usr/bin/env bash
# make run: starts a server with the lock module and plays six commands: a lock is taken, waited for and handed over.
# The server keeps running. Fails when a reply differs from what the text says.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/session.sh
. tools/session.sh

start
play "1. Alice takes the lock for a minute. The number is her fence." \
  "$number" LOCK.ACQUIRE report alice PX 60000
alices=$(fence)
play "2. Bob asks for it. Null: he does not hold it." \
  "$null" LOCK.ACQUIRE report bob PX 60000
begin "3. Bob asks again, and waits until he has it." LOCK.ACQUIRE report bob PX 60000 BLOCK 0
until_waiting report
play "4. Alice holds it, and Bob waits." \
  "*\"holding\" => (integer) 1*\"alice\"*\"fence\" => (integer) $alices*\"waiting\" => (integer) 1*\"bob\"*" \
  LOCK.INFO report
play "5. Alice releases it: she holds it 0 times now. The same step hands it to Bob." \
  "(integer) 0" LOCK.RELEASE report alice
end "   The call of Bob returns. He has the lock, with a higher fence." "$number"
(($(fence) > alices)) || fail "Bob's fence should be above $alices"
play "6. Alice comes back too late. Null: she does not hold it." \
  "$null" LOCK.EXTEND report alice PX 60000
goodbye
cat <<EOF
  next:    make demo plays the rest: readers and writers, deadlocks, sessions, late holders

Try it yourself. Bob's lease ends within a minute; this waits for that, and then Carol has the lock:
  $client LOCK.ACQUIRE report carol PX 60000 BLOCK 0
EOF
