"""Servers that fork, as they come: they need a server with the module on 127.0.0.1:REDIS_LOCK_PORT."""

import concurrent.futures
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

import redis
from stage import FOLDER, PORT, wait_for

PATIENCE = 60
BROKER = f"redis://127.0.0.1:{PORT}/1"

# What the parent has when it forks: a lock, and a wait by messages.
SHOP = f"""
import os
import threading
import time
import redis
from redis_lock_client import Lock

client = redis.Redis(port={PORT})
mine = Lock(client, "prefork:parent")
mine.acquire()
busy = Lock(client, "prefork:busy", max_blocking=0)
threading.Thread(target=busy.acquire, daemon=True).start()
while not client.pubsub_channels("lock:notify:*"):
    time.sleep(0.01)

def parent():
    return f"{{mine.lost}} {{mine.check()}}"

def work():
    with Lock(client, "prefork:work", wait={PATIENCE}, max_blocking=0) as lock:
        time.sleep(0.05)
        return f"{{os.getpid()}} {{lock.owner.split(':')[1]}} {{lock.fence}}"
"""
GUNICORN = """
def app(environ, start_response):
    said = parent() if environ["PATH_INFO"] == "/parent" else work()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [said.encode()]
"""
# No child is taken for dead on a busy machine.
CELERY = f"""
from celery import Celery

app = Celery("shop", broker="{BROKER}", backend="{BROKER}")
app.conf.update(worker_proc_alive_timeout=600, broker_connection_timeout=600)
for task in (parent, work):
    app.task(task, name=task.__name__)
"""


class Prefork:
    """What a server with three workers is, of which each does one thing at a time."""

    words: list
    program: str

    def setUp(self):
        self.client = redis.Redis(port=PORT, protocol=3)
        self.addCleanup(self.client.close)
        keys = ["prefork:parent", "prefork:busy", "prefork:work"]
        self.client.delete(*keys)
        self.addCleanup(self.client.delete, *keys)
        self.client.execute_command("LOCK.ACQUIRE", "prefork:busy", "another", "PX", 600_000)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        Path(folder.name, "shop.py").write_text(SHOP + self.program)
        self.log = Path(folder.name, "log")
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", *self.words],
                cwd=folder.name,
                env=os.environ | {"PYTHONPATH": str(FOLDER)},
                stdout=log,
                stderr=log,
            )
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.send_signal, signal.SIGTERM)
        self.begin()

    def begin(self):
        """Waits until it can be asked."""

    def ask(self, what):
        """What a worker says."""
        raise NotImplementedError

    def await_others(self, former):
        """Waits until there are workers in place of these."""
        raise NotImplementedError

    def take(self, times=12):
        """What each says that took the lock: the process, that of the owner's name, and the fence."""
        with concurrent.futures.ThreadPoolExecutor(times) as pool:
            return [said.split() for said in pool.map(self.ask, ["work"] * times)]

    def test_workers_have_locks_and_subscriptions_of_their_own(self):
        taken = self.take()
        holder = self.client.execute_command("LOCK.INFO", "prefork:parent")[b"holders"]
        workers = {process for process, _, _ in taken}
        self.assertGreater(len(workers), 1)
        self.assertNotIn(str(self.server.pid), workers)
        self.assertEqual([process for process, _, _ in taken], [owner for _, owner, _ in taken])
        self.assertEqual(len({fence for _, _, fence in taken}), len(taken))
        channels = self.client.pubsub_channels("lock:notify:*")
        self.assertEqual({count for _, count in self.client.pubsub_numsub(*channels)}, {1})
        self.assertGreater(len(channels), len(workers))
        self.assertEqual({self.ask("parent") for _ in range(6)}, {"True False"})
        now = self.client.execute_command("LOCK.INFO", "prefork:parent")[b"holders"]
        for field in (b"owner", b"fence"):
            self.assertEqual(now[0][field], holder[0][field])

    def test_a_worker_that_follows_a_killed_one_takes_locks(self):
        first = {process for process, _, _ in self.take()}
        for process in first:
            os.kill(int(process), signal.SIGKILL)
        self.await_others(first)
        then = {process for process, _, _ in self.take()}
        self.assertFalse(first & then)
        self.assertEqual(self.client.execute_command("LOCK.INFO", "prefork:work"), None)


class GunicornTest(Prefork, unittest.TestCase):
    # None is taken for dead on a busy machine.
    words = "gunicorn --preload --workers 3 --bind 127.0.0.1:0 --timeout 600 shop:app".split()  # noqa: SIM905
    program = GUNICORN

    def begin(self):
        wait_for(lambda: "Booting worker" in self.log.read_text())
        [self.url] = [word for word in self.log.read_text().split() if word.startswith("http://")]

    def ask(self, what):
        with urllib.request.urlopen(f"{self.url}/{what}", timeout=2 * PATIENCE) as reply:  # noqa: S310 - http
            return reply.read().decode()

    def await_others(self, former):
        wait_for(lambda: self.log.read_text().count("Booting worker") >= 3 + len(former))


@unittest.skipUnless(importlib.util.find_spec("celery"), "Celery is not installed")
class CeleryTest(Prefork, unittest.TestCase):
    words = "celery -A shop worker -P prefork -c 3 --without-gossip --without-mingle".split()  # noqa: SIM905
    program = CELERY

    def begin(self):
        from celery import Celery  # noqa: PLC0415 - it may not be there

        self.app = Celery("test", broker=BROKER, backend=BROKER)
        self.addCleanup(self.app.close)

    def ask(self, what):
        return self.app.send_task(what).get(5 * PATIENCE)

    def await_others(self, former):
        def processes():
            stats = self.app.control.inspect(timeout=PATIENCE, limit=1).stats() or {}
            return {str(process) for one in stats.values() for process in one["pool"]["processes"]}

        wait_for(lambda: len(found := processes()) == 3 and not found & former, 5 * PATIENCE)


if __name__ == "__main__":
    unittest.main()
