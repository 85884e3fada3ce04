#!/usr/bin/env python3
"""Measures the helpers beside other makers' locks, in turns in one run, on a server of its own.

    clients/bench/bench.py [--rounds 3] [--seconds 3] [--only WORD] [--write]

Prints a table; with --write it goes into docs/performance.md. `README.md` beside this file says how a driver speaks.
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

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- clients -->\n", "<!-- end of clients -->"
PYTHON = [sys.executable, str(ROOT / "clients/bench/driver.py")]
NODE = [os.environ.get("REDIS_LOCK_NODE", str(ROOT / "target/node/bin/node")), str(ROOT / "clients/bench/driver.mjs")]
OURS = ["lock.acquire", "lock.extend", "lock.release"]
# The language, the kind as its driver knows it, the driver, and the commands that its library sends: the server counts
# those within scripts as well.
KINDS = [
    ("Python", "redis-lock-client", PYTHON, OURS),
    ("Python", "redis-py", PYTHON, ["set", "evalsha", "eval"]),
    ("Python", "pottery", PYTHON, ["set", "evalsha", "eval"]),
    ("Node.js", "redis-lock-client, node-redis", NODE, OURS),
    ("Node.js", "redis-lock-client, ioredis", NODE, OURS),
    ("Node.js", "redis-lock-client by NOTIFY, node-redis", NODE, OURS),
    ("Node.js", "redis-lock-client by NOTIFY, ioredis", NODE, OURS),
    ("Node.js", "node-redlock", NODE, ["evalsha", "eval"]),
    ("Node.js", "redis-semaphore", NODE, ["set", "evalsha", "eval"]),
]
# What is measured: owners, how many keys they share, and how long each holds.
CASES = [
    ("one owner, a key that nobody else wants", 1, 0),
    ("16 owners of one process, one key", 16, 0),
    ("the same, each holds it for 1 ms", 16, 1),
]
HEAD = [
    *("locks", "locks/s", "best and worst owner", "requests a lock"),
    *("client CPU, us a lock", "server CPU, us a lock", "connections: open, opened a lock"),
]


class Server:
    """A server with the module, in a folder of its own."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
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

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def figures(self, commands):
        stats = self.client.info("commandstats")
        info = self.client.info()
        calls = sum(stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands)
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        return {"calls": calls, "cpu": cpu, "opened": info["total_connections_received"]}

    def name(self):
        info = self.client.info("server")
        return (
            f"{'Valkey' if 'valkey_version' in info else 'Redis'} {info.get('valkey_version', info['redis_version'])}"
        )


def measure(server, kind, driver, sends, case, seconds):
    _, owners, hold = case
    server.client.flushall()
    plan = {"kind": kind, "url": f"redis://127.0.0.1:{server.port}", "seconds": seconds, "hold_ms": hold}
    plan["keys"] = ["bench"] * owners
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*driver, json.dumps(plan)], **pipes) as process:
        try:
            if not json.loads(process.stdout.readline() or "{}").get("ready"):
                sys.exit(f"bench-clients: the driver of {kind} did not start")
            before = server.figures(sends)
            print("go", file=process.stdin, flush=True)
            said = json.loads(process.stdout.readline())
            after = server.figures(sends)
            connections = len(server.client.client_list(_type="normal")) - 1
        finally:
            process.kill()
    locks = max(sum(said["locks"]), 1)
    return {
        "rate": sum(said["locks"]) / said["seconds"],
        "best": max(said["locks"]) / said["seconds"],
        "worst": min(said["locks"]) / said["seconds"],
        "requests": (after["calls"] - before["calls"]) / locks,
        "client": said["cpu"] / locks * 1e6,
        "server": (after["cpu"] - before["cpu"]) / locks * 1e6,
        "open": connections,
        "opened": (after["opened"] - before["opened"]) / locks,
        "failed": said["failed"],
    }


def row(language, kind, runs):
    of = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    failed = f"; {of['failed']:.0f} failed" if of["failed"] else ""
    return [
        f"{language}: {kind}{failed}",
        f"{of['rate']:,.0f}",
        f"{of['best']:,.0f}, {of['worst']:,.0f}",
        f"{of['requests']:.2f}",
        f"{of['client']:,.0f}",
        f"{of['server']:,.0f}",
        f"{of['open']:.0f}, {of['opened']:.2f}",
    ]


def processor():
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found.group(1) if found else platform.processor()


def text(server, kinds, runs, rounds, seconds):
    """The tables, and on what they were measured."""
    machine = f"{processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f}, {server.name()}"
    lines = [f"{machine}. Medians of {rounds} runs of {seconds:g} s each, in turns."]
    for case in CASES:
        rows = [row(language, kind, runs[case[0], kind, language]) for language, kind, *_ in kinds]
        title = case[0][0].upper() + case[0][1:]
        lines += ["", f"{title}:", ""]
        lines += [f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="", help="the kinds with this in their language or name")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    kinds = [one for one in KINDS if options.only in f"{one[0]} {one[1]}"]
    server = Server()
    try:
        runs = {}
        for number in range(options.rounds):
            for case in CASES:
                for language, kind, driver, sends in kinds:
                    figures = measure(server, kind, driver, sends, case, options.seconds)
                    runs.setdefault((case[0], kind, language), []).append(figures)
                    print(f"{number + 1}: {case[0]}: {language}: {kind}: {figures['rate']:,.0f}", file=sys.stderr)
        table = text(server, kinds, runs, options.rounds, options.seconds)
    finally:
        server.close()
    print(table)
    if options.write:
        page = PAGE.read_text()
        begin = page.index(BEGIN) + len(BEGIN)
        PAGE.write_text(page[:begin] + "\n" + table + "\n" + page[page.index(END) :])


if __name__ == "__main__":
    main()
