"""A client of a lock over several servers, for the scene quorum of faults: redis_lock_client.quorum.

    quorum.py python|python-asyncio CONFIG

The lines that it writes and reads are those of agent.py.
"""

import json
import sys

import redis
import redis.asyncio

from soak import Helper, Tasks

from redis_lock_client.quorum import AsyncQuorumLock, QuorumLock


class Several:
    """One lock for all holds."""

    def over(self, kind, clients):
        servers = [clients.from_url(url) for url in self.config["urls"]]
        lease, wait = self.config["lease_ms"] / 1000, self.config["wait_ms"] / 1000
        self.lock = kind(servers, self.config["key"], lease=lease, wait=wait)

    def make(self):
        return self.lock

    def note(self):
        self.fences = [self.lock.fence]

    def valid_until(self):
        return self.lock._hold.valid_until()


class Blocking(Several, Helper):
    def open(self):
        self.over(QuorumLock, redis.Redis)


class Asyncio(Several, Tasks):
    def open(self):
        self.begin()
        self.over(AsyncQuorumLock, redis.asyncio.Redis)


if __name__ == "__main__":
    {"python": Blocking, "python-asyncio": Asyncio}[sys.argv[1]](json.loads(sys.argv[2])).run()
