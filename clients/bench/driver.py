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

    return Lock(CLIENT, key, LEASE, max_blocking=PLAN["blocking"])


def redis_py(key):
    return CLIENT.lock(key, timeout=LEASE)


def pottery(key):
    from pottery import Redlock

    return Redlock(key=key, masters={CLIENT}, auto_release_time=LEASE)


MAKERS = {"redis-lock-client": own, "redis-py": redis_py, "pottery": pottery}
MAKE = MAKERS[PLAN["kind"].removesuffix(" by NOTIFY")]


class Owner(threading.Thread):
    def __init__(self, key):
        super().__init__(daemon=True)
        self.key, self.locks, self.failed, self.longest = key, 0, 0, 0.0

    def run(self):
        while True:
            begin = time.monotonic()
            try:
                with MAKE(self.key):
                    self.longest = max(self.longest, time.monotonic() - begin)
                    if PLAN["hold_ms"]:
                        time.sleep(PLAN["hold_ms"] / 1000)
            except redis.RedisError:
                self.failed += 1
            else:
                self.locks += 1


owners = [Owner(key) for key in PLAN["keys"]]
for owner in owners:
    owner.start()
while not all(owner.locks for owner in owners):
    time.sleep(0.01)
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
before = [(owner.locks, owner.failed) for owner in owners]
for owner in owners:
    owner.longest = 0.0
cpu, begin = time.process_time(), time.monotonic()
time.sleep(PLAN["seconds"])
done = {
    "locks": [owner.locks - locks for owner, (locks, _) in zip(owners, before, strict=True)],
    "failed": sum(owner.failed - failed for owner, (_, failed) in zip(owners, before, strict=True)),
    "longest": max(owner.longest for owner in owners),
    "seconds": time.monotonic() - begin,
    "cpu": time.process_time() - cpu,
}
print(json.dumps(done), flush=True)
sys.stdin.readline()
