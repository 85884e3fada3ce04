"""The event loop, in a thread of its own, that serves the blocking locks over a quorum."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Generic

from redis_lock_client._common import ANSWER, IDLE, mutex
from redis_lock_client._tasks import Bell, ring
from redis_lock_client._transport import T, servers


class Call(Generic[T]):
    """Something to do in the event loop, and its result."""

    def __init__(self, steps: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.steps = steps
        self.done = threading.Event()
        self.task: asyncio.Task[None] | None = None
        self.background: Background | None = None
        self.submitted = self.cancelled = False
        self.result: T
        self.error: BaseException | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        self.task = loop.create_task(self.run())
        return self.task

    async def run(self) -> None:
        try:
            if self.cancelled:
                raise asyncio.CancelledError  # noqa: TRY301
            self.result = await self.steps()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.error = error
        finally:
            self.done.set()

    def cancel(self) -> None:
        """In the event loop alone."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


class Background:
    """The event loop of the blocking locks of this process. It ends when they have left nothing to do."""

    current: ClassVar[Background | None] = None
    forked: ClassVar[list[Background]] = []  # a parent's: its objects must not be finalized in the child

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ready = threading.Event()
        self.calls: deque[Call[Any]] = deque()
        self.running: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=self.run, name="redis-lock quorum", daemon=True)
        self.loop: asyncio.AbstractEventLoop
        self.bell: Bell

    @classmethod
    def do(cls, steps: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs it in the loop, and waits for it. An interruption cancels it, and waits for its end as well."""
        call = Call(steps)
        try:
            background = cls.submit(call)
            background.wait(call)
        except BaseException:
            call.cancelled = True  # before it begins, or while it runs
            if call.background is not None and call.background.ready.wait(ANSWER):
                with contextlib.suppress(RuntimeError):
                    call.background.loop.call_soon_threadsafe(call.cancel)
                if call.submitted:
                    call.background.wait(call)
            raise
        if call.error is not None:
            raise call.error
        return call.result

    @classmethod
    def submit(cls, call: Call[Any]) -> Background:
        with mutex:
            background = cls.current
            if background is not None and background.pid != os.getpid():
                cls.forked.append(background)
                background = None
            if background is None:
                background = Background()
                background.thread.start()
                cls.current = background
            call.background = background
            background.calls.append(call)
            call.submitted = True
        background.ready.wait()
        background.loop.call_soon_threadsafe(background.bell.set)
        return background

    def wait(self, call: Call[Any]) -> None:
        while not call.done.wait(5):
            if not self.thread.is_alive():
                raise RuntimeError("the event loop of the locks has ended")

    def run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self.serve())

    async def serve(self) -> None:
        self.loop, self.bell = asyncio.get_running_loop(), Bell()
        self.ready.set()
        try:
            while True:
                self.bell.clear()
                while self.calls:
                    task = self.calls.popleft().begin(self.loop)
                    self.running.add(task)
                    task.add_done_callback(self.running.discard)
                with mutex:
                    ours = (self.pid, id(self.loop))
                    if not (self.running or self.calls or any(key[:2] == ours for key in servers)):
                        self.retire()
                        return
                await ring(self.bell, IDLE / 2)
        finally:
            self.retire()

    def retire(self) -> None:
        """The next call makes another one."""
        with mutex:
            if Background.current is self:
                Background.current = None

    @classmethod
    def shut_down(cls) -> None:
        """At the end of the process: no lock is renewed any more."""
        background = cls.current
        if background is not None and background.pid == os.getpid() and background.ready.wait(1):

            def stop() -> None:
                for task in asyncio.all_tasks(background.loop):
                    task.cancel()

            with contextlib.suppress(RuntimeError):
                background.loop.call_soon_threadsafe(stop)
            background.thread.join(1)


atexit.register(Background.shut_down)
