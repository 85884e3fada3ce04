"""What the recipes of docs/operations/failover.md begin with, and what they must not have broken."""

import time


def before_rehearse_a_failover(stage):
    primary, _ = stage.replicated()
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
