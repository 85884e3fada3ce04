"""Uses the asyncio helper as it is told by lines of JSON: see clients/scenarios.md.

python_asyncio.py URL [--cluster] [blocking=N], where N waits may block. With the URL `fake:` it has a server in memory.
Each request runs in a task of its own.
"""

import asyncio
import inspect
import json
import sys

import python_shared
import redis.asyncio as redis
from python_shared import RAW, failure, text

from redis_lock_client import AsyncLock
from redis_lock_client.testing import FakeServer


class Agent(python_shared.Agent):
    kind = AsyncLock

    def __init__(self, url, *words):
        super().__init__(*words)
        cluster = "--cluster" in words
        if url == "fake:":
            fake = FakeServer()
            self.client, self.server_client = fake.async_client(), fake.async_client(**RAW)
            self.server_client.response_callbacks.clear()
        else:
            self.client = (redis.RedisCluster if cluster else redis.Redis).from_url(url)
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
            answer = failure(error, "cancelled")
        del self.running[request["id"]]
        say({"id": request["id"], **answer})

    async def perform(self, request):
        """The answer, without its id."""
        try:
            answer = getattr(self, request["do"].replace("-", "_"))(request)
            return (await answer if inspect.isawaitable(answer) else answer) or {}
        except (redis.RedisError, ValueError) as error:
            return failure(error)

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

    async def await_lost(self, request):
        # An event is set once and for all, so that it cannot be set a second time.
        return {"signals": int(await self.locks[request["lock"]].wait_lost())}

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


def say(answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(Agent(*sys.argv[1:]).run())
