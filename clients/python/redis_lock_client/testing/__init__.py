"""A server in memory, so that programs with locks are tested without Redis.

    fake = FakeServer()
    with Lock(fake.client(), "report") as lock:
        fake.lose("report")
        assert lock.wait_lost(60)

The helper and redis-py run as they are: only the network is replaced. The server knows the commands that the helper
sends, and GET, SET, INCR, DEL, EXISTS and PUBLISH.
"""

from __future__ import annotations

import math
from typing import Any

import redis
import redis.asyncio

from redis_lock_client import _common, _transport
from redis_lock_client._common import Key, to_bytes
from redis_lock_client.testing._locks import Ask
from redis_lock_client.testing._wire import AsyncFakeConnection, FakeConnection, Wire

__all__ = ["FakeServer"]


class FakeServer:
    """A server in memory. Any number of clients, threads and event loops of the process may use it."""

    def __init__(self) -> None:
        self._wire = Wire()
        self._locks = self._wire.commands.locks

    def client(self, **settings: Any) -> redis.Redis:
        """A client for `Lock`. The settings are those of redis-py's connections, such as `decode_responses`."""
        pool = redis.ConnectionPool(connection_class=FakeConnection, **self._settings(settings))
        return redis.Redis(connection_pool=pool)

    def async_client(self, **settings: Any) -> redis.asyncio.Redis:
        """A client for `AsyncLock`."""
        pool = redis.asyncio.ConnectionPool(connection_class=AsyncFakeConnection, **self._settings(settings))
        return redis.asyncio.Redis(connection_pool=pool)

    def _settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"wire": self._wire, "path": "the server in memory", **settings}

    def lose(self, key: Key) -> None:
        """Takes a lock away from its holders, as an operator does with LOCK.BREAK. They learn of it soon."""
        self._end(key)
        self._hurry()

    def expire(self, key: Key) -> None:
        """Lets the leases of a lock end. Its holders believe in it until they renew it: so a write comes too late."""
        self._end(key)

    def take(self, key: Key, owner: str = "another") -> int:
        """Holds a lock for somebody else, until `lose` or `expire`, and returns its fence. The lock must be free."""
        ask = Ask([to_bytes(key)], owner.encode(), writes=True, limit=math.inf, take=1, lease=math.inf)
        with self._wire.mutex:
            self._locks.tick()
            if not self._locks.is_free(ask, None) or to_bytes(key) in self._locks.holds:
                raise ValueError(f"{key!r} is not free")
            fence: int = self._locks.acquire(ask)
        return fence

    def advance(self, seconds: float) -> None:
        """Lets time pass at once, for the server and for all locks of the process: as if it had been stopped so long.

        A lock whose lease is over by then is lost. The clock goes on with real time before and after.
        """
        _common.skip(seconds)
        with self._wire.mutex:
            self._locks.tick()
        self._wire.wake()
        for server in tuple(_transport.servers.values()):
            server.soon(server.bell.set)

    def set_down(self, down: bool = True) -> None:
        """Ends all connections, and refuses new ones; or lets them come again."""
        self._wire.down = down
        if down:
            self._wire.hang_up()

    def close(self) -> None:
        """Ends the server and its connections."""
        self._wire.over = True
        self._wire.wake()

    def _end(self, key: Key) -> None:
        with self._wire.mutex:
            self._locks.clear([to_bytes(key)])
        self._wire.wake()

    def _hurry(self) -> None:
        """Lets the holders ask the server now."""
        for server in tuple(_transport.servers.values()):
            if server.source.connection_kwargs.get("wire") is self._wire:
                server.soon(server.hurry)
