#!/usr/bin/env python3
"""Measures the helpers beside other makers' locks, in turns in one run, on a server of its own.

    clients/bench/bench.py [--rounds 3] [--seconds 2] [--only WORD] [--curator] [--write]

Prints tables, and which bars are reached; with --write that goes into docs/performance.md. With --curator there is
Curator, too. `README.md` beside this file says how a driver speaks.
Needs REDIS_LOCK_MODULE, and REDIS_LOCK_SERVER or redis-server.
"""

import argparse
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis
from bars import CUT, FREE, HELD, NOTIFY, PLACES, QUEUE, verdicts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- clients -->\n", "<!-- end of clients -->"
PYTHON = [sys.executable, str(ROOT / "clients/bench/driver.py")]
NODE = [os.environ.get("REDIS_LOCK_NODE", str(ROOT / "target/node/bin/node")), str(ROOT / "clients/bench/driver.mjs")]
GO = [str(ROOT / "target/helpers/go-driver")]
BUILT = ROOT / "target/java/redislock-bench"
JAVA = ["java", "-cp", f"{BUILT}/classes:{BUILT}/libraries/*", "Driver"]
WITH_CURATOR = BUILT.with_name("redislock-curator")
ZOOKEEPER = ["java", "-cp", f"{WITH_CURATOR}/classes:{WITH_CURATOR}/libraries/*"]
OURS = ["lock.acquire", "lock.extend", "lock.release"]
SCRIPTS = ["set", "evalsha", "eval"]
# The language, the kind as its driver knows it, the driver, and the commands that its library sends: the server counts
# those within scripts as well.
KINDS = [
    ("Python", "redis-lock-client", PYTHON, OURS),
    ("Python", "redis-lock-client by NOTIFY", PYTHON, OURS),
    ("Python", "redis-py", PYTHON, SCRIPTS),
    ("Python", "pottery", PYTHON, SCRIPTS),
    ("Node.js", "redis-lock-client, node-redis", NODE, OURS),
    ("Node.js", "redis-lock-client, ioredis", NODE, OURS),
    ("Node.js", "redis-lock-client by NOTIFY, node-redis", NODE, OURS),
    ("Node.js", "redis-lock-client by NOTIFY, ioredis", NODE, OURS),
    ("Node.js", "node-redlock", NODE, ["evalsha", "eval"]),
    ("Node.js", "redis-semaphore", NODE, SCRIPTS),
    ("Go", "redislock, go-redis", GO, OURS),
    ("Go", "redislock, rueidis", GO, OURS),
    ("Go", "redislock, redigo", GO, OURS),
    ("Go", "redislock by NOTIFY, go-redis", GO, OURS),
    ("Go", "redislock by NOTIFY, rueidis", GO, OURS),
    ("Go", "redislock by NOTIFY, redigo", GO, OURS),
    ("Go", "redsync", GO, SCRIPTS),
    ("Go", "bsm/redislock", GO, SCRIPTS),
    ("Java", "redislock, Lettuce", JAVA, OURS),
    ("Java", "redislock, Jedis", JAVA, OURS),
    ("Java", "redislock by NOTIFY, Lettuce", JAVA, OURS),
    ("Java", "redislock by NOTIFY, Jedis", JAVA, OURS),
    # To unlock, its script publishes once, and a DEL follows: those within scripts are other keys'.
    ("Java", "Redisson", JAVA, ["evalsha", "eval", "publish"]),
    ("Java", "Spring's RedisLockRegistry", JAVA, ["evalsha", "eval"]),
]
CURATOR = ("Java", "Curator", [*ZOOKEEPER, "CuratorDriver"], [])
# Each case with its owners, and how long each holds the lock. Who waits by NOTIFY takes no part in the first one.
CASES = {FREE: (1, 0), QUEUE: (64, 0), HELD: (64, 1), CUT: (64, 0)}
CUT_EACH = 0.25
# Which languages take part. In the first one owners are no threads.
ONLY_OF = {PLACES: ("Node.js", "Go", "Java"), CUT: ("Java",)}
HEAD = [
    *("locks", "locks/s", "best and worst owner", "longest wait, ms", "requests a lock"),
    *("client CPU, us a lock", "server CPU, us a lock", "connections: open, opened a lock"),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server with the module, in a folder of its own."""

    def __init__(self):
        self.port = free_port()
        self.folder = tempfile.TemporaryDirectory()
        program = os.environ.get("REDIS_LOCK_SERVER") or shutil.which("redis-server")
        settings = ["--port", str(self.port), "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen(
            [program, *settings, "--loadmodule", os.environ["REDIS_LOCK_MODULE"]], stdout=subprocess.DEVNULL
        )
        self.client = redis.Redis(port=self.port)
        end = time.monotonic() + 30
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def empty(self):
        """Without locks, and without the places of the process before."""
        while len(self.client.client_list()) > 1:
            time.sleep(0.01)
        self.client.flushall()

    def connections(self):
        return len(self.client.client_list()) - 1

    def cut(self):
        for kind in ("normal", "pubsub"):
            self.client.client_kill_filter(_type=kind, skipme=True)

    def memory(self):
        """Without what connections take."""
        memory = self.client.info("memory")
        return memory["used_memory"] - memory["mem_clients_normal"]

    def figures(self, commands):
        stats = self.client.info("commandstats")
        info = self.client.info()
        calls = sum(stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands)
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        opened, seconds = info["total_connections_received"], info["server_time_usec"] / 1e6
        return {"calls": calls, "cpu": cpu, "opened": opened, "seconds": seconds}

    def name(self):
        info = self.client.info("server")
        return (
            f"{'Valkey' if 'valkey_version' in info else 'Redis'} {info.get('valkey_version', info['redis_version'])}"
        )


class ZooKeeper:
    """A ZooKeeper that awaits no disk, as the other server does not. It counts all requests: its clients only lock."""

    def __init__(self):
        self.port = free_port()
        self.folder = tempfile.TemporaryDirectory()
        settings = ["-Dzookeeper.forceSync=no", "-Dzookeeper.admin.enableServer=false"]
        program = [*ZOOKEEPER, *settings, "org.apache.zookeeper.server.ZooKeeperServerMain"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*program, str(self.port), self.folder.name], **quiet)
        end = time.monotonic() + 60
        while not self.answers():
            if time.monotonic() > end or self.process.poll() is not None:
                sys.exit("bench-clients: ZooKeeper does not start")
            time.sleep(0.1)

    def answers(self):
        try:
            return self.stat("Received") >= 0
        except OSError:
            return False

    def stat(self, name):
        """A number of what it says of itself."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as asked:
            asked.sendall(b"srvr")
            said = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
        found = re.search(rf"^{name}: (\d+)$", said, re.M)
        return int(found[1]) if found else -1

    def url(self):
        return f"zookeeper://127.0.0.1:{self.port}"

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def empty(self):
        """Without the session of the process before."""
        while self.connections() > 0:
            time.sleep(0.1)

    def connections(self):
        """Without the one that asks."""
        return self.stat("Connections") - 1

    def figures(self, _sends):
        times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        opened, seconds = self.connections(), time.time()
        return {"calls": self.stat("Received"), "cpu": cpu, "opened": opened, "seconds": seconds}


def driven(server, kind, driver, keys, seconds=0.0, hold=0):
    """Starts a driver. Its pipes end it."""
    plan = {"kind": kind, "url": server.url(), "keys": keys, "seconds": seconds, "hold_ms": hold}
    plan["blocking"] = 0 if NOTIFY in kind else len(keys)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([*driver, json.dumps(plan)], **pipes)


def await_ready(process, kind):
    if not json.loads(process.stdout.readline() or "{}").get("ready"):
        sys.exit(f"bench-clients: the driver of {kind} did not start")


def measure(server, kind, driver, sends, case, seconds):
    owners, hold = CASES[case]
    server.empty()
    with driven(server, kind, driver, ["bench"] * owners, seconds, hold) as process:
        try:
            await_ready(process, kind)
            before = server.figures(sends)
            print("go", file=process.stdin, flush=True)
            end = time.monotonic() + seconds
            while case == CUT and time.monotonic() < end:
                time.sleep(CUT_EACH)
                server.cut()
            said = json.loads(process.stdout.readline())
            after = server.figures(sends)
            connections = server.connections()
        finally:
            process.kill()
    rate = max(sum(said["locks"]), 1) / said["seconds"]
    # The server is asked a little before and after the driver, and its owners go on meanwhile.
    locks = rate * (after["seconds"] - before["seconds"])
    return {
        "rate": rate,
        "best": max(said["locks"]) / said["seconds"],
        "worst": min(said["locks"]) / said["seconds"],
        "spread": max(said["locks"]) - min(said["locks"]),
        "even": min(said["locks"]) / max(*said["locks"], 1),
        "longest": said["longest"] * 1e3,
        "requests": (after["calls"] - before["calls"]) / locks,
        "client": said["cpu"] / locks * 1e6,
        "server": (after["cpu"] - before["cpu"]) / locks * 1e6,
        "open": connections,
        "opened": (after["opened"] - before["opened"]) / locks,
        "failed": said["failed"],
    }


def measure_places(kind, driver):
    """What those take who wait until the end of this: a driver takes each lock once before it is ready."""
    server, keys = Server(), [f"bench:{number}" for number in range(1_000)]
    for key in keys:
        server.client.execute_command("LOCK.ACQUIRE", key, "another", "PX", 600_000)
    before = server.memory()
    with driven(server, kind, driver, keys * 10) as process:
        try:
            end = time.monotonic() + 120
            while (places := server.client.info("lock")["lock_places"]) < 10 * len(keys):
                if time.monotonic() > end or process.poll() is not None:
                    sys.exit(f"bench-clients: {places} places of {kind}")
                time.sleep(0.1)
            return {"open": server.connections(), "bytes": (server.memory() - before) / places}
        finally:
            process.kill()
            server.close()


def row(language, kind, runs):
    of = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    failed = f"; {of['failed']:.0f} failed" if of["failed"] else ""
    return [
        f"{language}: {kind}{failed}",
        f"{of['rate']:,.0f}",
        f"{of['best']:,.0f}, {of['worst']:,.0f}",
        f"{of['longest']:,.0f}",
        f"{of['requests']:.2f}",
        f"{of['client']:,.0f}",
        f"{of['server']:,.0f}",
        f"{of['open']:.0f}, {of['opened']:.2f}",
    ]


def processor():
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found.group(1) if found else platform.processor()


def table(head, rows):
    return [f"|{'|'.join(cells)}|" for cells in (head, ["---"] * len(head), *rows)]


def text(server, kinds, runs, rounds, seconds):
    """The tables, and on what they were measured."""
    machine = f"{processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f}, {server.name()}"
    lines = [f"{machine}. Medians of {rounds} runs of {seconds:g} s each, in turns."]
    for case in CASES:
        measured = [(language, kind) for language, kind, *_ in kinds if (case, language, kind) in runs]
        rows = [row(language, kind, runs[case, language, kind]) for language, kind in measured]
        if rows:
            lines += ["", f"{case[0].upper()}{case[1:]}:", "", *table(HEAD, rows)]
    helpers = [(language, kind) for language, kind, _, sends in kinds if sends is OURS]
    bars = table(["bar", "reached", "verdict"], verdicts(helpers, runs))
    return "\n".join([*lines, "", f"The bars, with {PLACES}:", "", *bars]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="", help="the kinds with this in their language or name")
    parser.add_argument("--curator", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    kinds = [one for one in [*KINDS, *[CURATOR] * options.curator] if options.only in f"{one[0]} {one[1]}"]
    server = Server()
    zookeeper = ZooKeeper() if CURATOR in kinds else None
    try:
        runs = {}
        for number in range(options.rounds):
            for case in (*CASES, PLACES):
                for language, kind, driver, sends in kinds:
                    if language not in ONLY_OF.get(case, (language,)):
                        continue
                    if case == PLACES and NOTIFY not in kind or case == CUT and kind == CURATOR[1]:
                        continue
                    if case == PLACES:
                        figures = measure_places(kind, driver)
                    elif case == FREE and NOTIFY in kind:
                        continue
                    else:
                        asked = zookeeper if zookeeper and kind == CURATOR[1] else server
                        figures = measure(asked, kind, driver, sends, case, options.seconds)
                    runs.setdefault((case, language, kind), []).append(figures)
                    said = ", ".join(f"{name} {figure:,.2f}" for name, figure in figures.items())
                    print(f"{number + 1}: {case}: {language}: {kind}: {said}", file=sys.stderr)
        found = text(server, kinds, runs, options.rounds, options.seconds)
    finally:
        server.close()
        if zookeeper:
            zookeeper.close()
    print(found)
    if options.write:
        page = PAGE.read_text()
        begin = page.index(BEGIN) + len(BEGIN)
        PAGE.write_text(page[:begin] + "\n" + found + "\n" + page[page.index(END) :])


if __name__ == "__main__":
    main()
