"""The resource that the locks protect: a stock for each kind of fruit, in a SQLite file.

Each request brings the fence of the lock. The store keeps the highest fence that it has seen, and refuses an older one:
that worker has lost its lock, whether it knows or not. Knows neither the lock server nor the workers.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS stocks (
    name TEXT PRIMARY KEY, amount INTEGER NOT NULL, highest_fence INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS writes (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, stock TEXT NOT NULL, job TEXT NOT NULL, worker TEXT NOT NULL,
    amount INTEGER NOT NULL, fence INTEGER NOT NULL, highest_fence INTEGER NOT NULL, accepted INTEGER NOT NULL
);
"""


class TooLate(Exception):
    """The fence is older than one that the store has seen."""


class Store:
    """A connection to the file. Each process, and each thread, opens one of its own."""

    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.executescript(SCHEMA)

    def create(self, stock: str) -> None:
        """Adds a stock, if it is not there yet."""
        self.db.execute("INSERT OR IGNORE INTO stocks VALUES (?, 0, 0)", (stock,))

    def read(self, stock: str, fence: int) -> int:
        """The amount. Raises TooLate.

        The fence counts from here on, not only from the write. Else an older holder could still write between this
        read and the write that follows it, and that write would undo it.
        """
        with self.transaction():
            if not self.admit(stock, fence):
                raise TooLate(f"{stock}: the fence {fence} is too old")
            (amount,) = self.db.execute("SELECT amount FROM stocks WHERE name = ?", (stock,)).fetchone()
        return int(amount)

    def write(self, stock: str, amount: int, fence: int, job: str, worker: str) -> None:
        """Sets the amount, and keeps a row about it. Raises TooLate if it was refused; there is a row then, too."""
        with self.transaction():
            accepted = self.admit(stock, fence)
            (highest,) = self.db.execute("SELECT highest_fence FROM stocks WHERE name = ?", (stock,)).fetchone()
            if accepted:
                self.db.execute("UPDATE stocks SET amount = ? WHERE name = ?", (amount, stock))
            row = (time.time(), stock, job, worker, amount, fence, highest, accepted)
            self.db.execute("INSERT INTO writes VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        if not accepted:
            raise TooLate(f"{stock}: the fence {fence} is older than {highest}")

    def has_done(self, job: str) -> bool:
        """Whether the write of this job was accepted."""
        return self.db.execute("SELECT 1 FROM writes WHERE job = ? AND accepted", (job,)).fetchone() is not None

    def admit(self, stock: str, fence: int) -> bool:
        """The check and the note of the fence, in one statement."""
        update = "UPDATE stocks SET highest_fence = ? WHERE name = ? AND highest_fence <= ?"
        return self.db.execute(update, (fence, stock, fence)).rowcount == 1

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """IMMEDIATE: it has the file for itself from its beginning."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # --- for the page ---

    def amounts(self) -> dict[str, tuple[int, int]]:
        """For each stock: its amount, and how many writes were accepted. If no update is lost, they are the same."""
        query = """SELECT name, amount, (SELECT count(*) FROM writes WHERE stock = name AND accepted) FROM stocks"""
        return {name: (amount, count) for name, amount, count in self.db.execute(query)}

    def refused(self) -> int:
        """How many writes were refused."""
        (count,) = self.db.execute("SELECT count(*) FROM writes WHERE NOT accepted").fetchone()
        return int(count)

    def last_writes(self, count: int, *, accepted: bool) -> list[dict[str, Any]]:
        """The last writes that were accepted, or refused; the latest first."""
        columns = ("time", "stock", "worker", "amount", "fence", "highest_fence")
        query = f"SELECT {', '.join(columns)} FROM writes WHERE accepted = ? ORDER BY id DESC LIMIT ?"  # noqa: S608
        return [dict(zip(columns, row, strict=True)) for row in self.db.execute(query, (accepted, count))]
