"""What an application uses: `QuorumLock` for threads, and `AsyncQuorumLock` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import redis
import redis.asyncio

from redis_lock_client._common import LEASE, Key, check_lease, check_wait, one_key, wait_of
from redis_lock_client._face import AsyncFace, Face, Place, ThreadFace
from redis_lock_client._tasks import TaskServer
from redis_lock_client._transport import T
from redis_lock_client._trouble import OnTrouble, teller
from redis_lock_client.quorum._background import Background
from redis_lock_client.quorum._engine import Hold, Spec
from redis_lock_client.quorum._wires import Source

LEAST_NODES = 3


class _QuorumLock(Face):
    """What `QuorumLock` and `AsyncQuorumLock` have in common.

    Args:
        clients: a list of clients of redis-py, one for each server, three or more. All clients of one lock name the
            servers in one order.
        key: one key, str or bytes-like.
        lease: how long the lock outlives a process that died, in seconds, at least 1. It is renewed at each third.
        wait: how long to wait, in seconds. None: as long as it takes; 0: try once.
        shared: hold it together with other readers.
        note: a text for people, which LOCK.INFO shows.
        within: the lock that this one is taken inside of, so that the servers see deadlocks.
        on_trouble: is called with a `Trouble`, once for each kind of it and each node, in a thread of its own or in the
            event loop. Without it the logger `redis_lock` is told.

    """

    def __init__(
        self,
        clients: Sequence[Any],
        key: Key,
        lease: float = LEASE,
        wait: float | None = None,
        *,
        shared: bool = False,
        note: str | None = None,
        within: _QuorumLock | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        if isinstance(clients, Sequence) and any(hasattr(client, "nodes_manager") for client in clients):
            raise ValueError("clients must be servers, and no clusters: their nodes are no quorum")
        if not isinstance(clients, Sequence) or isinstance(clients, str | bytes):
            raise TypeError("clients must be a list of clients of redis-py, one for each server")
        for client in clients:
            if not isinstance(client, redis.Redis | redis.asyncio.Redis):
                kind = f"{type(client).__module__}.{type(client).__qualname__}"
                raise TypeError(f"clients must be clients of redis-py, and not {kind}")
        pools = [client.connection_pool for client in clients]
        if len(pools) < LEAST_NODES:
            raise ValueError("clients must be three or more: a majority of fewer survives no failure")
        if len({id(pool) for pool in pools}) < len(pools):
            raise ValueError("clients must be different servers: one is named twice")
        check_lease(lease)
        check_wait(wait)
        sources = tuple(self._source(pool) for pool in pools)
        self._spec = Spec(sources, one_key(key), float(lease), shared, note, on_trouble, self._tell)
        self._wait, self._within, self._place = wait, within, Place()

    @staticmethod
    def _source(pool: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def _tell(call: Callable[[], Any]) -> None:
        raise NotImplementedError

    @property
    def fence(self) -> int:
        """The fence of the last acquisition: each is higher than all before it. Send it along with what you write."""
        fence: int = self._last().fence
        return fence

    def _begin(self, blocking: bool | None, blocking_timeout: float | None) -> tuple[Hold, float | None]:
        """A new acquisition, and how long to wait for it."""
        wait = wait_of(self._wait, blocking, blocking_timeout)
        return Hold(self._spec, self._outer_owner(self._within)), wait


class AsyncQuorumLock(AsyncFace, _QuorumLock):
    """A lock over a quorum for asyncio, with clients of `redis.asyncio`. See `QuorumLock` for the arguments."""

    @staticmethod
    def _source(pool: Any) -> Any:
        if not issubclass(pool.connection_class, redis.asyncio.connection.AbstractConnection):
            raise TypeError("clients must be of redis.asyncio")
        return pool

    @staticmethod
    def _tell(call: Callable[[], Any]) -> None:
        try:
            asyncio.get_running_loop().call_soon(TaskServer.tell, call)
        except RuntimeError:  # asked in another thread
            teller.later(call)


class QuorumLock(ThreadFace, _QuorumLock):
    """A lock over a majority of servers, for threads: see the arguments of `_QuorumLock`."""

    @staticmethod
    def _source(pool: Any) -> Any:
        return Source.of(pool)

    @staticmethod
    def _tell(call: Callable[[], Any]) -> None:
        teller.later(call)

    @staticmethod
    def _run(steps: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return Background.do(steps)


for _face in (QuorumLock, AsyncQuorumLock):  # help() shows the arguments where people look for them
    _face.__doc__ = f"{(_face.__doc__ or '').partition(':')[0]}.\n{(_QuorumLock.__doc__ or '').partition(chr(10))[2]}"
