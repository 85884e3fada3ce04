"""Leading, and what a listener hears, on a server in memory."""

import asyncio
import contextlib
import functools
import sys
import threading
import unittest

import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from stage import OnFake, until, wait_for

from redis_lock_client import AsyncLock, Deadlock, Listener, Lock, LockError, LockLost, LockNotAcquired, recorded

HOUR = 3600


class Heard(Listener):
    """Writes down what it hears, and fails after that."""

    def __init__(self):
        self.all = []

    def hear(self, what, seconds):
        self.all.append((what, seconds))
        raise RuntimeError("the listener's own")

    def waited(self, seconds):
        self.hear("waited", seconds)

    def refused(self, seconds):
        self.hear("refused", seconds)

    def held(self, seconds):
        self.hear("held", seconds)

    def lost(self, seconds):
        self.hear("lost", seconds)

    def renewal_failed(self):
        self.hear("renewal_failed", 0)

    @property
    def names(self):
        return [what for what, _ in self.all]


class FiguresTest(OnFake):
    def setUp(self):
        super().setUp()
        self.heard = Heard()

    def lock(self, **options):
        return Lock(self.client, "k", **{"lease": HOUR, "listener": self.heard, **options})

    def test_a_listener_hears_what_locks_do_and_may_fail(self):
        with self.lock():
            self.assertFalse(self.lock(wait=0).acquire())
            self.fake.advance(HOUR / 4)
        self.assertEqual(self.heard.names, ["waited", "refused", "held"])
        self.assertGreaterEqual(self.heard.all[-1][1], HOUR / 4)
        with self.assertRaises(LockLost), self.lock() as lock:
            self.fake.lose("k")
            wait_for(lambda: lock.lost)
        wait_for(lambda: self.heard.names[3:] == ["waited", "lost"])

    def test_what_is_let_go_or_dropped_was_held_and_a_loss_that_the_release_finds_is_one(self):
        lock = self.lock()
        lock.acquire()
        self.client.execute_command("LOCK.BREAK", "k")
        self.assertRaises(LockLost, lock.release)
        lock.acquire()
        lock.release_after(1)
        self.assertEqual(self.heard.names, ["waited", "lost", "waited", "held"])
        self.fake.advance(2)
        self.lock().acquire()
        self.fake.advance(HOUR / 2)
        wait_for(lambda: self.heard.names[4:] == ["waited", "held"])

    def test_a_renewal_that_fails_is_told(self):
        with self.lock() as lock:
            self.fake.set_down(True)
            self.fake.advance(HOUR / 2)
            wait_for(lambda: "renewal_failed" in self.heard.names)
            self.fake.set_down(False)
            wait_for(lambda: lock.valid_for > HOUR / 2)

    def test_tasks_are_told_as_threads_are_also_by_a_coroutine(self):
        async def play():
            told = []

            async def tell(trouble):
                told.append(trouble.kind)

            client = self.fake.async_client()
            lock = AsyncLock(client, "k", lease=HOUR, on_trouble=tell, listener=self.heard)
            with self.assertRaises(LockLost):
                async with lock:
                    self.fake.lose("k")
                    self.assertTrue(await lock.wait_lost(60))
            async with lock:
                self.assertFalse(await AsyncLock(client, "k", wait=0, listener=self.heard).acquire())
            self.assertEqual(self.heard.names, ["waited", "lost", "waited", "refused", "held"])
            self.fake.set_down()
            with self.assertRaises(redis.ConnectionError):
                await AsyncLock(client, "k", wait=0, on_trouble=tell).acquire()
            await asyncio.to_thread(wait_for, lambda: told == ["lost", "unreachable"])

        asyncio.run(play())

    def test_a_listener_that_ends_its_thread_is_called_again(self):
        told = []

        def end(trouble):
            told.append(trouble.kind)
            sys.exit(1)

        for name in ("a", "b"):
            with self.assertRaises(LockLost), Lock(self.client, name, on_trouble=end) as lock:
                self.fake.lose(name)
                wait_for(lambda lock=lock: lock.lost)
            wait_for(lambda name=name: len(told) == "ab".index(name) + 1)

    def test_a_listener_that_is_interrupted_leaves_no_lock(self):
        self.heard.waited = lambda _: sys.exit(1)
        lock = self.lock()
        self.assertRaises(SystemExit, lock.acquire)
        self.assertEqual(self.client.exists("k"), 0)

    def test_a_cancelled_error_of_a_listener_ends_no_renewal(self):
        async def play():
            def cancel(_):
                raise asyncio.CancelledError

            self.heard.lost = cancel
            client = self.fake.async_client()
            bad, good = (AsyncLock(client, name, lease=HOUR, listener=self.heard) for name in ("bad", "good"))
            self.assertTrue(await bad.acquire())
            self.assertTrue(await good.acquire())
            self.fake.lose("bad")
            self.assertTrue(await bad.wait_lost(60))
            self.fake.advance(HOUR / 2)
            await until(lambda: good.valid_for > HOUR / 2 + 60)
            await good.release()

        self.heard.hear = lambda *_: None
        asyncio.run(play())

    def test_opentelemetry_has_the_figures_without_the_key(self):
        reader = InMemoryMetricReader()
        listener = recorded(MeterProvider([reader]).get_meter("app"))
        with self.lock(listener=listener):
            self.assertFalse(self.lock(listener=listener, wait=0).acquire())
        with self.assertRaises(LockLost), self.lock(listener=listener) as lock:
            self.fake.set_down(True)
            self.fake.advance(HOUR / 2)
            wait_for(lambda: self.points(reader).get("redis_lock.renewal_failed"))
            self.fake.set_down(False)
            self.fake.lose("k")
            wait_for(lambda: lock.lost)
        wait_for(lambda: "redis_lock.lost" in self.points(reader))
        found = self.points(reader)
        self.assertEqual(
            {name: found[f"redis_lock.{name}"] for name in ("waited", "refused", "held", "lost")},
            {"waited": 2, "refused": 1, "held": 1, "lost": 1},
        )
        # A meter's own bounds are for milliseconds.
        [waited] = self.metrics(reader)["redis_lock.waited"].data.data_points
        self.assertEqual(waited.explicit_bounds[0], 0.001)

    def points(self, reader):
        """How often each figure was told."""
        metrics = self.metrics(reader)
        for metric in metrics.values():
            self.assertEqual([dict(point.attributes) for point in metric.data.data_points], [{}])
        points = {name: metric.data.data_points[0] for name, metric in metrics.items()}
        return {name: getattr(point, "count", None) or point.value for name, point in points.items()}

    def metrics(self, reader):
        data = reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return {metric.name: metric for metric in metrics}


class LeadTest(OnFake):
    def test_a_lost_term_is_followed_by_another_with_a_higher_number(self):
        terms = []

        def term(lock):
            terms.append(lock.fence)
            if len(terms) == 1:
                self.fake.lose("k")
                self.assertTrue(lock.wait_lost(60))
                return None
            return "done"

        self.assertEqual(Lock(self.client, "k").lead(term), "done")
        self.assertLess(terms[0], terms[1])
        self.assertEqual(self.client.exists("k"), 0)

    def test_the_work_may_write_in_vain_and_leads_again(self):
        terms = []

        def term(lock):
            terms.append(lock.fence)
            if len(terms) == 1:
                self.fake.lose("k")
            lock.guard("SET", "data", "mine")
            return len(terms)

        self.assertEqual(Lock(self.client, "k").lead(term), 2)

    def test_a_leader_whose_server_goes_away_steps_down_and_leads_again(self):
        terms = []

        def begin(lock):
            terms.append(lock.fence)
            if len(terms) == 1:
                self.fake.set_down()
                self.fake.advance(60)  # beyond its lease
            return None if len(terms) == 1 else "done"

        def term(lock):
            value = begin(lock)
            self.assertEqual(lock.lost, value is None)
            self.fake.set_down(False)
            return value

        async def term_of_task(lock):
            value = begin(lock)
            try:
                if value is None:
                    await asyncio.sleep(1_000)
            finally:
                self.fake.set_down(False)
            return value

        async def play():
            client = self.fake.async_client()
            self.assertEqual(await AsyncLock(client, "k").lead(term_of_task), "done")

        self.assertEqual(Lock(self.client, "k").lead(term), "done")
        self.assertLess(*terms)
        terms.clear()
        asyncio.run(play())
        self.assertLess(*terms)

    def test_another_error_or_another_lock_that_is_lost_ends_it(self):
        for error in (ValueError("the work's own"), LockLost("another lock")):

            def term(_, error=error):
                raise error

            with self.subTest(error), self.assertRaises(type(error)):
                Lock(self.client, "k").lead(term)
            self.assertEqual(self.client.exists("k"), 0)
        with Lock(self.client, "k"), self.assertRaises(LockNotAcquired):
            Lock(self.client, "k", wait=0).lead(lambda _: 1)

    def test_what_is_lost_before_a_term_begins_ends_it(self):
        lock = Lock(self.client, "k", reentrant=True)
        terms = []

        def term(inner):
            terms.append(inner.fence)
            self.fake.lose("k")
            inner.wait_lost(60)

        with self.assertRaises(LockLost), lock:
            lock.lead(term)
        self.assertEqual(len(terms), 1)

    def test_what_was_taken_over_does_not_lead(self):
        lock = Lock(self.client, "k")
        lock.acquire()
        with self.assertRaisesRegex(LockError, "has one term"):
            Lock.from_token(self.client, lock.detach()).lead(lambda _: 1)

    def test_between_terms_others_lead(self):
        seen = []
        stop = threading.Event()

        def term(name):
            seen.append(name)
            if seen.count("a") > 2 and seen.count("b") > 2:
                stop.set()
            return True if stop.is_set() else None

        threads = [
            threading.Thread(target=Lock(self.client, "k").lead, args=(lambda _, name=name: term(name),))
            for name in ("a", "b")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertTrue(stop.is_set())

    def test_a_task_whose_term_is_over_is_cancelled_before_the_next_begins(self):
        async def play():
            client = self.fake.async_client()
            inside, terms = 0, []

            async def term(lock):
                nonlocal inside
                inside += 1
                self.assertEqual(inside, 1)
                terms.append(lock.fence)
                try:
                    if len(terms) == 1:
                        self.fake.lose("k")
                        await asyncio.sleep(1_000)
                    return "done"
                finally:
                    await asyncio.sleep(0.05)
                    inside -= 1

            self.assertEqual(await AsyncLock(client, "k").lead(term), "done")
            self.assertLess(terms[0], terms[1])

        asyncio.run(play())

    def test_a_cancelled_leader_holds_until_its_work_has_ended(self):
        async def play(times):
            began, ended = asyncio.Event(), []

            async def term(_):
                began.set()
                try:
                    await asyncio.sleep(1_000)
                finally:
                    for _ in range(3):
                        with contextlib.suppress(asyncio.CancelledError):
                            await asyncio.sleep(0.05)
                    ended.append(self.client.exists("k"))

            leader = asyncio.ensure_future(AsyncLock(self.fake.async_client(), "k").lead(term))
            await began.wait()
            for _ in range(times):
                leader.cancel()
                await asyncio.sleep(0.01)
            with self.assertRaises(asyncio.CancelledError):
                await leader
            self.assertEqual(ended, [1])
            self.assertEqual(self.client.exists("k"), 0)

        for times in (1, 2):
            with self.subTest(times):
                asyncio.run(play(times))

    def test_a_term_may_enter_its_lock_again_and_is_told_if_not(self):
        async def play():
            client = self.fake.async_client()

            async def term(_, **options):
                async with AsyncLock(client, "k", **options):
                    return "again"

            with self.assertRaises(Deadlock):
                await AsyncLock(client, "k").lead(term)
            lock = AsyncLock(client, "k", reentrant=True)
            self.assertEqual(await lock.lead(functools.partial(term, reentrant=True)), "again")

        asyncio.run(play())

    def test_work_that_lets_its_lock_go_is_not_cancelled(self):
        async def play():
            async def term(lock):
                await lock.release_after(1)
                await asyncio.sleep(0.05)
                return "done"

            self.assertEqual(await AsyncLock(self.fake.async_client(), "k").lead(term), "done")

        asyncio.run(play())


if __name__ == "__main__":
    unittest.main()
