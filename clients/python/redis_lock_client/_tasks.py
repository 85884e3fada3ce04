"""The transport for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from redis import exceptions as errors

from redis_lock_client._common import ANSWER, LOOK, READ_ON, now
from redis_lock_client._transport import Errand, Request, Server, T, Words, is_stale

SLICES = 4  # of the time for an answer: a turn in which the application blocks the loop uses up one


class Bell:
    """As asyncio.Event, but a wait for it has a limit, and needs no task of its own.

    `asyncio.wait_for` may swallow a cancellation that comes as the event is set, before Python 3.12.
    """

    def __init__(self) -> None:
        self.rung = False
        self.waiting: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        self.rung = True
        for future in self.waiting:
            wake(future)

    def clear(self) -> None:
        self.rung = False

    def is_set(self) -> bool:
        return self.rung


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def ring(bell: Bell, seconds: float) -> None:
    """Until the bell rings, or the time is up."""
    if bell.rung or seconds <= 0:
        await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    bell.waiting.add(future)
    timer = loop.call_later(seconds, wake, future)
    try:
        await future
    finally:
        timer.cancel()
        bell.waiting.discard(future)


class TaskRequest(Request):
    def __init__(self, server: TaskServer) -> None:
        self.server = server
        self.task: asyncio.Task[Any]
        server.lent.add(self)

    def close(self) -> None:
        self.task.cancel()

    async def reply(self, limit: float) -> Any:
        begin = now()
        while not self.task.done():
            left = (begin + ANSWER if self.sent is None else max(begin, self.sent) + limit) - now()
            if left <= 0:
                self.close()
                self.server.close_idle()
                raise errors.TimeoutError("the server did not answer in time")
            # The clock counts suspended time, and that of the event loop does not.
            await asyncio.wait({self.task}, timeout=min(left, 0.05 if self.sent is None else LOOK))
        await self.peek()
        if self.task.cancelled():
            raise errors.ConnectionError("the request was given up")
        return self.task.result()

    async def peek(self) -> None:
        if self.task.done() and not self.task.cancelled():
            error = self.task.exception()
            self.answered = isinstance(error, errors.ResponseError | None)
            if error is None:
                self.result = self.task.result()

    def withdraw(self) -> bool:
        if self.sent is None:
            self.task.cancel()
        return self.sent is None

    def is_broken(self) -> bool:
        return self.task.done() and not self.answered

    async def exchange(self, words: Words | Callable[..., Words], fresh: bool, asking: bool, alone: bool) -> Any:
        server = self.server
        errand: Errand | None = None
        try:
            try:
                self.connection = connection = await server.lend(ANSWER, fresh=fresh)
            except Exception as error:
                if alone or not server.can_carry(error):
                    raise
                errand, self.sent = server.errand(words), now()
                return await errand.reply(ANSWER)
            if asking:
                await connection.send_command("ASKING")
                await connection.read_response()
            self.sent = now()
            await connection.send_command(*(words() if callable(words) else words))
            reply = await connection.read_response()
        except BaseException as error:
            if errand is not None:
                errand.close()
            if self.connection is not None:
                server.close(self.connection)
            if isinstance(error, OSError):
                raise errors.ConnectionError(f"the connection broke: {error}") from error
            raise
        else:
            server.give(connection)
            return reply
        finally:
            server.lent.discard(self)
            self.connection = None


class TaskServer(Server):
    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.loop = asyncio.get_running_loop()
        self.bell = Bell()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.subscribed: Any = None  # the connection with a subscription, while somebody reads it
        self.reading: asyncio.Task[Any] | None = None  # that has not come to its end

    @staticmethod
    def place() -> int:
        return id(asyncio.get_running_loop())

    @staticmethod
    def who() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    def start(self, steps: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.task(steps)
        task.set_name(name)
        return task

    def task(self, steps: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs it by itself. Its error is nobody's if nobody asks for its result."""
        task = asyncio.get_running_loop().create_task(steps)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def see_to_all(self, key: tuple[int, int, int]) -> None:
        try:
            await super().see_to_all(key)
        except asyncio.CancelledError:
            # `asyncio.run` cancels all tasks at its end, this one too: what they leave goes out before, for a moment.
            until = now() + READ_ON
            await asyncio.sleep(0)  # till all have been told
            while self.owes and now() < until:
                self.bell.clear()
                due, when = self.take()
                await self.perform(due)
                if not due:
                    await ring(self.bell, min(when, until) - now())
            if self.opening is not None:
                self.opening.runner.cancel()
                await asyncio.wait({self.opening.runner})
            raise

    def soon(self, call: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call)

    def is_dead(self) -> bool:
        return self.loop.is_closed()

    def abandon(self) -> None:
        connections = [connection for _, connection in self.idle] + [self.own, self.subscribed]
        connections += [request.connection for request in self.lent]
        connections += [self.late[0]] if self.late is not None else []
        self.idle, self.own, self.late = [], None, None
        for connection in filter(None, connections):
            writer, connection._writer, connection._reader = connection._writer, None, None
            with contextlib.suppress(Exception):
                writer.transport.abort()  # its loop is closed, so it does not close the socket
            with contextlib.suppress(Exception):
                sock = writer.get_extra_info("socket")
                getattr(sock, "_sock", sock).close()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.clear()

    @staticmethod
    def event() -> Bell:
        return Bell()

    @staticmethod
    async def ring(bell: Bell, seconds: float) -> None:
        await ring(bell, seconds)

    async def open(self, limit: float, **settings: Any) -> Any:
        connection = self.source.connection_class(**self.settings(limit) | {"socket_timeout": None} | settings)
        opening = self.task(connection.connect())
        try:
            await asyncio.wait({opening}, timeout=limit)
            if not opening.done():
                raise errors.TimeoutError("the server did not answer in time")  # noqa: TRY301
            opening.result()
        except BaseException as error:
            opening.cancel()
            self.close(connection)
            if isinstance(error, OSError):
                raise errors.ConnectionError(f"the connection broke: {error}") from error
            raise
        return connection

    async def is_open(self, connection: Any) -> bool:
        try:
            readable = getattr(connection, "can_read", None) or connection.can_read_destructive
            return connection.is_connected and not await readable()
        except (errors.RedisError, OSError):
            return False

    @staticmethod
    def is_connected(connection: Any) -> bool:
        return bool(connection.is_connected)

    def close(self, connection: Any) -> None:
        with contextlib.suppress(Exception):
            connection._close()

    async def exchange(self, connection: Any, data: bytes, count: int, replies: list[Any], limit: float) -> None:
        task = self.task(self.write_and_read(connection, data, count, replies))
        try:
            for _ in range(SLICES):
                await asyncio.wait({task}, timeout=limit / SLICES)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})  # whoever reads next is alone
                raise errors.TimeoutError("the server did not answer in time")
            task.result()
        finally:
            task.cancel()

    async def write_and_read(self, connection: Any, data: bytes, count: int, replies: list[Any]) -> None:
        try:
            await connection.send_packed_command([data])
            for _ in range(count):
                try:
                    replies.append(await connection.read_response(disconnect_on_error=False))
                except errors.ResponseError as error:
                    replies.append(error)
        except OSError as error:
            raise errors.ConnectionError(f"the connection broke: {error}") from error

    async def write(self, connection: Any, words: Words) -> None:
        self.subscribed = connection
        await connection.send_command(*words)

    async def read(self, connection: Any, seconds: float) -> Any:
        # A task that is not cancelled: the reply may be half read when the time is up.
        if self.reading is None:
            self.reading = self.task(connection.read_response(disable_decoding=True))
        await asyncio.wait({self.reading}, timeout=seconds)
        if not self.reading.done():
            return None
        read, self.reading = self.reading, None
        return read.result()

    def end_reading(self, connection: Any) -> None:
        if self.reading is not None:
            self.reading.cancel()
        self.reading = self.subscribed = None
        self.close(connection)

    def request(self) -> TaskRequest:
        return TaskRequest(self)

    async def post(
        self,
        request: TaskRequest,
        words: Words | Callable[..., Words],
        limit: float,  # noqa: ARG002 - that of the reply includes it
        *,
        fresh: bool = False,
        asking: bool = False,
        alone: bool = False,
    ) -> None:
        request.task = self.task(request.exchange(words, fresh, asking, alone))

    @staticmethod
    def tell(call: Callable[[], Any]) -> None:
        result = call()
        if inspect.iscoroutine(result):
            task = asyncio.get_running_loop().create_task(result)
            _told.add(task)
            task.add_done_callback(_told.discard)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @staticmethod
    async def shielded(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        cancelled: asyncio.CancelledError | None = None
        for _ in range(2):
            task = asyncio.get_running_loop().create_task(attempt())
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError as error:
                    cancelled = error
            if not task.cancelled():
                break
            # `asyncio.run` cancels all tasks at its end, this one too: once more, since nothing tells how far it came.
        if cancelled is None or task.cancelled():
            return task.result()
        task.exception()
        raise cancelled

    @staticmethod
    async def home(client: Any, key: Any, *, since: float | None = None, asked: errors.AskError | None = None) -> Any:
        if not hasattr(client, "nodes_manager"):
            return client.connection_pool
        await client.initialize()
        if is_stale(client, since):
            await client.nodes_manager.initialize()
        return client.get_node(asked.host, asked.port) if asked else client.get_node_from_key(key)


_told: set[asyncio.Task[Any]] = set()
