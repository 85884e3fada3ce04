#!/usr/bin/env python3
"""Runs the tests and counts them: all, a part, those whose name contains NAME, or the server tests on every server.

    tools/test.py [NAME]     for make test
    tools/test.py --check    for make check: the unit, model and server tests, on a debug build of the module
    tools/test.py --servers  for make test-servers: the server tests, on each server under target/servers

Ends with one line: passed, failed, not run on this server, minutes. One failure does not stop the rest.
A test that the server cannot run reports that (tests/server/harness/servers.rs), and counts as not run.
A test that has to depend on a clock stands in tests/by-the-clock. If it fails, the script repeats it once, alone,
before that counts.
Any other test that fails is repeated alone three times, with the seed that it printed. If it passes each time, it
counts as unsteady: the script prints its name and output, and the run does not fail for it. A run on five servers has
2,400 tests. A failure that comes once in thousands of runs must be seen, but must not refuse a change. If more than
five such tests fail in one run, the script repeats none of them, since that is no coincidence. It never repeats an
example of the documentation.

REDIS_LOCK_TESTED may name a server on which make test has just passed. On that version --servers repeats only the tests
that some server cannot run, to report what was not run there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.setdefault("CARGO_TARGET_DIR", str(ROOT / "target")))
COUNTS = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
# Recipes of docs/operations that are about each server. make test runs all recipes.
ON_EACH_SERVER = [
    *("operations::backup::", "operations::removing::", "operations::upgrading::"),
    *("operations::acl::put_users", "operations::tls::a_", "operations::troubleshooting::servers_"),
]
# These tests do not depend on the server, so they run on the first server only.
ONCE = ["docs::reference::", "harness::servers::", "operators::dashboard::"]
# What the tests of these programs need beside servers: it is installed and built before they are.
NEEDS = {
    "guide": ("tools/install.sh", "client-libraries", "go"),
    "helpers": ("tools/agents.sh",),
    "operations": ("tools/recipes.sh",),
    "browser": ("tools/install.sh", "browser", "docs"),
}
# How many tests of these programs run at once: they wait even more than others.
THREADS = {"guide": "8", "helpers": "8", "program": "14", "quorum": "14", "server": "10"}
# Which part of the output of tests is shown. The log has all of it.
ALL, RESULT, NOTHING = "all", "result", "nothing"
# How often a test outside of tests/by-the-clock has to pass alone, after it failed, to count as unsteady.
REPETITIONS = 3
# If more of them fail, something is broken. To repeat each could take hours: some wait for minutes before they fail.
REPEATED_AT_MOST = 5
# How many lines of the output of a failed test are shown.
LINES_SHOWN = 60


class Target:
    """Something of the workspace that has tests: a library, a program, or a folder of tests."""

    def __init__(self, package, target):
        self.package = package["name"]
        self.folder = Path(package["manifest_path"]).parent
        self.kind = "lib" if set(target["kind"]) & {"lib", "rlib", "cdylib"} else target["kind"][0]
        self.name = target["name"]
        self.source = Path(target["src_path"])
        self.features = target.get("required-features", [])
        self.program = None

    def files(self):
        """Its source files."""
        if self.kind != "lib" and self.source.name != "main.rs":
            return [self.source]
        programs = self.source.parent / "bin"
        files = self.source.parent.rglob("*.rs")
        return [file for file in files if self.kind != "lib" or programs not in file.parents]

    def may_have(self, name):
        """Whether a test of this name may be in it. Only the program knows for certain."""
        for file in self.files():
            path = list(file.relative_to(self.source.parent).with_suffix("").parts)
            if path[-1] in ("main", "lib", "mod") or file == self.source:
                path.pop()
            for function in re.findall(r"\bfn (\w+)", file.read_text()):
                if any(name in "::".join([*path, *inner, function]) for inner in ([], ["tests"])):
                    return True
        return False

    def needs_servers(self):
        return self.package == "testbed" or any("testbed" in file.read_text() for file in self.files())

    def flags(self):
        """How cargo is told to build it."""
        which = ["--lib"] if self.kind == "lib" else [f"--{self.kind}", self.name]
        features = [word for feature in self.features for word in ("--features", f"{self.package}/{feature}")]
        return ["--package", self.package, *which, *features]


class Recipes:
    """What an operator types, from docs/operations. No program of Rust, but one that speaks as they do."""

    package, kind, name = "redis-lock", "recipes", "operations"
    folder, source = ROOT, ROOT / "tests/operations/recipes"
    program = str(source)

    def may_have(self, name):
        return any(name in test for test in names_of(self))

    def needs_servers(self):
        return True


class Count:
    """How many tests passed, and which failed, were unsteady, did not run or were repeated."""

    def __init__(self):
        self.passed = 0
        self.failed = []  # (program, folder, name)
        self.outputs = {}  # (program, folder, name): lines of its output, for each that failed
        self.unsteady = []  # (name, lines of its output)
        self.not_run = {}  # name: why
        self.repeated = []
        self.start = time.monotonic()

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.outputs.update(other.outputs)
        self.unsteady += other.unsteady
        self.not_run.update(other.not_run)
        self.repeated += other.repeated

    def line(self, where=" on this server"):
        minutes = (time.monotonic() - self.start) / 60
        counts = f"passed {self.passed}, failed {len(self.failed)}, not run{where} {len(self.not_run)}"
        repeated = f", repeated alone {len(self.repeated)}" if self.repeated else ""
        unsteady = f", unsteady {len(self.unsteady)}" if self.unsteady else ""
        return f"{counts}, in {minutes:.1f} minutes{repeated}{unsteady}"


def fail(text):
    sys.stdout.flush()
    sys.exit(f"tests: {text}")


def check(*command, **options):
    sys.stdout.flush()
    if subprocess.run(command, cwd=ROOT, **options).returncode != 0:
        fail(f"{' '.join(command)} failed")


def targets():
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return [
        Target(package, target)
        for package in json.loads(text)["packages"]
        for target in package["targets"]
        if target["test"] and target["kind"][0] not in ("bench", "custom-build", "example")
    ]


def build(some):
    """Builds the programs of these targets, all at once."""
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
    some = [target for target in some if isinstance(target, Target)]
    if not some:
        return
    flags = dict.fromkeys(tuple(flag) for target in some for flag in pairs(target.flags()))
    command += [word for flag in flags for word in flag]
    sys.stdout.flush()
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE)
    if built.returncode != 0:
        fail("the tests cannot be built")
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            for target in some:
                if str(target.source) == message["target"]["src_path"] and target.name == message["target"]["name"]:
                    target.program = message["executable"]


def pairs(flags):
    """--package a --lib as two: (--package, a) and (--lib)."""
    found = []
    for word in flags:
        if word.startswith("--"):
            found.append([word])
        else:
            found[-1].append(word)
    return found


def run(command, folder, log, echo, **variables):
    """Runs a program of tests, and counts. The log gets the whole output; echo says which part is shown."""
    count = Count()
    with tempfile.NamedTemporaryFile() as left_out:
        environment = dict(os.environ, CARGO_MANIFEST_DIR=str(folder), REDIS_LOCK_NOT_RUN=left_out.name, **variables)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)
        result, failures, in_list, outputs = None, [], False, []
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            log.write(line + "\n")
            if echo is ALL or echo is RESULT and line.startswith("test result: "):
                print(line, flush=True)
            # The last list of this name has the names only; the output of tests stands before it.
            if line == "failures:" or outputs:
                outputs.append(line)
            if line == "failures:":
                failures, in_list = [], True
            elif in_list and line.startswith("    "):
                failures.append(line.strip())
            elif line:
                in_list = False
            found = COUNTS.match(line)
            if found:
                result = [int(number) for number in found.groups()]
                count.passed += result[0]
                if len(failures) != result[1]:
                    failures = (failures + ["(a test without a name)"] * result[1])[: result[1]]
                count.failed += [(command[0], folder, name) for name in failures]
                texts = outputs_of(failures, outputs)
                count.outputs.update({(command[0], folder, name): text for name, text in texts.items()})
                outputs = []
                count.not_run.update({f"(ignored {number})": "ignored" for number in range(result[2])})
        code = process.wait()
        process.stdout.close()
        if (result is None and "--doc" not in command) or (code != 0 and not count.failed):
            # The program broke off: how many tests had passed says nothing.
            count.failed.append((command[0], folder, f"({Path(command[0]).name} ended with {code}, before its result)"))
        for row in left_out.read().decode().splitlines():
            name, why = row.split(": ", 1)
            if name not in count.not_run and all(name != failed for _, _, failed in count.failed):
                count.not_run[name] = why
                count.passed -= 1
    if echo is RESULT:
        for row in count.failed:
            show_output(row[2], count.outputs.get(row))
    return count


def threads(target):
    """The variables that say how many tests of this program run at once."""
    return {"RUST_TEST_THREADS": THREADS[target.name]} if target.name in THREADS else {}


def outputs_of(failures, lines):
    """The output of each failed test, from the lines between the first "failures:" and the result."""
    # A test may print such a heading, too, but not one with the name of another failed test.
    headings = {f"---- {name} stdout ----": name for name in failures}
    ends = [number for number, line in enumerate(lines) if line == "failures:"]
    texts, name = {}, None
    for line in lines[: ends[-1]] if ends else []:
        if headings.get(line) not in (None, *texts):
            name = headings[line]
            texts[name] = []
        elif name is not None:
            texts[name].append(line)
    return {name: "\n".join(text).strip("\n").split("\n") for name, text in texts.items()}


def show_output(name, lines):
    """Prints the output of a failed test: its beginning and its end, if it is long."""
    if not lines:
        return
    print(f"---- {name} stdout ----")
    if len(lines) > LINES_SHOWN:
        half = LINES_SHOWN // 2
        lines = [*lines[:half], f"({len(lines) - LINES_SHOWN + 1} lines left out)", *lines[half - LINES_SHOWN + 1 :]]
    print("\n".join(lines), flush=True)


def clock_table():
    rows = (ROOT / "tests/by-the-clock").read_text().splitlines()
    return dict(row.split(": ", 1) for row in rows if row and not row.startswith("#"))


def repeat_failed(count, log, **variables):
    """Repeats the failed tests, each alone."""
    table = clock_table()
    others = [row for row in count.failed if row[2] not in table and is_test(row)]
    for row in list(count.failed):
        program, folder, name = row
        if name in table:
            print(f"repeated alone: {name}: {table[name]}", flush=True)
            again = run([program, "--exact", name], folder, log, RESULT, **variables)
            count.repeated.append(name)
            if not again.failed:
                count.failed.remove(row)
                count.passed += 1
        elif row in others and len(others) <= REPEATED_AT_MOST:
            print(f"repeated alone {REPETITIONS} times: {name}", flush=True)
            count.repeated.append(name)
            output = count.outputs.get(row, [])
            if passes_alone(row, seeds_in(output), log, **variables):
                count.failed.remove(row)
                count.unsteady.append((name, output))


def is_test(row):
    """Whether a row of failures is a test of a program: no example, and no message in brackets."""
    program, _, name = row
    return program not in ("", "cargo") and " " not in name and not name.startswith("(")


def seeds_in(output):
    """What a random test printed to make the same choices again. Without it, another history would be tried."""
    return dict(re.findall(r"\b(REDIS_LOCK_\w+)=(\d+)", "\n".join(output)))


def passes_alone(row, seeds, log, **variables):
    """Whether a failed test passes each time when it is repeated alone."""
    program, folder, name = row
    for _ in range(REPETITIONS):
        again = run([program, "--exact", name], folder, log, RESULT, **variables, **seeds)
        if again.failed or again.passed != 1:
            return False
    return True


def names_of(target):
    """The tests that a program has."""
    listed = subprocess.run([target.program, "--list"], cwd=target.folder, check=True, stdout=subprocess.PIPE).stdout
    return {line.rsplit(": ", 1)[0] for line in listed.decode().splitlines() if line.endswith(": test")}


def release_modules():
    check(os.environ.get("REDIS_LOCK_MAKE", "make"), "--no-print-directory", "modules")


def debug_modules():
    """In less time than a release build: no other profile, and no link-time optimisation."""
    packages = ["redis-lock", "probe-module", "wallclock"]
    check("cargo", "build", "--locked", *(f"--package={package}" for package in packages))
    [module] = [path for path in (TARGET / "debug").glob("libredis_lock.*") if path.suffix in (".so", ".dylib")]
    os.environ["REDIS_LOCK_MODULE"] = str(module)


def test(name, every, modules, with_examples):
    start = time.monotonic()
    some = [target for target in every if target.may_have(name)] or every
    if any(target.needs_servers() for target in some):
        check(str(ROOT / "tools/install.sh"), "server", "clients")
        for command in dict.fromkeys(NEEDS[target.name] for target in some if target.name in NEEDS):
            check(*command)
        modules()
    build(some)
    count = Count()
    count.start = start
    with open(TARGET / "test.log", "w") as log:
        for target in some:
            print(f"\n     Running {target.package}: {target.source.relative_to(ROOT)}", flush=True)
            command = [target.program, *([name] if name else [])]
            count.add(run(command, target.folder, log, ALL, **threads(target)))
        # Of every program: make check runs a few of them only.
        unknown = sorted(set(clock_table()).difference(*map(names_of, some))) if with_examples else []
        if unknown:
            count.failed.append(("", "", f"tests/by-the-clock names no test: {', '.join(unknown)}"))
        if with_examples:
            print("\n     Running the examples in the documentation", flush=True)
            count.add(run(["cargo", "test", "--locked", "--workspace", "--doc"], ROOT, log, ALL))
        print()
        repeat_failed(count, log)
    for left_out, why in sorted(count.not_run.items()):
        print(f"not run: {left_out}: {why}")
    show_unsteady(count)
    print(count.line())
    report(count)
    if name and count.passed + len(count.failed) + len(count.unsteady) + len(count.not_run) == 0:
        fail(f"no test has {name} in its name")


def show_unsteady(count):
    """Prints the tests that failed once and then passed alone. Each is a defect of the module or of the test."""
    if count.unsteady:
        print("unsteady:")
    for name, output in count.unsteady:
        print(f"  {name}")
        show_output(name, output)


def report(count, how=lambda row: ""):
    """Prints the names of the failed tests, and the commands that run them again."""
    for row in count.failed:
        print(f"failed: {row[2]}")
        if not row[2].startswith("(") and " " not in row[2]:
            print(f"  again: {how(row)}make test TEST={row[2]}")
    if count.failed:
        sys.stdout.flush()
        sys.exit(1)


def cannot_everywhere():
    """The tests that some server cannot run."""
    return re.findall(r'^ +test: "([a-z_:0-9]+)",$', (ROOT / "tests/server/harness/servers.rs").read_text(), re.M)


def version_of(server):
    """The name and version of a server: Redis 7.0.15."""
    text = subprocess.run([server, "--version"], check=True, stdout=subprocess.PIPE).stdout.decode()
    return re.sub(r"^(\w+) server v=([0-9.]+) .*", r"\1 \2", text.strip(), flags=re.S)


def test_servers():
    total, places = Count(), {}
    [server_tests] = [target for target in targets() if target.name == "server" and target.kind == "test"]
    build([server_tests])
    tested = os.environ.get("REDIS_LOCK_TESTED", "")
    tested = version_of(tested) if tested and shutil.which(tested) else None
    folders = [path.parent for path in (TARGET / "servers").glob("*-*/version")]
    folders.sort(key=lambda path: (path.name.split("-")[0], [int(part) for part in path.name.split("-")[1].split(".")]))
    if not folders:
        fail("there are no servers: make servers brings them")
    for number, folder in enumerate(folders):
        family, version, source = (folder / "version").read_text().strip().split(" ", 2)
        what, server = f"{family.capitalize()} {version}", str(folder / f"{family}-server")
        which, rest = [word for skipped in ONCE for word in ("--skip", skipped)] if number else [], ""
        if what == tested:
            which, rest = ["--exact", *cannot_everywhere()], ", and the others by make test"
        with open(f"{folder}.log", "w") as log:
            print(f"     Running the server tests on {what}", flush=True)
            command = [server_tests.program, *which]
            more = threads(server_tests)
            count = run(command, server_tests.folder, log, RESULT, REDIS_LOCK_SERVER=server, **more)
            if what != tested:
                command = [Recipes.program, *ON_EACH_SERVER]
                count.add(run(command, Recipes.folder, log, RESULT, REDIS_LOCK_SERVER=server))
            repeat_failed(count, log, REDIS_LOCK_SERVER=server)
            if count.not_run:
                # A test of the list must fail here, else it does not belong in the list.
                command = [server_tests.program, "--exact", *count.not_run]
                every = {"REDIS_LOCK_SERVER": server, "REDIS_LOCK_TRY_ALL": "1"}
                tried = run(command, server_tests.folder, log, NOTHING, **every)
                for name in set(count.not_run) - {row[2] for row in tried.failed}:
                    count.failed.append(("", "", f"{name} passes, but is listed as one that {what} cannot run"))
        print(f"{what:14} {source:20} {count.line('')}{rest}", flush=True)
        for row in count.failed:
            places[id(row)] = f"REDIS_LOCK_SERVER={server} "
        for name, why in count.not_run.items():
            print(f"  not run: {name}: {why}")
        for row in count.failed:
            print(f"  failed: {row[2]}")
        if f"| {what} |" not in (ROOT / "docs/compatibility.md").read_text():
            print("  (docs/compatibility.md has another version of it)")
        total.passed += count.passed
        total.failed += count.failed
        total.unsteady += [(f"{what}: {name}", output) for name, output in count.unsteady]
        total.repeated += [f"{what}: {name}" for name in count.repeated]
        total.not_run.update({f"{what}: {name}": why for name, why in count.not_run.items()})
    print()
    show_unsteady(total)
    print(f"{len(folders)} servers: {total.line('')}")
    report(total, lambda row: places[id(row)])


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments == ["--servers"]:
        test_servers()
    elif arguments == ["--check"]:
        test("", [target for target in targets() if target.package == "redis-lock"], debug_modules, False)
    elif len(arguments) <= 1 and not any(argument.startswith("-") for argument in arguments):
        name = "".join(arguments)
        test(name, [*targets(), Recipes()], release_modules, not name)
    else:
        sys.exit(__doc__)
