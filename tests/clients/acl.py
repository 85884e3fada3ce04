"""The locks through redis-py and its cluster client, as the user that docs/operations/acl.md makes for applications.

python acl.py PORT NAME PASSWORD [cluster]: talks to the server, or to the cluster node, on 127.0.0.1:PORT. Prints how
many checks passed, and ends at the first that fails. Never starts a server, never touches a key but lock:acl:*.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import redis
from redis.cluster import RedisCluster

checks = 0


def check(what, got, want):
    global checks
    if not (want(got) if callable(want) else got == want):
        sys.exit(f"acl.py: {what}: got {got!r}" + ("" if callable(want) else f", want {want!r}"))
    checks += 1


def check_refused(what, command, *args):
    try:
        got = command(*args)
    except redis.exceptions.NoPermissionError:
        check(what, True, True)
    else:
        sys.exit(f"acl.py: {what}: got {got!r}")


def smoke(connect, key):
    with connect() as client, connect() as other:
        lock = client.execute_command
        check("ping", client.ping(), True)
        fence = lock("LOCK.ACQUIRE", key, "alice", "PX", 60_000, "SESSION", 5_000)
        check("its fence", fence, lambda f: type(f) is int and f > 0)
        check("no replica", wait(client, key), 0)
        check("refused", other.execute_command("LOCK.ACQUIRE", key, "bob"), None)

        # Hand-off: bob waits on a connection of his own, and has it when alice leaves.
        with ThreadPoolExecutor() as threads:
            waits = threads.submit(other.execute_command, "LOCK.ACQUIRE", key, "bob", "BLOCK", 20_000)
            while (info := as_map(lock("LOCK.INFO", key)))[b"waiting"] == 0 and not waits.done():
                pass
            check("bob waits", [as_map(waiter)[b"owner"] for waiter in info[b"waiters"]], [b"bob"])
            check("alice leaves", lock("LOCK.RELEASE", key, "alice"), 0)
            check("bob has it", waits.result(), lambda f: f > fence)
        check("extend", other.execute_command("LOCK.EXTEND", key, "bob", "PX", 5_000), lambda f: f > fence)
        check("release", other.execute_command("LOCK.RELEASE", key, "bob"), 0)
        both = [key, key + ":second"]
        check("several", lock("LOCK.MACQUIRE", 2, *both, "carol"), lambda fences: len(fences) == 2)
        check("release them", lock("LOCK.MRELEASE", 2, *both, "carol"), [0, 0])

        check_refused("a key of another pattern", lock, "LOCK.ACQUIRE", "other:" + key, "alice")
        check_refused("one of them", lock, "LOCK.MACQUIRE", 2, key, "other:" + key, "alice")
        check_refused("break", lock, "LOCK.BREAK", key)
        check_refused("hold", lock, "LOCK.HOLD", key, "alice", 0, 0)
        for command in (["LOCK.TOP"], ["LOCK.LOG"], ["LOCK.LOG", "RESET"], ["CONFIG", "GET", "lock.*"]):
            # What has no key is asked of a node.
            node = {"target_nodes": client.get_random_node()} if isinstance(client, RedisCluster) else {}
            check_refused(command, partial(lock, *command, **node))
        check_refused("another command", client.set, key, "x")


def wait(client, key):
    if isinstance(client, RedisCluster):
        node = client.get_node_from_key(key)
        return client.execute_command("WAIT", 0, 0, target_nodes=node)
    return client.wait(0, 0)


def as_map(reply):
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


port, name, password = int(sys.argv[1]), sys.argv[2], sys.argv[3]
in_cluster = sys.argv[4:] == ["cluster"]
for protocol in (2, 3):
    log_in = {"host": "127.0.0.1", "port": port, "username": name, "password": password, "protocol": protocol}
    try:
        if in_cluster:
            # Keys of all nodes.
            for number in range(12):
                smoke(partial(RedisCluster, **log_in), f"lock:acl:{{{number}}}")
        else:
            smoke(partial(redis.Redis, client_name="worker", single_connection_client=True, **log_in), "lock:acl:k")
    except redis.RedisError as error:
        raise SystemExit(f"acl.py: after {checks} checks: {type(error).__name__}: {error}") from error
print(f"acl.py: {checks} checks passed")
