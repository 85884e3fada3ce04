"""A root of Debian with its redis-server, and what is made for it, for the tests of packages.

The root is a chroot with a network and processes of its own. Its systemctl is here: it starts what the unit of Debian
says, as its user, and maps code from ExecPaths alone, as systemd does. The packages have the module that is tested, and
the program of the tests.
"""

import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from machine import NotHere, module

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = "/usr/lib/redis/modules/libredis_lock.so"
UNITS = ("lib/systemd/system/redis-server.service", "etc/systemd/system/redis-server.service.d")
PATIENCE_S = 60
# Prints the process of the server. The root has no pgrep.
SERVERS = "cd /proc && grep -lx redis-server [0-9]*/comm | cut -d/ -f1"
ONCE = threading.Lock()
MADE = {}
# Mounts, brings the loopback network up, and stays: the namespaces live as long as this shell.
KEEPER = r"""
set -e
mount -t tmpfs tmpfs "$0" && mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$0/upper,workdir=$0/work" "$0/root"
mount -t proc proc "$0/root/proc" && mount --rbind /dev "$0/root/dev"
python3 -c 'import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x1))'
echo ready; exec sleep infinity
"""
# As systemd: the whole tree cannot be executed, but for these paths. Then the user, and the command.
START = r"""
import ctypes, os, pwd, sys
root, user, paths, command = sys.argv[1], sys.argv[2], sys.argv[3].split(), sys.argv[4:]
libc = ctypes.CDLL(None, use_errno=True)
BIND, REC, REMOUNT, NOEXEC, PRIVATE = 4096, 16384, 32, 8, 1 << 18
def mount(what, where, flags):
    if libc.mount(what and what.encode(), where.encode(), None, flags, None):
        raise OSError(ctypes.get_errno(), where)
def bind(path, flags):
    mount(path, path, BIND | REC)
    mount(None, path, BIND | REMOUNT | flags)
mount(None, "/", REC | PRIVATE)
entry = [line.split(":") for line in open(root + "/etc/passwd") if line.startswith(user + ":")][0]
bind(root, NOEXEC)
os.chroot(root); os.chdir("/")
for path in paths:
    if os.path.exists(path.lstrip("-")):
        bind(os.path.realpath(path.lstrip("-")), 0)
os.setgroups([]); os.setgid(int(entry[3])); os.setuid(int(entry[2]))
os.execv(command[0], command)
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def words(**more):
    """The environment for make and its scripts: nothing of what make test was called with."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return {**kept, **more}


def built():
    """The folder of what is tested, as make package would leave it."""
    with ONCE:
        if "built" not in MADE:
            programs = [os.environ.get("REDIS_LOCK_PROGRAM"), ROOT / "target/release/redis-lock"]
            programs += [ROOT / "target/package/release/redis-lock", ROOT / "target/debug/redis-lock"]
            found = [Path(path) for path in programs if path and Path(path).exists()]
            if not found:
                raise NotHere("the program redis-lock is not built")
            if module().suffix != ".so" or not shutil.which("objcopy"):
                raise NotHere("packages are made on Linux with binutils")
            folder = Path(tempfile.mkdtemp(prefix="installing-", dir=ROOT / "target"))
            shutil.copy(module(), folder / "libredis_lock.so")
            shutil.copy(found[0], folder / "redis-lock")
            (folder / "THIRD-PARTY-LICENCES").write_text(run(ROOT / "tools/licences.py"))
            MADE["built"] = folder
            import atexit

            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return MADE["built"]


def make(*words_typed, **variables):
    return run("make", "--no-print-directory", *words_typed, f"BUILT={built()}", cwd=ROOT, env=words(**variables))


def dist():
    """A folder with fresh packages, and their checksums."""
    built()
    with ONCE:
        if "dist" not in MADE:
            if not shutil.which("dpkg-deb"):
                raise NotHere("packages of Debian are made on Debian")
            for word in ("deb", "tarball"):
                run("make", "--no-print-directory", word, f"BUILT={MADE['built']}", cwd=ROOT, env=words())
            # A copy, since another test packs the tarball again.
            images = shutil.ignore_patterns("*-image-*")
            MADE["dist"] = Path(shutil.copytree(ROOT / "target/dist", MADE["built"] / "dist", ignore=images))
        return MADE["dist"]


def lower():
    """The root of Debian. It takes a minute to make."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NotHere("a root of Debian is made by root, on Debian")
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode != 0:
        raise NotHere("this machine allows no namespaces")
    libc = tuple(map(int, platform.libc_ver()[1].split(".")[:2]))
    if libc > (2, 41):
        raise NotHere("what is built here needs a newer C library than that of Debian 13")
    with ONCE:
        if "lower" not in MADE:
            try:
                MADE["lower"] = run(ROOT / "tools/root.sh", "trixie", "redis-server").strip()
            except RuntimeError as error:
                raise NotHere(str(error).strip().rsplit("\n", 1)[-1]) from error
        return MADE["lower"]


class Debian:
    """A machine in the place of the first machine of a stage."""

    def __init__(self, stage):
        self.address, self.stage, self.server = stage.first.address, stage, None
        place = stage.folder / "debian"
        place.mkdir()
        self.root = place / "root"
        # The stage kills what has its folder in the environment.
        self.environment = {"RECIPE_STAGE": str(stage.folder), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        keeper = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", KEEPER]
        self.keeper = subprocess.Popen(
            [*keeper, str(place), lower()], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        if self.keeper.stdout.readline() != "ready\n":
            raise NotHere("this machine allows no mounts in a namespace")
        [self.inside] = run("pgrep", "--parent", str(self.keeper.pid)).split()
        self.enter = ["nsenter", "--target", self.inside, "--mount", "--net", "--pid", "--ipc"]
        # The root as seen from outside of its namespace.
        self.seen = Path(f"/proc/{self.inside}/root{self.root}")
        stage.first = stage.machines[self.address] = self

    def chroot(self, command):
        # A terminal, since redis-cli prints for people only there.
        path = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        typed = ["chroot", str(self.root), "env", "-i", "HOME=/root", "TERM=dumb", path]
        inner = ["DEBIAN_FRONTEND=noninteractive", f"RECIPE_STAGE={self.stage.folder}", "script", "-qec"]
        line = "bash -e -o pipefail -c " + "'" + ("cd; " + command).replace("'", "'\\''") + "'"
        done = subprocess.run(
            [*self.enter, *typed, *inner, line, "/dev/null"], env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=3 * PATIENCE_S,
        )  # fmt: skip
        return done.returncode, (done.stdout + done.stderr).replace("\r", "")

    def bash(self, text):
        """Types a block, line by line."""
        said = ""
        for line in text.replace("\\\n", " ").splitlines():
            line = re.sub(r"^sudo ", "", line.strip())
            if line.startswith("systemctl "):
                code, printed = self.systemctl(*line.split()[1:])
            elif line.startswith("make "):
                code, printed = self.make(line.split()[1:])
            else:
                code, printed = self.chroot(line)
            said += printed
            if code != 0:
                return code, said
        return 0, said

    def must(self, text):
        code, said = self.bash(text)
        if code != 0:
            raise RuntimeError(f"{text}: ends with {code}:\n{said}")
        return said

    def cli(self, *typed):
        return self.must("redis-cli " + " ".join(typed) + " | cat").strip()

    def make(self, typed):
        """make as typed, with what the tests built, into this root."""
        if typed == ["package"]:
            built()
            return 0, ""
        if typed[0] == "image":
            return 0, make("image")
        typed = [word for word in typed if not word.startswith("BUILT=")]
        # From inside of the namespace, where the root is mounted.
        command = [*self.enter, "make", "--no-print-directory", "-C", str(ROOT), *typed, f"DESTDIR={self.root}"]
        return 0, run(*command, f"BUILT={built()}", env=words())

    def unit(self, name):
        """The values of a setting, of the unit and of what was added to it."""
        files = [self.seen / UNITS[0], *sorted((self.seen / UNITS[1]).glob("*.conf"))]
        return [value for file in files for value in re.findall(rf"^{name}=(.*)$", file.read_text(), re.M)]

    def systemctl(self, action, *_):
        if action == "daemon-reload":
            return 0, ""
        if action != "restart":
            return 1, f"Unknown command verb {action}.\n"
        if self.server is not None:
            self.chroot(f"kill $({SERVERS})")
            self.server.wait(PATIENCE_S)
        # As RuntimeDirectory= of the unit.
        self.chroot("install -d -o redis -g redis -m 2755 /run/redis")
        [user], command, paths = self.unit("User"), self.unit("ExecStart")[-1].split(), self.unit("ExecPaths")
        assert self.unit("NoExecPaths") == ["/"], "the unit of Debian has changed"
        starter = ["unshare", "--mount", "python3", "-c", START, str(self.root), user, " ".join(paths), *command]
        log = open(self.stage.folder / "server.out", "w")
        self.server = subprocess.Popen([*self.enter, *starter], env=self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.server.poll() is not None:
                tail = "".join(file.read_text()[-2000:] for file in self.logs())
                return 1, f"Job for redis-server.service failed.\n{tail}"
            if "PONG" in self.chroot("redis-cli PING")[1]:
                return 0, ""
            time.sleep(0.1)
        return 1, "the server does not answer\n"

    def logs(self):
        found = [self.stage.folder / "server.out", *self.seen.glob("var/log/redis/*.log")]
        return [path for path in found if path.exists()]


def fresh(stage, *files):
    """A root with Debian's server, and these packages in the home of root."""
    debian = Debian(stage)
    for file in files:
        # By the shell inside, since its mounts are not ours.
        run(*debian.enter, "cp", str(file), f"{debian.root}/root/", env=debian.environment)
    return debian
