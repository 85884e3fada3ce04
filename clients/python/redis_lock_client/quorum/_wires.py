"""The transport for a quorum: connections to a node, which several requests share."""

from __future__ import annotations

import asyncio
import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, cast

import redis
import redis.asyncio
from redis import exceptions as errors

from redis_lock_client._common import ANSWER, LOOK, mutex, now
from redis_lock_client._tasks import TaskServer
from redis_lock_client._transport import Duty

REFUSALS = (
    errors.ResponseError,
    errors.BusyLoadingError,
    errors.AuthenticationError,
    errors.AuthorizationError,
)  # answers of a server that did nothing


@dataclasses.dataclass(frozen=True)
class Identity:
    """Which server answers, by its INFO."""

    run: str
    group: str
    role: str
    cluster: bool

    @classmethod
    async def of(cls, connection: Any) -> Identity | None:
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


identities: weakref.WeakKeyDictionary[Any, Identity | None] = weakref.WeakKeyDictionary()


class Ask:
    """A request that may have been sent."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.sent: float | None = None  # when it began to be sent
        self.answered = False
        self.wanted = True
        self.task: asyncio.Task[Any]

    async def reply(self, limit: float) -> Any:
        """The reply, if it comes within `limit` seconds from when it was sent."""
        begin = now()
        while not self.task.done():
            left = begin + ANSWER - now() if self.sent is None else self.sent + limit - now()
            if left <= 0:
                self.wire.late = True
                self.wire.server.close_idle()
                raise errors.TimeoutError("the server did not answer in time")
            # The clock counts suspended time, and that of the event loop does not.
            await asyncio.wait({self.task}, timeout=min(left, 0.05 if self.sent is None else LOOK))
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


class Wire:
    """A connection to a node, for requests that the node must deal with in this order."""

    def __init__(self, server: NodeServer, *, own: bool = False) -> None:
        self.server, self.own = server, own  # its own: that of a request that waits
        self.connection: Any = None
        self.opening: asyncio.Task[None] | None = None
        self.outgoing: list[bytes] = []  # what is written in the next moment, at once
        self.writing: asyncio.Task[None] | None = None
        self.last: asyncio.Future[None] | None = None  # done when the reply to the last request was read
        self.asks: set[Ask] = set()  # those whose replies were not read
        self.late = self.broken = False

    @classmethod
    def to(cls, server: NodeServer) -> Wire:
        """The one that others use as well, as long as it answers in time."""
        wire = wires.get(server)
        if wire is None or wire.late or wire.broken:
            wire = wires[server] = cls(server)
        return wire

    def ask(self, words: Sequence[Any], meet: Callable[[Identity], None] | None = None) -> Ask:
        ask = Ask(self)
        self.asks.add(ask)
        ask.task = self.server.task(self.exchange(ask, words, meet))
        return ask

    async def exchange(self, ask: Ask, words: Sequence[Any], meet: Callable[[Identity], None] | None) -> Any:
        read: asyncio.Future[None] | None = None
        try:
            await self.connected(meet)
            before, read = self.last, asyncio.get_running_loop().create_future()
            self.last, ask.sent = read, now()
            await self.write(words)
            if before is not None:
                await asyncio.shield(before)
                self.check()
            reply = await self.connection.read_response()
        except REFUSALS:
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

    async def write(self, words: Sequence[Any]) -> None:
        """Writes the request together with all others that are due in this moment."""
        self.outgoing += self.connection.pack_command(*words)
        if self.writing is None:
            self.writing = self.server.task(self.write_all())
        await asyncio.shield(self.writing)

    async def write_all(self) -> None:
        await asyncio.sleep(0)
        data, self.outgoing, self.writing = b"".join(self.outgoing), [], None
        await self.connection.send_packed_command([data])

    async def connected(self, meet: Callable[[Identity], None] | None) -> None:
        self.check()
        if self.opening is None:
            self.opening = self.server.task(self.connect())
        await asyncio.shield(self.opening)
        self.check()
        identity = identities[self.connection]
        if identity is not None and meet is not None:
            meet(identity)

    async def connect(self) -> None:
        try:
            connection = None if self.own else await self.server.take_own()
            if connection is None:
                connection = await self.server.pick()
            if connection is None:
                connection = await self.server.open(ANSWER)
            self.connection = connection
            if connection not in identities:
                identities[connection] = await Identity.of(connection)
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
        if wires.get(self.server) is self:
            del wires[self.server]
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()
        elif self.connection is not None:
            if self.broken or not self.connection.is_connected:
                await self.connection.disconnect(nowait=True)
            else:
                self.server.give(self.connection)
        self.broken = True


wires: weakref.WeakKeyDictionary[NodeServer, Wire] = weakref.WeakKeyDictionary()


class NodeServer(TaskServer):
    """A node. Its renewer's connection is that of the wire which several requests share."""

    async def perform(self, due: list[Duty]) -> None:
        """Each is a task of its own: their requests go out together, and one that waits holds up no other."""
        for duty in due:
            self.task(cast("Renewed", duty).see_to())

    async def take_own(self) -> Any:
        with mutex:
            connection, self.own = self.own, None
        if connection is None or await self.is_open(connection):
            return connection
        self.close(connection)
        return None

    def is_busy(self) -> bool:
        return self in wires


class Renewed(Protocol):
    async def see_to(self) -> None: ...


class Source:
    """The settings of a blocking client, for connections of asyncio."""

    classes: ClassVar[dict[Any, Any]] = {
        redis.Connection: redis.asyncio.Connection,
        redis.SSLConnection: redis.asyncio.SSLConnection,
        redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
    }
    known: ClassVar[weakref.WeakKeyDictionary[Any, Source]] = weakref.WeakKeyDictionary()

    def __init__(self, pool: Any) -> None:
        kwargs = dict(pool.connection_kwargs)
        self.connection_class = self.classes.get(pool.connection_class)
        if self.connection_class is None:
            if isinstance(pool, redis.asyncio.ConnectionPool):
                raise TypeError("clients of asyncio are for AsyncQuorumLock")
            raise ValueError(f"clients with {pool.connection_class.__name__} are no nodes of a quorum")
        for name in ("redis_connect_func", "parser_class", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"):
            if kwargs.pop(name, None):
                raise ValueError(f"clients with {name} are for AsyncQuorumLock only")
        for name in ("command_packer", "ssl_ocsp_context", "ssl_ocsp_expected_cert"):
            kwargs.pop(name, None)
        self.connection_kwargs = kwargs

    @classmethod
    def of(cls, pool: Any) -> Source:
        """One for each pool, so that locks share connections."""
        with mutex:
            if pool not in cls.known:
                cls.known[pool] = cls(pool)
            return cls.known[pool]
