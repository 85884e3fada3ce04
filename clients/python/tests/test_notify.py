"""Waits by NOTIFY that only these tests can play: on the first of the REDIS_LOCK_PORTS."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import redis
import redis.asyncio
from proxy import Proxy, as_map
from test_async_quorum import wait_for as until
from test_fake import wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import redis_lock_client
from redis_lock_client import AsyncLock, Lock, _transport

PORT = int(os.environ["REDIS_LOCK_PORTS"].split()[0])


class NotifyTest(unittest.TestCase):
    def setUp(self):
        self.server = redis.Redis(port=PORT, decode_responses=True)
        self.addCleanup(self.server.close)
        self.key = f"notify:{self.id().rpartition('.')[2]}"
        self.other = f"{self.key}:2"
        self.prefix = f"{self.key}:"  # so that other tests' channels are told apart
        self.addCleanup(self.server.delete, self.key, self.other)
        self.proxy = Proxy(PORT)
        self.addCleanup(self.proxy.close)
        self.client = redis.Redis(port=self.proxy.port)
        self.addCleanup(self.client.close)

    def lock(self, key=None, **options):
        options = {"max_blocking": 0, "notify_prefix": self.prefix, "wait": 60} | options
        return Lock(self.client, key or self.key, **options)

    def held(self, key=None):
        holder = Lock(self.server, key or self.key)
        holder.acquire()
        return holder

    def info(self, key=None):
        return as_map(self.server.execute_command("LOCK.INFO", key or self.key)) or {}

    def waiting(self, key=None):
        return self.info(key).get("waiting", 0)

    def channels(self):
        return set(self.server.pubsub_channels(f"lock:notify:{self.prefix}*"))

    def calls(self):
        return self.server.info("commandstats")["cmdstat_lock.acquire"]["calls"]

    def test_so_many_waits_block_and_the_others_have_no_connection(self):
        holder, blocking = self.held(), _transport.blocking
        with ThreadPoolExecutor(5) as threads:
            waits = [threads.submit(self.taken_and_released, max_blocking=2) for _ in range(5)]
            wait_for(lambda: self.waiting() == 5)
            rows = map(as_map, self.info()["waiters"])
            self.assertEqual(sum(row.get("client") is not None for row in rows), 2)
            holder.release()
            for wait in waits:
                wait.result()
        self.assertEqual(_transport.blocking, blocking)

    def taken_and_released(self, **options):
        with self.lock(**options):
            pass

    def test_a_subscription_that_died_without_a_word_is_noticed_by_threads(self):
        with mock.patch.object(_transport, "PROVE", 0.2):
            holder, got = self.held(), threading.Event()
            wait = threading.Thread(target=lambda: self.lock().acquire() and got.set())
            wait.start()
            wait_for(lambda: self.waiting() == 1)
            self.proxy.deaf.add(self.proxy.writers[self.subscription()][0])
            wait_for(lambda: len(self.channels()) == 2)  # the server knows of the dead one still
            holder.release()
            self.assertTrue(got.wait(60))

    def subscription(self):
        """The place of its connection among those that the proxy has: it was opened first."""
        return 0

    def test_a_subscription_that_died_without_a_word_is_noticed_by_tasks(self):
        async def main():
            async with redis.asyncio.Redis(port=self.proxy.port) as client:
                holder = self.held()
                lock = AsyncLock(client, self.key, max_blocking=0, notify_prefix=self.prefix)
                waiting = asyncio.create_task(lock.acquire())
                await until(lambda: self.waiting() == 1)
                self.proxy.deaf.add(self.proxy.writers[self.subscription()][0])
                await until(lambda: len(self.channels()) == 2)
                holder.release()
                self.assertTrue(await waiting)
                await lock.release()

        with mock.patch.object(_transport, "PROVE", 0.2):
            asyncio.run(main())

    def test_a_subscription_that_is_not_confirmed_is_done_without(self):
        told = []
        with self.lock(self.other, max_blocking=1):  # so the renewer has a connection
            self.proxy.hangs = True
            holder, before = self.held(), self.calls()
            with ThreadPoolExecutor(2) as threads:
                waits = [threads.submit(self.taken_and_released, on_trouble=told.append) for _ in range(2)]
                wait_for(lambda: told and self.waiting() == 2 and self.calls() > before + 4)
                self.assertEqual([trouble.kind for trouble in told], ["notify"])
                self.assertEqual(self.channels(), set())
                holder.release()
                for wait in waits:
                    wait.result()
            self.proxy.hangs = False

    def test_a_server_that_keeps_places_for_less_is_asked_for_less(self):
        allowed = self.server.config_get("lock.max-queue-ms")["lock.max-queue-ms"]
        self.addCleanup(self.server.config_set, "lock.max-queue-ms", allowed)
        self.server.config_set("lock.max-queue-ms", 5000)
        for blocking in (0, 1):
            with ThreadPoolExecutor(1) as threads:
                holder = Lock(self.client, self.key, max_blocking=1)
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
            self.proxy.hush()
            self.proxy.hangs = True
            with contextlib.suppress(redis.RedisError):
                self.assertFalse(wait.result())
        self.assertGreater(lock._hold.owes_until - lock._hold.read_until, 25.0)
        self.proxy.hangs = False
        wait_for(lambda: self.waiting() == 0)
        holder.release()

    def test_a_child_of_a_fork_has_a_subscription_of_its_own(self):
        program = f"""
import os, sys, threading, redis
sys.path.insert(0, {str(Path(redis_lock_client.__file__).parents[1])!r})
from redis_lock_client import Lock
client = redis.Redis(port={PORT})
def lock(key):
    return Lock(client, key, wait=60, max_blocking=0, notify_prefix={self.prefix!r})
parents = lock({self.key!r})
waiting = threading.Thread(target=parents.acquire)
waiting.start()
sys.stdin.readline()
child = os.fork()
if child == 0:
    with lock({self.other!r}) as own:
        os._exit(0 if own.check() and not parents.lost else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
print("the child has had its lock", flush=True)
waiting.join()
assert parents.check()
parents.release()
"""
        holders = [self.held(), self.held(self.other)]
        command = [sys.executable, "-W", "ignore", "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            wait_for(lambda: self.waiting() == 1)
            parents = self.channels()
            process.stdin.write("\n")
            process.stdin.flush()
            wait_for(lambda: self.waiting(self.other) == 1)
            self.assertEqual((len(parents), len(self.channels() - parents)), (1, 1))
            holders[1].release()
            self.assertIn("child", process.stdout.readline())
            self.assertEqual((self.waiting(), self.channels()), (1, parents))
            holders[0].release()
            self.assertEqual(process.wait(60), 0)

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
