"""What a program may do with a lock that it holds, on the server in memory."""

import asyncio
import dataclasses
import gc
import json
import threading
import unittest
import weakref
from unittest import mock

import redis
from stage import OnFake, wait_for

from redis_lock_client import (
    AsyncLock,
    Deadlock,
    HoldToken,
    Lock,
    LockError,
    LockLost,
    LockNotAcquired,
    _common,
    _engine,
    _own,
    _tasks,
    _threads,
    _transport,
    _waiting,
    locked,
)

HOUR = 3600


class HoldTest(OnFake):
    def setUp(self):
        super().setUp()
        self.told = []

    def lock(self, **arguments):
        return Lock(self.client, "k", lease=HOUR, on_trouble=self.told.append, **arguments)

    def held(self, **arguments):
        lock = self.lock(**arguments)
        self.assertTrue(lock.acquire())
        return lock

    def info(self, field):
        return self.client.execute_command("LOCK.INFO", "k")["holders"][0][field]

    # --- max ---

    def test_work_that_never_ends_loses_its_lock_at_max_and_the_next_owner_has_it(self):
        lock = self.held(max=2 * HOUR)
        for passed in (1500, 3000, 4500, 6000):
            self.fake.advance(1500)
            left = 2 * HOUR - passed
            wait_for(lambda left=left: lock.valid_for > min(HOUR - 1500, left - 60))
            self.assertLessEqual(lock.valid_for, left)
        wait_for(lambda: self.info("ttl_ms") < 1000 * (1200 + 60))
        self.fake.advance(1201)
        self.assertTrue(lock.lost)
        wait_for(lambda: self.told)
        self.assertRegex(str(self.told[0]), "max is over")
        self.fake.advance(60)
        with Lock(self.client, "k", wait=0) as other:
            self.assertGreater(other.fence, lock.fence)
        self.assertRaises(LockLost, lock.release)

    def test_a_max_below_the_lease_is_refused(self):
        for wrong in (HOUR - 1, 0, -1, float("inf"), float("nan")):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "max must be at least the lease"):
                Lock(self.client, "k", lease=HOUR, max=wrong)

    # --- letting go ---

    def test_a_lock_that_is_released_after_a_time_keeps_others_out_until_then(self):
        with self.lock() as lock:
            lock.release_after(10 * HOUR)
            self.assertEqual(lock.valid_for, 0)
            self.assertFalse(lock.check())
        self.fake.advance(9.9 * HOUR)
        self.assertFalse(Lock(self.client, "k", wait=0).acquire())
        self.fake.advance(0.2 * HOUR)
        self.assertTrue(Lock(self.client, "k", wait=0).acquire())
        self.assertRaises(LockError, lock.release_after, 1)

    def test_a_lost_lock_cannot_be_let_go(self):
        for let_go in (lambda lock: lock.release_after(1), lambda lock: lock.detach()):
            with self.lock() as lock:
                self.fake.lose("k")
                self.assertRaises(LockLost, let_go, lock)

    # --- handing over ---

    def test_who_adopts_a_lock_has_it_and_the_giver_writes_no_more(self):
        giver = self.held(note="begun")
        fence, owner = giver.fence, giver.owner
        token = giver.detach()
        self.assertEqual(token, HoldToken("k", owner, fence, HOUR))
        with Lock.from_token(self.client, token, note="taken over") as adopted:
            self.assertEqual(adopted.owner, owner)
            self.assertGreater(adopted.fence, fence)
            self.assertEqual(self.info("note"), "taken over")
            self.assertEqual(adopted.guard("SET", "data", "new"), "OK")
            late = self.client.execute_command("LOCK.GUARD", "k", owner, fence, "SET", "data", "late")
            self.assertIsNone(late)
            self.assertEqual(self.client.get("data"), "new")
            with self.assertRaises(LockLost), Lock.from_token(self.client, token):
                self.fail("two have it")
            self.fake.advance(1500)
            wait_for(lambda: adopted.valid_for > HOUR - 1400)
        self.assertEqual(self.client.exists("k"), 0)

    def test_a_lost_lock_is_kept_for_nobody(self):
        lock = self.held(max=1.2 * HOUR)
        self.fake.advance(1500)
        wait_for(lambda: lock.valid_for > HOUR - 1000)
        self.fake.advance(1.2 * HOUR - 1490)
        self.assertTrue(lock.lost)
        self.assertEqual(self.client.exists("k"), 1)
        self.assertRaises(LockLost, lock.release_after, 10 * HOUR)
        self.assertEqual(self.client.exists("k"), 0)

    def test_a_lock_that_could_not_be_let_go_ends_in_the_background(self):
        def has_ended():
            return self.client.exists("k") == 0

        def is_to_end():
            return self.info("ttl_ms") > 9 * HOUR * 1000

        for let_go, is_so in ((lambda lock: lock.release_after(10 * HOUR), is_to_end), (Lock.detach, has_ended)):
            lock = self.held()
            self.fake.set_down()
            self.assertRaises(redis.ConnectionError, let_go, lock)
            self.fake.set_down(False)
            wait_for(is_so)
            self.fake.lose("k")

    def test_a_lock_that_ended_as_it_should_before_it_was_asked_again_was_not_lost(self):
        async def answer_late(*_):
            self.fake.advance(2)
            return [None], True

        for seconds in (1, 3):
            lock = self.held()
            with mock.patch.object(lock._hold, "ask_twice", answer_late):
                if seconds == 1:
                    lock.release_after(seconds)
                else:
                    self.assertRaises(LockLost, lock.release_after, seconds)
            self.fake.lose("k")

    def test_a_lock_whose_fence_was_raised_without_an_answer_is_let_go_or_released(self):
        reply, to_lose = _threads.ThreadRequest.reply, []

        async def lose(request, limit):
            answer = await reply(request, limit)
            if to_lose:
                raise to_lose.pop()
            return answer

        for many in (1, 2):
            lock = self.held()
            lock._hold.unanswered = True  # a renewal may be read late
            to_lose += [redis.TimeoutError()] * many
            with mock.patch.object(_threads.ThreadRequest, "reply", lose):
                if many == 2:
                    self.assertRaises(redis.TimeoutError, lock.detach)
                else:
                    with Lock.from_token(self.client, lock.detach()) as adopted:
                        self.assertTrue(adopted.check())
            self.assertEqual(to_lose, [])
            wait_for(lambda: self.client.exists("k") == 0)

    def test_an_owner_has_no_key_again_before_the_end_of_its_former_lock_is_confirmed(self):
        ends = (lambda lock: lock.release(), lambda lock: lock.release_after(600), lambda lock: lock.detach())
        with Lock(self.client, "outer", lease=HOUR) as outer:
            for end in ends:
                lock = self.held(within=outer)
                self.fake.set_down(True)
                self.assertRaises(redis.RedisError, end, lock)
                with self.assertRaisesRegex(redis.RedisError, "has not confirmed"):
                    self.lock(within=outer, wait=0).acquire()
                self.fake.set_down(False)
                with self.lock(within=outer, wait=60) as again:
                    self.assertFalse(lock._hold.owes)
                    self.assertTrue(again.check())

    def test_a_token_whose_lease_is_over_is_void(self):
        token = self.held().detach()
        self.fake.advance(HOUR + 1)
        self.assertRaises(LockLost, Lock.from_token(self.client, token).acquire)
        self.assertRaises(TypeError, Lock.from_token, self.client, "token")
        self.assertRaises(ValueError, Lock.from_token, self.client, token, within=self.held())

    def test_a_token_of_a_key_of_bytes_goes_into_json(self):
        for key in (b"plain", b"\xff\x00\xc3\xa9", "h\u00e9", "\U0001f512"):
            lock = Lock(self.client, key)
            lock.acquire()
            message = json.dumps(dataclasses.asdict(lock.detach()))
            with self.subTest(key), Lock.from_token(self.client, HoldToken(**json.loads(message))) as adopted:
                self.assertEqual(adopted._spec.names, lock._spec.names)
                self.assertTrue(adopted.check())

    def test_nobody_waits_for_a_token_beyond_its_lease(self):
        for wait in (None, 3 * HOUR):
            token = self.held().detach()
            self.fake.set_down()
            self.told.clear()
            found = []

            def take_over(token=token, wait=wait, found=found):
                try:
                    Lock.from_token(self.client, token, wait=wait, on_trouble=self.told.append).acquire()
                except redis.ConnectionError as error:
                    found.append(error)

            waits = threading.Thread(target=take_over, daemon=True)
            waits.start()
            wait_for(lambda: self.told)
            self.fake.advance(HOUR + 60)
            waits.join(60)
            self.assertFalse(waits.is_alive())
            self.assertEqual(len(found), 1)
            self.fake.set_down(False)

    def test_an_interrupted_take_over_gives_the_lock_back(self):
        token = self.held().detach()

        reply, first = _threads.ThreadRequest.reply, [1]

        async def interrupt(request, limit):
            if not first:
                return await reply(request, limit)
            first.clear()
            wait_for(lambda: self.info("fence") > token.fence)
            raise KeyboardInterrupt

        adopted = Lock.from_token(self.client, token)
        with mock.patch.object(_threads.ThreadRequest, "reply", interrupt):
            self.assertRaises(KeyboardInterrupt, adopted.acquire)
        wait_for(lambda: self.client.exists("k") == 0)

    def test_a_cancelled_take_over_gives_back_what_it_has_and_no_more(self):
        async def play():
            client = self.fake.async_client()

            async def cancel(token, what, until):
                lock = AsyncLock.from_token(client, token)
                taking = asyncio.create_task(lock.acquire())
                with mock.patch.object(*what, hang):
                    await asyncio.to_thread(wait_for, until)
                    taking.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await taking
                await asyncio.to_thread(wait_for, lambda: lock._hold.server is None)

            async def hang(*_, **__):
                seen.append(1)
                await asyncio.Event().wait()

            async def detached():
                seen.clear()
                lock = AsyncLock(client, "k", lease=HOUR)
                await lock.acquire()
                return await lock.detach()

            seen, reply = [], (_tasks.TaskRequest, "reply")
            # It was taken over, and the reply was not read.
            token = await detached()
            await cancel(token, reply, lambda: self.info("fence") > token.fence)
            self.assertEqual(self.client.exists("k"), 0)
            # Nothing was sent: the token is good.
            token = await detached()
            await cancel(token, (_tasks.TaskServer, "lend"), lambda: seen)
            async with AsyncLock.from_token(client, token) as first:
                # Another one has taken it over before.
                seen.clear()
                await cancel(token, reply, lambda: seen)
                self.assertTrue(await first.check())
            await client.aclose()

        asyncio.run(play())

    def test_shares_and_several_keys_are_not_handed_over(self):
        for lock in (
            Lock(self.client, "s", limit=2),
            Lock(self.client, ["{a}1", "{a}2"]),
            Lock(self.client, "m", lease=30, max=30),
        ):
            with lock, self.assertRaisesRegex(LockError, "cannot be handed over"):
                lock.detach()

    # --- ending ---

    def test_a_lost_lock_that_nobody_releases_leaves_its_server(self):
        def lose(lock):
            server = lock._hold.server
            self.assertEqual(server.users, 1)
            self.fake.lose("k")
            return server

        lock = self.held()
        server = lose(lock)
        wait_for(lambda: server.users == 0)
        self.assertRaises(LockLost, lock.set_note, "late")
        self.assertFalse(lock.check())
        self.assertEqual(server.users, 0)
        self.assertRaises(LockLost, lock.release)
        self.assertEqual(server.users, 0)

        async def play():
            async_lock = AsyncLock(self.fake.async_client(), "k", lease=HOUR)
            await async_lock.acquire()
            server = lose(async_lock)
            self.assertTrue(await async_lock.wait_lost(60))
            self.assertEqual(server.users, 0)

        asyncio.run(play())

    @mock.patch.object(_transport, "ANSWER", HOUR)
    @mock.patch.object(_engine, "BLOCK", HOUR)
    @mock.patch.object(_waiting, "NOTIFY_QUEUE", HOUR)
    def test_a_wait_is_ended_by_another_thread(self):
        self.fake.take("k")
        for most in (0, 32):
            for thread_local in (False, True):
                with self.subTest((most, thread_local)):
                    lock, got = self.lock(max_blocking=most, thread_local=thread_local), []
                    waits = threading.Thread(target=lambda lock=lock, got=got: got.append(lock.acquire()), daemon=True)
                    waits.start()
                    wait_for(self.is_waited_for)
                    lock.stop_waiting()
                    waits.join(60)
                    self.assertEqual(got, [False])
                    self.assertTrue(thread_local or lock._hold.owed)  # it has left, and not let its place end
                    wait_for(lambda: not self.is_waited_for())
                    with self.assertRaisesRegex(LockNotAcquired, "the wait was ended"), lock:
                        self.fail("it waits no more")
        self.assertEqual(self.told, [])

    @mock.patch.object(_common, "PAUSE_MAX", HOUR)
    @mock.patch.object(_common, "PAUSE_MIN", HOUR)
    def test_a_pause_is_ended_by_another_thread_and_what_is_held_stays(self):
        with self.lock() as held:
            held.stop_waiting()
            self.assertTrue(held.check())
        self.assertFalse(held.acquire())
        self.fake.set_down()
        lock, got = self.lock(), []
        waits = threading.Thread(target=lambda: got.append(lock.acquire()), daemon=True)
        waits.start()
        wait_for(lambda: self.told)
        lock.stop_waiting()
        waits.join(60)
        self.assertEqual(got, [False])
        self.assertRaises(LockNotAcquired, lock.lead, lambda _: 1)

    # --- by oneself ---

    def test_a_wait_for_ones_own_lock_is_refused_at_once(self):
        with self.lock():
            for arguments in ({}, {"wait": HOUR}, {"shared": True}):
                with self.subTest(arguments), self.assertRaisesRegex(Deadlock, "wait for itself"):
                    Lock(self.client, "k", **arguments).acquire()
            self.assertFalse(Lock(self.client, "k", wait=0).acquire())
            self.assertFalse(Lock(self.client, "k", blocking_timeout=0.01).acquire())
        self.assertTrue(Lock(self.client, "k").acquire())

    def test_a_wait_for_another_threads_lock_is_no_wait_for_oneself(self):
        lock, got = self.held(), []
        other = threading.Thread(target=lambda: got.append(Lock(self.client, "k").acquire()))
        other.start()
        wait_for(self.is_waited_for)
        lock.release()
        other.join()
        self.assertEqual(got, [True])

    def test_a_reader_may_read_again_and_a_lock_with_an_end_is_waited_for(self):
        with Lock(self.client, "k", shared=True), Lock(self.client, "k", shared=True):
            pass
        shares = [Lock(self.client, "s", limit=3, take=take) for take in (2, 1)]
        with shares[0], shares[1], self.assertRaisesRegex(Deadlock, "wait for itself"):
            Lock(self.client, "s", limit=3).acquire()
        limited = self.lock(max=HOUR)

        def let_time_pass():
            wait_for(self.is_waited_for)
            self.fake.advance(HOUR + 60)

        clock = threading.Thread(target=let_time_pass)
        with self.assertRaises(LockLost), limited:
            clock.start()
            self.assertTrue(Lock(self.client, "k").acquire())
            clock.join()
            self.assertTrue(limited.lost)

    def test_what_a_thread_holds_is_not_gone_through_with_each_lock(self):
        class Reference(weakref.ref):
            asked = 0

            def __call__(self):
                Reference.asked += 1
                return super().__call__()

        with mock.patch.object(_own.weakref, "ref", Reference):
            locks = [Lock(self.client, f"k{number}") for number in range(300)]
            for lock in locks:
                lock.acquire()
            for lock in locks:
                lock.release()
        self.assertLess(Reference.asked, 30 * len(locks))

    def test_tasks_that_follow_each_other_leave_nothing(self):
        async def play():
            client, depths = self.fake.async_client(), []

            async def work(left):
                async with AsyncLock(client, f"k{left}"):
                    depths.append(depth(_own._book.get()))
                return asyncio.create_task(work(left - 1)) if left else None

            task = asyncio.create_task(work(20))
            while task is not None:
                task = await task
                gc.collect()
            self.assertLess(max(depths), 10)

        def depth(book):
            return 1 + depth(book.parent) if book else 0

        asyncio.run(play())

    def test_a_reentrant_lock_is_released_with_the_outermost_block(self):
        def again(depth):
            with Lock(self.client, "k", reentrant=True) as lock:
                self.assertEqual(self.info("writes"), 1)
                return {lock.fence} | (again(depth - 1) if depth else set())

        with Lock(self.client, "k", reentrant=True) as lock:
            with lock:
                self.assertEqual(again(3), {lock.fence})
            self.assertTrue(lock.check())
            self.assertRaisesRegex(Deadlock, "wait for itself", Lock(self.client, "k").acquire)
            found = []
            other = Lock(self.client, "k", reentrant=True, wait=0)
            thread = threading.Thread(target=lambda: found.append(other.acquire()))
            thread.start()
            thread.join()
            self.assertEqual(found, [False])
        self.assertEqual(self.client.exists("k"), 0)

    def test_a_reentrant_lock_that_is_lost_is_not_entered_again(self):
        with self.assertRaises(LockLost), Lock(self.client, "k", reentrant=True) as lock:
            with self.assertRaises(LockLost), lock:
                self.fake.lose("k")
                self.assertTrue(lock.wait_lost(60))
            self.assertRaises(LockLost, Lock(self.client, "k", reentrant=True).acquire)

    def test_an_inner_object_that_is_gone_ends_no_outer_lock(self):
        outer = self.held(reentrant=True)
        with self.lock(reentrant=True):
            pass
        gc.collect()
        self.fake.advance(1500)
        wait_for(lambda: outer.valid_for > HOUR - 1400)
        inner = self.lock(reentrant=True)
        with inner:
            pass
        self.assertRaises(LockError, inner.release)  # it has nothing to release any more
        self.assertTrue(outer.check())
        # The first object goes first.
        inner.acquire()
        outer.release()
        outer = None
        gc.collect()
        self.fake.advance(1500)
        wait_for(lambda: inner.valid_for > HOUR - 1400)
        inner.release()
        self.assertEqual(self.client.exists("k"), 0)

    def test_an_inner_object_that_is_dropped_ends_no_outer_lock(self):
        outer = self.held(reentrant=True)
        self.lock(reentrant=True).acquire()
        gc.collect()
        self.fake.advance(1500)
        wait_for(lambda: outer.valid_for > HOUR - 1400)

    def test_a_lock_without_a_block_is_waited_for_since_others_may_release_it(self):
        lock = self.held()

        def release():
            wait_for(self.is_waited_for)
            lock.release()

        other = threading.Thread(target=release)
        other.start()
        self.assertTrue(Lock(self.client, "k").acquire())
        other.join()

    # --- notes, and a decorator ---

    def test_a_note_says_how_far_the_work_is(self):
        lock = self.held(note="begun")
        self.assertEqual(self.info("note"), "begun")
        lock.set_note("half done")
        self.assertEqual(self.info("note"), "half done")
        self.fake.lose("k")
        self.assertRaises(LockLost, lock.set_note, "all done")
        self.assertTrue(lock.lost)

    def test_a_decorated_function_runs_under_the_lock(self):
        @locked(self.client, lambda number, *, name: f"{name}:{number}", wait=0)
        def work(number, *, name):
            self.assertRaises(LockNotAcquired, work, number, name=name)
            return self.client.exists(f"{name}:{number}")

        with self.assertRaisesRegex(TypeError, "generator"):
            locked(self.client, "k")(lambda: (yield))
        self.assertEqual(work.__name__, "work")
        self.assertEqual(work(7, name="job"), 1)
        self.assertEqual(self.client.exists("job:7"), 0)

    # --- asyncio ---

    def test_tasks_have_it_all(self):
        async def main():
            client = self.fake.async_client()
            lock = AsyncLock(client, "k", lease=HOUR, reentrant=True)
            async with lock, AsyncLock(client, "k", lease=HOUR, reentrant=True):
                with self.assertRaisesRegex(Deadlock, "wait for itself"):
                    await AsyncLock(client, "k").acquire()
                await lock.set_note("by a task")
                self.assertEqual(self.info("note"), "by a task")
                # A task of its own is another one.
                wait = asyncio.create_task(AsyncLock(client, "k").acquire())
                await asyncio.to_thread(wait_for, self.is_waited_for)
            self.assertTrue(await wait)
            self.fake.lose("k")

            giver = AsyncLock(client, "k")
            await giver.acquire()
            async with AsyncLock.from_token(client, await giver.detach()) as adopted:
                self.assertGreater(adopted.fence, giver.fence)
                late = self.client.execute_command("LOCK.GUARD", "k", giver.owner, giver.fence, "SET", "data", "late")
                self.assertIsNone(late)
                await adopted.release_after(HOUR)
            self.assertFalse(await AsyncLock(client, "k", wait=0).acquire())
            self.fake.lose("k")

            @locked(client, "job")
            async def work():
                return await client.exists("job")

            self.assertEqual(await work(), 1)
            self.assertEqual(await client.exists("job"), 0)
            limited = AsyncLock(client, "k", lease=HOUR, max=HOUR)
            await limited.acquire()
            self.fake.advance(HOUR + 1)
            self.assertTrue(await limited.wait_lost(60))
            self.fake.advance(60)
            async with AsyncLock(client, "k", wait=0) as other:
                self.assertGreater(other.fence, limited.fence)
                with self.assertRaises(LockLost):
                    await limited.guard("SET", "data", "late")
            await client.aclose()

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
