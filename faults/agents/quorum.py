"""A client of a lock over several servers, for the scene quorum of faults: redis_lock_client.quorum.

    quorum.py python|python-asyncio CONFIG

The lines that it writes and reads are those of agent.py.
"""

import asyncio
import sys
import threading
from pathlib import Path

import redis
import redis.asyncio

from agent import Agent

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python"))
from redis_lock_client.quorum import AsyncQuorumLock, LockLost, QuorumLock


class Blocking(Agent):
    def open(self):
        clients = [redis.Redis.from_url(url) for url in self.urls]
        self.lock = QuorumLock(clients, self.key, lease=self.lease_us / 1e6, wait=self.wait_us / 1e6)

    def acquire(self):
        if not self.lock.acquire():
            return None
        self.fence = self.lock.fence
        until = self.check()
        if until is None:  # it slept through the lease
            self.release()
        return until

    def check(self):
        # Until when it is valid is nothing that a program needs: it asks `lost`. Here it is what is judged.
        until = self.lock._hold.valid_until()
        return None if self.lock.lost else int(until * 1e6)

    def release(self):
        try:
            self.lock.release()
        except LockLost:
            return False
        return True


class Tasks(Blocking):
    """The lock is renewed by the event loop, which therefore runs in a thread of its own here."""

    def open(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        clients = [redis.asyncio.Redis.from_url(url) for url in self.urls]
        lock = AsyncQuorumLock(clients, self.key, lease=self.lease_us / 1e6, wait=self.wait_us / 1e6)
        self.lock = Waiting(lock, self.loop)


class Waiting:
    """An asyncio lock as other threads use it."""

    def __init__(self, lock, loop):
        self.of, self.loop = lock, loop

    def acquire(self):
        return self.wait(self.of.acquire())

    def release(self):
        return self.wait(self.of.release())

    def wait(self, steps):
        return asyncio.run_coroutine_threadsafe(steps, self.loop).result()

    def __getattr__(self, name):
        return getattr(self.of, name)


if __name__ == "__main__":
    {"python": Blocking, "python-asyncio": Tasks}[sys.argv[1]](sys.argv[2]).run()
