"""A client of a lock over several servers, for the scene quorum of faults: pottery's Redlock, or redlock-py's.

    redlocks.py pottery|redlock-py CONFIG

The lines that it writes and reads are those of agent.py.
"""

import json
import logging
import sys
from pathlib import Path

import redis

from agent import Agent, now

# Where tools/install.sh redlock puts them.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "target/redlock/python"))


class Maker(Agent):
    """What all of them need."""

    def servers(self):
        # One server may take a twentieth of the lease to answer.
        seconds = self.config["lease_ms"] / 20_000
        limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        return [redis.Redis.from_url(url, **limits) for url in self.config["urls"]]


class Pottery(Maker):
    """As its documents show it: `locked()` tells how long the lock is still held, by asking the servers."""

    def open(self):
        from pottery import Redlock

        seconds = self.config["lease_ms"] / 1000
        self.lock = Redlock(key=self.config["key"], masters=set(self.servers()), auto_release_time=seconds)

    def take(self):
        if not self.lock.acquire(timeout=self.config["wait_ms"] / 1000):
            return None
        until = self.until()
        if until is None:
            self.release()
        return until

    def until(self):
        asked, left = now(), self.lock.locked()
        return asked + int(left * 1e6) if left else None

    def release(self):
        self.lock.release()


class RedlockPy(Maker):
    """The tuple that it returns says how long the lock is valid from then on."""

    def open(self):
        from redlock import Redlock

        self.locks = Redlock(self.servers())

    def take(self):
        self.lock = self.locks.lock(self.config["key"], self.config["lease_ms"])
        if not self.lock:
            return None
        self.valid = now() + self.lock.validity * 1000
        return self.valid

    def until(self):
        return self.valid

    def release(self):
        self.locks.unlock(self.lock)


if __name__ == "__main__":
    # They log each server that does not answer.
    logging.disable(logging.CRITICAL)
    {"pottery": Pottery, "redlock-py": RedlockPy}[sys.argv[1]](json.loads(sys.argv[2])).run()
