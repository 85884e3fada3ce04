"""The contract: how a lock is asked for, waited for, renewed, lost and released. One for threads and asyncio."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions as errors
from redis.exceptions import LockError

from redis_lock_client import _figures, _own
from redis_lock_client._common import (
    BLOCK,
    LEAVE,
    LOOK,
    OVERTIME,
    QUEUE,
    READ_ON,
    TICK,
    Deadlock,
    HoldToken,
    Key,
    LockLost,
    again,
    margin,
    mutex,
    now,
    pauses,
    to_bytes,
)
from redis_lock_client._figures import Listener
from redis_lock_client._transport import Question, Request, Server, Told, Words, free_slot, take_slot
from redis_lock_client._trouble import OnTrouble, Trouble, address, explain, explained, is_crowded, tell
from redis_lock_client._waiting import Line, Turn, Way, way


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a lock asks for."""

    client: Any
    keys: tuple[str | bytes, ...]
    lease: float
    shared: bool
    limit: int | None
    take: int
    note: str | None
    on_trouble: OnTrouble | None
    max_blocking: int
    notify_prefix: str
    old_clients: bool
    max: float | None = None
    reentrant: bool = False
    listener: Listener | None = None
    token: HoldToken | None = dataclasses.field(default=None, compare=False)

    @property
    def mode(self) -> str:
        return "READ" if self.shared or self.limit is not None else "WRITE"

    @property
    def names(self) -> list[bytes]:
        return [to_bytes(key) for key in self.keys]

    @property
    def name(self) -> str:
        return ", ".join(name.decode(errors="replace") for name in self.names)

    @property
    def title(self) -> str:
        return f'lock "{self.name}"'

    @property
    def several(self) -> bool:
        return len(self.keys) > 1

    def acquire(
        self, owner: str, *, block: float | None = None, queue: float | None = None, notify: bytes | None = None
    ) -> list[Any]:
        """The request that acquires. It keeps a place for `queue` seconds; it waits for `block` seconds."""
        if self.several:
            words = ["LOCK.MACQUIRE", len(self.keys), *self.keys, owner, self.mode]
        elif self.limit is not None:
            words = ["LOCK.SHARE", *self.keys, owner, self.limit, "TAKE", self.take]
        elif self.shared:
            words = ["LOCK.RW", *self.keys, owner, "READ"]
        else:
            words = ["LOCK.ACQUIRE", *self.keys, owner]
        # RETRY: a request that is sent twice counts once.
        words += ["PX", int(self.lease * 1000), "RETRY", self.take]
        if block is not None:
            words += ["BLOCK", max(1, int(block * 1000))]
        if queue is not None:
            words += ["QUEUE", int(queue * 1000)]
        if notify is not None:
            words += ["NOTIFY", notify]
        return words if self.note is None else [*words, "NOTE", self.note]

    def extend(self, owner: str, fences: tuple[int, ...], lease: float | None = None) -> list[Any]:
        milliseconds = max(1, int((self.lease if lease is None else lease) * 1000))
        if self.several:
            return ["LOCK.MEXTEND", len(self.keys), *self.keys, owner, "PX", milliseconds]
        return ["LOCK.EXTEND", *self.keys, owner, "PX", milliseconds, "FENCE", *fences]

    def release(self, owner: str, fences: tuple[int, ...]) -> list[Words]:
        """One request for each key: LOCK.MRELEASE is refused if one of the keys is no lock any more."""
        pairs = zip(self.keys, fences, strict=True)
        return [["LOCK.RELEASE", key, owner, "ALL", "FENCE", fence] for key, fence in pairs]

    def leave(self, owner: str) -> list[Words]:
        """Leaves the queue, and releases a grant that the owner does not know of."""
        each: list[Words] = [["LOCK.RELEASE", key, owner, "ALL"] for key in self.keys]
        return [["LOCK.MRELEASE", len(self.keys), *self.keys, owner, "ALL"], *each] if self.several else each


class Owner:
    """Who holds locks, or waits for them: one for a lock and all that are taken `within` it."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or f"{socket.gethostname()[:64]}:{os.getpid()}:{secrets.token_hex(16)}"
        self.keys: set[bytes] = set()
        self.unsettled: set[bytes] = set()  # keys of which a release is owed: the server has not confirmed it

    def claim(self, hold: Any, take: Callable[[Any], Any]) -> None:
        """From here on `hold` is the acquisition of a lock, and has its keys. `take` says what is in the way."""
        with mutex:
            other = take(hold)
            inner = other is None and self.keys & hold.names
            if other is None and not inner:
                self.keys |= hold.names
                hold.claimed = True
        if inner:
            raise LockError(f"{hold.spec.title}: the outer lock has this key already", hold.spec.name)
        if other is not None:
            text = "is held already, or waited for: each thread or task needs a lock object of its own"
            if other.is_lost():
                text = "was lost, and must be released first"
            raise LockError(f"{hold.spec.title} {text}", hold.spec.name)


class Hold(Question):
    """One acquisition, from its first request to its end. It is a duty of the renewer while it is held, or owes."""

    def __init__(self, spec: Spec, owner: Owner, kind: type[Server]) -> None:
        self.spec, self.owner, self.kind = spec, owner, kind
        self.event, self.settled = kind.event(), kind.event()
        self.pid = os.getpid()
        self.names = set(spec.names)
        self.lease = spec.lease
        self.server: Server | None = None
        self.request: Request | None = None  # the last one that asked for the lock
        self.fences: tuple[int, ...] = ()
        self.valid_until = math.inf  # until when it is surely held
        self.ends = math.inf  # when it is lost, however often it is renewed
        self.entered = 1  # how often its thread or task has entered it
        self.was_let_go = False  # it was let go, and needs no release
        self.in_block = False  # a block of its thread or task holds it
        self.renewing = False  # a renewal is on its way
        self.unanswered = False  # the server may read a request yet that was given up
        self.raises = 0  # requests to raise its fence
        self.refuses_own = True  # a wait for what its own thread or task holds
        self.pauses = pauses()
        self.failure: Exception | None = None  # why the last renewal failed
        self.turn = Turn(owner.name)
        self.line: Line | None = None  # where its turn is
        self.kept = QUEUE  # how long the server keeps its place without a request for it
        self.queue = math.inf  # the QUEUE of the last request
        self.told: set[str] = set()
        self.since = math.inf  # when it was granted; later than that once its end is counted
        self.asked = self.slot = self.crowded = self.hangs = False
        self.stopped = False  # its wait is to end, as another thread says
        self.places: weakref.WeakSet[Any] = weakref.WeakSet()  # the lock objects that have it as their last acquisition
        self.claimed = self.held = self.lost = self.ended = self.abandoned = self.released = False
        # What is owed: a release that the renewer repeats until it is answered, or this time is over.
        self.owes_until = -math.inf
        self.owed: Callable[[], list[Words]] = list
        self.to_send = self.at_release = False
        self.read_until = -math.inf

    # --- acquiring ---

    async def acquire(self, take: Callable[[Hold], Hold | None], wait: float | None) -> bool:
        """True when it is held, False when `wait` was over. Whatever else happens, nothing is left on the server."""
        got, begin = False, now()
        try:
            self.owner.claim(self, take)
            if self.spec.token is not None:
                got = await self.adopt(self.spec.token, wait)
            else:
                if wait != 0 and self.refuses_own:
                    _own.refuse(self)
                got = await self.wait_in_line(wait)
            self.figure("waited" if got else "refused", now() - begin)
        except BaseException:
            got = False
            self.stop()
            if self.asked:
                await self.leave()
            elif self.request is not None:
                self.request.withdraw()
            raise
        finally:
            self.free_slot()
            self.stand_in(None)
            if not got:
                self.end()
        return got

    async def wait_in_line(self, wait: float | None) -> bool:
        until = math.inf if wait is None else now() + wait
        fresh = False
        error: Exception | None = None
        while not self.stopped:
            error, begin, pauses_first = None, now(), False
            try:
                if await self.attempt(until, once=wait == 0, fresh=fresh):
                    return True
                fresh = self.hangs = False
            except Exception as failure:
                if self.stopped:
                    break
                self.hangs = isinstance(failure, errors.TimeoutError)
                self.crowded = is_crowded(failure)
                if str(failure).startswith("DEADLOCK "):
                    raise Deadlock(f"{self.spec.title} was not acquired: {failure}", self.spec.name) from failure
                pauses_first = True
                if not (self.spec.old_clients and is_no_lock(failure)):
                    self.tell_of(failure)
                    if not again(failure):
                        raise
                    error, fresh = failure, True
            left = until - now()
            if left < TICK:
                break
            if pauses_first:
                await self.kind.ring(self.event, min(next(self.pauses), left))
                await self.follow(begin)
        if error is not None and not self.stopped:
            raise error
        if self.asked and (wait != 0 or self.fences or self.stopped):
            await self.leave()
        return False

    async def attempt(self, until: float, *, once: bool, fresh: bool) -> bool:
        """One slice of the wait."""
        server = await self.find()
        if self.owner.unsettled & self.names:
            raise errors.TimeoutError("the server has not confirmed yet that an earlier lock or wait is over")
        how = way(once=once, crowded=self.crowded, has_slot=self.has_slot)
        if how is Way.QUEUE:
            await server.hear(self.spec.keys[0], self.spec.notify_prefix, until)
            self.tell_refusal(server)
        block, begin = 0.0, now()

        def words(channel: bytes | None = None) -> list[Any]:
            nonlocal block
            self.asked = True
            if how is Way.ONCE:
                return self.spec.acquire(self.owner.name)
            queue = server.line.queue(notifies=channel is not None)
            self.kept, self.queue = max(self.kept, queue), queue
            if how is Way.QUEUE:
                return self.spec.acquire(self.owner.name, queue=queue, notify=channel)
            block = max(TICK, min(BLOCK, server.patience, until - now()))
            return self.spec.acquire(self.owner.name, block=block, queue=queue)

        self.crowded = False
        self.asked = self.asked or how is Way.QUEUE  # the renewer makes the request, at any moment from now on
        # A server that hangs does not prolong the wait: the last answer has less time.
        left = math.inf if once else max(until - begin, 0) + OVERTIME
        longest = min(server.patience + (BLOCK if how is Way.BLOCK else 0), left)
        in_turn = None if how is not Way.QUEUE else until
        try:
            reply = await self.ask(
                words,
                min(server.patience, left),
                answer=longest,
                acquires=True,
                blocks=how is Way.BLOCK,
                in_turn=in_turn,
                fresh=fresh,
            )
        except errors.ResponseError as error:
            if not self.heeds(error):
                raise
            return False
        except Exception as error:
            if how is not Way.BLOCK or not server.can_carry(error):
                raise
            self.crowded = True
            self.tell_of(error)
            return False
        sent = begin if self.request is None or self.request.sent is None else self.request.sent
        if reply is None:
            # Before the time is up: from a server that does not let this connection wait.
            await self.kind.ring(self.event, sent + block - now())
            return False
        self.fences = tuple(reply) if self.spec.several else (reply,)
        if now() - sent >= self.spec.lease / 3:
            # It waited, so a renewal may be due already.
            sent = now()
            extend = self.spec.extend(self.owner.name, self.fences)
            if not self.confirms(await self.ask(extend, server.patience)):
                return False
        return await self.begin(sent)

    async def begin(self, sent: float) -> bool:
        """It is held, as a request says that was sent then. False if that was too long ago."""
        self.ends = math.inf if self.spec.max is None else sent + self.spec.max
        self.keep(sent)
        if now() >= self.valid_until:
            return False
        server = await self.find()
        with mutex:
            if self.stopped:
                return False
            self.held, self.since = True, now()
            server.plan(self)
        _own.remember(self)
        return True

    async def adopt(self, token: HoldToken, wait: float | None) -> bool:
        """Takes a hold over from another process, whose fence is void then. A cancelled one gives the lock back."""
        try:
            return await self.raise_fence(token, token.lease if wait is None else min(wait, token.lease))
        except Exception:
            self.asked = False  # the token may be good for another attempt
            raise

    async def raise_fence(self, token: HoldToken, wait: float) -> bool:
        def words() -> list[Any]:
            self.asked = True
            note = [] if self.spec.note is None else ["NOTE", self.spec.note]
            return [*self.spec.extend(token.owner, (token.fence,)), "MINFENCE", token.fence + 1, *note]

        until = now() + wait
        unanswered: Exception | None = None
        while True:
            begin = now()
            try:
                limit = (await self.find()).patience
                reply = await self.ask_of_hold(words, limit, acquires=True, fresh=unanswered is not None)
            except Exception as error:
                self.tell_of(error)
                if not (is_ahead(error) or again(error)) or now() >= until or self.stopped:
                    raise
                unanswered = unanswered if isinstance(error, errors.ResponseError) else error
                await self.kind.sleep(min(next(self.pauses), max(until - now(), 0)))
                await self.follow(begin)
                continue
            if reply is None and unanswered is not None:
                raise unanswered  # the first request may have raised the fence
            if reply is None:
                raise LockLost(f"{self.spec.title} is lost: it cannot be taken over", self.spec.name)
            self.fences = (reply,)
            if not await self.begin(begin):
                raise LockLost(f"{self.spec.title} is lost: its lease is over", self.spec.name)
            return True

    def has_slot(self) -> bool:
        self.slot = self.slot or take_slot(self.spec.max_blocking)
        return self.slot

    def stand_in(self, line: Line | None) -> None:
        """Its turn is in this line from now on, and in no other."""
        with mutex:
            if self.line is not None and self.line is not line:
                self.line.leave(self.turn)
            if line is not None:
                line.enter(self.turn)
            self.line = line

    def heeds(self, error: errors.ResponseError) -> bool:
        """True if the error concerns the options of a wait, so that it is asked again at once with others."""
        server = self.server
        if server is None:
            return False
        notified = isinstance(self.request, Told) and self.request.notified
        with mutex:
            again_at_once, hurried = server.line.heed(error, now(), notified=notified, queue=self.queue)
            server.hasten(hurried)
        return again_at_once

    def tell_refusal(self, server: Server) -> None:
        """Tells why NOTIFY cannot be had: one wait for all of this server."""
        with mutex:
            why = server.line.refusal()
        if why is not None:
            text = "waits without messages of the server, and asks it each second: NOTIFY cannot be had"
            self.tell("notify", f"{text}: {why.__cause__ or why}", why)

    def free_slot(self) -> None:
        if self.slot:
            self.slot = False
            free_slot()

    def stop_waiting(self) -> None:
        """Ends the wait, from another thread."""
        with mutex:
            if self.held or self.ended:
                return
            self.stopped = True
            request = self.request
        self.event.set()
        if request is not None:
            request.interrupt()

    # --- leaving, and releases that are owed: by the renewer ---

    async def leave(self) -> None:
        """Leaves the queue, and gives back what was granted in the same moment. The caller waits only a moment."""
        if self.request is not None and self.request.withdraw():
            self.request = None
        # Another process may have taken over the same token: its fence is another one.
        token, name = self.spec.token, self.owner.name
        left = self.spec.leave(name) if token is None else self.spec.release(name, (token.fence,))
        self.owe(lambda: left)
        if not self.hangs and self.server is not None and not self.server.over:
            await self.kind.ring(self.settled, LEAVE)

    def owe(self, words: Callable[[], list[Words]]) -> None:
        """Lets the renewer send a release, and repeat it as long as the server may keep the lock or the place.

        Its owner cannot ask for these keys until that is settled: the release would end what it gets.
        """
        with mutex:
            if self.server is not None:
                self.owner.unsettled |= self.names
                self.owed, self.to_send = words, True
                self.due = now()
                self.owes_until = self.due + self.spec.lease + self.kept
                self.read_until = self.due + READ_ON
                self.server.plan(self)

    @property
    def owes(self) -> bool:
        return self.owes_until > -math.inf

    def settle(self) -> None:
        self.owes_until = -math.inf
        self.owner.unsettled -= self.names
        self.settled.set()
        self.end()

    async def heed_release(self) -> None:
        """The release was answered. But the server may read the request that it undoes only after it."""
        self.to_send = False
        request = self.request
        if request is not None and not request.answered:
            await request.peek()
        if request is None or (request.answered and request.result is None):
            self.settle()
            return
        self.due = now()
        if request.answered:
            self.request, self.to_send = None, True
            if self.spec.token is not None:
                late = self.spec.release(self.owner.name, (request.result,))
                self.owed = lambda: late
        elif request.is_broken() or self.due >= self.read_until:
            request.close()
            self.request, self.to_send = None, True
            self.due += READ_ON
        else:
            self.due += LEAVE / 10
        self.replan()

    # --- what the renewer asks ---

    def words(self) -> list[Words] | None:
        self.at_release = self.owes
        if self.at_release:
            if now() < self.owes_until:
                return self.owed() if self.to_send else []
            self.settle()
            return None
        if self.abandoned:
            self.count_end()
            self.end()
        if self.ended or self.is_lost():
            return None
        self.renewing = True
        return [self.extension()]

    def extension(self) -> list[Any]:
        """A renewal, which does not let the lease last beyond its end."""
        lease = min(self.lease, self.ends - now() + margin(self.lease))
        return self.spec.extend(self.owner.name, self.fences, lease)

    async def heed(self, replies: list[Any] | Exception, sent: float) -> None:
        self.renewing = False
        self.unanswered = self.unanswered or isinstance(replies, Exception)
        error = replies if isinstance(replies, Exception) else next(filter(is_failure, replies), None)
        if self.owes and not self.at_release:
            return  # a renewal, and the lock was given up meanwhile
        if error is not None:
            await self.fail(error, sent)
        elif self.owes:
            await self.heed_release()
        elif not self.ended and not self.is_lost():
            if self.confirms(replies[0]):  # type: ignore[index]
                self.keep(sent)
                self.replan()
            else:
                self.lose("the server says that it is not held")

    async def fail(self, error: Exception, sent: float) -> None:
        """A renewal or a release has failed. There is time until the lease ends."""
        if not self.owes:
            self.failure = error
            self.figure("renewal_failed")
            self.tell_of(error, "renewal", "is not renewed, and is tried again as long as it is valid")
        elif again(error):
            self.tell_of(error, "release", "is not released, and is tried again")
        else:
            self.tell_of(error, "release", "is not released, and ends with its lease")
            self.settle()
            return
        former = self.server
        await self.follow(sent)
        self.due = now() if self.server is not former else now() + next(self.pauses)
        if not self.owes:
            self.due = min(self.due, self.valid_until)
        if type(error) is errors.AskError and hasattr(self.spec.client, "nodes_manager"):
            await self.ask_there(sent)
        self.replan()

    async def ask_there(self, sent: float) -> None:
        """Sends a renewal or a release where an ASK says."""
        try:
            if self.owes:
                for words in self.owed():
                    await self.ask_of_hold(words, self.spec.lease / 6)
                await self.heed_release()
            elif self.confirms(await self.ask(self.extension(), self.spec.lease / 6)):
                self.keep(sent)
            else:
                self.lose("the server says that it is not held")
        except Exception as failure:  # noqa: BLE001 - whatever it was: it is repeated
            self.failure = failure

    def replan(self) -> None:
        with mutex:
            if self.server is not None and (self.owes or not (self.ended or self.lost)):
                self.server.plan(self)

    # --- releasing ---

    async def release(self) -> None:
        with mutex:
            is_inner = self.entered > 1
            self.entered -= is_inner
        if is_inner:
            if self.is_lost():
                raise LockLost(f"{self.spec.title} is lost", self.spec.name) from self.failure
        elif self.pid == os.getpid():
            await self.kind.shielded(self.give_back)

    async def give_back(self) -> None:
        """May run a second time, when the first was interrupted anywhere."""
        lost = self.is_lost()
        self.stop()
        try:
            self.lost = not await self.was_held_until_now() or lost
        except Exception as error:
            if again(error):
                self.owe(self.releasing)
            if not lost:
                self.tell_of(error, "release", "its release has failed, and is repeated")
                raise
            self.failure = self.failure or error
        finally:
            self.count_end()
            self.end()
        if self.lost:
            self.tell("lost", "was lost before it was released")
            raise LockLost(f"{self.spec.title} was lost before it was released", self.spec.name) from self.failure

    def releasing(self) -> list[Words]:
        """The release of what it has."""
        return self.spec.release(self.owner.name, self.fences)

    async def was_held_until_now(self) -> bool:
        """Releases it. Null means that it was lost; null to a request that is repeated means nothing."""
        await self.find()
        released, self.released = self.released, True
        replies, repeated = await self.ask_twice(self.releasing())
        return released or repeated or None not in replies

    async def ask_twice(self, requests: Sequence[Words | Callable[..., Words]]) -> tuple[list[Any], bool]:
        """The replies of commands about the hold, and whether these had to be repeated, over a new connection."""
        limit, begin = (await self.find()).patience, now()
        try:
            return [await self.ask_of_hold(words, limit) for words in requests], False
        except Exception as error:
            if self.lost or not again(error):
                raise
            await self.follow(begin)
            return [await self.ask_of_hold(words, limit, fresh=True) for words in requests], True

    async def let_go(self, seconds: float, *, detached: bool = False) -> None:
        """Stops the renewals, and lets it end after so many seconds. Without an answer a `detached` one is released."""
        if self.entered > 1:
            raise LockError(
                f"{self.spec.title} was entered several times: only the outer block lets it go", self.spec.name
            )
        if self.is_lost():
            if self.pid == os.getpid():
                await self.kind.shielded(self.give_back)
            raise LockLost(f"{self.spec.title} is lost", self.spec.name) from self.failure
        self.was_let_go = True
        await self.kind.shielded(lambda: self.set_end(now() + seconds, detached=detached))

    async def set_end(self, end: float, *, detached: bool) -> None:
        lost = self.is_lost()
        self.stop()
        until = now() + self.lease / 6
        while self.renewing and now() < until:  # else it would undo this
            await self.kind.sleep(10 * TICK)
        try:
            self.lost = lost or not (await self.ends_at(end, detached=detached) or now() >= end)
        except BaseException:
            self.owe(self.releasing if detached else lambda: [self.ending(end)])
            raise
        finally:
            self.count_end()
            self.end()
        if self.lost:
            self.tell("lost", "was lost before it was let go")
            raise LockLost(f"{self.spec.title} was lost before it was let go", self.spec.name) from self.failure

    def ending(self, end: float, *, detached: bool = False) -> list[Any]:
        """The request to let the lease end then."""
        extend = self.spec.extend(self.owner.name, self.fences, end - now())
        # What the server reads after this, be it a renewal or this request itself, would undo it. A higher fence makes
        # it void, but for several keys. Who takes a lock over raises its fence anyhow.
        if self.spec.several or detached or not (self.unanswered or self.renewing):
            return extend
        self.raises += 1
        return [*extend, "MINFENCE", self.fences[0] + 1]

    async def ends_at(self, end: float, *, detached: bool) -> bool:
        """Lets the lease end then. False if it is not held."""
        try:
            [reply], _ = await self.ask_twice([lambda: self.ending(end, detached=detached)])
        except errors.ResponseError as error:
            if not is_ahead(error):
                raise
            [reply], _ = await self.ask_twice([self.spec.extend(self.owner.name, self.fences, end - now())])
        # If the fence was raised without an answer, null says that it was.
        return self.raises > 1 or self.confirms(reply) or (self.raises == 1 and reply is not None)

    async def set_note(self, note: str) -> None:
        if self.spec.several:
            raise LockError(f"{self.spec.title}: a lock of several keys keeps its note", self.spec.name)
        sent, reply = now(), None
        if not self.is_lost():
            words = [*self.extension(), "NOTE", note]
            reply = await self.ask_of_hold(words, (await self.find()).patience)
        if reply is None:
            self.lose("the server says that it is not held")
            raise LockLost(f"{self.spec.title} is lost", self.spec.name) from self.failure
        self.keep(sent)

    async def detach(self) -> HoldToken:
        """Gives it up for another process to take over within its lease."""
        if self.spec.several or self.spec.limit is not None or self.spec.max is not None:
            text = "several keys, shares, and what has a max cannot be handed over"
            raise LockError(f"{self.spec.title}: {text}", self.spec.name)
        try:
            await self.let_go(self.lease, detached=True)
        except BaseException as error:
            if not isinstance(error, Exception) and not self.lost:  # nobody has the token
                await self.find()
                self.owe(self.releasing)
            raise
        [key] = self.spec.keys
        text = key if isinstance(key, str) else key.decode("ascii", "surrogateescape")
        return HoldToken(text, self.owner.name, self.fences[0], self.lease, self.spec.shared)

    # --- asking about it ---

    async def check(self) -> bool:
        if not self.held or self.ended or self.is_lost():
            return False
        for key, fence in zip(self.spec.keys, self.fences, strict=True):
            words = ["LOCK.CHECK", key, self.owner.name, self.spec.mode, "FENCE", fence]
            if await self.ask_of_hold(words, (await self.find()).patience) is None:
                self.lose("the server says that it is not held")
                return False
        return True

    async def locked(self) -> bool:
        """True if one of the keys is held by anybody, or waited for."""
        try:
            limit = (await self.find()).patience
            found = [await self.ask(["LOCK.INFO", key, "COUNT", 0], limit) for key in self.spec.keys]
        except errors.ResponseError as error:
            if self.spec.old_clients and is_no_lock(error):
                return True
            raise
        finally:
            self.end()
        return any(found)

    async def guard(self, command: Sequence[Any], key: Key | None) -> Any:
        if self.spec.mode == "READ":
            raise LockError(f"{self.spec.title}: guard needs an exclusive lock", self.spec.name)
        if self.is_lost():
            raise LockLost(f"{self.spec.title} is lost: nothing was run", self.spec.name) from self.failure
        names = self.spec.names
        if key is not None and to_bytes(key) not in names:
            raise ValueError(f"{self.spec.title}: key must be one of its keys")
        at = 0 if key is None else names.index(to_bytes(key))
        words = ["LOCK.GUARD", self.spec.keys[at], self.owner.name, self.fences[at], *command]
        reply = await self.ask(words, 2 * (await self.find()).patience)
        if reply is None:
            self.lose("the server says that it is not held")
            raise LockLost(f"{self.spec.title} is lost: nothing was run", self.spec.name) from self.failure
        return reply[1]

    # --- the state ---

    def confirms(self, reply: Any) -> bool:
        return (tuple(reply) if isinstance(reply, list) else (reply,)) == self.fences

    def keep(self, sent: float) -> None:
        """The server had the request after it was sent, so the lease ends no sooner than this."""
        self.valid_until = min(sent + self.spec.lease - margin(self.spec.lease), self.ends)
        self.due = min(sent + self.spec.lease / 3, self.ends)
        self.pauses, self.failure = pauses(), None
        self.told.discard("renewal")

    def is_lost(self) -> bool:
        if self.held and not self.ended and (self.pid != os.getpid() or now() >= self.valid_until):
            self.lose("its max is over" if now() >= self.ends else "its lease is over")
        return self.lost

    async def wait_lost(self, timeout: float | None) -> bool:
        until = math.inf if timeout is None else now() + timeout
        while not (self.is_lost() or self.ended) and now() < until:
            await self.kind.ring(self.event, min(self.valid_until - now(), until - now(), LOOK))
        return self.lost

    def lose(self, why: str) -> None:
        """Signals the loss, unless it was released meanwhile."""
        with mutex:
            lost = not self.ended
            self.lost = self.lost or lost
            if self.planner is not None and not self.owes:
                self.planner.drop(self)
            # Many a program never releases what it has lost.
            server, self.server = (None, self.server) if self.owes or self.ended else (self.server, None)
        self.event.set()
        if server is not None:
            server.leave()
        if lost:
            self.count_end()
            self.tell("lost", f"is lost: {why}", self.failure)

    def stop(self) -> None:
        with mutex:
            self.ended = True
            if self.planner is not None and not self.owes:
                self.planner.drop(self)
        self.event.set()

    def end(self) -> None:
        """It has nothing on the server any more, or the renewer sees to it."""
        self.stop()
        with mutex:
            if self.claimed:
                self.owner.keys -= self.names
                self.claimed = False
            if self.owes and self.server is not None and not self.server.over:
                return
            server, self.server = self.server, None
        if server is not None:
            server.leave()

    # --- telling ---

    def figure(self, what: str, *seconds: float) -> None:
        """Tells the listener."""
        listener = self.spec.listener
        if listener is not None and self.pid == os.getpid():
            self.kind.tell(lambda: _figures.tell(listener, what, *seconds))

    def count_end(self) -> None:
        """Tells for how long it was held, once, and whether it was lost."""
        with mutex:
            since, self.since = self.since, math.inf
        if since < math.inf:
            self.figure("lost" if self.lost else "held", now() - since)

    def tell(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """Tells the application, once for each kind of trouble."""
        with mutex:
            if kind in self.told or self.pid != os.getpid():
                return
            self.told.add(kind)
        trouble = Trouble(kind, self.spec.name, f"{self.spec.title} {text}", error)
        place = self.place()
        self.kind.tell(lambda: tell(trouble, self.spec.on_trouble, place))

    def tell_of(self, error: Exception, kind: str | None = None, text: str = "was not acquired yet") -> None:
        found = explain(error, self.place())
        if found is not None and found[0] not in self.told:
            self.tell(kind or found[0], f"{text}: {found[1]}", error)

    def place(self) -> str:
        if self.server is not None:
            return address(self.server.source)
        pool = getattr(self.spec.client, "connection_pool", None)
        return "the cluster" if pool is None else address(pool)

    # --- its server ---

    async def find(self) -> Server:
        if self.server is None:
            self.server = self.kind.enter(await self.kind.home(self.spec.client, self.spec.keys[0]))
        return self.server

    async def follow(self, since: float) -> None:
        """In a cluster: goes where the keys are now, which it asks for unless that was done `since`."""
        if not hasattr(self.spec.client, "nodes_manager"):
            return
        try:
            source = await self.kind.home(self.spec.client, self.spec.keys[0], since=since)
        except Exception:  # noqa: BLE001 - it is asked again
            return
        former = self.server
        if former is not None and former.source is not source:
            self.server = self.kind.enter(source)
            with mutex:
                if self.ticket != 0:
                    self.server.plan(self)
            former.leave()

    async def ask_of_hold(
        self, words: Words | Callable[..., Words], limit: float, *, acquires: bool = False, fresh: bool = False
    ) -> Any:
        """The reply of a command that is about the hold; None too if the key is no lock any more."""
        try:
            return await self.ask(words, limit, acquires=acquires, fresh=fresh)
        except errors.RedisError as error:
            if is_no_lock(error):
                return None
            raise

    async def ask(
        self,
        words: Words | Callable[..., Words],
        limit: float,
        *,
        answer: float | None = None,
        acquires: bool = False,
        blocks: bool = False,
        in_turn: float | None = None,
        fresh: bool = False,
    ) -> Any:
        """The reply to a request, wherever in a cluster the keys are now.

        It is sent within `limit` seconds, and answered within as many, or `answer`. One that `blocks` goes over a
        connection of its own, or not at all. If `in_turn` is given, it is sent in the turn of the wait, and then at the
        latest.
        """
        asked: errors.AskError | None = None
        for _ in range(3):
            begin = now()
            try:
                return await self.ask_once(
                    words, asked, limit, answer, acquires=acquires, blocks=blocks, in_turn=in_turn, fresh=fresh
                )
            except errors.AskError as error:
                if not hasattr(self.spec.client, "nodes_manager"):
                    raise
                last = error
            asked = None if isinstance(last, errors.MovedError) else last
            if asked is None:
                await self.follow(begin)
        raise last

    async def ask_once(
        self,
        words: Words | Callable[..., Words],
        asked: errors.AskError | None,
        limit: float,
        answer: float | None,
        *,
        acquires: bool,
        blocks: bool,
        in_turn: float | None,
        fresh: bool,
    ) -> Any:
        if asked is None:
            server = await self.find()
        else:
            server = self.kind.enter(await self.kind.home(self.spec.client, self.spec.keys[0], asked=asked))
        try:
            if acquires:
                self.request = None
            if in_turn is not None and asked is None and callable(words):
                self.stand_in(server.line)
                request: Request = server.told(self.turn, words, in_turn)
            else:
                most = self.spec.max_blocking
                asking = asked is not None
                request = await server.send(words, limit, most=most, fresh=fresh, asking=asking, blocks=blocks)
            if acquires:
                self.request = request
                if self.stopped:
                    request.interrupt()
            return await request.reply(limit if answer is None else answer)
        except errors.ResponseError as error:
            told = explained(error, address(server.source))
            if told is error:
                raise
            raise told from error
        except BaseException:
            self.unanswered = True
            raise
        finally:
            if asked is not None:
                server.leave()


def is_no_lock(error: Any) -> bool:
    """True if something else lies on the key."""
    return isinstance(error, errors.ResponseError) and str(error).startswith("WRONGTYPE")


def is_ahead(error: Exception) -> bool:
    """True if the fence that was asked for is too far ahead of the server's clock, as right after a start."""
    return isinstance(error, errors.ResponseError) and "MINFENCE is more than" in str(error)


def is_failure(reply: Any) -> bool:
    return isinstance(reply, Exception) and not is_no_lock(reply)
