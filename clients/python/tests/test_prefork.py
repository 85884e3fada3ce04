"""A server that forks, gunicorn as it comes: needs a server with the module on 127.0.0.1:REDIS_LOCK_PORT."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

import redis
from test_fake import wait_for

PORT = int(os.environ["REDIS_LOCK_PORT"])
FOLDER = Path(__file__).resolve().parents[1]
PATIENCE = 60

# What the parent has when it forks: a lock, and a wait by messages.
APP = f"""
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

def app(environ, start_response):
    if environ["PATH_INFO"] == "/parent":
        said = f"{{mine.lost}} {{mine.check()}}"
    else:
        with Lock(client, "prefork:work", wait={PATIENCE}, max_blocking=0) as lock:
            time.sleep(0.05)
            said = f"{{os.getpid()}} {{lock.owner.split(':')[1]}} {{lock.fence}}"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [said.encode()]
"""


class PreforkTest(unittest.TestCase):
    def setUp(self):
        self.client = redis.Redis(port=PORT, protocol=3)
        self.addCleanup(self.client.close)
        keys = ["prefork:parent", "prefork:busy", "prefork:work"]
        self.client.delete(*keys)
        self.addCleanup(self.client.delete, *keys)
        self.client.execute_command("LOCK.ACQUIRE", "prefork:busy", "another", "PX", 600_000)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        Path(folder.name, "shop.py").write_text(APP)
        self.log = Path(folder.name, "log")
        # Each worker serves one request at a time; none is taken for dead on a busy machine.
        words = ["gunicorn", "--preload", "--workers", "3", "--bind", "127.0.0.1:0", "--timeout", "600", "shop:app"]
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=folder.name,
                env=os.environ | {"PYTHONPATH": str(FOLDER)},
                stderr=log,
            )
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.send_signal, signal.SIGTERM)
        wait_for(lambda: "Booting worker" in self.log.read_text())
        [self.url] = [word for word in self.log.read_text().split() if word.startswith("http://")]

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=2 * PATIENCE) as reply:  # noqa: S310 - http
            return reply.read().decode().split()

    def take(self, times=12):
        """What each request says that took the lock: the process, that of the owner's name, and the fence."""
        with concurrent.futures.ThreadPoolExecutor(times) as pool:
            return list(pool.map(self.get, ["/work"] * times))

    def test_workers_have_locks_and_subscriptions_of_their_own(self):
        holder = self.client.execute_command("LOCK.INFO", "prefork:parent")[b"holders"]
        taken = self.take()
        workers = {process for process, _, _ in taken}
        self.assertGreater(len(workers), 1)
        self.assertNotIn(str(self.server.pid), workers)
        self.assertEqual([process for process, _, _ in taken], [owner for _, owner, _ in taken])
        self.assertEqual(len({fence for _, _, fence in taken}), len(taken))
        channels = self.client.pubsub_channels("lock:notify:*")
        self.assertEqual({count for _, count in self.client.pubsub_numsub(*channels)}, {1})
        self.assertGreater(len(channels), len(workers))
        self.assertEqual({tuple(self.get("/parent")) for _ in range(6)}, {("True", "False")})
        now = self.client.execute_command("LOCK.INFO", "prefork:parent")[b"holders"]
        for field in (b"owner", b"fence"):
            self.assertEqual(now[0][field], holder[0][field])

    def test_a_worker_that_follows_a_killed_one_takes_locks(self):
        first = {process for process, _, _ in self.take()}
        for process in first:
            os.kill(int(process), signal.SIGKILL)
        wait_for(lambda: self.log.read_text().count("Booting worker") >= 3 + len(first))
        then = {process for process, _, _ in self.take()}
        self.assertFalse(first & then)
        self.assertEqual(self.client.execute_command("LOCK.INFO", "prefork:work"), None)


if __name__ == "__main__":
    unittest.main()
