"""What the recipes of docs/operations/upgrading.md begin with.

REDIS_LOCK_OLD_MODULE names the module from which the recipes upgrade, and to which they go back; make roll builds it
from an older commit. Without it they are typed with the same module before and after. What an older one wrote and sent
is read in tests/server/persistence/earlier.rs.
"""

import os
import shutil
import threading
import time

from machine import Stage, module

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
