"""redis-py's own lock tests for asyncio, with `redis.asyncio.lock.Lock` replaced by the drop-in's.

The tests look at the key with GET and PTTL, and change it with PEXPIRE. The client here has LOCK.INFO and LOCK.EXTEND
for these.
"""

import os

import pytest_asyncio
import redis.asyncio
import redis.asyncio.lock

from redis_lock_client import drop_in


class Client(drop_in.AsyncRedis):
    async def holder(self, key):
        info = await self.execute_command("LOCK.INFO", key)
        as_map = lambda reply: reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        return {} if info is None else as_map(as_map(info)[b"holders"][0])

    async def get(self, key):
        return (await self.holder(key)).get(b"owner")

    async def pttl(self, key):
        return (await self.holder(key)).get(b"ttl_ms", -2)

    async def pexpire(self, key, milliseconds):
        owner = (await self.holder(key))[b"owner"]
        return await self.execute_command("LOCK.EXTEND", key, owner, "PX", milliseconds)

    async def ttl(self, key):
        return await self.pttl(key) / 1000


redis.asyncio.lock.Lock = drop_in.AsyncRedisLock


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
