"""What all parts of the helper share: its errors, its times, its clock, and the checks of arguments."""

from __future__ import annotations

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

SLICE = 3.0  # the longest BLOCK of one request
QUEUE = 10.0  # how long the server keeps a place in the queue without a request for it
PATIENCE = 2.5  # how long a server may take to answer, beyond BLOCK
OVERTIME = 2.0  # the same for the last request of a wait
POLL = 1.0  # the time between two requests of a wait that does not BLOCK
LEAVE = 0.25  # how long the end of a wait may take its caller; the renewer goes on
READ_ON = 1.0  # how long the reply to a request that was given up is waited for
LOOK = 1.0  # how often clocks, idle connections and the renewer's own one are looked at
TICK = 0.001  # the shortest BLOCK there is
LINGER = 30.0  # how long idle connections and the renewer outlive their last use
MOST_BLOCKING = 32  # waits of a process that BLOCK, over a connection each
MOST_IDLE = 8  # connections to a server that are kept without a use
LONG_LEASE = 3600.0  # a longer lease is probably meant to be milliseconds

# Guards what threads share. A child of a fork gets it free.
mutex = threading.RLock()


class LockNotAcquired(LockError):
    """`wait` was over before the lock was free. Raised by `with`; `acquire()` returns False instead."""


class LockLost(LockNotOwnedError):
    """The lock was lost before it was released: somebody else may have held it since."""


class Deadlock(LockError):
    """Waiting would deadlock: a cycle of owners that wait for each other. The text names the cycle."""


if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds on a clock that goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    now = time.monotonic


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
    """Pauses between attempts: 100 ms, doubled up to a second, each with up to half as much again by chance."""
    return (min(0.1 * 2**attempt, 1.0) * random.uniform(1.0, 1.5) for attempt in itertools.count())


def margin(lease: float) -> float:
    """What is taken from a lease for clocks that run at other speeds."""
    return max(lease / 100, 0.1)


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
    if not 1 <= seconds <= 86_400 * 366:
        raise ValueError("lease must be at least a second")
    if seconds > LONG_LEASE:
        warnings.warn(
            f"lease={seconds:g} is more than an hour: a lease is in seconds, and a lock outlives its process by it",
            stacklevel=3,
        )


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
