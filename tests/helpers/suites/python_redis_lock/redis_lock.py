"""The helper under the names of python-redis-lock.

It writes the log lines by which the tests follow their child processes. What has no counterpart in the helper (signal
keys, tokens that the program chooses, resets, extensions) is not imitated.
"""

import logging

import redis_lock_client as helper

log = logging.getLogger("redis_lock")


class AlreadyAcquired(RuntimeError):
    pass


class NotAcquired(RuntimeError):
    pass


class InvalidTimeout(ValueError):
    pass


class NotExpirable(RuntimeError):
    pass


class TimeoutNotUsable(RuntimeError):
    pass


class TimeoutTooLarge(RuntimeError):
    pass


def reset_all(client):
    raise NotImplementedError


class Lock:
    def __init__(
        self,
        redis_client,
        name,
        expire=None,
        id=None,
        auto_renewal=False,
        strict=True,
        blocking=True,
    ):
        if id is not None:
            raise NotImplementedError("an owner of the program's own")
        self._name, self.blocking = f"lock:{name}", blocking
        self.lock = helper.Lock(redis_client, self._name, lease=max(1.0, expire or 30.0))

    @property
    def id(self):
        return self.lock.owner

    def acquire(self, blocking=True, timeout=None):
        log.debug("Acquiring Lock(%r) ...", self._name)
        if not blocking and timeout is not None:
            raise TimeoutNotUsable
        try:
            # 0 is no timeout there.
            acquired = self.lock.acquire(blocking=blocking, blocking_timeout=float(timeout or 0) or None)
        except helper.LockError as error:
            raise AlreadyAcquired from error
        except ValueError as error:
            raise InvalidTimeout from error
        log.info(
            "Acquired Lock(%r)." if acquired else "Failed to acquire Lock(%r).",
            self._name,
        )
        return acquired

    def locked(self):
        return self.lock.locked()

    def release(self):
        log.debug("Releasing Lock(%r).", self._name)
        try:
            self.lock.release()
        except helper.LockError as error:
            raise NotAcquired from error

    def __enter__(self):
        if not self.acquire(blocking=self.blocking):
            raise NotAcquired
        return self

    def __exit__(self, *_):
        self.release()
