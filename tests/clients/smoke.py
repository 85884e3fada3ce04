"""The locks through redis-py, as its user would write them.

python smoke.py PORT: talks to the server on 127.0.0.1:PORT, over RESP2 and RESP3, prints how many checks passed, and
ends at the first that fails. Never starts a server, never touches a key but its own (smoke:py:*).
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import redis


class Held(Exception):
    """Somebody else holds the lock."""


class Lock:
    """with Lock(client, key) as lock: ... lock.fence goes along with every write to what the lock protects."""

    def __init__(self, client, key, lease_ms=30_000):
        self.client, self.key, self.lease_ms = client, key, lease_ms

    def __enter__(self):
        granted = self.client.execute_command("LOCK.ACQUIRE", self.key, "*", "PX", self.lease_ms)
        if granted is None:
            raise Held(self.key)
        self.owner, self.fence = granted
        return self

    def __exit__(self, *_):
        self.client.execute_command("LOCK.RELEASE", self.key, self.owner, "FENCE", self.fence)


checks = 0


def check(what, got, want):
    """want: a value, or a function that says whether it will do."""
    global checks
    if not (want(got) if callable(want) else got == want and type(got) is type(want)):
        sys.exit(f"smoke.py: {what}: got {got!r}" + ("" if callable(want) else f", want {want!r}"))
    checks += 1


def check_error(what, part, command, *args):
    try:
        got = command(*args)
    except redis.ResponseError as error:
        check(what, str(error), lambda text: part in text)
    else:
        sys.exit(f"smoke.py: {what}: got {got!r}, want an error with {part!r}")


def wait_for(what, condition):
    """Asks until it is so. The limit is for a server that never says so, not for a busy machine."""
    give_up = time.monotonic() + 120
    while not condition():
        if time.monotonic() > give_up:
            sys.exit(f"smoke.py: waited in vain for {what}")


def is_fence(value):
    return type(value) is int and 0 < value < 2**53


def as_map(reply):
    """A map is a dict in RESP3, a flat list in RESP2."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def smoke(client, protocol, connect):
    names = iter(range(100))

    def fresh_key():
        key = f"smoke:py:{protocol}:{next(names)}"
        client.delete(key)
        return key

    lock = client.execute_command

    # A lock as a context manager; the server makes the owner.
    key = fresh_key()
    with Lock(client, key) as held:
        check("an owner made by the server", held.owner, lambda o: len(o) == 32 and bytes.fromhex(o.decode()))
        check("its fence", held.fence, is_fence)
        check("another owner is refused", lock("LOCK.ACQUIRE", key, "other"), None)
        try:
            with Lock(client, key):
                sys.exit("smoke.py: two owners hold the same lock")
        except Held:
            check("and so is another Lock", True, True)
        first_fence = held.fence
    check("released at the end of the block", client.exists(key), 0)
    with Lock(client, key) as held:
        check("the next hold has a higher fence", held.fence, lambda f: f > first_fence)

    # Again by the same owner: one more count, the same fence.
    key = fresh_key()
    fence = lock("LOCK.ACQUIRE", key, "alice", "PX", 10_000, "NOTE", "host-1 pid 42")
    check("take", fence, is_fence)
    check("re-enter", lock("LOCK.ACQUIRE", key, "alice", "EX", 20), fence)
    check("and again", lock("LOCK.RW", key, "alice", "WRITE"), fence)
    check("type", client.type(key), b"redislock")

    # INFO is a map, with maps in it; in RESP2 flat.
    info = lock("LOCK.INFO", key)
    check("INFO of this protocol", info, lambda i: isinstance(i, dict if protocol == 3 else list))
    info = as_map(info)
    check("INFO fence", info[b"fence"], fence)
    check("INFO holding", info[b"holding"], 1)
    check("INFO holders", len(info[b"holders"]), 1)
    holder = as_map(info[b"holders"][0])
    check("holder: owner", holder[b"owner"], b"alice")
    check("holder: mode", holder[b"mode"], b"write")
    check("holder: reads", holder[b"reads"], 0)
    check("holder: writes", holder[b"writes"], 3)
    check("holder: fence", holder[b"fence"], fence)
    check("holder: lease", holder[b"ttl_ms"], lambda ms: 10_000 < ms <= 30_000)
    check("holder: note", holder[b"note"], b"host-1 pid 42")
    check("INFO COUNT 0 lists nobody", as_map(lock("LOCK.INFO", key, "COUNT", 0))[b"holders"], [])
    check("INFO of a free key", lock("LOCK.INFO", fresh_key()), None)

    # EXTEND sets the lease, be it shorter or longer.
    check("extend", lock("LOCK.EXTEND", key, "alice", "PX", 60_000), fence)
    holder = as_map(as_map(lock("LOCK.INFO", key, "OWNER", "alice"))[b"holders"][0])
    check("the lease is longer", holder[b"ttl_ms"], lambda ms: 50_000 < ms <= 60_000)
    check("extend what one does not hold", lock("LOCK.EXTEND", key, "bob", "PX", 1000), None)

    # FENCE: only this hold.
    check("extend another fence", lock("LOCK.EXTEND", key, "alice", "PX", 1000, "FENCE", fence - 1), None)
    check("release another fence", lock("LOCK.RELEASE", key, "alice", "FENCE", fence + 1), None)
    check("extend this fence", lock("LOCK.EXTEND", key, "alice", "PX", 60_000, "FENCE", fence), fence)

    # RELEASE counts down; TO may be sent twice, ALL drops every count.
    check("three counts, release one", lock("LOCK.RELEASE", key, "alice"), 2)
    check("release TO 1", lock("LOCK.RELEASE", key, "alice", "TO", 1), 1)
    check("release TO 1, sent again", lock("LOCK.RELEASE", key, "alice", "TO", 1), 1)
    check("release the last", lock("LOCK.RELEASE", key, "alice", "FENCE", fence), 0)
    check("release what one does not hold", lock("LOCK.RELEASE", key, "alice"), None)
    lock("LOCK.ACQUIRE", key, "alice")
    lock("LOCK.ACQUIRE", key, "alice")
    check("release ALL", lock("LOCK.RELEASE", key, "alice", "ALL"), 0)

    # Readers share; a writer does not.
    key = fresh_key()
    ann = lock("LOCK.RW", key, "ann", "READ")
    ben = lock("LOCK.RW", key, "ben", "READ")
    check("two readers, each with a fence", ben, lambda f: is_fence(ann) and f > ann)
    check("a writer is refused", lock("LOCK.RW", key, "cid", "WRITE"), None)
    check("mode", as_map(lock("LOCK.INFO", key))[b"mode"], b"read")
    check("no upgrade beside another reader", lock("LOCK.RW", key, "ann", "WRITE"), None)
    check("ben leaves", lock("LOCK.RELEASE", key, "ben"), 0)

    # The upgrade of a sole reader has a new fence; the way back to read keeps it.
    written = lock("LOCK.RW", key, "ann", "WRITE")
    check("upgrade", written, lambda f: f > ben)
    check_error("which of the two?", "READ", lock, "LOCK.RELEASE", key, "ann")
    check("a reader is refused by the writer", lock("LOCK.RW", key, "ben", "READ"), None)
    check("downgrade", lock("LOCK.RELEASE", key, "ann", "WRITE"), 1)
    check("same fence", lock("LOCK.RW", key, "ann", "READ"), written)
    check("a reader fits again", lock("LOCK.RW", key, "ben", "READ"), lambda f: f > written)
    check("a mode not held: the total, unchanged", lock("LOCK.RELEASE", key, "ann", "WRITE"), 2)
    check("ALL of a mode", lock("LOCK.RELEASE", key, "ann", "READ", "ALL"), 0)

    # Owners, notes and keys are bytes.
    key = fresh_key().encode() + b"\x00\xff"
    client.delete(key)
    owner = bytes(range(256))
    fence = lock("LOCK.ACQUIRE", key, owner, "NOTE", b"\xff\x00")
    check("a binary owner", fence, is_fence)
    check("one byte more is another owner's", lock("LOCK.ACQUIRE", key, owner[:-1]), None)
    holder = as_map(as_map(lock("LOCK.INFO", key, "OWNER", owner))[b"holders"][0])
    check("comes back as it was", holder[b"owner"], owner)
    check("and so does the note", holder[b"note"], b"\xff\x00")
    check("and releases", lock("LOCK.RELEASE", key, owner), 0)
    check_error("an owner of 257 bytes", "LIMIT", lock, "LOCK.ACQUIRE", key, owner + b"x")

    # A lease ends by itself; who comes late gets null, and the fences tell the resource.
    key = fresh_key()
    late = lock("LOCK.ACQUIRE", key, "late", "PX", 50)
    fence = lock("LOCK.ACQUIRE", key, "next", "BLOCK", 10_000)
    check("taken after the lease", fence, lambda f: is_fence(f) and f > late)
    check("the late one cannot extend", lock("LOCK.EXTEND", key, "late", "PX", 1000), None)
    check("nor release", lock("LOCK.RELEASE", key, "late"), None)

    # Who waits is let in by the release, in order; whose time is up gets null.
    check("waited in vain", lock("LOCK.ACQUIRE", key, "bob", "BLOCK", 20), None)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(lock, "LOCK.ACQUIRE", key, "carol", "BLOCK", 0)
        wait_for("carol to wait", lambda: as_map(lock("LOCK.INFO", key))[b"waiting"] == 1)
        waiter = as_map(as_map(lock("LOCK.INFO", key))[b"waiters"][0])
        check("who waits, without a limit", (waiter[b"owner"], waiter[b"left_ms"]), (b"carol", None))
        check_error("twice", "RETRY", lock, "LOCK.ACQUIRE", key, "carol", "BLOCK", 0)
        check("the holder leaves", lock("LOCK.RELEASE", key, "next"), 0)
        check("and carol has it", waits.result(), lambda f: f > fence)
    check("nobody holds it again", lock("LOCK.RELEASE", key, "carol"), 0)

    # A hold that ends with the connection that it was taken over, however long its lease.
    key = fresh_key()
    with connect() as worker:
        fence = worker.execute_command("LOCK.ACQUIRE", key, "worker", "EX", 3600, "SESSION", 0, "NOTE", "host-2")
        holder = as_map(as_map(lock("LOCK.INFO", key))[b"holders"][0])
        check("bound to its connection", (holder[b"session"], holder[b"client"]), (0, worker.client_id()))
        check("it keeps others out", lock("LOCK.ACQUIRE", key, "next"), None)
    check("closed, it does not", lock("LOCK.ACQUIRE", key, "next", "BLOCK", 10_000), lambda f: f > fence)
    check("and the next one leaves", lock("LOCK.RELEASE", key, "next"), 0)

    # Several locks in one step: all or none.
    keys = [fresh_key() for _ in range(3)]
    owner, fences = lock("LOCK.MACQUIRE", len(keys), *keys, "*", "PX", 30_000)
    check("a fence for each", fences, lambda f: len(f) == 3 and all(map(is_fence, f)) and f == sorted(f))
    check("none, if one is held", lock("LOCK.MACQUIRE", 2, fresh_key(), keys[2], "other", "READ"), None)
    check("extend all", lock("LOCK.MEXTEND", len(keys), *keys, owner, "PX", 60_000), fences)
    check("release all", lock("LOCK.MRELEASE", len(keys), *keys, owner), [0, 0, 0])
    check("nobody holds them", lock("LOCK.MRELEASE", len(keys), *keys, owner), [None, None, None])
    check_error("twice the same key", "twice", lock, "LOCK.MACQUIRE", 2, key, key, "other")

    # An operator takes a lock away, and sees later who lost what.
    check("forget what was", lock("LOCK.LOG", "RESET"), lambda ok: ok in (b"OK", "OK", True))
    fence = lock("LOCK.ACQUIRE", key, "stuck", "NOTE", "host-3 pid 7")
    check("break", lock("LOCK.BREAK", key), 1)
    check("its owner is told so", lock("LOCK.EXTEND", key, "stuck", "PX", 1000), None)
    (lost,) = map(as_map, lock("LOCK.LOG"))
    check("the log: reason", (lost[b"reason"], lost[b"key"], lost[b"owner"]), (b"break", key.encode(), b"stuck"))
    check("the log: fence and note", (lost[b"fence"], lost[b"note"]), (fence, b"host-3 pid 7"))
    top = as_map(lock("LOCK.TOP"))
    check("nobody waits", (top[b"waits"], top[b"keys"]), ([], []))

    # A pipeline, MULTI/EXEC, a script.
    key, other = fresh_key(), fresh_key()
    pipe = client.pipeline(transaction=False)
    pipe.execute_command("LOCK.ACQUIRE", key, "p")
    pipe.execute_command("LOCK.ACQUIRE", key, "q")
    pipe.execute_command("LOCK.RELEASE", key, "p")
    check("pipeline", pipe.execute(), lambda r: is_fence(r[0]) and r[1:] == [None, 0])
    multi = client.pipeline(transaction=True)
    multi.execute_command("LOCK.ACQUIRE", key, "m")
    multi.set(other, "written under the lock")
    multi.execute_command("LOCK.RELEASE", key, "m")
    check("MULTI/EXEC", multi.execute(), lambda r: is_fence(r[0]) and r[1:] == [True, 0])
    script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2])"
    fence = client.eval(script, 1, key, "lua", 5000)
    check("EVAL", fence, is_fence)
    check("EVAL, refused", client.eval(script, 1, key, "other", 5000), None)
    check("held by the script's owner", lock("LOCK.RELEASE", key, "lua", "FENCE", fence), 0)

    # Errors have a code to read.
    check_error("a key of another type", "WRONGTYPE", lock, "LOCK.ACQUIRE", other, "alice")
    check_error("no lease of zero", "PX", lock, "LOCK.ACQUIRE", key, "alice", "PX", 0)
    check_error("an unknown option", "", lock, "LOCK.ACQUIRE", key, "alice", "FOREVER")
    check("and leave no trace", client.exists(key), 0)
    check_error("LOCK.HOLD is not for clients", "LOCK.HOLD", lock, "LOCK.HOLD", key, "alice", 0, 1, 1, 1, 1)

    mine = list(client.scan_iter("smoke:py:*"))
    check("tidy up", client.delete(*mine), len(mine))


for protocol in (2, 3):
    connect = partial(redis.Redis, host="127.0.0.1", port=int(sys.argv[1]), protocol=protocol)
    with connect() as client:
        try:
            smoke(client, protocol, partial(connect, single_connection_client=True))
        except redis.RedisError as error:
            raise SystemExit(f"smoke.py: after {checks} checks: {error}") from error
print(f"smoke.py: {checks} checks passed")
