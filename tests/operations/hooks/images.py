"""Plays contrib/docker/Dockerfile and the pod of contrib/kubernetes in a root of Debian: see debian.py."""

import json
import os
import platform
import re
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

from debian import LIBRARY, PATIENCE_S, ROOT, Debian, built, dist, run, words
from machine import NotHere, Stage, module

PAGES = ROOT / "docs/operations"


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

    def type_in(self, text):
        """What docker exec and kubectl exec do: as the user of the container, with its variables."""
        return run(*self.typed, "sh", "-ec", text)

    def stop(self):
        self.must(f"kill {self.pid()}")
        self.server.wait(PATIENCE_S)

    def outside(self, line):
        """Runs a line outside of the root, among its mounts."""
        run(*self.enter, "sh", "-ec", line.replace("ROOT", str(self.root)), env=self.environment)

    def older(self):
        """Another image: its module is the one to which tests/operations/hooks/upgrading.py goes back, too. Its
        configuration names no setting that this one does not know."""
        old = os.environ.get("REDIS_LOCK_OLD_MODULE") or module()
        self.outside(f"cp {old} ROOT{LIBRARY}.new; mv ROOT{LIBRARY}.new ROOT{LIBRARY}")
        self.must("sed -i '/^lock\\./d' /etc/redis-lock/redis.conf")

    def pid(self):
        return re.search(r"^process_id:(\d+)", self.ask("INFO", "server"), re.M)[1]


def image_works(target):
    with Stage(target, ["10.0.0.1"]) as stage:
        image = Image(stage, target)
        image.start("--requirepass", "secret")
        assert int(image.ask("LOCK.ACQUIRE", "report", "worker", "PX", "600000")) > 0
        assert LIBRARY in image.ask("MODULE", "LIST")
        assert "NOAUTH" in image.must(f"{target}-cli PING")
        # Healthy also where the container was not told the password.
        image.must(json.loads(image.said["HEALTHCHECK"].removeprefix("CMD "))[-1])
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


def the_way_back(image, options):
    """Plays the way back of the page in a container that runs with these options: commands in it up to find, and then
    another image. Without an older module it is the same one."""
    held = image.ask("LOCK.ACQUIRE", "report", "alice", "PX", "600000")
    image.ask("SET", "before", "kept")
    section = (PAGES / "upgrading.md").read_text().split("\n## The way back\n")[1].split("\n## ")[0]
    write, look, freeze, find = re.findall(r"^\$ docker exec locks (.*)", section, re.M)
    again = re.search(r"with `(.*?)` in place of BGREWRITEAOF", section)[1]
    # First a lease ends meanwhile, which the page says how to see, and what to do then.
    for first, meanwhile in ((write, True), (f"redis-cli {again}", False)):
        image.type_in(first)
        deadline = time.monotonic() + PATIENCE_S
        while image.type_in(look) != "aof_rewrite_in_progress:0\naof_rewrite_scheduled:0\n":
            assert time.monotonic() < deadline, "the file is not written"
            time.sleep(0.1)
        if meanwhile:
            image.ask("LOCK.ACQUIRE", "ended", "bob")
            image.ask("LOCK.RELEASE", "ended", "bob")
        assert image.type_in(freeze) == "OK\n"
        found = image.type_in(find)
        assert (".incr.aof" in found) == (found != "") == meanwhile, found
    image.stop()
    image.older()
    image.start(*options)
    # The older one has no LOCK.CHECK.
    fence = f"fence\n{held}\n"
    assert fence in image.ask("LOCK.INFO", "report")
    assert image.ask("MGET", "before", "ended") == "kept"
    # What the older one grants is kept, too.
    later = image.ask("LOCK.ACQUIRE", "later", "carol", "PX", "600000")
    assert int(later) > int(held)
    image.stop()
    image.start(*options)
    assert fence in image.ask("LOCK.INFO", "report") and f"fence\n{later}\n" in image.ask("LOCK.INFO", "later")
    # What could go wrong, of which the page on installing warns: dump.rdb is there, and nobody reads it.
    image.stop()
    image.must("test -s /data/dump.rdb; rm -r /data/appendonlydir")
    image.start(*options)
    assert image.ask("DBSIZE") == "0"


def test_the_way_back_in_docker_keeps_the_locks():
    page = (PAGES / "installing.md").read_text().replace("\\\n", "")
    [(described, options)] = re.findall(r"^\$ docker run (.*?) redis-lock:1 (.*)", page, re.M)
    said, options = dict(re.findall(r"--([a-z-]+) ([^\s-]\S*)", described)), options.split()
    # Compose does the same.
    compose = (ROOT / "contrib/docker/compose.yaml").read_text()
    for name, text in {
        "name": "container_name: %s\n", "restart": "restart: %s\n", "stop-timeout": "stop_grace_period: %ss\n",
        "publish": '- "%s"\n', "volume": "- %s\n",
    }.items():  # fmt: skip
        assert text % said[name] in compose, f"{name}: {said}"
    [line] = re.findall(r"^\$ (LOCK_PASSWORD=.*)", page, re.M)
    assert f"#   {line}\n" in compose and said["env"] == "REDISCLI_AUTH=secret"
    with Stage("docker", ["10.0.0.1"]) as stage:
        image = Image(stage, "redis")
        image.start(*options, *shlex.split(re.search(r"words of \[a user\].*?`(.*?)`", page, re.S)[1]))
        waiter_may_only_lock(image)
        image.type_in(re.search(r"as by `docker exec locks (.*?)`", page)[1] + " && test -s /data/copy.rdb")
        the_way_back(image, options)


def test_the_way_back_in_valkey_keeps_the_locks():
    with Stage("valkey's way back", ["10.0.0.1"]) as stage:
        image = Image(stage, "valkey")
        # Valkey's official image has these, too.
        image.must("ln -sf /opt/valkey/valkey-cli /usr/local/bin/redis-cli")
        options = ["--requirepass", "secret"]
        image.start(*options)
        the_way_back(image, options)


def waiter_may_only_lock(image):
    waiter = ("--user", "waiter", "--pass", "change-me", "--no-auth-warning")
    assert int(image.ask(*waiter, "LOCK.ACQUIRE", "lock:waiter", "worker")) > 0
    assert "NOPERM" in image.ask(*waiter, "GET", "lock:waiter")
    assert image.ask(*waiter, "LOCK.RELEASE", "lock:waiter", "worker") == "0"


class Pod(Image):
    """The pod of contrib/kubernetes: its text is the configuration, and it can write to its volume alone."""

    def __init__(self, stage):
        super().__init__(stage, "redis")
        self.text = (ROOT / "contrib/kubernetes/redis-lock.yaml").read_text()
        conf = re.search(r"^  redis\.conf: \|\n((?:    .*\n)+)", self.text, re.M)[1]
        [user] = re.findall("^ACL SETUSER (waiter .*)", (PAGES / "acl.md").read_text(), re.M)
        conf = conf.replace("\n    ", "\n").removeprefix("    ") + f"user {user}\n"
        (self.seen / "etc/redis-lock/redis.conf").write_text(conf)
        [args] = re.findall(r"^ *args: (\[.*\])$", self.text, re.M)
        self.options = json.loads(args.replace("$(REDISCLI_AUTH)", "secret"))
        assert "readOnlyRootFilesystem: true" in self.text
        self.outside("mount --rbind ROOT ROOT; mount -o remount,bind,ro ROOT")
        self.outside("mount -t tmpfs -o uid=999,gid=999 tmpfs ROOT/data")

    def older(self):
        self.outside("mount -o remount,bind,rw ROOT")
        super().older()
        self.outside("mount -o remount,bind,ro ROOT")


def test_the_pod_of_kubernetes_starts_and_its_probes_say_so():
    with Stage("pod", ["10.0.0.1"]) as stage:
        pod = Pod(stage)
        probes = [json.loads(found) for found in re.findall(r"^ *command: (\[.*\])$", pod.text, re.M)]
        assert len(probes) == 3, probes
        # Pods are servers that know nothing of each other: programs must reach one of them alone.
        services = re.findall(r"^kind: Service\n(?:.*\n)*?  selector:\n    (.*)", pod.text, re.M)
        assert services == ["statefulset.kubernetes.io/pod-name: redis-lock-0", "app: redis-lock"], services
        pod.start(*pod.options)
        for probe in probes:
            run(*pod.typed, *probe)
        waiter_may_only_lock(pod)
        # Its configuration is that of the ConfigMap, in each start.
        assert "Read-only file system" in pod.ask("CONFIG", "REWRITE")


def test_the_way_back_in_kubernetes_keeps_the_locks():
    with Stage("the pod's way back", ["10.0.0.1"]) as stage:
        pod = Pod(stage)
        pod.start(*pod.options)
        the_way_back(pod, pod.options)


def test_three_lines_and_a_tarball_are_an_image():
    version, arch = run(ROOT / "tools/version.py").strip(), platform.machine()
    if arch != "x86_64":
        raise NotHere("the page names the tarball of x86-64")
    page = (PAGES / "installing.md").read_text()
    text = re.search(r"```dockerfile\n(.*?)```", page, re.S)[1]
    lines = text.replace("VERSION", version).replace("\\\n", "").splitlines()
    assert [line.split()[0] for line in lines] == ["FROM", "ADD", "CMD"], lines
    with Stage("three lines", ["10.0.0.1"]) as stage:
        image = Image(stage, "redis")
        [tarball, place] = lines[1].split()[1:]
        run(*image.enter, "tar", "-xf", str(dist() / tarball), "-C", f"{image.root}{place}", env=image.environment)
        # What the entry point of the official image does: it becomes this user, and starts this.
        image.said["ENTRYPOINT"], image.said["CMD"] = "[]", lines[2].removeprefix("CMD ")
        image.start()
        assert int(image.ask("LOCK.ACQUIRE", "report", "worker")) > 0
        assert "NOAUTH" in image.must("redis-cli PING")
        image.must("test -d /data/appendonlydir")
