"""Wires to a server that delay bytes, keep them, or close connections; and what else the tests share."""

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
import threading

import redis
from test_fake import wait_for


class Proxy:
    """Sends all bytes `delay` seconds later.

    `hush()` lets the connections that are there die without a word. With `hangs` new ones are as mute.
    """

    def __init__(self, port, delay=0.0):
        self.target, self.delay = port, delay
        self.accepted = 0
        self.refuses = False  # new connections are closed at once
        self.hangs = False
        self.replaces = None  # what of the client's bytes, and by what
        self.writers = []
        self.deaf = set()
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self.run, args=(ready,), daemon=True).start()
        ready.wait()

    def run(self, ready):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self.accept, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()
        self.loop.close()

    async def accept(self, reader, writer):
        self.accepted += 1
        if self.refuses:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        pair = object()
        if self.hangs:
            self.deaf.add(pair)
        self.writers += [(pair, writer), (pair, far_writer)]
        await asyncio.gather(self.pump(pair, reader, far_writer), self.pump(pair, far_reader, writer))

    async def pump(self, pair, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.replaces is not None:
                    data = data.replace(*self.replaces)
                if pair not in self.deaf:
                    self.loop.call_later(self.delay, self.write, pair, writer, data)
        if pair not in self.deaf:
            self.loop.call_later(self.delay, writer.close)

    def write(self, pair, writer, data):
        if pair not in self.deaf:
            writer.write(data)

    def hush(self):
        self.deaf |= {pair for pair, _ in self.writers}

    def cut(self):
        """Closes all connections, so that the client sees it."""
        self.loop.call_soon_threadsafe(lambda: [writer.close() for _, writer in self.writers])

    def close(self):
        def stop():
            self.server.close()
            for _, writer in self.writers:
                writer.close()
            self.loop.call_later(0.05, self.loop.stop)

        self.loop.call_soon_threadsafe(stop)


class Wire:
    """Stands before a server. What a client sends while it is not `open` is kept; `cut` closes all connections."""

    def __init__(self, port):
        self.target = port
        self.open = threading.Event()
        self.open.set()
        self.hold_next = False  # keeps what comes over the next connection alone
        self.held = threading.Event()
        self.ends = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.socket.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.ends += [near, far]
                threading.Thread(target=self.pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self.pump, args=(far, near, False), daemon=True).start()

    def pump(self, source, target, inward):
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65536):
                if inward and self.hold_next and b"LOCK.ACQUIRE" in data:
                    self.hold_next = False
                    self.held.wait()
                self.open.wait()
                target.sendall(data)

    def drop(self):
        """Ends all connections, and lets new ones come."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.drop()

    def close(self):
        self.held.set()
        self.open.set()
        self.cut()


class Cluster:
    """Two primaries, each with half of the slots."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.processes, self.ports = [], []
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        nodes = [self.node() for _ in range(2)]
        nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", self.ports[1])
        for node, slots in zip(nodes, ((0, 8191), (8192, 16383)), strict=True):
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
        for node in nodes:
            wait_for(lambda node=node: self.knows_all(node))
            node.close()

    def knows_all(self, node):
        said = node.execute_command("CLUSTER", "INFO")
        return b"cluster_state:ok" in said and b"cluster_known_nodes:2" in said

    def node(self):
        """A node that has begun. Its port, or that of its bus, may be taken meanwhile: then another one."""
        while True:
            port = closed_port()
            if port > 55_000:
                continue
            words = ["--port", port, "--dir", self.folder.name, "--save", "", "--cluster-enabled", "yes"]
            words += ["--cluster-config-file", f"nodes-{port}", "--loadmodule", os.environ["REDIS_LOCK_MODULE"]]
            program = [os.environ.get("REDIS_LOCK_SERVER", "redis-server"), *map(str, words)]
            process = subprocess.Popen(program, stdout=subprocess.DEVNULL)
            self.processes.append(process)
            client = redis.Redis(port=port)
            wait_for(lambda: process.poll() is not None or answers(client))  # noqa: B023 - called here
            if process.poll() is None:
                self.ports.append(port)
                return client

    def client(self, **settings):
        return redis.RedisCluster(host="127.0.0.1", port=self.ports[0], **settings)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


def answers(client):
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def as_map(reply):
    """A map is a dict in RESP3, a flat list in RESP2."""
    return reply if reply is None or isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
