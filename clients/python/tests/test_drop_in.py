"""redis-py's clients with the helper's lock: needs a server with the module on 127.0.0.1:REDIS_LOCK_PORT."""

import asyncio
import gc
import os
import threading
import time
import unittest
from unittest import mock

import redis
from redis.exceptions import LockError, LockNotOwnedError
from stage import PORT, OnServer, together, wait_for

from redis_lock_client import Deadlock, Lock, drop_in
from redis_lock_client._engine import Hold
from redis_lock_client.testing import FakeServer

PATIENCE = 60


class DropInTest(OnServer):
    def setUp(self):
        super().setUp()
        self.client = drop_in.Redis(port=PORT, protocol=3)
        self.addCleanup(self.client.close)

    def info(self):
        reply = self.client.execute_command("LOCK.INFO", self.key)
        return reply and reply[b"holders"][0]

    def ttl(self):
        return (self.info() or {}).get(b"ttl_ms", -2)

    def look(self, lock):
        """Lets the renewer see to the lock now."""
        hold = lock._hold
        hold.due = 0
        hold.server.plan(hold)
        wait_for(lambda: hold.due > 0)

    # --- the class behind lock() ---

    def test_a_lock_class_that_is_asked_for_is_given(self):
        self.assertIsInstance(self.client.lock(self.key), drop_in.RedisLock)
        self.assertIs(type(self.client.lock(self.key, 10, lock_class=Lock)), Lock)
        self.assertIs(type(self.client.lock(self.key, 10, 0.1, True, None, Lock)), Lock)
        self.assertEqual(self.client.lock(self.key, 10, 0.1, False, None, None, False).thread_local, False)

    def test_attributes_are_redis_pys_and_others_may_be_set(self):
        lock = self.client.lock(self.key, timeout=7, blocking_timeout=3)
        own = redis.Redis(port=PORT).lock(self.key, timeout=7, blocking_timeout=3)
        for name in vars(own).keys() - {"redis", "local"}:
            self.assertEqual(getattr(lock, name), getattr(own, name), name)
        lock.anything = 1
        lock.timeout, lock.blocking = 50, False
        with lock:
            self.assertGreater(self.ttl(), 40_000)
            self.assertIs(self.client.lock(self.key, blocking=False).acquire(), False)

    # --- timeout ---

    def test_with_a_timeout_it_ends_by_itself_though_its_process_lives(self):
        lock = self.client.lock(self.key, timeout=1.2)
        self.assertIs(lock.acquire(), True)
        with self.client.lock(self.key, blocking_timeout=PATIENCE):
            self.assertIs(lock.owned(), False)
        with self.assertRaises(LockNotOwnedError):
            lock.release()
        self.assertIsNone(lock.local.token)

    def test_with_a_timeout_nobody_renews_it(self):
        with self.client.lock(self.key, timeout=2 * PATIENCE) as lock:
            self.client.execute_command("LOCK.EXTEND", self.key, lock.local.token, "PX", 1000 * PATIENCE)
            self.look(lock)
            self.assertLessEqual(self.ttl(), 1000 * PATIENCE)

    def test_without_a_timeout_it_is_renewed(self):
        lock = self.client.lock(self.key)
        lock.acquire()
        self.client.execute_command("LOCK.EXTEND", self.key, lock.local.token, "PX", 20_000)
        self.look(lock)
        self.assertGreater(self.ttl(), 20_000)
        lock.release()

    def test_a_lock_that_is_thrown_away_keeps_its_timeout(self):
        # As a limit of how often: who has it never gives it back.
        self.client.lock(self.key, timeout=PATIENCE).acquire(blocking=False)
        gc.collect()
        self.assertFalse(self.client.lock(self.key, timeout=PATIENCE).acquire(blocking=False))
        self.assertGreater(self.ttl(), 1000)

    def test_a_short_timeout_leaves_others_their_renewals(self):
        with Lock(self.client, self.other, lease=30) as other:
            short = self.client.lock(self.key, timeout=0.2)
            short.acquire()
            self.assertGreaterEqual(min(short._hold.server.leases), 30)
            self.assertTrue(other.check())

    def test_a_lapse_in_the_block_is_raised_at_its_end(self):
        with self.assertRaises(LockNotOwnedError), self.client.lock(self.key, timeout=0.3):
            wait_for(lambda: self.info() is None)
        with self.client.lock(self.key, timeout=0.3, raise_on_release_error=False) as lock:
            wait_for(lambda: self.info() is None)
        self.assertTrue(lock.lost)

    def test_its_end_is_told_without_a_release(self):
        lock = self.client.lock(self.key, timeout=1)
        lock.acquire()
        self.assertTrue(lock.wait_lost(PATIENCE))

    def test_what_was_waited_for_has_its_whole_timeout(self):
        first, second = self.client.lock(self.key), self.client.lock(self.key, timeout=10)
        first.acquire()
        threading.Timer(2, self.break_it).start()
        with second:
            valid_for = second.valid_for
            self.assertLess(self.ttl() / 1000 - valid_for, 1.8)

    def test_locks_that_are_lost_leave_no_use_of_the_server(self):
        for timeout in (1, PATIENCE):
            lock = self.client.lock(self.key, timeout=timeout)
            lock.acquire()
            server = lock._hold.server
            users = server.users
            if timeout == PATIENCE:
                self.break_it()
                self.assertFalse(lock.owned())
            self.assertTrue(lock.wait_lost(PATIENCE))
            for refused in (lambda lock=lock: lock.extend(1), lock.release):
                self.assertEqual(server.users, users - 1)
                self.assertRaises(LockNotOwnedError, refused)
            self.assertEqual(server.users, users - 1)

    def test_an_interrupted_acquisition_is_not_renewed(self):
        for timeout in (None, PATIENCE):
            lock = self.client.lock(self.key, timeout=timeout)
            with mock.patch.object(lock, "_at", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                lock.acquire()
            gc.collect()
            held = [one for one in gc.get_objects() if isinstance(one, Hold) and one.spec.keys == (self.key,)]
            self.assertTrue(all(one.abandoned for one in held), held)
            self.break_it()

    # --- extend and reacquire ---

    def test_extend_adds_or_replaces_and_the_end_goes_along(self):
        lock = self.client.lock(self.key, timeout=4)
        lock.acquire()
        self.assertIs(lock.extend(20), True)
        self.assertTrue(20_000 < self.ttl() <= 24_000, self.ttl())
        lock.extend(10, True)
        self.assertTrue(5000 < self.ttl() <= 10_000, self.ttl())
        self.assertTrue(5 < lock.valid_for <= 10, lock.valid_for)
        time.sleep(4)  # beyond its first end
        self.assertTrue(lock.owned())
        lock.timeout = 30
        lock.reacquire()
        self.assertGreater(self.ttl(), 20_000)
        lock.release()

    def test_an_extension_that_nobody_answered_may_have_made_the_time_shorter(self):
        fake = FakeServer()
        self.addCleanup(fake.close)
        lock = drop_in.Redis(connection_pool=fake.client().connection_pool).lock(self.key, timeout=100)
        lock.acquire()
        fake.set_down(True)
        self.assertRaises(redis.ConnectionError, lock.extend, 10, replace_ttl=True)
        self.assertLessEqual(lock.valid_for, 10)

    def test_with_a_script_in_its_place_extend_replaces(self):
        lock = self.client.lock(self.key, timeout=30)
        lock.lua_extend = self.client.register_script("return 1")  # as RedBeat does
        lock.acquire()
        for _ in range(3):
            lock.extend(30)
        self.assertLessEqual(self.ttl(), 30_000)
        lock.release()

    def test_a_lost_lock_is_not_extended(self):
        for how in (lambda lock: lock.extend(10), lambda lock: lock.reacquire()):
            lock = self.client.lock(self.key, timeout=PATIENCE)
            lock.acquire()
            self.break_it()
            with self.client.lock(self.key) as other:
                with self.assertRaises(LockNotOwnedError):
                    how(lock)
                self.assertFalse(lock.owned())
                self.assertTrue(other.owned())
                with self.assertRaises(LockNotOwnedError):
                    lock.release()
                with self.assertRaises(LockError):
                    how(lock)

    def test_a_lock_that_was_over_is_not_revived(self):
        lock = self.client.lock(self.key, timeout=0.3)
        lock.acquire()
        wait_for(lambda: self.info() is None)
        with self.assertRaises(LockNotOwnedError):
            lock.extend(10)
        self.assertIsNone(self.info())

    # --- one object, several threads ---

    def test_threads_that_share_an_object_take_turns(self):
        for thread_local in (True, False):
            with self.subTest(thread_local=thread_local):
                lock, inside = self.client.lock(self.key, thread_local=thread_local), threading.Lock()

                def work(lock=lock, inside=inside):
                    for _ in range(20):
                        self.assertTrue(lock.acquire(blocking_timeout=PATIENCE))
                        self.assertTrue(inside.acquire(blocking=False), "two are inside")
                        time.sleep(0.002)  # time for another to come in
                        inside.release()
                        lock.release()

                together(6, work)

    def test_a_failed_attempt_leaves_what_the_object_holds(self):
        lock = self.client.lock(self.key, thread_local=False)
        lock.acquire()
        self.assertFalse(lock.acquire(blocking=False))
        self.assertTrue(lock.owned())
        lock.release()

    def test_another_thread_has_no_token_unless_it_is_shared(self):
        for thread_local in (True, False):
            lock, seen = self.client.lock(self.key, thread_local=thread_local), []
            lock.acquire()
            thread = threading.Thread(target=lambda lock=lock, seen=seen: seen.append(lock.local.token))
            thread.start()
            thread.join()
            self.assertEqual(seen, [None if thread_local else lock.local.token])
            lock.release()

    def test_a_block_that_waits_for_itself_is_told(self):
        with self.client.lock(self.key), self.assertRaises(Deadlock):
            self.client.lock(self.key).acquire()
        with self.client.lock(self.key, timeout=0.5, raise_on_release_error=False):
            again = self.client.lock(self.key)
            self.assertTrue(again.acquire())  # as the first ends by itself
            again.release()

    # --- who else has the key ---

    def test_two_programs_with_one_token_exclude_each_other(self):
        first, second = self.client.lock(self.key), self.client.lock(self.key)
        name = "worker"
        self.assertTrue(first.acquire(token=name))
        self.assertEqual(first.local.token, name.encode())
        self.assertFalse(second.acquire(blocking=False, token=name))
        first.release()

    def test_it_shares_a_key_with_redis_pys_own(self):
        own = redis.Redis(port=PORT).lock(self.key, timeout=PATIENCE)
        ours = self.client.lock(self.key)
        own.acquire()
        self.assertTrue(ours.locked())
        self.assertFalse(ours.acquire(blocking_timeout=0.3))
        threading.Timer(0.3, own.do_release, [own.local.token]).start()
        with ours:
            self.assertFalse(own.acquire(blocking=False))
            self.assertTrue(ours.locked())
        self.assertFalse(ours.locked())

    def test_the_child_of_a_fork_has_not_got_it(self):
        lock = self.client.lock(self.key, timeout=PATIENCE)
        lock.acquire()
        child = os.fork()
        if child == 0:
            held = lock.owned()
            try:
                lock.extend(5, replace_ttl=True)
            except LockNotOwnedError:
                os._exit(held)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertGreater(self.ttl(), 6000)
        lock.release()


class AsyncDropInTest(OnServer, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = drop_in.AsyncRedis(port=PORT)
        self.addAsyncCleanup(self.client.aclose)

    async def test_tasks_that_share_an_object_take_turns(self):
        lock, inside = self.client.lock(self.key), []

        async def work():
            for _ in range(20):
                self.assertTrue(await lock.acquire(blocking_timeout=PATIENCE))
                inside.append(1)
                self.assertEqual(len(inside), 1)
                await asyncio.sleep(0.002)  # time for another to come in
                inside.pop()
                await lock.release()

        await asyncio.gather(*(work() for _ in range(6)))

    async def test_it_ends_by_itself_or_later(self):
        lock = self.client.lock(self.key, timeout=3)
        self.assertIs(await lock.acquire(False, None, "token"), True)
        self.assertEqual(lock.local.token, b"token")
        self.assertIs(await lock.extend(PATIENCE), True)
        await asyncio.sleep(3)
        self.assertTrue(await lock.owned())
        await lock.reacquire()
        self.assertTrue(await lock.wait_lost(PATIENCE))
        with self.assertRaises(LockNotOwnedError):
            await lock.release()

    async def test_it_waits_for_redis_pys_own(self):
        await self.client.set(self.key, "token", px=500)
        self.assertTrue(await self.client.lock(self.key).locked())
        async with self.client.lock(self.key, blocking_timeout=PATIENCE):
            pass


if __name__ == "__main__":
    unittest.main()
