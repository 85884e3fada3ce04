"""A lock over a majority of independent servers with the module redis_lock: `QuorumLock`, and `AsyncQuorumLock`.

    clients = [redis.Redis(host) for host in ("a", "b", "c")]
    with QuorumLock(clients, "report") as lock:
        write_report(lock.fence)

The lock is held while a majority of the servers hold it for this owner, so it outlives any minority of them. Its fence
rises from holder to holder, whichever majority each of them had. All clients of one lock name the servers in one order.

The use is that of `redis_lock_client.Lock`.
"""

from redis.exceptions import LockError

from redis_lock_client._common import Deadlock, LockLost, LockNotAcquired
from redis_lock_client._trouble import Trouble
from redis_lock_client.quorum._engine import NoQuorum
from redis_lock_client.quorum._face import AsyncQuorumLock, QuorumLock

__all__ = [
    "AsyncQuorumLock",
    "Deadlock",
    "LockError",
    "LockLost",
    "LockNotAcquired",
    "NoQuorum",
    "QuorumLock",
    "Trouble",
]
