"""What the agents for threads and for asyncio share: see clients/scenarios.md."""

import sys
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients/python"))
from redis_lock_client import Deadlock, LockError, LockLost

# Of the client that hands on what the test says: replies as the server gives them, whenever that is.
RAW = {"decode_responses": True, "protocol": 2, "socket_timeout": None}
OPTIONS = ("lease", "wait", "shared", "limit", "take", "note")
KINDS = (
    (Deadlock, "deadlock"),
    (LockLost, "lost"),
    ((LockError, ValueError), "refused"),
    ((redis.ConnectionError, redis.TimeoutError), "connection"),
    (redis.RedisError, "server"),
)


class Agent:
    """Has the locks of a test, by their names, and what the application was told."""

    kind: type

    def __init__(self, *words):
        self.options = {"max_blocking": int(word[9:]) for word in words if word.startswith("blocking=")}
        self.told, self.locks = [], {}

    def open(self, request):
        options = self.options | {name: request[name] for name in OPTIONS if name in request}
        options["on_trouble"] = self.told.append
        if request.get("within"):
            options["within"] = self.locks[request["within"]]
        keys = request["keys"]
        self.locks[request["lock"]] = self.kind(self.client, keys[0] if len(keys) == 1 else keys, **options)

    def lost(self, request):
        return {"lost": self.locks[request["lock"]].lost}

    def owner(self, request):
        return {"owner": self.locks[request["lock"]].owner}

    def troubles(self, request):
        return {"troubles": [f"{trouble.kind}: {trouble}" for trouble in self.told]}


def failure(error, kind=None):
    """The answer to a request that ended so."""
    kind = kind or next(kind for types, kind in KINDS if isinstance(error, types))
    return {"error": kind, "message": f"{getattr(error, 'status_code', None) or ''} {error}".strip()}


def text(reply):
    return reply.decode() if isinstance(reply, bytes) else reply
