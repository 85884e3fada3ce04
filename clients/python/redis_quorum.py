"""A lock over a majority of independent servers with the module redis_lock: `QuorumLock`, and `AsyncQuorumLock`.

    clients = [redis.Redis(host) for host in ("a", "b", "c")]
    with QuorumLock(clients, "report") as lock:
        write_report(lock.fence)

The lock is held while a majority of the servers hold it for this owner, so it outlives any minority of them. Its fence
rises from holder to holder, whichever majority each of them had. All clients of one lock name the servers in one order.

The use is that of `redis_lock.Lock`. Needs redis_lock.py beside it: copy both, or install them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import math
import os
import random
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import redis
import redis.asyncio
from redis import exceptions as errors

from redis_lock import (
    _LINGER,
    _PATIENCE,
    _QUEUE,
    _SLICE,
    _TICK,
    Deadlock,
    LockError,
    LockLost,
    LockNotAcquired,
    _again,
    _bytes,
    _check_wait,
    _Key,
    _mutex,
    _now,
    _Owner,
    _pauses,
    _servers,
    _TaskServer,
    _wait_of,
)

__all__ = ["AsyncQuorumLock", "Deadlock", "LockError", "LockLost", "LockNotAcquired", "NoQuorum", "QuorumLock"]

_T = TypeVar("_T")
_AHEAD = 100_000  # how far a proposed fence is ahead of the wall clock, in microseconds
_PENDING = 3  # requests to acquire that may be without an answer at one node, over a connection each
_SLOW = 0.25  # how long the first node may take until the line is at the next
_LEAST_NODES = 3
_CONNECT = 0.5  # the least time that a connection may take
_REFUSALS = (
    errors.ResponseError,
    errors.BusyLoadingError,
    errors.AuthenticationError,
    errors.AuthorizationError,
)  # answers of a server that did nothing


class NoQuorum(LockError):
    """The servers are no nodes of a quorum: one is named twice, or is a replica, or they belong together."""


def _late(error: Exception) -> bool:
    """Does the clock of this node lag too far behind the fence that it was asked for?"""
    return isinstance(error, errors.ResponseError) and "MINFENCE is more than" in str(error)


async def _ring(bell: asyncio.Event, seconds: float) -> None:
    """Until the bell rings, or the time is up. `wait_for` may swallow a cancellation, before Python 3.12."""
    rung = asyncio.get_running_loop().create_task(bell.wait())
    try:
        await asyncio.wait({rung}, timeout=max(0, seconds))
    finally:
        rung.cancel()


# --- Requests: connections to a node ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Identity:
    """Which server answers, by its INFO."""

    run: str
    group: str
    role: str
    cluster: bool

    @classmethod
    async def of(cls, connection: Any) -> _Identity | None:
        """None if the user may not ask."""
        await connection.send_command("INFO", "server", "replication", "cluster")
        try:
            reply = await connection.read_response(disable_decoding=True)
        except errors.NoPermissionError:
            return None
        text = reply.decode() if isinstance(reply, bytes) else reply
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return cls(
            fields.get("run_id", ""),
            fields.get("master_replid", ""),
            fields.get("role", ""),
            fields.get("cluster_enabled") == "1",
        )


_identities: weakref.WeakKeyDictionary[Any, _Identity | None] = weakref.WeakKeyDictionary()


class _Ask:
    """A request that may have been sent."""

    def __init__(self, wire: _Wire) -> None:
        self.wire = wire
        self.sent: float | None = None  # when it began to be sent
        self.answered = False
        self.wanted = True
        self.task: asyncio.Task[Any]

    async def reply(self, limit: float) -> Any:
        """The reply, if it comes within `limit` seconds from when it was sent."""
        begin = _now()
        while not self.task.done():
            left = begin + _PATIENCE - _now() if self.sent is None else self.sent + limit - _now()
            if left <= 0:
                self.wire.late = True
                raise errors.TimeoutError("the server did not answer in time")
            # The clock counts suspended time, and that of the event loop does not.
            await asyncio.wait({self.task}, timeout=min(left, 0.05 if self.sent is None else _SLICE))
        if self.task.cancelled():
            raise errors.ConnectionError("the request was given up")
        return self.task.result()

    def drop(self) -> None:
        """Nobody waits for the reply any more."""
        if self.wanted:
            self.wanted = False
            if self.sent is None:
                self.task.cancel()
            self.wire.drop()


class _Wire:
    """A connection to a node, for requests that the node must deal with in this order."""

    def __init__(self, server: _TaskServer, *, own: bool = False) -> None:
        self.server, self.own = server, own  # its own: that of a request that waits
        self.connection: Any = None
        self.opening: asyncio.Task[None] | None = None
        self.writing = asyncio.Lock()
        self.last: asyncio.Future[None] | None = None  # done when the reply to the last request was read
        self.asks: set[_Ask] = set()  # those whose replies were not read
        self.late = self.broken = False

    @classmethod
    def to(cls, server: _TaskServer) -> _Wire:
        """The one that others use as well, as long as it answers in time."""
        wire = _wires.get(server)
        if wire is None or wire.late or wire.broken:
            wire = _wires[server] = cls(server)
        return wire

    def ask(self, words: Sequence[Any], meet: Callable[[_Identity], None] | None = None) -> _Ask:
        ask = _Ask(self)
        self.asks.add(ask)
        ask.task = self.server.task(self.exchange(ask, words, meet))
        return ask

    async def exchange(self, ask: _Ask, words: Sequence[Any], meet: Callable[[_Identity], None] | None) -> Any:
        read: asyncio.Future[None] | None = None
        try:
            async with self.writing:
                await self.connected(meet)
                before, read = self.last, asyncio.get_running_loop().create_future()
                self.last, ask.sent = read, _now()
                await self.connection.send_command(*words)
            if before is not None:
                await asyncio.shield(before)
                self.check()
            reply = await self.connection.read_response()
        except _REFUSALS:
            ask.answered = ask.sent is not None
            raise
        except OSError as error:
            raise errors.ConnectionError(f"the connection broke: {error}") from error
        else:
            ask.answered = True
            return reply
        finally:
            self.asks.discard(ask)
            self.broken = self.broken or (ask.sent is not None and not ask.answered)
            if read is not None and not read.done():
                read.set_result(None)
            if not self.asks:
                await self.end()

    async def connected(self, meet: Callable[[_Identity], None] | None) -> None:
        self.check()
        if self.opening is None:
            self.opening = self.server.task(self.connect())
        await asyncio.shield(self.opening)
        self.check()
        identity = _identities[self.connection]
        if identity is not None and meet is not None:
            meet(identity)

    async def connect(self) -> None:
        try:
            connection = await self.server.pick()
            if connection is None:
                source = self.server.source
                connection = source.connection_class(**self.server.settings(_PATIENCE) | {"socket_timeout": None})
            self.connection = connection
            await connection.connect()
            if connection not in _identities:
                _identities[connection] = await _Identity.of(connection)
        except BaseException:
            self.broken = True
            if self.connection is not None:
                await self.connection.disconnect(nowait=True)
            raise

    def check(self) -> None:
        if self.broken:
            raise errors.ConnectionError("the connection broke")

    def drop(self) -> None:
        """Ends when nobody waits for a reply any more."""
        if not any(ask.wanted for ask in self.asks):
            for ask in self.asks:
                ask.task.cancel()

    async def end(self) -> None:
        """All replies are read, or none comes any more."""
        if _wires.get(self.server) is self:
            del _wires[self.server]
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()
        elif self.connection is not None:
            if self.broken or not self.connection.is_connected:
                await self.connection.disconnect(nowait=True)
            else:
                self.server.give(self.connection)
        self.broken = True


_wires: weakref.WeakKeyDictionary[_TaskServer, _Wire] = weakref.WeakKeyDictionary()


class _Source:
    """The settings of a blocking client, for connections of asyncio."""

    classes: ClassVar[dict[Any, Any]] = {
        redis.Connection: redis.asyncio.Connection,
        redis.SSLConnection: redis.asyncio.SSLConnection,
        redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
    }
    known: ClassVar[weakref.WeakKeyDictionary[Any, _Source]] = weakref.WeakKeyDictionary()

    def __init__(self, pool: Any) -> None:
        kwargs = dict(pool.connection_kwargs)
        self.connection_class = self.classes.get(pool.connection_class)
        if self.connection_class is None:
            if isinstance(pool, redis.asyncio.ConnectionPool):
                raise ValueError("clients of asyncio are for AsyncQuorumLock")
            raise ValueError(f"clients with {pool.connection_class.__name__} are no nodes of a quorum")
        for name in ("redis_connect_func", "parser_class", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"):
            if kwargs.pop(name, None):
                raise ValueError(f"clients with {name} are for AsyncQuorumLock only")
        for name in ("command_packer", "ssl_ocsp_context", "ssl_ocsp_expected_cert"):
            kwargs.pop(name, None)
        self.connection_kwargs = kwargs

    @classmethod
    def of(cls, pool: Any) -> _Source:
        """One for each pool, so that locks share connections."""
        with _mutex:
            if pool not in cls.known:
                cls.known[pool] = cls(pool)
            return cls.known[pool]


def _address(source: Any) -> str:
    settings = source.connection_kwargs
    return settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


# --- The contract ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What a lock asks for, and of which nodes."""

    sources: tuple[Any, ...]
    key: _Key
    lease: float
    shared: bool
    note: str | None

    @property
    def quorum(self) -> int:
        return len(self.sources) // 2 + 1

    @property
    def name(self) -> str:
        return _bytes(self.key).decode(errors="replace")

    @property
    def title(self) -> str:
        return f'lock "{self.name}"'

    @property
    def margin(self) -> float:
        """What is taken from a lease for clocks that run at other speeds."""
        return max(self.lease / 100 + 0.002, 0.1)

    @property
    def limit(self) -> float:
        """How long a node may take to answer."""
        return min(max(self.lease / 20, 0.1), _PATIENCE)

    @property
    def mode(self) -> str:
        return "READ" if self.shared else "WRITE"

    def acquire(self, owner: str, least: int | None, block: float | None, queue: float | None) -> list[Any]:
        words: list[Any] = ["LOCK.RW", self.key, owner, "READ"] if self.shared else ["LOCK.ACQUIRE", self.key, owner]
        words += ["PX", int(self.lease * 1000), "RETRY", 1]  # RETRY: a request that is sent twice counts once
        if block is not None:
            words += ["BLOCK", max(1, int(block * 1000))]
        if queue is not None:
            words += ["QUEUE", max(1, int(queue * 1000))]
        if least is not None:
            words += ["MINFENCE", least]
        return words if self.note is None else [*words, "NOTE", self.note]

    def extend(self, owner: str, fence: int, least: int | None) -> list[Any]:
        words = ["LOCK.EXTEND", self.key, owner, "PX", int(self.lease * 1000), "FENCE", fence]
        return words if least is None else [*words, "MINFENCE", least]

    def release(self, owner: str, fence: int | None) -> list[Any]:
        words: list[Any] = ["LOCK.RELEASE", self.key, owner, "ALL"]
        return words if fence is None else [*words, "FENCE", fence]


class _QuorumOwner(_Owner):
    """Who holds locks of a quorum, or waits for them."""

    def __init__(self) -> None:
        super().__init__()
        # Nodes that may still read a release of all that this owner has there: asking them again would be in vain.
        self.doubtful: set[tuple[bytes, int]] = set()


class _Part:
    """One node of an acquisition: what it is asked for, and what it has granted."""

    def __init__(self, hold: _Hold, at: int) -> None:
        self.hold, self.spec, self.owner, self.at = hold, hold.spec, hold.owner, at
        self.source = hold.spec.sources[at]
        self.server: Any = _TaskServer.enter(self.source)
        self.fence: int | None = None  # that of its hold there
        self.end = -math.inf  # until when the node surely keeps it
        self.due = math.inf  # when its renewer looks at it again
        self.missed: float | None = None  # when its hold was found to be gone, and is not won back yet
        self.pauses = _pauses()
        self.task: asyncio.Task[Any] | None = None  # what it does for the acquisition
        self.failure: Exception | None = None  # why the last request failed
        self.refused = False  # somebody else holds it there, or waits for it
        self.stale = False  # the grant is old: it waited
        self.unsure = False  # the fence may be another one: no answer came
        self.placed = False  # it may stand in the queue there
        self.doubt = False  # a request to acquire was sent over a connection that broke
        self.asking: list[_Ask] = []  # requests to acquire without an answer
        self.releases: list[_Ask] = []
        self.owes_until = -math.inf  # until when the renewer repeats the release
        self.closed = self.over = False

    @property
    def busy(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def answered(self) -> bool:
        return self.refused or self.fence is not None

    @property
    def barred(self) -> bool:
        return (_bytes(self.spec.key), id(self.source)) in self.owner.doubtful

    def start(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.task = self.server.task(self.run(steps))

    async def run(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self.failure = None
            await steps()
        except Exception as error:  # noqa: BLE001 - the acquisition judges it
            self.failure = error
        finally:
            self.task = None
            self.hold.bell.set()
            self.keep()

    # --- requests ---

    async def request(
        self, words: list[Any], limit: float, *, acquires: bool = False, waits: bool = False, places: bool = False
    ) -> tuple[Any, float]:
        """The reply, and when the request was sent. A request that `waits` has a connection of its own."""
        if acquires and self.closed:
            raise errors.ConnectionError("it is released already")
        ask = (_Wire(self.server, own=True) if waits else _Wire.to(self.server)).ask(
            words, self.meet if acquires else None
        )
        if acquires:
            self.asking.append(ask)
        try:
            reply = await ask.reply(limit)
        except BaseException as error:
            if ask.sent is None or not acquires:
                ask.drop()
            if isinstance(error, asyncio.CancelledError) and ask.answered:
                self.unsure = True  # nobody has looked at the answer
            raise
        finally:
            self.placed = self.placed or (places and ask.sent is not None)
            self.settle(ask)
        assert ask.sent is not None  # noqa: S101 - it was answered
        return reply, ask.sent

    def settle(self, ask: _Ask) -> None:
        """Forgets a request to acquire that can have no effect any more that is not known."""
        if ask in self.asking and (ask.answered or ask.sent is None or ask.task.done()):
            self.asking.remove(ask)
            self.doubt = self.doubt or not (ask.answered or ask.sent is None)

    def meet(self, identity: _Identity) -> None:
        """Compares the node with the other ones."""
        others = {at: other for at, other in self.hold.identities.items() if at != self.at}
        self.hold.identities[self.at] = identity
        problem = None
        if identity.cluster:
            problem = "is a node of a cluster"
        elif identity.role == "slave":
            problem = "is a replica"
        for at, other in others.items():
            if problem is None and identity.run == other.run:
                problem = f"is the same server as {_address(self.spec.sources[at])}"
            elif problem is None and identity.group == other.group:
                problem = f"replicates with {_address(self.spec.sources[at])}"
        if problem is not None:
            text = f"{self.spec.title}: no quorum: {_address(self.source)} {problem}"
            raise NoQuorum(text, self.spec.name)

    async def take(self, least: int | None, *, block: float | None = None, queue: float | None = None) -> None:
        """Asks for the lock."""
        words = self.spec.acquire(self.owner.name, least, block, queue)
        places = queue is not None
        reply, sent = await self.until_its_clock_follows(
            words, self.spec.limit, block or 0, acquires=True, places=places
        )
        self.heed(reply, sent)

    async def extend(self, least: int | None, limit: float) -> None:
        """Renews the lease, and raises the fence."""
        assert self.fence is not None  # noqa: S101 - the callers look
        words = self.spec.extend(self.owner.name, self.fence, least)
        self.unsure = least is not None
        try:
            reply, sent = await self.until_its_clock_follows(words, limit)
        except Exception as error:
            if isinstance(error, errors.ResponseError):
                self.unsure = False
            if not str(error).startswith("WRONGTYPE"):
                raise
            reply, sent = None, 0
        self.heed(reply, sent)

    async def until_its_clock_follows(
        self, words: list[Any], limit: float, block: float = 0, *, acquires: bool = False, places: bool = False
    ) -> tuple[Any, float]:
        """Repeats a request that is refused since its fence is too far ahead of the node's clock."""
        until = _now() + limit
        while True:
            try:
                waits = block > 0
                return await self.request(words, limit + block, acquires=acquires, waits=waits, places=places)
            except errors.ResponseError as error:
                if not _late(error) or _now() >= until:
                    raise
            await asyncio.sleep(limit / 8)

    def heed(self, reply: Any, sent: float) -> None:
        """Takes note of what the node has granted, or not."""
        with _mutex:
            self.refused = reply is None
            over = self.hold.held and (self.hold.ended or self.hold.is_lost())
            self.fence, self.unsure = reply, False
            if over:
                return  # what is lost stays lost; the fence is for the release
            self.end = -math.inf if reply is None else sent + self.spec.lease - self.spec.margin
            if reply is not None:
                self.placed = False
                self.stale = _now() - sent > self.spec.limit
                self.due = sent + self.spec.lease / 3
                self.hold.seen = max(self.hold.seen, reply)

    # --- renewal: by the renewer of the server alone ---

    def keep(self) -> None:
        """Lets it be renewed."""
        hold = self.hold
        with _mutex:
            if self.closed or self.busy or not hold.held or hold.ended or hold.lost:
                return
            if self.fence is None:
                self.due = _now() + next(self.pauses)
            elif self.fence < hold.fence:
                self.due = _now()
            self.server.holds.add(self)
        self.server.attend(self.due)

    async def renew(self, limit: float) -> None:
        hold = self.hold
        if self.owes_until > -math.inf:
            await self.repeat_release(limit)
            return
        if hold.abandoned:
            hold.stop()
            hold.end()
        if hold.ended or hold.is_lost():
            self.server.holds.discard(self)
            return
        for ask in tuple(self.asking):
            self.settle(ask)
        known = self.fence is not None and not self.unsure and _now() < self.end
        self.due = _now() + self.spec.lease / 3
        try:
            if known:
                await self.extend(hold.fence if self.fence < hold.fence else None, limit)  # type: ignore[operator]
                if self.fence is None:
                    self.miss()
                else:
                    hold.believe()
            elif self.barred or not self.may_ask_again():
                self.due = _now() + next(self.pauses)
            else:
                # It may have been somebody else's meanwhile, so the lease is not extended but asked for.
                self.unsure = self.unsure or self.fence is not None
                self.fence, self.end = None, -math.inf
                await self.take(hold.fence)
        except Exception as error:  # noqa: BLE001 - whatever it was: it is repeated
            hold.failure = error
            self.due = _now() + next(self.pauses)
            return
        if self.fence is not None:
            self.pauses, self.missed = _pauses(), None
        elif known is False:
            self.due = min(self.due, _now() + next(self.pauses))

    def kept_since(self, moment: float) -> bool:
        """Has it granted a request that was sent then or later?"""
        return self.end >= moment + self.spec.lease - self.spec.margin

    def miss(self) -> None:
        """Its hold is gone. It is not won back before the others were asked, which have until then."""
        self.missed = _now()
        self.due = self.missed + self.spec.lease / 3
        self.server.attend(self.due)
        self.hold.doubt()

    def may_ask_again(self) -> bool:
        """Not while an answer may come. After a while the connection may be one that broke without a sign."""
        newest = max((ask.sent or 0 for ask in self.asking), default=-math.inf)
        return len(self.asking) < _PENDING and _now() - newest >= self.spec.lease / 3

    # --- release ---

    async def give_back(self) -> bool | None:
        """Releases what it has there. True: it was held until now; False: not; None: there was nothing.

        A request to acquire without an answer is undone over its own connection: over another one, the server may read
        the release first.
        """
        self.closed = True
        self.server.holds.discard(self)
        if self.task is not None:
            self.task.cancel()
        for ask in tuple(self.asking):
            if ask.sent is None:
                ask.drop()
            self.unsure = self.unsure or ask.answered  # nobody has looked at the answer
            self.settle(ask)
        if self.barred and not self.asking and self.fence is None:
            self.finish()
            return None
        fence = None if self.unsure or self.asking or self.doubt or self.placed else self.fence
        self.releases = [ask.wire.ask(self.spec.release(self.owner.name, None)) for ask in self.asking]
        pending = tuple(self.asking)
        self.placed = self.placed or any(ask.wire.own for ask in pending)
        fresh = self.fence is not None or self.unsure or self.doubt or self.placed
        if not (fresh or pending):
            self.finish()
            return None
        mark = (_bytes(self.spec.key), id(self.source))
        if pending or self.doubt:
            self.owner.doubtful.add(mark)
        self.owes_until = _now() + self.spec.lease + _QUEUE
        was_held: bool | None = None
        try:
            if fresh:
                was_held = await self.give_back_once(fence)
            if pending:
                await asyncio.wait([ask.task for ask in (*self.releases, *pending)], timeout=self.spec.limit)
                if not all(ask.answered for ask in self.releases):
                    raise errors.TimeoutError("the server did not answer in time")  # noqa: TRY301
            if not self.doubt:
                self.owner.doubtful.discard(mark)
        except Exception:
            self.owe()
            raise
        self.finish()
        return was_held

    async def give_back_once(self, fence: int | None) -> bool | None:
        words = self.spec.release(self.owner.name, fence)
        repeated = False
        while True:
            try:
                reply, _ = await self.request(words, self.spec.limit)
            except Exception as error:
                if str(error).startswith("WRONGTYPE"):
                    return False
                if repeated or not _again(error):
                    raise
                repeated = True
            else:
                return None if fence is None else reply is not None or repeated

    def owe(self) -> None:
        """Lets the renewer repeat the release."""
        self.due = _now() + next(self.pauses)
        with _mutex:
            self.server.holds.add(self)
        self.server.attend(self.due)

    async def repeat_release(self, limit: float) -> None:
        if _now() < self.owes_until:
            self.due = _now() + next(self.pauses)
            try:
                await self.request(self.spec.release(self.owner.name, None), limit)
            except Exception:  # noqa: BLE001 - whatever it was: it is repeated
                return
            if any(not ask.task.done() for ask in self.releases):
                return
            if not self.doubt and all(ask.answered for ask in self.releases):
                self.owner.doubtful.discard((_bytes(self.spec.key), id(self.source)))
        self.finish()

    def finish(self) -> None:
        self.owes_until = -math.inf
        if not self.over:
            self.over = True
            self.server.holds.discard(self)
            for ask in (*self.releases, *self.asking):
                ask.drop()
            self.server.leave()


class _Hold:
    """One acquisition, from its first request to its end."""

    def __init__(self, spec: _Spec, outer: _QuorumOwner | None) -> None:
        self.spec, self.outer = spec, outer
        self.owner = outer or _QuorumOwner()
        self.pid = os.getpid()
        self.names = {_bytes(spec.key)}
        self.parts: list[_Part] = []
        self.identities: dict[int, _Identity] = {}
        self.bell = asyncio.Event()  # a node has answered
        self.event = asyncio.Event()  # it is lost, or has ended
        self.seen = 0  # the highest fence
        self.fence = 0
        self.failure: Exception | None = None
        self.trip = 0.01  # how long a majority took to answer
        self.claimed = self.held = self.lost = self.ended = self.abandoned = False

    # --- acquiring ---

    async def acquire(self, lock: _QuorumLock, wait: float | None) -> bool:
        """True when it is held, False when `wait` was over. Whatever else happens, nothing is left on the servers."""
        try:
            self.claim(lock)
            got = await self.rounds(wait)
        except BaseException:
            try:
                self.stop()
                await _TaskServer.shielded(self.leave)
            finally:
                self.end()
            raise
        if not got:
            self.end()
        return got

    async def rounds(self, wait: float | None) -> bool:
        until, once = math.inf if wait is None else _now() + wait, wait == 0
        pauses, attempt = _pauses(), 0
        while True:
            if self.outer is None:
                # Another one each time: a late release of the last round must not undo this one.
                self.owner = _QuorumOwner()
                self.owner.keys |= self.names
            if await self.round(until, once=once):
                return True
            error = self.reason()
            await _TaskServer.shielded(self.leave)
            if error is not None and not _again(error) and not _late(error):
                raise error
            left = until - _now()
            if left < _TICK:
                if error is not None:
                    raise error
                return False
            attempt += 1
            chance = random.random() * min(self.trip * 2**attempt, self.spec.lease / 10, 1.0)
            await asyncio.sleep(min(chance if error is None else next(pauses), left))

    async def round(self, until: float, *, once: bool) -> bool:
        """All nodes at once; then in line at the first that answers, and then the others."""
        self.parts = [_Part(self, at) for at in range(len(self.spec.sources))]
        least = self.proposal()
        for part in self.parts:
            if not part.barred:
                part.start(partial(part.take, least, queue=None if once or part.at else _QUEUE))
        first = await self.ask_all(once=once)
        if first is None:
            return False
        if self.is_agreed() and (once or not first.refused):
            return self.hold_it()
        if once:
            return first.fence is not None and await self.take_others(first, _now() + self.spec.limit)
        if first.fence is None:
            await self.leave(first)
            if not await self.wait_in_line(first, until):
                return False
            for part in self.parts:
                if part is not first:
                    self.parts[part.at] = _Part(self, part.at)
        left = max(until - _now(), self.spec.limit)
        return await self.take_others(first, _now() + min(self.spec.lease / 3, left))

    async def ask_all(self, *, once: bool) -> _Part | None:
        """Until a majority has one fence, or it is known that it is not to be had at once.

        Returns the first node that answers: in the order of the list, since the others wait in line there.
        """
        begin, patience, slow = _now(), math.inf, math.inf
        deadline = begin + self.spec.lease / 3
        while True:
            self.bell.clear()
            self.look_for_errors()
            agreed = self.is_agreed()
            if patience == math.inf and sum(part.answered for part in self.parts) >= self.spec.quorum:
                self.trip = max(_now() - begin, 0.001)
                patience = begin + 3 * self.trip + 0.005
                slow = max(patience, begin + min(_SLOW, self.spec.limit))
            first = next((part for part in self.parts if part.answered or part.busy), None)
            # A first node that is slow costs no more than two round trips where the lock is free. Where it is not,
            # there is more time to find out at which node the others wait.
            ends = patience if agreed else slow
            if first is not None and not first.answered and _now() >= ends:
                first = next((part for part in self.parts if part.answered), None)
            known = first is None or first.answered
            if not once and first is not None and first.refused:
                return first  # others stand in line there, and go first
            if agreed and (once or known):
                return first
            self.level()
            if _now() >= deadline or (known and not self.is_possible()):
                return first
            await self.ring(min(ends, deadline) if _now() < ends else deadline)

    async def wait_in_line(self, first: _Part, until: float) -> bool:
        """Waits at one node until it grants. False when the wait is over, or the node does not answer any more."""
        failed = False
        while True:
            sent = _now()
            block = max(_TICK, min(_SLICE, until - sent))
            try:
                await first.take(None, block=block, queue=_QUEUE)
            except Exception as error:  # noqa: BLE001 - it is looked at
                first.failure = error
                self.look_for_errors()
                if failed or not _again(error):
                    return False
                failed = True  # a lost connection costs no place
                await asyncio.sleep(next(_pauses()))
                continue
            failed, first.failure = False, None
            if first.fence is not None:
                return True
            # Null may come before the time is up: from a server that does not let this connection wait.
            await asyncio.sleep(max(0, sent + block - _now()))
            if _now() >= until:
                return False

    async def take_others(self, first: _Part, deadline: float) -> bool:
        """Takes the other nodes, waiting there as well, now that one has granted."""
        least, block = self.proposal(), max(_TICK, deadline - _now())
        first.stale = True
        for part in self.parts:
            if part.busy or part.barred:
                continue
            if part.fence is not None:
                part.start(partial(self.raised, part, least))
            elif part.failure is None:
                part.refused = False
                part.start(partial(part.take, least, block=block, queue=self.spec.limit))
        while True:
            self.bell.clear()
            self.look_for_errors()
            if self.is_agreed():
                return self.hold_it()
            self.level()
            if not self.is_possible() or _now() >= deadline:
                return False
            await self.ring(deadline)

    async def ring(self, until: float) -> None:
        await _ring(self.bell, until - _now())

    def proposal(self) -> int:
        return max(time.time_ns() // 1000 + _AHEAD, self.seen + 1)

    def level(self) -> None:
        """Raises the nodes that have less than the highest fence."""
        granted = [part for part in self.parts if part.fence is not None]
        if len(granted) < self.spec.quorum:
            return
        highest = max(part.fence or 0 for part in granted)
        for part in granted:
            if part.busy or part.failure is not None:
                continue
            if part.stale or (part.fence or 0) < highest:
                part.start(partial(self.raised, part, highest))

    async def raised(self, part: _Part, least: int) -> None:
        """A node that cannot be raised is released, and left out."""
        try:
            await part.extend(least, self.spec.limit)
        except Exception:
            if not part.unsure:
                former, part.fence, part.end, part.unsure = part.fence, None, -math.inf, True
                with contextlib.suppress(Exception):
                    await part.request(self.spec.release(self.owner.name, former), self.spec.limit)
                    part.unsure = False
            raise

    def agreed(self) -> int | None:
        """The fence that a majority has answered."""
        now = _now()
        fences = Counter(
            part.fence
            for part in self.parts
            if part.fence is not None and not part.unsure and not part.stale and part.end > now
        )
        fence, count = max(fences.items(), key=lambda pair: pair[1], default=(None, 0))
        return fence if count >= self.spec.quorum else None

    def is_agreed(self) -> bool:
        return self.agreed() is not None

    def is_possible(self) -> bool:
        open_ = [part for part in self.parts if part.busy or (part.fence is not None and part.failure is None)]
        return len(open_) >= self.spec.quorum

    def look_for_errors(self) -> None:
        """Raises what no other node and no other round can mend."""
        for part in self.parts:
            if isinstance(part.failure, NoQuorum):
                raise part.failure
            if str(part.failure).startswith("DEADLOCK "):
                text = f"{self.spec.title} was not acquired: {part.failure}"
                raise Deadlock(text, self.spec.name) from part.failure

    def reason(self) -> Exception | None:
        """The error for which no majority was to be had, whoever held the lock."""
        failures = [part.failure for part in self.parts if part.failure is not None]
        spare = len(self.parts) - self.spec.quorum
        if len(failures) <= spare:
            return None
        lasting = [error for error in failures if not _again(error) and not _late(error)]
        return lasting[0] if len(lasting) > spare else failures[-1]

    def hold_it(self) -> bool:
        fence = self.agreed()
        if fence is None:
            return False
        with _mutex:
            self.fence = fence
            if _now() >= self.valid_until():
                return False
            self.held = True
        for part in self.parts:
            part.keep()
        return True

    async def leave(self, but: _Part | None = None) -> dict[_Part, bool | Exception | None]:
        """Releases all nodes, or all but one. Waits for those that answer, and not for others: what they said."""
        parts = [part for part in self.parts if part is not but and not part.closed]
        sure = [part for part in parts if part.fence is not None or part.placed]
        silent = [part for part in parts if part not in sure and (part.asking or part.unsure)]
        enough = len(sure)
        if len(silent) > len(self.parts) - self.spec.quorum:
            enough += len(silent)
        enough = min(enough, self.spec.quorum)
        begin, said = _now(), dict[_Part, bool | Exception | None]()
        tasks = {part.server.task(part.give_back()): part for part in parts}
        patience = begin + 2 * self.spec.limit + _CONNECT  # each may be repeated once, over a new connection
        waiting = set(tasks)
        while waiting and _now() < patience:
            if sum(part in said for part in (*sure, *silent)) >= enough:
                patience = min(patience, begin + 3 * max(self.trip, _now() - begin) + 0.005)
                enough = len(parts) + 1
            done, waiting = await asyncio.wait(
                waiting, timeout=max(0, patience - _now()), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                said[tasks[task]] = error if isinstance(error, Exception) else task.result()
        return said

    # --- while it is held ---

    async def release(self) -> None:
        if self.pid == os.getpid():
            await _TaskServer.shielded(self.give_back)

    async def give_back(self) -> None:
        lost = self.is_lost()
        counted = {part: part.end for part in self.parts}
        self.stop()
        try:
            said = await self.leave()
        finally:
            self.end()
        now, failures = _now(), [error for error in said.values() if isinstance(error, Exception)]
        valid = [
            part
            for part, end in counted.items()
            if said.get(part) is True or (said.get(part) is not False and end > now)
        ]
        self.lost = lost or len(valid) < self.spec.quorum
        if self.lost:
            raise LockLost(f"{self.spec.title} was lost before it was released", self.spec.name) from self.failure
        unknown = [part for part, end in counted.items() if end > now and isinstance(said.get(part), Exception)]
        if len(unknown) > len(self.parts) - self.spec.quorum:
            raise failures[-1]

    async def check(self) -> bool:
        """Asks the nodes: True if a majority holds it."""
        if not self.held or self.ended or self.is_lost():
            return False
        tasks = {part.server.task(self.check_at(part)): part for part in self.parts if part.fence is not None}
        waiting, held, errors_ = set(tasks), 0, list[BaseException]()
        while waiting and held < self.spec.quorum:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is not None:
                    errors_.append(error)
                else:
                    held += task.result()
        if held >= self.spec.quorum:
            return not self.is_lost()
        self.look()
        if self.is_lost():
            return False
        if len(errors_) + held >= self.spec.quorum:
            raise errors_[-1]
        return False

    async def check_at(self, part: _Part) -> bool:
        fence = part.fence
        words = ["LOCK.CHECK", self.spec.key, self.owner.name, self.spec.mode, "FENCE", fence]
        try:
            reply, _ = await part.request(words, self.spec.limit)
        except errors.RedisError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            reply = None
        if reply is None and part.fence == fence and not part.unsure:
            with _mutex:
                part.fence, part.end = None, -math.inf
            part.miss()
        return reply is not None

    async def wait_lost(self, timeout: float | None) -> bool:
        until = math.inf if timeout is None else _now() + timeout
        while not (self.is_lost() or self.ended) and _now() < until:
            left = min(self.valid_until(), until) - _now()
            await _ring(self.event, min(left, 1.0))
        return self.lost

    # --- the state ---

    def claim(self, lock: _QuorumLock) -> None:
        """From here on it is the lock's acquisition, and its owner has this key."""
        with _mutex:
            if lock._hold is not None and not lock._hold.ended and lock._hold.pid == self.pid:
                text = "is held already, or waited for: another holder needs another QuorumLock"
                if lock._hold.is_lost():
                    text = "was lost, and must be released first"
                raise LockError(f"{self.spec.title} {text}", self.spec.name)
            if self.owner.keys & self.names:
                raise LockError(f"{self.spec.title}: the outer lock has this key already", self.spec.name)
            self.owner.keys |= self.names
            self.claimed = True
            lock._hold = self

    def valid_until(self) -> float:
        """Until when a majority surely keeps it: as long as the last but so many of the nodes."""
        ends = sorted((self.end_at(part) for part in self.parts), reverse=True)
        return ends[self.spec.quorum - 1] if len(ends) >= self.spec.quorum else -math.inf

    def end_at(self, part: _Part) -> float:
        return part.end if part.fence is not None and not part.unsure and part.fence >= self.fence else -math.inf

    def is_lost(self) -> bool:
        with _mutex:
            if self.held and not self.ended and (self.pid != os.getpid() or _now() >= self.valid_until()):
                self.lost = True
            return self.lost

    def doubt(self) -> None:
        """A node has lost its hold. Asks the others at once, so that a majority that did is no majority again."""
        for part in self.parts:
            if part.fence is not None:
                part.due = _now()
                part.server.attend(part.due)
        self.look()

    def believe(self) -> None:
        """Wins back what a node has lost, once all others have renewed theirs after that.

        A hold that is gone at all nodes is not found so everywhere at once. If the first node were asked anew at once,
        it would count again before the next one is found: the lock would seem held while another owner had it.
        """
        for part in self.parts:
            since = part.missed
            if since is not None and all(other.kept_since(since) for other in self.parts if other.fence is not None):
                part.missed, part.due = None, _now()
                part.server.attend(part.due)

    def look(self) -> None:
        """Signals a loss. In the event loop alone."""
        if self.is_lost():
            self.event.set()

    def stop(self) -> None:
        with _mutex:
            self.ended = True
            for part in self.parts:
                if part.owes_until == -math.inf:
                    part.server.holds.discard(part)
        self.event.set()

    def end(self) -> None:
        """It has nothing on the servers any more, or the renewers see to it."""
        self.stop()
        if self.claimed:
            self.owner.keys -= self.names
            self.claimed = False
        for part in self.parts:
            if not part.closed:
                part.closed = True
                part.finish()


# --- What an application uses ---------------------------------------------------------------------------------------


class _QuorumLock:
    """What both kinds of locks have in common."""

    _hold: _Hold | None = None

    def __init__(
        self,
        clients: Sequence[Any],
        key: _Key,
        lease: float = 30.0,
        wait: float | None = None,
        *,
        shared: bool = False,
        note: str | None = None,
        within: _QuorumLock | None = None,
    ) -> None:
        if isinstance(clients, Sequence) and any(hasattr(client, "nodes_manager") for client in clients):
            raise ValueError("clients must be servers, and no clusters: their nodes are no quorum")
        if not isinstance(clients, Sequence) or not all(hasattr(client, "connection_pool") for client in clients):
            raise ValueError("clients must be a list of clients of redis-py, one for each server")
        pools = [client.connection_pool for client in clients]
        if len(pools) < _LEAST_NODES:
            raise ValueError("clients must be three or more: a majority of fewer survives no failure")
        if len({id(pool) for pool in pools}) < len(pools):
            raise ValueError("clients must be different servers: one is named twice")
        if not isinstance(key, str | bytes):
            raise ValueError("key must be one key: a quorum has no locks of several")  # noqa: TRY004 - as the others
        if not 1 <= lease <= 86_400 * 366:
            raise ValueError("lease must be at least a second")
        _check_wait(wait)
        sources = tuple(self._source(pool) for pool in pools)
        self._spec = _Spec(sources, key, float(lease), shared, note)
        self._wait, self._within = wait, within

    @staticmethod
    def _source(pool: Any) -> Any:
        raise NotImplementedError

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
        return self._last().fence

    @property
    def owner(self) -> str | None:
        """The name under which the servers know the last acquisition."""
        return None if self._hold is None else self._hold.owner.name

    @property
    def lost(self) -> bool:
        """Was the lock lost before it was released? Once true it stays so, until the next acquisition."""
        return self._hold is not None and self._hold.is_lost()

    def _begin(self, blocking: bool | None, blocking_timeout: float | None) -> tuple[_Hold, float | None]:
        """A new acquisition, and how long to wait for it."""
        wait = _wait_of(self._wait, blocking, blocking_timeout)
        outer = None
        if self._within is not None:
            hold = self._within._held()
            if hold.is_lost():
                raise LockLost(f"the outer {hold.spec.title} is lost", hold.spec.name) from hold.failure
            outer = hold.owner
        return _Hold(self._spec, outer), wait

    def _not_acquired(self) -> LockNotAcquired:
        text = f"was not acquired: it was not free within {self._wait:g} s"
        return LockNotAcquired(f"{self._spec.title} {text}", self._spec.name)

    def _last(self) -> _Hold:
        if self._hold is None or not self._hold.held:
            raise LockError(f"{self._spec.title} was not acquired yet", self._spec.name)
        return self._hold

    def _held(self) -> _Hold:
        if self._hold is None or not self._hold.held or self._hold.ended:
            text = "is not held: it was not acquired, or is released already"
            raise LockError(f"{self._spec.title} {text}", self._spec.name)
        return self._hold


class AsyncQuorumLock(_QuorumLock):
    """A lock over a quorum for asyncio, with clients of `redis.asyncio`. See `QuorumLock` for the arguments."""

    @staticmethod
    def _source(pool: Any) -> Any:
        if not issubclass(pool.connection_class, redis.asyncio.connection.AbstractConnection):
            raise ValueError("clients must be of redis.asyncio")  # noqa: TRY004 - as the others
        return pool

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
        """Asks the servers whether a majority of them holds the lock now."""
        return self._hold is not None and await self._hold.check()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost (True), or is released, or `timeout` is over (False)."""
        return await self._last().wait_lost(timeout)

    async def __aenter__(self) -> AsyncQuorumLock:
        if not await self.acquire():
            raise self._not_acquired()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except Exception:
            if error is None:
                raise


# --- The same with threads: an event loop in a thread of its own serves all of them --------------------------------


class _Call(Generic[_T]):
    """Something to do in the event loop, and its result."""

    def __init__(self, steps: Callable[[], Coroutine[Any, Any, _T]]) -> None:
        self.steps = steps
        self.done = threading.Event()
        self.task: asyncio.Task[None] | None = None
        self.background: _Background | None = None
        self.submitted = self.cancelled = False
        self.result: _T
        self.error: BaseException | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        self.task = loop.create_task(self.run())
        return self.task

    async def run(self) -> None:
        try:
            if self.cancelled:
                raise asyncio.CancelledError  # noqa: TRY301
            self.result = await self.steps()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.error = error
        finally:
            self.done.set()

    def cancel(self) -> None:
        """In the event loop alone."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


class _Background:
    """The event loop of the blocking locks of this process. It ends when they have left nothing to do."""

    current: ClassVar[_Background | None] = None
    forked: ClassVar[list[_Background]] = []  # a parent's: its objects must not be finalized in the child

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ready = threading.Event()
        self.calls: deque[_Call[Any]] = deque()
        self.running: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=self.run, name="redis-lock quorum", daemon=True)
        self.loop: asyncio.AbstractEventLoop
        self.bell: asyncio.Event

    @classmethod
    def do(cls, steps: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Runs it in the loop, and waits for it. An interruption cancels it, and waits for its end as well."""
        call = _Call(steps)
        try:
            background = cls.submit(call)
            background.wait(call)
        except BaseException:
            call.cancelled = True  # before it begins, or while it runs
            if call.background is not None and call.background.ready.wait(_PATIENCE):
                with contextlib.suppress(RuntimeError):
                    call.background.loop.call_soon_threadsafe(call.cancel)
                if call.submitted:
                    call.background.wait(call)
            raise
        if call.error is not None:
            raise call.error
        return call.result

    @classmethod
    def submit(cls, call: _Call[Any]) -> _Background:
        with _mutex:
            background = cls.current
            if background is not None and background.pid != os.getpid():
                cls.forked.append(background)
                background = None
            if background is None:
                background = _Background()
                background.thread.start()
                cls.current = background
            call.background = background
            background.calls.append(call)
            call.submitted = True
        background.ready.wait()
        background.loop.call_soon_threadsafe(background.bell.set)
        return background

    def wait(self, call: _Call[Any]) -> None:
        while not call.done.wait(5):
            if not self.thread.is_alive():
                raise RuntimeError("the event loop of the locks has ended")

    def run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self.serve())

    async def serve(self) -> None:
        self.loop, self.bell = asyncio.get_running_loop(), asyncio.Event()
        self.ready.set()
        try:
            while True:
                self.bell.clear()
                while self.calls:
                    task = self.calls.popleft().begin(self.loop)
                    self.running.add(task)
                    task.add_done_callback(self.running.discard)
                with _mutex:
                    ours = (self.pid, id(self.loop))
                    if not (self.running or self.calls or any(key[:2] == ours for key in _servers)):
                        self.retire()
                        return
                await _ring(self.bell, _LINGER / 2)
        finally:
            self.retire()

    def retire(self) -> None:
        """The next call makes another one."""
        with _mutex:
            if _Background.current is self:
                _Background.current = None

    @classmethod
    def shut_down(cls) -> None:
        """At the end of the process: no lock is renewed any more."""
        background = cls.current
        if background is not None and background.pid == os.getpid() and background.ready.wait(1):

            def stop() -> None:
                for task in asyncio.all_tasks(background.loop):
                    task.cancel()

            with contextlib.suppress(RuntimeError):
                background.loop.call_soon_threadsafe(stop)
            background.thread.join(1)


atexit.register(_Background.shut_down)


class QuorumLock(_QuorumLock):
    """A lock over a majority of servers, for threads. `AsyncQuorumLock` has the same arguments."""

    @staticmethod
    def _source(pool: Any) -> Any:
        return _Source.of(pool)

    def acquire(self, *, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Takes the lock, or waits for it. True when it is held; False when the wait was over first.

        `blocking=False` tries once; `blocking_timeout` replaces `wait` for this once.
        """
        hold, wait = self._begin(blocking, blocking_timeout)
        try:
            return _Background.do(lambda: hold.acquire(self, wait))
        except BaseException:
            if hold.held and not hold.ended:  # interrupted in the moment when it was granted
                _Background.do(hold.release)
            raise

    def release(self) -> None:
        """Releases the lock. Raises `LockLost` if it was lost before."""
        hold = self._held()
        if hold.pid == os.getpid():
            _Background.do(hold.release)

    def check(self) -> bool:
        """Asks the servers whether a majority of them holds the lock now."""
        hold = self._hold
        return hold is not None and not hold.is_lost() and _Background.do(hold.check)

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost (True), or is released, or `timeout` is over (False)."""
        hold = self._last()
        return hold.is_lost() or _Background.do(lambda: hold.wait_lost(timeout))

    def __enter__(self) -> QuorumLock:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Exception:
            if error is None:
                raise
