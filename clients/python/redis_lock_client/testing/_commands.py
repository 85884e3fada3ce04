"""The commands of a server in memory: those that the helper sends, and a few for data beside locks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from redis_lock_client.testing._locks import INFO_COUNT, MOST_MILLISECONDS, Ask, Locks, Refused

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
VERSION = "8.0.0"


class Status(str):
    """A simple string, such as OK."""

    __slots__ = ()


OK = Status("OK")


class Push(list[Any]):
    """A message of a subscription."""


class Session:
    """What the server knows of one connection."""

    channels: set[bytes]
    protocol = 2
    number = 0

    def __init__(self) -> None:
        self.channels = set()

    def push(self, message: Push) -> None:
        """Sends a message of a subscription."""


Command = Callable[["Commands", Session, list[bytes]], Any]


class Options:
    """The words behind the fixed ones of a command: each a name, and most with a value."""

    def __init__(self, words: list[bytes], *known: str) -> None:
        self.values: dict[str, bytes] = {}
        rest = iter(words)
        for word in rest:
            name = word.decode(errors="replace").upper()
            if name not in known:
                raise Refused(f'ERR unknown option "{word.decode(errors="replace")}"')
            self.values[name] = b"" if name in ("ALL", "READ", "WRITE") else next(rest, b"")

    def number(self, name: str, least: int = 1, most: int = MOST_MILLISECONDS) -> int | None:
        text = self.values.get(name)
        return None if text is None else number(name, text, least, most)

    def seconds(self, name: str, least: int = 1) -> float | None:
        value = self.number(name, least)
        return None if value is None else value / 1000


def number(name: str, text: bytes, least: int = 1, most: int = 2**63 - 1) -> int:
    if not text.isdigit() or not least <= int(text) <= most:
        raise Refused(f"ERR {name} must be a whole number from {least} to {most}")
    return int(text)


LEASE = ("PX", "BLOCK", "QUEUE", "NOTIFY", "RETRY", "NOTE", "MINFENCE")


class Commands:
    """The server's data, and what its commands do with it."""

    def __init__(self) -> None:
        self.locks = Locks(self.publish)
        self.strings: dict[bytes, bytes] = {}
        self.sessions: list[Session] = []
        self.calls: Counter[str] = Counter()
        self.numbers = 0

    def perform(self, session: Session, words: list[bytes], answer: Callable[[Any], None]) -> Any:
        """The reply of a command. Raises `Refused` for an error, and `Waits` if `answer` is called later."""
        name = words[0].decode(errors="replace").upper()
        self.calls[name.lower()] += 1
        self.locks.tick()
        if name in ACQUIRING:
            return self.acquire(session, name, words, answer)
        command, least = COMMANDS.get(name, (None, 0))
        if command is None:
            beginning = " ".join(f"'{word.decode(errors='replace')}'" for word in words[1:3])
            raise Refused(f"ERR unknown command '{name}', with args beginning with: {beginning}")
        if len(words) <= least:
            raise Refused(f"ERR wrong number of arguments for '{name.lower()}' command")
        return command(self, session, words[1:])

    # --- locks ---

    def acquire(self, session: Session, name: str, words: list[bytes], answer: Callable[[Any], None]) -> Any:
        ask = self.asked(name, words[1:])
        ask.connection, ask.answer = session, answer
        return self.locks.acquire(ask)

    def asked(self, name: str, words: list[bytes]) -> Ask:
        keys, (owner, *rest) = self.keys(words) if name == "LOCK.MACQUIRE" else ([words[0]], words[1:])
        writes, limit, take = True, math.inf, 1
        if name in ("LOCK.RW", "LOCK.MACQUIRE"):
            mode, *rest = rest
            writes = mode.upper() == b"WRITE"
        if name == "LOCK.SHARE":
            writes, limit, rest = False, number("limit", rest[0]), rest[1:]
        self.check_types(keys)
        options = Options(rest, *LEASE, *(["TAKE"] if name == "LOCK.SHARE" else []))
        take = options.number("TAKE") or 1
        if take > limit:
            raise Refused("ERR TAKE must be a whole number from 1 to the limit")
        ask = Ask(keys, owner, writes, limit, take, options.seconds("PX") or 30.0)
        ask.block, ask.queue = options.seconds("BLOCK", 0), options.seconds("QUEUE")
        ask.retry, ask.note, ask.channel = (
            options.number("RETRY"),
            options.values.get("NOTE"),
            options.values.get("NOTIFY"),
        )
        ask.least, ask.several = options.number("MINFENCE", most=2**63 - 1) or 0, name == "LOCK.MACQUIRE"
        if ask.channel is not None and ask.queue is None:
            raise Refused("ERR NOTIFY needs QUEUE")
        return ask

    @staticmethod
    def keys(words: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        count = number("numkeys", words[0], most=len(words) - 1)
        return words[1 : count + 1], words[count + 1 :]

    def check_types(self, keys: list[bytes]) -> None:
        if any(key in self.strings for key in keys):
            raise Refused(WRONG_TYPE)

    def extend(self, _: Session, words: list[bytes]) -> Any:
        self.check_types(words[:1])
        options = Options(words[2:], "PX", "FENCE", "MINFENCE", "NOTE")
        return self.extend_one(words[0], words[1], options)

    def extend_several(self, _: Session, words: list[bytes]) -> Any:
        keys, (owner, *rest) = self.keys(words)
        self.check_types(keys)
        options = Options(rest, "PX")
        return [self.extend_one(key, owner, options) for key in keys]

    def extend_one(self, key: bytes, owner: bytes, options: Options) -> Any:
        lease = options.seconds("PX")
        if lease is None:
            raise Refused("ERR PX or EX is needed")
        hold = self.locks.held(key, owner, options.number("FENCE", 0, 2**63 - 1))
        least = options.number("MINFENCE", 0, 2**63 - 1) or 0
        return None if hold is None else self.locks.extend(hold, lease, least, options.values.get("NOTE"))

    def release(self, _: Session, words: list[bytes]) -> Any:
        self.check_types(words[:1])
        options = Options(words[2:], "ALL", "FENCE")
        fence = options.number("FENCE", 0, 2**63 - 1)
        return self.locks.release(words[0], words[1], every="ALL" in options.values, fence=fence)

    def release_several(self, _: Session, words: list[bytes]) -> Any:
        keys, (owner, *rest) = self.keys(words)
        self.check_types(keys)
        every = "ALL" in Options(rest, "ALL").values
        return [self.locks.release(key, owner, every=every, fence=None) for key in keys]

    def check(self, _: Session, words: list[bytes]) -> Any:
        self.check_types(words[:1])
        options = Options(words[2:], "READ", "WRITE", "FENCE")
        hold = self.locks.held(words[0], words[1], options.number("FENCE", 0, 2**63 - 1))
        modes = {"READ", "WRITE"} & options.values.keys()
        fits = hold is not None and (not modes or ("WRITE" in modes if hold.writes else "READ" in modes))
        return hold.fence if hold is not None and fits else None

    def guard(self, session: Session, words: list[bytes]) -> Any:
        self.check_types(words[:1])
        hold = self.locks.held(words[0], words[1], number("fence", words[2], 0))
        if hold is None or not hold.writes:
            return None
        return [hold.fence, self.perform(session, words[3:], lambda _: None)]

    def break_lock(self, _: Session, words: list[bytes]) -> Any:
        return self.locks.clear(words[:1])

    def info_of_lock(self, _: Session, words: list[bytes]) -> Any:
        self.check_types(words[:1])
        options = Options(words[1:], "COUNT", "OWNER")
        count = options.number("COUNT", 0)
        return self.locks.info(words[0], INFO_COUNT if count is None else count, options.values.get("OWNER"))

    # --- data ---

    def get(self, _: Session, words: list[bytes]) -> Any:
        if words[0] in self.locks.holds:
            raise Refused(WRONG_TYPE)
        return self.strings.get(words[0])

    def set(self, _: Session, words: list[bytes]) -> Any:
        self.locks.clear(words[:1])
        self.strings[words[0]] = words[1]
        return OK

    def incr(self, session: Session, words: list[bytes]) -> Any:
        value = int(self.get(session, words) or 0) + (int(words[1]) if len(words) > 1 else 1)
        self.strings[words[0]] = str(value).encode()
        return value

    def exists(self, _: Session, words: list[bytes]) -> Any:
        return sum(key in self.strings or key in self.locks.holds for key in words)

    def delete(self, _: Session, words: list[bytes]) -> Any:
        return sum(self.strings.pop(key, None) is not None or self.locks.clear([key]) > 0 for key in words)

    def flush(self, _: Session, words: list[bytes]) -> Any:  # noqa: ARG002
        self.strings.clear()
        self.locks.clear(list(self.locks.holds))
        return OK

    # --- connections ---

    def hello(self, session: Session, words: list[bytes]) -> Any:
        if words:
            session.protocol = number("protocol", words[0], 2, 3)
        return {"server": "redis", "version": VERSION, "proto": session.protocol, "mode": "standalone", "modules": []}

    def client(self, session: Session, words: list[bytes]) -> Any:
        return session.number if words[0].upper() == b"ID" else OK

    def subscribe(self, session: Session, words: list[bytes]) -> Any:
        session.channels |= set(words)
        for name in words:
            session.push(Push([b"subscribe", name, len(session.channels)]))
        return None

    def unsubscribe(self, session: Session, words: list[bytes]) -> Any:
        for name in words or tuple(session.channels):
            session.channels.discard(name)
            session.push(Push([b"unsubscribe", name, len(session.channels)]))

    def publish(self, channel: bytes, text: bytes) -> int:
        listeners = [session for session in self.sessions if channel in session.channels]
        for session in listeners:
            session.push(Push([b"message", channel, text]))
        return len(listeners)

    def info(self, _: Session, words: list[bytes]) -> Any:  # noqa: ARG002
        rows = {"redis_version": VERSION, "redis_mode": "standalone", "role": "master"}
        rows |= {f"cmdstat_{name}": f"calls={count}" for name, count in self.calls.items()}
        rows |= {"lock_queued": str(self.locks.queued)}
        rows |= {"lock_notified": str(self.locks.notified), "lock_grace_left_ms": "0"}
        return "".join(f"{name}:{value}\r\n" for name, value in rows.items()).encode()


ACQUIRING = {"LOCK.ACQUIRE": 2, "LOCK.RW": 3, "LOCK.SHARE": 3, "LOCK.MACQUIRE": 4}
SILENT = ("SUBSCRIBE", "UNSUBSCRIBE")  # they are answered by messages
COMMANDS: dict[str, tuple[Command, int]] = {
    "LOCK.EXTEND": (Commands.extend, 2),
    "LOCK.MEXTEND": (Commands.extend_several, 3),
    "LOCK.RELEASE": (Commands.release, 2),
    "LOCK.MRELEASE": (Commands.release_several, 3),
    "LOCK.CHECK": (Commands.check, 2),
    "LOCK.GUARD": (Commands.guard, 4),
    "LOCK.BREAK": (Commands.break_lock, 1),
    "LOCK.INFO": (Commands.info_of_lock, 1),
    "GET": (Commands.get, 1),
    "SET": (Commands.set, 2),
    "INCR": (Commands.incr, 1),
    "INCRBY": (Commands.incr, 2),
    "EXISTS": (Commands.exists, 1),
    "DEL": (Commands.delete, 1),
    "FLUSHALL": (Commands.flush, 0),
    "FLUSHDB": (Commands.flush, 0),
    "PING": (lambda _, __, words: words[0] if words else Status("PONG"), 0),
    "ECHO": (lambda _, __, words: words[0], 1),
    "HELLO": (Commands.hello, 0),
    "CLIENT": (Commands.client, 1),
    "AUTH": (lambda *_: OK, 0),
    "SELECT": (lambda *_: OK, 1),
    "SUBSCRIBE": (Commands.subscribe, 1),
    "UNSUBSCRIBE": (Commands.unsubscribe, 0),
    "PUBLISH": (lambda self, _, words: self.publish(words[0], words[1]), 2),
    "INFO": (Commands.info, 0),
}
