"""The connections to a server in memory: pairs of sockets within the process, which redis-py reads as any other."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection as ThreadConnection

from redis_lock_client._common import LOOK, now
from redis_lock_client.testing._commands import SILENT, Commands, Push, Session, Status
from redis_lock_client.testing._locks import Refused, Waits

CHUNK = 65_536
RESP3 = 3


def encoded(reply: Any, protocol: int) -> bytes:  # noqa: PLR0911 - one for each type
    """A reply as it goes over the wire."""
    if isinstance(reply, Status):
        return f"+{reply}\r\n".encode()
    if isinstance(reply, Refused):
        return f"-{reply}\r\n".encode()
    if reply is None:
        return b"_\r\n" if protocol == RESP3 else b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, dict):
        words = [one for pair in reply.items() for one in pair]
        head = b"%%%d\r\n" % len(reply) if protocol == RESP3 else b"*%d\r\n" % len(words)
        return head + b"".join(encoded(one, protocol) for one in words)
    if isinstance(reply, list):
        mark = b">" if isinstance(reply, Push) and protocol == RESP3 else b"*"
        return mark + b"%d\r\n" % len(reply) + b"".join(encoded(one, protocol) for one in reply)
    text = reply.encode() if isinstance(reply, str) else reply
    return b"$%d\r\n%b\r\n" % (len(text), text)


class Peer(Session):
    """The server's end of a connection."""

    def __init__(self, end: socket.socket, number: int) -> None:
        super().__init__()
        self.end, self.number = end, number
        self.received, self.unsent = bytearray(), bytearray()
        self.waits = False  # its last command is not answered yet

    def push(self, message: Push) -> None:
        self.unsent += encoded(message, self.protocol)

    def answer(self, reply: Any) -> None:
        self.waits = False
        self.push(reply)

    def commands(self) -> Iterator[list[bytes]]:
        """Those that have come, until one waits."""
        while not self.waits and (found := parse(self.received)) is not None:
            words, length = found
            del self.received[:length]
            yield words


def parse(received: bytearray) -> tuple[list[bytes], int] | None:
    """The first command, and its length; None while it has not come as a whole."""
    end = received.find(b"\r\n")
    if end < 0:
        return None
    words, at = [], end + 2
    for _ in range(int(received[1:end])):
        end = received.find(b"\r\n", at)
        if end < 0:
            return None
        length, at = int(received[at + 1 : end]), end + 2
        if len(received) < at + length + 2:
            return None
        words.append(bytes(received[at : at + length]))
        at += length + 2
    return words, at


class Wire:
    """The thread of a server in memory, and its connections."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.commands = Commands()
        self.selector = selectors.DefaultSelector()
        self.waker, self.wakes = socket.socketpair()
        for end in (self.waker, self.wakes):
            end.setblocking(False)
        self.selector.register(self.wakes, selectors.EVENT_READ)
        self.numbers = itertools.count(1)
        self.coming: deque[socket.socket] = deque()  # connections that have no session yet
        self.thread = threading.Thread(target=self.run, name="redis-lock fake", daemon=True)
        self.down = self.over = False
        self.thread.start()

    def connect(self) -> socket.socket:
        """The client's end of a new connection."""
        with self.mutex:
            if self.down or self.over or not self.thread.is_alive():
                raise ConnectionRefusedError("the server in memory is down")
            ours, theirs = socket.socketpair()
            # A signal may interrupt this thread anywhere, so the thread of the server does the rest.
            self.coming.append(ours)
        self.wake()
        return theirs

    def admit(self) -> None:
        while self.coming:
            end = self.coming.popleft()
            end.setblocking(False)
            peer = Peer(end, next(self.numbers))
            self.commands.sessions.append(peer)
            self.selector.register(end, selectors.EVENT_READ, peer)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self.waker.send(b"x")

    def perform(self, session: Session, words: list[bytes], answer: Callable[[Any], None]) -> Any:
        """The reply of a command, or its error; `Waits` if `answer` is called later."""
        with self.mutex:
            try:
                return self.commands.perform(session, words, answer)
            except (Refused, Waits) as error:
                return error
            finally:
                self.wake()

    def run(self) -> None:
        while not self.over:
            with self.mutex:
                self.admit()
                left = self.commands.locks.tick() - now()
                self.flush()
            for key, _ in self.selector.select(max(0, min(left, LOOK))):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self.wakes.recv(CHUNK)
                else:
                    with self.mutex:
                        self.receive(key.data)
        self.hang_up()
        for end in (self.waker, self.wakes, self.selector):
            end.close()

    def receive(self, peer: Peer) -> None:
        try:
            chunk = peer.end.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        peer.received += chunk
        self.serve(peer)
        if not chunk:
            self.close(peer)

    def serve(self, peer: Peer) -> None:
        for words in peer.commands():
            reply = self.perform(peer, words, peer.answer)
            if isinstance(reply, Waits):
                peer.waits = True
            elif words[0].decode(errors="replace").upper() not in SILENT or isinstance(reply, Refused):
                peer.push(reply)

    def flush(self) -> None:
        for peer in tuple(self.commands.sessions):
            if isinstance(peer, Peer):
                self.serve(peer)
                self.send(peer)

    def send(self, peer: Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.end.send(peer.unsent)]
            wanted = selectors.EVENT_READ
        except BlockingIOError:
            wanted = selectors.EVENT_READ | selectors.EVENT_WRITE
        except OSError:
            self.close(peer)
            return
        if self.selector.get_key(peer.end).events != wanted:
            self.selector.modify(peer.end, wanted, peer)

    def close(self, peer: Peer) -> None:
        if peer in self.commands.sessions:
            self.commands.sessions.remove(peer)
            self.selector.unregister(peer.end)
            peer.end.close()
            self.commands.locks.part(peer)

    def hang_up(self) -> None:
        """Closes all connections."""
        with self.mutex:
            self.admit()
            for peer in tuple(self.commands.sessions):
                if isinstance(peer, Peer):
                    self.close(peer)


class FakeConnection(ThreadConnection):
    """A connection of `redis.Redis` to a server in memory."""

    def __init__(self, wire: Wire, path: str = "", **settings: Any) -> None:
        self.wire, self.path = wire, path
        super().__init__(**settings)

    def repr_pieces(self) -> list[tuple[str, Any]]:
        return [("path", self.path)]

    def _connect(self) -> socket.socket:
        end = self.wire.connect()
        end.settimeout(self.socket_timeout)
        return end

    def _host_error(self) -> str:
        return self.path


class AsyncFakeConnection(AsyncConnection):
    """A connection of `redis.asyncio.Redis` to a server in memory."""

    def __init__(self, wire: Wire, path: str = "", **settings: Any) -> None:
        self.wire, self.path = wire, path
        super().__init__(**settings)

    def repr_pieces(self) -> list[tuple[str, Any]]:
        return [("path", self.path)]

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self.wire.connect())

    def _host_error(self) -> str:
        return self.path
