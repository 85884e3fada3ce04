"""The contract of a lock over a quorum: agreement of the nodes, waiting, renewal, loss and release."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from redis import exceptions as errors
from redis.exceptions import LockError

from redis_lock_client._common import (
    ANSWER,
    BLOCK,
    LOOK,
    QUEUE,
    TICK,
    Deadlock,
    LockLost,
    again,
    mutex,
    now,
    pauses,
    to_bytes,
)
from redis_lock_client._engine import Owner, is_ahead
from redis_lock_client._tasks import Bell, TaskServer, ring
from redis_lock_client._transport import Duty
from redis_lock_client._trouble import OnTrouble, Trouble, address, explain, explained, tell
from redis_lock_client.quorum._wires import Ask, Identity, NodeServer, Wire

AHEAD = 100_000  # how far a proposed fence is ahead of the wall clock, in microseconds
PENDING = 3  # requests to acquire that may be without an answer at one node, over a connection each
SLOW = 0.25  # how long the first node may take until the line is at the next
CONNECT = 0.5  # the least time that a connection may take


class NoQuorum(LockError):
    """The servers are no nodes of a quorum: one is named twice, or is a replica, or they belong together."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a lock asks for, and of which nodes."""

    sources: tuple[Any, ...]
    key: str | bytes
    lease: float
    shared: bool
    note: str | None
    on_trouble: OnTrouble | None
    tell: Callable[[Callable[[], Any]], None]  # how to tell the application something

    @property
    def quorum(self) -> int:
        return len(self.sources) // 2 + 1

    @property
    def name(self) -> str:
        return to_bytes(self.key).decode(errors="replace")

    @property
    def title(self) -> str:
        return f'lock "{self.name}"'

    @property
    def margin(self) -> float:
        """What is taken from a lease for clocks that run at other speeds."""
        return max(self.lease / 100 + 0.002, 0.1)

    @property
    def limit(self) -> float:
        """How long a node may take to answer."""
        return min(max(self.lease / 20, 0.1), ANSWER)

    @property
    def mode(self) -> str:
        return "READ" if self.shared else "WRITE"

    def acquire(self, owner: str, least: int | None, block: float | None, queue: float | None) -> list[Any]:
        words: list[Any] = ["LOCK.RW", self.key, owner, "READ"] if self.shared else ["LOCK.ACQUIRE", self.key, owner]
        words += ["PX", int(self.lease * 1000), "RETRY", 1]  # RETRY: a request that is sent twice counts once
        if block is not None:
            words += ["BLOCK", max(1, int(block * 1000))]
        if queue is not None:
            words += ["QUEUE", max(1, int(queue * 1000))]
        if least is not None:
            words += ["MINFENCE", least]
        return words if self.note is None else [*words, "NOTE", self.note]

    def extend(self, owner: str, fence: int, least: int | None) -> list[Any]:
        words = ["LOCK.EXTEND", self.key, owner, "PX", int(self.lease * 1000), "FENCE", fence]
        return words if least is None else [*words, "MINFENCE", least]

    def release(self, owner: str, fence: int | None) -> list[Any]:
        words: list[Any] = ["LOCK.RELEASE", self.key, owner, "ALL"]
        return words if fence is None else [*words, "FENCE", fence]


class QuorumOwner(Owner):
    """Who holds locks of a quorum, or waits for them."""

    def __init__(self) -> None:
        super().__init__()
        # Nodes that may still read a release of all that this owner has there: asking them again would be in vain.
        self.doubtful: set[tuple[bytes, int]] = set()


class Part(Duty):
    """One node of an acquisition: what it is asked for, and what it has granted."""

    def __init__(self, hold: Hold, at: int) -> None:
        self.hold, self.spec, self.owner, self.at = hold, hold.spec, hold.owner, at
        self.source = hold.spec.sources[at]
        self.lease = hold.spec.lease
        self.server: Any = NodeServer.enter(self.source)
        self.fence: int | None = None  # that of its hold there
        self.end = -math.inf  # until when the node surely keeps it
        self.due = math.inf  # when its renewer looks at it again
        self.missed: float | None = None  # when its hold was found to be gone, and is not won back yet
        self.pauses = pauses()
        self.task: asyncio.Task[Any] | None = None  # what it does for the acquisition
        self.failure: Exception | None = None  # why the last request failed
        self.refused = False  # somebody else holds it there, or waits for it
        self.stale = False  # the grant is old: it waited
        self.unsure = False  # the fence may be another one: no answer came
        self.placed = False  # it may stand in the queue there
        self.doubt = False  # a request to acquire was sent over a connection that broke
        self.asking: list[Ask] = []  # requests to acquire without an answer
        self.releases: list[Ask] = []
        self.owes_until = -math.inf  # until when the renewer repeats the release
        self.closed = self.over = self.listed = self.at_work = False

    @property
    def busy(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def answered(self) -> bool:
        return self.refused or self.fence is not None

    @property
    def barred(self) -> bool:
        return (to_bytes(self.spec.key), id(self.source)) in self.owner.doubtful

    def start(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.task = self.server.task(self.run(steps))

    async def run(self, steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self.failure = None
            await steps()
        except Exception as error:  # noqa: BLE001 - the acquisition judges it
            self.failure = error
            self.hold.tell_of(error, self)
        finally:
            self.task = None
            self.hold.bell.set()
            self.keep()

    # --- requests ---

    async def request(
        self, words: list[Any], limit: float, *, acquires: bool = False, waits: bool = False, places: bool = False
    ) -> tuple[Any, float]:
        """The reply, and when the request was sent. A request that `waits` has a connection of its own."""
        if acquires and self.closed:
            raise errors.ConnectionError("it is released already")
        ask = (Wire(self.server, own=True) if waits else Wire.to(self.server)).ask(
            words, self.meet if acquires else None
        )
        if acquires:
            self.asking.append(ask)
        try:
            reply = await ask.reply(limit)
        except BaseException as error:
            if ask.sent is None or not acquires:
                ask.drop()
            if isinstance(error, asyncio.CancelledError) and ask.answered:
                self.unsure = True  # nobody has looked at the answer
            told = explained(error, address(self.source)) if isinstance(error, errors.ResponseError) else error
            if told is error:
                raise
            raise told from error
        finally:
            self.placed = self.placed or (places and ask.sent is not None)
            self.settle(ask)
        assert ask.sent is not None  # noqa: S101 - it was answered
        return reply, ask.sent

    def settle(self, ask: Ask) -> None:
        """Forgets a request to acquire that can have no effect any more that is not known."""
        if ask in self.asking and (ask.answered or ask.sent is None or ask.task.done()):
            self.asking.remove(ask)
            self.doubt = self.doubt or not (ask.answered or ask.sent is None)

    def meet(self, identity: Identity) -> None:
        """Compares the node with the other ones."""
        others = {at: other for at, other in self.hold.identities.items() if at != self.at}
        self.hold.identities[self.at] = identity
        problem = None
        if identity.cluster:
            problem = "is a node of a cluster"
        elif identity.role == "slave":
            problem = "is a replica"
        for at, other in others.items():
            if problem is None and identity.run == other.run:
                problem = f"is the same server as {address(self.spec.sources[at])}"
            elif problem is None and identity.group == other.group:
                problem = f"replicates with {address(self.spec.sources[at])}"
        if problem is not None:
            text = f"{self.spec.title}: no quorum: {address(self.source)} {problem}"
            raise NoQuorum(text, self.spec.name)

    async def take(self, least: int | None, *, block: float | None = None, queue: float | None = None) -> None:
        """Asks for the lock."""
        words = self.spec.acquire(self.owner.name, least, block, queue)
        places = queue is not None
        reply, sent = await self.until_its_clock_follows(
            words, self.spec.limit, block or 0, acquires=True, places=places
        )
        self.heed(reply, sent)

    async def extend(self, least: int | None, limit: float) -> None:
        """Renews the lease, and raises the fence."""
        assert self.fence is not None  # noqa: S101 - the callers look
        words = self.spec.extend(self.owner.name, self.fence, least)
        self.unsure = least is not None
        try:
            reply, sent = await self.until_its_clock_follows(words, limit)
        except Exception as error:
            if isinstance(error, errors.ResponseError):
                self.unsure = False
            if not str(error).startswith("WRONGTYPE"):
                raise
            reply, sent = None, 0
        self.heed(reply, sent)

    async def until_its_clock_follows(
        self, words: list[Any], limit: float, block: float = 0, *, acquires: bool = False, places: bool = False
    ) -> tuple[Any, float]:
        """Repeats a request that is refused since its fence is too far ahead of the node's clock."""
        until = now() + limit
        while True:
            try:
                waits = block > 0
                return await self.request(words, limit + block, acquires=acquires, waits=waits, places=places)
            except errors.ResponseError as error:
                if not is_ahead(error) or now() >= until:
                    raise
            await asyncio.sleep(limit / 8)

    def heed(self, reply: Any, sent: float) -> None:
        """Takes note of what the node has granted, or not."""
        with mutex:
            self.refused = reply is None
            over = self.hold.held and (self.hold.ended or self.hold.is_lost())
            self.fence, self.unsure = reply, False
            if over:
                return  # what is lost stays lost; the fence is for the release
            self.end = -math.inf if reply is None else sent + self.spec.lease - self.spec.margin
            if reply is not None:
                self.placed = False
                self.stale = now() - sent > self.spec.limit
                self.due = sent + self.spec.lease / 3
                self.hold.seen = max(self.hold.seen, reply)

    # --- renewal: by the renewer of the server alone ---

    def keep(self) -> None:
        """Lets it be renewed."""
        hold = self.hold
        with mutex:
            if self.closed or self.busy or not hold.held or hold.ended or hold.lost:
                return
            if self.fence is None:
                self.due = now() + next(self.pauses)
            elif self.fence < hold.fence:
                self.due = now()
            self.plan()

    def plan(self, when: float | None = None) -> None:
        """Lets the renewer look at it when it is due, or then if it does at all."""
        with mutex:
            if when is None:
                self.listed = True
            else:
                self.due = when
            if self.listed and not self.at_work:
                self.server.plan(self)

    def unplan(self) -> None:
        with mutex:
            self.listed = False
            self.server.drop(self)

    async def see_to(self) -> None:
        """What the renewer does when it is due."""
        if self.at_work or not self.listed:
            return
        self.at_work = True
        try:
            await self.renew(self.spec.lease / 6)
        finally:
            self.at_work = False
            with mutex:
                if self.listed:
                    self.server.plan(self)

    async def renew(self, limit: float) -> None:
        hold = self.hold
        if self.owes_until > -math.inf:
            await self.repeat_release(limit)
            return
        if hold.abandoned:
            hold.stop()
            hold.end()
        if hold.ended or hold.is_lost():
            self.unplan()
            return
        for ask in tuple(self.asking):
            self.settle(ask)
        known = self.fence is not None and not self.unsure and now() < self.end
        self.due = now() + self.spec.lease / 3
        try:
            if known:
                await self.extend(hold.fence if self.fence < hold.fence else None, limit)  # type: ignore[operator]
                if self.fence is None:
                    self.miss()
                else:
                    hold.believe()
            elif self.barred or not self.may_ask_again():
                self.due = now() + next(self.pauses)
            else:
                # It may have been somebody else's meanwhile, so the lease is not extended but asked for.
                self.unsure = self.unsure or self.fence is not None
                self.fence, self.end = None, -math.inf
                await self.take(hold.fence)
        except Exception as error:  # noqa: BLE001 - whatever it was: it is repeated
            hold.failure = error
            hold.tell_of(error, self, "renewal")
            self.due = now() + next(self.pauses)
            return
        if self.fence is not None:
            self.pauses, self.missed = pauses(), None
            hold.told.discard(("renewal", self.at))
        elif known is False:
            self.due = min(self.due, now() + next(self.pauses))

    def kept_since(self, moment: float) -> bool:
        """Has it granted a request that was sent then or later?"""
        return self.end >= moment + self.spec.lease - self.spec.margin

    def miss(self) -> None:
        """Its hold is gone. It is not won back before the others were asked, which have until then."""
        self.missed = now()
        self.plan(self.missed + self.spec.lease / 3)
        self.hold.doubt()

    def may_ask_again(self) -> bool:
        """Not while an answer may come. After a while the connection may be one that broke without a sign."""
        newest = max((ask.sent or 0 for ask in self.asking), default=-math.inf)
        return len(self.asking) < PENDING and now() - newest >= self.spec.lease / 3

    # --- release ---

    async def give_back(self) -> bool | None:
        """Releases what it has there. True: it was held until now; False: not; None: there was nothing.

        A request to acquire without an answer is undone over its own connection: over another one, the server may read
        the release first.
        """
        self.closed = True
        self.unplan()
        if self.task is not None:
            self.task.cancel()
        for ask in tuple(self.asking):
            if ask.sent is None:
                ask.drop()
            self.unsure = self.unsure or ask.answered  # nobody has looked at the answer
            self.settle(ask)
        if self.barred and not self.asking and self.fence is None:
            self.finish()
            return None
        fence = None if self.unsure or self.asking or self.doubt or self.placed else self.fence
        self.releases = [ask.wire.ask(self.spec.release(self.owner.name, None)) for ask in self.asking]
        pending = tuple(self.asking)
        self.placed = self.placed or any(ask.wire.own for ask in pending)
        fresh = self.fence is not None or self.unsure or self.doubt or self.placed
        if not (fresh or pending):
            self.finish()
            return None
        mark = (to_bytes(self.spec.key), id(self.source))
        if pending or self.doubt:
            self.owner.doubtful.add(mark)
        self.owes_until = now() + self.spec.lease + QUEUE
        was_held: bool | None = None
        try:
            if fresh:
                was_held = await self.give_back_once(fence)
            if pending:
                await asyncio.wait([ask.task for ask in (*self.releases, *pending)], timeout=self.spec.limit)
                if not all(ask.answered for ask in self.releases):
                    raise errors.TimeoutError("the server did not answer in time")  # noqa: TRY301
            if not self.doubt:
                self.owner.doubtful.discard(mark)
        except Exception:
            self.owe()
            raise
        self.finish()
        return was_held

    async def give_back_once(self, fence: int | None) -> bool | None:
        words = self.spec.release(self.owner.name, fence)
        repeated = False
        while True:
            try:
                reply, _ = await self.request(words, self.spec.limit)
            except Exception as error:
                if str(error).startswith("WRONGTYPE"):
                    return False
                if repeated or not again(error):
                    raise
                repeated = True
            else:
                return None if fence is None else reply is not None or repeated

    def owe(self) -> None:
        """Lets the renewer repeat the release."""
        self.due = now() + next(self.pauses)
        self.plan()

    async def repeat_release(self, limit: float) -> None:
        if now() < self.owes_until:
            self.due = now() + next(self.pauses)
            try:
                await self.request(self.spec.release(self.owner.name, None), limit)
            except Exception:  # noqa: BLE001 - whatever it was: it is repeated
                return
            if any(not ask.task.done() for ask in self.releases):
                return
            if not self.doubt and all(ask.answered for ask in self.releases):
                self.owner.doubtful.discard((to_bytes(self.spec.key), id(self.source)))
        self.finish()

    def finish(self) -> None:
        self.owes_until = -math.inf
        if not self.over:
            self.over = True
            self.unplan()
            for ask in (*self.releases, *self.asking):
                ask.drop()
            self.server.leave()


class Hold:
    """One acquisition, from its first request to its end."""

    def __init__(self, spec: Spec, outer: QuorumOwner | None) -> None:
        self.spec, self.outer = spec, outer
        self.owner = outer or QuorumOwner()
        self.pid = os.getpid()
        self.names = {to_bytes(spec.key)}
        self.parts: list[Part] = []
        self.identities: dict[int, Identity] = {}
        self.bell = Bell()  # a node has answered
        self.event = Bell()  # it is lost, or has ended
        self.seen = 0  # the highest fence
        self.fence = 0
        self.failure: Exception | None = None
        self.trip = 0.01  # how long a majority took to answer
        self.told: set[tuple[str, int]] = set()
        self.places: weakref.WeakSet[Any] = weakref.WeakSet()
        self.claimed = self.held = self.lost = self.ended = self.abandoned = False

    # --- acquiring ---

    async def acquire(self, take: Callable[[Hold], Hold | None], wait: float | None) -> bool:
        """True when it is held, False when `wait` was over. Whatever else happens, nothing is left on the servers."""
        try:
            self.owner.claim(self, take)
            got = await self.rounds(wait)
        except BaseException:
            try:
                self.stop()
                await TaskServer.shielded(self.leave)
            finally:
                self.end()
            raise
        if not got:
            self.end()
        return got

    async def rounds(self, wait: float | None) -> bool:
        until, once = math.inf if wait is None else now() + wait, wait == 0
        waits, attempt = pauses(), 0
        while True:
            if self.outer is None:
                # Another one each time: a late release of the last round must not undo this one.
                self.owner = QuorumOwner()
                self.owner.keys |= self.names
            if await self.round(until, once=once):
                return True
            error = self.reason()
            await TaskServer.shielded(self.leave)
            if error is not None and not again(error) and not is_ahead(error):
                raise error
            left = until - now()
            if left < TICK:
                if error is not None:
                    raise error
                return False
            attempt += 1
            chance = random.random() * min(self.trip * 2**attempt, self.spec.lease / 10, 1.0)
            await asyncio.sleep(min(chance if error is None else next(waits), left))

    async def round(self, until: float, *, once: bool) -> bool:
        """All nodes at once; then in line at the first that answers, and then the others."""
        self.parts = [Part(self, at) for at in range(len(self.spec.sources))]
        least = self.proposal()
        for part in self.parts:
            if not part.barred:
                part.start(partial(part.take, least, queue=None if once or part.at else QUEUE))
        first = await self.ask_all(once=once)
        if first is None:
            return False
        if self.is_agreed() and (once or not first.refused):
            return self.hold_it()
        if once:
            return first.fence is not None and await self.take_others(first, now() + self.spec.limit)
        if first.fence is None:
            await self.leave(first)
            if not await self.wait_in_line(first, until):
                return False
            for part in self.parts:
                if part is not first:
                    self.parts[part.at] = Part(self, part.at)
        left = max(until - now(), self.spec.limit)
        return await self.take_others(first, now() + min(self.spec.lease / 3, left))

    async def ask_all(self, *, once: bool) -> Part | None:
        """Until a majority has one fence, or it is known that it is not to be had at once.

        Returns the first node that answers: in the order of the list, since the others wait in line there.
        """
        begin, patience, slow = now(), math.inf, math.inf
        deadline = begin + self.spec.lease / 3
        while True:
            self.bell.clear()
            self.look_for_errors()
            agreed = self.is_agreed()
            if patience == math.inf and sum(part.answered for part in self.parts) >= self.spec.quorum:
                self.trip = max(now() - begin, 0.001)
                patience = begin + 3 * self.trip + 0.005
                slow = max(patience, begin + min(SLOW, self.spec.limit))
            first = next((part for part in self.parts if part.answered or part.busy), None)
            # A first node that is slow costs no more than two round trips where the lock is free. Where it is not,
            # there is more time to find out at which node the others wait.
            ends = patience if agreed else slow
            if first is not None and not first.answered and now() >= ends:
                first = next((part for part in self.parts if part.answered), None)
            known = first is None or first.answered
            if not once and first is not None and first.refused:
                return first  # others stand in line there, and go first
            if agreed and (once or known):
                return first
            self.level()
            if now() >= deadline or (known and not self.is_possible()):
                return first
            await self.ring(min(ends, deadline) if now() < ends else deadline)

    async def wait_in_line(self, first: Part, until: float) -> bool:
        """Waits at one node until it grants. False when the wait is over, or the node does not answer any more."""
        failed = False
        while True:
            sent = now()
            block = max(TICK, min(BLOCK, until - sent))
            try:
                await first.take(None, block=block, queue=QUEUE)
            except Exception as error:  # noqa: BLE001 - it is looked at
                first.failure = error
                self.look_for_errors()
                if failed or not again(error):
                    return False
                failed = True  # a lost connection costs no place
                await asyncio.sleep(next(pauses()))
                continue
            failed, first.failure = False, None
            if first.fence is not None:
                return True
            # Null may come before the time is up: from a server that does not let this connection wait.
            await asyncio.sleep(max(0, sent + block - now()))
            if now() >= until:
                return False

    async def take_others(self, first: Part, deadline: float) -> bool:
        """Takes the other nodes, waiting there as well, now that one has granted."""
        least, block = self.proposal(), max(TICK, deadline - now())
        first.stale = True
        for part in self.parts:
            if part.busy or part.barred:
                continue
            if part.fence is not None:
                part.start(partial(self.raised, part, least))
            elif part.failure is None:
                part.refused = False
                part.start(partial(part.take, least, block=block, queue=self.spec.limit))
        while True:
            self.bell.clear()
            self.look_for_errors()
            if self.is_agreed():
                return self.hold_it()
            self.level()
            if not self.is_possible() or now() >= deadline:
                return False
            await self.ring(deadline)

    async def ring(self, until: float) -> None:
        await ring(self.bell, until - now())

    def proposal(self) -> int:
        return max(time.time_ns() // 1000 + AHEAD, self.seen + 1)

    def level(self) -> None:
        """Raises the nodes that have less than the highest fence."""
        granted = [part for part in self.parts if part.fence is not None]
        if len(granted) < self.spec.quorum:
            return
        highest = max(part.fence or 0 for part in granted)
        for part in granted:
            if part.busy or part.failure is not None:
                continue
            if part.stale or (part.fence or 0) < highest:
                part.start(partial(self.raised, part, highest))

    async def raised(self, part: Part, least: int) -> None:
        """A node that cannot be raised is released, and left out."""
        try:
            await part.extend(least, self.spec.limit)
        except Exception:
            if not part.unsure:
                former, part.fence, part.end, part.unsure = part.fence, None, -math.inf, True
                with contextlib.suppress(Exception):
                    await part.request(self.spec.release(self.owner.name, former), self.spec.limit)
                    part.unsure = False
            raise

    def agreed(self) -> int | None:
        """The fence that a majority has answered."""
        moment = now()
        fences = Counter(
            part.fence
            for part in self.parts
            if part.fence is not None and not part.unsure and not part.stale and part.end > moment
        )
        fence, count = max(fences.items(), key=lambda pair: pair[1], default=(None, 0))
        return fence if count >= self.spec.quorum else None

    def is_agreed(self) -> bool:
        return self.agreed() is not None

    def is_possible(self) -> bool:
        open_ = [part for part in self.parts if part.busy or (part.fence is not None and part.failure is None)]
        return len(open_) >= self.spec.quorum

    def look_for_errors(self) -> None:
        """Raises what no other node and no other round can mend."""
        for part in self.parts:
            if isinstance(part.failure, NoQuorum):
                raise part.failure
            if str(part.failure).startswith("DEADLOCK "):
                text = f"{self.spec.title} was not acquired: {part.failure}"
                raise Deadlock(text, self.spec.name) from part.failure

    def reason(self) -> Exception | None:
        """The error for which no majority was to be had, whoever held the lock."""
        failures = [part.failure for part in self.parts if part.failure is not None]
        spare = len(self.parts) - self.spec.quorum
        if len(failures) <= spare:
            return None
        lasting = [error for error in failures if not again(error) and not is_ahead(error)]
        return lasting[0] if len(lasting) > spare else failures[-1]

    def hold_it(self) -> bool:
        fence = self.agreed()
        if fence is None:
            return False
        with mutex:
            self.fence = fence
            if now() >= self.valid_until():
                return False
            self.held = True
        for part in self.parts:
            part.keep()
        return True

    async def leave(self, but: Part | None = None) -> dict[Part, bool | Exception | None]:
        """Releases all nodes, or all but one. Waits for those that answer, and not for others: what they said."""
        parts = [part for part in self.parts if part is not but and not part.closed]
        sure = [part for part in parts if part.fence is not None or part.placed]
        silent = [part for part in parts if part not in sure and (part.asking or part.unsure)]
        enough = len(sure)
        if len(silent) > len(self.parts) - self.spec.quorum:
            enough += len(silent)
        enough = min(enough, self.spec.quorum)
        begin, said = now(), dict[Part, bool | Exception | None]()
        tasks = {part.server.task(part.give_back()): part for part in parts}
        patience = begin + 2 * self.spec.limit + CONNECT  # each may be repeated once, over a new connection
        waiting = set(tasks)
        while waiting and now() < patience:
            if sum(part in said for part in (*sure, *silent)) >= enough:
                patience = min(patience, begin + 3 * max(self.trip, now() - begin) + 0.005)
                enough = len(parts) + 1
            done, waiting = await asyncio.wait(
                waiting, timeout=max(0, patience - now()), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception()
                said[tasks[task]] = error if isinstance(error, Exception) else task.result()
        return said

    # --- while it is held ---

    async def release(self) -> None:
        if self.pid == os.getpid():
            await TaskServer.shielded(self.give_back)

    async def give_back(self) -> None:
        lost = self.is_lost()
        counted = {part: part.end for part in self.parts}
        self.stop()
        try:
            said = await self.leave()
        finally:
            self.end()
        moment, failures = now(), [error for error in said.values() if isinstance(error, Exception)]
        valid = [
            part
            for part, end in counted.items()
            if said.get(part) is True or (said.get(part) is not False and end > moment)
        ]
        self.lost = lost or len(valid) < self.spec.quorum
        if self.lost:
            self.tell("lost", "was lost before it was released")
            raise LockLost(f"{self.spec.title} was lost before it was released", self.spec.name) from self.failure
        unknown = [part for part, end in counted.items() if end > moment and isinstance(said.get(part), Exception)]
        if len(unknown) > len(self.parts) - self.spec.quorum:
            raise failures[-1]

    async def check(self) -> bool:
        """Asks the nodes: True if a majority holds it."""
        if not self.held or self.ended or self.is_lost():
            return False
        tasks = {part.server.task(self.check_at(part)): part for part in self.parts if part.fence is not None}
        waiting, held, errors_ = set(tasks), 0, list[BaseException]()
        while waiting and held < self.spec.quorum:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is not None:
                    errors_.append(error)
                else:
                    held += task.result()
        if held >= self.spec.quorum:
            return not self.is_lost()
        self.look()
        if self.is_lost():
            return False
        if len(errors_) + held >= self.spec.quorum:
            raise errors_[-1]
        return False

    async def check_at(self, part: Part) -> bool:
        fence = part.fence
        words = ["LOCK.CHECK", self.spec.key, self.owner.name, self.spec.mode, "FENCE", fence]
        try:
            reply, _ = await part.request(words, self.spec.limit)
        except errors.RedisError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            reply = None
        if reply is None and part.fence == fence and not part.unsure:
            with mutex:
                part.fence, part.end = None, -math.inf
            part.miss()
        return reply is not None

    async def wait_lost(self, timeout: float | None) -> bool:
        until = math.inf if timeout is None else now() + timeout
        while not (self.is_lost() or self.ended) and now() < until:
            left = min(self.valid_until(), until) - now()
            await ring(self.event, min(left, LOOK))
        return self.lost

    # --- the state ---

    def valid_until(self) -> float:
        """Until when a majority surely keeps it: as long as the last but so many of the nodes."""
        ends = sorted((self.end_at(part) for part in self.parts), reverse=True)
        return ends[self.spec.quorum - 1] if len(ends) >= self.spec.quorum else -math.inf

    def end_at(self, part: Part) -> float:
        return part.end if part.fence is not None and not part.unsure and part.fence >= self.fence else -math.inf

    def is_lost(self) -> bool:
        with mutex:
            if self.held and not self.ended and (self.pid != os.getpid() or now() >= self.valid_until()):
                self.tell("lost", "is lost: fewer than a majority surely keep it", self.failure)
                self.lost = True
            return self.lost

    def tell(self, kind: str, text: str, error: BaseException | None = None, part: Part | None = None) -> None:
        """Tells the application, once for each kind of trouble of each node."""
        mark = (kind, -1 if part is None else part.at)
        if mark in self.told or self.pid != os.getpid():
            return
        self.told.add(mark)
        trouble = Trouble(kind, self.spec.name, f"{self.spec.title} {text}", error)
        place = "" if part is None else address(part.source)
        self.spec.tell(lambda: tell(trouble, self.spec.on_trouble, place))

    def tell_of(self, error: Exception, part: Part, kind: str | None = None) -> None:
        found = None if is_ahead(error) else explain(error, address(part.source))
        if found is not None:
            text = (
                "was not acquired at one node" if kind is None else "is not renewed at one node, which is tried again"
            )
            self.tell(kind or found[0], f"{text}: {found[1]}", error, part)

    def doubt(self) -> None:
        """A node has lost its hold. Asks the others at once, so that a majority that did is no majority again."""
        for part in self.parts:
            if part.fence is not None:
                part.plan(now())
        self.look()

    def believe(self) -> None:
        """Wins back what a node has lost, once all others have renewed theirs after that.

        A hold that is gone at all nodes is not found so everywhere at once. If the first node were asked anew at once,
        it would count again before the next one is found: the lock would seem held while another owner had it.
        """
        for part in self.parts:
            since = part.missed
            if since is not None and all(other.kept_since(since) for other in self.parts if other.fence is not None):
                part.missed = None
                part.plan(now())

    def look(self) -> None:
        """Signals a loss. In the event loop alone."""
        if self.is_lost():
            self.event.set()

    def stop(self) -> None:
        with mutex:
            self.ended = True
            for part in self.parts:
                if part.owes_until == -math.inf:
                    part.unplan()
        self.event.set()

    def end(self) -> None:
        """It has nothing on the servers any more, or the renewers see to it."""
        self.stop()
        if self.claimed:
            self.owner.keys -= self.names
            self.claimed = False
        for part in self.parts:
            if not part.closed:
                part.closed = True
                part.finish()
