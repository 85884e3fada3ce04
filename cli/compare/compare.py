#!/usr/bin/env python3
"""What becomes of a command under the same ten faults: under flock, under etcdctl lock, and under redis-lock run.

    cli/compare/compare.py [TOOL ...]

Prints the table of docs/guide/command-line.md, in about two minutes. Needs apt-get and dpkg: etcd comes from Debian's
packages etcd-server and etcd-client, and is unpacked under target/compare, without root. The program is PROGRAM, or
target/release/redis-lock; the module is REDIS_LOCK_MODULE, or that of make build.

Leases last three seconds. Where a fault takes the lock away from the tool, its command does not mind TERM. A second
holder waits for the lock, with the same tool, and notes the time at which it has it. "Ran on" means that the first
command still worked then.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEASE = 3
# After so long a lock that was to end with its lease is one that is kept.
KEPT_AFTER = 4 * LEASE
# In the environment of all that is started here.
MARK = f"REDIS_LOCK_COMPARE={os.getpid()}"
STUBBORN = "trap '' TERM"


def unpack_etcd():
    """Unpacks Debian's etcd, and gives the folder of its programs."""
    folder = ROOT / "target/compare/etcd"
    if not (folder / "usr/bin/etcd").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", "etcd-server", "etcd-client"], cwd=folder, check=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
    return folder / "usr/bin"


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def wait_for(what, condition, limit=30.0):
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited in vain for {what}")
        time.sleep(0.01)


class Wire:
    """Between a tool and its server: passes all bytes on, unless it is frozen."""

    def __init__(self, port):
        self.to, self.frozen = port, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                client.close()
                continue
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, target):
        try:
            while data := source.recv(65536):
                while self.frozen:
                    time.sleep(0.01)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()


class Tool:
    """A program that runs commands under a lock, with the server that it needs."""

    name = "flock"
    has_server = False

    def __init__(self, folder):
        self.folder = Path(folder)
        self.port = free_port()
        self.wire = Wire(self.port)
        self.server = None

    def start_server(self, *command):
        with open(self.folder / "server.log", "w") as log:
            self.server = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        wait_for("the server", lambda: socket.socket().connect_ex(("127.0.0.1", self.port)) == 0)
        time.sleep(1)

    def command(self, port, key, script):
        return ["flock", self.folder / key, "sh", "-c", script]

    def take_away(self, key):
        """What an operator does who takes the lock away."""
        (self.folder / key).unlink()


class Etcd(Tool):
    name = "etcdctl lock"
    has_server = True

    def __init__(self, folder):
        super().__init__(folder)
        self.programs = unpack_etcd()
        here, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        self.start_server(
            *[self.programs / "etcd", "--data-dir", self.folder / "data", "--listen-client-urls", here],
            *["--advertise-client-urls", here, "--listen-peer-urls", peers],
            *["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"],
        )

    def ctl(self, port, *words):
        return [self.programs / "etcdctl", f"--endpoints=127.0.0.1:{port}", *words]

    def command(self, port, key, script):
        return self.ctl(port, "lock", f"--ttl={LEASE}", "--", key, "sh", "-c", script)

    def take_away(self, key):
        command = self.ctl(self.port, "del", "--prefix", key)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, ETCDCTL_API="3"))


class RedisLock(Tool):
    name = "redis-lock run"
    has_server = True

    def __init__(self, folder):
        super().__init__(folder)
        module = os.environ.get("REDIS_LOCK_MODULE", ROOT / "target/release/libredis_lock.so")
        self.program = os.environ.get("PROGRAM", ROOT / "target/release/redis-lock")
        self.start_server("redis-server", "--port", str(self.port), "--save", "", "--loadmodule", module)

    def command(self, port, key, script):
        url = f"redis://127.0.0.1:{port}"
        return [self.program, "run", "-u", url, "-t", f"{LEASE}s", "-k", "500ms", key, "--", "sh", "-c", script]

    def take_away(self, key):
        subprocess.run(["redis-cli", "-p", str(self.port), "LOCK.BREAK", key], check=True, stdout=subprocess.DEVNULL)


class Run:
    """One run of a tool, with a command that writes the time into a file again and again."""

    def __init__(self, tool, key, script, port=None):
        self.tool, self.key = tool, key
        name, value = MARK.split("=")
        environment = dict(os.environ, ETCDCTL_API="3", **{name: value})
        self.process = subprocess.Popen(
            tool.command(port or tool.port, key, script),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    @classmethod
    def beating(cls, tool, key, first=":", port=None):
        beat = tool.folder / f"{key}.beat"
        run = cls(tool, key, f"{first}; while :; do date +%s%N >> '{beat}'; sleep 0.02; done", port)
        wait_for("the command", beat.exists)
        return run

    def beats(self):
        return [int(line) for line in (self.tool.folder / f"{self.key}.beat").read_text().split()]

    def works(self):
        """Whether its command still writes."""
        count = len(self.beats())
        time.sleep(0.3)
        return len(self.beats()) > count

    def code(self, limit=LEASE):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def ends(self):
        code = self.code(KEPT_AFTER)
        return "does not end" if code is None else f"ends, {code}"

    def beside_the_next(self):
        """What becomes of its command and of the lock, as the next holder sees it."""
        note = self.tool.folder / f"{self.key}.next"
        following = Run(self.tool, self.key, f"date +%s%N > '{note}'; sleep 0.5")
        if following.code(KEPT_AFTER) is None:
            return "goes on with the lock" if self.works() else "ended, but the lock is kept"
        if self.beats()[-1] > int(note.read_text()):
            return "**ran on**"
        code = self.code()
        return "ended before the next" + ("" if code in (None, 137) else f", {code}")

    def under_no_lock(self):
        """What becomes of its command when the lock is gone."""
        time.sleep(2 * LEASE)
        return "goes on" if self.works() else f"ended, {self.code()}"


def exits(tool):
    return str(Run(tool, "exits", "exit 7").code())


def is_killed(tool):
    return str(Run(tool, "killed", "kill -9 $$").code())


def term_while_running(tool):
    told = tool.folder / "told"
    run = Run.beating(tool, "term", f"trap 'echo > {told}; exit 3' TERM")
    run.process.terminate()
    code = run.code()
    tool_does = "it does not end" if code is None else f"it ends, {code}"
    if told.exists():
        return f"told; {tool_does}"
    return f"not told{', and goes on' if run.works() else ''}; {tool_does}"


def term_while_waiting(tool):
    Run.beating(tool, "wait")
    waiting = Run(tool, "wait", "true")
    time.sleep(1)
    waiting.process.terminate()
    return waiting.ends()


def tool_is_killed(tool):
    run = Run.beating(tool, "kill", STUBBORN)
    run.process.kill()
    return run.beside_the_next()


def tool_is_stopped(tool):
    run = Run.beating(tool, "stop", STUBBORN)
    run.process.send_signal(signal.SIGSTOP)
    return run.beside_the_next()


def network_is_frozen(tool):
    if not tool.has_server:
        return "has none"
    run = Run.beating(tool, "frozen", STUBBORN, tool.wire.port)
    tool.wire.frozen = True
    return run.beside_the_next()


def is_taken_away(tool):
    run = Run.beating(tool, "away", STUBBORN)
    tool.take_away("away")
    return run.under_no_lock()


def leaves_a_process(tool):
    beat = tool.folder / "left.beat"
    left = f"{STUBBORN}; while :; do date +%s%N >> {beat}; sleep 0.02; done"
    run = Run(tool, "left", f"({left}) & until [ -s {beat} ]; do sleep 0.01; done")
    wait_for("the command", beat.exists)
    return run.beside_the_next()


def server_dies(tool):
    if not tool.has_server:
        return "has none"
    run = Run.beating(tool, "dies", STUBBORN)
    tool.server.kill()
    return run.under_no_lock()


FAULTS = {
    "the command exits with 7": exits,
    "signal 9 ends the command": is_killed,
    "TERM to the tool while the command runs": term_while_running,
    "TERM to the tool while it waits": term_while_waiting,
    "the tool is killed (`kill -9`)": tool_is_killed,
    "the tool is stopped beyond the lease": tool_is_stopped,
    "the network is frozen": network_is_frozen,
    "an operator takes the lock away": is_taken_away,
    "the command leaves a process behind": leaves_a_process,
    # The last, since nothing can be asked after it.
    "the server dies for good": server_dies,
}


def kill_all():
    """Ends all that was started for a tool, and what that has started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass


def outcomes(kind):
    with tempfile.TemporaryDirectory() as folder:
        tool = kind(folder)
        try:
            return [fault(tool) for fault in FAULTS.values()]
        finally:
            kill_all()
            if tool.server:
                tool.server.kill()
                tool.server.wait()


def main():
    kinds = [kind for kind in (Tool, Etcd, RedisLock) if not sys.argv[1:] or kind.name in sys.argv[1:]]
    if not kinds or not shutil.which("flock"):
        sys.exit(__doc__)
    columns = [outcomes(kind) for kind in kinds]
    print("| fault |", " | ".join(kind.name for kind in kinds), "|")
    print("| --- |", " | ".join("---" for _ in kinds), "|")
    for fault, *row in zip(FAULTS, *columns):
        print("|", " | ".join([fault, *row]), "|")


main()
