"""The asyncio helper, as Python programs use it: needs a server with the module on 127.0.0.1:REDIS_LOCK_PORT."""

import asyncio
import os
import sys
import time
import unittest
import warnings
from pathlib import Path
from unittest import mock

import redis.asyncio
from proxy import Proxy, as_map

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from redis_lock_client import AsyncLock, LockLost, LockNotAcquired, _transport

PORT = int(os.environ["REDIS_LOCK_PORT"])


async def wait_for(condition):
    """Asks until it is so. The limit is for what never comes, not for a busy machine."""
    give_up = asyncio.get_running_loop().time() + 60
    while not await condition():
        if asyncio.get_running_loop().time() > give_up:
            raise AssertionError("waited in vain")
        await asyncio.sleep(0.005)


class AsyncLockTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = redis.asyncio.Redis(port=PORT)
        self.key = f"asyncio:{self.id().rpartition('.')[2]}"
        await self.client.delete(self.key, f"{self.key}:2")

    async def asyncTearDown(self):
        await self.client.delete(self.key, f"{self.key}:2")
        await self.client.aclose()

    async def info(self, key=None):
        return as_map(await self.client.execute_command("LOCK.INFO", key or self.key))

    async def test_a_with_statement_holds_the_lock_and_releases_it(self):
        async with AsyncLock(self.client, self.key) as lock:
            self.assertEqual((await self.info())[b"fence"], lock.fence)
            self.assertTrue(await lock.check())
            self.assertTrue(await lock.locked())
        self.assertIsNone(await self.info())
        self.assertFalse(await lock.owned())
        self.assertFalse(lock.lost)

    async def test_a_with_statement_that_is_not_served_in_time_raises(self):
        async with AsyncLock(self.client, self.key):
            for wait in (0, 0.05):
                text = f'^lock "{self.key}" was not acquired: it was not free within {wait} s$'
                with self.assertRaisesRegex(LockNotAcquired, text):
                    async with AsyncLock(self.client, self.key, blocking_timeout=wait):
                        self.fail("two hold it")

    async def test_a_loss_is_raised_at_the_end_of_the_block(self):
        with self.assertRaises(LockLost):
            async with AsyncLock(self.client, self.key, lease=1.0) as lock:
                self.assertFalse(await lock.wait_lost(0.01))
                await self.client.execute_command("LOCK.BREAK", self.key)
                self.assertTrue(await lock.wait_lost(60))
                with self.assertRaises(LockLost):
                    await lock.guard("SET", f"{self.key}:2", "late")
        self.assertTrue(lock.lost)

    async def test_a_loss_does_not_hide_the_error_of_the_block(self):
        with self.assertRaises(ZeroDivisionError):
            async with AsyncLock(self.client, self.key):
                await self.client.execute_command("LOCK.BREAK", self.key)
                print(1 / 0)

    async def test_a_task_that_is_cancelled_while_it_connects_takes_nothing(self):
        proxy = Proxy(PORT, delay=0.02)
        self.addCleanup(proxy.close)
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
        await wait_for(self.is_free)

    async def is_free(self):
        return await self.info() is None

    async def test_a_task_that_is_cancelled_in_its_block_releases(self):
        entered = asyncio.Event()

        async def work():
            async with AsyncLock(self.client, self.key):
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertIsNone(await self.info())

    async def test_a_loop_that_is_blocked_beyond_the_lease_loses_the_lock(self):
        with self.assertRaises(LockLost):
            async with AsyncLock(self.client, self.key, lease=1.0):
                time.sleep(1.2)  # noqa: ASYNC251 - it is what is tested

    @mock.patch.object(_transport, "IDLE", 0.5)
    async def test_nothing_is_left_a_while_after_the_last_lock(self):
        before = len(asyncio.all_tasks())
        async with AsyncLock(self.client, self.key):
            pass

        async def ended():
            return len(asyncio.all_tasks()) <= before and not [
                key for key in _transport.servers if key[2] == id(self.client.connection_pool)
            ]

        await wait_for(ended)


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

            async def stands():
                return as_map(server.execute_command("LOCK.INFO", key))[b"waiting"]

            await wait_for(stands)
            server.execute_command("LOCK.RELEASE", key, "another")
            self.assertFalse(task.done())

        for main in (released, granted):
            for most in (32, 0):
                key = f"asyncio:loop:{main.__name__}:{most}"
                server.delete(key)
                self.addCleanup(redis.Redis(port=PORT).delete, key)
                asyncio.run(main())
                give_up = time.monotonic() + 60
                while server.execute_command("LOCK.INFO", key) is not None:
                    self.assertLess(time.monotonic(), give_up, key)
                    time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
