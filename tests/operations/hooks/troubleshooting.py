"""What docs/operations/troubleshooting.md says of the log, of errors and of messages, against the code and servers."""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/operations/troubleshooting.md").read_text()
API = ROOT / "crates/server-api/src"
CLI = ROOT / "cli/src"
STRING = r'"((?:[^"\\]|\\.)*)"'
FORMATTED = rf"(?:&?(?:format|format_args)!\(\s*)?{STRING}"
# The module fills in its own names.
NAMES = {
    "a saved {} was": "a saved redislock was",
    "what {} saved": "what redislock saved",
    "module {} is": "module lock is",
}


def section(heading):
    """The text below a heading, up to the next one."""
    return re.split(r"\n#+ ", PAGE.split(f"# {heading}\n")[1])[0]


def first_cells(text, column=0):
    """What stands in code in the first column of the tables there."""
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {literal for row in rows for literal in re.findall(r"`([^`]+)`", row[column])}


def code(*folders):
    """The files of Rust in these folders and below. Each has some: else none would notice a move."""
    files = [sorted(folder.rglob("*.rs")) for folder in folders]
    assert all(files), f"a folder without code: {folders}"
    return [file for of_folder in files for file in of_folder]


def literals(pattern, *paths):
    """The texts that code has at such places, each {...} as `...`."""
    found = set()
    for path in paths:
        text = re.sub(r"(?m)^\s*//.*$", "", path.read_text().split("#[cfg(test)]")[0])
        for literal in re.findall(pattern, text):
            for before, after in NAMES.items():
                literal = literal.replace(before, after)
            found.add(re.sub(r"\{[^}]*\}", "...", literal))
    return found


def alike(shown, there, what):
    assert there, f"the code has no {what}"
    assert shown == there, f"{what}: not on the page: {sorted(there - shown)}; not in the code: {sorted(shown - there)}"


def test_the_page_has_every_line_that_the_module_writes_into_the_log():
    # What could go wrong: an operator finds a line in the log that no page explains.
    there = literals(rf"\blog_(?:warning|notice)\(\s*{FORMATTED}", *code(ROOT / "src", ROOT / "crates/core/src", API))
    alike(first_cells(section("Lines of the log")), there, "lines of the log")


def test_the_page_has_every_reason_for_which_a_saved_lock_is_refused():
    data_type, value = ROOT / "src/module/data_type.rs", API / "value.rs"
    there = literals(rf"(?:Err\(|=> |\|_\| ){FORMATTED}", data_type, value)
    alike(first_cells(section("A saved lock was refused")), there, "reasons")


def test_the_page_has_every_reason_for_which_the_module_is_not_loaded():
    files = [*code(API), ROOT / "src/module/config.rs", ROOT / "src/lib.rs"]
    there = literals(rf"LoadError\({FORMATTED}", *files)
    there |= literals(rf"\bErr\({FORMATTED}", API / "config.rs", ROOT / "src/module/config.rs")
    alike(first_cells(section("The module was not loaded")), there, "reasons")


def test_the_page_has_every_code_and_every_limit_of_the_page_of_errors():
    errors = (ROOT / "docs/reference/errors.md").read_text()
    codes = set(re.findall(r"^\| `([A-Z]+) ", errors, re.M))
    codes |= set(
        re.findall(r"\b[A-Z]{3,}\b", errors.split("The server's other errors pass through: ")[1].split(".")[0])
    )
    shown = {code.split(" ")[0] for code in first_cells(section("Errors").split("The texts of LIMIT")[0])}
    assert codes <= shown, f"not on the page: {sorted(codes - shown)}"
    there = {re.sub(r"\(\d+\)", "(...)", text) for text in re.findall(r"^\| `LIMIT ([^`]+)`", errors, re.M)}
    alike(first_cells(section("Errors").split("The texts of LIMIT")[1]), there, "limits")


def test_the_page_has_every_message_of_redis_lock_run():
    files = [path for path in code(CLI) if path.name not in ("message.rs", "args.rs")]
    there = literals(rf"\.warn\(\s*{FORMATTED}", *files) | literals(rf"\bsay_of\(&self\.run\.key, {STRING}", *files)
    alike(first_cells(section("redis-lock run")), there, "messages")


def as_pattern(literal):
    return re.compile(".*".join(map(re.escape, literal.split("..."))))


def log_of(folder, server, *options, conf="", wait_for=None):
    """What a server writes until it says so, or has ended by itself."""
    (folder / "conf").write_text(conf)
    words = [server, folder / "conf", "--port", "0", "--unixsocket", folder / "s", "--dir", folder, *options]
    with open(folder / "log", "wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if wait_for and re.search(wait_for, (folder / "log").read_text(errors="replace")):
                break
            time.sleep(0.02)
        process.kill()
        process.wait()
    return (folder / "log").read_text(errors="replace")


def test_servers_write_the_lines_that_the_page_shows():
    # What could go wrong: the page names a line that no server writes, or explains it as something else.
    server = machine.real_server()[0]
    load = f"loadmodule {machine.module()}"
    ready = "eady to accept"
    ours, theirs = first_cells(section("Lines of the log")), first_cells(section("What the server writes"))
    reasons = first_cells(section("The module was not loaded"))

    def writes(said, literal, among):
        assert literal in among, f"not on the page: {literal}"
        assert as_pattern(literal).search(said), f"the server has not written {literal}:\n{said}"

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for conf, reason in [
            (f"{load} max-keyz 5", "unknown argument of loadmodule: ..."),
            (f"{load} max-keys", "... lacks its value"),
            (f"{load} max-keys 500", "... is a number from ... to ..."),
            (f"{load} allow-hold maybe", "... is yes or no"),
            (f"{load}\nlock.max-keys 500", "a configuration of this module is out of range or no number"),
            (f"{load}\nlock.max-keys 10s", "a configuration of this module is out of range or no number"),
            (f"{load}\n{load}", "a module of this name is loaded already"),
            (f"{load}\nlock.max-lease-ms 1000", "lock.default-lease-ms must not be above lock.max-lease-ms"),
        ]:
            said = log_of(folder, server, conf=conf)
            assert reason in reasons, f"not on the page: {reason}"
            writes(said, "module lock is not loaded: ...", ours)
            assert re.search(f"<module> module lock is not loaded: {as_pattern(reason).pattern}\n", said), said
            writes(said, "Can't load module from ...: server aborting", theirs)
        said = log_of(folder, server, conf="loadmodule /nowhere/libredis_lock.so")
        writes(said, "cannot open shared object file: No such file or directory", theirs)
        copy = folder / "libredis_lock.so"
        copy.write_bytes(machine.module().read_bytes())
        copy.chmod(0o644)
        writes(
            log_of(folder, server, conf=f"loadmodule {copy}"),
            "failed to load: It does not have execute permissions.",
            theirs,
        )
        for conf in ("lock.max-keys 64", f"{load}\nlock.max-keyz 64"):
            said = log_of(folder, server, conf=conf)
            writes(said, "Module Configuration detected without loadmodule directive", theirs)
            named = re.search("lock.max-key[sz]", said) is not None
            assert named != (machine.version()[:3] == ("redis", 7, 0)), said

        grace = f"{load}\nlock.grace-ms 300\nmaxmemory-policy allkeys-lru"
        said = log_of(folder, server, conf=grace, wait_for="granted again: ")
        for literal in sorted(ours):
            if re.match("maxmemory|lock.grace|no lock is|locks are", literal):
                writes(said, literal, ours)

        for options, lines in [
            ([], ["The RDB file contains AUX module data I can't load: no matching module 'redislock'"]),
            # An older server puts an RDB in front of the file.
            (["--appendonly", "yes", "--aof-use-rdb-preamble", "no"], ["nknown command 'LOCK.HOLD'"]),
        ]:
            data = folder / ("aof" if options else "rdb")
            data.mkdir()
            client = subprocess.Popen(
                [server, *options, *f"--port 0 --unixsocket {data}/s --dir {data} --{load}".split(" ")],
                stdout=subprocess.DEVNULL,
            )
            conn = connected(data / "s", client)
            conn.say("LOCK.ACQUIRE", "k", "a")
            if not options:
                conn.say("SAVE")
            client.kill()
            client.wait()
            said = log_of(data, server, *options, wait_for=ready)
            for line in lines:
                writes(said, line, theirs)
            if options:
                # The last record was cut off, as by a crash.
                file = max(data.glob("appendonlydir/*.incr.aof"), key=lambda file: file.stat().st_size)
                file.write_bytes(file.read_bytes()[:-3])
                said = log_of(data, server, *options, conf=load, wait_for=ready)
                writes(said, "Truncating the AOF", theirs)


def test_what_others_cannot_read_is_read_by_sudo():
    # What could go wrong: an operator's command ends with "Permission denied". The machines of these tests are root's.
    for page in sorted((ROOT / "docs/operations").glob("*.md")):
        for block in re.findall(r"(?ms)^```sh\n(.*?)^```", page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                # CONFIG SET names files for the server, and /etc/prometheus may be read.
                if re.search(r" /(var/(log|lib|backups)|etc/redis)/", line) and "CONFIG SET" not in line:
                    assert "sudo " in line, f"{page.name}: {line}"


def connected(path, process):
    """A connection to a server that starts."""
    sys.path.insert(0, str(ROOT / "tools"))
    from sizing import Connection

    for _ in range(2000):
        assert process.poll() is None, "the server does not start"
        try:
            conn = Connection(path)
            conn.say("PING")
            return conn
        except (OSError, RuntimeError):
            time.sleep(0.02)
    raise AssertionError("the server does not answer")


def before_a_damaged_append_only_file(stage):
    if machine.version()[:3] == ("valkey", 9, 1):
        raise machine.NotHere("valkey-check-aof of Valkey 9.1 takes good files for damaged ones")
    home = stage.first
    stage.loaded("appendonly yes\nappendfsync always\n")
    for key in ("first", "damaged", "later"):
        home.cli("LOCK.ACQUIRE", key, "alice", "PX", "600000")
    home.must("systemctl stop redis-server")
    home.must("sed -i 's/^damaged/!/' /var/lib/redis/appendonlydir/*.incr.aof")
    assert home.bash("systemctl start redis-server")[0] != 0, "the server reads a damaged file"


def after_a_damaged_append_only_file(stage):
    # What could go wrong: the whole file is lost, or the server grants again at once what it has forgotten.
    home = stage.first
    assert home.cli("LOCK.CHECK", "first", "alice").isdigit()
    assert home.cli("EXISTS", "damaged", "later") == "0"
    assert home.cli("LOCK.ACQUIRE", "later", "bob").startswith("GRACE ")
    home.must("ls /var/backups/appendonlydir.damaged/appendonly.aof.manifest")
