"""What the clients of faults have in common: the lines that they write and read.

A client asks what to do (`next`), and is answered by a line of JSON: a lock to take, how long to hold it, how long to
work before each write. It says when it holds (`held`), writes (`write`, answered `yes` or `no`), is told of a loss
(`lost`), and releases. Moments are microseconds of CLOCK_BOOTTIME. A write says until when the lock is surely held.
"""

import itertools
import json
import sys
import time


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def told():
    """The words of the next line; none at the end."""
    return sys.stdin.readline().split()


class Agent:
    """A subclass knows a library: `open`, `take`, `until`, `release`, and `guard` where it is asked for.

    `take` and `until` say until when the lock is surely held; None: it is not held.
    """

    def __init__(self, config):
        self.config = config
        self.fences = []
        self.owner = None

    def run(self):
        self.open()
        for number in itertools.count(1):
            say("next")
            line = sys.stdin.readline()
            task = json.loads(line) if line else {"do": "end"}
            if task["do"] == "end":
                return
            if task["do"] == "rest":
                time.sleep(0.2)
            else:
                self.once(number, task)

    def once(self, number, task):
        self.task = task
        asked = now()
        try:
            until = self.take()
        except Exception as error:  # whatever the library raises
            say("failed", why=self.name_of(error))
            time.sleep(0.1)
            return
        if until is None:
            say("failed", why="in use")
            return
        at = now()
        say("held", hold=number, owner=self.owner, fences=self.fences, asked=asked, at=at, until=until)
        try:
            self.work(number, at + task["hold_ms"] * 1000)
        except Exception as error:  # the same
            say("trouble", why=self.name_of(error))
        self.look(number)
        say("releasing", hold=number, at=now())
        try:
            say("released", hold=number, ok=self.release() is not False)
        except Exception as error:  # the same
            say("trouble", why=self.name_of(error))

    def look(self, number):
        """Says whether a library believes in a lock after its validity."""

    def name_of(self, error):
        """In words."""
        return type(error).__name__

    def work(self, number, ends):
        """Writes until then, or until the lock is lost."""
        parent = None
        for step in itertools.count(1):
            if now() >= ends:
                return
            self.look(number)
            asked = now()
            until = self.until()
            checked = now()
            if until is None or checked >= until:
                say("lost", hold=number, at=asked)
                return
            time.sleep(self.task["work_ms"] / 1000)
            if self.task["guarded"]:
                parent = self.update(number, f"{self.config['client']}.{number}.{step}", parent)
                if parent is None:
                    return
            # The write is sent after the pause: the check may be old by then, as with any program.
            say("write", hold=number, asked=asked, at=checked, until=until)
            if told() != ["yes"]:
                return

    def update(self, number, name, parent):
        """Appends to the data beside the lock, under its guard, what was computed from the last entry."""
        data = f"data:{self.task['keys'][0]}"
        if parent is None:
            last = self.guard("LINDEX", data, "-1")
            # redis-cli prints an empty line for null.
            parent = (last.decode() if isinstance(last, bytes) else last).split(":")[0] if last else "-"
        say("guarding", hold=number, name=name)
        self.guard("RPUSH", data, f"{name}:{parent}:{self.fences[0]}")
        say("guarded")
        return name
