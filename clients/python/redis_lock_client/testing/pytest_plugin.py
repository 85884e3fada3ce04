"""Fixtures for pytest: `pytest_plugins = ["redis_lock_client.testing.pytest_plugin"]` in a conftest.py.

`fake_lock_server` is a `FakeServer`. `lock_server` is a real server with the module, one for the whole run, as a
`RealServer`: it needs the module at REDIS_LOCK_MODULE, and the program redis-server or valkey-server in PATH, or at
REDIS_LOCK_SERVER. Without these its tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_lock_client.testing import FakeServer

STARTS_WITHIN = 60.0


class RealServer:
    """A server with the module on a free port of this machine. It keeps nothing on disk."""

    def __init__(self, program: str, module: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory()
        words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder.name]
        self._process = subprocess.Popen([*words, "--loadmodule", module], stdout=subprocess.DEVNULL)  # noqa: S603
        self._await()

    def _await(self) -> None:
        give_up = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError as error:
                if time.monotonic() > give_up or self._process.poll() is not None:
                    self.close()
                    raise RuntimeError("the server with the module redis_lock does not start") from error
                time.sleep(0.02)
            else:
                return

    def client(self, **settings: Any) -> redis.Redis:
        """A client for `Lock`."""
        return redis.Redis(port=self.port, **settings)

    def async_client(self, **settings: Any) -> redis.asyncio.Redis:
        """A client for `AsyncLock`."""
        return redis.asyncio.Redis(port=self.port, **settings)

    def close(self) -> None:
        """Ends the server."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


@pytest.fixture
def fake_lock_server() -> Iterator[FakeServer]:
    """A server in memory, a new one for each test."""
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture(scope="session")
def lock_server() -> Iterator[RealServer]:
    """A real server with the module, for all tests of the run."""
    program = os.environ.get("REDIS_LOCK_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    module = os.environ.get("REDIS_LOCK_MODULE")
    if not (program and module):
        pytest.skip("there is no server, or REDIS_LOCK_MODULE names no module")
    server = RealServer(str(program), str(module))
    yield server
    server.close()
