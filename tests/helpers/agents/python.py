"""Uses the blocking helper as it is told by lines of JSON: see clients/scenarios.md.

python.py URL [--cluster] [blocking=N], where N waits may block. With the URL `fake:` it has a server in memory.
Each request runs in a thread of its own; those with "main" run in the main thread, where a signal's handler can raise
an exception in them, as Ctrl-C does.
"""

import contextlib
import json
import queue
import signal
import sys
import threading

import python_shared
import redis
from python_shared import RAW, failure, text

from redis_lock_client import Lock, LockError
from redis_lock_client.testing import FakeServer


class Cancelled(BaseException):
    """Raised in the main thread, as KeyboardInterrupt is."""


class Agent(python_shared.Agent):
    kind = Lock

    def __init__(self, url, *words):
        super().__init__(*words)
        cluster = "--cluster" in words
        if url == "fake:":
            fake = FakeServer()
            self.client, self.server_client = fake.client(), fake.client(**RAW)
            self.server_client.response_callbacks.clear()
        else:
            self.client = redis.RedisCluster.from_url(url) if cluster else redis.Redis.from_url(url)
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
                self.interrupt()
                self.say({"id": request["id"]})
            elif request.get("main"):
                self.main.put(request)
            else:
                work = threading.Thread(target=lambda r=request: self.say({"id": r["id"], **self.perform(r)}))
                work.daemon = True
                work.start()
        self.main.put(None)

    @staticmethod
    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def on_signal(self, _=None, frame=None):
        if self.running in self.cancelled:
            while frame is not None:
                if frame.f_code.co_name == "__del__":  # Python drops what a destructor raises
                    threading.Timer(0.01, self.interrupt).start()
                    return
                frame = frame.f_back
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
        return failure(error, "cancelled")

    def say(self, answer):
        with self.writing:
            print(json.dumps(answer), flush=True)

    def perform(self, request):
        """The answer, without its id."""
        try:
            return getattr(self, request["do"].replace("-", "_"))(request) or {}
        except (redis.RedisError, ValueError) as error:
            return failure(error)

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

    def await_lost(self, request):
        # An event is set once and for all, so that it cannot be set a second time.
        return {"signals": int(self.locks[request["lock"]].wait_lost())}

    def tasks(self, request):
        return {"tasks": threading.active_count()}

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


if __name__ == "__main__":
    Agent(*sys.argv[1:]).run()
