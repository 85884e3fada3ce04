"""Takes locks with a library for Python as fast as it can, as README.md says."""

import json
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients/python"), str(ROOT / "target/redlock/python")]

import redis  # noqa: E402

PLAN = json.loads(sys.argv[1])
CLIENT = redis.Redis.from_url(PLAN["url"])
LEASE = 10.0


def own(key):
    from redis_lock_client import Lock

    return Lock(CLIENT, key, LEASE)


def redis_py(key):
    return CLIENT.lock(key, timeout=LEASE)


def pottery(key):
    from pottery import Redlock

    return Redlock(key=key, masters={CLIENT}, auto_release_time=LEASE)


MAKE = {"redis-lock-client": own, "redis-py": redis_py, "pottery": pottery}[PLAN["kind"]]


class Owner(threading.Thread):
    def __init__(self, key):
        super().__init__(daemon=True)
        self.key, self.locks, self.failed = key, 0, 0
        self.take()

    def take(self):
        with MAKE(self.key):
            if PLAN["hold_ms"]:
                time.sleep(PLAN["hold_ms"] / 1000)

    def run(self):
        GO.wait()
        while True:
            try:
                self.take()
            except redis.RedisError:
                self.failed += 1
            if time.monotonic() >= END:
                return
            self.locks += 1


GO, END = threading.Event(), 0.0
owners = [Owner(key) for key in PLAN["keys"]]
for owner in owners:
    owner.start()
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
cpu, begin = time.process_time(), time.monotonic()
END = begin + PLAN["seconds"]
GO.set()
time.sleep(PLAN["seconds"])
seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
done = {"locks": [owner.locks for owner in owners], "failed": sum(owner.failed for owner in owners)}
print(json.dumps({**done, "seconds": seconds, "cpu": cpu}), flush=True)
sys.stdin.readline()
