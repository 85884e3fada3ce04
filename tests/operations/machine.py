"""The machines on which recipes are typed: folders, addresses of the loopback network, and real servers.

A machine 10.0.0.N has what Debian's package makes: /etc/redis/redis.conf, /var/lib/redis, /var/log/redis; and the
module in /usr/lib/redis/modules/libredis_lock.so. `systemctl start redis-server` starts a server with that file, and
redis-cli without -h talks to it. sudo, and the owners of `install`, are left out.

These paths lie in a folder of the machine. 10.0.0.N and 127.0.0.1 are addresses of their own on the loopback network,
and 6379 and its like are free ports. So what is typed is changed, and what is printed is changed back.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import random
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = re.compile(
    r"(?<![\w./}$])/(?=(?:etc/redis|etc/valkey|etc/default|etc/prometheus|etc/systemd|usr/lib/redis|usr/lib/valkey"
    r"|usr/lib/systemd|var/lib/redis|var/lib/valkey|var/log/redis|var/log/valkey|var/backups|run/redis)\b)"
)
PORTS = [6379, *range(6380, 6392), 26379, 9090, 9121, 6300]
PORT = re.compile(r"(?<![\d.])(1?(?:" + "|".join(map(str, PORTS)) + r"))(?![\d.]\d|\d)")
# What the processes of this run are known by: the folders of its stages begin so.
RUN = f"{tempfile.gettempdir()}/recipe-{os.getpid()}-{time.time_ns() % 10**6}-"
# How long a block may take.
PATIENCE_S = 180
CONF = """\
bind 127.0.0.1
protected-mode yes
port 6379
tcp-keepalive 300
pidfile /run/redis/redis-server.pid
loglevel notice
logfile /var/log/redis/redis-server.log
dir /var/lib/redis
"""
LOAD = "loadmodule /usr/lib/redis/modules/libredis_lock.so\n"
SERVER = """#!/bin/sh
exec {server} "$@"
"""
CLIENT = """#!/bin/sh
# The last address counts, so those that were typed go before these.
exec {client} -h "$RECIPE_LOCAL" -p "$RECIPE_PORT" "$@"
"""
SUDO = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    -u | -g) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
exec "$@"
"""
# Without the owner and the group, which the machine may not have.
INSTALL = """#!/bin/bash
words=()
while [ $# -gt 0 ]; do
  case "$1" in
    -o | -g) shift 2 ;;
    *) words+=("$1"); shift ;;
  esac
done
exec {install} "${{words[@]}}"
"""
# As the units of Debian: start waits until the server says that it is ready, and fails if it exits before.
SYSTEMCTL = """#!/bin/bash
action= units=() signal=TERM
for word in "$@"; do
  case "$word" in
    --signal=*) signal=${word#*=} ;;
    -*) ;;
    *) if [ -z "$action" ]; then action=$word; else units+=("${word%.service}"); fi ;;
  esac
done
alive() {
  [ -s "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null && ! grep -qs '^State:.Z' "/proc/$(cat "$pid")/status"
}
start() {
  alive && return
  local conf log extra=() from
  case "$unit" in
    *sentinel) conf=$RECIPE_ROOT/etc/redis/sentinel.conf extra=(--sentinel) ;;
    *) conf=$RECIPE_ROOT/etc/redis/${unit/-server/}.conf ;;
  esac
  if [ ! -f "$conf" ]; then echo "Failed to start $unit.service: $conf is missing" >&2; return 5; fi
  log=$(sed -n 's/^logfile *"\\{0,1\\}\\([^"]*\\)"\\{0,1\\}$/\\1/p' "$conf" | tail -n 1)
  log=${log:-$RECIPE_ROOT/var/log/redis/$unit.out}
  touch "$log"
  from=$(($(wc -c <"$log") + 1))
  grep -q '^bind-source-addr' "$conf" || extra+=(--bind-source-addr "$RECIPE_ADDRESS")
  setsid redis-server "$conf" "${extra[@]}" --daemonize no \\
    </dev/null >>"$RECIPE_ROOT/var/log/redis/$unit.out" 2>&1 &
  echo $! >"$pid"
  until tail -c "+$from" "$log" | grep -Eq 'eady to accept connections|Sentinel ID is'; do
    if ! alive; then
      rm -f "$pid"
      echo "Job for $unit.service failed because the control process exited with error code." >&2
      echo "See \\"systemctl status $unit.service\\" and \\"journalctl -xeu $unit.service\\" for details." >&2
      return 1
    fi
    sleep 0.05
  done
}
stop() {
  alive || return 0
  # A server that writes its first append-only file refuses once, and an operator types the stop again.
  local tries=0
  while alive; do
    [ $((tries % 60)) -ne 0 ] || kill -s "$1" "$(cat "$pid")" 2>/dev/null
    tries=$((tries + 1))
    sleep 0.05
  done
  rm -f "$pid"
}
code=0
for unit in "${units[@]}"; do
  pid=$RECIPE_ROOT/run/$unit.pid
  case "$action" in
    start) start || code=$? ;;
    stop) stop TERM ;;
    kill) stop "$signal" ;;
    restart) stop TERM; start || code=$? ;;
    is-active) if alive; then echo active; else echo inactive; code=3; fi ;;
    daemon-reload | enable | disable | reset-failed) ;;
    *) echo "Unknown command verb $action." >&2; code=1 ;;
  esac
done
exit $code
"""


# What was exported stays so in the terminal of a machine.
SESSION = """\
if [ -f "$RECIPE_ROOT/session" ]; then . "$RECIPE_ROOT/session"; fi
trap 'export -p >"$RECIPE_ROOT/session"' EXIT
"""
# Only hostname -I.
HOSTNAME = """#!/bin/sh
echo "$RECIPE_ADDRESS "
"""


class NotHere(Exception):
    """This machine or this server cannot run the recipe; says why."""


def real_server():
    """The server that is tested, and its family: redis or valkey."""
    found = shutil.which(os.environ.get("REDIS_LOCK_SERVER") or "redis-server")
    if found is None:
        raise RuntimeError("there is no redis-server in PATH, and REDIS_LOCK_SERVER names none")
    server = Path(found).resolve() if "/" in os.environ.get("REDIS_LOCK_SERVER", "") else Path(found)
    return server, "valkey" if "valkey" in server.name else "redis"


def version(server=None):
    """The family and the version of a server, as in ("redis", 7, 0, 15)."""
    text = subprocess.run([server or real_server()[0], "--version"], capture_output=True, text=True, check=True).stdout
    family, number = re.match(r"(\w+) server v=([0-9.]+)", text).groups()
    return (family.lower(), *map(int, number.split(".")))


def module():
    """The module that is tested."""
    path = Path(os.environ.get("REDIS_LOCK_MODULE") or ROOT / "target/release/libredis_lock.so")
    if not path.exists():
        raise RuntimeError(f"{path} is missing: run make build")
    return path


class Stage:
    """The machines of one recipe."""

    taken = set()
    open = set()
    guard = threading.Lock()

    def __init__(self, name, addresses):
        self.name = name
        self.server, self.family = real_server()
        self.net, self.ports = self.place()
        self.folder = Path(tempfile.mkdtemp(prefix=Path(RUN).name))
        self.fences = {}  # those that the page shows, and those that were printed
        self.programs()
        self.machines = {address: Machine(self, address) for address in addresses}
        self.first = self.machines[addresses[0]]

    def place(self):
        """A part of the loopback network and ports of our own."""
        if not Path("/proc/self/environ").exists():
            raise NotHere("it needs Linux: the whole of 127.0.0.0/8, and /proc")
        for _ in range(200):
            net, base = (random.randrange(2, 250), random.randrange(0, 250)), random.randrange(11000, 21000, 20)
            with Stage.guard:
                if net in Stage.taken:
                    continue
                Stage.taken.add(net)
            ports = {port: base + number for number, port in enumerate(PORTS)}
            ports.update({port + 10000: number + 10000 for port, number in list(ports.items()) if port + 10000 < 26000})
            try:
                for number in ports.values():
                    with socket.socket() as one:
                        one.bind((f"127.{net[0]}.{net[1]}.1", number))
                return net, ports
            except OSError as error:
                last = error
        raise NotHere(f"no address of 127.0.0.0/8 is free here ({last})")

    def programs(self):
        """The programs that differ from those in PATH."""
        folder = self.folder / "bin"
        folder.mkdir()
        beside = self.server.parent
        for family in ("redis", "valkey"):
            texts = {"server": SERVER.format(server=self.server)}
            client = beside / f"{self.family}-cli"
            texts["cli"] = CLIENT.format(client=client if client.exists() else f"{self.family}-cli")
            for what in ("check-rdb", "check-aof", "benchmark"):
                program = beside / f"{self.family}-{what}"
                texts[what] = f'#!/bin/sh\nexec {program if program.exists() else program.name} "$@"\n'
            for what, text in texts.items():
                self.program(f"{family}-{what}", text)
        self.program("sudo", SUDO)
        self.program("install", INSTALL.format(install=shutil.which("install")))
        self.program("systemctl", SYSTEMCTL)
        self.program("hostname", HOSTNAME)
        ours = Path(os.environ.get("REDIS_LOCK_PROGRAM") or ROOT / "target/debug/redis-lock")
        if ours.exists():
            (folder / "redis-lock").symlink_to(ours)

    def program(self, name, text):
        """A program for what is typed."""
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def installed(self):
        """The beginning: on each machine a server runs, the module lies there and is not loaded."""
        for machine in self.machines.values():
            machine.must("systemctl start redis-server")

    def add(self, address):
        """A machine that the page does not name."""
        self.machines[address] = Machine(self, address)

    def loaded(self, conf="", only=None):
        """The beginning of most recipes: the servers run with the module, and with these lines besides."""
        for machine in only or self.machines.values():
            machine.write("/etc/redis/redis.conf", LOAD + conf, add=True)
            machine.must("systemctl start redis-server")

    def replicated(self):
        """The beginning of some: 10.0.0.2 is a replica of 10.0.0.1, and both run. Gives the two."""
        primary, replica = self.machines["10.0.0.1"], self.machines["10.0.0.2"]
        for machine in self.machines.values():
            text = f"bind 127.0.0.1 {machine.address}\nprotected-mode no\nrepl-diskless-sync-delay 0\n"
            machine.write("/etc/redis/redis.conf", text, add=True)
        replica.write("/etc/redis/redis.conf", "replicaof 10.0.0.1 6379\n", add=True)
        self.loaded()
        return primary, replica

    def follow(self, page, heading):
        """Does on the first machine what another section says. The runner of recipes sets this."""
        raise NotImplementedError

    def logs(self):
        """The ends of the logs of all servers."""
        found = sorted(self.folder.glob("10.*/var/log/redis/*.log"))
        return "\n".join(f"---- {path.relative_to(self.folder)}\n{path.read_text()[-1200:]}" for path in found)

    def __enter__(self):
        Stage.open.add(self)
        return self

    def __exit__(self, *_):
        Stage.open.discard(self)
        kill_all(str(self.folder))
        left = listeners(self.net)
        if os.environ.get("REDIS_LOCK_KEEP"):
            print(f"{self.name}: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"servers outlived their recipe, at {left}"


def listeners(net):
    """The addresses of this part of the loopback network at which somebody listens."""
    found = []
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = row.split()
        host, port = local.split(":")
        address = int(host, 16).to_bytes(4, sys.byteorder)
        if state == "0A" and address.startswith(bytes((127, *net))):
            found.append(f"{socket.inet_ntoa(address)}:{int(port, 16)}")
    return found


def kill_all(folder):
    """Kills what was started in folders whose names begin so, until nothing is left of it."""
    for _ in range(50):
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        left = [pid for pid in pids if works_in(folder, pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.05)


def guard():
    """Starts a process that sees to it that no server outlives this run, also if the run is killed."""
    ours, run = os.pipe()
    if os.fork():
        os.close(ours)
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)
    os.close(run)
    os.read(ours, 1)  # ends when the run does: it alone has the other end
    kill_all(RUN)
    os._exit(0)


def end(number, _):
    """Ends what was started, when the run is told to end."""
    stages = list(Stage.open)
    # Twice: the threads go on meanwhile, and may write once more.
    for stage in stages * 2:
        stage.__exit__()
    os._exit(128 + number)


def works_in(folder, pid):
    """Whether a process has such a folder in its environment, or works in it: servers write their titles over their
    environment. False if it is another user's or has gone."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
        return f"RECIPE_STAGE={folder}".encode() in variables or os.readlink(f"/proc/{pid}/cwd").startswith(folder)
    except OSError:
        return False


class Machine:
    """One machine: its files, and what is typed on it."""

    def __init__(self, stage, address):
        self.stage, self.address = stage, address
        self.folder = stage.folder / address
        last = address.rsplit(".", 1)[1]
        one, two = stage.net
        # Its address, and its 127.0.0.1: a server may listen on both.
        self.real = f"127.{one}.{two}.{last}"
        self.local = f"127.{one}.{two}.{int(last) + 100}"
        for path in (
            "etc/redis",
            "var/lib/redis",
            "var/log/redis",
            "var/backups",
            "run/redis",
            "usr/lib/redis/modules",
        ):
            (self.folder / path).mkdir(parents=True)
        (self.folder / "home").mkdir()
        shutil.copy(module(), self.folder / "usr/lib/redis/modules/libredis_lock.so")
        self.write("/etc/redis/redis.conf", CONF)

    def path(self, path):
        """Where a path of this machine lies."""
        return Path(self.typed(str(path)))

    def typed(self, text):
        """What is typed, with the paths, addresses and ports that there are."""
        one, two = self.stage.net
        text = re.sub(r"\b10\.0\.0\.(\d+)\b", lambda found: f"127.{one}.{two}.{found[1]}", text)
        text = text.replace("127.0.0.1 -::1", "127.0.0.1")
        text = re.sub(r"\b127\.0\.0\.1\b", self.local, text)
        text = PORT.sub(lambda found: str(self.stage.ports.get(int(found[1]), found[1])), text)
        # Last: the name of the folder is not to be changed.
        return PATHS.sub(f"{self.folder}/", text)

    def shown(self, text):
        """What was printed, as the page has it."""
        one, two = self.stage.net
        for machine in self.stage.machines.values():
            text = text.replace(f"{machine.folder}/", "/")
            text = re.sub(rf"\b{re.escape(machine.local)}\b", "127.0.0.1", text)
        text = re.sub(rf"\b127\.{one}\.{two}\.(\d+)\b", r"10.0.0.\1", text)
        back = {number: port for port, number in self.stage.ports.items()}
        return re.sub(r"(?<!\d)\d{5}(?!\d)", lambda found: str(back.get(int(found[0]), found[0])), text)

    def write(self, path, text, add=False):
        """Writes a file of this machine, or adds to its end."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "a" if add else "w") as file:
            file.write(self.typed(text))

    def read(self, path):
        """A file of this machine, as the page would show it."""
        return self.shown(self.path(path).read_text())

    def environment(self):
        """The variables of what runs on this machine."""
        return {
            "PATH": f"{self.stage.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "TERM": "dumb",
            "LC_ALL": "C.UTF-8",
            "RECIPE_STAGE": str(self.stage.folder),
            "RECIPE_ROOT": str(self.folder),
            "RECIPE_LOCAL": self.local,
            "RECIPE_ADDRESS": self.real,
            "RECIPE_PORT": str(self.stage.ports[6379]),
        }

    def ask(self, *words):
        """What redis-cli prints, beside what is typed meanwhile: to be called from any thread."""
        command = [self.stage.folder / "bin/redis-cli", *words]
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, check=False
        ).stdout.strip()

    def bash(self, text):
        """Types into a terminal. Gives the status, and what was printed there."""
        environment = self.environment()
        master, slave = pty.openpty()
        # Wide, so that no line is wrapped; and without \r before \n.
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 500, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", SESSION + self.typed(text)],
            cwd=self.folder / "home",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        said, deadline, ended = b"", time.monotonic() + PATIENCE_S, False
        while True:
            ready = select.select([master], [], [], 0 if ended else 0.05)[0]
            if ready:
                try:
                    some = os.read(master, 65536)
                except OSError:
                    some = b""
                if some:
                    said += some
                    continue
                break
            if ended:
                break
            ended = process.poll() is not None
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                said += f"\n(still running after {PATIENCE_S} s)\n".encode()
                ended = True
        os.close(master)
        return process.wait(), self.shown(said.decode(errors="replace"))

    def must(self, text):
        """Types what has to end well; gives what it printed."""
        code, said = self.bash(text)
        if code != 0:
            raise RuntimeError(f"on {self.address}: {text}: ends with {code}:\n{said}")
        return said

    def cli(self, *words):
        """What redis-cli prints where no person looks: each value on its line."""
        line = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
        return self.must(f"redis-cli {line} | cat").rstrip("\n")
