"""The fixtures that the helper has for pytest, as an application uses them."""

from redis_lock_client import Lock


def test_a_server_in_memory_is_a_new_one_for_each_test(fake_lock_server):
    assert fake_lock_server.take("k") > 0
    assert not Lock(fake_lock_server.client(), "k", wait=0).acquire()


def test_a_real_server_has_the_module(lock_server):
    with Lock(lock_server.client(), "k") as lock:
        assert lock_server.client().execute_command("LOCK.CHECK", "k", lock.owner) == lock.fence
