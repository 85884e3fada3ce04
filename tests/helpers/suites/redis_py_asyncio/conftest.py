"""redis-py's own lock tests for asyncio, with `redis.asyncio.lock.Lock` replaced by the helper's.

The tests look at the key with GET and PTTL. The client here answers these from LOCK.INFO.
"""

import os
from types import SimpleNamespace

import pytest_asyncio
import redis.asyncio
import redis.asyncio.lock

import redis_lock_client


class Lock(redis_lock_client.AsyncLock):
    @property
    def local(self):
        """Where redis-py keeps the token of a lock that is held."""
        held = self._hold is not None and self._hold.held and not self._hold.ended
        return SimpleNamespace(token=self.owner.encode() if held else None)


class Client(redis.asyncio.Redis):
    async def holder(self, key):
        info = await self.execute_command("LOCK.INFO", key)
        as_map = lambda reply: reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        return {} if info is None else as_map(as_map(info)[b"holders"][0])

    async def get(self, key):
        return (await self.holder(key)).get(b"owner")

    async def pttl(self, key):
        return (await self.holder(key)).get(b"ttl_ms", -2)

    async def ttl(self, key):
        return await self.pttl(key) / 1000


redis.asyncio.lock.Lock = Lock


@pytest_asyncio.fixture
async def create_redis():
    clients = []

    async def create(**options):
        client = (redis.asyncio.Redis if options else Client)(port=int(os.environ["REDIS_LOCK_PORT"]), **options)
        await client.flushdb()
        clients.append(client)
        return client

    yield create
    for client in clients:
        await client.aclose()


@pytest_asyncio.fixture
async def r(create_redis):
    return await create_redis()
