"""What the tests share: servers, in memory and real ones, keys of their own, waits, and a wire that can break.

REDIS_LOCK_PORTS has the ports of five servers with the module on 127.0.0.1, and REDIS_LOCK_PORT the first. What runs on
the server in memory needs none of them.
"""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import redis

FOLDER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(FOLDER))
from redis_lock_client.testing import FakeServer  # noqa: E402

PORT = int(os.environ.get("REDIS_LOCK_PORT", "1"))
PORTS = [int(port) for port in os.environ.get("REDIS_LOCK_PORTS", str(PORT)).split()]


def wait_for(condition, limit=60):
    """Asks until it is so. The limit is for what never comes, not for a busy machine."""
    give_up = time.monotonic() + limit
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError("waited in vain")
        time.sleep(0.005)


async def until(condition):
    """Asks until it is so, as `wait_for` does, in a task."""
    give_up = time.monotonic() + 60
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError("waited in vain")
        await asyncio.sleep(0.005)


def together(count, work):
    """What so many threads return that do the same at once."""
    with ThreadPoolExecutor(count) as threads:
        return [done.result() for done in [threads.submit(work) for _ in range(count)]]


def programs_of(page):
    """The programs in Python that a page shows."""
    return [rest.split("\n```")[0] for rest in page.read_text(encoding="utf-8").split("\n```python\n")[1:]]


def run(program, check=True, **settings):
    """Runs a program that imports the helper."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    env = os.environ | {"PYTHONPATH": str(FOLDER)}
    return subprocess.run(command, check=check, env=env, timeout=60, **settings)


class OnFake(unittest.TestCase):
    """A test with a server in memory and a client of it."""

    def setUp(self):
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.fake = FakeServer()
        self.addCleanup(self.fake.close)
        self.client = self.fake.client(decode_responses=True, protocol=3)
        self.addCleanup(self.client.close)

    def is_waited_for(self):
        return self.client.execute_command("LOCK.INFO", "k")["waiting"] == 1


class OnServer(unittest.TestCase):
    """A test with a client of the first server, and two keys of its own."""

    def setUp(self):
        self.client = self.client_of(PORT)
        self.key = f"{type(self).__name__}:{self.id().rpartition('.')[2]}"
        self.other = f"{self.key}:2"
        self.client.delete(self.key, self.other)
        self.addCleanup(self.client.delete, self.key, self.other)

    def client_of(self, port, **settings):
        client = redis.Redis(port=port, **settings)
        self.addCleanup(client.close)
        return client

    def proxy(self, delay=0.0, port=PORT):
        proxy = Proxy(port, delay)
        self.addCleanup(proxy.close)
        return proxy

    def info(self, key=None):
        return as_map(self.client.execute_command("LOCK.INFO", key or self.key))

    def waiting(self, key=None):
        return (self.info(key) or {}).get(b"waiting", 0)

    def calls(self, command):
        """How often the server was asked so."""
        return self.client.info("commandstats").get(f"cmdstat_lock.{command}", {}).get("calls", 0)

    def break_it(self, key=None):
        self.client.execute_command("LOCK.BREAK", key or self.key)


class Proxy:
    """A wire to a server, which sends all bytes `delay` seconds later.

    While it is not `open` it keeps them. `hush()` lets the connections that are there die without a word. With `hangs`
    new ones are as mute.
    """

    def __init__(self, port, delay=0.0):
        self.target, self.delay = port, delay
        self.accepted = 0
        self.refuses = False  # new connections are closed at once
        self.hangs = False
        self.replaces = None  # what of the client's bytes, and by what
        self.open = threading.Event()
        self.open.set()
        self.hold_next = None  # keeps the next of these commands, and what comes over its connection, until `held`
        self.held = threading.Event()
        self.mute_next = None  # the server has the next of these commands, and its connection dies without a word
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
        inward = self.pump(pair, reader, far_writer, inward=True)
        await asyncio.gather(inward, self.pump(pair, far_reader, writer, inward=False))

    async def pump(self, pair, reader, writer, *, inward):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.replaces is not None:
                    data = data.replace(*self.replaces)
                if inward and self.hold_next is not None and self.hold_next in data:
                    self.hold_next = None
                    await is_set(self.held)
                if inward and self.mute_next is not None and self.mute_next in data:
                    self.mute_next = None
                    writer.write(data)
                    self.deaf.add(pair)
                await is_set(self.open)
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
        self.held.set()
        self.open.set()

        def stop():
            self.server.close()
            for _, writer in self.writers:
                writer.close()
            self.loop.call_later(0.05, self.loop.stop)

        self.loop.call_soon_threadsafe(stop)


async def is_set(event):
    """Waits for an event that another thread sets."""
    while not event.is_set():  # noqa: ASYNC110 - of a thread
        await asyncio.sleep(0.005)


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
