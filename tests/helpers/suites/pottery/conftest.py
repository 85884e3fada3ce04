"""pottery's tests of its Redlock, which is replaced by this one: the helper under pottery's names.

It has one master. What has no counterpart in the helper (extensions, a lock that ends by itself) is not imitated.
"""

import os

import pottery
import pottery.redlock
import pytest
from pottery import QuorumNotAchieved, ReleaseUnlockedLock
from redis import Redis

import redis_lock_client


class Redlock:
    __slots__ = ("auto_release_time", "key", "lock", "masters", "wait", "within")

    def __init__(
        self,
        *,
        key,
        masters,
        auto_release_time=10.0,
        raise_on_redis_errors=False,
        context_manager_blocking=True,
        context_manager_timeout=-1,
    ):
        if not context_manager_blocking and context_manager_timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        self.key, self.masters, self.auto_release_time = (
            f"redlock:{key}",
            frozenset(masters),
            auto_release_time,
        )
        first = min(self.masters, key=lambda client: client.get_connection_kwargs()["db"])
        self.lock = redis_lock_client.Lock(first, self.key, lease=max(1.0, auto_release_time))
        self.within = (context_manager_blocking, context_manager_timeout)

    def acquire(self, *, blocking=True, timeout=-1, raise_on_redis_errors=None):
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return self.lock.acquire(blocking=blocking, blocking_timeout=None if timeout == -1 else timeout)

    def locked(self, *, raise_on_redis_errors=None):
        return self.lock.check()

    def release(self, *, raise_on_redis_errors=None):
        try:
            self.lock.release()
        except redis_lock_client.LockError as error:
            raise ReleaseUnlockedLock(self.key, self.masters) from error

    def __enter__(self):
        if not self.acquire(blocking=self.within[0], timeout=self.within[1]):
            raise QuorumNotAchieved(self.key, self.masters)
        return self

    def __exit__(self, *_):
        self.release()


pottery.Redlock = pottery.redlock.Redlock = Redlock


PORT = int(os.environ["REDIS_LOCK_PORT"])
from_url = Redis.from_url


@pytest.fixture(autouse=True)
def port(monkeypatch):
    """The tests know the port 6379 alone."""
    monkeypatch.setattr(
        Redis,
        "from_url",
        lambda url, **options: from_url(url.replace("6379", str(PORT)), **options),
    )


@pytest.fixture
def redis():
    client = Redis(port=PORT)
    client.flushdb()
    yield client
    client.close()
