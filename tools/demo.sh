#!/usr/bin/env bash
# make demo: starts a server with the lock module and plays what locks can do. The server keeps running.
# Fails when a reply differs from what the text says.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/session.sh
. tools/session.sh

# The resource that the lock protects: it remembers the highest fence it has seen and refuses an older one.
fence_seen=0
disk=empty
# store FENCE TEXT
store() {
  if (($1 < fence_seen)); then return 1; fi
  fence_seen=$1
  disk=$2
}

play_all() {
  local alices bobs franks

  play "Alice takes the lock for a minute. The number is her fence: each new hold gets a higher one." \
    "$number" LOCK.ACQUIRE report alice PX 60000 NOTE web-1
  alices=$(fence)
  play "Bob asks for it. Null: he does not hold it." \
    "$null" LOCK.ACQUIRE report bob PX 60000
  play "Alice takes it again. It is hers already: same fence, and now she has to release it twice." \
    "(integer) $alices" LOCK.ACQUIRE report alice PX 60000
  play "She needs two minutes from now." \
    "(integer) $alices" LOCK.EXTEND report alice PX 120000
  begin "Bob waits for it, in a queue inside the server." LOCK.ACQUIRE report bob PX 60000 BLOCK 0
  until_waiting report
  play "Who holds it, and who waits?" \
    "*\"holding\" => (integer) 1*\"alice\"*\"fence\" => (integer) $alices*\"waiting\" => (integer) 1*\"bob\"*" \
    LOCK.INFO report
  play "Alice releases once; one is left." \
    "(integer) 1" LOCK.RELEASE report alice
  play "And once more: she holds nothing now, and in the same step the lock goes to Bob." \
    "(integer) 0" LOCK.RELEASE report alice
  end "Bob's call returns. He has it, with a higher fence." "$number"
  (($(fence) > alices)) || fail "Bob's fence should be above $alices"

  play "The server refuses deadlocks, and names the cycle. Alice takes the disk," \
    "$number" LOCK.ACQUIRE disk alice PX 60000
  begin "and waits for the report, which Bob holds." LOCK.ACQUIRE report alice BLOCK 0
  until_waiting report
  play "Now Bob wants the disk. That would never end." \
    "(error) DEADLOCK bob -> disk -> alice -> report -> bob" LOCK.ACQUIRE disk bob BLOCK 0
  play "So he gives back what he has," \
    "(integer) 0" LOCK.RELEASE report bob
  end "and Alice goes on." "$number"
  play "She is done with the report." \
    "(integer) 0" LOCK.RELEASE report alice
  play "And with the disk." \
    "(integer) 0" LOCK.RELEASE disk alice

  play "Readers share: Carol reads," \
    "$number" LOCK.RW shelf carol READ PX 60000
  play "and so does Dave, at the same time." \
    "$number" LOCK.RW shelf dave READ PX 60000
  play "Erin wants to write: not while they read." \
    "$null" LOCK.RW shelf erin WRITE PX 60000
  play "Carol has read it," \
    "(integer) 0" LOCK.RELEASE shelf carol
  play "and Dave." \
    "(integer) 0" LOCK.RELEASE shelf dave
  play "Now Erin may write." \
    "$number" LOCK.RW shelf erin WRITE PX 60000

  printf '\n# Frank takes the printer over a connection of his own. The hold ends when the connection does.\n'
  franks='LOCK.ACQUIRE printer frank PX 60000 SESSION 0'
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf '%s\r\n' "$franks" >&3
  printf '> %s\n' "$franks"
  read -r franks <&3
  echo "$franks"
  [[ $franks == :[1-9]* ]] || fail "Frank should have the printer"
  franks=${franks%$'\r'}
  begin "Grace waits for it." LOCK.ACQUIRE printer grace BLOCK 0
  until_waiting printer
  printf "\n# Frank's process dies, and its machine closes the connection.\n"
  exec 3>&-
  end "Grace has it at once: she does not have to wait until his lease ends." "$number"
  # Fences of new holds are microseconds.
  (($(fence) - ${franks#:} < 30000000)) || fail "Grace should have had it at once"

  play "A lease ends by itself. Alice takes the disk for 200 ms, and then her process hangs." \
    "$number" LOCK.ACQUIRE disk alice PX 200
  alices=$(fence)
  for _ in $(seq 50); do
    if [ "$(ask LOCK.INFO disk)" = "$null" ]; then break; fi
    sleep 0.1
  done
  play "Her lease has run out, so Bob gets it, with a higher fence." \
    "$number" LOCK.ACQUIRE disk bob PX 60000
  bobs=$(fence)
  ((bobs > alices)) || fail "Bob's fence should be above $alices"

  printf '\n# The disk remembers the highest fence it has seen. Bob writes, with his.\n'
  store "$bobs" "Bob's page" || fail "the disk should take fence $bobs"
  echo "disk: fence $bobs accepted, it now has \"$disk\""
  printf "\n# Alice wakes up, believes that she holds the lock, and writes. Her fence shows that she is late.\n"
  if store "$alices" "Alice's page"; then fail "the disk should refuse fence $alices"; fi
  echo "disk: fence $alices refused, it has seen $fence_seen; it still has \"$disk\""
  play "She asks the lock: null, she does not hold it." \
    "$null" LOCK.EXTEND disk alice PX 60000
}

start
play_all
goodbye
