"""A client of a lock over several servers, for the scene quorum of faults: pottery's Redlock, or redlock-py's.

    redlocks.py pottery|redlock-py CONFIG

The lines that it writes and reads are those of agent.py.
"""

import logging
import sys
from pathlib import Path

import redis

from agent import Agent, now

# Where tools/install.sh redlock puts them.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "target/redlock/python"))


class Pottery(Agent):
    """As its documents show it: `locked()` tells how long the lock is still held, by asking the servers."""

    def open(self):
        from pottery import Redlock

        seconds = self.lease_us / 1e6
        masters = {redis.Redis.from_url(url, **self.limits()) for url in self.urls}
        self.lock = Redlock(key=self.key, masters=masters, auto_release_time=seconds)

    def acquire(self):
        if not self.lock.acquire(timeout=self.wait_us / 1e6):
            return None
        until = self.check()
        if until is None:
            self.release()
        return until

    def check(self):
        asked, left = now(), self.lock.locked()
        return asked + int(left * 1e6) if left else None

    def release(self):
        self.lock.release()


class RedlockPy(Agent):
    """The tuple that it returns says how long the lock is valid from then on."""

    def open(self):
        from redlock import Redlock

        self.locks = Redlock([redis.Redis.from_url(url, **self.limits()) for url in self.urls])

    def acquire(self):
        self.lock = self.locks.lock(self.key, self.lease_us // 1000)
        if not self.lock:
            return None
        self.valid = now() + self.lock.validity * 1000
        return self.valid

    def check(self):
        return self.valid

    def release(self):
        self.locks.unlock(self.lock)


if __name__ == "__main__":
    # They log each server that does not answer.
    logging.disable(logging.CRITICAL)
    {"pottery": Pottery, "redlock-py": RedlockPy}[sys.argv[1]](sys.argv[2]).run()
