"""Locks of the server module redis_lock, through redis-py: blocking (`Lock`) and asyncio (`AsyncLock`).

    client = redis.Redis()
    with Lock(client, "report") as lock:
        lock.guard("SET", "report:text", "first line")

The `with` waits in the server's queue, first come, first served. The lock is renewed until the block ends, and then
released. If it was lost meanwhile, the block ends with `LockLost`, and `lock.lost` says so as soon as it is known.

All times are in seconds. A client of redis-py with its defaults will do, and so will `RedisCluster`. The helper sends
its requests over connections of its own, made from the client's settings, without the client's resending. They are
closed 30 s after their last use.

Needs Python 3.10, redis-py 6 or newer, and a server with the module. `redis_lock_client.quorum` has locks over a
majority of several servers.
"""

from redis.exceptions import LockError

from redis_lock_client._common import Deadlock, HoldToken, LockLost, LockNotAcquired
from redis_lock_client._decorator import locked
from redis_lock_client._face import AsyncLock, Lock
from redis_lock_client._figures import Listener, recorded
from redis_lock_client._trouble import Trouble

__all__ = [
    "AsyncLock",
    "Deadlock",
    "HoldToken",
    "Listener",
    "Lock",
    "LockError",
    "LockLost",
    "LockNotAcquired",
    "Trouble",
    "locked",
    "recorded",
]
__version__ = "1.0.0rc1"
