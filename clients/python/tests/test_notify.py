"""Waits by NOTIFY that only these tests can play: on the first of the REDIS_LOCK_PORTS."""

import asyncio
import contextlib
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import redis
import redis.asyncio
from stage import OnServer, until, wait_for

from redis_lock_client import AsyncLock, Lock, _transport


class NotifyTest(OnServer):
    def setUp(self):
        super().setUp()
        self.prefix = f"{self.key}:"  # so that other tests' channels are told apart
        self.wire = self.proxy()
        self.far = self.client_of(self.wire.port)

    def lock(self, key=None, **options):
        options = {"max_blocking": 0, "notify_prefix": self.prefix, "wait": 60} | options
        return Lock(self.far, key or self.key, **options)

    def held(self):
        holder = Lock(self.client, self.key)
        holder.acquire()
        return holder

    def channels(self):
        return set(self.client.pubsub_channels(f"lock:notify:{self.prefix}*"))

    def taken_and_released(self, **options):
        with self.lock(**options):
            pass

    def test_a_subscription_that_died_without_a_word_is_noticed_by_threads(self):
        with mock.patch.object(_transport, "PROVE", 0.2):
            holder, got = self.held(), threading.Event()
            wait = threading.Thread(target=lambda: self.lock().acquire() and got.set())
            wait.start()
            wait_for(lambda: self.waiting() == 1)
            self.wire.deaf.add(self.wire.writers[self.subscription()][0])
            wait_for(lambda: len(self.channels()) == 2)  # the server knows of the dead one still
            holder.release()
            self.assertTrue(got.wait(60))

    def subscription(self):
        """The place of its connection among those that the proxy has: it was opened first."""
        return 0

    def test_a_subscription_that_died_without_a_word_is_noticed_by_tasks(self):
        async def main():
            async with redis.asyncio.Redis(port=self.wire.port) as client:
                holder = self.held()
                lock = AsyncLock(client, self.key, max_blocking=0, notify_prefix=self.prefix)
                waiting = asyncio.create_task(lock.acquire())
                await until(lambda: self.waiting() == 1)
                self.wire.deaf.add(self.wire.writers[self.subscription()][0])
                await until(lambda: len(self.channels()) == 2)
                holder.release()
                self.assertTrue(await waiting)
                await lock.release()

        with mock.patch.object(_transport, "PROVE", 0.2):
            asyncio.run(main())

    def test_a_subscription_that_is_not_confirmed_is_done_without(self):
        told = []
        with self.lock(self.other, max_blocking=1):  # so the renewer has a connection
            self.wire.hangs = True
            holder, before = self.held(), self.calls("acquire")
            with ThreadPoolExecutor(2) as threads:
                waits = [threads.submit(self.taken_and_released, on_trouble=told.append) for _ in range(2)]
                wait_for(lambda: told and self.waiting() == 2 and self.calls("acquire") > before + 4)
                self.assertEqual([trouble.kind for trouble in told], ["notify"])
                self.assertEqual(self.channels(), set())
                holder.release()
                for wait in waits:
                    wait.result()
            self.wire.hangs = False

    def test_a_server_that_keeps_places_for_less_is_asked_for_less(self):
        allowed = self.client.config_get("lock.max-queue-ms")["lock.max-queue-ms"]
        self.addCleanup(self.client.config_set, "lock.max-queue-ms", allowed)
        self.client.config_set("lock.max-queue-ms", 5000)
        for blocking in (0, 1):
            with ThreadPoolExecutor(1) as threads:
                holder = Lock(self.far, self.key, max_blocking=1)
                holder.acquire()
                wait = threads.submit(self.taken_and_released, max_blocking=blocking)
                wait_for(lambda: self.waiting() == 1)
                holder.release()
                wait.result()

    def test_a_release_is_repeated_as_long_as_the_server_keeps_the_place(self):
        holder, lock = self.held(), self.lock(wait=1.0, lease=1.0)
        with ThreadPoolExecutor(1) as threads:
            wait = threads.submit(lock.acquire)
            wait_for(lambda: self.waiting() == 1)
            self.wire.hush()
            self.wire.hangs = True
            with contextlib.suppress(redis.RedisError):
                self.assertFalse(wait.result())
        self.assertGreater(lock._hold.owes_until - lock._hold.read_until, 25.0)
        self.wire.hangs = False
        wait_for(lambda: self.waiting() == 0)
        holder.release()

    @mock.patch.object(_transport, "IDLE", 0.5)
    def test_nothing_is_left_a_while_after_the_last_wait(self):
        holder = self.held()
        with ThreadPoolExecutor(1) as threads:
            wait = threads.submit(self.taken_and_released)
            wait_for(lambda: self.waiting() == 1)
            listeners = [thread for thread in threading.enumerate() if thread.name == "redis-lock listener"]
            holder.release()
            wait.result()
        wait_for(lambda: not self.channels())
        wait_for(lambda: not any(thread.is_alive() for thread in listeners))
        self.assertTrue(listeners)


if __name__ == "__main__":
    unittest.main()
