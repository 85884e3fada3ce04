"""What a program meets when it uses the helper wrongly, or ends early: on 127.0.0.1:REDIS_LOCK_PORT."""

import asyncio
import gc
import logging
import threading
import time
import unittest
import warnings
from unittest import mock

import redis
import redis.asyncio
from stage import PORT, PORTS, OnServer, closed_port, run, together, wait_for

from redis_lock_client import AsyncLock, Lock, LockError, LockLost, _threads, _transport, _trouble
from redis_lock_client.quorum import QuorumLock


class FaceTest(OnServer):
    def setUp(self):
        super().setUp()
        self.told = []

    def kinds(self):
        return [trouble.kind for trouble in self.told]

    # --- arguments ---

    def test_a_key_may_be_anything_like_bytes(self):
        for alike in (bytearray(self.key.encode()), memoryview(self.key.encode())):
            with self.subTest(type(alike)), Lock(self.client, alike):
                self.assertFalse(Lock(self.client, self.key, wait=0).acquire())
            with Lock(self.client, [alike, self.other]) as lock:
                self.assertEqual(len(lock.fences), 2)

    def test_what_is_no_key_is_refused(self):
        for wrong in (7, None, [7], ["a", None], [["a"]], range(3)):
            with self.subTest(wrong), self.assertRaisesRegex(TypeError, "key must be str or bytes-like"):
                Lock(self.client, wrong)

    def test_what_is_no_client_of_this_library_is_refused(self):
        class Valkey:  # as that of valkey-py, whose errors are others
            connection_pool = redis.ConnectionPool(port=PORT)

        asynchronous = redis.asyncio.Redis(port=PORT)
        for kind, wrong in ((Lock, None), (Lock, Valkey()), (Lock, asynchronous), (AsyncLock, self.client)):
            with self.subTest(wrong), self.assertRaisesRegex(TypeError, "client must be a client of redis-py"):
                kind(wrong, self.key)
        with self.assertRaisesRegex(TypeError, "clients must be clients of redis-py, and not .*Valkey"):
            QuorumLock([Valkey(), Valkey(), Valkey()], self.key)

    def test_a_lease_above_an_hour_is_doubted(self):
        with self.assertWarnsRegex(UserWarning, "seconds") as caught:
            Lock(self.client, self.key, lease=30_000)
        self.assertEqual(caught.filename, __file__)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Lock(self.client, self.key, lease=3600)

    def test_a_guard_takes_its_key_in_either_type(self):
        with Lock(self.client, self.key) as lock:
            self.assertEqual(lock.guard("ECHO", "x", key=self.key.encode()), b"x")
            with self.assertRaisesRegex(ValueError, "key must be one of its keys"):
                lock.guard("ECHO", "x", key="another")

    # --- threads that share a lock object ---

    def test_threads_that_share_redis_pys_lock_wait_for_each_other(self):
        lock = self.client.lock(self.key, lock_class=Lock)
        within, most, fences = 0, 0, []

        def work():
            nonlocal within, most
            for _ in range(5):
                with lock:
                    within += 1
                    most = max(most, within)
                    time.sleep(0.001)
                    fences.append(lock.fence)
                    within -= 1

        together(4, work)
        self.assertEqual((most, len(set(fences))), (1, 20))

    def test_a_lock_for_each_thread_is_not_released_by_another(self):
        lock = Lock(self.client, self.key, lease=1.0, thread_local=True)
        taker = threading.Thread(target=lock.acquire)
        taker.start()
        taker.join()
        self.assertRaises(LockError, lock.release)
        # The thread has ended, so nobody can release it, and nobody renews it.
        wait_for(lambda: self.client.exists(self.key) == 0)

    def test_a_lock_for_all_threads_says_what_is_needed(self):
        with Lock(self.client, self.key) as lock:
            errors = []

            def attempt():
                try:
                    lock.acquire()
                except LockError as error:
                    errors.append(str(error))

            other = threading.Thread(target=attempt)
            other.start()
            other.join()
            self.assertIn("each thread or task needs a lock object of its own", errors[0])

    # --- troubles ---

    def test_a_wrong_port_is_told_at_the_first_failed_attempt(self):
        port = closed_port()
        lock = Lock(redis.Redis(port=port), self.key, on_trouble=self.told.append)
        threading.Thread(target=lock.acquire, daemon=True).start()
        wait_for(lambda: self.told)
        time.sleep(0.5)
        self.assertEqual(self.kinds(), ["unreachable"])
        text = f'^lock "{self.key}" was not acquired yet: localhost:{port} does not answer'
        self.assertRegex(str(self.told[0]), text)

    def test_a_trouble_goes_to_the_logger_if_nobody_asks_for_it(self):
        with self.assertLogs("redis_lock", logging.WARNING) as logged, self.assertRaises(redis.ConnectionError):
            Lock(redis.Redis(port=closed_port()), self.key, wait=0).acquire()
        self.assertEqual(len(logged.records), 1)

    def test_a_server_without_the_module_is_told_in_a_sentence(self):
        text = "does not have the module redis_lock: load libredis_lock.so"
        lock = Lock(self.client, self.key, on_trouble=self.told.append)
        without = mock.patch("redis_lock_client._engine.Spec.acquire", lambda *_, **__: ["LOCK.NONE", "k"])
        with without, self.assertRaisesRegex(redis.ResponseError, f"^localhost:{PORT} {text}"):
            lock.acquire()
        self.assertEqual(self.kinds(), ["no module"])
        clients = [redis.Redis(port=port) for port in PORTS[:3]]
        without = mock.patch("redis_lock_client.quorum._engine.Spec.acquire", lambda *_, **__: ["LOCK.NONE", "k"])
        with without, self.assertRaisesRegex(redis.ResponseError, text):
            QuorumLock(clients, self.key, on_trouble=self.told.append).acquire()
        wait_for(lambda: self.kinds().count("no module") >= 2)

    def test_a_module_that_is_too_old_is_told_in_a_sentence(self):
        proxy = self.proxy()
        proxy.replaces = (b"QUEUE", b"OTHER")
        with self.assertRaisesRegex(redis.ResponseError, "too old: this needs 1.0 or newer"):
            Lock(self.client_of(proxy.port), self.key, wait=1, on_trouble=self.told.append).acquire()
        self.assertEqual(self.kinds(), ["old module"])
        self.assertIn("unknown option", self.told[0].text)

    def test_a_right_that_is_missing_is_told(self):
        self.client.acl_setuser("nobody", enabled=True, nopass=True, keys=["*"], commands=["+ping"])
        self.addCleanup(self.client.acl_deluser, "nobody")
        client = redis.Redis(port=PORT, username="nobody", password="any")  # noqa: S106
        with self.assertRaises(redis.exceptions.NoPermissionError):
            Lock(client, self.key, on_trouble=self.told.append).acquire()
        self.assertEqual(self.kinds(), ["no right"])

    def test_memory_that_is_full_is_told(self):
        self.client.config_set("maxmemory-policy", "noeviction")
        self.client.config_set("maxmemory", 1)
        try:
            with self.assertRaises(redis.exceptions.OutOfMemoryError):
                Lock(self.client, self.key, wait=0.3, on_trouble=self.told.append).acquire()
        finally:
            self.client.config_set("maxmemory", 0)
        self.assertEqual(self.kinds(), ["memory full"])

    def test_a_renewal_that_fails_and_a_loss_are_told(self):
        proxy = self.proxy()
        lock = Lock(self.client_of(proxy.port), self.key, lease=1.5, on_trouble=self.told.append)
        lock.acquire()
        proxy.hush()
        proxy.refuses = True
        wait_for(lambda: "lost" in self.kinds())
        self.assertEqual(self.kinds(), ["renewal", "lost"])
        with self.assertRaises(LockLost):
            lock.release()
        self.assertEqual(self.kinds(), ["renewal", "lost"])

    def test_a_broken_lock_names_no_other_holder(self):
        """A break leaves the key free: a text that speaks of another holder misleads."""
        lock = Lock(self.client, self.key, lease=1.0, on_trouble=self.told.append)
        lock.acquire()
        self.client.execute_command("LOCK.BREAK", self.key)
        wait_for(lambda: "lost" in self.kinds())
        self.assertIn("the server says that it is not held", self.told[-1].text)
        self.assertRaises(LockLost, lock.release)

    def test_a_loss_of_a_quorum_is_told(self):
        clients = [redis.Redis(port=port) for port in PORTS[:3]]
        lock = QuorumLock(clients, self.key, lease=1.0, on_trouble=self.told.append)
        lock.acquire()
        for client in clients:
            client.execute_command("LOCK.BREAK", self.key)
        wait_for(lambda: "lost" in self.kinds())
        self.assertRaises(LockLost, lock.release)

    def test_a_callback_that_raises_or_takes_its_time_harms_nothing(self):
        def fails(trouble):
            self.told.append(trouble)
            time.sleep(3)
            raise ZeroDivisionError

        with self.assertLogs("redis_lock", logging.ERROR), Lock(self.client, self.other, lease=1.0) as other:
            lock = Lock(self.client, self.key, lease=1.0, on_trouble=fails)
            lock.acquire()
            self.break_it()
            self.assertTrue(lock.wait_lost(60))
            wait_for(lambda: not _trouble.teller.running)
            self.assertTrue(other.check())
            self.assertEqual(len(self.told), 1)
            self.assertRaises(LockLost, lock.release)

    def test_a_callback_that_hangs_keeps_no_other_from_being_told(self):
        hangs, told = threading.Event(), []
        self.addCleanup(hangs.set)
        callbacks = [lambda _: hangs.wait(60)] * 3 + [told.append]
        locks = [Lock(self.client, f"{self.key}:{at}", on_trouble=tell) for at, tell in enumerate(callbacks)]
        for lock in locks:
            lock.acquire()
            self.break_it(lock._spec.name)
        with mock.patch.object(_trouble, "LOOK", 0.01):
            locks[0]._hold.server.hurry()
            for lock in locks:
                self.assertTrue(lock.wait_lost(60))
            wait_for(lambda: told)
        self.assertFalse(hangs.is_set())
        hangs.set()
        for lock in locks:
            self.assertRaises(LockLost, lock.release)

    @unittest.skipUnless(hasattr(BaseException, "add_note"), "notes are newer than this Python")
    def test_the_error_of_a_block_notes_the_loss(self):
        with self.assertRaises(ZeroDivisionError) as caught, Lock(self.client, self.key):
            self.break_it()
            print(1 / 0)
        self.assertEqual(caught.exception.__notes__, [f'lock "{self.key}" was lost before it was released'])

    # --- connections and ends ---

    def test_a_lock_now_and_then_keeps_its_connections(self):
        client = redis.Redis(port=PORT, client_name="now-and-then")
        self.addCleanup(client.close)
        with Lock(client, self.key):
            pass
        ids = {one["id"] for one in self.client.client_list() if one["name"] == "now-and-then"}
        time.sleep(3)
        with Lock(client, self.key):
            pass
        self.assertEqual({one["id"] for one in self.client.client_list() if one["name"] == "now-and-then"}, ids)

    def test_loops_that_are_closed_by_hand_leave_no_connection(self):
        async def main():
            client = redis.asyncio.Redis(port=PORT, client_name="by-hand")
            async with AsyncLock(client, self.key):
                pass
            await client.aclose()

        for _ in range(5):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()
            gc.collect()
        names = [client["name"] for client in self.client.client_list()]
        self.assertLessEqual(names.count("by-hand"), 2)  # of the last loop
        with Lock(redis.Redis(port=PORT), self.key):  # sees that it is closed
            wait_for(lambda: "by-hand" not in [client["name"] for client in self.client.client_list()])

    def test_a_program_ends_although_a_lock_is_held(self):
        for end in ("", "raise SystemExit(3)"):
            program = f"""
import asyncio, redis.asyncio
from redis_lock_client import AsyncLock
kept = []
async def main():
    kept.append(AsyncLock(redis.asyncio.Redis(port={PORT}), {self.key!r}, lease=1.0))
    await kept[0].acquire()
    {end}
asyncio.run(main())
"""
            with self.subTest(end):
                self.assertEqual(run(program, check=False).returncode, 3 if end else 0)
            wait_for(lambda: self.client.exists(self.key) == 0)

    def test_a_child_of_a_fork_shares_no_connection_with_its_parent(self):
        program = f"""
import os, redis
from redis_lock_client import Lock, LockError
client = redis.Redis(port={PORT})
held = Lock(client, {self.key!r}, lease=1.0)
held.acquire()
for _ in range(2):  # so that an idle connection is there
    with Lock(client, {self.other!r}):
        pass
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        for number in range(50):
            with Lock(client, {self.other!r}, wait=20) as own:
                assert own.check() and held.lost and not held.check()
        inner = Lock(client, {self.other!r}, wait=0, within=held)
        for refused in (held.detach, lambda: held.release_after(60), inner.acquire):
            try:
                refused()
            except LockError:
                continue
            os._exit(2)
        held.release()
        os._exit(0)
    children.append(child)
for _ in range(50):
    with Lock(client, {self.other!r}, wait=20):
        assert held.check()
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
assert held.check()
held.release()
"""
        run(program)

    def test_help_explains_each_argument(self):
        for kind in (Lock, AsyncLock):
            arguments = list(__import__("inspect").signature(kind).parameters)
            for argument in arguments:
                self.assertRegex(kind.__doc__, f"\n +{argument}:")
        for argument in __import__("inspect").signature(QuorumLock).parameters:
            self.assertRegex(QuorumLock.__doc__, f"\n +{argument}:")

    def test_a_hold_is_registered_before_it_is_handed_out(self):
        def noted(server, duty):
            planned.append(duty.held)
            return plan(server, duty)

        plan, planned = _transport.Server.plan, []
        with mock.patch.object(_threads.ThreadServer, "plan", noted), Lock(self.client, self.key) as lock:
            self.assertEqual(planned[:1], [True])
            self.assertNotEqual(lock._hold.ticket, 0)


if __name__ == "__main__":
    unittest.main()
