"""The server in memory, for which no server is needed."""

import asyncio
import threading
import unittest

import redis
from stage import FOLDER, OnFake, programs_of, wait_for

from redis_lock_client import AsyncLock, Lock, LockLost


class PageTest(unittest.TestCase):
    def test_the_program_of_the_guide_runs(self):
        [program] = programs_of(FOLDER.parents[1] / "docs/guide/testing.md")
        exec(program, {})  # noqa: S102


class FakeTest(OnFake):
    def test_a_lock_that_is_taken_away_is_told_at_once(self):
        with self.assertRaises(LockLost), Lock(self.client, "k", lease=3600) as lock:
            self.fake.lose("k")
            self.assertTrue(lock.wait_lost(60))

    def test_a_lease_that_ends_unseen_lets_another_in_and_its_guard_refuses(self):
        lock = Lock(self.client, "k", lease=3600)
        lock.acquire()
        self.fake.expire("k")
        self.assertFalse(lock.lost)
        self.assertGreater(self.fake.take("k"), lock.fence)
        self.assertRaises(LockLost, lock.guard, "SET", "data", "late")
        self.assertIsNone(self.client.get("data"))

    def test_time_that_is_let_pass_ends_a_lease_at_the_server_and_here(self):
        lock = Lock(self.client, "k", lease=3600)
        lock.acquire()
        self.fake.advance(3500)
        self.assertFalse(lock.lost)
        self.assertTrue(lock.check())
        self.fake.advance(3601)
        self.assertTrue(lock.lost)
        self.assertEqual(self.client.exists("k"), 0)
        self.assertRaises(LockLost, lock.release)

    def test_a_lock_of_somebody_else_is_waited_for_in_both_ways(self):
        for most in (0, 32):
            with self.subTest(most):
                self.fake.take("k")
                self.assertRaises(ValueError, self.fake.take, "k")
                self.assertFalse(Lock(self.client, "k", wait=0).acquire())
                lock = Lock(self.client, "k", wait=60, max_blocking=most)
                waits = threading.Thread(target=lock.acquire)
                waits.start()
                wait_for(self.is_waited_for)
                self.fake.lose("k")
                waits.join()
                lock.release()

    def test_a_server_that_is_down_is_there_again(self):
        with Lock(self.client, "k") as lock:
            self.fake.set_down()
            self.assertRaises(redis.ConnectionError, lock.check)
            self.fake.set_down(False)
            self.assertTrue(lock.check())

    def test_asyncio_has_it_too(self):
        async def main():
            client = self.fake.async_client()
            lock = AsyncLock(client, "k", lease=3600)
            await lock.acquire()
            self.fake.lose("k")
            self.assertTrue(await lock.wait_lost(60))
            with self.assertRaises(LockLost):
                await lock.release()
            await lock.acquire()
            self.fake.advance(3601)
            self.assertTrue(lock.lost)
            await client.aclose()

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
