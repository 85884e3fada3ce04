#!/usr/bin/env python3
"""A job queue under locks, and a page that shows live which worker holds what, which wait, and what was lost.

    make example                                    beside the server of make run
    python app.py --redis redis://localhost:6379    with redis-py, and a server that has the module

Needs Python 3.10 and redis-py. Serves the page at 127.0.0.1 alone: everyone who sees it may kill the workers.
Ends with Ctrl-C, and so do the workers. Keeps nothing but a counter of jobs, in the server.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import redis
import watch
from store import Store
from worker import jobs_of, lock_of

HERE = Path(__file__).resolve().parent
STOCKS = ("apples", "pears")
JOBS_WAITING = 5  # the producer keeps so many in each queue
WORKERS_MAX = 12
ROWS = 6
REMEMBERED = 3.0  # for how many seconds the page shows a worker that is gone
PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page.mjs": ("page.mjs", "text/javascript; charset=utf-8"),
}


class Worker:
    """A process of worker.py, and what was done to it."""

    def __init__(self, number: int, command: list[str]) -> None:
        self.number, self.name = number, f"worker {number}"
        # The pipe ends when this process does, however it ends, and with it the worker.
        self.process = subprocess.Popen([*command, "--name", self.name], stdin=subprocess.PIPE)  # noqa: S603
        self.frozen_until: float | None = None
        self.gone_at: float | None = None

    @property
    def state(self) -> str:
        if self.process.poll() is not None:
            return "gone"
        return "running" if self.frozen_until is None else "frozen"

    def freeze(self, seconds: float) -> None:
        """Stops the process, as a long pause of the machine would. It knows nothing of that when it goes on."""
        self.process.send_signal(signal.SIGSTOP)
        self.frozen_until = time.monotonic() + seconds

    def wake(self) -> None:
        self.frozen_until = None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once: it gives nothing back."""
        self.frozen_until = None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Lets it give its lock back, and end."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()


class App:
    """The workers, and the state that the page shows."""

    def __init__(self, args: argparse.Namespace, store_path: str) -> None:
        self.args, self.store_path = args, store_path
        # Owners are any bytes: the page shows those that are no UTF-8 as \xff.
        self.client = redis.Redis.from_url(
            args.redis, decode_responses=True, encoding_errors="backslashreplace", protocol=3
        )
        self.client.ping()
        self.client.execute_command("LOCK.INFO", lock_of(STOCKS[0]))  # an error, if the server lacks the module
        self.start_ms = int(self.client.time()[0]) * 1000
        self.events = watch.turn_events_on(self.client)
        self.client.delete(*map(jobs_of, STOCKS))
        self.workers: dict[int, Worker] = {}
        self.names: dict[int, str] = {}  # of each process there ever was
        self.made = 0
        self.mutex = threading.RLock()
        self.news = threading.Condition()
        self.state: dict[str, Any] = {}
        self.version = 0
        store = Store(store_path)
        for stock in STOCKS:
            store.create(stock)
        for _ in range(args.workers):
            self.add()

    # --- the workers ---

    def add(self) -> bool:
        """One more. False if there are enough."""
        with self.mutex:
            if sum(worker.state != "gone" for worker in self.workers.values()) >= WORKERS_MAX:
                return False
            self.made += 1
            first = self.made % len(STOCKS)
            options = {"redis": self.args.redis, "store": self.store_path, "lease": self.args.lease}
            options["work"] = self.args.work
            command = [sys.executable, str(HERE / "worker.py")]
            command += [f"--{name}={value}" for name, value in options.items()]
            worker = Worker(self.made, [*command, *STOCKS[first:], *STOCKS[:first]])
            self.workers[worker.number] = worker
            self.names[worker.process.pid] = worker.name
            return True

    def act(self, number: int, what: str) -> bool:
        """Kills, freezes or wakes a worker. False if there is none of that number."""
        with self.mutex:
            worker = self.workers.get(number)
            if worker is None or worker.state == "gone":
                return False
            if what == "kill":
                worker.kill()
            elif what == "freeze" and worker.state == "running":
                # Beyond its lease, so that another holds the lock when it goes on.
                worker.freeze(self.args.lease + 2)
            elif what == "wake" and worker.state == "frozen":
                worker.wake()
            return True

    def wake_and_forget(self, seen: set[str]) -> None:
        """Wakes the workers that were frozen long enough; forgets those that are gone and are seen in no lock."""
        now = time.monotonic()
        with self.mutex:
            for worker in list(self.workers.values()):
                if worker.frozen_until is not None and now >= worker.frozen_until:
                    worker.wake()
                if worker.state != "gone":
                    continue
                if worker.gone_at is None or worker.name in seen:
                    worker.gone_at = now
                elif now - worker.gone_at > REMEMBERED:
                    del self.workers[worker.number]

    def stop(self) -> None:
        with self.mutex:
            for worker in self.workers.values():
                worker.stop()
            for worker in self.workers.values():
                try:
                    worker.process.wait(5)
                except subprocess.TimeoutExpired:
                    worker.kill()

    # --- the state ---

    def changed(self) -> None:
        """Reads the state anew, by the thread of `Watch` alone, and tells the pages."""
        try:
            state = self.read()
        except redis.RedisError as error:
            state = {**self.state, "error": f"The lock server does not answer: {error}"}
        with self.news:
            self.state, self.version = state, self.version + 1
            self.news.notify_all()

    def read(self) -> dict[str, Any]:
        store = Store(self.store_path)
        amounts = store.amounts()
        keys = {lock_of(stock): stock for stock in STOCKS}
        locks = []
        for stock in STOCKS:
            waiting = int(self.client.llen(jobs_of(stock)))
            for _ in range(waiting, JOBS_WAITING):
                self.client.rpush(jobs_of(stock), f"job {self.client.incr('example:jobs')}")
            lock = watch.lock_now(self.client, lock_of(stock))
            for one in [*lock["waiters"], *([lock["holder"]] if lock["holder"] else [])]:
                one["worker"] = self.name_of(one.pop("owner"))
            amount, writes = amounts[stock]
            locks.append({"stock": stock, "amount": amount, "writes": writes, **lock})
        waits = watch.longest_waits(self.client, set(keys), ROWS)
        for wait in waits:
            wait["worker"], wait["stock"] = self.name_of(wait.pop("owner")), keys[wait.pop("key")]
        lost = watch.lost_holds(self.client, set(keys), self.start_ms, ROWS)
        lost = [{**row, "worker": self.name_of(row["owner"]), "stock": keys[row["key"]]} for row in lost]
        holds = {lock["holder"]["worker"]: lock["stock"] for lock in locks if lock["holder"]}
        queues = {one["worker"]: lock["stock"] for lock in locks for one in lock["waiters"]}
        self.wake_and_forget({*holds, *queues})
        with self.mutex:
            workers = [
                {
                    "number": worker.number,
                    "name": worker.name,
                    "state": worker.state,
                    "holds": holds.get(worker.name),
                    "waits": queues.get(worker.name),
                }
                for worker in self.workers.values()
            ]
        return {
            "error": None,
            "lease_ms": int(self.args.lease * 1000),
            "locks": locks,
            "workers": workers,
            "waits": waits,
            "lost": lost,
            "writes": store.last_writes(ROWS, accepted=True),
            "refused": store.last_writes(ROWS, accepted=False),
            "refused_count": store.refused(),
        }

    def name_of(self, owner: str) -> str:
        """The worker; of somebody else, who asks for the same lock, the owner."""
        pid = watch.pid_of(owner)
        return owner if pid is None else self.names.get(pid, owner)

    def wait_for_news(self, version: int, timeout: float) -> tuple[int, dict[str, Any]]:
        with self.news:
            self.news.wait_for(lambda: self.version > version, timeout)
            return self.version, self.state


class Handler(http.server.BaseHTTPRequestHandler):
    """The page, its events, and its buttons."""

    app: App
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds, for a client that sends or reads nothing

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has gone
            super().handle()

    def parse_request(self) -> bool:
        """No request here has a body. One that has is the last of its connection.

        Else the body would be read as the next request, and another site could write X-Example into it.
        """
        if not super().parse_request():
            return False
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True
        return True

    def do_GET(self) -> None:
        if not self.is_from_here():
            self.answer(403)
        elif self.path in PAGES:
            name, kind = PAGES[self.path]
            self.answer(200, (HERE / "page" / name).read_bytes(), kind)
        elif self.path == "/state":
            self.answer(200, json.dumps(self.app.state).encode(), "application/json")
        elif self.path == "/events":
            self.send_events()
        else:
            self.answer(404)

    def do_POST(self) -> None:
        worker = re.fullmatch(r"/workers/([0-9]{1,9})/(kill|freeze|wake)", self.path)
        if not self.is_from_here() or self.headers.get("X-Example") != "page":
            self.answer(403)
        elif self.path == "/workers":
            self.answer(204 if self.app.add() else 409)
        elif worker:
            self.answer(204 if self.app.act(int(worker[1]), worker[2]) else 404)
        else:
            self.answer(404)

    def is_from_here(self) -> bool:
        """Whether the address bar says this machine: other sites must not reach the buttons by a name of their own.

        Nor can they send X-Example: a browser asks first, and is not answered.
        """
        return re.fullmatch(r"(127\.0\.0\.1|localhost)(:[0-9]+)?", self.headers.get("Host", "")) is not None

    def answer(self, code: int, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
        )
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_events(self) -> None:
        """Server-sent events: each has the whole state."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        version = 0
        try:
            while True:
                version, state = self.app.wait_for_news(version, 15)
                self.wfile.write(f"data: {json.dumps(state)}\n\n".encode())
                self.wfile.flush()
        except OSError:
            pass  # the page was closed

    def log_message(self, *_: Any) -> None:
        """Says nothing of each request."""


def main() -> None:
    parser = argparse.ArgumentParser(description="a job queue under locks, with a page that shows them live")
    parser.add_argument("--port", type=int, default=8080, help="of the page; 0 takes a free one (8080)")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379", help="the lock server (redis://127.0.0.1:6379)")
    parser.add_argument("--workers", type=int, default=4, help="how many there are at first (4)")
    parser.add_argument("--lease", type=float, default=5, help="of each lock, in seconds (5; the helper's own is 30)")
    parser.add_argument("--work", type=float, default=2.5, help="how long a job takes, in seconds (2.5)")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="job-queue-") as folder:
        try:
            app = App(args, os.path.join(folder, "store.db"))
        except redis.RedisError as error:
            sys.exit(f"no lock server at {args.redis}: {error}\nStart one with: make run")
        Handler.app = app
        watch.Watch(app.client, app.changed).start()
        try:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
            server.daemon_threads = True
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            print(f"Open http://127.0.0.1:{server.server_port}/ in a browser. Ctrl-C ends it.", flush=True)
            server.serve_forever()
        except OSError as error:
            sys.exit(f"port {args.port}: {error.strerror}. Choose another one with --port")
        except KeyboardInterrupt:
            print()
        finally:
            app.stop()


if __name__ == "__main__":
    main()
