"""What the page shows of the lock server: LOCK.INFO of each lock, LOCK.TOP, and LOCK.LOG. Changes no lock.

The server's keyspace events tell when to ask again, so nothing is polled while nothing happens; but once a second,
since leases run without an event.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

EVENTS = ("lock.acquire", "lock.release", "lock.extend", "lock.lapse", "lock.break", "lock.wait")
SETTLE = 0.03  # how long to collect events that come together, as those of a hand-off do
TICK = 1.0


def pid_of(owner: str) -> int | None:
    """The process of an owner of the helper: it calls itself host:pid:random."""
    parts = owner.rsplit(":", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None


class Watch(threading.Thread):
    """Calls `changed` whenever something may have changed on the server, and each second."""

    def __init__(self, client: redis.Redis, changed: Callable[[], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self.client, self.changed = client, changed

    def run(self) -> None:
        while True:
            try:
                self.listen()
            except (redis.RedisError, OSError):
                self.changed()  # it says that the server does not answer
                time.sleep(TICK)

    def listen(self) -> None:
        """Until the connection breaks."""
        with self.client.pubsub(ignore_subscribe_messages=True) as events:
            database = self.client.connection_pool.connection_kwargs.get("db") or 0
            events.subscribe(*(f"__keyevent@{database}__:{event}" for event in EVENTS))
            while True:
                if events.get_message(timeout=TICK) is not None:
                    until = time.monotonic() + SETTLE
                    while (left := until - time.monotonic()) > 0:
                        events.get_message(timeout=left)
                self.changed()


def turn_events_on(client: redis.Redis) -> bool:
    """Lets the server send the events of the module (Ed), beside those that it sends already. False if it may not."""
    with contextlib.suppress(redis.RedisError):
        flags = client.config_get("notify-keyspace-events")["notify-keyspace-events"]
        missing = "".join(flag for flag in "Ed" if flag not in flags)
        if missing:
            client.config_set("notify-keyspace-events", flags + missing)
        return True
    return False


def lock_now(client: redis.Redis, key: str) -> dict[str, Any]:
    """The holder of a lock, and its waiters in the order of the queue."""
    info = client.execute_command("LOCK.INFO", key, "COUNT", 50) or {"holders": [], "waiters": [], "waiting": 0}
    holder = info["holders"][0] if info["holders"] else None
    return {
        "holder": holder and {name: holder[name] for name in ("owner", "fence", "ttl_ms", "held_ms", "note")},
        "waiters": [{name: one[name] for name in ("owner", "waited_ms")} for one in info["waiters"]],
        "waiting": info["waiting"],
    }


def longest_waits(client: redis.Redis, keys: set[str], count: int) -> list[dict[str, Any]]:
    """The requests for these keys that have waited longest."""
    waits = client.execute_command("LOCK.TOP", "COUNT", 100)["waits"]
    return [
        {"key": wait["keys"][0], "owner": wait["owner"], "waited_ms": wait["waited_ms"]}
        for wait in waits
        if wait["keys"] and wait["keys"][0] in keys
    ][:count]


def lost_holds(client: redis.Redis, keys: set[str], since_ms: float, count: int) -> list[dict[str, Any]]:
    """The holds of these keys that were lost since then, the latest first."""
    rows = client.execute_command("LOCK.LOG", "COUNT", 128)
    return [row for row in rows if row["key"] in keys and row["time_ms"] >= since_ms][:count]
