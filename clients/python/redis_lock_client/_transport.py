"""What the helper has of one server: its connections, and the renewer of the locks that are held there.

All is written once, with `async`, for threads and for asyncio. `_threads` and `_tasks` have what differs: the reading
and writing itself.
"""

from __future__ import annotations

import abc
import contextlib
import heapq
import itertools
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from redis import exceptions as errors

from redis_lock_client._common import (
    ANSWER,
    BLOCKING_MAX,
    CONFIRM,
    IDLE,
    IDLE_MAX,
    LOOK,
    OVERTIME,
    mutex,
    now,
    pauses,
)
from redis_lock_client._trouble import is_crowded, logger, teller
from redis_lock_client._waiting import PROVE, Line, State, Turn, is_cluster

T = TypeVar("T")
Words = Sequence[Any]
MOST_AT_ONCE = 1000  # requests in one write
GLANCE = 0.01  # for replies that are there
ELSEWHERE = (errors.ReadOnlyError, errors.MasterDownError)  # by the same name there may be another server now


class Request(abc.ABC):
    """A request that was sent. Its connection is its own until the reply is read, or it goes with the renewer's."""

    answered = False  # the server has dealt with it, and the reply was read
    result: Any = None  # the reply, once it is answered
    sent: float | None = None  # when it began to be sent
    connection: Any = None  # that it has for itself

    @abc.abstractmethod
    def close(self) -> None:
        """Gives it up: nobody reads the reply."""

    @abc.abstractmethod
    async def reply(self, limit: float) -> Any:
        """The reply. An error closes the connection; an interruption leaves it, and the reply can still be read."""

    @abc.abstractmethod
    async def peek(self) -> None:
        """Reads the reply if it is there: for the renewer, when nobody else reads."""

    @abc.abstractmethod
    def is_broken(self) -> bool:
        """True if no reply will come."""

    def withdraw(self) -> bool:
        """True if it has not been sent, and will not be."""
        return False

    def interrupt(self) -> None:  # noqa: B027 - no task is interrupted so: it is cancelled
        """Ends `reply` in another thread."""


class Duty:
    """Something that the renewer sees to when it is due."""

    due = math.inf
    lease = math.inf  # a sixth of it is the time for an answer
    ticket = 0  # of its entry in the agenda; 0 while it has none
    planner: Server | None = None  # whose agenda that is

    @property
    def owes(self) -> bool:
        """True if the server may keep a lock or a place until it is done."""
        return False


class Question(Duty, abc.ABC):
    """A duty that is done by requests over the renewer's connection, together with others."""

    @abc.abstractmethod
    def words(self) -> list[Words] | None:
        """The requests to send now. None: there is nothing to do any more."""

    @abc.abstractmethod
    async def heed(self, replies: list[Any] | Exception, sent: float) -> None:
        """Takes note of the replies, of which each may be an error, or of the error for which there are none."""


class Errand(Request, Question):
    """A request that goes with the renewer's next ones, over its connection."""

    def __init__(self, server: Server, words: Words, due: float) -> None:
        self.server, self.request, self.due = server, words, due
        self.bell = server.event()
        self.lease = 6 * server.patience
        self.error: Exception | None = None
        self.wanted = True
        self.last = math.inf  # it is answered by then, or not at all

    @property
    def owes(self) -> bool:
        return self.wanted

    def words(self) -> list[Words] | None:
        return [self.request] if self.wanted else None

    async def heed(self, replies: list[Any] | Exception, sent: float) -> None:
        reply = replies if isinstance(replies, Exception) else replies[0]
        self.sent = sent
        self.answered = not isinstance(replies, Exception)
        if isinstance(reply, Exception):
            self.error = reply
        else:
            self.result = reply
        self.bell.set()

    async def reply(self, limit: float) -> Any:
        while not self.bell.is_set():
            left = min(self.due + limit, self.last) - now()
            if left <= 0:
                self.close()
                raise errors.TimeoutError("the server did not answer in time")
            await self.server.ring(self.bell, min(left, LOOK))
        if self.error is not None:
            raise self.error
        return self.result

    async def peek(self) -> None:
        pass

    def is_broken(self) -> bool:
        return bool(self.bell.is_set()) and not self.answered

    def close(self) -> None:
        self.wanted = False

    def interrupt(self) -> None:
        self.error = errors.ConnectionError("the request was given up")
        self.bell.set()

    def withdraw(self) -> bool:
        with mutex:
            waits = self.ticket != 0
            self.server.drop(self)
            self.wanted = False
        return waits


class Told(Errand):
    """The requests of a wait that does not block, until one has another answer than null, or the wait is over.

    Each is made when it is sent, with the channel that there is then. Without messages there is one.
    """

    def __init__(self, server: Server, turn: Turn, make: Callable[[bytes | None], Words], until: float) -> None:
        super().__init__(server, (), max(min(turn.due, until), now()))
        self.turn, self.make, self.until = turn, make, until
        self.last = max(until, now()) + OVERTIME
        self.notified = False

    def words(self) -> list[Words] | None:
        if not self.wanted:
            return None
        with mutex:
            channel = self.server.line.channel
            self.notified = channel is not None
            self.turn.sends()
        return [self.make(channel)]

    async def heed(self, replies: list[Any] | Exception, sent: float) -> None:
        with mutex:
            reply = replies if isinstance(replies, Exception) else replies[0]
            moment = now()
            self.server.line.answered(self.turn, reply, moment, notified=self.notified)
            if reply is None and self.notified and self.wanted and moment < self.until:
                # Whoever waits need not be woken up for that.
                self.due = min(self.turn.due, self.until)
                self.server.plan(self)
                return
        await super().heed(replies, sent)


class Opening:
    """A new connection for the renewer, opened in the background. An attempt may be over before it is there."""

    def __init__(self, bell: Any) -> None:
        self.bell, self.begun = bell, now()  # the bell rings at its end
        self.runner: Any = None
        self.error: Exception | None = None
        self.awaited: list[Duty] = []  # those for which it was late


class Server(abc.ABC):
    """One for each pool of connections that locks are made with, or node of a cluster, and for each event loop."""

    bell: Any  # wakes the renewer

    def __init__(self, source: Any) -> None:
        self.source = source  # a pool, or a node of a cluster: it has the settings of its connections
        # How long the server may take to answer, beyond BLOCK: half the client's own read timeout, if it has one.
        self.patience = min(ANSWER, (source.connection_kwargs.get("socket_timeout") or math.inf) / 2)
        self.users = 0  # the locks that are asked for, held or released
        self.left = now()  # when the last user left
        self.awake_at = -math.inf  # when the renewer looks again; -inf while it is awake
        self.over = False
        self.own: Any = None  # the renewer's connection, which is never lent
        self.late: tuple[Any, int] | None = None  # the one before, and how many replies are late there
        self.opening: Opening | None = None  # that goes on
        self.idle: list[tuple[float, Any]] = []  # connections without a use, and since when
        self.lent: weakref.WeakSet[Request] = weakref.WeakSet()  # those that have a connection, or open one
        self.agenda: list[tuple[float, int, Duty]] = []  # a heap, with entries that do not count any more
        self.tickets = itertools.count(1)
        self.leases: Counter[float] = Counter()  # of the duties in the agenda
        self.planned = 0  # the duties in the agenda
        self.pauses = pauses()
        self.open_at = -math.inf  # when the renewer's connection may be opened again
        self.line = Line()
        self.decided = self.event()  # rings when messages come, or it is clear that none will
        self.wanted = self.event()  # rings when a subscription is wanted
        self.listens = False

    @classmethod
    def enter(cls, source: Any) -> Server:
        """The one for `source` in this process, or event loop; each call needs a `leave`."""
        key = (os.getpid(), cls.place(), id(source))
        with mutex:
            server = servers.get(key)
            if server is None:
                _sweep()
                server = cls(source)
                server.start(server.serve(key), "redis-lock renewer")
                servers[key] = server
            server.users += 1
        return server

    def leave(self) -> None:
        with mutex:
            self.users -= 1
            self.left = now()

    def attend(self, when: float) -> None:
        """Lets the renewer look again by then."""
        if when < self.awake_at:
            self.awake_at = when
            self.bell.set()

    @abc.abstractmethod
    def soon(self, call: Callable[[], Any]) -> None:
        """Calls it where the server is at home. Any thread may ask for it."""

    def hurry(self, some: Sequence[Duty] | None = None) -> None:
        """Lets the renewer see to all that is planned now, be it due or not; or to what of these is planned."""
        with mutex:
            planned = {entry[2] for entry in self.agenda if entry[2].ticket == entry[1]}
            for duty in planned if some is None else planned.intersection(some):
                duty.due = min(duty.due, now())
                self.plan(duty)

    # --- the agenda ---

    def plan(self, duty: Duty) -> None:
        """Lets the renewer see to it when it is due."""
        with mutex:
            if duty.planner is not None and duty.planner is not self:
                duty.planner.drop(duty)
            if duty.ticket == 0:
                self.planned += 1
                self.leases[duty.lease] += 1
            duty.planner, duty.ticket = self, next(self.tickets)
            heapq.heappush(self.agenda, (duty.due, duty.ticket, duty))
            if len(self.agenda) > 2 * self.planned + 64:
                self.agenda = [entry for entry in self.agenda if entry[2].ticket == entry[1]]
                heapq.heapify(self.agenda)
        self.attend(duty.due)

    def drop(self, duty: Duty) -> None:
        with mutex:
            if duty.ticket != 0 and duty.planner is self:
                duty.ticket = 0
                self.planned -= 1
                self.leases[duty.lease] -= 1
                if self.leases[duty.lease] == 0:
                    del self.leases[duty.lease]

    def take(self) -> tuple[list[Duty], float]:
        """What is due, and when something is due again."""
        due: list[Duty] = []
        with mutex:
            moment = now()
            while self.agenda and len(due) < MOST_AT_ONCE:
                when, ticket, duty = self.agenda[0]
                if duty.ticket == ticket and when > moment:
                    break
                heapq.heappop(self.agenda)
                if duty.ticket == ticket and duty.planner is self:
                    self.drop(duty)
                    due.append(duty)
            return due, self.agenda[0][0] if self.agenda else math.inf

    # --- the renewer ---

    async def serve(self, key: tuple[int, int, int]) -> None:
        """Sees to what is due, and ends a while after the last user has left."""
        try:
            await self.see_to_all(key)
        finally:
            self.retire(key)
            self.close_all()

    async def see_to_all(self, key: tuple[int, int, int]) -> None:
        tidied = -math.inf
        while not self.ends(key):
            self.bell.clear()
            self.awake_at = math.inf
            due, when = self.take()
            if due:
                await self.perform(due)
            moment = now()
            if moment >= tidied + LOOK:
                await self.tidy()
                tidied = moment = now()
            if due:
                continue
            when = min(when, moment + LOOK)
            self.awake_at = min(self.awake_at, when)
            await self.ring(self.bell, when - moment)

    @property
    def owes(self) -> bool:
        """True if something in the agenda does."""
        with mutex:
            return any(duty.owes and duty.ticket == ticket for _, ticket, duty in self.agenda)

    def ends(self, key: tuple[int, int, int]) -> bool:
        if self.users == 0:
            with mutex:
                if self.users == 0 and now() - self.left >= IDLE:
                    self.retire(key)
        return self.over

    def retire(self, key: tuple[int, int, int]) -> None:
        """The next `enter` makes another one."""
        with mutex:
            self.over = True
            if servers.get(key) is self:
                del servers[key]

    async def perform(self, due: list[Duty]) -> None:
        """Sends all that is due in one write, and reads the replies together."""
        # A server that hangs must not hold up a lock with a shorter lease than these.
        limit = min(self.leases, default=math.inf) / 6
        work: list[tuple[Question, list[Words]]] = []
        asks = False
        for duty in cast("list[Question]", due):
            words = duty.words()
            if words is not None:
                work.append((duty, words))
                limit = min(limit, duty.lease / 6)
                asks = asks or bool(words)
        if not work:
            return
        packed: dict[Duty, bytes | Exception] = {}
        replies: list[Any] = []
        count = 0
        failure: Exception | None = None
        sent = now()
        if asks:
            try:
                await self.connect_own(limit, [duty for duty, _ in work])
                sent = now()
                packed = {duty: pack(self.own, words) for duty, words in work}
                count = sum([len(words) for duty, words in work if isinstance(packed[duty], bytes)])
                data = b"".join([data for data in packed.values() if isinstance(data, bytes)])
                await self.exchange(self.own, data, count, replies, limit)
            except Exception as error:  # noqa: BLE001 - whatever it was: those who asked are told
                failure = error
                await self.heed_failure(error, count - len(replies) if packed else None, limit)
            except BaseException:  # nobody knows how far it came
                self.break_own(timed_out=False)
                for duty, _ in work:
                    self.plan(duty)
                raise
        if any(isinstance(reply, ELSEWHERE) for reply in replies):
            self.break_own(timed_out=False)
        await self.tell_replies(work, packed, replies, failure, sent)
        if failure is not None and not packed and self.own is not None:  # it was open only just now
            self.hurry([duty for duty, _ in work])

    async def tell_replies(
        self,
        work: list[tuple[Question, list[Words]]],
        packed: dict[Duty, bytes | Exception],
        replies: list[Any],
        failure: Exception | None,
        sent: float,
    ) -> None:
        """Tells each duty what came of its requests."""
        at = 0
        for duty, words in work:
            said: Any = packed.get(duty)
            if not isinstance(said, Exception):
                said = replies[at : at + len(words)]
                at += len(said)
                if len(said) < len(words):
                    said = failure or errors.ConnectionError()
            try:
                await duty.heed(said, sent)
            except Exception:  # noqa: BLE001 - the others must not suffer from it
                logger.exception("the renewer has failed")
                duty.due = now() + LOOK
                self.plan(duty)

    async def heed_failure(self, error: Exception, missing: int | None, limit: float) -> None:
        """So many replies are missing; None if there was no connection."""
        is_late = isinstance(error, errors.TimeoutError)
        if missing is not None:
            self.break_own(timed_out=is_late, late=missing if is_late else 0)
            if not is_late:
                await self.begin_opening(limit)  # which need not wait for the next attempt

    async def connect_own(self, limit: float, duties: Sequence[Duty] = ()) -> None:
        """The renewer's connection is open. After an error it is a new one, or an idle one if none is open in time.

        One that was late is used again once its replies have come, if that is before another one is open. If there is
        none, the duties are due again as soon as the opening has succeeded.
        """
        if self.own is None:
            connection = await self.catch_up(GLANCE)
            if connection is None:
                try:
                    await self.await_opening(limit)
                except Exception as error:
                    connection = await self.pick() or await self.catch_up(limit if is_crowded(error) else GLANCE)
                    if connection is None and self.own is None:
                        with mutex:
                            if self.opening is not None:
                                self.opening.awaited += duties
                        raise
            if connection is not None:
                self.give(connection)
        self.close_late()

    async def await_opening(self, limit: float) -> None:
        """The renewer has a new connection. An opening that is late goes on, for the next attempt."""
        until, opening = now() + limit, self.opening
        while self.own is None:
            earlier, opening = opening, await self.begin_opening(limit)
            await self.ring(opening.bell, until - now())
            if not opening.bell.is_set():
                raise errors.TimeoutError("the server did not answer in time")
            if self.own is None and opening is not earlier:
                raise opening.error or errors.ConnectionError("the opening was given up")

    async def begin_opening(self, limit: float) -> Opening:
        """Opens a connection within three times the limit, unless that goes on already."""
        opening, longest = self.opening, 3 * limit
        if opening is None or now() >= opening.begun + longest:
            self.opening = opening = Opening(self.event())
            steps = self.run_opening(opening, longest)
            try:
                opening.runner = self.start(steps, "redis-lock opening")
            except RuntimeError:  # no thread is left
                steps.close()
                await self.run_opening(opening, limit)
        return opening

    async def run_opening(self, opening: Opening, limit: float) -> None:
        try:
            connection = await self.open(limit)
            if self.opening is opening:
                self.give(connection)
                self.hurry(opening.awaited)
            else:
                self.close(connection)
        except Exception as error:  # noqa: BLE001 - whatever it was: the attempt that waits is told
            opening.error = error
        finally:
            with mutex:
                self.opening = None if self.opening is opening else self.opening
            opening.bell.set()

    async def catch_up(self, limit: float) -> Any:
        """The late connection, if its replies come within this time. They are of requests that were given up."""
        with mutex:
            late, self.late = self.late, None
        if late is None:
            return None
        connection, count = late
        replies: list[Any] = []
        try:
            if self.is_connected(connection):
                await self.exchange(connection, b"", count, replies, limit)
                return connection
        except errors.TimeoutError:
            self.late = connection, count - len(replies)
            return None
        except BaseException as error:
            self.close(connection)
            if not isinstance(error, Exception):
                raise
        return None

    def break_own(self, *, timed_out: bool, late: int = 0) -> None:
        """Ends its use. While so many replies are late there, and there is no other one, it is kept."""
        with mutex:
            connection, self.own = self.own, None
            if connection is not None:
                self.hasten(self.line.part(now()))
        if connection is not None and late > 0:
            self.close_late()
            self.late = connection, late
        elif connection is not None:
            self.close(connection)
        if timed_out:
            self.close_idle()

    def close_late(self) -> None:
        if self.late is None:
            return
        with mutex:
            late, self.late = self.late, None
        if late is not None:
            self.close(late[0])

    async def tidy(self) -> None:
        """Closes idle connections in time, and sees that the renewer's is there before it is needed."""
        with mutex:
            kept = [entry for entry in self.idle if now() - entry[0] < IDLE][-IDLE_MAX:]
            surplus = [entry for entry in self.idle if entry not in kept]
            self.idle = kept
        for _, connection in surplus:
            self.close(connection)
        if self.is_busy():
            return
        own = self.own
        if not self.planned:
            self.close_late()
        if own is not None and not await self.is_open(own):
            self.break_own(timed_out=False)
        if self.own is None and self.planned and now() >= self.open_at:
            with contextlib.suppress(Exception):
                await self.connect_own(min(min(self.leases, default=math.inf) / 6, ANSWER))
                self.pauses = pauses()
            if self.own is None:
                self.open_at = now() + next(self.pauses)

    def is_busy(self) -> bool:
        """True if the renewer's connection is in use."""
        return False

    # --- waits that do not block ---

    def told(self, turn: Turn, make: Callable[[bytes | None], Words], until: float) -> Told:
        """Plans the next request of a wait, for when its turn is, or when the wait is over."""
        with mutex:
            turn.request = told = Told(self, turn, make, until)
            self.plan(told)
        return told

    def heed_line(self) -> None:
        """The renewer has a connection. Needs `mutex`."""
        self.line.reconnected()
        self.hasten([])

    def hasten(self, turns: list[Turn]) -> None:
        """Something has happened to the line, and these are due sooner for it. Needs `mutex`."""
        if self.line.is_decided != self.decided.is_set():
            (self.decided.set if self.line.is_decided else self.decided.clear)()
        if self.line.state is State.NONE:
            self.wanted.set()
        for turn in turns:
            told = turn.request
            if told is not None and told.ticket != 0 and turn.due < told.due:
                told.due = turn.due
                self.plan(told)

    async def hear(self, key: Any, prefix: str, until: float) -> None:
        """Until messages come, or it is clear that none will, or the time is over."""
        with mutex:
            self.line.key = key
            if not self.listens:
                self.listens = True
                self.start(self.listen(prefix), "redis-lock listener")
        until = min(until, now() + CONFIRM)
        while not self.line.is_decided and not self.over and now() < until:
            await self.ring(self.decided, min(until - now(), LOOK))

    async def listen(self, prefix: str) -> None:
        """Has the one subscription for all waits of this server, as long as there is the server."""
        while not self.over:
            self.wanted.clear()
            if not self.line.wants(now()):
                await self.ring(self.wanted, LOOK)
                continue
            try:
                await self.subscribe(prefix)
            except Exception as error:  # noqa: BLE001 - whatever it was: the waits go on without messages
                with mutex:
                    self.hasten(self.line.broken(error, now()))

    async def subscribe(self, prefix: str) -> None:
        """Subscribes, and hands on what comes, until the subscription is lost or is not wanted any more."""
        with mutex:
            self.line.state = State.ASKED
            self.hasten([])
        give_up = now() + CONFIRM
        connection = await self.open(CONFIRM, protocol=2)
        try:
            await self.write(connection, ["HELLO"])
            try:
                cluster = is_cluster(await self.read_within(connection, give_up))
            except errors.ResponseError:
                cluster = False
            with mutex:
                channel = self.line.ask(prefix, cluster=cluster)
            words = ["SSUBSCRIBE" if cluster else "SUBSCRIBE", channel]
            await self.write(connection, words)
            await self.heed_message(await self.read_within(connection, give_up))
            if self.line.state is State.ASKED:
                raise errors.ResponseError("the subscription was not confirmed")
            proved = now()
            while not self.over and self.line.channel == channel:
                message = await self.read(connection, LOOK)
                if message is not None:
                    proved = now()
                    await self.heed_message(message)
                elif now() >= proved + PROVE:
                    # A repeated subscription is confirmed as the first one was: the connection lives.
                    await self.write(connection, words)
                    await self.heed_message(await self.read_within(connection, now() + CONFIRM))
                    proved = now()
        finally:
            self.end_reading(connection)

    async def heed_message(self, message: Any) -> None:
        with mutex:
            self.hasten(self.line.heard(message, now()))

    async def read_within(self, connection: Any, until: float) -> Any:
        message = await self.read(connection, max(until - now(), 0))
        if message is None:
            raise errors.TimeoutError("the subscription was not confirmed in time")
        return message

    # --- connections ---

    def settings(self, limit: float) -> dict[str, Any]:
        """The client's settings, without its resending and without what belongs to its pool."""
        pools = ("maint_", "oss_cluster_", "orig_", "himport_", "event_dispatcher")
        settings = {k: v for k, v in self.source.connection_kwargs.items() if not k.startswith(pools)}
        settings |= {"retry": None, "retry_on_timeout": False, "retry_on_error": [], "health_check_interval": 0}
        return settings | {"socket_timeout": limit, "socket_connect_timeout": limit}

    async def lend(self, limit: float, *, fresh: bool) -> Any:
        """A connection for one request: an idle one, or a new one if it is to be `fresh` or there is none."""
        connection = None if fresh else await self.pick()
        return await self.open(limit) if connection is None else connection

    def give(self, connection: Any) -> None:
        """Keeps a connection for the next request. The first one is the renewer's, so that it always has one."""
        with mutex:
            if self.over:
                self.close(connection)
            elif self.own is None:
                self.own = connection
                self.heed_line()
            else:
                self.idle.append((now(), connection))
                if len(self.idle) > IDLE_MAX:
                    self.attend(now() + LOOK)

    async def pick(self) -> Any:
        """An idle connection that is still open."""
        while True:
            with mutex:
                if not self.idle:
                    return None
                _, connection = self.idle.pop()
            if await self.is_open(connection):
                return connection
            self.close(connection)

    def close_idle(self) -> None:
        """A server that did not answer in time may have left them all without a word."""
        with mutex:
            idle, self.idle = self.idle, []
        for _, connection in idle:
            self.close(connection)

    def close_all(self) -> None:
        with mutex:
            connections = [connection for _, connection in self.idle] + [self.own] * (self.own is not None)
            self.idle, self.own = [], None
        self.close_late()
        for connection in connections:
            self.close(connection)

    async def send(
        self,
        words: Words | Callable[..., Words],
        limit: float,
        *,
        most: int = BLOCKING_MAX,
        fresh: bool = False,
        asking: bool = False,
        blocks: bool = False,
    ) -> Request:
        """Sends a request; over a new connection if `fresh`, and behind ASKING if `asking`.

        It goes with the renewer where `most` connections are lent, or none is left, unless it would hold the renewer
        up. `words` may be what makes them when one is there.
        """
        alone = asking or blocks
        with mutex:
            request = self.request() if alone or len(self.lent) < most else None
        if request is not None:
            try:
                await self.post(request, words, limit, fresh=fresh, asking=asking, alone=alone)
            except Exception as error:
                if alone or not self.can_carry(error):
                    raise
            else:
                return request
        return self.errand(words)

    def can_carry(self, error: Exception) -> bool:
        """True if a request for which there was no connection may go with the renewer."""
        return (self.own or self.late) is not None and is_crowded(error)

    def errand(self, words: Words | Callable[..., Words]) -> Errand:
        errand = Errand(self, words() if callable(words) else words, now())
        self.plan(errand)
        return errand

    @staticmethod
    @abc.abstractmethod
    def place() -> int:
        """Tells one event loop from another."""

    @staticmethod
    @abc.abstractmethod
    def who() -> Any:
        """Tells one thread or task from another."""

    @abc.abstractmethod
    def start(self, steps: Coroutine[Any, Any, None], name: str) -> Any:
        """Runs it in the background. Returns what does: a thread or a task."""

    def is_dead(self) -> bool:
        """True if nobody can use it any more."""
        return False

    @abc.abstractmethod
    def abandon(self) -> None:
        """Closes what it has, from outside, when it is dead."""

    @staticmethod
    @abc.abstractmethod
    def event() -> Any: ...

    @staticmethod
    @abc.abstractmethod
    async def ring(bell: Any, seconds: float) -> None:
        """Until the bell rings, or the time is up."""

    @abc.abstractmethod
    async def open(self, limit: float, **settings: Any) -> Any:
        """A new connection, within `limit` seconds."""

    @abc.abstractmethod
    async def write(self, connection: Any, words: Words) -> None:
        """Sends one request, and reads nothing."""

    @abc.abstractmethod
    async def read(self, connection: Any, seconds: float) -> Any:
        """What comes over a connection with a subscription within this time; None if nothing does."""

    @abc.abstractmethod
    def end_reading(self, connection: Any) -> None:
        """Closes a connection with a subscription."""

    @abc.abstractmethod
    async def is_open(self, connection: Any) -> bool:
        """True if nothing says that an idle connection was closed."""

    @staticmethod
    @abc.abstractmethod
    def is_connected(connection: Any) -> bool:
        """True if this side has not closed it."""

    @abc.abstractmethod
    def close(self, connection: Any) -> None: ...

    @abc.abstractmethod
    async def exchange(self, connection: Any, data: bytes, count: int, replies: list[Any], limit: float) -> None:
        """Sends so many requests in one write, and appends their replies and the server's errors as they come."""

    @abc.abstractmethod
    def request(self) -> Request:
        """A request that is to have a connection of its own. It counts as lent at once."""

    @abc.abstractmethod
    async def post(
        self,
        request: Any,
        words: Words | Callable[..., Words],
        limit: float,
        *,
        fresh: bool = False,
        asking: bool = False,
        alone: bool = False,
    ) -> None:
        """Sends it over a connection of its own; a task's with the renewer if there is none, unless it goes `alone`."""

    @staticmethod
    @abc.abstractmethod
    def tell(call: Callable[[], Any]) -> None:
        """Tells the application something, without holding up the renewer."""

    @staticmethod
    @abc.abstractmethod
    async def sleep(seconds: float) -> None: ...

    @staticmethod
    @abc.abstractmethod
    async def shielded(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Lets the attempt come to its end although its caller is interrupted or cancelled."""

    @staticmethod
    @abc.abstractmethod
    async def home(client: Any, key: Any, *, since: float | None = None, asked: errors.AskError | None = None) -> Any:
        """The source of connections to the server of `key`, or to the one that an ASK names.

        Asks the cluster anew where its keys are, unless that was done `since`.
        """


def pack(connection: Any, words: list[Words]) -> bytes | Exception:
    """The requests as they are sent, or why they cannot be: a key that has no such encoding. Others must not suffer."""
    try:
        return b"".join(connection.pack_commands(words))
    except Exception as error:  # noqa: BLE001 - it is told to whoever asked
        return error


servers: dict[tuple[int, int, int], Server] = {}
blocking = 0  # how many waits of this process BLOCK
refreshed: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  # when a cluster was asked


def take_slot(most: int) -> bool:
    """True if one more wait may BLOCK, of so many in this process; it needs a `free_slot`."""
    global blocking  # noqa: PLW0603
    with mutex:
        free = blocking < most
        blocking += free
        return free


def free_slot() -> None:
    global blocking  # noqa: PLW0603
    with mutex:
        blocking -= 1


def is_stale(client: Any, since: float | None) -> bool:
    """True if the cluster has to be asked where its keys are."""
    with mutex:
        if since is None or refreshed.get(client, -math.inf) >= since:
            return False
        refreshed[client] = now()
        return True


def _sweep() -> None:
    """Closes what event loops have left that were closed without an end of their tasks."""
    for key, server in tuple(servers.items()):
        if server.is_dead():
            server.retire(key)
            server.abandon()


def _in_child() -> None:
    """In the child of a fork: what the parent has is none of it."""
    global blocking  # noqa: PLW0603
    blocking = 0
    teller.forget()
    mutex.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=mutex.acquire, after_in_parent=mutex.release, after_in_child=_in_child)
