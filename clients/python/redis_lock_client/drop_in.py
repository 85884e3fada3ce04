"""redis-py's clients with this helper's lock behind `.lock()`, for programs and frameworks that know redis-py's alone.

    client = redis_lock_client.drop_in.Redis()
    with client.lock("report", timeout=60):
        ...

The lock has the arguments, methods and errors of redis-py's. With `timeout` it ends by itself, and nobody renews it.
Without one it is renewed for as long as it is held and its process lives. It never polls.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import redis
import redis.asyncio
from redis.exceptions import LockError

from redis_lock_client._common import LEASE, LOOK, Key, LockLost, LockNotAcquired, again, check_rest, margin, now
from redis_lock_client._engine import Hold, Owner
from redis_lock_client._face import AsyncLock, Lock, Place, _Lock
from redis_lock_client._threads import run

if TYPE_CHECKING:
    from redis_lock_client._transport import Words


def surely(seconds: float) -> float:
    """How much of a lease is surely left: a short one has a smaller margin, too."""
    return seconds - min(margin(seconds), seconds / 10)


class TimedHold(Hold):
    """A hold that ends by itself, unless it is told to end later. The renewer only looks whether it is over."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lease = max(LEASE, self.lease)  # a short one would leave the renewals of others no time for an answer

    async def begin(self, sent: float) -> bool:
        if now() - sent >= margin(self.spec.lease):  # it waited: its time is to begin now
            sent = now()
            extend = self.spec.extend(self.owner.name, self.fences)
            if not self.confirms(await self.ask_of_hold(extend, (await self.find()).patience)):
                return False
        return await super().begin(sent)

    def keep(self, sent: float) -> None:
        super().keep(sent)
        moment = now()
        self.valid_until = moment + surely(self.ends - moment)
        self.look_again()

    def look_again(self) -> None:
        """Next time it is over, or nobody refers to it any more."""
        self.due = min(now() + max(LOOK, (self.ends - now()) / 3), self.valid_until)

    def extension(self) -> list[Any]:
        return self.spec.extend(self.owner.name, self.fences, self.ends - now())

    def words(self) -> list[Words] | None:
        words = super().words()
        self.renewing = False
        return words if self.at_release or words is None else []

    async def heed(self, replies: list[Any] | Exception, sent: float) -> None:
        if self.at_release:
            await super().heed(replies, sent)
        elif not self.owes:
            self.look_again()
            self.replan()

    def lose(self, why: str) -> None:
        super().lose("its timeout is over" if now() >= self.ends else why)

    async def end_after(self, seconds: float, *, more: bool) -> Literal[True]:
        """Lets it end so many seconds from now, or `more` of them after its end."""
        fresh = False
        while not self.is_lost():
            limit, sent = (await self.find()).patience, now()
            left = seconds + (self.ends - sent if more else 0)
            self.valid_until = min(self.valid_until, sent + surely(left))  # if no answer tells whether it came
            try:
                reply = await self.ask_of_hold(self.spec.extend(self.owner.name, self.fences, left), limit, fresh=fresh)
            except Exception as error:
                if fresh or not again(error):
                    raise
                await self.follow(sent)
                fresh = True
                continue
            if self.confirms(reply):
                self.ends, self.spec = sent + left, dataclasses.replace(self.spec, lease=left)
                self.keep(sent)
                self.replan()
                return True
            self.lose("the server says that it is not held")
        raise LockLost(f"{self.spec.title} is lost: it cannot be extended", self.spec.name) from self.failure


class Local:
    """What redis-py's lock knows about the acquisition of this thread."""

    def __init__(self, hold: Hold | None) -> None:
        self._hold = hold

    @property
    def token(self) -> bytes | None:
        """The token of what is held: the one that was given, or the name of the owner. None if nothing is."""
        if self._hold is None or not self._hold.held or self._hold.ended:
            return None
        return getattr(self._hold, "token", None) or self._hold.owner.name.encode()


class _RedisLock(_Lock):
    """What the locks of both clients have in common: the attributes of redis-py's, read at each call."""

    def __init__(  # noqa: PLR0917 - as redis-py has them
        self,
        redis: Any,
        name: Key,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        super().__init__(redis, name, thread_local=thread_local, old_clients=True)
        self.redis, self.name, self.timeout, self.sleep = redis, name, timeout, sleep
        self.blocking, self.blocking_timeout = blocking, blocking_timeout
        self.thread_local, self.raise_on_release_error = thread_local, raise_on_release_error

    @property
    def local(self) -> Local:
        """What this thread holds through this object."""
        return Local(self._hold)

    def _probe(self) -> Hold:
        if not self.timeout:
            return super()._probe()
        seconds = check_rest(self.timeout)
        return TimedHold(dataclasses.replace(self._spec, lease=seconds, max=seconds), Owner(), self._kind)

    def _ask(
        self, blocking: bool | None, blocking_timeout: float | None, token: str | bytes | None
    ) -> tuple[Hold, float | None]:
        """A new acquisition, and how long to wait for it."""
        self._raises = self.raise_on_release_error
        seconds = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            seconds = 0
        hold = self._new()
        hold.refuses_own = seconds is None
        if token is not None:
            hold.token = token.encode() if isinstance(token, str) else bytes(token)  # type: ignore[attr-defined]
        return hold, None if seconds is None else max(0, seconds)

    async def _acquired(self, hold: Hold, wait: float | None) -> bool:
        # Nothing is in its way: who shares the object waits for the server. Without a place nobody would renew it.
        place = Place()
        if not await hold.acquire(place.put, wait):
            return False
        self._at().put(hold)
        return True

    def _not_acquired(self) -> LockNotAcquired:
        return LockNotAcquired(f"{self._spec.title} was not acquired within the time given", self._spec.name)

    def _timed(self, what: str) -> TimedHold:
        hold = self._held()
        if not isinstance(hold, TimedHold):
            raise LockError(f"{self._spec.title} has no timeout: it is renewed, and not {what}", self._spec.name)
        return hold

    def _extension(self, additional_time: float, replace_ttl: bool) -> Any:
        # RedBeat puts a script there that replaces the time. That script cannot run here, but its meaning counts.
        more = not (replace_ttl or "lua_extend" in vars(self))
        return self._timed("extended").end_after(check_rest(additional_time), more=more)

    def _reacquisition(self) -> Any:
        return self._timed("reacquired").end_after(check_rest(self.timeout or 0), more=False)


class RedisLock(_RedisLock, Lock):
    """The helper's lock with the face of `redis.lock.Lock`."""

    def acquire(
        self,
        sleep: float | None = None,  # noqa: ARG002
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Takes the lock, or waits for it. True when it is held; False when the wait was over first.

        Args:
            sleep: accepted without effect: nobody polls.
            blocking: False: try once.
            blocking_timeout: how long to wait, in seconds.
            token: what `local.token` says. The owner that the server knows is another one, and never given twice.

        """
        return run(self._acquired(*self._ask(blocking, blocking_timeout, token)))

    def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` if it was lost before, and `LockError` if it is not held."""
        run(self._held().release())

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Lets the lock end later by so many seconds, or so many seconds from now."""
        done: Literal[True] = run(self._extension(additional_time, replace_ttl))
        return done

    def reacquire(self) -> Literal[True]:
        """Lets the lock end `timeout` from now."""
        done: Literal[True] = run(self._reacquisition())
        return done


class AsyncRedisLock(_RedisLock, AsyncLock):
    """The helper's lock with the face of `redis.asyncio.lock.Lock`."""

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Takes the lock, or waits for it: see `RedisLock.acquire`."""
        return await self._acquired(*self._ask(blocking, blocking_timeout, token))

    async def release(self) -> None:
        """Releases the lock: see `RedisLock.release`."""
        await self._held().release()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Lets the lock end later by so many seconds, or so many seconds from now."""
        done: Literal[True] = await self._extension(additional_time, replace_ttl)
        return done

    async def reacquire(self) -> Literal[True]:
        """Lets the lock end `timeout` from now."""
        done: Literal[True] = await self._reacquisition()
        return done


LOCK_CLASS_AT = 5  # its place among the arguments after the name


class Locks:
    """A client of which `lock()` gives this helper's lock, also by a pipeline."""

    _lock_class: ClassVar[type[_RedisLock]]

    def lock(self, name: Any, *arguments: Any, lock_class: Any = None, **named: Any) -> Any:
        """Returns this helper's lock: see the arguments of redis-py's `lock()`."""
        if len(arguments) < LOCK_CLASS_AT:
            named["lock_class"] = lock_class or self._lock_class
        return super().lock(name, *arguments, **named)  # type: ignore[misc]

    def pipeline(self, *arguments: Any, **named: Any) -> Any:
        """Returns a pipeline. Its lock is the client's: it is taken at once, and not by the pipeline."""
        pipeline = super().pipeline(*arguments, **named)  # type: ignore[misc]
        pipeline.lock = self.lock
        return pipeline


class Redis(Locks, redis.Redis):
    """`redis.Redis`, of which `lock()` gives a `RedisLock`."""

    _lock_class = RedisLock


class RedisCluster(Locks, redis.RedisCluster):
    """`redis.RedisCluster`, of which `lock()` gives a `RedisLock`."""

    _lock_class = RedisLock


class AsyncRedis(Locks, redis.asyncio.Redis):  # type: ignore[misc] # of redis-py's own bases
    """`redis.asyncio.Redis`, of which `lock()` gives an `AsyncRedisLock`."""

    _lock_class = AsyncRedisLock


class AsyncRedisCluster(Locks, redis.asyncio.RedisCluster):  # type: ignore[misc] # the same
    """`redis.asyncio.RedisCluster`, of which `lock()` gives an `AsyncRedisLock`."""

    _lock_class = AsyncRedisLock


__all__ = ["AsyncRedis", "AsyncRedisCluster", "AsyncRedisLock", "Redis", "RedisCluster", "RedisLock"]
