"""Plays docs/operations/installing.md in a root of Debian with its redis-server, from the packages that make builds.

The root is a chroot with a network and processes of its own. Its systemctl is here: it starts what the unit of Debian
says, as its user, and maps code from ExecPaths alone, as systemd does. The packages have the module that is tested, and
the program of the tests.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from machine import NotHere, Stage, module

ROOT = Path(__file__).resolve().parent.parent.parent.parent
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


def packages(stage):
    version = run(ROOT / "tools/version.py", "--debian").strip()
    files = [
        file for file in dist().glob("redis-lock*.deb")
        if "dbgsym" not in file.name and f"_{version.replace('~', '.')}-1_" in file.name
    ]  # fmt: skip
    assert len(files) == 2, files
    return fresh(stage, *files)


def load(debian):
    """The section "Loading the module", as the page has it."""
    page = (ROOT / "docs/operations/installing.md").read_text()
    section = page.split("\n## Loading the module\n")[1].split("\n## ")[0]
    debian.must(re.search(r"```sh\n(.*?)```", section, re.S)[1])


def works(stage, library=LIBRARY):
    """The server has the module of this file, as its own user, and the program takes a lock."""
    debian = stage.first
    assert library in debian.cli("MODULE", "LIST"), debian.cli("MODULE", "LIST")
    assert "lock_holders" in debian.cli("INFO", "lock") or "# lock" in debian.cli("INFO", "lock")
    assert "granted" in debian.must("redis-lock run check -- echo granted")
    status = debian.must(f"grep -h ^Uid: /proc/$({SERVERS})/status")
    assert status.split()[1] != "0", f"the server runs as root: {status}"
    mode = debian.chroot(f"stat -c '%a %U' {library}")[1].split()
    assert mode == ["755", "root"], mode
    prefix = library.split("/lib/")[0]
    debian.must(f"test -s {prefix}/share/man/man1/redis-lock.1 || test -s {prefix}/share/man/man1/redis-lock.1.gz")


def before_packages_for_debian(stage):
    packages(stage)


def after_packages_for_debian(stage):
    debian = stage.first
    # Installed, and off: the server starts as before.
    debian.must("systemctl restart redis-server")
    assert "lock" not in debian.cli("MODULE", "LIST")
    load(debian)
    works(stage)
    # What could go wrong: the module goes, and nobody says that the server cannot start any more.
    assert "still loads the module" in debian.must("apt-get remove -y redis-lock-module")


def before_a_tarball(stage):
    built()
    version, arch = run(ROOT / "tools/version.py").strip(), platform.machine()
    if arch != "x86_64":
        raise NotHere("the page names the tarball of x86-64")
    fresh(stage, dist() / f"redis-lock-{version}-linux-{arch}.tar.gz", dist() / "SHA256SUMS")


def after_a_tarball(stage):
    load(stage.first)
    works(stage)


def before_the_source(stage):
    built()
    fresh(stage)


def after_the_source(stage):
    load(stage.first)
    works(stage)
    stage.first.must("make uninstall")
    left = stage.first.chroot("find /usr -name '*redis*lock*'")[1]
    assert left == "", f"make uninstall leaves {left}"


def before_loading_the_module(stage):
    packages(stage).must("apt-get install -y ./redis-lock-module_*.deb ./redis-lock_*.deb")


def after_loading_the_module(stage):
    works(stage)
    debian = stage.first
    # CONFIG REWRITE, as Sentinel calls it, leaves one line, and the server starts again.
    debian.cli("CONFIG", "REWRITE")
    debian.must("systemctl restart redis-server")
    works(stage)
    # In an included file, the line comes twice.
    debian.must("mkdir /etc/redis/more; sed -n /^loadmodule/p /etc/redis/redis.conf >/etc/redis/more/lock.conf")
    debian.must("sed -i 's|^loadmodule .*|include /etc/redis/more/lock.conf|' /etc/redis/redis.conf")
    debian.must("chmod -R a+rX /etc/redis\nsystemctl restart redis-server")
    debian.cli("CONFIG", "REWRITE")
    assert debian.bash("systemctl restart redis-server")[0] != 0, "the page warns of what does no harm"
    debian.must("sed -i '/^include/d' /etc/redis/redis.conf")
    debian.must(f"chmod 644 {LIBRARY}")
    code, said = debian.bash("systemctl restart redis-server")
    assert code != 0 and "It does not have execute permissions" in said, said


def before_another_folder(stage):
    built()
    debian = fresh(stage)
    # What could go wrong: the page makes people write a file that they do not need.
    run(*debian.enter, "make", "-C", str(ROOT), "install", f"DESTDIR={debian.root}", "PREFIX=/opt",
        f"BUILT={built()}", env=words())  # fmt: skip
    debian.must("cp /etc/redis/redis.conf /root/redis.conf")
    debian.must("cat /opt/share/redis-lock/redis-lock.conf >>/etc/redis/redis.conf")
    code, said = debian.bash("systemctl restart redis-server")
    assert code != 0 and "failed to map segment from shared object" in said, said
    debian.must("cat /root/redis.conf >/etc/redis/redis.conf")


def after_another_folder(stage):
    works(stage, "/usr/local/lib/redis/modules/libredis_lock.so")


def before_an_image_without_docker(stage):
    if not os.environ.get("REDIS_LOCK_IMAGE"):
        raise NotHere("it takes minutes: REDIS_LOCK_IMAGE=1 runs it")
    lower()
    dist()
    fresh(stage)


def after_an_image_without_docker(stage):
    version = run(ROOT / "tools/version.py").strip()
    [archive] = (ROOT / "target/dist").glob(f"redis-lock-{version}-image-*.tar")
    # The page runs it by this name.
    assert f'"redis-lock:{version}"' in run("tar", "-xOf", str(archive), "index.json")


def before_is_it_right(stage):
    before_loading_the_module(stage)
    load(stage.first)


def test_the_tarball_has_the_same_bytes_again():
    # What could go wrong: times, owners, the order of files or the umask get into the archive.
    if platform.system() != "Linux":
        raise NotHere("tarballs are for Linux")
    dist()
    sums = []
    for zone, mask in (("UTC", "022"), ("Asia/Tokyo", "077")):
        with ONCE:
            command = f"umask {mask}; make tarball BUILT={MADE['built']} >&2; cat target/dist/SHA256SUMS"
            environment = words(TZ=zone, LC_ALL="C.UTF-8")
            said = run("sh", "-c", command, cwd=ROOT, env=environment).splitlines()
            sums.append([row for row in said if "-linux-" in row])
    assert sums[0] == sums[1] and len(sums[0]) == 2, sums


def test_the_page_says_which_c_library_the_files_need():
    system = platform.freedesktop_os_release()
    name = f"{system['NAME'].split()[0]} {system.get('VERSION_ID', '')}"
    page = (ROOT / "docs/operations/installing.md").read_text()
    row = re.search(rf"^\| {name}\b[^|]*\| ([0-9.]+) \|", page, re.M)
    if row is None:
        raise NotHere(f"the page does not name {name}")
    said = run(ROOT / "tools/package.sh", "abi", cwd=ROOT, env=words(BUILT=str(built())))
    number = re.search(r"libredis_lock\.so: glibc ([0-9.]+)", said)[1]
    assert number == row[1], f"the page says {row[1]}, and the module needs {said}"


def test_the_files_need_no_extension_of_the_processor():
    # The flags of the build are its own. What the compiler may use by default is what every x86-64 has.
    if platform.machine() != "x86_64":
        raise NotHere("the page names x86-64")
    script = (ROOT / "tools/package.sh").read_text()
    assert "export CARGO_ENCODED_RUSTFLAGS=" in script and "target-cpu" not in script
    features = set(re.findall(r'target_feature="(.*?)"', run("rustc", "--print", "cfg")))
    assert features <= {"fxsr", "sse", "sse2", "x87"}, features


def test_a_package_has_the_version_of_cargo():
    version = run(ROOT / "tools/version.py", "--debian").strip()
    for file in dist().glob("redis-lock*.deb"):
        assert run("dpkg-deb", "--field", str(file), "Version").strip() == f"{version}-1"
        depends = run("dpkg-deb", "--field", str(file), "Depends")
        assert "dbgsym" in file.name or re.search(r"libc6 \(>= 2\.\d+\)", depends), depends


def test_make_install_has_the_same_modes_over_any_umask_and_any_file():
    place = Path(tempfile.mkdtemp(dir=built()))
    root = place / "a folder" / "usr"

    def modes(umask):
        command = f"umask {umask}; make --no-print-directory install BUILT={built()} DESTDIR='{root.parent}'"
        run("sh", "-c", command, cwd=ROOT, env=words())
        found = {path.relative_to(root): path.stat().st_mode & 0o777 for path in root.rglob("*")}
        return {str(path): mode for path, mode in found.items()}

    first = modes("022")
    programs = {"lib/redis/modules/libredis_lock.so", "bin/redis-lock"}
    wrong = {name: oct(mode) for name, mode in first.items()
             if mode != (0o755 if name in programs or (root / name).is_dir() else 0o644)}  # fmt: skip
    assert not wrong, wrong
    library = root / "lib/redis/modules/libredis_lock.so"
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
    with open(library, "rb") as mapped:
        old, size = os.fstat(mapped.fileno()).st_ino, library.stat().st_size
        assert modes("077") == first
        # A server has the old file in memory: it is another one, and whole.
        assert library.stat().st_ino != old and os.fstat(mapped.fileno()).st_size == size


def test_make_uninstall_takes_its_own_files_and_leaves_those_of_others():
    root = Path(tempfile.mkdtemp(dir=built()))
    others = ["usr/local/share/redis-lock/mine.conf", "usr/local/lib/redis/modules/other.so"]
    others += ["usr/local/share/doc/redis-lock/notes", "usr/local/lib/debug/.build-id/00/1.debug"]
    for name in others:
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    # A version before this one, with symbols of its own.
    older = root.parent / "older"
    shutil.copytree(built(), older, ignore=shutil.ignore_patterns("dist", "tmp*"))
    shutil.copy(older / "redis-lock", older / "libredis_lock.so")
    where = {"DESTDIR": str(root), "PREFIX": "/usr/local"}
    for folder in (older, built()):
        words_typed = [f"{name}={value}" for name, value in {**where, "BUILT": folder}.items()]
        run("make", "--no-print-directory", "install", *words_typed, cwd=ROOT, env=words())
    make("uninstall", *(f"{name}={value}" for name, value in where.items()))
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == set(others), left
    assert (root / "usr/local/bin").is_dir(), "a folder that the system has anyway is gone"


def test_a_prefix_that_redis_conf_cannot_name_is_refused():
    root = Path(tempfile.mkdtemp(dir=built()))
    for prefix in ("relative", "/a folder", "/a&b", '/a"b'):
        command = ["make", "install", f"BUILT={built()}", f"DESTDIR={root}", f"PREFIX={prefix}"]
        done = subprocess.run(command, cwd=ROOT, env=words(), capture_output=True, text=True)
        assert done.returncode != 0 and f"PREFIX is {prefix}" in done.stderr, done
    assert list(root.iterdir()) == []


def test_what_is_not_a_package_gets_no_checksum():
    # What could go wrong: half of a file, of a run that was interrupted, is declared good.
    with ONCE:
        place = ROOT / "target/dist"
        place.mkdir(parents=True, exist_ok=True)
        names = [place / "redis-lock-1-linux-x.tar.gz.new.1", place / "notes"]
        for name in names:
            name.touch()
        try:
            run(ROOT / "tools/package.sh", "sums", cwd=ROOT, env=words())
            listed = (place / "SHA256SUMS").read_text()
        finally:
            for name in names:
                name.unlink()
    assert not any(name.name in listed for name in names), listed


class Image(Debian):
    """The image of a target of contrib/docker/Dockerfile, played without an engine: its instructions are carried out in
    a root of Debian that has what they need of the official image, the user 999 with the server and /data."""

    def __init__(self, stage, target):
        super().__init__(stage)
        self.target, self.said = target, {}
        self.must(f"! getent passwd {target} || userdel {target}; ! getent group {target} || groupdel {target}")
        self.must(f"groupadd -r -g 999 {target} && useradd -r -g {target} -u 999 {target}")
        self.must(f"install -d -o {target} -g {target} /data && rm -rf /etc/redis")
        if target == "valkey":
            servers = sorted((ROOT / "target/servers").glob("valkey-9*/valkey-server"))
            if not servers:
                raise NotHere("make servers has not unpacked a Valkey 9")
            run(*self.enter, "cp", "-r", str(servers[-1].parent), f"{self.root}/opt/valkey", env=self.environment)
            self.must("ln -s /opt/valkey/valkey-server /opt/valkey/valkey-cli /usr/local/bin")
        text = (ROOT / "contrib/docker/Dockerfile").read_text()
        text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
        parts = [part.splitlines() for part in re.split(r"^FROM ", text, flags=re.M)[1:]]
        stages = {part[0].split()[-1]: part[1:] for part in parts}
        image = Path(tempfile.mkdtemp(dir=built())) / "image"
        last = [line for line in stages["build"] if line.startswith("RUN ")][-1].removeprefix("RUN ")
        # What the first stage builds is built already.
        command = f"umask 022; {last}".replace("/image", str(image))
        run("sh", "-euc", command, cwd=ROOT, env=words(BUILT=str(built()), PREFIX="/usr"))
        for line in filter(None, stages[target]):
            word, rest = line.split(" ", 1)
            if word == "RUN":
                self.must(rest)
            elif line == "COPY --from=build /image /":
                run(*self.enter, "cp", "-r", "--preserve=mode", f"{image}/.", str(self.root), env=self.environment)
            elif word in ("USER", "HEALTHCHECK", "ENTRYPOINT", "CMD"):
                self.said[word] = rest
            else:
                raise AssertionError(f"this test cannot play: {line}")

    def start(self, *options, wait=True):
        """Starts what the image starts, as its user, with these options behind, and waits until it is healthy. Without
        wait it has to end by itself: its exit code, and what it printed."""
        typed = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", "REDISCLI_AUTH=secret"]
        typed = ["chroot", f"--userspec={self.said['USER']}", str(self.root), *typed]
        log = open(self.stage.folder / "server.out", "w")
        command = [*typed, *json.loads(self.said["ENTRYPOINT"]), *(options or json.loads(self.said["CMD"]))]
        self.server = subprocess.Popen([*self.enter, *command], env=self.environment, stdout=log, stderr=log)
        if not wait:
            return self.server.wait(PATIENCE_S), (self.stage.folder / "server.out").read_text()
        check = json.loads(self.said["HEALTHCHECK"].removeprefix("CMD "))
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run([*self.enter, *typed, *check], capture_output=True).returncode != 0:
            running = self.server.poll() is None and time.monotonic() < deadline
            assert running, (self.stage.folder / "server.out").read_text()
            time.sleep(0.1)
        self.typed = [*self.enter, *typed]
        return None

    def ask(self, *words_typed):
        return run(*self.typed, f"{self.target}-cli", *words_typed).strip()

    def stop(self):
        self.must(f"kill {self.pid()}")
        self.server.wait(PATIENCE_S)

    def pid(self):
        return re.search(r"^process_id:(\d+)", self.ask("INFO", "server"), re.M)[1]


def image_works(target):
    with Stage(target, ["10.0.0.1"]) as stage:
        image = Image(stage, target)
        image.start("--requirepass", "secret")
        assert int(image.ask("LOCK.ACQUIRE", "report", "worker", "PX", "600000")) > 0
        assert LIBRARY in image.ask("MODULE", "LIST")
        assert "NOAUTH" in image.must(f"{target}-cli PING")
        assert "granted" in image.must("REDISCLI_AUTH=secret redis-lock run check -- echo granted")
        assert set(image.must(f"grep -h ^[UG]id: /proc/{image.pid()}/status").split()) == {"Uid:", "Gid:", "999"}
        # As Sentinel does: the next start has the module once, and the lock.
        assert image.ask("CONFIG", "REWRITE") == "OK"
        image.stop()
        image.start("--requirepass", "secret")
        assert int(image.ask("LOCK.CHECK", "report", "worker")) > 0
        image.stop()
        # What could go wrong: a library that the user of the server cannot read, or that is not executable.
        for mode, why in (("700", "Permission denied"), ("644", "It does not have execute permissions")):
            image.must(f"chmod {mode} {LIBRARY}")
            code, said = image.start("--requirepass", "secret", wait=False)
            assert code != 0 and why in said, said


def test_the_image_of_redis_starts_as_its_user():
    image_works("redis")


def test_the_image_of_valkey_starts_as_its_user():
    image_works("valkey")


def test_the_pod_of_kubernetes_starts_and_its_probes_say_so():
    pod = (ROOT / "contrib/kubernetes/redis-lock.yaml").read_text()
    conf = re.search(r"^  redis\.conf: \|\n((?:    .*\n)+)", pod, re.M)[1]
    [args] = re.findall(r"^ *args: (\[.*\])$", pod, re.M)
    probes = [json.loads(found) for found in re.findall(r"^ *command: (\[.*\])$", pod, re.M)]
    assert len(probes) == 3, probes
    with Stage("pod", ["10.0.0.1"]) as stage:
        image = Image(stage, "redis")
        (image.seen / "etc/redis-lock/redis.conf").write_text(conf.replace("\n    ", "\n").removeprefix("    "))
        image.start(*json.loads(args.replace("$(REDISCLI_AUTH)", "secret")))
        for probe in probes:
            run(*image.typed, *probe)
        assert int(image.ask("LOCK.ACQUIRE", "report", "worker")) > 0
        image.must("test -d /data/appendonlydir")


def test_three_lines_and_a_tarball_are_an_image():
    version, arch = run(ROOT / "tools/version.py").strip(), platform.machine()
    if arch != "x86_64":
        raise NotHere("the page names the tarball of x86-64")
    page = (ROOT / "docs/operations/installing.md").read_text()
    lines = re.search(r"```dockerfile\n(.*?)```", page, re.S)[1].replace("VERSION", version).splitlines()
    assert [line.split()[0] for line in lines] == ["FROM", "ADD", "CMD"], lines
    with Stage("three lines", ["10.0.0.1"]) as stage:
        image = Image(stage, "redis")
        [tarball, place] = lines[1].split()[1:]
        run(*image.enter, "tar", "-xf", str(dist() / tarball), "-C", f"{image.root}{place}", env=image.environment)
        # What the entry point of the official image does: it becomes this user, and starts this.
        image.said["ENTRYPOINT"], image.said["CMD"] = "[]", lines[2].removeprefix("CMD ")
        image.start()
        assert int(image.ask("LOCK.ACQUIRE", "report", "worker")) > 0


def test_the_address_of_the_repository_goes_to_every_package():
    # The first step of RELEASING.md. No address here leads anywhere.
    copy = Path(tempfile.mkdtemp(dir=built()))
    files = run("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    # Twice: an address may change.
    for home in ("code.example/owner/locks", "other.example/locks"):
        address = f"https://{home}"
        run("tools/version.py", "--home", address, cwd=copy)
        run("tools/version.py", "--check", cwd=copy)
        assert run("tools/version.py", "--home", cwd=copy).strip() == address

        def text(name):
            return (copy / name).read_text()

        crates = json.loads(run("cargo", "metadata", "--no-deps", "--offline", "--format-version=1", cwd=copy))
        named = {crate["name"] for crate in crates["packages"] if crate["repository"] == address}
        assert named == {"redis-lock", "redis-lock-cli", "redis-lock-client"}, named
        assert json.loads(text("clients/node/package.json"))["repository"]["url"] == f"git+{address}.git"
        assert f'\n[project.urls]\nRepository = "{address}"\n' in text("clients/python/pyproject.toml")
        assert text("clients/java/pom.xml").count(f"<url>{address}</url>") == 2
        assert f"module {home}/clients/go\n" in text("clients/go/go.mod")
        assert f'"{home}/clients/go/redislock"' in text("tests/helpers/agents/go/main.go")
        left = [name for name in files if b"redis-lock.example/clients" in (copy / name).read_bytes()]
        assert left == ["tests/operations/hooks/installing.py"], left
    for wrong in ("http://code.example/owner/locks", "https://code.example", "https://code.example/locks.git"):
        done = subprocess.run(["tools/version.py", "--home", wrong], cwd=copy, capture_output=True, text=True)
        assert done.returncode != 0 and "is not like https://" in done.stderr, done
