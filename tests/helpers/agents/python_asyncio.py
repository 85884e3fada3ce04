"""Uses the asyncio helper as it is told by lines of JSON: see clients/scenarios.md.

python_asyncio.py URL [--cluster] [blocking=N], where N waits may block. With the URL `fake:` it has a server in memory.
Each request runs in a task of its own.
"""

import asyncio
import json
import sys
from pathlib import Path

import redis.asyncio as redis

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients/python"))
from redis_lock_client import AsyncLock, Deadlock, LockError, LockLost
from redis_lock_client.testing import FakeServer

# Of the client that hands on what the test says: replies as the server gives them, whenever that is.
RAW = {"decode_responses": True, "protocol": 2, "socket_timeout": None}
OPTIONS = ("lease", "wait", "shared", "limit", "take", "note")


class Agent:
    def __init__(self, url, *words):
        cluster = "--cluster" in words
        self.options = {"max_blocking": int(word[9:]) for word in words if word.startswith("blocking=")}
        self.told = []
        if url == "fake:":
            fake = FakeServer()
            self.client, self.server_client = fake.async_client(), fake.async_client(**RAW)
            self.server_client.response_callbacks.clear()
        else:
            self.client = (redis.RedisCluster if cluster else redis.Redis).from_url(url)
        self.locks = {}
        self.running = {}

    async def run(self):
        say({"ready": "asyncio"})
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            request = json.loads(line)
            if request["do"] == "cancel":
                await asyncio.sleep(0)  # a task that is cancelled before its first step would never answer
                if task := self.running.get(request["of"]):
                    task.cancel()
                say({"id": request["id"]})
                continue
            self.running[request["id"]] = asyncio.create_task(self.answer(request))

    async def answer(self, request):
        try:
            answer = await self.perform(request)
        except asyncio.CancelledError as error:
            answer = failure("cancelled", error)
        del self.running[request["id"]]
        say({"id": request["id"], **answer})

    async def perform(self, request):
        """The answer, without its id."""
        try:
            return await getattr(self, request["do"].replace("-", "_"))(request) or {}
        except Deadlock as error:
            return failure("deadlock", error)
        except LockLost as error:
            return failure("lost", error)
        except (LockError, ValueError) as error:
            return failure("refused", error)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            return failure("connection", error)
        except redis.RedisError as error:
            return failure("server", error)

    async def open(self, request):
        options = self.options | {name: request[name] for name in OPTIONS if name in request}
        options["on_trouble"] = self.told.append
        if request.get("within"):
            options["within"] = self.locks[request["within"]]
        keys = request["keys"]
        self.locks[request["lock"]] = AsyncLock(self.client, keys[0] if len(keys) == 1 else keys, **options)

    async def acquire(self, request):
        lock = self.locks[request["lock"]]
        return {"fences": lock.fences if await lock.acquire() else None}

    async def release(self, request):
        await self.locks[request["lock"]].release()
        return {"released": True}

    async def check(self, request):
        return {"held": await self.locks[request["lock"]].check()}

    async def guard(self, request):
        return {"reply": text(await self.locks[request["lock"]].guard(*request["command"]))}

    async def lost(self, request):
        return {"lost": self.locks[request["lock"]].lost}

    async def await_lost(self, request):
        # An event is set once and for all, so that it cannot be set a second time.
        return {"signals": int(await self.locks[request["lock"]].wait_lost())}

    async def owner(self, request):
        return {"owner": self.locks[request["lock"]].owner}

    async def troubles(self, request):
        return {"troubles": [f"{trouble.kind}: {trouble}" for trouble in self.told]}

    async def tasks(self, request):
        return {"tasks": len(asyncio.all_tasks())}

    async def close(self, request):
        await self.client.aclose()

    async def server(self, request):
        """What the server in memory says to a command."""
        try:
            return {"reply": await self.server_client.execute_command(*request["command"])}
        except redis.ResponseError as error:
            return {"reply": {"error": str(error)}}

    async def ping(self, request):
        await self.client.ping()


def failure(kind, error):
    return {
        "error": kind,
        "message": f"{getattr(error, 'status_code', None) or ''} {error}".strip(),
    }


def say(answer):
    print(json.dumps(answer), flush=True)


def text(reply):
    return reply.decode() if isinstance(reply, bytes) else reply


if __name__ == "__main__":
    asyncio.run(Agent(*sys.argv[1:]).run())
