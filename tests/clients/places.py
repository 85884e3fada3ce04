"""Waiting with QUEUE through redis-py with its defaults: a read timeout of 5 s, its own resending, one pool for all.

python places.py PORT BLOCK: talks to the server on 127.0.0.1:PORT. BLOCK is in milliseconds. Prints how many checks
passed, and ends at the first that fails. Never starts a server, never touches a key but places:py:BLOCK.
"""

import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import redis

WAITERS = 6
checks = 0


def check(what, got, want):
    """want: a value, or a function that says whether it will do."""
    global checks
    if not (want(got) if callable(want) else got == want):
        sys.exit(f"places.py: {what}: got {got!r}" + ("" if callable(want) else f", want {want!r}"))
    checks += 1


def wait_for(what, condition):
    """Asks until it is so. The limit is for a server that never says so, not for a busy machine."""
    give_up = time.monotonic() + 120
    while not condition():
        if time.monotonic() > give_up:
            sys.exit(f"places.py: waited in vain for {what}")
        time.sleep(0.005)


def as_map(reply):
    """A map is a dict in RESP3, a flat list in RESP2."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


class Waiter:
    """One acquisition, with an owner of its own."""

    def __init__(self, client, key, block):
        self.client, self.key, self.block = client, key, block
        self.owner = uuid.uuid4().hex
        self.asked = 0

    def ask(self):
        self.asked += 1
        words = ("LOCK.ACQUIRE", self.key, self.owner, "PX", 30_000, "BLOCK", self.block, "QUEUE", 10_000)
        return self.client.execute_command(*words)

    def run(self):
        """The guide's loop, then some work under the lock. Returns what was seen meanwhile."""
        while (fence := self.ask()) is None:
            pass
        info = as_map(self.client.execute_command("LOCK.INFO", self.key))
        time.sleep(0.2)
        left = self.client.execute_command("LOCK.RELEASE", self.key, self.owner)
        return fence, [as_map(holder) for holder in info[b"holders"]], left


def line(client, judge, key, block):
    def waiters():
        return [as_map(waiter) for waiter in as_map(judge.execute_command("LOCK.INFO", key))[b"waiters"]]

    check("the first holder", judge.execute_command("LOCK.ACQUIRE", key, "first", "PX", 600_000), lambda f: f > 0)
    line = [Waiter(client, key, block) for _ in range(WAITERS + 1)]
    with ThreadPoolExecutor(len(line)) as threads:
        results = []
        for number, waiter in enumerate(line[:WAITERS], 1):
            results.append(threads.submit(waiter.run))
            wait_for(f"waiter {number} to wait", lambda number=number: len(waiters()) == number)
        before = {waiter[b"owner"]: waiter[b"client"] for waiter in waiters()}
        if block < 5_000:
            # Every connection breaks once; and each waiter gets null and asks again.
            check("connections closed", judge.client_kill_filter(_type="normal", skipme=True), lambda n: n >= WAITERS)
            wait_for("all to ask again", lambda: all(waiter.asked >= 3 for waiter in line[:WAITERS]))
        else:
            # The read timeout ends first: redis-py closes the connection and sends the request again.
            def resent():
                return all(w[b"client"] not in (None, before[w[b"owner"]]) for w in waiters())

            wait_for("redis-py to send all requests again", resent)
            check("the program asked once", [waiter.asked for waiter in line[:WAITERS]], [1] * WAITERS)
        results.append(threads.submit(line[-1].run))
        wait_for("a late one to wait", lambda: len(waiters()) == WAITERS + 1)
        served = [waiter[b"owner"].decode() for waiter in waiters()]
        check("all stand where they stood", served, [waiter.owner for waiter in line])
        check("the first holder leaves", judge.execute_command("LOCK.RELEASE", key, "first"), 0)
        results = [result.result() for result in results]

    fences = [fence for fence, _, _ in results]
    check("first come, first served", fences, sorted(set(fences)))
    for waiter, (fence, holders, left) in zip(line, results, strict=True):
        seen = [(h[b"owner"].decode(), h[b"fence"], h[b"reads"], h[b"writes"], h[b"offered"]) for h in holders]
        check("one holder, granted once", seen, [(waiter.owner, fence, 0, 1, 0)])
        check("nothing is left of it", left, 0)
    check("the lock is free", judge.execute_command("LOCK.INFO", key), None)


port, block = int(sys.argv[1]), int(sys.argv[2])
with redis.Redis(port=port) as client, redis.Redis(port=port, single_connection_client=True) as judge:
    try:
        line(client, judge, f"places:py:{block}", block)
    except redis.RedisError as error:
        raise SystemExit(f"places.py: after {checks} checks: {type(error).__name__}: {error}") from error
print(f"places.py: {checks} checks passed")
