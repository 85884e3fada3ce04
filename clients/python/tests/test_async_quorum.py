"""The asyncio helper for a quorum, as Python programs use it: five servers with the module on the REDIS_LOCK_PORTS."""

import asyncio
import contextlib
import random
import time
import unittest
import warnings
from unittest import mock

import redis.asyncio
from stage import PORTS, until
from test_quorum import Nodes

from redis_lock_client import _transport
from redis_lock_client.quorum import AsyncQuorumLock, LockLost, LockNotAcquired


class AsyncQuorumLockTest(Nodes, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.set_up_nodes("asyncio-quorum")
        self.clients = self.clients_of(PORTS)

    def clients_of(self, ports):
        clients = [redis.asyncio.Redis(port=port) for port in ports]
        for client in clients:
            self.addAsyncCleanup(client.aclose)
        return clients

    def lock(self, clients=None, **options):
        return AsyncQuorumLock(clients or self.clients, self.key, **options)

    async def test_a_with_statement_holds_all_nodes_under_one_fence_and_releases_them(self):
        async with self.lock() as lock:
            await until(lambda: self.all_hold(lock))
            self.assertTrue(await lock.check())
        await until(self.is_free)
        self.assertFalse(await lock.check())
        self.assertFalse(lock.lost)

    async def test_a_with_statement_that_is_not_served_in_time_raises(self):
        async with self.lock():
            for wait in (0, 0.05):
                text = f'^lock "{self.key}" was not acquired: it was not free within {wait} s$'
                with self.assertRaisesRegex(LockNotAcquired, text):
                    async with self.lock(wait=wait):
                        self.fail("two hold it")
        await until(self.is_free)

    async def test_a_loss_is_raised_at_the_end_of_the_block(self):
        with self.assertRaises(LockLost):
            async with self.lock(lease=1.0) as lock:
                self.assertFalse(await lock.wait_lost(0.01))
                give_up = time.monotonic() + 60
                while not await lock.wait_lost(1):
                    self.assertLess(time.monotonic(), give_up)
                    self.break_majority()
        self.assertTrue(lock.lost)
        await until(self.is_free)

    async def test_a_task_that_is_cancelled_in_its_wait_leaves_the_queue(self):
        async with self.lock():
            waiting = asyncio.create_task(self.lock().acquire())
            await until(lambda: self.waiting() == 1)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            self.assertEqual(self.waiting(), 0)

    async def test_a_task_that_is_cancelled_at_any_moment_locks_nobody_out(self):
        chance = random.Random(21)
        for _ in range(60):
            holder, lock = self.lock(lease=600.0), self.lock(lease=600.0)
            if chance.random() < 0.5:
                await holder.acquire()
            task = asyncio.create_task(lock.acquire())
            await asyncio.sleep(chance.uniform(0, 0.01))
            release = asyncio.create_task(holder.release()) if "held" in repr(holder) else None
            await asyncio.sleep(chance.uniform(0, 0.01))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                await lock.release()
            if release is not None:
                await release
            await until(self.is_free)

    async def test_a_release_that_is_cancelled_still_gives_back(self):
        for _ in range(20):
            lock = self.lock(lease=600.0)
            await lock.acquire()
            task = asyncio.create_task(lock.release())
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await until(self.is_free)

    @mock.patch.object(_transport, "IDLE", 0.5)
    async def test_nothing_is_left_a_while_after_the_last_lock(self):
        before = len(asyncio.all_tasks())
        async with self.lock():
            pass
        ours = {id(client.connection_pool) for client in self.clients}
        await until(
            lambda: len(asyncio.all_tasks()) <= before and not any(key[2] in ours for key in _transport.servers)
        )


class LoopTest(unittest.TestCase):
    def test_a_loop_that_ends_at_once_leaves_no_warning(self):
        async def main():
            clients = [redis.asyncio.Redis(port=port) for port in PORTS]
            async with AsyncQuorumLock(clients, "asyncio-quorum:loop"):
                pass
            for client in clients:
                await client.aclose()

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.run(main(), debug=True)
            __import__("gc").collect()
        self.assertEqual([key for key in _transport.servers if key[1] != 0], [])


if __name__ == "__main__":
    unittest.main()
