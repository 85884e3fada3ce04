#!/usr/bin/env python3
"""Measures what locks, waiters and places take of a server's memory, and prints the table of docs/operations/sizing.md.

    tools/sizing.py                     the redis-server in PATH, and the newest Redis and Valkey of target/servers
    tools/sizing.py SERVER...           these servers
    tools/sizing.py --write             the same, and puts the table into the page
    tools/sizing.py --quick --compare   with fewer locks, on one server; fails if the page is wrong by a fifth

Each row is measured on a server of its own: `used_memory` of INFO with many of them, less that without, for each.
Below the table stands what CPU a start takes to load a million locks.
REDIS_LOCK_MODULE names the module; without it that of `make build` is loaded.
"""

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/operations/sizing.md"
MARKS = ("<!-- tools/sizing.py writes this table -->", "<!-- the end of that table -->")
MODULE = Path(os.environ.get("REDIS_LOCK_MODULE", ROOT / "target/release/libredis_lock.so")).resolve()
# Names as long as a UUID. Longer than everything takes.
OWNER, LONG_MS = "{:036d}", "3000000"
# After two seconds without a request a server frees the buffers of a connection, in its turn.
IDLE_S = 4
# How far the page may be off before --compare fails, and bytes that no table needs to be right by.
WRONG, LITTLE = 0.2, 12


def encoded(request: tuple[object, ...]) -> bytes:
    parts = [str(part).encode() for part in request]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


class Connection:
    """A connection to a server. Sends many requests before it reads their replies."""

    def __init__(self, address: Path | tuple[str, int]) -> None:
        unix = isinstance(address, Path)
        self.socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self.socket.connect(str(address) if unix else address)
        self.replies = self.socket.makefile("rb")

    def send(self, *requests: tuple[object, ...]) -> None:
        self.socket.sendall(b"".join(map(encoded, requests)))

    def read(self) -> object:
        line = self.replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.replies.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        if not line:
            raise RuntimeError("the server has closed the connection")
        return rest.decode()

    def say(self, *request: object) -> object:
        self.send(request)
        return self.read()

    def all(self, requests: Iterator[tuple[object, ...]]) -> None:
        """Sends all of them, some at a time."""
        while some := list(islice(requests, 50)):
            self.send(*some)
            for _ in some:
                self.read()

    def close(self) -> None:
        self.replies.close()
        self.socket.close()


class Server:
    """A server with the module, and nothing in it."""

    def __init__(self, program: str, folder: Path, *more: str) -> None:
        self.path = folder / "socket"
        options = ["--port", "0", "--unixsocket", str(self.path), "--save", "", "--dir", str(folder)]
        options += ["--maxclients", "4000", "--loadmodule", str(MODULE), "log-max-len", "100000"]
        options += ["max-queue-ms", "3600000", "max-waiters-per-key", "1000000", *more]
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen([program, *options], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.conn = Connection(self.path)
                self.conn.say("PING")
                break
            except (OSError, RuntimeError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{program} does not start:\n{(folder / 'log').read_text()}")
                time.sleep(0.02)

    def name(self) -> str:
        info = str(self.conn.say("INFO", "server"))
        found = re.search(r"valkey_version:(\S+)", info)
        return f"Valkey {found[1]}" if found else "Redis " + re.findall(r"redis_version:(\S+)", info)[0]

    def memory(self) -> int:
        """What it has given out, once that no longer changes."""
        before = -1
        while True:
            now = int(re.findall(r"used_memory:(\d+)", str(self.conn.say("INFO", "memory")))[0])
            if abs(now - before) < 64:
                return now
            before = now
            time.sleep(0.15)

    def fill(self, requests: Iterator[tuple[object, ...]]) -> None:
        conn = Connection(self.path)
        conn.all(requests)
        conn.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


Fill = Callable[[Server, int], float]


def each(server: Server, count: int, requests: Callable[[int], tuple[object, ...]]) -> float:
    """What each of so many requests leaves in memory."""
    before = server.memory()
    server.fill(requests(number) for number in range(count))
    return (server.memory() - before) / count


def acquire(number: int, *options: object, key: str = "lock:{:06d}") -> tuple[object, ...]:
    return "LOCK.ACQUIRE", key.format(number), OWNER.format(number), "PX", LONG_MS, *options


def held(server: Server, count: int) -> float:
    return each(server, count, acquire)


def by_helper(server: Server, count: int) -> float:
    # The owners of the helpers: a host, a process, and 128 random bits.
    def take(number: int) -> tuple[object, ...]:
        return "LOCK.ACQUIRE", f"lock:{number:06d}", f"host-17:12345:{number:032x}", "PX", LONG_MS

    return each(server, count, take)


def noted(server: Server, count: int) -> float:
    return each(server, count, lambda number: acquire(number, "NOTE", f"host-17 {number:012d}"))


def string(server: Server, count: int) -> float:
    return each(server, count, lambda n: ("SET", f"lock:{n:06d}", OWNER.format(n), "NX", "PX", LONG_MS))


def reader(server: Server, count: int) -> float:
    # A hundred readers on each key: the first one pays for the lock.
    share = lambda n: ("LOCK.RW", f"lock:{n // 100}", OWNER.format(n), "READ", "PX", LONG_MS)
    return each(server, count, share)


def session(server: Server, count: int) -> float:
    conn = Connection(server.path)
    conn.say("PING")
    before = server.memory()
    conn.all(acquire(number, "SESSION", 60000) for number in range(count))
    time.sleep(IDLE_S)
    after = server.memory()
    conn.close()
    return (after - before) / count


def place(server: Server, count: int) -> float:
    server.fill(iter([acquire(0, key="held")]))
    return each(server, count, lambda number: acquire(number + 1, "QUEUE", 3600000, key="held"))


def lone_place(server: Server, count: int) -> float:
    server.fill(acquire(number) for number in range(count))
    return each(server, count, lambda number: acquire(number + count, "QUEUE", 3600000, key=f"lock:{number:06d}"))


def offer(server: Server, count: int) -> float:
    before = server.memory()
    server.fill(acquire(number) for number in range(count))
    server.fill(acquire(number + count, "QUEUE", 3600000, key=f"lock:{number:06d}") for number in range(count))
    server.fill(("LOCK.RELEASE", f"lock:{number:06d}", OWNER.format(number)) for number in range(count))
    return (server.memory() - before) / count


def lost(server: Server, count: int) -> float:
    # Nothing else is left of a lock that was broken.
    server.fill(acquire(number) for number in range(count))
    server.fill(("LOCK.BREAK", f"lock:{number:06d}") for number in range(count))
    full = server.memory()
    server.conn.say("LOCK.LOG", "RESET")
    return (full - server.memory()) / count


def connections(server: Server, count: int) -> list[Connection]:
    open_ones = [Connection(server.path) for _ in range(count)]
    for conn in open_ones:
        conn.say("PING")
    return open_ones


def idle(server: Server, count: int) -> float:
    before = server.memory()
    open_ones = connections(server, count)
    time.sleep(IDLE_S)
    after = server.memory()
    for conn in open_ones:
        conn.close()
    return (after - before) / count


def waiter(server: Server, count: int) -> float:
    server.fill(iter([acquire(0, key="held")]))
    before = server.memory()
    open_ones = connections(server, count)
    for number, conn in enumerate(open_ones):
        conn.send(acquire(number + 1, "BLOCK", 0, key="held"))
    while f"lock_waiters:{count}\r" not in str(server.conn.say("INFO", "lock")):
        time.sleep(0.02)
    time.sleep(IDLE_S)
    after = server.memory()
    for conn in open_ones:
        conn.close()
    return (after - before) / count


# What a row says, how it is measured, and how many of them.
ROWS: list[tuple[str, Fill, int]] = [
    ("a `SET NX PX`, to compare", string, 100_000),
    ("a held lock", held, 100_000),
    ("the same by a helper, whose owners have 46 bytes", by_helper, 100_000),
    ("a held lock with a note of 20 bytes", noted, 100_000),
    ("a held lock bound to a session", session, 100_000),
    ("a reader, beside 99 others of the same lock", reader, 100_000),
    ("a place (`QUEUE`), beside others for the same lock", place, 100_000),
    ("a place, where no other request waits for the lock", lone_place, 100_000),
    ("an offer, and the lock of which it is", offer, 100_000),
    ("a row of LOCK.LOG", lost, 100_000),
    ("a connection that does nothing", idle, 1_000),
    ("a parked waiter (`BLOCK`), with its connection", waiter, 1_000),
]
# A power of two: a table that grows by doubling is as full as with all of them.
QUICKER = 16


@contextmanager
def running(program: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="sizing") as folder:
        server = Server(program, Path(folder))
        try:
            yield server
        finally:
            server.stop()


def measure(program: str, quick: bool) -> tuple[str, list[float]]:
    """The server's name, and a figure for each row."""
    figures = []
    for _, fill, count in ROWS:
        with running(program) as server:
            name = server.name()
            figures.append(fill(server, count // QUICKER if quick and count > 1000 else count))
    return name, figures


def loaded(program: str, count: int) -> tuple[float, float]:
    """CPU seconds in which a start loads so many locks of helpers from an append-only file that was not rewritten, and
    the bytes of that file for each."""
    with tempfile.TemporaryDirectory(prefix="sizing") as folder:
        for is_full in (False, True):
            server = Server(program, Path(folder), "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")
            try:
                if not is_full:
                    by_helper(server, count)
                spent = re.findall(r"used_cpu_(?:sys|user):(\S+)", str(server.conn.say("INFO", "cpu")))
            finally:
                server.stop()
        written = sum(file.stat().st_size for file in Path(folder).rglob("*.aof"))
        return sum(map(float, spent)), written / count


def rounded(bytes_each: float) -> str:
    return f"{round(bytes_each, -2 if bytes_each > 3000 else 0):,.0f}"


def table(columns: list[tuple[str, list[float]]]) -> list[str]:
    lines = ["| bytes each | " + " | ".join(name for name, _ in columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for at, (what, _, _) in enumerate(ROWS):
        lines.append(f"| {what} | " + " | ".join(rounded(figures[at]) for _, figures in columns) + " |")
    return lines


def page_table() -> list[str]:
    return PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0].strip().splitlines()


def compare(name: str, figures: list[float]) -> list[str]:
    """What the page says wrongly of this server, or of the row in any server if it does not name this one."""
    lines = [line for line in page_table() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if [row[0] for row in rows] != [what for what, _, _ in ROWS]:
        return ["the page has other rows than the program"]
    wrong = []
    for row, figure in zip(rows, figures, strict=True):
        said = [float(cell.replace(",", "")) for cell in row[1:]]
        if name in head:
            said = [said[head.index(name) - 1]]
        if not any(abs(one - figure) <= max(WRONG * one, LITTLE) for one in said):
            wrong.append(f"{row[0]}: the page says {row[1:]}, measured {figure:.0f} on {name}")
    return wrong


def usual_servers() -> list[str]:
    found = ["redis-server"]
    for family in ("redis", "valkey"):
        version = lambda path: [int(number) for number in re.findall(r"\d+", path.parent.name)]
        there = sorted((ROOT / "target/servers").glob(f"{family}-*/{family}-server"), key=version)
        found += [str(path) for path in there[-1:]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="SERVER")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    servers = options.servers or usual_servers()
    columns = [measure(server, options.quick) for server in servers]
    lines = table(columns)
    if not options.quick:
        loads = [loaded(server, 1_000_000) for server in servers]
        times = ", ".join(f"{seconds:.1f} s" for seconds, _ in loads)
        sizes = sorted({round(bytes_each) for _, bytes_each in loads})
        lines += ["", f"A grant to a helper takes {' to '.join(map(str, sizes))} bytes in an append-only file."]
        lines += [f"To load a million of them, a start takes {times} of CPU."]
    print("\n".join(lines))
    if options.compare:
        wrong = [text for name, figures in columns for text in compare(name, figures)]
        if wrong:
            sys.exit("\n".join([*wrong, "make sizing measures anew, and writes the page"]))
    if options.write:
        before, after = PAGE.read_text().split("\n".join(page_table()))
        PAGE.write_text(before + "\n".join(lines) + after)


if __name__ == "__main__":
    main()
