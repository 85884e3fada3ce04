"""Its tests start a server of their own: here with the module."""

import os

import pytest
from process_tests import TestProcess, wait_for_strings


@pytest.fixture
def redis_socket(tmp_path):
    return str(tmp_path / "redis.sock")


@pytest.fixture
def redis_server(tmp_path, redis_socket):
    module = ("--loadmodule", os.environ["REDIS_LOCK_MODULE"])
    place = (
        "--port",
        "0",
        "--save",
        "",
        "--dir",
        str(tmp_path),
        "--unixsocket",
        redis_socket,
    )
    with TestProcess(os.environ["REDIS_LOCK_SERVER"], *module, *place) as server:
        wait_for_strings(server.read, 10, "eady to accept connections")
        yield server
