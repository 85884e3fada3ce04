"""A client of the scene soak of faults, in Python.

    soak.py python|python-asyncio|redis-py|redis-cli CONFIG

The lines that it writes and reads are those of agent.py.
"""

import asyncio
import json
import math
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from agent import Agent, now, say

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python"))
from redis_lock_client import AsyncLock, Lock, LockLost


class Refused(Exception):
    """What redis-cli prints for an error."""


class Client(Agent):
    """Of a primary under Sentinels, over TLS."""

    def settings(self):
        """Of a connection to a server."""
        users = {"username": self.config["user"], "password": self.config["password"]}
        # Nothing is sent twice: of a guarded write nobody knows then how often it was run.
        limits = {"socket_timeout": 5, "socket_connect_timeout": 2, "retry": Retry(NoBackoff(), 0)}
        return {**users, **self.tls(), **limits}

    def tls(self):
        return {"ssl": True, "ssl_ca_certs": self.config["authority"]}

    def sentinels(self):
        return [("127.0.0.1", port) for port in self.config["sentinels"]]

    @staticmethod
    def name_of(error):
        """Its type; of an error reply the first words."""
        is_reply = isinstance(error, redis.ResponseError | Refused)
        return " ".join(str(error).split()[:6]) if is_reply else type(error).__name__


class Helper(Client):
    """redis_lock_client with threads."""

    lock_type = Lock

    def open(self):
        sentinel = redis.sentinel.Sentinel(self.sentinels(), sentinel_kwargs=self.tls())
        self.client = sentinel.master_for(self.config["name"], **self.settings())

    def make(self):
        task = self.task
        options = {"lease": task["lease_ms"] / 1000, "wait": task["wait_ms"] / 1000, "note": self.config["client"]}
        options["max_blocking"] = self.config["blocking"]
        if task["mode"] == "read":
            options["shared"] = True
        if task["mode"] == "share":
            options |= {"limit": task["limit"], "take": task["take"]}
        keys = task["keys"] if len(task["keys"]) > 1 else task["keys"][0]
        return self.lock_type(self.client, keys, **options)

    def take(self):
        self.lock = self.make()
        if not self.wait(self.lock.acquire()):
            return None
        self.note()
        until = self.until()
        if until is None:  # it slept through the lease
            self.release()
        return until

    def note(self):
        """Remembers what the hold is known by."""
        self.fences, self.owner = list(self.lock.fences), self.lock.owner

    def valid_until(self):
        # Nothing that a program needs: it asks `lost`. Here it is what is judged.
        return self.lock._hold.valid_until

    def valid_until_us(self):
        """None where nobody can say: a majority of servers keeps it no more."""
        until = self.valid_until()
        return int(until * 1e6) if math.isfinite(until) else None

    def until(self):
        until = self.valid_until_us()
        return None if self.lock.lost else until

    def look(self, number):
        at, lost = now(), self.lock.lost
        # Each renewal moves it on, so it was no later when the helper looked.
        until = self.valid_until_us()
        if not lost and until is not None and at > until:
            say("believes", hold=number, at=at, until=until)

    def guard(self, *command):
        return self.wait(self.lock.guard(*command))

    def release(self):
        try:
            self.wait(self.lock.release())
        except LockLost:
            return False
        return True

    @staticmethod
    def wait(done):
        return done


class Tasks(Helper):
    """The same with asyncio. The event loop renews, and runs in a thread of its own."""

    lock_type = AsyncLock

    def begin(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def open(self):
        self.begin()
        sentinel = redis.asyncio.sentinel.Sentinel(self.sentinels(), sentinel_kwargs=self.tls())
        self.client = sentinel.master_for(self.config["name"], **self.settings())

    def make(self):
        async def made():
            return Helper.make(self)

        return self.wait(made())

    def wait(self, done):
        return asyncio.run_coroutine_threadsafe(done, self.loop).result()


class Plain(Client):
    """The commands, by redis-py. Extends before each write."""

    def open(self):
        sentinel = redis.sentinel.Sentinel(self.sentinels(), sentinel_kwargs=self.tls())
        self.client = sentinel.master_for(self.config["name"], **self.settings())
        self.session = None

    def ask(self, *words):
        return (self.session or self.client).execute_command(*words)

    def take(self):
        task = self.task
        key, self.owner = task["keys"][0], f"{self.config['client']}:{secrets.token_hex(8)}"
        self.end_session()
        if task["session_ms"] is not None:
            pool = self.client.connection_pool
            self.session = redis.Redis(connection_pool=pool, single_connection_client=True)
        head = {
            "write": ["LOCK.ACQUIRE", key, self.owner],
            "read": ["LOCK.RW", key, self.owner, "READ"],
            "share": ["LOCK.SHARE", key, self.owner, task["limit"], "TAKE", task["take"]],
        }[task["mode"]]
        words = [*head, "PX", task["lease_ms"], "BLOCK", min(task["wait_ms"], 4000), "RETRY", task["take"]]
        try:
            fence = self.ask(*words, *self.session_words())
        except Exception:
            # It may have been granted all the same.
            self.settle()
            raise
        if fence is None:
            return None
        self.fences = [int(fence)]
        until = self.until()
        if until is None:
            self.settle()
        return until

    def session_words(self):
        return [] if self.task["session_ms"] is None else ["SESSION", self.task["session_ms"]]

    def until(self):
        """Extends; until when that is valid."""
        sent = now()
        key, lease = self.task["keys"][0], self.task["lease_ms"]
        reply = self.ask("LOCK.EXTEND", key, self.owner, "PX", lease, "FENCE", self.fences[0], *self.session_words())
        return None if reply is None else sent + lease * 1000

    def guard(self, *command):
        reply = self.ask("LOCK.GUARD", self.task["keys"][0], self.owner, self.fences[0], *command)
        if reply is None:
            raise LockLost("refused")
        return reply[1]

    def release(self):
        try:
            reply = self.ask("LOCK.RELEASE", self.task["keys"][0], self.owner, "ALL", "FENCE", self.fences[0])
        finally:
            self.end_session()
        return reply is not None

    def settle(self):
        try:
            self.ask("LOCK.RELEASE", self.task["keys"][0], self.owner, "ALL")
        except (redis.RedisError, OSError, Refused):
            pass  # then its lease ends it

    def end_session(self):
        if self.session is not None:
            self.session.close()
            self.session = None


class Cli(Plain):
    """The commands, by redis-cli: a process for each."""

    def open(self):
        self.session = None
        self.secret = {**os.environ, "REDISCLI_AUTH": self.config["password"]}

    def ask(self, *words):
        host, port = self.run_cli(self.config["sentinels"][0], [], ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "locks"])
        found = self.run_cli(port, ["--user", self.config["user"], "--no-auth-warning"], words)
        return found if len(found) > 1 else found[0] or None

    def run_cli(self, port, options, words):
        """The lines of the reply. A limit as any script would have one: a server that hangs must not stop it."""
        command = ["timeout", "8", self.config["redis_cli"], "-p", str(port), "--tls", "--cacert"]
        command += [self.config["authority"], *options, "-e", *map(str, words)]
        env = self.secret if options else None
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode != 0:
            raise Refused(done.stdout + done.stderr)
        return done.stdout.removesuffix("\n").split("\n")


if __name__ == "__main__":
    kinds = {"python": Helper, "python-asyncio": Tasks, "redis-py": Plain, "redis-cli": Cli}
    kinds[sys.argv[1]](json.loads(sys.argv[2])).run()
