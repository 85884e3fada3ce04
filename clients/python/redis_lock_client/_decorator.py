"""A lock around each call of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from redis_lock_client._common import Key
from redis_lock_client._face import AsyncLock, Lock

F = TypeVar("F", bound=Callable[..., Any])


def locked(
    client: Any, key: Key | Sequence[Key] | Callable[..., Key | Sequence[Key]], **arguments: Any
) -> Callable[[F], F]:
    """Decorates a function, or a coroutine function, so that each call holds a lock.

    A call raises `LockNotAcquired` if the lock was not free within its `wait`, and `LockLost` at its end if it is lost.

    Args:
        client: as of `Lock`; of a coroutine function as of `AsyncLock`.
        key: the key, or a function that is called with the arguments of each call and returns it.
        arguments: others of the lock, such as `wait` or `lease`.

    """

    def decorate(function: F) -> F:
        def lock_of(kind: type[Any], args: Any, kwargs: Any) -> Any:
            return kind(client, key(*args, **kwargs) if callable(key) else key, **arguments)

        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator runs after its call: take the lock inside it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                async with lock_of(AsyncLock, args, kwargs):
                    return await function(*args, **kwargs)

            return cast("F", call_async)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with lock_of(Lock, args, kwargs):
                return function(*args, **kwargs)

        return cast("F", call)

    return decorate
