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


def pytest_collection_modifyitems(config, items):
    """Leaves out a client that decodes beside one that does not: it takes as long again, and shows nothing more."""
    words = ("=True-decode_responses=False", "=False-decode_responses=True")
    mixed = [item for item in items if any(word in item.name for word in words)]
    config.hook.pytest_deselected(items=mixed)
    items[:] = [item for item in items if item not in mixed]
    # These start 125 processes, which takes as long as the machine lets it take.
    for item in items:
        if item.name.startswith("test_no_overlap"):
            item.add_marker(pytest.mark.timeout(300))
