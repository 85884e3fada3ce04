"""Uses the blocking helper as it is told by lines of JSON: see clients/scenarios.md.

python.py URL [--cluster] [blocking=N], where N waits may block. With the URL `fake:` it has a server in memory.
Each request runs in a thread of its own; those with "main" run in the main thread, where a signal's handler can raise
an exception in them, as Ctrl-C does.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients/python"))
from redis_lock_client import Deadlock, Lock, LockError, LockLost
from redis_lock_client.testing import FakeServer

# Of the client that hands on what the test says: replies as the server gives them, whenever that is.
RAW = {"decode_responses": True, "protocol": 2, "socket_timeout": None}
OPTIONS = ("lease", "wait", "shared", "limit", "take", "note")


class Cancelled(BaseException):
    """Raised in the main thread, as KeyboardInterrupt is."""


class Agent:
    def __init__(self, url, *words):
        cluster = "--cluster" in words
        self.options = {"max_blocking": int(word[9:]) for word in words if word.startswith("blocking=")}
        self.told = []
        if url == "fake:":
            fake = FakeServer()
            self.client, self.server_client = fake.client(), fake.client(**RAW)
            self.server_client.response_callbacks.clear()
        else:
            self.client = redis.RedisCluster.from_url(url) if cluster else redis.Redis.from_url(url)
        self.locks = {}
        self.signals = {}
        self.main = queue.SimpleQueue()
        self.running = None  # the request that runs in the main thread
        self.cancelled = set()
        self.writing = threading.Lock()

    def run(self):
        signal.signal(signal.SIGUSR1, self.on_signal)
        self.say({"ready": "python"})
        threading.Thread(target=self.read, daemon=True).start()
        while (request := self.main.get()) is not None:
            try:
                self.running = request["id"]
                if request["do"] == "acquire":
                    self.on_signal()  # it may have come already
                answer = self.perform(request)
                self.running = None
            except Cancelled as error:
                self.running = None
                answer = self.answer_to_cancelled(request, error)
            self.say({"id": request["id"], **answer})

    def read(self):
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "cancel":
                self.cancelled.add(request["of"])
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                self.say({"id": request["id"]})
            elif request.get("main"):
                self.main.put(request)
            else:
                work = threading.Thread(target=lambda r=request: self.say({"id": r["id"], **self.perform(r)}))
                work.daemon = True
                work.start()
        self.main.put(None)

    def on_signal(self, *_):
        if self.running in self.cancelled:
            self.running = None
            raise Cancelled

    def answer_to_cancelled(self, request, error):
        # The exception may have come outside of the helper: when the acquisition had just returned, or before the
        # release began. A second release is refused if the first one has begun.
        lock = self.locks[request["lock"]]
        if request["do"] == "acquire" and lock.check():
            return {"fences": lock.fences}
        if request["do"] == "release":
            with contextlib.suppress(LockError):
                lock.release()
        return failure("cancelled", error)

    def say(self, answer):
        with self.writing:
            print(json.dumps(answer), flush=True)

    def perform(self, request):
        """The answer, without its id."""
        try:
            return getattr(self, request["do"].replace("-", "_"))(request) or {}
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

    def open(self, request):
        options = self.options | {name: request[name] for name in OPTIONS if name in request}
        options["on_trouble"] = self.told.append
        if request.get("within"):
            options["within"] = self.locks[request["within"]]
        keys = request["keys"]
        self.locks[request["lock"]] = Lock(self.client, keys[0] if len(keys) == 1 else keys, **options)

    def acquire(self, request):
        lock = self.locks[request["lock"]]
        return {"fences": lock.fences if lock.acquire() else None}

    def release(self, request):
        self.locks[request["lock"]].release()
        return {"released": True}

    def check(self, request):
        return {"held": self.locks[request["lock"]].check()}

    def guard(self, request):
        return {"reply": text(self.locks[request["lock"]].guard(*request["command"]))}

    def lost(self, request):
        return {"lost": self.locks[request["lock"]].lost}

    def await_lost(self, request):
        # An event is set once and for all, so that it cannot be set a second time.
        return {"signals": int(self.locks[request["lock"]].wait_lost())}

    def owner(self, request):
        return {"owner": self.locks[request["lock"]].owner}

    def troubles(self, request):
        return {"troubles": [f"{trouble.kind}: {trouble}" for trouble in self.told]}

    def tasks(self, request):
        return {"tasks": threading.active_count()}

    def fork(self, request):
        """The child reads `lost`, sleeps 1.5 s, a lease and a half, and releases."""
        lock = self.locks[request["lock"]]
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, b"1" if lock.lost else b"0")
            threading.Event().wait(1.5)
            lock.release()
            os._exit(0)
        os.close(writer)
        lost = os.read(reader, 1) == b"1"
        os.close(reader)
        os.wait()
        return {"lost_in_child": lost}

    def close(self, request):
        self.client.close()

    def server(self, request):
        """What the server in memory says to a command."""
        try:
            return {"reply": self.server_client.execute_command(*request["command"])}
        except redis.ResponseError as error:
            return {"reply": {"error": str(error)}}

    def ping(self, request):
        self.client.ping()


def failure(kind, error):
    return {
        "error": kind,
        "message": f"{getattr(error, 'status_code', None) or ''} {error}".strip(),
    }


def text(reply):
    return reply.decode() if isinstance(reply, bytes) else reply


if __name__ == "__main__":
    Agent(*sys.argv[1:]).run()
