"""What the recipes of docs/operations/cluster.md begin with, and what they must not have broken."""

import time


def before_add_a_node(stage):
    for machine in stage.machines.values():
        text = f"bind 127.0.0.1 {machine.address}\nprotected-mode no\ncluster-enabled yes\n"
        machine.write("/etc/redis/redis.conf", text, add=True)
    stage.loaded()
    nodes = " ".join(f"10.0.0.{number}:6379" for number in (1, 2, 3))
    stage.first.must(f"redis-cli --cluster create {nodes} --cluster-yes")
    deadline = time.monotonic() + 60
    while any(
        "cluster_state:ok" not in machine.cli("CLUSTER", "INFO") for machine in list(stage.machines.values())[:3]
    ):
        assert time.monotonic() < deadline, "the cluster is not ready"
        time.sleep(0.05)
    # Many, so that some of them move.
    take = (
        "for key in $(seq 1 200); do echo LOCK.ACQUIRE k$key bob PX 600000; done | redis-cli -c | grep -E '^[0-9]{16}$'"
    )
    stage.taken = stage.first.must(f"({take}) | cat").split()
    assert len(stage.taken) == 200, len(stage.taken)


def after_add_a_node(stage):
    new = stage.machines["10.0.0.4"]
    there = int(new.cli("DBSIZE"))
    assert there > 0, "nothing has moved"
    check = "for key in $(seq 1 200); do echo LOCK.CHECK k$key bob; done | redis-cli -c | grep -E '^[0-9]{16}$'"
    assert stage.first.must(f"({check}) | cat").split() == stage.taken, "a lock was lost, or has another fence"
