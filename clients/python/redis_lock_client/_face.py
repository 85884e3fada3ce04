"""What an application uses: `Lock` for threads, and `AsyncLock` for asyncio."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import redis
import redis.asyncio
from redis.exceptions import LockError

from redis_lock_client import _own
from redis_lock_client._common import (
    BLOCKING_MAX,
    LEASE,
    HoldToken,
    Key,
    LockLost,
    LockNotAcquired,
    all_keys,
    check_lease,
    check_rest,
    check_wait,
    mutex,
    note_on,
    now,
    to_bytes,
    wait_of,
)
from redis_lock_client._engine import Hold, Owner, Spec
from redis_lock_client._figures import Listener
from redis_lock_client._tasks import TaskServer
from redis_lock_client._threads import ThreadServer, run
from redis_lock_client._transport import Server, T
from redis_lock_client._trouble import OnTrouble

if TYPE_CHECKING:
    from typing_extensions import Self


class Place:
    """Where a lock has its last acquisition: one for all threads, or for each."""

    hold: Any = None
    entered = 0  # how often it was entered through this object

    def put(self, hold: Any) -> None:
        if self.hold is not hold:
            self.clear()
        hold.places.add(self)
        self.hold = hold
        self.entered += 1

    def clear(self) -> None:
        if self.hold is not None:
            self.hold.places.discard(self)
            if not self.hold.places:
                self.hold.abandoned = True  # nobody can release it any more, so nobody renews it either
        self.hold, self.entered = None, 0

    def leave(self) -> None:
        """After a release. What is held still is another object's."""
        self.entered -= 1
        if self.entered <= 0 and self.hold is not None and not self.hold.ended:
            self.clear()

    def __del__(self) -> None:
        self.clear()


class Places(threading.local):
    def __init__(self) -> None:
        self.place = Place()


class Face:
    """What all locks have in common, those over a quorum too."""

    _spec: Any
    _wait: float | None
    _raises = True
    _stopped = False  # it waits no more
    _place: Place
    _places: Places | None = None

    def _at(self) -> Place:
        return self._place if self._places is None else self._places.place

    @property
    def _hold(self) -> Any:
        return self._at().hold

    def _take(self, hold: Any) -> Any:
        """Makes it the last acquisition, unless there is one that has not ended: that one."""
        place = self._at()
        if place.hold is not None and not place.hold.ended and place.hold.pid == hold.pid:
            return place.hold
        place.put(hold)
        return None

    def _begin(self, blocking: bool | None, blocking_timeout: float | None) -> tuple[Any, float | None]:
        """A new acquisition, and how long to wait for it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        hold, state = self._hold, "not acquired"
        if hold is not None:
            if hold.is_lost():
                state = "lost"
            elif hold.ended:
                state = "released" if hold.held else state
            else:
                state = "held" if hold.held else "waiting"
        return f'<{type(self).__name__} "{self._spec.name}": {state}>'

    @property
    def owner(self) -> str | None:
        """The name under which the server knows the last acquisition."""
        return None if self._hold is None else self._hold.owner.name

    @property
    def lost(self) -> bool:
        """True if the lock was lost before it was released. It stays so until the next acquisition."""
        return self._hold is not None and self._hold.is_lost()

    def _not_acquired(self) -> LockNotAcquired:
        why = "the wait was ended" if self._stopped else f"it was not free within {self._wait:g} s"
        return LockNotAcquired(f"{self._spec.title} was not acquired: {why}", self._spec.name)

    def _last(self) -> Any:
        if self._hold is None or not self._hold.held:
            raise LockError(f"{self._spec.title} was not acquired yet", self._spec.name)
        return self._hold

    def _held(self) -> Any:
        if self._hold is None or not self._hold.held or self._hold.ended:
            text = "is not held: it was not acquired, or is released already"
            raise LockError(f"{self._spec.title} {text}", self._spec.name)
        return self._hold

    def _outer_owner(self, within: Any) -> Any:
        """The owner of the lock that this one is taken inside of."""
        if within is None:
            return None
        outer = within._held()
        if outer.is_lost():
            raise LockLost(f"the outer {outer.spec.title} is lost", outer.spec.name) from outer.failure
        return outer.owner

    def _enters_again(self, hold: Any) -> bool:  # noqa: ARG002
        """True if this thread or task has the lock, and may enter it again."""
        return False

    def _is_let_go(self) -> bool:
        """True if nothing is left to release."""
        return False

    def _heed(self, failure: Exception, error: BaseException | None) -> bool:
        """True if the failure of a release is to be raised. The error of the block goes first, and notes a loss."""
        if error is None:
            return self._raises or not isinstance(failure, LockError)
        if isinstance(failure, LockLost):
            note_on(error, failure)
        return False


class ThreadFace(Face):
    """What locks for threads have in common."""

    @staticmethod
    def _run(steps: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the steps, and waits for their result."""
        raise NotImplementedError

    def acquire(self, *, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Takes the lock, or waits for it. True when it is held; False when the wait was over first.

        Args:
            blocking: False: try once, whatever `wait` says.
            blocking_timeout: replaces `wait` for this once, in seconds.

        """
        hold, wait = self._begin(blocking, blocking_timeout)
        try:
            got: bool = self._enters_again(hold) or self._run(lambda: hold.acquire(self._take, wait))
        except BaseException:
            if hold.held and not hold.ended:  # interrupted in the moment when it was granted
                self._run(hold.release)
            raise
        return got

    def release(self) -> None:
        """Releases the lock. Raises `LockLost` if it was lost before."""
        place, hold = self._at(), self._held()
        self._run(hold.release)
        place.leave()

    def check(self) -> bool:
        """Asks the server whether the lock is held now, under its fence; of a quorum, whether a majority holds it."""
        hold = self._hold
        return hold is not None and not hold.is_lost() and bool(self._run(hold.check))

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost (True), or is released, or `timeout` seconds are over (False)."""
        hold = self._last()
        return bool(hold.is_lost() or self._run(lambda: hold.wait_lost(timeout)))

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        self._hold.in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_let_go():
            return
        try:
            self.release()
        except Exception as failure:
            if self._heed(failure, error):
                raise


class AsyncFace(Face):
    """What locks for asyncio have in common."""

    async def acquire(self, *, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Takes the lock, or waits for it. True when it is held; False when the wait was over first.

        Args:
            blocking: False: try once, whatever `wait` says.
            blocking_timeout: replaces `wait` for this once, in seconds.

        """
        hold, wait = self._begin(blocking, blocking_timeout)
        got: bool = self._enters_again(hold) or await hold.acquire(self._take, wait)
        return got

    async def release(self) -> None:
        """Releases the lock. Raises `LockLost` if it was lost before. It does so even if the task is cancelled."""
        place, hold = self._at(), self._held()
        await hold.release()
        place.leave()

    async def check(self) -> bool:
        """Asks the server whether the lock is held now, under its fence; of a quorum, whether a majority holds it."""
        return self._hold is not None and await self._hold.check()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until the lock is lost (True), or is released, or `timeout` seconds are over (False)."""
        lost: bool = await self._last().wait_lost(timeout)
        return lost

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise self._not_acquired()
        self._hold.in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_let_go():
            return
        try:
            await self.release()
        except Exception as failure:
            if self._heed(failure, error):
                raise


class _Lock(Face):
    """What `Lock` and `AsyncLock` have in common.

    Args:
        client: the client of redis-py, which has the server's address and the settings of connections.
        key: a key, or a list of several that are taken in one step, all or none: str or bytes-like. In a cluster they
            need one slot: `{tag}`.
        lease: how long the lock outlives a process that died, in seconds, at least 1. It is renewed at each third.
        wait: how long to wait, in seconds. None: as long as it takes; 0: try once.
        shared: hold it together with other readers.
        limit: a semaphore: how many shares there are in all.
        take: how many shares this lock takes, of `limit`.
        note: a text for people, which LOCK.INFO shows.
        within: the lock that this one is taken inside of, so that the server sees deadlocks.
        on_trouble: is called with a `Trouble`, once for each kind of it: the server cannot be reached, has no module,
            gives no right or has no memory, a renewal failed, the lock is lost. Without it the logger `redis_lock` is
            told. It is called in a thread of its own where a renewal finds the trouble; with asyncio in the event loop.
        listener: hears what the lock does, for the application's figures.
        max_blocking: so many waits of the process have a connection each. Further ones are told by the server's NOTIFY,
            all on one more connection; 0: all of them.
        notify_prefix: stands before the random part of the channel of NOTIFY, `lock:notify:`, so that the user's rights
            can be limited to it. The first wait of a client decides.
        max: how long it is held at most, in seconds: at least `lease`. It is renewed until then, and then lost, so that
            work that never ends keeps nobody out. None: without an end.
        reentrant: True: the thread or task that holds the lock may take it again, through any object with the same
            arguments. It is released with the outermost block. False: to wait for what a `with` block of one's own
            thread or task holds is a `Deadlock`, unless `blocking_timeout` is given, as redis-py's locks wait.
        old_clients: True: clients with another kind of lock may hold the same key, as a string or a hash. While they
            do, the lock is held by others, and this one asks again after a pause. False: that is the error WRONGTYPE.
        timeout: the `lease`, in seconds, as redis-py calls it.
        blocking: False: try once, as `wait=0`.
        blocking_timeout: the `wait`, in seconds, as redis-py calls it.
        raise_on_release_error: False: the end of a `with` block raises no `LockError`.
        sleep: accepted without effect: nobody polls.
        thread_local: True: each thread has an acquisition of its own, so that threads which share the object wait for
            each other; redis-py's `client.lock(lock_class=Lock)` passes it. False: one for all threads, so any thread
            may release. Without effect with asyncio.

    """

    _kind: ClassVar[type[Server]]
    _clients: ClassVar[tuple[type, ...]]
    _library: ClassVar[str]

    def __init__(
        self,
        client: Any,
        key: Key | Sequence[Key],
        lease: float | None = None,
        wait: float | None = None,
        *,
        shared: bool = False,
        limit: int | None = None,
        take: int = 1,
        note: str | None = None,
        within: _Lock | None = None,
        on_trouble: OnTrouble | None = None,
        listener: Listener | None = None,
        max_blocking: int = BLOCKING_MAX,
        notify_prefix: str = "",
        max: float | None = None,  # noqa: A002
        reentrant: bool = False,
        old_clients: bool = False,
        timeout: float | None = None,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        raise_on_release_error: bool = True,
        sleep: float | None = None,  # noqa: ARG002
        thread_local: bool = False,
    ) -> None:
        if not isinstance(client, self._clients):
            kind = f"{type(client).__module__}.{type(client).__qualname__}"
            raise TypeError(f"client must be a client of redis-py ({self._library}), and not {kind}")
        keys = all_keys(key)
        lease = next((seconds for seconds in (timeout, lease) if seconds is not None), LEASE)
        if not keys or len({to_bytes(one) for one in keys}) < len(keys):
            raise ValueError("key must be a key, or several different ones")
        check_lease(lease)
        if limit is not None and (limit < 1 or shared or len(keys) > 1):
            raise ValueError("limit must be 1 or more, is for one key alone, and not with shared")
        if not 1 <= take <= (limit or 1):
            raise ValueError("take must be from 1 to limit")
        check_wait(wait)
        check_wait(blocking_timeout)
        if max_blocking < 0:
            raise ValueError("max_blocking must be 0 or more")
        if max is not None and not lease <= max < math.inf:
            raise ValueError(f"max must be at least the lease, {lease:g} s")
        self._spec = Spec(
            client,
            keys,
            float(lease),
            shared,
            limit,
            take,
            note,
            on_trouble,
            max_blocking,
            notify_prefix,
            old_clients,
            max,
            reentrant,
            listener,
        )
        self._refuses_own = blocking_timeout is None
        self._wait = 0.0 if not blocking else wait if blocking_timeout is None else blocking_timeout
        self._within, self._raises = within, raise_on_release_error
        self._place, self._begun = Place(), weakref.WeakSet[Hold]()
        if thread_local and self._kind is ThreadServer:
            self._places = Places()

    @classmethod
    def from_token(cls, client: Any, token: HoldToken, **arguments: Any) -> Self:
        """A lock that is taken over from another process, which has called `detach()`.

        To acquire it raises its fence, so that what the other process still writes is refused. Raises `LockLost` if its
        lease was over, or if it was taken over already.

        Args:
            client: of the server that has the lock.
            token: what `detach()` has returned.
            arguments: others of the lock, such as `note` or `on_trouble`.

        """
        if not isinstance(token, HoldToken):
            raise TypeError(f"token must be a HoldToken, and not {type(token).__name__}")
        if arguments.get("within") is not None:
            raise ValueError("within: a lock that is taken over keeps its owner")
        lock = cls(client, token._sent_key, **{"lease": token.lease, "shared": token.shared, **arguments})
        lock._spec = dataclasses.replace(lock._spec, token=token)
        return lock

    @property
    def valid_for(self) -> float:
        """For how many seconds the lock is surely held, unless it is renewed: 0 if it is not. Asks nobody."""
        hold = self._hold
        if hold is None or not hold.held or hold.ended or hold.is_lost():
            return 0.0
        left: float = max(0.0, hold.valid_until - now())
        return left

    @property
    def fence(self) -> int:
        """The fence of the last acquisition: each is higher than all before it. Send it along with what you write."""
        (fence,) = self.fences
        return fence

    @property
    def fences(self) -> tuple[int, ...]:
        """The fences of a lock of several keys, in their order."""
        fences: tuple[int, ...] = self._last().fences
        return fences

    def _begin(self, blocking: bool | None, blocking_timeout: float | None) -> tuple[Hold, float | None]:
        """A new acquisition, and how long to wait for it."""
        hold = self._new()
        hold.refuses_own = self._refuses_own and blocking_timeout is None
        return hold, wait_of(self._wait, blocking, blocking_timeout)

    def _new(self) -> Hold:
        hold = self._probe()
        with mutex:
            self._begun.add(hold)
            hold.stopped = self._stopped
        return hold

    def _probe(self) -> Hold:
        token = self._spec.token
        owner = self._outer_owner(self._within) or Owner(None if token is None else token.owner)
        return Hold(self._spec, owner, self._kind)

    def _enters_again(self, hold: Hold) -> bool:
        same = [one for one in _own.own(hold) if one.spec == hold.spec] if self._spec.reentrant else []
        other = self._hold
        if not same or (other is not None and other is not same[0] and not other.ended):
            return False
        if same[0].is_lost():
            raise LockLost(f"{self._spec.title} is lost, and must be released first", self._spec.name)
        with mutex:
            same[0].entered += 1
        self._at().put(same[0])
        return True

    def _is_let_go(self) -> bool:
        return self._hold is not None and self._hold.was_let_go

    def _may_lead(self) -> None:
        if self._spec.token is not None:
            raise LockError(f"{self._spec.title}: a lock that was taken over has one term", self._spec.name)


class Lock(ThreadFace, _Lock):
    """A lock of one key or several, for threads: see the arguments of `_Lock`."""

    _kind = ThreadServer
    _clients = (redis.Redis, redis.RedisCluster)
    _library = "redis.Redis or redis.RedisCluster"

    @staticmethod
    def _run(steps: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return run(steps())

    def stop_waiting(self) -> None:
        """Ends the wait of `acquire()` in another thread, which returns False, and lets this object wait no more.

        For the end of a program. What is held stays held.
        """
        with mutex:
            self._stopped, begun = True, list(self._begun)
        for hold in begun:
            hold.stop_waiting()

    def release_after(self, seconds: float) -> None:
        """Renews the lock no more, and lets it end after so many seconds, whatever becomes of this process.

        For work that is not to begin again at once. The end of a `with` block does nothing after it. The server counts
        it as a lease that is over. Raises `LockLost` if the lock was lost before.
        """
        run(self._held().let_go(check_rest(seconds)))

    def detach(self) -> HoldToken:
        """Gives the lock to another process, which takes it over by `from_token` within the lease.

        The end of a `with` block does nothing after it. For one key, and no share of it. Raises `LockLost` if the lock
        was lost before.
        """
        token: HoldToken = run(self._held().detach())
        return token

    def set_note(self, note: str) -> None:
        """Replaces the note, such as by how far the work is. Raises `LockLost` if the lock is lost."""
        run(self._held().set_note(note))

    def lead(self, term: Callable[[Self], T | None]) -> T:
        """Leads again and again: waits for the lock, runs `term` with it, and gives it back.

        The number of a term is its `fence`. Ends with the first value but None that `term` returns; else it waits for
        the next term, behind others that wait. The term is over when the lock is lost, and another may lead from then
        on. Only the work can stop itself: it looks at `lost` or waits in `wait_lost`. A `LockLost` that it raises
        then ends the term alone.
        """
        self._may_lead()
        while True:
            value, began = None, False
            try:
                with self:
                    began = True
                    value = term(self)
            except LockLost:
                if not (began and self.lost):
                    raise
            if value is not None:
                return value

    def owned(self) -> bool:
        """The same as `check()`, as redis-py calls it."""
        return self.check()

    def locked(self) -> bool:
        """True if anybody holds the lock, or waits for it; of several keys: one of them."""
        return run(self._probe().locked())

    def guard(self, *command: Any, key: Key | None = None) -> Any:
        """Runs a command on the server, in one step with the check that the lock is held under this fence.

        Returns the reply of the command. Raises `LockLost` if the lock is not held: then nothing was run. For exclusive
        locks only: a shared lock or a semaphore raises `LockError`. In a cluster the command's keys must have the slot
        of the lock. After a network error nobody knows whether it was run.

        Args:
            command: the words of the command, as for redis-py's `execute_command`.
            key: of several, the one whose fence counts; else it is the first.

        """
        return run(self._held().guard(command, key))


class AsyncLock(AsyncFace, _Lock):
    """A lock of one key or several, for asyncio: see the arguments of `_Lock`."""

    _kind = TaskServer
    _clients = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
    _library = "redis.asyncio.Redis or redis.asyncio.RedisCluster"

    async def release_after(self, seconds: float) -> None:
        """Lets the lock end after so many seconds: see `Lock.release_after`."""
        await self._held().let_go(check_rest(seconds))

    async def detach(self) -> HoldToken:
        """Gives the lock to another process: see `Lock.detach`."""
        token: HoldToken = await self._held().detach()
        return token

    async def set_note(self, note: str) -> None:
        """Replaces the note. Raises `LockLost` if the lock is lost."""
        await self._held().set_note(note)

    async def lead(self, term: Callable[[Self], Awaitable[T | None]]) -> T:
        """Leads again and again: see `Lock.lead`. A term that is over is cancelled, and awaited until it has ended."""
        self._may_lead()

        async def work() -> T | None:
            _own.remember(self._hold)  # of this task, too
            return await term(self)

        while True:
            value, began = None, False
            try:
                async with self:
                    began = True
                    value = await self._while_held(asyncio.ensure_future(work()))
            except LockLost:
                if not (began and self.lost):
                    raise
            if value is not None:
                return value

    async def _while_held(self, work: asyncio.Future[T | None]) -> T | None:
        """What the work returns; None if the lock is lost first: then the work was cancelled."""
        watch = asyncio.ensure_future(self.wait_lost())
        try:
            both: set[asyncio.Future[Any]] = {work, watch}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not (watch.done() and watch.result()):  # the work may have released it
                await asyncio.wait({work})
        finally:
            watch.cancel()
            is_over = work.cancel()
            await TaskServer.shielded(lambda: asyncio.wait({work}))
        return None if is_over and work.cancelled() else work.result()

    async def owned(self) -> bool:
        """The same as `check()`, as redis-py calls it."""
        return await self.check()

    async def locked(self) -> bool:
        """True if anybody holds the lock, or waits for it; of several keys: one of them."""
        return await self._probe().locked()

    async def guard(self, *command: Any, key: Key | None = None) -> Any:
        """Runs a command if the lock is held: see `Lock.guard`."""
        return await self._held().guard(command, key)


for _face in (Lock, AsyncLock):  # help() shows the arguments where people look for them
    _face.__doc__ = f"{(_face.__doc__ or '').partition(':')[0]}.\n{(_Lock.__doc__ or '').partition(chr(10))[2]}"

__all__ = ["AsyncLock", "Lock"]
