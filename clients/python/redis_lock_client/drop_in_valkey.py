"""valkey-py's clients with this helper's lock behind `.lock()`: see `redis_lock_client.drop_in`.

    client = redis_lock_client.drop_in_valkey.Valkey()
    with client.lock("report", timeout=60):
        ...

The lock's errors are valkey-py's. They are this helper's, too, so `LockLost` and `Deadlock` can be told apart. Its
requests go over connections of redis-py, with the settings of the client.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis import exceptions as errors
from valkey import exceptions

from redis_lock_client._common import mutex
from redis_lock_client.drop_in import AsyncRedisLock, Locks, RedisLock, _RedisLock

# --- clients ---

_CONNECTIONS = {
    getattr(theirs, name): getattr(ours, name)
    for theirs, ours in ((valkey, redis), (valkey.asyncio, redis.asyncio))
    for name in ("Connection", "SSLConnection", "UnixDomainSocketConnection")
}
# What is of their library alone, or of no use: the helper does not send again.
_OTHERS = ("connection_class", "parser_class", "lib_name", "lib_version", "retry", "retry_on_error", "retry_on_timeout")
_twins: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def twin(client: Any) -> Any:
    """The client of redis-py for the same server or cluster: one for each pool, or client of a cluster."""
    source = client if hasattr(client, "nodes_manager") else client.connection_pool
    with mutex:
        found = _twins.get(source)
    if found is None:
        made = _twin_of_cluster(client) if source is client else _twin_of_pool(source)  # it may ask the cluster
        with mutex:
            found = _twins.setdefault(source, made)
    return found


def _twin_of_pool(pool: Any) -> Any:
    connection = _CONNECTIONS.get(pool.connection_class)
    if connection is None:
        raise TypeError(f"there is no lock over connections of the class {pool.connection_class.__name__}")
    library: Any = redis.asyncio if isinstance(pool, valkey.asyncio.ConnectionPool) else redis
    settings = _known(pool.connection_kwargs, *connection.__mro__)
    return library.Redis(connection_pool=library.ConnectionPool(connection, **settings))


def _twin_of_cluster(client: Any) -> Any:
    nodes, remap = client.nodes_manager.startup_nodes.values(), client.nodes_manager.address_remap
    if isinstance(client, valkey.asyncio.ValkeyCluster):
        library: Any = redis.asyncio
        settings = _known(client.connection_kwargs, redis.asyncio.RedisCluster)
        settings["ssl"] = client.connection_kwargs["connection_class"] is valkey.asyncio.SSLConnection
    else:
        library = redis
        settings = _known(client.nodes_manager.connection_kwargs, redis.Redis)
        settings["redis_connect_func"] = client.user_on_connect_func  # in the place of the cluster client's own
    startup = [library.cluster.ClusterNode(node.host, node.port) for node in nodes]
    return library.RedisCluster(startup_nodes=startup, address_remap=remap, **settings)


def _known(settings: dict[str, Any], *classes: type) -> dict[str, Any]:
    """Those of the settings that redis-py has, too."""
    settings = {name.replace("valkey", "redis"): value for name, value in settings.items()}
    names = {name for one in classes for name in inspect.signature(one.__init__).parameters}  # type: ignore[misc]
    return {name: value for name, value in settings.items() if name in names and name not in _OTHERS}


# --- errors ---


@functools.cache
def both(kind: Any) -> Any:
    """The class of an error that is `kind` and what valkey-py has in its place. `kind`, if there is nothing."""
    names = [one.__name__.replace("Redis", "Valkey") for one in kind.__mro__ if one.__module__ != "builtins"]
    theirs = next((getattr(exceptions, name) for name in names if hasattr(exceptions, name)), None)
    if theirs is None or issubclass(kind, theirs):
        return kind
    members = {"__module__": kind.__module__, "__reduce__": lambda error: (_made, (kind, error.args, vars(error)))}
    return type(kind.__name__, (kind, theirs), members)


def _made(kind: type[BaseException], arguments: Any, fields: dict[str, Any]) -> BaseException:
    error: BaseException = both(kind)(*arguments)  # type: ignore[arg-type]
    vars(error).update(fields)
    return error


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (errors.RedisError, errors.RedisClusterException) as error:
        kind: Any = type(error)
        error.__class__ = both(kind)
        raise


def _translating(kind: type) -> type:
    """Lets each call of the lock raise errors that are valkey-py's, too."""
    for name, call in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") or name in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
            setattr(kind, name, _wrapped(call))
    return kind


def _wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(call):
        return _translated()(call)

    @functools.wraps(call)
    async def wrapped(*arguments: Any, **named: Any) -> Any:
        with _translated():
            return await call(*arguments, **named)

    return wrapped


# --- locks ---


class _ValkeyLock(_RedisLock):
    def __init__(self, valkey: Any, *arguments: Any, **named: Any) -> None:
        with _translated():
            super().__init__(twin(valkey), *arguments, **named)
        self.valkey = valkey


@_translating
class ValkeyLock(_ValkeyLock, RedisLock):
    """The helper's lock with the face of `valkey.lock.Lock`."""


@_translating
class AsyncValkeyLock(_ValkeyLock, AsyncRedisLock):
    """The helper's lock with the face of `valkey.asyncio.lock.Lock`."""


class Valkey(Locks, valkey.Valkey):
    """`valkey.Valkey`, of which `lock()` gives a `ValkeyLock`."""

    _lock_class = ValkeyLock


class ValkeyCluster(Locks, valkey.ValkeyCluster):
    """`valkey.ValkeyCluster`, of which `lock()` gives a `ValkeyLock`."""

    _lock_class = ValkeyLock


class AsyncValkey(Locks, valkey.asyncio.Valkey):  # type: ignore[misc] # of valkey-py's own bases
    """`valkey.asyncio.Valkey`, of which `lock()` gives an `AsyncValkeyLock`."""

    _lock_class = AsyncValkeyLock


class AsyncValkeyCluster(Locks, valkey.asyncio.ValkeyCluster):  # type: ignore[misc] # the same
    """`valkey.asyncio.ValkeyCluster`, of which `lock()` gives an `AsyncValkeyLock`."""

    _lock_class = AsyncValkeyLock

    async def aclose(self) -> None:
        """Closes all connections to the cluster, and those of the locks that ask it where keys are."""
        if self in _twins:
            await _twins.pop(self).aclose()
        await super().aclose()


__all__ = ["AsyncValkey", "AsyncValkeyCluster", "AsyncValkeyLock", "Valkey", "ValkeyCluster", "ValkeyLock"]
