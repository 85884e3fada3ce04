"""The replies of the commands through redis-py: what type each has, and what may be sent.

python smoke.py PORT: talks to the server on 127.0.0.1:PORT, over RESP2 and RESP3, prints how many checks passed, and
ends at the first that fails. Never starts a server, never touches a key but its own (smoke:py:*).
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import redis

checks = 0


def check(what, got, want):
    """want: a value, or a function that says whether it will do."""
    global checks
    if not (want(got) if callable(want) else repr(got) == repr(want)):  # 1 is not True
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

    # Fences are integers, refusals are None; the server makes the owner.
    key = fresh_key()
    owner, fence = lock("LOCK.ACQUIRE", key, "*", "PX", 30_000)
    check("an owner made by the server", owner, lambda o: len(o) == 32 and bytes.fromhex(o.decode()))
    check("its fence", fence, is_fence)
    check("another owner is refused", lock("LOCK.ACQUIRE", key, "other"), None)
    check("extend", lock("LOCK.EXTEND", key, owner, "PX", 60_000, "FENCE", fence), fence)
    check("extend what one does not hold", lock("LOCK.EXTEND", key, "bob", "PX", 1000), None)
    check("again, for reading", lock("LOCK.RW", key, owner, "READ"), fence)
    check_error("which of the two?", "READ", lock, "LOCK.RELEASE", key, owner)
    check("release one", lock("LOCK.RELEASE", key, owner, "READ"), 1)
    check("release the last", lock("LOCK.RELEASE", key, owner, "FENCE", fence), 0)
    check("release what one does not hold", lock("LOCK.RELEASE", key, owner), None)

    # INFO is a map, with maps in it; in RESP2 flat.
    fence = lock("LOCK.ACQUIRE", key, "alice", "PX", 10_000, "NOTE", "host-1 pid 42")
    check("type", client.type(key), b"redislock")
    info = lock("LOCK.INFO", key)
    check("INFO of this protocol", info, lambda i: isinstance(i, dict if protocol == 3 else list))
    info = as_map(info)
    check("INFO", [info[field] for field in (b"fence", b"holding", b"mode")], [fence, 1, b"write"])
    (holder,) = map(as_map, info[b"holders"])
    check(
        "holder: owner, mode, note",
        [holder[f] for f in (b"owner", b"mode", b"note")],
        [b"alice", b"write", b"host-1 pid 42"],
    )
    check("holder: counts and fence", [holder[f] for f in (b"reads", b"writes", b"fence")], [0, 1, fence])
    check("holder: lease", holder[b"ttl_ms"], lambda ms: 0 < ms <= 10_000)
    check("INFO COUNT 0 lists nobody", as_map(lock("LOCK.INFO", key, "COUNT", 0))[b"holders"], [])
    check("INFO of a free key", lock("LOCK.INFO", fresh_key()), None)

    # Owners, notes and keys are bytes.
    binary = fresh_key().encode() + b"\x00\xff"
    client.delete(binary)
    owner = bytes(range(256))
    check("a binary owner", lock("LOCK.ACQUIRE", binary, owner, "NOTE", b"\xff\x00"), is_fence)
    check("one byte less is another owner's", lock("LOCK.ACQUIRE", binary, owner[:-1]), None)
    holder = as_map(as_map(lock("LOCK.INFO", binary, "OWNER", owner))[b"holders"][0])
    check("comes back as it was", (holder[b"owner"], holder[b"note"]), (owner, b"\xff\x00"))
    check("and releases", lock("LOCK.RELEASE", binary, owner), 0)
    check_error("an owner of 257 bytes", "LIMIT", lock, "LOCK.ACQUIRE", binary, owner + b"x")

    # Who waits is let in by the release; whose time is up gets None.
    check("waited in vain", lock("LOCK.ACQUIRE", key, "bob", "BLOCK", 20), None)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(lock, "LOCK.ACQUIRE", key, "carol", "BLOCK", 0)
        wait_for("carol to wait", lambda: as_map(lock("LOCK.INFO", key))[b"waiting"] == 1)
        waiter = as_map(as_map(lock("LOCK.INFO", key))[b"waiters"][0])
        check("who waits, without a limit", (waiter[b"owner"], waiter[b"left_ms"]), (b"carol", None))
        check("the holder leaves", lock("LOCK.RELEASE", key, "alice"), 0)
        check("and carol has it", waits.result(), lambda f: f > fence)
    check("nobody holds it again", lock("LOCK.RELEASE", key, "carol"), 0)

    # A hold that ends with the connection that it was taken over, however long its lease.
    with connect() as worker:
        fence = worker.execute_command("LOCK.ACQUIRE", key, "worker", "EX", 3600, "SESSION", 0)
        holder = as_map(as_map(lock("LOCK.INFO", key))[b"holders"][0])
        check("bound to its connection", (holder[b"session"], holder[b"client"]), (0, worker.client_id()))
    check("closed, it is free", lock("LOCK.ACQUIRE", key, "next", "BLOCK", 10_000), lambda f: f > fence)
    check("and the next one leaves", lock("LOCK.RELEASE", key, "next"), 0)

    # Several locks in one step: all or none.
    keys = [fresh_key() for _ in range(3)]
    owner, fences = lock("LOCK.MACQUIRE", len(keys), *keys, "*", "PX", 30_000)
    check("a fence for each", fences, lambda f: len(f) == 3 and all(map(is_fence, f)) and f == sorted(f))
    check("none, if one is held", lock("LOCK.MACQUIRE", 2, fresh_key(), keys[2], "other", "READ"), None)
    check("extend all", lock("LOCK.MEXTEND", len(keys), *keys, owner, "PX", 60_000), fences)
    check("release all", lock("LOCK.MRELEASE", len(keys), *keys, owner), [0, 0, 0])
    check("nobody holds them", lock("LOCK.MRELEASE", len(keys), *keys, owner), [None, None, None])

    # An operator takes a lock away, and sees later who lost what.
    check("forget what was", lock("LOCK.LOG", "RESET"), lambda ok: ok in (b"OK", "OK", True))
    fence = lock("LOCK.ACQUIRE", key, "stuck", "NOTE", "host-3 pid 7")
    check("break", lock("LOCK.BREAK", key), 1)
    (lost,) = map(as_map, lock("LOCK.LOG"))
    check("the log: reason", (lost[b"reason"], lost[b"key"], lost[b"owner"]), (b"break", key.encode(), b"stuck"))
    check("the log: fence and note", (lost[b"fence"], lost[b"note"]), (fence, b"host-3 pid 7"))
    top = as_map(lock("LOCK.TOP"))
    check("nobody waits", (top[b"waits"], top[b"keys"]), ([], []))

    # A pipeline, MULTI/EXEC, a script.
    other = fresh_key()
    for transaction in (False, True):
        pipe = client.pipeline(transaction=transaction)
        pipe.execute_command("LOCK.ACQUIRE", key, "p")
        pipe.execute_command("LOCK.ACQUIRE", key, "q")
        pipe.set(other, "written under the lock")
        pipe.execute_command("LOCK.RELEASE", key, "p")
        check("pipeline, MULTI/EXEC", pipe.execute(), lambda r: is_fence(r[0]) and r[1:] == [None, True, 0])
    script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2])"
    fence = client.eval(script, 1, key, "lua", 5000)
    check("EVAL", fence, is_fence)
    check("EVAL, refused", client.eval(script, 1, key, "other", 5000), None)
    check("held by the script's owner", lock("LOCK.RELEASE", key, "lua", "FENCE", fence), 0)

    # Errors have a code to read.
    check_error("a key of another type", "WRONGTYPE", lock, "LOCK.ACQUIRE", other, "alice")
    check_error("an unknown option", "", lock, "LOCK.ACQUIRE", key, "alice", "FOREVER")
    check("and leave no trace", client.exists(key), 0)

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
