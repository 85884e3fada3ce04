"""What a thread or task holds by itself: a wait for that would be for itself, and a lock that may be entered again."""

from __future__ import annotations

import contextvars
import math
import weakref
from typing import TYPE_CHECKING, Any

from redis_lock_client._common import Deadlock

if TYPE_CHECKING:
    from redis_lock_client._engine import Hold, Spec

LEAST_KEYS = 64


class Book:
    """The holds of one thread or task in one context, by key.

    A pool lends its threads to several contexts, and a task passes its own on to the tasks that it begins: so it takes
    both to tell who it is.
    """

    def __init__(self, who: Any, parent: Book | None) -> None:
        self.who = weakref.ref(who)
        self.parent = parent  # the book of whoever had the context before
        self.holds: dict[bytes, list[weakref.ref[Hold]]] = {}
        self.room = LEAST_KEYS

    def add(self, hold: Hold) -> None:
        if len(self.holds) >= self.room:
            self.holds = {name: live for name, refs in self.holds.items() if (live := alive(refs))}
            self.room = max(LEAST_KEYS, 2 * len(self.holds))
        for name in hold.names:
            self.holds[name] = [*alive(self.holds.get(name, [])), weakref.ref(hold)]


def alive(references: list[weakref.ref[Hold]]) -> list[weakref.ref[Hold]]:
    return [one for one in references if (hold := one()) is not None and not hold.ended]


_book: contextvars.ContextVar[Book | None] = contextvars.ContextVar("redis_lock_held", default=None)


def _book_of(me: Any) -> Book | None:
    book = _book.get()
    while book is not None and book.who() is not me:
        while book.parent is not None and book.parent.who() is None:  # a task that is gone
            book.parent = book.parent.parent
        book = book.parent
    return book


def remember(hold: Hold) -> None:
    """Notes that this thread or task has it."""
    me = hold.kind.who()
    book = _book_of(me)
    if book is None:
        book = Book(me, _book.get())
        _book.set(book)
    book.add(hold)


def own(hold: Hold) -> list[Hold]:
    """What this thread or task holds of the same keys, through the same client."""
    book = _book_of(hold.kind.who())
    if book is None:
        return []
    found = [one for name in hold.names for reference in book.holds.get(name, ()) if (one := reference()) is not None]
    live = [one for one in dict.fromkeys(found) if not (one.ended or one.abandoned) and one.pid == hold.pid]
    return [one for one in live if one.spec.client is hold.spec.client]


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
