"""The locks through redis-py's cluster client, which finds the node of a command by what the server says of its keys.

python cluster.py PORT: talks to the cluster of the node on 127.0.0.1:PORT. Prints how many checks passed, and ends at
the first that fails. Never starts a server, never touches a key but its own ({smoke:cluster:*}).
"""

import sys

import redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException

checks = 0


def check(what, got, want):
    global checks
    if not (want(got) if callable(want) else got == want):
        sys.exit(f"cluster.py: {what}: got {got!r}" + ("" if callable(want) else f", want {want!r}"))
    checks += 1


def smoke(client):
    lock = client.execute_command
    slots = {client.keyslot(f"{{smoke:cluster:{number}}}") for number in range(40)}
    check("the keys are spread", len(slots), lambda count: count > 30)
    for number in range(40):
        tag = f"{{smoke:cluster:{number}}}"
        keys = [f"{tag}:{name}" for name in "abc"]
        fences = lock("LOCK.MACQUIRE", 3, *keys, "me", "PX", 60_000)
        check("one fence for each key", fences, lambda f: len(f) == 3 and f == sorted(f))
        check("all or none", lock("LOCK.MACQUIRE", 2, f"{tag}:free", keys[2], "other"), None)
        check("the one is free still", client.exists(f"{tag}:free"), 0)
        check("again by key", lock("LOCK.ACQUIRE", keys[1], "me"), fences[1])
        check("extend", lock("LOCK.MEXTEND", 2, keys[0], keys[2], "me", "EX", 60), [fences[0], fences[2]])
        check("release", lock("LOCK.MRELEASE", 3, *keys, "me"), [0, 1, 0])
        check("break", lock("LOCK.BREAK", keys[1]), 1)
    one, other = "{smoke:cluster:0}", "{smoke:cluster:1}"
    for command in (
        ["LOCK.MACQUIRE", 2, one, other, "me"],
        ["LOCK.MRELEASE", 2, one, other, "me"],
        ["LOCK.MEXTEND", 2, one, other, "me", "PX", 5],
    ):
        try:
            got = lock(*command)
        except (redis.ResponseError, RedisClusterException) as error:
            check("keys of two slots", str(error).lower(), lambda text: "slot" in text)
        else:
            sys.exit(f"cluster.py: keys of two slots: got {got!r}")
    check("nothing is held", client.exists(one) + client.exists(other), 0)
    # What has no key is asked of every node.
    lost = lock("LOCK.LOG", "COUNT", 1000, target_nodes=client.get_primaries())
    check("each node has its own log", sum(len(rows) for rows in lost.values()), 40)
    tops = lock("LOCK.TOP", target_nodes=client.get_primaries())
    check("nobody waits", all(top in ([b"waits", [], b"keys", []],) for top in tops.values()), True)


with RedisCluster(host="127.0.0.1", port=int(sys.argv[1]), protocol=2) as client:
    try:
        smoke(client)
    except redis.RedisError as error:
        raise SystemExit(f"cluster.py: after {checks} checks: {error}") from error
print(f"cluster.py: {checks} checks passed")
