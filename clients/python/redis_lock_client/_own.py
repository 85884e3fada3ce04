"""What a thread or task holds by itself: a wait for that would be for itself, and a lock that may be entered again."""

from __future__ import annotations

import contextvars
import math
import weakref
from typing import TYPE_CHECKING, Any

from redis_lock_client._common import Deadlock

if TYPE_CHECKING:
    from redis_lock_client._engine import Hold, Spec

# Each hold with its thread or task. A pool lends its threads to several contexts, and a task passes its own on to the
# tasks that it begins: so it takes both to tell who it is.
_held: contextvars.ContextVar[tuple[tuple[weakref.ref[Hold], weakref.ref[Any]], ...]] = contextvars.ContextVar(
    "redis_lock_held", default=()
)


def remember(hold: Hold) -> None:
    """Notes that this thread or task has it."""
    live = tuple(entry for entry in _held.get() if (one := entry[0]()) is not None and not one.ended)
    _held.set((*live, (weakref.ref(hold), weakref.ref(hold.kind.who()))))


def own(hold: Hold) -> list[Hold]:
    """What this thread or task holds of the same keys, through the same client."""
    me, names = hold.kind.who(), hold.names
    held = [one for reference, who in _held.get() if who() is me and (one := reference()) is not None]
    live = [one for one in held if not (one.ended or one.abandoned) and one.pid == hold.pid]
    return [one for one in live if one.spec.client is hold.spec.client and one.names & names]


def refuse(hold: Hold) -> None:
    """Raises an error if it would wait for what a block of this thread or task holds without an end.

    What was acquired without a block may be released by another one.
    """
    mine = [one.spec for one in own(hold) if one.in_block and one.ends == math.inf and not one.is_lost()]
    if any(one.mode == "WRITE" or hold.spec.mode == "WRITE" for one in mine) or has_no_share(mine, hold.spec):
        text = "this thread or task holds it, and would wait for itself: give it `reentrant`, or pass the lock on"
        raise Deadlock(f"{hold.spec.title}: {text}", hold.spec.name)


def has_no_share(held: list[Spec], wanted: Spec) -> bool:
    """True if what is held leaves too few shares."""
    return wanted.limit is not None and sum(one.take for one in held) + wanted.take > wanted.limit
