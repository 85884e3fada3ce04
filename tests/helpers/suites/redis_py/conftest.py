"""redis-py's own lock tests, with `redis.lock.Lock` replaced by the drop-in's.

The tests look at the key with GET and PTTL, and change it with PEXPIRE. The client here has LOCK.INFO and LOCK.EXTEND
for these.
"""

import os

import pytest
import redis
import redis.lock

from redis_lock_client import drop_in


class Client(drop_in.Redis):
    def holder(self, key):
        info = self.execute_command("LOCK.INFO", key)
        as_map = lambda reply: reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        return {} if info is None else as_map(as_map(info)[b"holders"][0])

    def get(self, key):
        return self.holder(key).get(b"owner")

    def pttl(self, key):
        return self.holder(key).get(b"ttl_ms", -2)

    def pexpire(self, key, milliseconds):
        owner = self.holder(key)[b"owner"]
        return self.execute_command("LOCK.EXTEND", key, owner, "PX", milliseconds)

    def ttl(self, key):
        return self.pttl(key) / 1000


redis.lock.Lock = drop_in.RedisLock


def _get_client(cls, request, **options):
    client = (cls if options else Client)(port=int(os.environ["REDIS_LOCK_PORT"]), **options)
    client.flushdb()
    request.addfinalizer(client.close)
    return client


@pytest.fixture
def r(request):
    return _get_client(redis.Redis, request)
