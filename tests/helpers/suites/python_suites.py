#!/usr/bin/env python3
"""Runs the lock tests of other makers against the helper for redis-py.

    python_suites.py [SUITE...]

Needs REDIS_LOCK_MODULE, and a server: REDIS_LOCK_SERVER, or redis-server in PATH. The tests come from PyPI, in released
sources, into target/suites. None of them is in this repository. What is here for each suite is a folder with a
conftest.py, which puts the helper in the place of the maker's lock, and a list of the tests that differ (DIFFERS.md).

It fails if a test fails that is not on the list, or if one passes that is. What surprises is asked once more, alone,
since these tests go by the clock. Exits with 77, and says NOT RUN and why,
when the sources cannot be had.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
HELPER = ROOT / "clients/python"
PLACE = ROOT / "target/suites"
PYTHON = PLACE / "venv/bin/python"
NOT_RUN = 77
TOOLS = (
    *(
        "pytest==9.2.0",
        "pytest-asyncio==1.5.0",
        "pytest-timeout==2.4.0",
        "pytest-xdist==3.8.0",
        "process-tests==3.0.0",
    ),
    *(
        "redis==8.1.0",
        "gevent==26.9.0",
        "eventlet==0.41.3",
        "mmh3==5.3.1",
        "typing_extensions==4.16.0",
    ),
)
# For each suite: the release, what of it goes into the folder where the tests run, what goes into PYTHONPATH, how many
# seconds a test may take, and how many run at once: those with a server of their own can.
SUITES = {
    "redis_py": ("redis==8.1.0", ["tests/test_lock.py"], None, 10, 0),
    "redis_py_asyncio": ("redis==8.1.0", ["tests/test_asyncio/test_lock.py"], None, 10, 0),
    "pottery": ("pottery==3.0.1", ["tests/test_redlock.py"], ".", 5, 0),
    "python_redis_lock": (
        "python-redis-lock==4.0.1",
        ["tests/test_redis_lock.py", "tests/helper.py", "tests/config.py"],
        None,
        12,
        6,
    ),
}


class NotRun(Exception):
    """The sources cannot be had."""


def pip(*words):
    done = subprocess.run(
        [PYTHON, "-m", "pip", "-q", "--disable-pip-version-check", *words],
        text=True,
        capture_output=True,
    )
    if done.returncode != 0:
        raise NotRun(f"pip {words[0]} failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]}")


def prepare():
    """The tools, in a venv of their own, and once for all runs."""
    stamp = PLACE / "tools"
    if stamp.exists() and stamp.read_text() == " ".join(TOOLS):
        return
    shutil.rmtree(PLACE / "venv", ignore_errors=True)
    venv.create(PLACE / "venv", with_pip=True)
    pip("install", *TOOLS)
    stamp.write_text(" ".join(TOOLS))


def sources(release):
    """The folder with a release's sources."""
    folder = PLACE / "src" / release
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=PLACE) as download:
            pip(
                "download",
                "--no-deps",
                "--no-binary",
                ":all:",
                "--dest",
                download,
                release,
            )
            (archive,) = Path(download).glob("*.tar.gz")
            with tarfile.open(archive) as sdist:
                sdist.extractall(Path(download) / "src", filter="data")
            (top,) = (Path(download) / "src").iterdir()
            folder.parent.mkdir(exist_ok=True)
            top.rename(folder)
    return folder


def differences(suite):
    """The tests on the list, with the reason for each: rows `| suite | tests | reason |` of DIFFERS.md."""
    rows = re.findall(
        rf"^\| `{suite}` \| (.+?) \| (.+?) \|$",
        (HERE / "DIFFERS.md").read_text(),
        re.MULTILINE,
    )
    return {name: reason for names, reason in rows for name in re.findall(r"`([^`]+)`", names)}


def run(suite, port, server, only=()):
    """Runs a suite, or the tests of it that have one of these names: for each `passed`, `failed` or `skipped`."""
    release, files, path, limit, at_once = SUITES[suite]
    source, folder = sources(release), PLACE / "run" / suite
    shutil.rmtree(folder, ignore_errors=True)
    tests = folder / "tests"
    tests.mkdir(parents=True)
    if suite.startswith("redis_py"):  # these import their conftest by name
        (tests / "__init__.py").touch()
    for file in [source / file for file in files] + sorted((HERE / suite).glob("*.py")):
        shutil.copy(file, tests)
    paths = [str(tests), *([str(source / path)] if path else []), str(HELPER)]
    report = folder / "report.xml"
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        folder,
        "--junitxml",
        report,
        "--timeout",
        str(limit),
        "--durations",
        "15",
        *(["-n", str(at_once)] if at_once and not only else []),
        *(["-k", " or ".join(only)] if only else []),
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "REDIS_LOCK_PORT": str(port),
        "REDIS_LOCK_SERVER": server,
    }
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    with (folder / "log").open("w") as log:
        subprocess.run(
            [PYTHON, "-m", "pytest", *words, tests],
            cwd=tests,
            env=environment,
            stdout=log,
            stderr=log,
        )
    if not report.exists():
        sys.exit(f"{suite}: pytest made no report: see {folder / 'log'}")
    outcomes = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.get("name") is None:
            continue  # what pytest-xdist says of one of its processes
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"}
        outcomes[case.get("name")] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return outcomes


def on_the_list(test, differs):
    """How the list names a test: a name without parameters stands for all of them."""
    return next((name for name in (test, test.partition("[")[0]) if name in differs), None)


def surprises(suite, outcomes):
    """The tests, without parameters, that did not do what the list says."""
    differs = differences(suite)
    unlike = {True: "passed", False: "failed"}
    surprising = [
        test for test, outcome in outcomes.items() if outcome == unlike[on_the_list(test, differs) is not None]
    ]
    return sorted({test.partition("[")[0] for test in surprising})


def judge(suite, outcomes):
    """Prints what came of a suite, and returns what is wrong."""
    differs, wrong, listed = differences(suite), [], set()
    for test, outcome in outcomes.items():
        name = on_the_list(test, differs)
        if name is not None:
            listed.add(name)
            print(f"  differs  {test}: {differs[name]}")
            if outcome == "passed":
                wrong.append(f"{suite}: {test} is on the list, and passes")
        elif outcome == "failed":
            wrong.append(f"{suite}: {test} fails: see {PLACE / 'run' / suite / 'log'}")
    wrong += [f"{suite}: {name} is on the list, and there is no such test" for name in differs.keys() - listed]
    count = Counter(outcomes.values())
    print(f"{suite}: {count['passed']} as there, {len(listed)} rows of the list, {count['skipped']} skipped")
    return wrong


def fixtures(server):
    """Lets pytest use the helper's own fixtures, and returns what is wrong."""
    environment = os.environ | {"PYTHONPATH": str(HELPER), "REDIS_LOCK_SERVER": server, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "redis_lock_client.testing.pytest_plugin"]
    done = subprocess.run([*words, HERE / "fixtures.py"], env=environment, text=True, capture_output=True)
    return [] if done.returncode == 0 and "2 passed" in done.stdout else [f"the fixtures: {done.stdout}{done.stderr}"]


class Server:
    """A server with the module on a free port."""

    def __init__(self, program):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        words = [
            "--port",
            str(self.port),
            "--save",
            "",
            "--dir",
            self.folder.name,
            "--databases",
            "16",
        ]
        module = ["--loadmodule", os.environ["REDIS_LOCK_MODULE"]]
        self.process = subprocess.Popen([program, *words, *module], stdout=subprocess.DEVNULL)

    def __enter__(self):
        give_up = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self.port
            except OSError:
                if time.monotonic() > give_up or self.process.poll() is not None:
                    sys.exit("the server does not start")
                time.sleep(0.05)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def main():
    server = os.environ.get("REDIS_LOCK_SERVER") or shutil.which("redis-server")
    if server is None or "REDIS_LOCK_MODULE" not in os.environ:
        sys.exit("REDIS_LOCK_MODULE and a server are needed")
    PLACE.mkdir(parents=True, exist_ok=True)
    wrong, passed = [], 0
    try:
        prepare()
        for suite in sys.argv[1:] or SUITES:
            sources(SUITES[suite][0])
    except NotRun as reason:
        print(f"NOT RUN: {reason}")
        sys.exit(NOT_RUN)
    with Server(server) as port:
        for suite in sys.argv[1:] or SUITES:
            outcomes = run(suite, port, server)
            if "internal" in outcomes:  # pytest-xdist itself broke off, before the last test
                outcomes = run(suite, port, server)
            if again := surprises(suite, outcomes):
                outcomes |= run(suite, port, server, again)
            wrong += judge(suite, outcomes)
            passed += sum(outcome == "passed" for outcome in outcomes.values())
    if not sys.argv[1:]:
        wrong += fixtures(server)
    for line in wrong:
        print(line)
    print(f"{passed} passed, {len(wrong)} failed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
