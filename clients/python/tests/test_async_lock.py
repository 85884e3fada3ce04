"""The asyncio helper, as Python programs use it: needs a server with the module on 127.0.0.1:REDIS_LOCK_PORT."""

import asyncio
import unittest
import warnings

import redis.asyncio
from stage import PORT, OnServer, Proxy, as_map, until, wait_for

from redis_lock_client import AsyncLock, LockLost, LockNotAcquired, _transport


class AsyncLockTest(OnServer, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.async_client = redis.asyncio.Redis(port=PORT)
        self.addAsyncCleanup(self.async_client.aclose)

    def lock(self, **options):
        return AsyncLock(self.async_client, self.key, **options)

    async def test_a_with_statement_holds_the_lock_and_releases_it(self):
        async with self.lock() as lock:
            self.assertEqual(self.info()[b"fence"], lock.fence)
            self.assertTrue(await lock.check())
            self.assertTrue(await lock.locked())
        self.assertIsNone(self.info())
        self.assertFalse(await lock.owned())
        self.assertFalse(lock.lost)

    async def test_a_with_statement_that_is_not_served_in_time_raises(self):
        async with self.lock():
            for wait in (0, 0.05):
                text = f'^lock "{self.key}" was not acquired: it was not free within {wait} s$'
                with self.assertRaisesRegex(LockNotAcquired, text):
                    async with self.lock(blocking_timeout=wait):
                        self.fail("two hold it")

    async def test_a_loss_is_raised_at_the_end_of_the_block(self):
        with self.assertRaises(LockLost):
            async with self.lock(lease=1.0) as lock:
                self.assertFalse(await lock.wait_lost(0.01))
                self.break_it()
                self.assertTrue(await lock.wait_lost(60))
                with self.assertRaises(LockLost):
                    await lock.guard("SET", self.other, "late")
        self.assertTrue(lock.lost)

    async def test_a_loss_does_not_hide_the_error_of_the_block(self):
        with self.assertRaises(ZeroDivisionError):
            async with self.lock():
                self.break_it()
                print(1 / 0)

    async def test_a_task_that_is_cancelled_while_it_connects_takes_nothing(self):
        proxy = self.proxy(delay=0.02)
        for step in range(12):
            async with redis.asyncio.Redis(port=proxy.port) as client:
                lock = AsyncLock(client, self.key, lease=600.0)
                waiting = asyncio.create_task(lock.acquire())
                await asyncio.sleep(step / 60)
                waiting.cancel()
                try:
                    await waiting
                except asyncio.CancelledError:
                    continue
                await lock.release()
        await asyncio.sleep(0.5)
        await until(lambda: self.info() is None)

    async def test_a_task_that_is_cancelled_in_its_block_releases(self):
        entered = asyncio.Event()

        async def work():
            async with self.lock():
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertIsNone(self.info())


class LoopTest(unittest.TestCase):
    def test_a_loop_that_ends_at_once_leaves_no_warning(self):
        async def main():
            async with (
                redis.asyncio.Redis(port=PORT) as client,
                AsyncLock(client, "asyncio:loop"),
            ):
                pass

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.run(main(), debug=True)
            __import__("gc").collect()
        self.assertEqual([key for key in _transport.servers if key[1] != 0], [])

    def test_a_loop_that_ends_leaves_no_lock_and_no_place(self):
        proxy = Proxy(PORT, delay=0.05)
        server = redis.Redis(port=PORT)
        for closes in (proxy, server):
            self.addCleanup(closes.close)
        lease = 600.0

        async def released():
            """Ends while the release of a task is on its way."""

            async def work():
                async with AsyncLock(client, key, lease, max_blocking=most):
                    held.set()

            held, client = asyncio.Event(), redis.asyncio.Redis(port=proxy.port)
            task = asyncio.create_task(work())
            await held.wait()
            await asyncio.sleep(0.01)
            self.assertFalse(task.done())

        async def granted():
            """Ends while the grant of a task is on its way."""
            server.execute_command("LOCK.ACQUIRE", key, "another", "PX", 600_000)
            wait = AsyncLock(redis.asyncio.Redis(port=proxy.port), key, lease, max_blocking=most)
            task = asyncio.create_task(wait.acquire())

            await until(lambda: as_map(server.execute_command("LOCK.INFO", key))[b"waiting"])
            server.execute_command("LOCK.RELEASE", key, "another")
            self.assertFalse(task.done())

        for main in (released, granted):
            for most in (32, 0):
                key = f"asyncio:loop:{main.__name__}:{most}"
                server.delete(key)
                self.addCleanup(redis.Redis(port=PORT).delete, key)
                asyncio.run(main())
                wait_for(lambda key=key: server.execute_command("LOCK.INFO", key) is None)


if __name__ == "__main__":
    unittest.main()
