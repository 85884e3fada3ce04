"""What all parts of the helper share: its errors, its times, its clock, and the checks of arguments."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from redis import exceptions as errors
from redis.exceptions import LockError, LockNotOwnedError

Key = str | bytes | bytearray | memoryview

# The times that all helpers share, in seconds. clients/README.md says what each is for.
LEASE = 30.0
LEASE_MIN = 1.0
BLOCK = 3.0
QUEUE = 10.0
POLL = 1.0
POLL_JITTER = 0.25
ANSWER = 2.5
OVERTIME = 1.0
READ_ON = 1.0
LEAVE = 0.25
PAUSE_MIN = 0.1
PAUSE_MAX = 1.0
PAUSE_JITTER = 0.5
MARGIN_MIN = 0.1
LOOK = 1.0
IDLE = 30.0
IDLE_MAX = 8
BLOCKING_MAX = 32
NOTIFY_QUEUE = 30.0
CONFIRM = 2.0
REFUSED = 10.0

LEASE_MAX = 366 * 86_400.0
TICK = 0.001  # the shortest BLOCK there is
LONG_LEASE = 3600.0  # a longer lease is probably meant to be milliseconds

# Guards what threads share. A child of a fork gets it free.
mutex = threading.RLock()


class LockNotAcquired(LockError):
    """`wait` was over before the lock was free. Raised by `with`; `acquire()` returns False instead."""


class LockLost(LockNotOwnedError):
    """The lock was lost before it was released: somebody else may have held it since."""


class Deadlock(LockError):
    """Waiting would deadlock: a cycle of owners that wait for each other, which the text names, or one's own lock."""


@dataclasses.dataclass(frozen=True)
class HoldToken:
    """A lock on its way to another process: `detach()` gives it, and `from_token` takes it.

    key: the key. `detach()` gives one of bytes as text, so that it goes into JSON: what is no ASCII as surrogates.
    owner: the name under which the server knows the holder.
    fence: the fence of the holder. It is void once the lock was taken over.
    lease: for how long the lock waits to be taken over, and then the lease of the new holder, in seconds.
    shared: True if other readers may hold it, too.
    """

    key: str | bytes
    owner: str
    fence: int
    lease: float = LEASE
    shared: bool = False

    @property
    def _sent_key(self) -> str | bytes:
        """The key as a request has it."""
        if isinstance(self.key, str) and any("\udc80" <= letter <= "\udcff" for letter in self.key):
            return self.key.encode("ascii", "surrogateescape")
        return self.key


# A clock that goes on while the machine is suspended, where there is one.
_clock = (
    functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
_skipped = 0.0


def now() -> float:
    """Seconds on the clock by which locks are valid."""
    return _clock() + _skipped


def skip(seconds: float) -> None:
    """Sets the clock ahead: for tests."""
    global _skipped  # noqa: PLW0603
    _skipped += seconds


def again(error: BaseException) -> bool:
    """True if it is worth asking again after this error."""
    if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
        return False
    if isinstance(error, errors.ConnectionError | errors.TimeoutError | errors.RedisClusterException):
        return True
    if isinstance(error, errors.AskError | errors.TryAgainError | errors.ClusterDownError | errors.ReadOnlyError):
        return True
    if isinstance(error, errors.OutOfMemoryError):
        return True
    code, _, text = str(error).partition(" ")
    if code == "LIMIT":
        return "waiters" in text or "places" in text
    return code in ("UNBLOCKED", "GRACE", "NOREPLICAS", "MISCONF", "OOM")


def pauses() -> Iterator[float]:
    """Pauses between attempts: each twice the last one, up to a limit, and longer by chance."""
    return (
        min(PAUSE_MIN * 2**attempt, PAUSE_MAX) * random.uniform(1.0, 1.0 + PAUSE_JITTER)
        for attempt in itertools.count()
    )


def margin(lease: float) -> float:
    """What is taken from a lease for clocks that run at other speeds."""
    return max(lease / 100, MARGIN_MIN)


def to_bytes(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


def one_key(key: Any) -> str | bytes:
    """A key as redis-py takes it."""
    if isinstance(key, str | bytes):
        return key
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    raise TypeError(f"key must be str or bytes-like, or a list of such, and not {type(key).__name__}")


def all_keys(key: Any) -> tuple[str | bytes, ...]:
    if isinstance(key, str | bytes | bytearray | memoryview) or not isinstance(key, Iterable):
        return (one_key(key),)
    return tuple(one_key(one) for one in key)


def check_wait(seconds: float | None) -> None:
    if seconds is not None and not seconds >= 0:
        raise ValueError("wait must be 0 or more, or None for as long as it takes")


def check_lease(seconds: float) -> None:
    if not LEASE_MIN <= seconds <= LEASE_MAX:
        raise ValueError("lease must be at least a second")
    if seconds > LONG_LEASE:
        warnings.warn(
            f"lease={seconds:g} is more than an hour: a lease is in seconds, and a lock outlives its process by it",
            stacklevel=3,
        )


def check_rest(seconds: float) -> float:
    if not 0 < seconds <= LEASE_MAX:
        raise ValueError("seconds must be above 0, and at most a year")
    return seconds


def wait_of(wait: float | None, blocking: bool | None, blocking_timeout: float | None) -> float | None:
    """How long an acquisition waits: as the lock says, but for what the call says."""
    check_wait(blocking_timeout)
    if blocking is False:
        return 0.0
    if blocking_timeout is not None:
        return blocking_timeout
    return None if blocking and wait == 0 else wait


def note_on(error: BaseException, loss: LockLost) -> None:
    """Lets the error of a block say that the lock was lost as well, from Python 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(str(loss))
