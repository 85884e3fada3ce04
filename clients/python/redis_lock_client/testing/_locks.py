"""The locks of a server in memory: holds, queues and leases as the module has them. Here is no I/O."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from redis_lock_client._common import now

AWAY = 2.0  # how long a place outlives its connection, in seconds
MOST_MILLISECONDS = 86_400_000 * 366
INFO_COUNT = 10


class Refused(Exception):
    """What the server answers as an error: its code and its text."""


class Waits(Exception):
    """The reply comes later."""


@dataclasses.dataclass
class Ask:
    """A request that acquires. Times are in seconds."""

    keys: list[bytes]
    owner: bytes
    writes: bool
    limit: float  # of all shares; infinite for a reader
    take: int
    lease: float = 30.0
    block: float | None = None
    queue: float | None = None
    channel: bytes | None = None
    retry: int | None = None
    note: bytes | None = None
    least: int = 0  # the fence is to be this one or a higher one
    connection: Any = None
    answer: Callable[[Any], None] = lambda _: None  # for a reply that comes later
    several: bool = False

    def reply(self, fences: list[int]) -> Any:
        return fences if self.several else fences[0]


@dataclasses.dataclass
class Hold:
    """What one owner has of one key."""

    ask: Ask
    fence: int
    until: float
    reads: int = 0
    writes: int = 0
    offered: bool = False
    since: float = dataclasses.field(default_factory=now)

    @property
    def note(self) -> bytes | None:
        return self.ask.note


class Place:
    """An owner that waits, for all of its keys."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.since = now()
        self.parked = False  # a client waits there
        self.until = math.inf  # when the client, or without one the place, has waited long enough

    def renew(self, ask: Ask) -> None:
        if ask.block is not None:
            if self.parked:
                text = "UNBLOCKED lock wait ended: a later request of this owner waits there now"
                self.ask.answer(None if self.ask.queue is None and ask.queue is None else Refused(text))
            self.parked, self.until = True, now() + ask.block if ask.block else math.inf
            self.ask = ask
        elif self.parked:
            self.ask.queue, self.ask.channel = ask.queue, ask.channel
        else:
            self.ask = ask
            self.until = now() + (ask.queue or 0)

    def detach(self, reply: Any) -> None:
        """The client has its answer, and the place is kept without one."""
        self.ask.answer(reply)
        self.parked, self.until = False, now() + (self.ask.queue or 0)


class Locks:
    """All locks of the server. Whoever calls from several threads sees to it that one does at a time."""

    def __init__(self, publish: Callable[[bytes, bytes], int]) -> None:
        self.publish = publish
        self.fence = 0
        self.holds: dict[bytes, dict[bytes, Hold]] = {}  # by key and owner
        self.places: list[Place] = []  # in the order in which they came
        self.notified = 0
        self.queued = 0

    # --- what the commands do ---

    def acquire(self, ask: Ask) -> Any:
        place = self.place_of(ask)
        if all(self.has(key, ask) for key in ask.keys):
            return ask.reply([self.again(key, ask) for key in ask.keys])
        if self.is_free(ask, place):
            self.drop(place)
            fences = [self.grant(key, ask) for key in ask.keys]
            self.serve()
            return ask.reply(fences)
        if ask.block is None and ask.queue is None:
            return None
        if cycle := self.cycle(ask):
            raise Refused(f"DEADLOCK {' -> '.join(name.decode(errors='replace') for name in cycle)}")
        if place is None:
            place = Place(ask)
            self.places.append(place)
            self.queued += 1
        place.renew(ask)
        if ask.block is None:
            return None
        raise Waits

    def extend(self, hold: Hold, lease: float, least: int, note: bytes | None) -> int:
        if least > hold.fence:
            hold.fence = self.next_fence(least)
        hold.until = now() + lease
        if note is not None:
            hold.ask = dataclasses.replace(hold.ask, note=note or None)
        return hold.fence

    def release(self, key: bytes, owner: bytes, *, every: bool, fence: int | None) -> int | None:
        left, hold = None, self.holds.get(key, {}).get(owner)
        if fence is None:
            self.leave(key, owner)
        if hold is not None and fence in (None, hold.fence):
            if hold.writes:
                hold.writes = 0 if every or hold.offered else hold.writes - 1
            else:
                hold.reads = 0 if every or hold.offered else hold.reads - 1
            left = hold.reads + hold.writes
            if left == 0:
                self.end(hold.ask.keys if hold.offered else [key], owner)
        self.serve()
        return left

    def leave(self, key: bytes, owner: bytes) -> None:
        for place in [place for place in self.places if place.ask.owner == owner and key in place.ask.keys]:
            self.drop(place)
            if place.parked:
                place.ask.answer(None)

    def held(self, key: bytes, owner: bytes, fence: int | None = None) -> Hold | None:
        """The hold of which the owner knows, if it has this fence."""
        hold = self.holds.get(key, {}).get(owner)
        return None if hold is None or hold.offered or fence not in (None, hold.fence) else hold

    def clear(self, keys: Iterable[bytes]) -> int:
        """Ends all holds of these keys, and says how many there were."""
        owners = [(key, owner) for key in keys for owner in self.holds.get(key, {})]
        for key, owner in owners:
            self.end([key], owner)
        self.serve()
        return len(owners)

    def info(self, key: bytes, count: int, only: bytes | None) -> dict[str, Any] | None:
        holds = self.holds.get(key, {})
        places = [place for place in self.places if key in place.ask.keys]
        if not (holds or places) or (only is not None and only not in holds):
            return None
        named = {owner: hold for owner, hold in holds.items() if only in (None, owner)}
        mode = ("write" if any(hold.writes for hold in holds.values()) else "read") if holds else None
        return {
            "mode": mode,
            "fence": max(hold.fence for hold in holds.values()) if holds else None,
            "shares": sum(hold.reads for hold in holds.values()),
            "holding": len(holds),
            "holders": [shown_hold(owner, hold) for owner, hold in itertools.islice(named.items(), count)],
            "waiting": len(places),
            "waiters": [] if only is not None else [shown_place(place) for place in places[:count]],
            "reserved_by": None,
        }

    # --- what a request meets ---

    def place_of(self, ask: Ask) -> Place | None:
        for place in self.places:
            if place.ask.owner == ask.owner and set(place.ask.keys) & set(ask.keys):
                if place.ask.keys != ask.keys:
                    raise Refused("ERR owner stands there with other keys: release that first")
                if (place.ask.writes, place.ask.take) != (ask.writes, ask.take):
                    raise Refused("ERR owner stands there in another mode: release that first")
                if ask.retry is None and ask.queue is None:
                    raise Refused("ERR owner already waits there: use RETRY")
                return place
        return None

    def has(self, key: bytes, ask: Ask) -> bool:
        """True if the owner has what it asks for, or may have more of it at once."""
        hold = self.holds.get(key, {}).get(ask.owner)
        if hold is None:
            return False
        if ask.writes or hold.writes:
            return bool(hold.writes)
        if hold.offered or ask.queue is not None or (ask.retry or 0) <= hold.reads:
            return True
        return self.fits(key, ask)

    def again(self, key: bytes, ask: Ask) -> int:
        hold = self.holds[key][ask.owner]
        retry = ask.retry or (ask.take if ask.queue is not None or hold.offered else None)
        if ask.writes:
            hold.writes = hold.writes + 1 if retry is None else max(hold.writes, retry)
        elif retry is None or retry > hold.reads:
            hold.reads = hold.reads + ask.take if retry is None else retry
        end = now() + ask.lease
        hold.until = end if hold.offered else max(hold.until, end)
        hold.offered = False
        hold.ask = dataclasses.replace(ask, note=hold.note if ask.note is None else ask.note)
        if ask.least > hold.fence:
            hold.fence = self.next_fence(ask.least)
        return hold.fence

    def fits(self, key: bytes, ask: Ask) -> bool:
        """True if the holders of this key let it in."""
        others = [hold for owner, hold in self.holds.get(key, {}).items() if owner != ask.owner]
        if ask.writes or any(hold.writes for hold in others):
            return not others
        return sum(hold.reads for hold in others) + ask.take <= ask.limit

    def is_free(self, ask: Ask, place: Place | None) -> bool:
        """True if no holder is in the way, and nobody who came before."""
        for earlier in self.places:
            if earlier is place:
                break
            if set(earlier.ask.keys) & set(ask.keys):
                return False
        return all(self.fits(key, ask) for key in ask.keys)

    def cycle(self, ask: Ask) -> list[bytes]:
        """The owners and keys between this request and itself, if it would wait for its own owner."""
        paths = [[ask.owner, key] for key in ask.keys]
        seen: set[bytes] = set()
        while paths:
            path = paths.pop()
            for owner in self.holds.get(path[-1], {}):
                if owner == ask.owner and len(path) > 2:  # noqa: PLR2004 - more than the owner and its key
                    return [*path, owner]
                if owner not in seen and owner != ask.owner:
                    seen.add(owner)
                    waits = [place for place in self.places if place.ask.owner == owner]
                    paths += [[*path, owner, key] for place in waits for key in place.ask.keys]
        return []

    # --- how locks come and go ---

    def next_fence(self, least: int = 0) -> int:
        self.fence = max(self.fence + 1, time.time_ns() // 1000, least)
        return self.fence

    def grant(self, key: bytes, ask: Ask, *, offered: bool = False) -> int:
        left = max(ask.queue or 0, 0) if offered else ask.lease
        hold = Hold(ask, self.next_fence(ask.least), now() + left, offered=offered)
        hold.writes, hold.reads = (1, 0) if ask.writes else (0, ask.take)
        self.holds.setdefault(key, {})[ask.owner] = hold
        return hold.fence

    def end(self, keys: Iterable[bytes], owner: bytes) -> None:
        for key in keys:
            self.holds.get(key, {}).pop(owner, None)
            if not self.holds.get(key):
                self.holds.pop(key, None)

    def drop(self, place: Place | None) -> None:
        if place in self.places:
            self.places.remove(place)

    def serve(self) -> None:
        """Gives what is free to those who wait, in the order in which they came."""
        taken: set[bytes] = set()
        for place in tuple(self.places):
            ask = place.ask
            if taken & set(ask.keys) or not all(self.fits(key, ask) for key in ask.keys):
                taken |= set(ask.keys)
                continue
            self.drop(place)
            if place.parked:
                ask.answer(ask.reply([self.grant(key, ask) for key in ask.keys]))
            else:
                ask = dataclasses.replace(ask, queue=place.until - now())
                for key in ask.keys:
                    self.grant(key, ask, offered=True)
                self.tell(ask)

    def tell(self, ask: Ask) -> None:
        if ask.channel is not None:
            self.notified += 1
            self.publish(ask.channel, ask.owner)

    # --- time ---

    def everything(self) -> Iterator[tuple[bytes, bytes, Hold]]:
        return ((key, owner, hold) for key, owners in self.holds.items() for owner, hold in owners.items())

    def tick(self) -> float:
        """Ends what is over, and returns the moment when something else is."""
        moment = now()
        over = [(key, owner) for key, owner, hold in self.everything() if hold.until <= moment]
        for key, owner in over:
            self.end([key], owner)
        for place in [place for place in self.places if place.until <= moment]:
            if place.parked:
                place.detach(None)
            if place.ask.queue is None or place.until <= moment:
                self.drop(place)
        self.serve()
        ends = [hold.until for _, _, hold in self.everything()] + [place.until for place in self.places]
        return min(ends, default=math.inf)

    def part(self, connection: Any) -> None:
        """The connection is closed: its places, and the offers that came of them, end soon."""
        for place in [place for place in self.places if place.ask.connection is connection]:
            if place.parked:
                place.ask.answer = lambda _: None
                place.detach(None)
            if place.ask.queue is None:
                self.drop(place)
            elif place.ask.channel is not None or place.ask.block is not None:
                place.until = min(place.until, now() + AWAY)
        for _, _, hold in self.everything():
            if hold.offered and hold.ask.connection is connection:
                hold.until = min(hold.until, now() + AWAY)
        self.serve()


def milliseconds(seconds: float) -> int | None:
    return None if math.isinf(seconds) else max(0, round((seconds - now()) * 1000))


def shown_hold(owner: bytes, hold: Hold) -> dict[str, Any]:
    return {
        "owner": owner,
        "mode": "write" if hold.writes else "read",
        "reads": hold.reads,
        "writes": hold.writes,
        "fence": hold.fence,
        "ttl_ms": milliseconds(hold.until),
        "held_ms": round((now() - hold.since) * 1000),
        "offered": int(hold.offered),
        "session": None,
        "client": None,
        "note": hold.note,
    }


def shown_place(place: Place) -> dict[str, Any]:
    ask = place.ask
    limited = not ask.writes and not math.isinf(ask.limit)
    return {
        "owner": ask.owner,
        "mode": "write" if ask.writes else "read",
        "limit": int(ask.limit) if limited else None,
        "take": ask.take if limited else None,
        "waited_ms": round((now() - place.since) * 1000),
        "left_ms": milliseconds(place.until) if place.parked else None,
        "queue_left_ms": None if place.parked else milliseconds(place.until),
        "keys": len(ask.keys),
        "client": getattr(ask.connection, "number", None) if place.parked else None,
    }
