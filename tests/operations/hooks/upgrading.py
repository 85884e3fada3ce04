"""What the recipes of docs/operations/upgrading.md begin with, and what an older version has saved and sent.

REDIS_LOCK_OLD_MODULE names the module from which the recipes upgrade, and to which they go back; make roll builds it
from an older commit. Without it they are typed with the same module before and after. make test reads instead what an
older one wrote: fixtures/COMMIT has an RDB file and an append-only file, which is also what a primary sends.
"""

import os
import shutil
import socket
import threading
import time
from pathlib import Path

from machine import Stage, module

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
HELD = [
    "LOCK.ACQUIRE report alice PX 600000 NOTE here",
    "LOCK.RW page one READ PX 600000",
    "LOCK.RW page two READ PX 600000",
]


def install(machine, library):
    """Puts a library where the server loads it from."""
    place = machine.path("/usr/lib/redis/modules/libredis_lock.so")
    shutil.copy(library, place.with_suffix(".new"))
    place.with_suffix(".new").rename(place)


def before(stage, old=None):
    for machine in stage.machines.values():
        if old is None or machine.address in old:
            install(machine, os.environ.get("REDIS_LOCK_OLD_MODULE") or module())
        shutil.copy(module(), machine.folder / "home/libredis_lock.so")


def before_one_server(stage):
    before(stage)
    stage.loaded("appendonly yes\n")


def before_a_primary_and_its_replicas(stage, old=None):
    before(stage, old)
    primary, replica = stage.replicated()
    await_true("the replica follows", lambda: "master_link_status:up" in replica.cli("INFO", "replication"))
    stage.holds = [(command.split(), primary.cli(*command.split())) for command in HELD]
    stage.load = Load(stage)


def after_a_primary_and_its_replicas(stage):
    former, primary = stage.machines["10.0.0.1"], stage.machines["10.0.0.2"]
    assert "role:master" in primary.cli("INFO", "replication")
    for command, fence in stage.holds:
        kind = ["READ"] if "READ" in command else []
        assert primary.cli("LOCK.CHECK", command[1], command[2], *kind) == fence, command
    granted = stage.load.stop()
    last = primary.cli("LOCK.ACQUIRE", "last", "bob", "PX", "600000")
    assert int(last) > max(int(fence) for fence in granted.values())
    # The roles stay over another restart, and the former primary has all, also what was granted in between.
    former.must("systemctl restart redis-server")
    await_true("the former primary has it", lambda: "owner\nbob" in former.cli("LOCK.INFO", "last"))
    assert "note\nhere" in former.cli("LOCK.INFO", "report")
    for machine in (primary, former):
        missing = [key for key in granted if machine.ask("EXISTS", key) != "1"]
        assert not missing, f"{machine.address} lacks {missing} of {len(granted)}"
        assert machine.ask("DBSIZE") == str(len(granted) + 3), "a lock that was released is there"


class Load:
    """Takes locks on whichever machine is the primary, and releases every second one, while an operator upgrades."""

    def __init__(self, stage):
        self.machines, self.granted, self.stopped = list(stage.machines.values()), {}, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        await_true("some locks are taken", lambda: len(self.granted) > 3)

    def run(self):
        number = 0
        while not self.stopped.wait(0.02):
            number += 1
            for machine in self.machines:
                fence = machine.ask("LOCK.ACQUIRE", f"load:{number}", "load", "PX", "600000")
                if fence.isdigit():
                    if number % 2 == 0 and machine.ask("LOCK.RELEASE", f"load:{number}", "load") == "0":
                        break
                    self.granted[f"load:{number}"] = fence
                    break

    def stop(self):
        """The locks that are held, with their fences."""
        self.stopped.set()
        self.thread.join()
        return self.granted


def before_the_way_back(stage):
    # From the module that is tested, with an append-only file, to the older one.
    library = os.environ.get("REDIS_LOCK_OLD_MODULE") or module()
    shutil.copy(library, stage.first.folder / "home/libredis_lock.so")
    stage.loaded("appendonly yes\nlock.grace-ms 0\n")
    stage.first.must("redis-cli SET before kept; redis-cli LOCK.ACQUIRE ended bob; redis-cli LOCK.RELEASE ended bob")
    stage.held = stage.first.cli("LOCK.ACQUIRE", "report", "alice", "PX", "600000")


def after_the_way_back(stage):
    stage.first.must("systemctl restart redis-server")
    # The older one has no LOCK.CHECK.
    assert f"fence\n{stage.held}\n" in stage.first.cli("LOCK.INFO", "report")
    assert stage.first.cli("MGET", "before", "ended") == "kept"


def await_true(what, there):
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline, f"not so: {what}"
        time.sleep(0.05)


# --- What an older version wrote ---

# What fixtures/63db960 holds: database and key; for each holder its reads, writes, fence and note.
WRITTEN = {
    (0, "report"): {"alice": (0, 1, 1795463013280203, "here")},
    (0, "page"): {"one": (1, 0, 1795463013280204, None), "two": (1, 0, 1795463013280205, "two")},
    (0, "twice"): {"bob": (0, 2, 1795463013280207, None)},
    (0, "thrice"): {"bob": (0, 2, 1795463013280208, None)},
    (0, "one"): {"dave": (0, 1, 1795463013408376, None)},
    (0, "two"): {"dave": (0, 1, 1795463013408377, None)},
    (0, "longer"): {"erin": (0, 1, 1795463013480497, None)},
    (0, "renamed"): {"frank": (0, 1, 1795463013585485, None)},
    (0, "handed"): {"hans": (0, 1, 1795463014833406, None)},
    (2, "elsewhere"): {"ivan": (0, 1, 1795463014947102, None)},
}
FREE = ("gone", "broken", "short", "moved")
# Its leases are as long as a lease may be: ten years from its making, in November 2026.
MONTH_MS = 30 * 86_400_000
NO_DATA = b"REDIS0010\xff" + bytes(8)


def holders(machine, db, key):
    """Those of a lock, as WRITTEN has them; and the shortest lease."""
    words = machine.must(f"redis-cli -n {db} --csv LOCK.INFO {key} | cat").strip().split(",")
    words = [None if word == "NULL" else word.strip('"') for word in words]
    found, shortest = {}, None
    for at, word in enumerate(words):
        if word == "owner":
            rest = words[at + 2 :]
            end = rest.index("owner") if "owner" in rest else len(rest)
            fields = dict(zip(rest[:end:2], rest[1:end:2]))
            found[words[at + 1]] = (int(fields["reads"]), int(fields["writes"]), int(fields["fence"]), fields["note"])
            left = int(fields["ttl_ms"])
            shortest = left if shortest is None else min(shortest, left)
    return found, shortest


def assert_written(machine):
    for (db, key), expected in WRITTEN.items():
        found, shortest = holders(machine, db, key)
        assert found == expected, f"{key}: {found}"
        assert shortest > MONTH_MS, f"{key}: {shortest} ms are left"
    for key in FREE:
        assert machine.cli("EXISTS", key) == "0", key
    # What it grants next, as a primary, is above all of that.
    machine.cli("REPLICAOF", "NO", "ONE")
    highest = max(hold[2] for hold in WRITTEN[2, "elsewhere"].values())
    assert int(machine.cli("LOCK.ACQUIRE", "gone", "zoe")) > highest
    assert machine.cli("LOCK.ACQUIRE", "report", "zoe") == ""
    assert machine.cli("LOCK.RELEASE", "thrice", "bob") == "1"


def written(commit, name):
    return (FIXTURES / commit / name).read_bytes()


def test_an_rdb_file_of_an_older_version_loads():
    with Stage("an older RDB file", ["10.0.0.1"]) as stage:
        stage.first.path("/var/lib/redis/dump.rdb").write_bytes(written("63db960", "dump.rdb"))
        stage.loaded()
        assert_written(stage.first)


def test_an_append_only_file_of_an_older_version_loads():
    with Stage("an older append-only file", ["10.0.0.1"]) as stage:
        folder = stage.first.path("/var/lib/redis/appendonlydir")
        folder.mkdir()
        (folder / "appendonly.aof.1.incr.aof").write_bytes(written("63db960", "stream.aof"))
        (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
        stage.loaded("appendonly yes\n")
        assert_written(stage.first)


def test_a_replica_copies_from_a_primary_of_an_older_version():
    play_primary(written("63db960", "dump.rdb"), b"")


def test_a_replica_reads_what_a_primary_of_an_older_version_sends():
    play_primary(NO_DATA, written("63db960", "stream.aof"))


if os.environ.get("REDIS_LOCK_OLD_MODULE"):

    def test_an_older_replica_that_lacks_a_lock_counts_errors():
        """What could go wrong: the operator has no way to see that it lacks one."""
        with Stage("an older replica", ["10.0.0.1", "10.0.0.2"]) as stage:
            before_a_primary_and_its_replicas(stage, old=["10.0.0.2"])
            granted = stage.load.stop()
            primary, replica = stage.machines["10.0.0.1"], stage.machines["10.0.0.2"]
            assert primary.cli("WAIT", "1", "60000") == "1"
            missing = [key for key in granted if replica.ask("EXISTS", key) != "1"]
            errors = int(replica.cli("INFO", "stats").split("unexpected_error_replies:")[1].split()[0])
            assert len(missing) <= errors, f"it lacks {missing} and counts {errors} errors"
            # What the page tells an operator to do repairs it, until the next record.
            replica.must("systemctl stop redis-server; rm -rf /var/lib/redis/dump.rdb /var/lib/redis/appendonlydir")
            replica.must("systemctl start redis-server")
            await_true("it copies all", lambda: replica.ask("DBSIZE") == primary.ask("DBSIZE"))


def play_primary(data, stream):
    """Sends this to a replica in the part of its primary."""
    with Stage("an older primary", ["10.0.0.2"]) as stage, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        # Not one of those that the machine changes.
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve, args=(listener, data, stream), daemon=True)
        thread.start()
        stage.loaded()
        stage.first.path("/etc/redis/redis.conf").open("a").write(f"replicaof 127.0.0.1 {port}\n")
        stage.first.must("systemctl restart redis-server")
        await_true("it has all", lambda: stage.first.must("redis-cli -n 2 EXISTS elsewhere | cat").strip() == "1")
        assert_written(stage.first)


def serve(listener, data, stream):
    """The part of a primary, as far as a replica needs it to copy and to follow."""
    link = listener.accept()[0]
    with link, link.makefile("rb") as words:
        while True:
            count = words.readline()
            if not count.startswith(b"*"):
                return
            command = []
            for _ in range(int(count[1:])):
                command.append(words.read(int(words.readline()[1:]) + 2)[:-2].upper())
            if command[0] == b"PING":
                link.sendall(b"+PONG\r\n")
            elif command[0] == b"PSYNC":
                link.sendall(b"+FULLRESYNC " + b"0123456789" * 4 + b" 0\r\n")
                link.sendall(b"$%d\r\n" % len(data) + data + stream)
            elif command[:2] != [b"REPLCONF", b"ACK"]:
                link.sendall(b"+OK\r\n")
