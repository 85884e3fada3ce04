#!/usr/bin/env python3
"""Runs the tests and counts them.

    tools/test.py check            for make check: the unit, model and server tests
    tools/test.py test [NAME]      for make test: the same, and those of the programs, the Rust client and the tools
    tools/test.py clients [NAME]   for make test-clients: those that need other languages, a browser or more installed
    tools/test.py servers          for make test-servers: the server tests, on each server under target/servers

NAME leaves out the tests whose name does not contain it. The last line says: passed, failed, not run on this server,
minutes. One failure does not stop the rest. A test that the server or the machine cannot run reports that
(testbed::say_not_run), and counts as not run.

cargo-nextest runs all tests of all programs in one pool. .config/nextest.toml says how many processors a test is worth,
and which tests may be repeated. What passes only then is named and counted. tools/install.sh nextest brings it. Where
it cannot be had, one program runs after the other, as cargo test has it: the same tests with the same result.

REDIS_LOCK_TESTED may name a server on which make test has just passed. On that version `servers` repeats only the tests
that some server cannot run, to report what was not run there. With REDIS_LOCK_NEWEST it leaves out the servers of which
there is a newer one of the same family, but for that one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import scenarios

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.setdefault("CARGO_TARGET_DIR", str(ROOT / "target")))
NEXTEST = TARGET / "cargo-nextest/bin/cargo-nextest"
CONFIG = ROOT / ".config/nextest.toml"
# The whole workspace, whatever is run: with other features the dependencies would be built once more.
WORKSPACE = ["--locked", "--workspace"]
# The tests wait more than they compute, so more of them run at once than there are processors.
AT_ONCE = 8 * (os.cpu_count() or 1)

# What make check runs the tests of: the module, and what it is made of.
CHECKED = ["lock-core", "naive-model", "redis-lock", "server-api"]
# What make test-clients runs: these programs, and of the server tests those that begin with one of these.
CLIENT_PROGRAMS = ["browser", "guide", "helpers"]
CLIENT_TESTS = [
    *("cluster::many::a_cluster_client_", "commands::clients::", "docs::documents::every_program_in_"),
    *("docs::quorum::the_program_in_python_", "places::clients::"),
]
# Recipes of docs/operations that are about each server. make test-clients runs all recipes.
ON_EACH_SERVER = [
    *("operations::backup::", "operations::removing::", "operations::upgrading::"),
    *("operations::acl::put_users", "operations::tls::a_", "operations::troubleshooting::servers_"),
]
# What no server changes: documents are compared, or the module alone decides. These run on the first server only.
ONCE = [
    *(f"commands::minfence::{name}" for name in ("a_fence_", "a_hold_", "a_waiter_")),
    *("commands::replies_syntax::", "commands::state::"),
    *(f"docs::documents::{name}" for name in ("each_page_", "every_command_", "every_program_", "the_front_page_")),
    *(f"docs::documents::the_page_of_a_command_{name}" for name in ("has_", "names_")),
    *("docs::quorum::the_program_", "docs::reference::", "harness::", "operators::dashboard::"),
    *(f"operators::config::{name}" for name in ("a_", "ex_", "locks_")),
]
RECIPES = ROOT / "tests/operations/recipes"
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
# Lines that say why a test failed, in the words of this harness and of those in Python, Node.js, Go and Java.
REASON = re.compile(
    r"panicked at|^\s*not ok |^\s+error: |^(FAIL|ERROR): |^\w*(Error|Exception)\b|--- FAIL|^\[ERROR\] +\S+:\d+"
)


class Count:
    """How many tests passed, and which failed, did not run, or passed only when they were repeated."""

    def __init__(self):
        self.passed = 0
        self.ran = set()  # their names, where they are known
        self.failed = []
        self.not_run = {}  # name: why
        self.repeated = []
        self.reasons = {}  # name: lines of its output
        self.histories = 0
        self.start = time.monotonic()

    def add(self, other, prefix=""):
        self.passed += other.passed
        self.ran |= {prefix + name for name in other.ran}
        self.failed += [prefix + name for name in other.failed]
        self.not_run.update({prefix + name: why for name, why in other.not_run.items()})
        self.repeated += [prefix + name for name in other.repeated]
        self.reasons.update({prefix + name: lines for name, lines in other.reasons.items()})
        self.histories += other.histories

    def repeat(self, name, play, times=1):
        """Plays a test again that has failed, until it passes."""
        if any(again.passed == 1 and not again.failed for again in (play() for _ in range(times))):
            self.failed.remove(name)
            self.passed += 1
            self.repeated.append(name)

    def line(self, where=" on this server"):
        minutes = (time.monotonic() - self.start) / 60
        counts = f"passed {self.passed}, failed {len(self.failed)}, not run{where} {len(self.not_run)}"
        repeated = f", passed only when repeated {len(self.repeated)}" if self.repeated else ""
        return f"{counts}, in {minutes:.1f} minutes{repeated}"


class Log:
    """The file with the whole output of a run."""

    def __init__(self, path, is_shown=True):
        self.file, self.is_shown = open(path, "w"), is_shown

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def follow(self, command, folder=ROOT, hides=lambda line: False, **variables):
        """Runs a command. Gives its lines, and how it ended; prints them, but for those that `hides` names."""
        sys.stdout.flush()
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        lines = []
        with subprocess.Popen(command, cwd=folder, env=dict(os.environ, **variables), **pipes) as process:
            for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                self.file.write(line + "\n")
                lines.append(line)
                if self.is_shown and not hides(line):
                    print(line, flush=True)
        return lines, process.returncode


def fail(text):
    sys.stdout.flush()
    sys.exit(f"tests: {text}")


def check(*command):
    sys.stdout.flush()
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        fail(f"{' '.join(map(str, command))} failed")


def debug_modules():
    """Builds the modules in less time than a release build takes: without link-time optimisation."""
    packages = ["redis-lock", "probe-module", "wallclock", "noop"]
    check("cargo", "build", "--locked", *(f"--package={package}" for package in packages))
    [module] = [path for path in (TARGET / "debug").glob("libredis_lock.*") if path.suffix in (".so", ".dylib")]
    os.environ["REDIS_LOCK_MODULE"] = str(module)
    os.environ["REDIS_LOCK_NOOP"] = str(module.with_stem("libnoop"))


def packages():
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["packages"]


def test_programs():
    """The names of all programs of tests, beside those of libraries and programs."""
    targets = [target for package in packages() for target in package["targets"]]
    return sorted({target["name"] for target in targets if target["kind"] == ["test"]})


class Choice:
    """Which tests are run: some kinds of targets, and of the program `server` all, or a part."""

    def __init__(self, kinds, only=(), skipped=(), exact=(), name="", packages=()):
        self.kinds, self.only, self.skipped, self.exact = kinds, list(only), list(skipped), list(exact)
        self.name, self.packages = name, packages

    def expression(self):
        """The same as a filter of cargo-nextest."""
        of = "|".join
        parts = [f"({of(f'package(={name})' for name in self.packages)})"] if self.packages else []
        if self.only:
            parts.append(f"(not binary(=server) | test(/^({of(self.only)})/))")
        if self.skipped:
            parts.append(f"not (binary(=server) & test(/^({of(self.skipped)})/))")
        if self.exact:
            parts.append(f"test(/^({of(self.exact)})$/)")
        if self.name:
            parts.append(f"test({self.name})")
        return " & ".join(parts) or "all()"

    def has(self, package, program, name):
        begins = name.startswith
        return (
            self.name in name
            and (not self.packages or package in self.packages)
            and (not self.exact or name in self.exact)
            and not (program == "server" and (self.skipped and begins(tuple(self.skipped))))
            and not (program == "server" and self.only and not begins(tuple(self.only)))
        )


def play(choice, log, **variables):
    """Runs the tests of a choice, and counts."""
    with tempfile.NamedTemporaryFile() as left_out:
        variables["REDIS_LOCK_NOT_RUN"] = left_out.name
        count = (by_nextest if NEXTEST.exists() else by_cargo)(choice, log, **variables)
        note_not_run(count, left_out)
    return count


def note_not_run(count, left_out):
    for row in left_out.read().decode().splitlines():
        name, why = row.split(": ", 1)
        if name not in count.not_run and name not in count.failed:
            count.not_run[name] = why
            count.passed -= 1


def by_nextest(choice, log, **variables):
    command = [NEXTEST, "nextest", "run", *WORKSPACE, *choice.kinds, "--no-fail-fast", "--no-tests", "pass"]
    command += ["--test-threads", str(AT_ONCE), "--no-input-handler", "-E", choice.expression()]
    report = TARGET / "nextest/default/junit.xml"
    report.unlink(missing_ok=True)
    _, code = log.follow(command, **variables)
    count = Count()
    if not report.exists():
        if code != 0:
            count.failed.append(f"(cargo-nextest ended with {code}, before its result)")
        return count
    count_report(count, report.read_text())
    if code != 0 and not count.failed:
        count.failed.append(f"(cargo-nextest ended with {code})")
    return count


def count_report(count, text):
    """Reads what cargo-nextest says of each test."""
    for case in ET.fromstring(text).iter("testcase"):
        name, is_failed = case.get("name"), case.find("failure") is not None or case.find("error") is not None
        is_repeated = case.find("flakyFailure") is not None or case.find("flakyError") is not None
        if is_failed:
            count.failed.append(name)
        elif case.find("skipped") is None:
            count.passed += 1
            count.ran.add(name)
            if is_repeated:
                count.repeated.append(name)
        if is_failed or is_repeated:
            count.reasons[name] = reasons("\n".join(case.itertext()))
        said = case.findtext("system-out") or ""
        count.histories += sum(map(int, re.findall(r"^(\d+) histories$", said, re.M)))


def reasons(output, most=8):
    """The lines of a failed test's output that say why, with the line after a panic."""
    lines, found = output.splitlines(), []
    for at, line in enumerate(lines):
        if REASON.search(line):
            found += lines[at : at + (2 if "panicked at" in line else 1)]
    return [line.strip()[:200] for line in found[:most]]


def named_in_config():
    """The tests that .config/nextest.toml names: those that may be repeated, and two that it keeps apart."""
    return re.findall(r"\btest\(=([\w:]+)\)", CONFIG.read_text())


def by_cargo(choice, log, **variables):
    command = ["cargo", "test", *WORKSPACE, *choice.kinds, "--no-run", "--message-format=json-render-diagnostics"]
    sys.stdout.flush()
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE)
    if built.returncode != 0:
        fail("the tests cannot be built")
    count, package_of = Count(), {package["manifest_path"]: package["name"] for package in packages()}
    for message in map(json.loads, built.stdout.splitlines()):
        if not message.get("executable") or not message["profile"]["test"]:
            continue
        folder, program = Path(message["manifest_path"]).parent, message["executable"]
        package, target = package_of[message["manifest_path"]], message["target"]["name"]
        names = [name for name in names_of(program, folder) if choice.has(package, target, name)]
        if not names:
            continue
        print(f"     Running {len(names)} tests of {target}", flush=True)
        more = {**variables, "CARGO_MANIFEST_DIR": str(folder)}
        one = play_program([program, "--exact", *names], folder, log, **more)
        for name in set(named_in_config()).intersection(one.failed):
            one.repeat(name, lambda name=name: play_program([program, "--exact", name], folder, log, **more))
        one.ran = set(names) - set(one.failed)
        count.add(one)
    return count


def names_of(program, folder):
    listed = subprocess.run([program, "--list"], cwd=folder, check=True, stdout=subprocess.PIPE).stdout.decode()
    return [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]


def play_program(command, folder, log, **variables):
    """Runs a program that speaks as those of Rust's test harness do, and counts."""
    count, failures, result = Count(), [], None
    lines, code = log.follow(command, folder, lambda line: line.endswith(" ... ok"), **variables)
    for line in lines:
        if line == "failures:":
            # The last list of this name has the names only; the output of tests stands before it.
            failures = []
        elif line.startswith("    "):
            failures.append(line.strip())
        elif found := RESULT.match(line):
            result = [int(number) for number in found.groups()]
            count.passed += result[0]
            count.failed += (failures + ["(a test without a name)"] * result[1])[: result[1]]
            failures = []
    if code != 0 and not count.failed:
        # The program broke off: how many tests had passed says nothing.
        count.failed.append(f"({Path(command[0]).name} ended with {code}, before its result)")
    return count


def play_recipes(names, log, **variables):
    """Runs recipes of docs/operations. They are no program of Rust, but speak as one does."""
    with tempfile.NamedTemporaryFile() as left_out:
        count = play_program([RECIPES, *names], ROOT, log, REDIS_LOCK_NOT_RUN=left_out.name, **variables)
        note_not_run(count, left_out)
    for name in list(count.failed):
        # As cargo-nextest does in .ci/run.
        times = int(os.environ.get("NEXTEST_RETRIES", "0"))
        count.repeat(name, lambda name=name: play_program([RECIPES, "--exact", name], ROOT, log, **variables), times)
    return count


def test(word, name):
    count = Count()
    debug_modules()
    with Log(TARGET / "test.log") as log:
        if word == "check":
            kinds = ["--lib", "--test", "model", "--test", "server"]
            count.add(play(Choice(kinds, skipped=CLIENT_TESTS, packages=CHECKED), log))
        elif word == "test":
            programs = [program for program in test_programs() if program not in CLIENT_PROGRAMS]
            kinds = ["--lib", "--bins", *(word for program in programs for word in ("--test", program))]
            count.add(play(Choice(kinds, skipped=CLIENT_TESTS, name=name), log))
            if not name:
                print("     Running the examples in the documentation", flush=True)
                count.add(play_program(["cargo", "test", *WORKSPACE, "--doc"], ROOT, log))
        else:
            kinds = [word for program in [*CLIENT_PROGRAMS, "server"] for word in ("--test", program)]
            count.add(play(Choice(kinds, only=CLIENT_TESTS, name=name), log))
            print("     Running the recipes of docs/operations", flush=True)
            count.add(play_recipes([name] if name else [], log))
            if os.environ.get("REDIS_LOCK_RECORD") and not name:
                scenarios.write(count)
            elif not name:
                count.failed += scenarios.differences(count)
    end(count, word)
    if name and count.passed + len(count.not_run) == 0:
        fail(f"no test of make {word} has {name} in its name")


def end(count, word, where=" on this server"):
    """Prints what came of a run, and ends with failure if a test failed."""
    print()
    for name, why in sorted(count.not_run.items()):
        print(f"not run: {name}: {why}")
    for name in count.repeated:
        print(f"passed only when it was repeated: {name}")
        print_reasons(count, name)
    for name in count.failed:
        print(f"failed: {name}")
        print_reasons(count, name)
        if " " not in name and word in ("test", "clients"):
            print(f"  again: make {'test' if word == 'test' else 'test-clients'} TEST={name}")
    if count.histories:
        print(f"the core and its model agree in {count.histories} histories")
    print(count.line(where))
    # .ci/run adds them up.
    if (TARGET / "counts").exists():
        with open(TARGET / "counts", "a") as file:
            file.write(f"{count.passed} {len(count.failed)}\n")
    if count.failed:
        sys.stdout.flush()
        sys.exit(1)


def print_reasons(count, name):
    for line in count.reasons.get(name, []):
        print(f"    {line}")


def cannot_everywhere():
    """The tests that some server cannot run."""
    return re.findall(r'^ +test: "([a-z_:0-9]+)",$', (ROOT / "tests/server/harness/servers.rs").read_text(), re.M)


def version_of(server):
    """The name and version of a server: Redis 7.0.15."""
    text = subprocess.run([server, "--version"], check=True, stdout=subprocess.PIPE).stdout.decode()
    return re.sub(r"^(\w+) server v=([0-9.]+) .*", r"\1 \2", text.strip(), flags=re.S)


def servers():
    total, kinds = Count(), ["--test", "server"]
    tested = os.environ.get("REDIS_LOCK_TESTED", "")
    tested = version_of(tested) if tested and shutil.which(tested) else None
    folders = [path.parent for path in (TARGET / "servers").glob("*-*/version")]
    folders.sort(key=lambda path: (path.name.split("-")[0], [int(part) for part in path.name.split("-")[1].split(".")]))
    if not folders:
        fail("there are no servers: make servers brings them")
    facts = {folder: (folder / "version").read_text().strip().split(" ", 2) for folder in folders}
    newest = {family: folder for folder, (family, *_) in facts.items()}.values()
    for number, (folder, (family, version, source)) in enumerate(facts.items()):
        what, server = f"{family.capitalize()} {version}", str(folder / f"{family}-server")
        if os.environ.get("REDIS_LOCK_NEWEST") and folder not in newest and what != tested:
            continue
        choice, rest = Choice(kinds, skipped=ONCE if number else []), ""
        if what == tested:
            choice, rest = Choice(kinds, exact=cannot_everywhere()), ", and the others by make test"
        print(f"     Running the server tests on {what}", flush=True)
        count = Count()
        with Log(f"{folder}.log") as log:
            count.add(play(choice, log, REDIS_LOCK_SERVER=server))
            if what != tested:
                count.add(play_recipes(ON_EACH_SERVER, log, REDIS_LOCK_SERVER=server))
        if count.not_run:
            # A test of the list must fail here, else it does not belong in the list.
            every = Choice(kinds, exact=count.not_run)
            with Log(f"{folder}.tried.log", is_shown=False) as log:
                tried = play(every, log, REDIS_LOCK_SERVER=server, REDIS_LOCK_TRY_ALL="1")
            for name in set(count.not_run) - set(tried.failed):
                count.failed.append(f"({name} passes, but is listed as one that {what} cannot run)")
        print(f"{what:14} {source:20} {count.line('')}{rest}", flush=True)
        if f"| {what} |" not in (ROOT / "docs/compatibility.md").read_text():
            print("  (docs/compatibility.md has another version of it)")
        total.add(count, f"{what}: ")
    print(f"{len(folders)} servers")
    end(total, "servers", "")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    word, name = (arguments + ["", ""])[:2]
    if word == "servers" and len(arguments) == 1:
        servers()
    elif word in ("check", "test", "clients") and len(arguments) <= (1 if word == "check" else 2):
        test(word, name)
    else:
        sys.exit(__doc__)
