"""redis-py's own lock tests, with `redis.lock.Lock` replaced by the helper's.

The tests look at the key with GET and PTTL. The client here answers these from LOCK.INFO.
"""

import os
from types import SimpleNamespace

import pytest
import redis
import redis.lock

import redis_lock_client


class Lock(redis_lock_client.Lock):
    @property
    def local(self):
        """Where redis-py keeps the token of a lock that is held."""
        held = self._hold is not None and self._hold.held and not self._hold.ended
        return SimpleNamespace(token=self.owner.encode() if held else None)


class Client(redis.Redis):
    def holder(self, key):
        info = self.execute_command("LOCK.INFO", key)
        as_map = lambda reply: reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        return {} if info is None else as_map(as_map(info)[b"holders"][0])

    def get(self, key):
        return self.holder(key).get(b"owner")

    def pttl(self, key):
        return self.holder(key).get(b"ttl_ms", -2)

    def ttl(self, key):
        return self.pttl(key) / 1000


redis.lock.Lock = Lock


def _get_client(cls, request, **options):
    client = (cls if options else Client)(port=int(os.environ["REDIS_LOCK_PORT"]), **options)
    client.flushdb()
    request.addfinalizer(client.close)
    return client


@pytest.fixture
def r(request):
    return _get_client(redis.Redis, request)
