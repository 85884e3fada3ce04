#!/usr/bin/env python3
"""Puts the defects of tests/planted/defects.txt into a copy of the code, one at a time. A test must see each.

    tools/planted.py [NAME]   for make planted: each, or those whose description contains NAME
    tools/planted.py --check  only checks that each still applies, exactly once

The copy is target/planted/tree, and is built beside it: nothing else is changed. A defect that its own test does not
see is shown to all unit, model and server tests. The run fails if they do not see it either.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from test import CLIENT_TESTS

ROOT = Path(__file__).resolve().parent.parent
DEFECTS = ROOT / "tests/planted/defects.txt"
PLANTED = ROOT / "target/planted"
TREE = PLANTED / "tree"
# A defect may let a test wait for ever. None takes as long that does not.
LONGEST_S = 600
PROGRAMS = {
    "lib": ["--package=lock-core", "--package=server-api", "--package=redis-lock", "--lib"],
    "model": ["--package=naive-model", "--test=model"],
    "server": ["--package=redis-lock", "--test=server"],
}


class Defect:
    """A change of one file, and the test that sees it."""

    def __init__(self, text):
        self.name, *lines = text.strip("\n").split("\n")
        values = dict(re.findall(r"^(file|test): (.*)$", "\n".join(lines), re.M))
        self.file = values["file"]
        self.program, *self.filter = values["test"].split()
        self.old = "\n".join(line[1:] for line in lines if line.startswith("-"))
        self.new = "\n".join(line[1:] for line in lines if line.startswith("+"))

    def wrong(self):
        """Why it cannot be planted, or None."""
        if self.program not in PROGRAMS:
            return f"there is no program {self.program}"
        if not (ROOT / self.file).is_file():
            return f"there is no {self.file}"
        count = (ROOT / self.file).read_text().count(self.old)
        if not self.old or count != 1:
            return f"{self.file} has its lines {count} times: whoever moves them moves the defect"
        return "nothing is changed" if self.old == self.new else None


def defects(text):
    blocks = re.split(r"^== ", text, flags=re.M)[1:]
    return [Defect(block) for block in blocks]


def copy():
    """Makes the copy like the work tree. What is the same keeps its time, so that it is not built anew."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    names = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    if TREE.exists():
        for file in [path for path in TREE.rglob("*") if path.is_file() or path.is_symlink()]:
            if str(file.relative_to(TREE)) not in names:
                file.unlink()
    for name in names:
        here, there = ROOT / name, TREE / name
        if not there.is_file() or here.read_bytes() != there.read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(here, there, follow_symlinks=True)


def run(command, log, longest_s=None):
    """How a command ended in the copy; None if it took too long."""
    variables = {
        "CARGO_TARGET_DIR": str(PLANTED / "target"),
        "REDIS_LOCK_MODULE": str(PLANTED / "target/debug/libredis_lock.so"),
        "REDIS_LOCK_PYTHON": str(ROOT / "target/venv/bin/python"),
        "RUST_TEST_THREADS": str(4 * (os.cpu_count() or 1)),
    }
    pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
    environment = dict(os.environ, **variables)
    with subprocess.Popen(command, cwd=TREE, env=environment, start_new_session=True, **pipes) as process:
        try:
            return process.wait(longest_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None


def build(programs, log):
    builds = [["cargo", "test", "--locked", "--no-run", *PROGRAMS[program]] for program in programs]
    if "server" in programs:
        packages = ("redis-lock", "probe-module", "wallclock")
        builds.append(["cargo", "build", "--locked", *(f"--package={package}" for package in packages)])
    return all(run(command, log) == 0 for command in builds)


def sees(program, words, log):
    """Whether a program of tests fails, or does not end."""
    # Nothing but a server is installed for this.
    skipped = [word for name in CLIENT_TESTS for word in ("--skip", name)] if program == "server" else []
    command = ["cargo", "test", "--locked", *PROGRAMS[program], "--", *words, *skipped]
    return run(command, log, LONGEST_S) != 0


def play(defect):
    """Who sees a defect: its own test, others, or nobody. Or that it does not compile."""
    file = TREE / defect.file
    text = file.read_text()
    # A counterexample that another defect has left is none of this one.
    shutil.rmtree(TREE / "tests/proptest-regressions")
    shutil.copytree(ROOT / "tests/proptest-regressions", TREE / "tests/proptest-regressions")
    with open(PLANTED / "log", "a") as log:
        log.write(f"\n== {defect.name}\n")
        log.flush()
        try:
            file.write_text(text.replace(defect.old, defect.new))
            if not build([defect.program], log):
                return "DOES NOT COMPILE"
            if sees(defect.program, defect.filter, log):
                return f"seen by {' '.join([defect.program, *defect.filter])}"
            if not build(list(PROGRAMS), log):
                return "DOES NOT COMPILE"
            others = [program for program in PROGRAMS if sees(program, [], log)]
            return f"seen by {others[0]}, and not where the list says" if others else "NOT SEEN"
        finally:
            file.write_text(text)


def main():
    every = defects(DEFECTS.read_text())
    wrong = [f"{defect.name}: {why}" for defect in every if (why := defect.wrong())]
    for line in wrong:
        print(f"planted: {line}")
    if wrong or sys.argv[1:] == ["--check"]:
        sys.exit(1 if wrong else 0)
    start, name = time.monotonic(), "".join(sys.argv[1:])
    PLANTED.mkdir(parents=True, exist_ok=True)
    copy()
    with open(PLANTED / "log", "w") as log:
        if not build(list(PROGRAMS), log):
            sys.exit("planted: the tests cannot be built: see target/planted/log")
        if any(sees(program, [], log) for program in PROGRAMS):
            sys.exit("planted: a test fails without any defect: see target/planted/log")
    results = {}
    for defect in every:
        if name in defect.name:
            results[defect.name] = play(defect)
            print(f"{defect.name}: {results[defect.name]}", flush=True)
    seen = sum(result.startswith("seen") for result in results.values())
    minutes = (time.monotonic() - start) / 60
    print(f"planted: {seen} of {len(results)} defects were seen, in {minutes:.1f} minutes; see target/planted/log")
    sys.exit(0 if seen == len(results) > 0 else 1)


if __name__ == "__main__":
    main()
