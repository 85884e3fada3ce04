"""Locks of the server module redis_lock, through redis-py: blocking (`Lock`) and asyncio (`AsyncLock`).

    client = redis.Redis()
    with Lock(client, "report") as lock:
        lock.guard("SET", "report:text", "first line")

The `with` waits in the server's queue, first come, first served. The lock is renewed until the block ends, and then
released. If it was lost meanwhile, the block ends with `LockLost`, and `lock.lost` says so as soon as it is known.

All times are in seconds. A client of redis-py with its defaults will do, and so will `RedisCluster`. The helper sends
its requests over connections of its own, made from the client's settings, without the client's resending. They are
closed a second after the last lock was released.

Needs Python 3.10, redis-py 6 or newer, and a server with the module. One file: copy it, or install it.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import itertools
import math
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from redis import exceptions as errors
from redis.exceptions import LockError, LockNotOwnedError

__all__ = ["AsyncLock", "Deadlock", "Lock", "LockError", "LockLost", "LockNotAcquired"]
__version__ = "1.0.0rc1"

_T = TypeVar("_T")
_Key = str | bytes
_SLICE = 3.0  # the longest BLOCK of one request
_QUEUE = 10.0  # how long the server keeps a place in the queue without a request for it
_PATIENCE = 2.5  # how long a server may take to answer, beyond BLOCK
_TICK = 0.001  # the shortest BLOCK there is
_LINGER = 1.0  # how long connections and the renewer outlive the last lock


class LockNotAcquired(LockError):
    """`wait` was over before the lock was free. Raised by `with`; `acquire()` returns False instead."""


class LockLost(LockNotOwnedError):
    """The lock was lost before it was released: somebody else may have held it since."""


class Deadlock(LockError):
    """Waiting would deadlock: a cycle of owners that wait for each other. The text names the cycle."""


if hasattr(time, "CLOCK_BOOTTIME"):

    def _now() -> float:
        """Seconds on a clock that goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    _now = time.monotonic


def _again(error: Exception) -> bool:
    """Is it worth asking again after this error?"""
    if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
        return False
    if isinstance(error, errors.ConnectionError | errors.TimeoutError | errors.RedisClusterException):
        return True
    if isinstance(error, errors.AskError | errors.TryAgainError | errors.ClusterDownError | errors.ReadOnlyError):
        return True
    code, _, text = str(error).partition(" ")
    if code == "LIMIT":
        return "waiters" in text or "places" in text
    return code in ("UNBLOCKED", "GRACE", "NOREPLICAS", "MISCONF")


def _pauses() -> Iterator[float]:
    """Pauses between attempts: 100 ms, doubled up to a second, each with up to half as much again by chance."""
    return (min(0.1 * 2**attempt, 1.0) * random.uniform(1.0, 1.5) for attempt in itertools.count())


# --- Requests: the helper's own connections to a server -------------------------------------------------------------


class _Request(abc.ABC):
    """A request that was sent. It has a connection for itself until the reply is read."""

    answered = False  # the server has dealt with it, and the reply was read

    @abc.abstractmethod
    def close(self) -> None: ...

    @abc.abstractmethod
    async def reply(self, limit: float) -> Any:
        """The reply. An error closes the connection; an interruption leaves it, and the reply can still be read."""


class _Server(abc.ABC):
    """What the helper has of one server: its connections, and the renewer of the locks that are held there.

    The contract is written once, with `async`, for threads and for asyncio. Here is what differs between them.
    """

    bell: Any  # threading.Event or asyncio.Event

    def __init__(self, source: Any) -> None:
        self.source = source  # a pool, or a node of a cluster: it has the settings of its connections
        self.holds: set[_Hold] = set()  # the locks to renew
        self.users = 0  # the locks that are asked for, held or released
        self.left = _now()  # when the last user left
        self.awake_at = -math.inf  # when the renewer looks again; -inf while it is awake
        self.over = False
        self.idle: list[Any] = []

    @classmethod
    def enter(cls, source: Any) -> _Server:
        """The one for `source` in this process, or event loop; each call needs a `leave`."""
        key = (os.getpid(), cls.place(), id(source))
        with _mutex:
            server = _servers.get(key)
            if server is None:
                server = cls(source)
                server.start(server.renew(key))
                _servers[key] = server
            server.users += 1
        return server

    def leave(self) -> None:
        with _mutex:
            self.users -= 1
            self.left = _now()
        self.attend(self.left + _LINGER)

    def attend(self, when: float) -> None:
        """Lets the renewer look again by then."""
        if when < self.awake_at:
            self.awake_at = when
            self.bell.set()

    async def renew(self, key: tuple[int, int, int]) -> None:
        """The renewer: extends the locks that are held there, and ends a while after the last user has left."""
        try:
            while not self.ends(key):
                self.bell.clear()
                self.awake_at = math.inf
                holds = tuple(self.holds)
                when = min((hold.due for hold in holds), default=_now() + _LINGER)
                if when <= _now():
                    # A server that hangs must not hold up a lock with a shorter lease than this one.
                    limit = min(hold.spec.lease for hold in holds) / 6
                    await min(holds, key=lambda hold: hold.due).renew(limit)
                else:
                    self.awake_at = min(self.awake_at, when)
                    await self.doze(when - _now())
        finally:
            self.retire(key)
            while self.idle:
                self.close(self.idle.pop())

    def ends(self, key: tuple[int, int, int]) -> bool:
        with _mutex:
            if self.users == 0 and _now() - self.left >= _LINGER:
                self.retire(key)
        return self.over

    def retire(self, key: tuple[int, int, int]) -> None:
        """The next `enter` makes another one."""
        with _mutex:
            self.over = True
            if _servers.get(key) is self:
                del _servers[key]

    @property
    def patience(self) -> float:
        """How long the server may take to answer, beyond BLOCK: half the client's own read time-out, if it has one."""
        timeout = self.source.connection_kwargs.get("socket_timeout")
        return _PATIENCE if timeout is None else min(_PATIENCE, timeout / 2)

    def settings(self, limit: float) -> dict[str, Any]:
        """The client's settings, without its resending and without what belongs to its pool."""
        pools = ("maint_", "oss_cluster_", "orig_", "himport_", "event_dispatcher")
        settings = {k: v for k, v in self.source.connection_kwargs.items() if not k.startswith(pools)}
        settings |= {"retry": None, "retry_on_timeout": False, "retry_on_error": [], "health_check_interval": 0}
        return settings | {"socket_timeout": limit, "socket_connect_timeout": limit}

    def give(self, connection: Any) -> None:
        """Keeps a connection for the next request."""
        if self.over:
            self.close(connection)
        else:
            self.idle.append(connection)

    @staticmethod
    @abc.abstractmethod
    def place() -> int:
        """Tells one event loop from another."""

    @abc.abstractmethod
    def start(self, renewer: Coroutine[Any, Any, None]) -> None: ...

    @abc.abstractmethod
    async def doze(self, seconds: float) -> None:
        """Until the bell rings, or the time is up."""

    @abc.abstractmethod
    def close(self, connection: Any) -> None: ...

    @abc.abstractmethod
    async def send(self, words: Sequence[Any], limit: float, *, fresh: bool = False, asking: bool = False) -> _Request:
        """Sends a request within `limit` seconds; over a new connection if `fresh`, and behind ASKING if `asking`."""

    @staticmethod
    @abc.abstractmethod
    async def sleep(seconds: float) -> None: ...

    @staticmethod
    @abc.abstractmethod
    async def shielded(attempt: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Lets the attempt come to its end although its caller is interrupted or cancelled."""

    @staticmethod
    @abc.abstractmethod
    async def home(client: Any, key: _Key, *, refresh: bool = False, asked: errors.AskError | None = None) -> Any:
        """The source of connections to the server of `key`, or to the one that an ASK names.

        `refresh` asks the cluster anew where its keys are.
        """


_servers: dict[tuple[int, int, int], _Server] = {}
_mutex = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_mutex.release)


# --- The same with threads ------------------------------------------------------------------------------------------


def _run(steps: Coroutine[Any, Any, _T]) -> _T:
    """Runs what is written with `async` but waits only in blocking calls, as all of a _ThreadServer's does."""
    try:
        steps.send(None)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    raise RuntimeError("it waited for an event loop")


class _TimedSocket:
    """A socket with a deadline for all that is read. redis-py's time-outs begin anew with each byte."""

    def __init__(self, plain: socket.socket, until: float) -> None:
        self.plain, self.until = plain, until

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def recv(self, *args: Any) -> bytes:
        return self.in_time(self.plain.recv, *args)

    def recv_into(self, *args: Any) -> int:
        return self.in_time(self.plain.recv_into, *args)

    def in_time(self, read: Callable[..., _T], *args: Any) -> _T:
        timeout = self.plain.gettimeout()
        left = max(self.until - _now(), _TICK)
        if timeout is not None and timeout <= left:
            return read(*args)
        self.plain.settimeout(left)
        try:
            return read(*args)
        finally:
            self.plain.settimeout(timeout)


class _ThreadRequest(_Request):
    def __init__(self, server: _Server, connection: Any) -> None:
        self.server = server
        self.connection = connection  # None when it is closed, or another request's

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()

    async def reply(self, limit: float) -> Any:
        connection = self.connection
        _limit(connection, limit)
        try:
            if connection is None or not connection.can_read(limit):
                raise errors.TimeoutError("the server did not answer in time")  # noqa: TRY301
            reply = connection.read_response(disconnect_on_error=False)
        except Exception as error:
            self.answered = isinstance(error, errors.ResponseError)
            self.close()
            if isinstance(error, OSError | ValueError):
                raise errors.ConnectionError(f"the connection broke: {error}") from error
            raise
        self.answered, self.connection = True, None
        self.server.give(connection)
        return reply


def _limit(connection: Any, limit: float) -> None:
    """What comes over the connection from now on must have come within `limit` seconds."""
    timed = getattr(connection, "_sock", None)
    if isinstance(timed, _TimedSocket):
        timed.until = _now() + limit


class _ThreadServer(_Server):
    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.bell = threading.Event()

    @staticmethod
    def place() -> int:
        return 0

    def start(self, renewer: Coroutine[Any, Any, None]) -> None:
        threading.Thread(target=_run, args=(renewer,), name="redis-lock renewer", daemon=True).start()

    async def doze(self, seconds: float) -> None:
        self.bell.wait(max(seconds, 0))

    def close(self, connection: Any) -> None:
        connection.disconnect()

    async def send(self, words: Sequence[Any], limit: float, *, fresh: bool = False, asking: bool = False) -> _Request:
        connection = None if fresh else self.pick()
        if connection is None:
            connection = self.source.connection_class(**self.settings(limit))
            plain, until = connection._connect, _now() + limit
            connection._connect = lambda: _TimedSocket(plain(), until)
        _limit(connection, limit)
        try:
            connection.connect()
            if asking:
                connection.send_command("ASKING")
                connection.read_response()
            connection.send_command(*words)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, OSError):
                raise errors.ConnectionError(f"the connection broke: {error}") from error
            raise
        return _ThreadRequest(self, connection)

    def pick(self) -> Any:
        """An idle connection that is still open."""
        while self.idle:
            with contextlib.suppress(IndexError, errors.RedisError, OSError, ValueError):
                connection = self.idle.pop()
                if not connection.can_read(0):
                    return connection
                connection.disconnect()
        return None

    @staticmethod
    async def sleep(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks, as all here does

    @staticmethod
    async def shielded(attempt: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        try:
            return await attempt()
        except Exception:
            raise
        except BaseException:  # such as KeyboardInterrupt: once more, since nothing tells how far it came
            with contextlib.suppress(Exception):
                await attempt()
            raise

    @staticmethod
    async def home(client: Any, key: _Key, *, refresh: bool = False, asked: errors.AskError | None = None) -> Any:
        if not hasattr(client, "nodes_manager"):
            return client.connection_pool
        if refresh:
            client.nodes_manager.initialize()
        node = client.get_node(asked.host, asked.port) if asked else client.get_node_from_key(key)
        return client.get_redis_connection(node).connection_pool


# --- The same with asyncio ------------------------------------------------------------------------------------------


class _TaskRequest(_Request):
    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task

    def close(self) -> None:
        self.task.cancel()

    async def reply(self, limit: float) -> Any:
        await asyncio.wait({self.task}, timeout=limit)
        if not self.task.done():
            self.close()
            raise errors.TimeoutError("the server did not answer in time")
        if not self.task.cancelled():
            self.answered = isinstance(self.task.exception(), errors.ResponseError | None)
        return self.task.result()


class _TaskServer(_Server):
    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.bell = asyncio.Event()
        self.tasks: set[asyncio.Task[Any]] = set()

    @staticmethod
    def place() -> int:
        return id(asyncio.get_running_loop())

    def start(self, renewer: Coroutine[Any, Any, None]) -> None:
        self.task(renewer)

    def task(self, steps: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs it by itself. Its error is nobody's if nobody asks for its result."""
        task = asyncio.get_running_loop().create_task(steps)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def doze(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.bell.wait(), max(seconds, 0))

    def close(self, connection: Any) -> None:
        self.task(connection.disconnect())

    async def send(
        self,
        words: Sequence[Any],
        limit: float,  # noqa: ARG002 - that of the reply includes it
        *,
        fresh: bool = False,
        asking: bool = False,
    ) -> _Request:
        return _TaskRequest(self.task(self.exchange(words, fresh, asking)))

    async def exchange(self, words: Sequence[Any], fresh: bool, asking: bool) -> Any:
        connection = None if fresh else await self.pick()
        if connection is None:
            connection = self.source.connection_class(**self.settings(_PATIENCE) | {"socket_timeout": None})
        try:
            await connection.connect()
            if asking:
                await connection.send_command("ASKING")
                await connection.read_response()
            await connection.send_command(*words)
            reply = await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.give(connection)
        return reply

    async def pick(self) -> Any:
        """An idle connection that is still open."""
        while self.idle:
            connection = self.idle.pop()
            with contextlib.suppress(errors.RedisError, OSError):
                readable = getattr(connection, "can_read", None) or connection.can_read_destructive
                if connection.is_connected and not await readable():
                    return connection
            await connection.disconnect(nowait=True)
        return None

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @staticmethod
    async def shielded(attempt: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        task = asyncio.get_running_loop().create_task(attempt())
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return task.result()
        task.exception()
        raise cancelled

    @staticmethod
    async def home(client: Any, key: _Key, *, refresh: bool = False, asked: errors.AskError | None = None) -> Any:
        if not hasattr(client, "nodes_manager"):
            return client.connection_pool
        await client.initialize()
        if refresh:
            await client.nodes_manager.initialize()
        return client.get_node(asked.host, asked.port) if asked else client.get_node_from_key(key)


# --- The contract ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What a lock asks for."""

    client: Any
    keys: tuple[_Key, ...]
    lease: float
    shared: bool
    limit: int | None
    take: int
    note: str | None

    @property
    def mode(self) -> str:
        return "READ" if self.shared or self.limit is not None else "WRITE"

    @property
    def name(self) -> str:
        return ", ".join(_bytes(key).decode(errors="replace") for key in self.keys)

    @property
    def title(self) -> str:
        return f'lock "{self.name}"'

    @property
    def several(self) -> bool:
        return len(self.keys) > 1

    def acquire(self, owner: str, block: float | None) -> list[Any]:
        """The request that acquires; it waits for `block` seconds, or it tries once."""
        if self.several:
            words = ["LOCK.MACQUIRE", len(self.keys), *self.keys, owner, self.mode]
        elif self.limit is not None:
            words = ["LOCK.SHARE", *self.keys, owner, self.limit, "TAKE", self.take]
        elif self.shared:
            words = ["LOCK.RW", *self.keys, owner, "READ"]
        else:
            words = ["LOCK.ACQUIRE", *self.keys, owner]
        # RETRY: a request that is sent twice counts once.
        words += ["PX", int(self.lease * 1000), "RETRY", self.take]
        if block is not None:
            words += ["BLOCK", max(1, int(block * 1000)), "QUEUE", int(_QUEUE * 1000)]
        return words if self.note is None else [*words, "NOTE", self.note]

    def extend(self, owner: str, fences: tuple[int, ...]) -> list[Any]:
        if self.several:
            return ["LOCK.MEXTEND", len(self.keys), *self.keys, owner, "PX", int(self.lease * 1000)]
        return ["LOCK.EXTEND", *self.keys, owner, "PX", int(self.lease * 1000), "FENCE", *fences]

    def release(self, owner: str, fences: tuple[int, ...]) -> list[list[Any]]:
        """One request for each key: LOCK.MRELEASE is refused if one of the keys is no lock any more."""
        pairs = zip(self.keys, fences, strict=True)
        return [["LOCK.RELEASE", key, owner, "ALL", "FENCE", fence] for key, fence in pairs]

    def leave(self, owner: str) -> list[Any]:
        """Leaves the queue, and releases a grant that the owner does not know of."""
        if self.several:
            return ["LOCK.MRELEASE", len(self.keys), *self.keys, owner, "ALL"]
        return ["LOCK.RELEASE", *self.keys, owner, "ALL"]


class _Owner:
    """Who holds locks, or waits for them: one for a lock and all that are taken `within` it."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(16)}"
        self.keys: set[bytes] = set()
        self.unsettled: set[bytes] = set()  # a wait for these was given up, but the server has not confirmed it


class _Hold:
    """One acquisition, from its first request to its end."""

    def __init__(self, spec: _Spec, owner: _Owner, kind: type[_Server], event: Any) -> None:
        self.spec, self.owner, self.kind, self.event = spec, owner, kind, event
        self.pid = os.getpid()
        self.names = {_bytes(key) for key in spec.keys}
        self.server: _Server | None = None
        self.request: _Request | None = None  # the last one that asked for the lock
        self.asked = False
        self.fences: tuple[int, ...] = ()
        self.valid_until = self.due = math.inf  # until when it is surely held; when to renew it
        self.pauses = _pauses()
        self.owes_until = -math.inf  # until when the renewer repeats a release that was not answered
        self.failure: Exception | None = None  # why the last renewal failed
        self.claimed = self.held = self.lost = self.ended = self.abandoned = self.released = False

    async def acquire(self, lock: _Lock, wait: float | None) -> bool:
        """True when it is held, False when `wait` was over. Whatever else happens, nothing is left on the server."""
        try:
            self.claim(lock)
            got = await self.wait_in_line(wait)
        except BaseException:
            try:
                self.stop()
                if self.asked:
                    await self.kind.shielded(self.leave)
            finally:
                self.end()
            raise
        if not got:
            self.end()
        return got

    async def wait_in_line(self, wait: float | None) -> bool:
        until = math.inf if wait is None else _now() + wait
        while True:
            error: Exception | None = None
            try:
                if await self.attempt(until, once=wait == 0):
                    return True
            except Exception as failure:
                if str(failure).startswith("DEADLOCK "):
                    raise Deadlock(f"{self.spec.title} was not acquired: {failure}", self.spec.name) from failure
                if not _again(failure):
                    raise
                error = failure
            left = until - _now()
            if left < _TICK:
                break
            if error is not None:
                await self.kind.sleep(min(next(self.pauses), left))
                await self.follow()
        if error is not None:
            raise error
        if wait != 0 or self.fences:
            await self.kind.shielded(self.leave)
        return False

    async def attempt(self, until: float, *, once: bool) -> bool:
        """One slice of the wait."""
        server = await self.find()
        if self.owner.unsettled & self.names:
            raise errors.TimeoutError("the server has not confirmed yet that an earlier wait is over")
        sent = _now()
        block = None if once else max(_TICK, min(_SLICE, server.patience, until - sent))
        reply = await self.ask(self.spec.acquire(self.owner.name, block), server.patience, block=block or 0, keep=True)
        if reply is None:
            # Before the time is up: from a server that does not let this connection wait.
            await self.kind.sleep(max(0, sent + (block or 0) - _now()))
            return False
        self.fences = tuple(reply) if self.spec.several else (reply,)
        if _now() - sent > _margin(self.spec.lease):
            # It waited, so part of the lease may be over already.
            sent = _now()
            if not self.confirms(await self.ask(self.spec.extend(self.owner.name, self.fences), server.patience)):
                return False
        self.keep(sent)
        if _now() >= self.valid_until:
            return False
        self.held = True
        server = await self.find()
        server.holds.add(self)
        server.attend(self.due)
        return True

    async def leave(self) -> None:
        """Leaves the queue, and releases what was granted in the same moment."""
        self.owes_until = _now() + self.spec.lease + _QUEUE
        self.owner.unsettled |= self.names
        settled = False
        with contextlib.suppress(Exception):
            await self.ask_to_leave(1.0)
            settled = self.request is not None and (self.request.answered or await self.request.reply(1.0) is None)
        if not settled:
            # The server may have read the request after the release.
            if self.request is not None:
                self.request.close()
            with contextlib.suppress(Exception):
                await self.ask_to_leave(1.0, fresh=True)
                settled = True
        if settled:
            self.settle()

    async def ask_to_leave(self, limit: float, *, fresh: bool = False) -> None:
        words = self.spec.leave(self.owner.name)
        if await self.ask_of_hold(words, limit, fresh=fresh) is None and self.spec.several:
            for key in self.spec.keys:
                await self.ask_of_hold(["LOCK.RELEASE", key, self.owner.name, "ALL"], limit, fresh=fresh)

    async def leave_later(self, limit: float) -> None:
        """Repeats what `leave` could not settle in its time, by the renewer alone."""
        if _now() < self.owes_until:
            try:
                await self.ask_to_leave(limit, fresh=True)
            except Exception:  # noqa: BLE001 - whatever it was: it is repeated
                self.due = _now() + next(self.pauses)
                await self.follow()
                return
        self.settle()
        self.end()

    def settle(self) -> None:
        self.owes_until = -math.inf
        self.owner.unsettled -= self.names

    async def renew(self, limit: float) -> None:
        """Extends the lease, by the renewer alone."""
        if self.owes_until > -math.inf:
            await self.leave_later(limit)
            return
        if self.abandoned:
            self.end()
        if self.ended or self.is_lost():
            return
        sent = _now()
        try:
            reply = await self.ask_of_hold(self.spec.extend(self.owner.name, self.fences), limit)
        except Exception as error:  # noqa: BLE001 - whatever it was: there is time until the lease ends
            self.failure = error
            self.due = min(_now() + next(self.pauses), self.valid_until)
            await self.follow()
            return
        if self.confirms(reply):
            self.keep(sent)
        else:
            self.lose()

    async def release(self) -> None:
        if self.pid == os.getpid():
            await self.kind.shielded(self.give_back)

    async def give_back(self) -> None:
        """May run a second time, when the first was interrupted anywhere."""
        lost = self.is_lost()
        self.stop()
        try:
            self.lost = not await self.was_held_until_now() or lost
        except Exception as error:
            if not lost:
                raise
            self.failure = self.failure or error
        finally:
            self.end()
        if self.lost:
            raise LockLost(f"{self.spec.title} was lost before it was released", self.spec.name) from self.failure

    async def was_held_until_now(self) -> bool:
        """Releases it. Null means that it was lost; null to a request that is repeated means nothing."""
        limit = (await self.find()).patience
        requests = self.spec.release(self.owner.name, self.fences)
        repeated, self.released = self.released, True
        try:
            replies = [await self.ask_of_hold(words, limit) for words in requests]
        except Exception as error:
            if self.lost or not _again(error):
                raise
            await self.follow()
            repeated = True
            replies = [await self.ask_of_hold(words, limit, fresh=True) for words in requests]
        return repeated or None not in replies

    async def check(self) -> bool:
        if not self.held or self.ended or self.is_lost():
            return False
        for key, fence in zip(self.spec.keys, self.fences, strict=True):
            words = ["LOCK.CHECK", key, self.owner.name, self.spec.mode, "FENCE", fence]
            if await self.ask_of_hold(words, (await self.find()).patience) is None:
                self.lose()
                return False
        return True

    async def locked(self) -> bool:
        """Is one of the keys held by anybody, or waited for?"""
        try:
            limit = (await self.find()).patience
            found = [await self.ask(["LOCK.INFO", key, "COUNT", 0], limit) for key in self.spec.keys]
        finally:
            self.end()
        return any(found)

    async def guard(self, command: Sequence[Any], key: _Key | None) -> Any:
        if self.spec.mode == "READ":
            raise LockError(f"{self.spec.title}: guard needs an exclusive lock", self.spec.name)
        if self.is_lost():
            raise LockLost(f"{self.spec.title} is lost: nothing was run", self.spec.name) from self.failure
        at = 0 if key is None else self.spec.keys.index(key)
        words = ["LOCK.GUARD", self.spec.keys[at], self.owner.name, self.fences[at], *command]
        reply = await self.ask(words, 2 * (await self.find()).patience)
        if reply is None:
            self.lose()
            raise LockLost(f"{self.spec.title} is lost: nothing was run", self.spec.name) from self.failure
        return reply[1]

    # --- the state ---

    def claim(self, lock: _Lock) -> None:
        """From here on it is the lock's acquisition, and its owner has these keys."""
        with _mutex:
            if lock._hold is not None and not lock._hold.ended and lock._hold.pid == self.pid:
                text = "is held already, or waited for: another holder needs another Lock"
                if lock._hold.is_lost():
                    text = "was lost, and must be released first"
                raise LockError(f"{self.spec.title} {text}", self.spec.name)
            if self.owner.keys & self.names:
                raise LockError(f"{self.spec.title}: the outer lock has this key already", self.spec.name)
            self.owner.keys |= self.names
            self.claimed = True
            lock._hold = self

    def confirms(self, reply: Any) -> bool:
        return (tuple(reply) if isinstance(reply, list) else (reply,)) == self.fences

    def keep(self, sent: float) -> None:
        """The server had the request after it was sent, so the lease ends no sooner than this."""
        self.valid_until = sent + self.spec.lease - _margin(self.spec.lease)
        self.due = sent + self.spec.lease / 3
        self.pauses, self.failure = _pauses(), None

    def is_lost(self) -> bool:
        if self.held and not self.ended and (self.pid != os.getpid() or _now() >= self.valid_until):
            self.lose()
        return self.lost

    def lose(self) -> None:
        """Signals the loss, unless it was released meanwhile."""
        with _mutex:
            self.lost = self.lost or not self.ended
            self.stop_renewal()
        self.event.set()

    def stop(self) -> None:
        with _mutex:
            self.ended = True
            self.stop_renewal()
        self.event.set()

    def stop_renewal(self) -> None:
        if self.server is not None:
            self.server.holds.discard(self)

    def end(self) -> None:
        """It has nothing on the server any more, or the renewer sees to it."""
        self.stop()
        if self.claimed:
            self.owner.keys -= self.names
            self.claimed = False
        if self.owes_until > -math.inf and self.server is not None and not self.server.over:
            self.due = _now() + next(self.pauses)
            with _mutex:
                self.server.holds.add(self)
            self.server.attend(self.due)
            return
        server, self.server = self.server, None
        if server is not None:
            server.leave()

    # --- its server ---

    async def find(self) -> _Server:
        if self.server is None:
            self.server = self.kind.enter(await self.kind.home(self.spec.client, self.spec.keys[0]))
        return self.server

    async def follow(self) -> None:
        """In a cluster: goes where the keys are now."""
        if not hasattr(self.spec.client, "nodes_manager"):
            return
        with contextlib.suppress(Exception):
            source = await self.kind.home(self.spec.client, self.spec.keys[0], refresh=True)
            former = self.server
            if former is not None and former.source is not source:
                self.server = self.kind.enter(source)
                with _mutex:
                    if self in former.holds:
                        former.holds.discard(self)
                        self.server.holds.add(self)
                former.leave()
                self.server.attend(self.due)

    async def ask_of_hold(self, words: list[Any], limit: float, *, fresh: bool = False) -> Any:
        """The reply of a command that is about the hold; None too if the key is no lock any more."""
        try:
            return await self.ask(words, limit, fresh=fresh)
        except errors.RedisError as error:
            if str(error).startswith("WRONGTYPE"):
                return None
            raise

    async def ask(
        self, words: list[Any], limit: float, *, block: float = 0, keep: bool = False, fresh: bool = False
    ) -> Any:
        """The reply to a request, wherever in a cluster the keys are now."""
        asked: errors.AskError | None = None
        for _ in range(3):
            if asked is None:
                server = await self.find()
            else:
                server = self.kind.enter(await self.kind.home(self.spec.client, self.spec.keys[0], asked=asked))
            try:
                if keep:
                    self.request, self.asked = None, True
                request = await server.send(words, limit, fresh=fresh, asking=asked is not None)
                if keep:
                    self.request = request
                return await request.reply(limit + block)
            except errors.AskError as error:
                if not hasattr(self.spec.client, "nodes_manager"):
                    raise
                last, moved = error, isinstance(error, errors.MovedError)
            finally:
                if asked is not None:
                    server.leave()
            asked = None if moved else last
            if moved:
                await self.follow()
        raise last


def _margin(lease: float) -> float:
    """What is taken from a lease for clocks that run at other speeds."""
    return max(lease / 100, 0.1)


def _check_wait(seconds: float | None) -> None:
    if seconds is not None and not seconds >= 0:
        raise ValueError("wait must be 0 or more, or None for as long as it takes")


def _wait_of(wait: float | None, blocking: bool | None, blocking_timeout: float | None) -> float | None:
    """How long an acquisition waits: as the lock says, but for what the call says."""
    _check_wait(blocking_timeout)
    if blocking is False:
        return 0.0
    if blocking_timeout is not None:
        return blocking_timeout
    return None if blocking and wait == 0 else wait


def _bytes(key: _Key) -> bytes:
    return key.encode() if isinstance(key, str) else key


# --- What an application uses ---------------------------------------------------------------------------------------


class _Lock:
    """What both kinds of locks have in common."""

    _kind: type[_Server]
    _event: type[threading.Event | asyncio.Event]
    _hold: _Hold | None = None

    def __init__(
        self,
        client: Any,
        key: _Key | Sequence[_Key],
        lease: float | None = None,
        wait: float | None = None,
        *,
        shared: bool = False,
        limit: int | None = None,
        take: int = 1,
        note: str | None = None,
        within: _Lock | None = None,
        timeout: float | None = None,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        raise_on_release_error: bool = True,
        sleep: float | None = None,  # noqa: ARG002
        thread_local: bool = False,  # noqa: ARG002
    ) -> None:
        keys = (key,) if isinstance(key, str | bytes) else tuple(key)
        lease = next((seconds for seconds in (timeout, lease) if seconds is not None), 30.0)
        if not keys or len({_bytes(one) for one in keys}) < len(keys):
            raise ValueError("key must be a key, or several different ones")
        if not 1 <= lease <= 86_400 * 366:
            raise ValueError("lease must be at least a second")
        if limit is not None and (limit < 1 or shared or len(keys) > 1):
            raise ValueError("limit must be 1 or more, is for one key alone, and not with shared")
        if not 1 <= take <= (limit or 1):
            raise ValueError("take must be from 1 to limit")
        _check_wait(wait)
        _check_wait(blocking_timeout)
        self._spec = _Spec(client, keys, float(lease), shared, limit, take, note)
        self._wait = 0.0 if not blocking else wait if blocking_timeout is None else blocking_timeout
        self._within, self._raises = within, raise_on_release_error

    def __del__(self) -> None:
        if self._hold is not None:
            self._hold.abandoned = True  # nobody can release it any more, so nobody renews it either

    def __repr__(self) -> str:
        hold, state = self._hold, "not acquired"
        if hold is not None:
            if hold.is_lost():
                state = "lost"
            elif hold.ended:
                state = "released" if hold.held else state
            else:
                state = "held" if hold.held else "waiting"
        return f'<{type(self).__name__} "{self._spec.name}": {state}>'

    @property
    def fence(self) -> int:
        """The fence of the last acquisition: each is higher than all before it. Send it along with what you write."""
        (fence,) = self.fences
        return fence

    @property
    def fences(self) -> tuple[int, ...]:
        """The fences of a lock of several keys, in their order."""
        return self._last().fences

    @property
    def owner(self) -> str | None:
        """The name under which the server knows the last acquisition."""
        return None if self._hold is None else self._hold.owner.name

    @property
    def lost(self) -> bool:
        """Was the lock lost before it was released? Once true it stays so, until the next acquisition."""
        return self._hold is not None and self._hold.is_lost()

    def _begin(self, blocking: bool | None, blocking_timeout: float | None) -> tuple[_Hold, float | None]:
        """A new acquisition, and how long to wait for it."""
        return self._probe(), _wait_of(self._wait, blocking, blocking_timeout)

    def _probe(self) -> _Hold:
        if self._within is None:
            return _Hold(self._spec, _Owner(), self._kind, self._event())
        outer = self._within._held()
        if outer.is_lost():
            raise LockLost(f"the outer {outer.spec.title} is lost", outer.spec.name) from outer.failure
        return _Hold(self._spec, outer.owner, self._kind, self._event())

    def _not_acquired(self) -> LockNotAcquired:
        text = f"was not acquired: it was not free within {self._wait:g} s"
        return LockNotAcquired(f"{self._spec.title} {text}", self._spec.name)

    def _last(self) -> _Hold:
        if self._hold is None or not self._hold.fences:
            raise LockError(f"{self._spec.title} was not acquired yet", self._spec.name)
        return self._hold

    def _held(self) -> _Hold:
        if self._hold is None or not self._hold.held or self._hold.ended:
            text = "is not held: it was not acquired, or is released already"
            raise LockError(f"{self._spec.title} {text}", self._spec.name)
        return self._hold


class Lock(_Lock):
    """A lock of one key or several, for threads. `AsyncLock` has the same arguments."""

    _kind = _ThreadServer
    _event = threading.Event

    def acquire(self, *, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Takes the lock, or waits for it. True when it is held; False when the wait was over first.

        `blocking=False` tries once; `blocking_timeout` replaces `wait` for this once.
        """
        hold, wait = self._begin(blocking, blocking_timeout)
        return _run(hold.acquire(self, wait))

    def release(self) -> None:
        """Releases the lock. Raises `LockLost` if it was lost before."""
        _run(self._held().release())

    def check(self) -> bool:
        """Asks the server whether the lock is held now, under its fence."""
        return self._hold is not None and bool(_run(self._hold.check()))

    def owned(self) -> bool:
        """The same as `check()`, as redis-py calls it."""
        return self.check()

    def locked(self) -> bool:
        """Does anybody hold the lock, or wait for it? Of several keys: one of them?"""
        return _run(self._probe().locked())

    def guard(self, *command: Any, key: _Key | None = None) -> Any:
        """Runs a command on the server, in one step with the check that the lock is held under this fence.

        Returns the reply of the command. Raises `LockLost` if the lock is not held: then nothing was run. For exclusive
        locks only: a shared lock or a semaphore raises `LockError`. `key` names the key of several whose fence counts,
        else it is the first. In a cluster the command's keys must have the slot of the lock. After a network error
        nobody knows whether it was run.
        """
        return _run(self._held().guard(command, key))

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost (True), or is released, or `timeout` is over (False)."""
        hold, until = self._last(), math.inf if timeout is None else _now() + timeout
        while not (hold.is_lost() or hold.ended) and _now() < until:
            hold.event.wait(max(0, min(hold.valid_until, until) - _now()))
        return hold.lost

    def __enter__(self) -> Lock:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Exception as failure:
            if error is None and (self._raises or not isinstance(failure, LockError)):
                raise


class AsyncLock(_Lock):
    """A lock of one key or several, for asyncio, with a client of `redis.asyncio`. See `Lock` for the arguments."""

    _kind = _TaskServer
    _event = asyncio.Event

    async def acquire(self, *, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Takes the lock, or waits for it. True when it is held; False when the wait was over first.

        `blocking=False` tries once; `blocking_timeout` replaces `wait` for this once.
        """
        hold, wait = self._begin(blocking, blocking_timeout)
        return await hold.acquire(self, wait)

    async def release(self) -> None:
        """Releases the lock. Raises `LockLost` if it was lost before. It does so even if the task is cancelled."""
        await self._held().release()

    async def check(self) -> bool:
        """Asks the server whether the lock is held now, under its fence."""
        return self._hold is not None and await self._hold.check()

    async def owned(self) -> bool:
        """The same as `check()`, as redis-py calls it."""
        return await self.check()

    async def locked(self) -> bool:
        """Does anybody hold the lock, or wait for it? Of several keys: one of them?"""
        return await self._probe().locked()

    async def guard(self, *command: Any, key: _Key | None = None) -> Any:
        """Runs a command if the lock is held: see `Lock.guard`."""
        return await self._held().guard(command, key)

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost (True), or is released, or `timeout` is over (False)."""
        hold, until = self._last(), math.inf if timeout is None else _now() + timeout
        while not (hold.is_lost() or hold.ended) and _now() < until:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(hold.event.wait(), max(0, min(hold.valid_until, until) - _now()))
        return hold.lost

    async def __aenter__(self) -> AsyncLock:
        if not await self.acquire():
            raise self._not_acquired()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except Exception as failure:
            if error is None and (self._raises or not isinstance(failure, LockError)):
                raise
