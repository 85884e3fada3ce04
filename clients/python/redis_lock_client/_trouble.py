"""What an application is told while its lock waits or is held: by a callback, or by the logger `redis_lock`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from redis import exceptions as errors

from redis_lock_client._common import LOOK, Deadlock, mutex, now

logger = logging.getLogger("redis_lock")
QUIET = 10.0  # the logger says the same of one server at most this often, in seconds
MOST_REMEMBERED = 1000
MOST_UNTOLD = 10_000
MOST_TELLERS = 8  # threads that tell; so many callbacks may hang
# What a callback of the application may raise. What a signal raises in it goes on: it is meant for the wait.
OWN = (Exception, asyncio.CancelledError, GeneratorExit)


@dataclasses.dataclass(frozen=True)
class Trouble:
    """What is wrong, in one sentence (`str(trouble)`), and what kind of trouble it is.

    kind: "unreachable", "crowded" (no connection is left), "no module", "old module", "no right", "memory full",
        "refused" (another error that passes), "renewal" (one has failed, and is repeated),
        "release" (the same), "notify" (waits that do not block ask each second), "lost".
    lock: the name of the lock: its key, or keys.
    text: the sentence.
    error: the error that it comes from, if there is one.
    """

    kind: str
    lock: str
    text: str
    error: BaseException | None = None

    def __str__(self) -> str:
        return self.text


OnTrouble = Callable[[Trouble], Any]


def address(source: Any) -> str:
    settings = source.connection_kwargs
    return settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def is_crowded(error: BaseException) -> bool:
    """True if there is no connection left: of the server, or in this process."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if "max number of clients reached" in str(seen) or f"Error {errno.EMFILE} " in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def explain(error: BaseException, server: str) -> tuple[str, str] | None:
    """The kind of trouble that an error is, and a sentence that helps. None if it is no trouble."""
    text = str(error)
    if isinstance(error, Deadlock | errors.AskError) or text.startswith(("GRACE", "UNBLOCKED", "DEADLOCK")):
        return None
    if has_old_module(error) and error.__cause__ is not None:
        text = str(error.__cause__)  # it was explained already
    found = next(((kind, says) for kind, says, is_so in _KINDS if is_so(error, text)), None)
    return found and (found[0], found[1].format(server=server, text=text))


NO_MODULE = "{server} does not have the module redis_lock: load libredis_lock.so there with loadmodule"
OLD_MODULE = "the module redis_lock of {server} is too old: this needs 1.0 or newer. It said: {text}"
_LOST = errors.ConnectionError | errors.TimeoutError | errors.RedisClusterException
_KINDS: tuple[tuple[str, str, Callable[[BaseException, str], bool]], ...] = (
    ("crowded", "no connection to {server} is left: {text}", lambda error, _: is_crowded(error)),
    (
        "no right",
        "{server} does not let this user in: {text}",
        lambda error, _: isinstance(error, errors.AuthenticationError | errors.AuthorizationError),
    ),
    (
        "no right",
        "the user of {server} has no right to this lock: {text}",
        lambda error, _: isinstance(error, errors.NoPermissionError),
    ),
    (
        "refused",
        "{server} is loading its data, and is asked again",
        lambda error, _: isinstance(error, errors.BusyLoadingError),
    ),
    (
        "unreachable",
        "{server} does not answer as a Redis server should: is the address right? {text}",
        lambda error, _: isinstance(error, _LOST),
    ),
    (
        "memory full",
        "{server} has no memory for another lock (maxmemory), and is asked again: {text}",
        lambda error, text: isinstance(error, errors.OutOfMemoryError) or text.startswith("OOM"),
    ),
    (
        "no module",
        NO_MODULE,
        lambda error, _: lacks_module(error),
    ),
    (
        "old module",
        OLD_MODULE,
        lambda error, _: has_old_module(error),
    ),
    ("refused", "{server} refuses: {text}", lambda error, _: isinstance(error, errors.ResponseError)),
)


def lacks_module(error: BaseException) -> bool:
    """True if the server knows no command of locks."""
    text = str(error).lower()
    unknown = "unknown command" in text and "lock." in text
    return isinstance(error, errors.ResponseError) and (unknown or "does not have the module" in text)


def has_old_module(error: BaseException) -> bool:
    """True if the module of the server lacks an option that this package sends."""
    text = str(error)
    return isinstance(error, errors.ResponseError) and ("unknown option" in text or "is too old" in text)


def explained(error: errors.ResponseError, server: str) -> errors.ResponseError:
    """The error, or for a server without the module or with an old one one with a sentence that helps."""
    if lacks_module(error):
        return errors.ResponseError(NO_MODULE.format(server=server))
    if has_old_module(error):
        return errors.ResponseError(OLD_MODULE.format(server=server, text=error))
    return error


_said: dict[tuple[str, str], float] = {}


def tell(trouble: Trouble, on_trouble: OnTrouble | None, server: str) -> Any:
    """Tells it to the application. Whatever its callback raises harms nothing."""
    try:
        if on_trouble is not None:
            return on_trouble(trouble)
        if trouble.kind == "lost":
            logger.error("%s", trouble.text)
        elif _is_news(trouble.kind, server):
            logger.warning("%s", trouble.text)
    except OWN:
        logger.exception("on_trouble has failed")
    return None


def _is_news(kind: str, server: str) -> bool:
    with mutex:
        moment = now()
        if len(_said) > MOST_REMEMBERED:
            _said.clear()
        last = _said.get((kind, server))
        if last is not None and moment - last < QUIET:
            return False
        _said[kind, server] = moment
        return True


class _Teller:
    """Threads that tell what a renewer has no time for. They end when there is nothing.

    One tells all, one after the other. While a callback takes longer than `LOOK`, another one goes on.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In the child of a fork: the threads are the parent's."""
        self.calls: deque[Callable[[], Any]] = deque(maxlen=MOST_UNTOLD)  # then the oldest go
        self.threads = 0
        self.told = 0  # so many were begun
        self.watched = False  # a thread sees whether the others get on

    @property
    def running(self) -> bool:
        return self.threads > 0

    def later(self, call: Callable[[], Any]) -> None:
        with mutex:
            self.calls.append(call)
            self.call_another()

    def call_another(self) -> None:
        """One that tells, or one that watches. Needs `mutex`."""
        if self.threads < MOST_TELLERS and not self.watched:
            self.watched = self.threads > 0
            self.threads += 1
            threading.Thread(target=self.run, args=(self.watched,), name="redis-lock trouble", daemon=True).start()

    def run(self, watches: bool) -> None:
        told = -1
        while watches and self.calls and self.told != told:
            told = self.told
            time.sleep(LOOK)
        with mutex:
            self.watched = self.watched and not watches
        while True:
            with mutex:
                if not self.calls:
                    self.threads -= 1
                    return
                call, self.told = self.calls.popleft(), self.told + 1
                if self.calls:
                    self.call_another()
            with contextlib.suppress(SystemExit):  # it ends no process from here
                call()


teller = _Teller()
