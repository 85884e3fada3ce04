"""Waiting with QUEUE through redis-py's asyncio client with its defaults, by tasks that are cancelled.

python places_asyncio.py PORT: talks to the server on 127.0.0.1:PORT, prints how many checks passed, and ends at the
first that fails. Never starts a server, never touches a key but its own (places:asyncio:*).
"""

import asyncio
import sys
import time
import uuid

import redis.asyncio as redis

WAITERS = 6
LOCKS = 15
checks = 0


def check(what, got, want):
    """want: a value, or a function that says whether it will do."""
    global checks
    if not (want(got) if callable(want) else got == want):
        sys.exit(f"places_asyncio.py: {what}: got {got!r}" + ("" if callable(want) else f", want {want!r}"))
    checks += 1


async def wait_for(what, condition):
    """Asks until it is so. The limit is for a server that never says so, not for a busy machine."""
    give_up = time.monotonic() + 120
    while not await condition():
        if time.monotonic() > give_up:
            sys.exit(f"places_asyncio.py: waited in vain for {what}")
        await asyncio.sleep(0.005)


def as_map(reply):
    """A map is a dict in RESP3, a flat list in RESP2."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


async def waiting(client, key):
    return as_map(await client.execute_command("LOCK.INFO", key))[b"waiting"]


class Waiter:
    """One acquisition, with an owner of its own."""

    def __init__(self, client, key, queue=10_000, releases=True, work=0.2):
        self.client, self.key, self.queue, self.releases, self.work = client, key, queue, releases, work
        self.owner = uuid.uuid4().hex
        self.asked = 0
        self.works = False

    async def join(self, number):
        """Returns once it stands there as the waiter of this number."""
        self.task = asyncio.create_task(self.run())

        async def stands():
            return await waiting(self.client, self.key) == number

        await wait_for(f"waiter {number} to wait", stands)

    async def run(self):
        """The guide's loop, then some work under the lock. Returns what was seen meanwhile."""
        words = ("LOCK.ACQUIRE", self.key, self.owner, "PX", 30_000, "BLOCK", 3_000, "QUEUE", self.queue)
        left = fence = None
        try:
            while fence is None:
                self.asked += 1
                fence = await self.client.execute_command(*words)
            info = as_map(await self.client.execute_command("LOCK.INFO", self.key))
            self.works = True
            await asyncio.sleep(self.work)
        finally:
            self.works = False
            # The owner is known before the lock is held, so this also gives back a grant whose reply was not read.
            if self.releases:
                left = await asyncio.shield(self.client.execute_command("LOCK.RELEASE", self.key, self.owner))
        return fence, [as_map(holder) for holder in info[b"holders"]], left

    async def cancel(self):
        self.task.cancel()
        while not self.task.done():
            await asyncio.wait([self.task], timeout=0.05)
            # The reply and the cancellation came in one step, and redis-py returned the reply.
            if self.works:
                self.task.cancel()
        (ended,) = await asyncio.gather(self.task, return_exceptions=True)
        check("it is cancelled", ended, lambda ended: isinstance(ended, asyncio.CancelledError))

    async def done(self):
        fence, holders, left = await self.task
        seen = [(h[b"owner"].decode(), h[b"fence"], h[b"reads"], h[b"writes"], h[b"offered"]) for h in holders]
        check("one holder, granted once", seen, [(self.owner, fence, 0, 1, 0)])
        check("nothing is left of it", left, 0)
        return fence


async def line(client):
    """The first in line, and others in it, are cancelled and tell nobody. The rest are served in their order."""
    key = "places:asyncio:line"
    check("the holder", await client.execute_command("LOCK.ACQUIRE", key, "first", "PX", 600_000), lambda f: f > 0)
    line = []
    for number in range(WAITERS):
        for dead in (True, False) if number % 2 == 0 else (False,):
            line.append(Waiter(client, key, queue=3_000 if dead else 10_000, releases=not dead))
            await line[-1].join(len(line))
    alive = [waiter for waiter in line if waiter.releases]

    async def null_once():
        return all(waiter.asked >= 2 for waiter in line)

    await wait_for("all to ask again", null_once)
    await asyncio.gather(*(waiter.cancel() for waiter in line if not waiter.releases))
    check("their places are kept", await waiting(client, key), len(line))
    check("the holder leaves", await client.execute_command("LOCK.RELEASE", key, "first"), 0)
    fences = [await waiter.done() for waiter in alive]
    check("first come, first served", fences, sorted(set(fences)))
    check("the lock is free", await client.execute_command("LOCK.INFO", key), None)


async def lock(client, key, moment, releases):
    """A task is cancelled about when the server grants it the lock. The next one has it all the same."""
    queue = 5_000
    check("the holder", await client.execute_command("LOCK.ACQUIRE", key, "first", "PX", 600_000), lambda f: f > 0)
    # At work until it is cancelled.
    gone, after = Waiter(client, key, queue, releases, work=600), Waiter(client, key)
    await gone.join(1)
    await after.join(2)
    if moment == "before":
        await gone.cancel()
        check("the holder leaves", await client.execute_command("LOCK.RELEASE", key, "first"), 0)
        if not releases:
            (holder,) = map(as_map, as_map(await client.execute_command("LOCK.INFO", key))[b"holders"])
            check("an offer to the task that is gone", (holder[b"owner"].decode(), holder[b"offered"]), (gone.owner, 1))
            check("for QUEUE, not for PX", holder[b"ttl_ms"], lambda ttl: ttl <= queue)
    elif moment == "with":
        release = asyncio.create_task(client.execute_command("LOCK.RELEASE", key, "first"))
        # Lets the request out in some of the cases, and not in others.
        for _ in range(int(key.rpartition(":")[2]) % 4):
            await asyncio.sleep(0)
        await gone.cancel()
        check("the holder leaves", await release, 0)
    else:
        # The fence is in the client's buffer then, or the task is at work.
        check("the holder leaves", await client.execute_command("LOCK.RELEASE", key, "first"), 0)
        await gone.cancel()
    await after.done()
    check("the lock is free", await client.execute_command("LOCK.INFO", key), None)


async def moment(port, moment, releases):
    # A client of its own: a pool has 100 connections, and each task that waits takes one.
    async with redis.Redis(port=port) as client:
        name = f"places:asyncio:{moment}:{releases}"
        await asyncio.gather(*(lock(client, f"{name}:{number}", moment, releases) for number in range(LOCKS)))


async def main(port):
    async with redis.Redis(port=port) as client:
        moments = (("before", False), ("before", True), ("with", True), ("after", True))
        await asyncio.gather(line(client), *(moment(port, *which) for which in moments))


asyncio.run(main(int(sys.argv[1])))
print(f"places_asyncio.py: {checks} checks passed")
