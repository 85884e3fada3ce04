"""docs/guide/migrating.md with redis-py's own lock: needs a server with the module on 127.0.0.1:REDIS_LOCK_PORT."""

import asyncio
import contextlib
import threading
import unittest

import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError
from stage import FOLDER, PORT, OnServer, programs_of, run

from redis_lock_client import AsyncLock, Lock, LockNotAcquired

PAGE = FOLDER.parents[1] / "docs/guide/migrating.md"
PATIENCE = 60


class MigratingTest(OnServer):
    def old(self, wait=PATIENCE):
        """What runs before: redis-py's lock."""
        return self.client.lock(self.key, timeout=PATIENCE, blocking_timeout=wait)

    def new(self, wait=PATIENCE):
        """What runs in the end."""
        return Lock(self.client, self.other, wait=wait)

    @contextlib.contextmanager
    def both(self, wait=PATIENCE):
        """What runs between them."""
        with self.old(wait), self.new(wait):
            yield

    def test_each_phase_keeps_out_the_one_before_and_the_one_after(self):
        for holder, other in (
            (self.old, self.both),
            (self.both, self.old),
            (self.both, self.both),
            (self.both, self.new),
            (self.new, self.both),
        ):
            with self.subTest(f"{holder.__name__}, {other.__name__}"):
                with holder(), self.assertRaises(LockError), other(wait=0):
                    pass
                # Nothing is left of either.
                self.assertEqual(self.client.exists(self.key, self.other), 0)

    def test_the_first_phase_does_not_know_the_last(self):
        # So no process of the first may run beside one of the last.
        with self.old(), self.new(wait=0):
            pass

    def test_with_old_clients_a_string_on_the_key_is_a_lock_of_others(self):
        old = self.old()
        self.assertTrue(old.acquire())
        with self.assertRaisesRegex(redis.ResponseError, "WRONGTYPE"):
            Lock(self.client, self.key, wait=1).acquire()
        lock = Lock(self.client, self.key, wait=PATIENCE, old_clients=True)
        self.assertFalse(lock.acquire(blocking=False))
        asked = self.calls("acquire")
        self.assertFalse(lock.acquire(blocking_timeout=0.5))
        # After pauses of 0.1 s, 0.2 s and so on.
        self.assertLessEqual(self.calls("acquire") - asked, 4)
        with self.assertRaises(LockNotAcquired), Lock(self.client, self.key, wait=0.2, old_clients=True):
            pass
        took = threading.Event()
        waiter = threading.Thread(target=lambda: lock.acquire() and took.set())
        waiter.start()
        self.assertFalse(took.wait(0.3))
        old.release()
        waiter.join()
        self.assertTrue(took.is_set() and lock.check())
        # The old client waits as for one of its own, and its release tells it that the lock is another one.
        self.assertFalse(self.old(wait=0.1).acquire())
        with self.assertRaises(redis.ResponseError) as raised:
            old.local.token = b"token"
            old.release()
        self.assertRegex(str(raised.exception), "WRONGTYPE")
        self.assertNotIsInstance(raised.exception, LockNotOwnedError)
        lock.release()

    def test_so_it_is_with_asyncio_and_with_waits_that_do_not_block(self):
        async def play(**options):
            client = redis.asyncio.Redis(port=PORT)
            lock = AsyncLock(client, self.key, wait=PATIENCE, old_clients=True, **options)
            waiter = asyncio.create_task(lock.acquire())
            done, _ = await asyncio.wait([waiter], timeout=0.3)
            self.assertFalse(done)
            self.client.delete(self.key)
            self.assertTrue(await waiter)
            await lock.release()
            await client.aclose()

        for options in ({}, {"max_blocking": 0}):
            with self.subTest(options):
                # A hash, as of Redisson.
                self.client.hset(self.key, "uuid:1", 1)
                asyncio.run(play(**options))

    def test_the_program_of_the_page_runs(self):
        [program] = programs_of(PAGE)
        self.client.delete("report", "report:v2")
        program = program.replace("6379", str(PORT))
        run(program)
        # Others have the second lock: the first one is not kept for longer than the page says.
        with Lock(self.client, "report:v2"):
            failed = run(program.replace("wait=5", "wait=0.2"), check=False, capture_output=True, text=True)
        self.assertIn("LockNotAcquired", failed.stderr)
        self.assertEqual(self.client.exists("report"), 0)


if __name__ == "__main__":
    unittest.main()
