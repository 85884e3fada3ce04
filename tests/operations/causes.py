"""For each alert of contrib/alerts.yml, what makes it fire, brought about on a server as it happens in life."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from sizing import Connection  # noqa: E402

# Longer than any test, and no more than GRACE_CONF allows.
LONG_MS = 600_000
GRACE_CONF = "lock.grace-ms 600000\nlock.max-lease-ms 600000\n"


def wire(machine):
    """A connection to the server of a machine, as its 127.0.0.1:6379."""
    return Connection((machine.local, machine.stage.ports[6379]))


def field(conn, name):
    """A field of INFO lock."""
    rows = dict(line.split(":") for line in str(conn.say("INFO", "lock")).splitlines() if ":" in line)
    return int(rows[name])


def until(what, true, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.02)


def lapse(machine):
    conn = wire(machine)
    conn.say("LOCK.ACQUIRE", "report", "worker-7:4711:a1", "PX", 1, "NOTE", "nightly")
    until("the lapse", lambda: field(conn, "lock_lapsed") > 0)


def refused_guard(machine):
    conn = wire(machine)
    fence = conn.say("LOCK.ACQUIRE", "{report}", "worker-7:4711:a1", "PX", LONG_MS)
    conn.say("LOCK.BREAK", "{report}")
    assert conn.say("LOCK.GUARD", "{report}", "worker-7:4711:a1", fence, "SET", "{report}:text", "late") is None


def deadlock(machine):
    one, two = wire(machine), wire(machine)
    one.say("LOCK.ACQUIRE", "k1", "a", "PX", LONG_MS)
    two.say("LOCK.ACQUIRE", "k2", "b", "PX", LONG_MS)
    one.send(("LOCK.ACQUIRE", "k2", "a", "BLOCK", 0))
    until("a waiter", lambda: field(two, "lock_waiters") > 0)
    try:
        two.say("LOCK.ACQUIRE", "k1", "b", "BLOCK", 0)
        raise AssertionError("no deadlock was found")
    except RuntimeError as error:
        assert str(error) == "DEADLOCK b -> k1 -> a -> k2 -> b", error
    return one, two


def time_outs(machine):
    conn = wire(machine)
    conn.say("LOCK.ACQUIRE", "slow", "holder-1:22:b2", "PX", LONG_MS, "NOTE", "import")
    for number in range(3):
        conn.say("LOCK.ACQUIRE", "slow", f"waiter {number}", "BLOCK", 1)


def waiters(machine, count=100):
    conn = wire(machine)
    conn.say("LOCK.ACQUIRE", "report", "holder-1:22:b2", "PX", LONG_MS)
    waiting = [wire(machine) for _ in range(count)]
    for number, one in enumerate(waiting):
        one.send(("LOCK.ACQUIRE", "report", f"waiter {number}", "BLOCK", 0))
    until("the waiters", lambda: field(conn, "lock_waiters") >= count)
    return waiting


def places(machine, count=1000):
    conn = wire(machine)
    conn.say("LOCK.ACQUIRE", "report", "holder-1:22:b2", "PX", LONG_MS)
    conn.all(("LOCK.ACQUIRE", "report", f"place {number}", "QUEUE", 60_000) for number in range(count))


def unheard(machine):
    """Tells owners of places on a channel to which nobody has subscribed."""
    conn = wire(machine)
    conn.say("LOCK.ACQUIRE", "unheard", "holder-1:22:b2", "PX", LONG_MS)
    conn.say("LOCK.ACQUIRE", "unheard", "worker-7:4711:a1", "QUEUE", 60_000, "NOTIFY", "lock:notify:nobody")
    conn.say("LOCK.RELEASE", "unheard", "holder-1:22:b2")
    assert field(conn, "lock_notified_unheard") > 0


def grace(machine):
    """Begins with a start: needs GRACE_CONF before that."""
    assert field(wire(machine), "lock_grace_left_ms") > 0


def broken(machine):
    conn = wire(machine)
    conn.say("LOCK.ACQUIRE", "deploy", "worker-7:4711:a1", "PX", LONG_MS, "NOTE", "nightly")
    assert conn.say("LOCK.BREAK", "deploy") == "1"


def gone(machine):
    """Starts the server without the module, and without the locks in its file, with which it would not start."""
    machine.must("systemctl stop redis-server; rm -f /var/lib/redis/dump.rdb")
    machine.must("sed -i -E '/^(loadmodule|lock\\.)/d' /etc/redis/redis.conf; systemctl start redis-server")


CAUSES = {
    "LockLapsed": lapse,
    "LockGuardRefused": refused_guard,
    "LockDeadlock": deadlock,
    "LockWaitsTimeOut": time_outs,
    "LockWaitersNearLimit": waiters,
    "LockPlacesNearLimit": places,
    "LockMessagesUnheard": unheard,
    "LockGrace": grace,
    "LockBroken": broken,
    "LockServerDown": gone,
}
