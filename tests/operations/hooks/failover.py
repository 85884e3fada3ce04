"""What the recipes of docs/operations/failover.md begin with, and what they must not have broken."""

import time


def before_rehearse_a_failover(stage):
    primary, replica = stage.machines["10.0.0.1"], stage.machines["10.0.0.2"]
    for machine in stage.machines.values():
        text = f"bind 127.0.0.1 {machine.address}\nprotected-mode no\nrepl-diskless-sync-delay 0\n"
        machine.write("/etc/redis/redis.conf", text, add=True)
    replica.write("/etc/redis/redis.conf", "replicaof 10.0.0.1 6379\n", add=True)
    stage.loaded()
    deadline = time.monotonic() + 60
    while "connected_slaves:1" not in primary.cli("INFO", "replication") or "state=online" not in primary.cli(
        "INFO", "replication"
    ):
        assert time.monotonic() < deadline, "the replica does not follow"
        time.sleep(0.05)


def after_rehearse_a_failover(stage):
    # In the order of the page.
    fences = [int(stage.fences[shown]) for shown in sorted(stage.fences)]
    assert len(fences) == 3 and fences == sorted(fences), fences
    assert "role:master" in stage.machines["10.0.0.2"].cli("INFO", "replication")
