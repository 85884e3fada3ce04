"""The one rule for waiting, for threads and for asyncio: which wait goes how, and when each asks.

Up to `max_blocking` waits of a process block, each on a connection of its own. Further ones are told by NOTIFY, all on
one subscription. Where that cannot be had they ask each second. Here is no I/O, no clock and no thread: the moments are
handed in, and whoever calls from several threads holds `mutex`.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
import random
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ResponseError

from redis_lock_client._common import (
    NOTIFY_QUEUE,
    PAUSE_MAX,
    PAUSE_MIN,
    POLL,
    POLL_JITTER,
    QUEUE,
    REFUSED,
    to_bytes,
)

PROVE = 10.0  # from one proof that the subscription still lives to the next
EVERYBODY = 1.0  # from one "*" that is heeded to the next
RATE = 10_000  # requests a second, where all waits ask
FREE_NULLS = 2  # so many messages in a row may be followed by null, before there are pauses


class Way(enum.Enum):
    """How a request of a wait goes."""

    ONCE = enum.auto()  # without a place
    BLOCK = enum.auto()  # in its place, on a connection of its own
    QUEUE = enum.auto()  # in its place, over the shared connection: told by NOTIFY, or asking each second


def way(*, once: bool, crowded: bool, has_slot: Callable[[], bool]) -> Way:
    """The way of the next request. `has_slot` takes one of the slots for waits that block, if one is free."""
    if once:
        return Way.ONCE
    return Way.BLOCK if not crowded and has_slot() else Way.QUEUE


class Turn:
    """When one wait asks again."""

    request: Any = None  # the one that is planned, or sent

    def __init__(self, owner: str) -> None:
        self.owner = owner.encode()
        self.due = -math.inf
        self.unanswered = False
        self.again = False  # a message came while a request was unanswered
        self.nulls = 0  # in a row, each after a message
        self.nulls_then = 0  # so many will they be if the next request, or the unanswered one, is answered null
        self.answered = -math.inf

    def told(self, moment: float) -> bool:
        """A message has come. True if the wait is due sooner than it was."""
        if self.unanswered:
            self.again = True
            return False
        pause = 0.0 if self.nulls < FREE_NULLS else min(PAUSE_MIN * 2.0 ** (self.nulls - FREE_NULLS), PAUSE_MAX)
        return self.hasten(max(moment, self.answered + pause), self.nulls + 1)

    def hasten(self, due: float, nulls_then: int) -> bool:
        if self.unanswered or due >= self.due:
            return False
        self.due, self.nulls_then = due, nulls_then
        return True

    def sends(self) -> None:
        self.unanswered, self.again = True, False

    def null(self, moment: float, interval: float) -> None:
        """Others hold the lock. The next request is due within the interval."""
        self.nulls, self.nulls_then = self.nulls_then, 0
        self.unanswered = False
        self.answered = moment
        self.due = moment + interval * random.uniform(1.0 - POLL_JITTER, 1.0)
        if self.again:
            # Redis 7.0 may send the message before the reply to a request that came earlier.
            self.told(moment)

    def failed(self, moment: float) -> None:
        """There was no answer, or an error: who waits makes a pause before it asks again."""
        self.unanswered = False
        self.due = moment


class State(enum.Enum):
    """Of a subscription."""

    NONE = enum.auto()  # there is none, and one is wanted
    ASKED = enum.auto()  # not confirmed yet
    THERE = enum.auto()
    REFUSED = enum.auto()  # it cannot be had for now


class Line:
    """The waits at one server that do not block, and the subscription that they share."""

    def __init__(self) -> None:
        self.state = State.NONE
        self.name = b""  # of the channel, also before it is confirmed
        self.key: Any = b""  # of one who waits here: in a cluster the channel is to have its slot
        self.parted = False  # the connection of the requests is gone
        self.turns: dict[bytes, set[Turn]] = {}
        self.everybody_at = -math.inf  # when the last "*" was heeded
        self.retry_at = -math.inf
        self.why: Exception | None = None  # NOTIFY was refused for this, and nobody was told yet
        self.works = True  # False from a refusal on, until a request with NOTIFY is answered
        self.most_queue = math.inf  # what the server allows
        self.slots_refused = 0

    # --- the subscription ---

    @property
    def channel(self) -> bytes | None:
        """The channel to name in requests."""
        return self.name if self.state is State.THERE else None

    def wants(self, moment: float) -> bool:
        """True if it is time to subscribe."""
        return self.state is State.NONE or (
            self.state is State.REFUSED and moment >= self.retry_at and bool(self.turns)
        )

    def ask(self, prefix: str, *, cluster: bool) -> bytes:
        """The channel to subscribe to: another one each time. In a cluster this node serves its slot."""
        tag = f"{{{tag_of(key_slot(to_bytes(self.key)))}}}:" if cluster else ""
        self.name = f"lock:notify:{prefix}{tag}{secrets.token_hex(16)}".encode()
        self.state = State.ASKED
        return self.name

    @property
    def is_decided(self) -> bool:
        """True if messages come, or it is clear that none will."""
        return self.state in (State.THERE, State.REFUSED)

    def lose(self) -> None:
        """The subscription is gone: another one is wanted."""
        if self.state is not State.REFUSED:
            self.state = State.NONE

    def part(self, moment: float) -> list[Turn]:
        """The connection of the requests is gone, and with it soon their places. These ask now."""
        self.parted = True
        self.lose()
        return self.ask_all(moment)

    def reconnected(self) -> None:
        """The requests have a connection. After another one it may lead to another server: all is tried again."""
        if self.parted and self.state is State.REFUSED:
            self.state = State.NONE
        self.parted = False

    def refuse(self, why: Exception, moment: float) -> list[Turn]:
        """NOTIFY cannot be had. These ask now, and go on without it."""
        if self.state is State.REFUSED:
            return []
        self.state = State.REFUSED
        # A right that is missing is missing until somebody gives it, and each attempt leaves a row in ACL LOG.
        self.retry_at = math.inf if is_final(why) else moment + REFUSED
        if self.works:
            self.works, self.why = False, why
        return self.ask_all(moment)

    def broken(self, why: Exception, moment: float) -> list[Turn]:
        """The connection of the subscription failed. These ask now."""
        if self.state is State.ASKED:
            return self.refuse(why, moment)
        self.lose()
        return []

    def refusal(self) -> Exception | None:
        """Why NOTIFY cannot be had, for the one who is to tell it."""
        why, self.why = self.why, None
        return why

    def heed(
        self, error: ResponseError, moment: float, *, notified: bool, queue: float = math.inf
    ) -> tuple[bool, list[Turn]]:
        """Whether a request with this QUEUE is asked again at once, in another way, and which others ask now, too."""
        text = f"{error} {error.__cause__ or ''}"
        if limit := re.search(r"QUEUE must be a whole number from 1 to (\d+)", text):
            seconds = int(limit[1]) / 1000
            self.most_queue = min(self.most_queue, seconds)
            return seconds < queue, []  # others may have been refused before it, and it was on its way
        if not notified or not ("NOTIFY" in text or ("LIMIT" in text and "channels of places" in text)):
            return False, []
        if "NOTIFYSLOT" in text and self.slots_refused == 0:
            self.slots_refused += 1  # the slot of the channel has moved: another channel will do
            self.lose()
            return True, []
        return True, self.refuse(error, moment)

    def heard(self, message: Any, moment: float) -> list[Turn]:
        """What comes over the subscription. These are due sooner for it."""
        kind, name = to_bytes(message[0]), to_bytes(message[1])
        if name != self.name:
            return []
        if kind in (b"subscribe", b"ssubscribe") and self.state is State.ASKED:
            self.state = State.THERE
            return self.ask_all(moment)
        if kind in (b"unsubscribe", b"sunsubscribe"):
            self.lose()
        if kind not in (b"message", b"smessage"):
            return []
        owner = to_bytes(message[2])
        if owner != b"*":
            return [turn for turn in self.turns.get(owner, ()) if turn.told(moment)]
        if self.everybody_at > moment:
            return []
        self.everybody_at = max(moment, self.everybody_at + EVERYBODY)
        return self.ask_all(self.everybody_at)

    # --- the waits ---

    def enter(self, turn: Turn) -> None:
        self.turns.setdefault(turn.owner, set()).add(turn)

    def leave(self, turn: Turn) -> None:
        turns = self.turns.get(turn.owner, set())
        turns.discard(turn)
        if not turns:
            self.turns.pop(turn.owner, None)

    def everybody(self) -> Iterable[Turn]:
        return (turn for turns in self.turns.values() for turn in turns)

    def ask_all(self, moment: float) -> list[Turn]:
        """All ask again, from this moment on, no faster than the rate. Those that are unanswered do so after null."""
        due = []
        for at, turn in enumerate(self.everybody()):
            turn.again = turn.again or turn.unanswered
            if turn.hasten(moment + at / RATE, turn.nulls):
                due.append(turn)
        return due

    def queue(self, *, notifies: bool) -> float:
        """The QUEUE of a request."""
        return min(NOTIFY_QUEUE if notifies else QUEUE, self.most_queue)

    def interval(self, *, notifies: bool) -> float:
        """From a null to the next request, at most."""
        return self.queue(notifies=True) / 3 if notifies else min(POLL, self.most_queue / 3)

    def answered(self, turn: Turn, reply: Any, moment: float, *, notified: bool) -> None:
        """The request of a wait was answered."""
        if isinstance(reply, Exception):
            turn.failed(moment)
            return
        if notified:
            self.works, self.why, self.slots_refused = True, None, 0
        if reply is None:
            turn.null(moment, self.interval(notifies=notified))
        else:
            turn.failed(moment)  # it has what it wants, or has to ask anew if it came too late


def is_final(error: Exception) -> bool:
    """True if nothing but another server, or other rights, help against it."""
    text = f"{error} {error.__cause__ or ''}"
    return isinstance(error, ResponseError) and not any(word in text for word in ("NOTIFYSLOT", "LIMIT", "MOVED"))


@functools.cache
def tag_of(slot: int) -> str:
    """A hash tag of this slot."""
    return next(tag for number in itertools.count() if key_slot((tag := f"{number:x}").encode()) == slot)


def is_cluster(hello: Any) -> bool:
    """True if the server's reply to HELLO says that it is a node of a cluster."""
    if isinstance(hello, dict):
        hello = [word for pair in hello.items() for word in pair]
    words = [to_bytes(word) if isinstance(word, str | bytes) else b"" for word in hello]
    return any(pair == (b"mode", b"cluster") for pair in zip(words[::2], words[1::2], strict=False))
