"""The workers of README.md, when their lock is lost and when they are stopped: on 127.0.0.1:REDIS_LOCK_PORT."""

import asyncio
import os
import signal
import subprocess
import sys
import unittest

import redis
import redis.asyncio
from stage import FOLDER, PORT, programs_of

from redis_lock_client import AsyncLock

PROGRAMS = [program.replace("6379", str(PORT)) for program in programs_of(FOLDER / "README.md")]
WORKERS = [program for program in PROGRAMS if "def while_held" in program]


class WorkerTest(unittest.TestCase):
    def setUp(self):
        self.client = redis.Redis(port=PORT)
        self.addCleanup(self.client.close)

    def started(self, program, lease):
        """The worker with a job of some minutes, once it is at work."""
        for short, long in (("range(3)", "range(3000)"), ("wait=60", f"wait=60, lease={lease}")):
            self.assertIn(short, program)
            program = program.replace(short, long)
        self.client.delete("report")
        worker = subprocess.Popen(
            [sys.executable, "-u", "-c", program],
            env=os.environ | {"PYTHONPATH": str(FOLDER)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        self.assertRegex(worker.stdout.readline(), "^page 0 ")
        return worker

    def test_there_is_one_for_asyncio_and_one_for_threads(self):
        self.assertEqual(["asyncio" in program for program in WORKERS], [True, False])

    def test_a_loss_stops_the_work(self):
        for program in WORKERS:
            with self.subTest(program):
                worker = self.started(program, lease=1)
                self.client.execute_command("LOCK.BREAK", "report")
                printed, _ = worker.communicate(timeout=60)
                self.assertEqual(printed.splitlines()[-1], "stopped: the lock was lost")
                self.assertEqual(worker.returncode, 0)

    def test_sigterm_releases_the_lock(self):
        for program in WORKERS:
            with self.subTest(program):
                worker = self.started(program, lease=60)
                worker.send_signal(signal.SIGTERM)
                worker.communicate(timeout=60)
                self.assertEqual(worker.returncode, 143)
                self.assertEqual(self.client.exists("report"), 0)


class WhileHeldTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_cancellation_from_outside_waits_for_the_end_of_the_job(self):
        program: dict = {}
        exec(WORKERS[0].partition("signal.signal(")[0], program)  # noqa: S102
        steps, begun = [], asyncio.Event()

        async def job():
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.1)
                steps.append("ends")

        async def work():
            async with AsyncLock(client, "report") as lock:
                try:
                    await program["while_held"](lock, job())
                finally:
                    steps.append("is held" if await lock.check() else "is not held")

        async with redis.asyncio.Redis(port=PORT) as client:
            await client.delete("report")
            task = asyncio.create_task(work())
            await begun.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(steps, ["ends", "is held"])
            self.assertEqual(await client.exists("report"), 0)


if __name__ == "__main__":
    unittest.main()
