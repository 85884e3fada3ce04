"""What the clients of the scene quorum of faults have in common: the lines that they write and read.

The client asks what to do (`next`), and is answered `go HOLD_MS WORK_MS` or `end`. It takes the lock, and holds it for
so long. Meanwhile, again and again, it checks that it is still valid, works, and writes to the resource: a line that is
answered `yes` or `no`. Then it releases. Moments are microseconds of CLOCK_BOOTTIME.
"""

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
    """A subclass knows a library: `open`, `acquire`, `check`, `release`.

    `acquire` and `check` say when validity ends; None: the lock is not held.
    """

    fence = None

    def __init__(self, config):
        config = json.loads(config)
        self.urls, self.key = config["urls"], config["key"]
        self.lease_us, self.wait_us = config["lease_ms"] * 1000, config["wait_ms"] * 1000
        self.number = 0

    def limits(self):
        """The part of a lease that one server may take to answer: a twentieth."""
        seconds = self.lease_us / 20e6
        return {"socket_timeout": seconds, "socket_connect_timeout": seconds}

    def run(self):
        self.open()
        while True:
            say("next")
            match told():
                case ["go", hold_ms, work_ms]:
                    self.once(int(hold_ms) * 1000, int(work_ms) / 1000)
                case _:
                    return

    def once(self, hold_us, work):
        try:
            self.until = self.acquire()
        except Exception as error:  # whatever the library raises
            say("failed", why=type(error).__name__)
            return
        if self.until is None:
            say("failed", why="in use")
            return
        self.number += 1
        start = now()
        say("held", hold=self.number, fence=self.fence, at=start, until=self.until)
        self.work(start + hold_us, work)
        say("releasing", hold=self.number, at=now(), until=self.until)
        try:
            say("released", ok=self.release() is not False)
        except Exception:
            say("released", ok=False)

    def work(self, ends, pause):
        """Writes until then, or until validity is over."""
        while now() < ends:
            checked = now()
            until = self.check()
            if until is None or now() >= until:
                say("lost", hold=self.number, at=checked)
                return
            self.until = until
            time.sleep(pause)
            say("write", hold=self.number, until=self.until)
            if told() != ["yes"]:
                return
