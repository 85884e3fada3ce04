"""The transport for threads: all blocks that waits."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from redis import exceptions as errors

from redis_lock_client._common import ANSWER, TICK, mutex, now
from redis_lock_client._transport import Request, Server, T, Words, is_stale
from redis_lock_client._trouble import teller


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Runs what is written with `async` but waits only in blocking calls, as all of a ThreadServer's does."""
    try:
        steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("it waited for an event loop")


class Bell:
    """As threading.Event, with a tenth of its calls: each hand-off rings some."""

    def __init__(self) -> None:
        self.rung = False
        self.waiting: set[Any] = set()  # a lock for each thread that waits, which `set` opens

    def set(self) -> None:
        self.rung = True
        if self.waiting:
            with contextlib.suppress(KeyError):  # none is left
                while True:
                    self.waiting.pop().release()

    def clear(self) -> None:
        self.rung = False

    def is_set(self) -> bool:
        return self.rung

    def wait(self, seconds: float) -> None:
        """Until it rings, or the time is up."""
        if self.rung or seconds <= 0:
            return
        lock = threading.Lock()
        lock.acquire()
        self.waiting.add(lock)
        try:
            if not self.rung:  # since before it was added
                lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        finally:
            self.waiting.discard(lock)


class TimedSocket:
    """A socket with a deadline for all that is read and written. redis-py's timeouts begin anew with each byte."""

    def __init__(self, plain: socket.socket, until: float) -> None:
        self.plain, self.until = plain, until
        self.settimeout, self.sendall = plain.settimeout, plain.sendall  # found without `__getattr__`

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def recv(self, *args: Any) -> bytes:
        return self.in_time(self.plain.recv, *args)

    def recv_into(self, *args: Any) -> int:
        return self.in_time(self.plain.recv_into, *args)

    def in_time(self, read: Callable[..., T], *args: Any) -> T:
        timeout = self.plain.gettimeout()
        left = max(self.until - now(), TICK)
        if timeout is not None and timeout <= left:
            return read(*args)
        self.plain.settimeout(left)
        try:
            return read(*args)
        finally:
            self.plain.settimeout(timeout)


def bound(connection: Any, limit: float) -> None:
    """What comes over the connection from now on must have come within `limit` seconds."""
    timed = getattr(connection, "_sock", None)
    if isinstance(timed, TimedSocket):
        timed.until = now() + limit


class ThreadRequest(Request):
    def __init__(self, server: ThreadServer) -> None:
        self.server = server
        server.lent.add(self)

    def close(self) -> None:
        connection, self.connection = self.connection, None
        self.server.lent.discard(self)
        if connection is not None:
            self.server.close(connection)

    async def reply(self, limit: float) -> Any:
        connection = self.connection
        bound(connection, limit)
        try:
            if connection is None or not connection.can_read(limit):
                raise errors.TimeoutError("the server did not answer in time")  # noqa: TRY301
            reply = connection.read_response(disconnect_on_error=False)
        except Exception as error:
            self.answered = isinstance(error, errors.ResponseError)
            self.close()
            if isinstance(error, errors.TimeoutError):
                self.server.close_idle()
            if isinstance(error, OSError | ValueError):
                raise errors.ConnectionError(f"the connection broke: {error}") from error
            raise
        with mutex:
            self.answered, self.connection, self.result = True, None, reply
        self.server.lent.discard(self)
        self.server.give(connection)
        return reply

    async def peek(self) -> None:
        with contextlib.suppress(Exception):
            if self.connection is not None and self.connection.can_read(0):
                await self.reply(TICK)

    def is_broken(self) -> bool:
        return self.connection is None and not self.answered

    def interrupt(self) -> None:
        with mutex, contextlib.suppress(OSError):
            timed = getattr(self.connection, "_sock", None)
            if isinstance(timed, TimedSocket):  # not by what TLS makes of it, which is in use
                socket.socket.shutdown(timed.plain, socket.SHUT_RDWR)


# Threads that run a renewer: they must not be held up by an application.
_renewers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class ThreadServer(Server):
    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.bell = Bell()

    @staticmethod
    def place() -> int:
        return 0

    @staticmethod
    def who() -> threading.Thread:
        return threading.current_thread()

    def start(self, steps: Coroutine[Any, Any, None], name: str) -> threading.Thread:
        thread = threading.Thread(target=run, args=(steps,), name=name, daemon=True)
        _renewers.add(thread)
        thread.start()
        return thread

    def soon(self, call: Callable[[], Any]) -> None:
        call()

    def abandon(self) -> None:
        self.close_all()

    @staticmethod
    def event() -> Bell:
        return Bell()

    @staticmethod
    async def ring(bell: Bell, seconds: float) -> None:
        bell.wait(seconds)

    async def open(self, limit: float, **settings: Any) -> Any:
        connection = self.source.connection_class(**self.settings(limit) | settings)
        plain, until = connection._connect, now() + limit
        connection._connect = lambda: TimedSocket(plain(), until)
        try:
            connection.connect()
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, OSError):
                raise errors.ConnectionError(f"the connection broke: {error}") from error
            raise
        return connection

    async def is_open(self, connection: Any) -> bool:
        try:
            return not connection.can_read(0)
        except (errors.RedisError, OSError, ValueError):
            return False

    @staticmethod
    def is_connected(connection: Any) -> bool:
        return connection._sock is not None

    def close(self, connection: Any) -> None:
        with contextlib.suppress(Exception):
            connection.disconnect()

    async def exchange(self, connection: Any, data: bytes, count: int, replies: list[Any], limit: float) -> None:
        bound(connection, limit)
        try:
            connection.send_packed_command([data])
            for _ in range(count):
                try:
                    replies.append(connection.read_response(disconnect_on_error=False))
                except errors.ResponseError as error:
                    replies.append(error)
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise errors.TimeoutError("the server did not answer in time") from error
            raise errors.ConnectionError(f"the connection broke: {error}") from error

    async def write(self, connection: Any, words: Words) -> None:
        bound(connection, ANSWER)
        connection.send_command(*words)

    async def read(self, connection: Any, seconds: float) -> Any:
        bound(connection, seconds + ANSWER)
        return connection.read_response(disable_decoding=True) if connection.can_read(seconds) else None

    def end_reading(self, connection: Any) -> None:
        self.close(connection)

    def request(self) -> ThreadRequest:
        return ThreadRequest(self)

    async def post(
        self,
        request: ThreadRequest,
        words: Words | Callable[..., Words],
        limit: float,
        *,
        fresh: bool = False,
        asking: bool = False,
        alone: bool = False,  # noqa: ARG002 - who sends it sees to that
    ) -> None:
        try:
            connection = request.connection = await self.lend(limit, fresh=fresh)
            bound(connection, limit)
            if asking:
                connection.send_command("ASKING")
                connection.read_response()
            request.sent = now()
            connection.send_command(*(words() if callable(words) else words))
        except BaseException as error:
            request.close()
            if isinstance(error, OSError):
                raise errors.ConnectionError(f"the connection broke: {error}") from error
            raise

    @staticmethod
    def tell(call: Callable[[], Any]) -> None:
        if threading.current_thread() in _renewers:
            teller.later(call)
        else:
            call()

    @staticmethod
    async def sleep(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks, as all here does

    @staticmethod
    async def shielded(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await attempt()
        except Exception:
            raise
        except BaseException:  # such as KeyboardInterrupt: once more, since nothing tells how far it came
            with contextlib.suppress(Exception):
                await attempt()
            raise

    @staticmethod
    async def home(client: Any, key: Any, *, since: float | None = None, asked: errors.AskError | None = None) -> Any:
        if not hasattr(client, "nodes_manager"):
            return client.connection_pool
        if is_stale(client, since):
            client.nodes_manager.initialize()
        node = client.get_node(asked.host, asked.port) if asked else client.get_node_from_key(key)
        return client.get_redis_connection(node).connection_pool
