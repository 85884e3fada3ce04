"""Far servers, servers that hang, connections that die, and too few of them: on the REDIS_LOCK_PORTS."""

import asyncio
import contextlib
import json
import os
import resource
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import redis
import redis.asyncio
from stage import FOLDER, PORT, PORTS, OnServer, as_map, together, until, wait_for

from redis_lock_client import AsyncLock, Lock, LockLost, _tasks, _transport
from redis_lock_client.quorum import QuorumLock

COSTS = json.loads((FOLDER.parent / "costs.json").read_text())["python"]
MANY = 60
FAR = 0.1  # seconds in each direction: five renewals a second, if one follows the other


class NetworkTest(OnServer):
    def setUp(self):
        super().setUp()
        self.keys = [f"{self.key}:{number}" for number in range(MANY)]
        self.addCleanup(self.client.delete, *self.keys)

    def through(self, proxy, **options):
        return self.client_of(proxy.port, **options)

    # --- renewals of many locks ---

    def test_many_locks_of_a_far_server_are_kept_by_threads(self):
        client = self.through(self.proxy(delay=FAR))
        locks = [Lock(client, key, lease=9.0) for key in self.keys]
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda lock: lock.acquire(), locks))
            time.sleep(11)
            self.assertEqual(sum(lock.lost for lock in locks), 0)
            list(threads.map(self.release, locks))

    def test_many_locks_of_a_far_server_are_kept_by_tasks(self):
        proxy = self.proxy(delay=FAR)

        async def main():
            async with redis.asyncio.Redis(port=proxy.port) as client:
                locks = [AsyncLock(client, key, lease=9.0) for key in self.keys]
                await asyncio.gather(*(lock.acquire() for lock in locks))
                await asyncio.sleep(11)
                self.assertEqual(sum(lock.lost for lock in locks), 0)
                await asyncio.gather(*(lock.release() for lock in locks), return_exceptions=True)

        asyncio.run(main())

    def test_many_locks_of_far_servers_are_kept_by_a_quorum(self):
        clients = [self.through(self.proxy(delay=FAR, port=port)) for port in PORTS[:3]]
        locks = [QuorumLock(clients, key, lease=9.0) for key in self.keys]
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda lock: lock.acquire(), locks))
            time.sleep(11)
            self.assertEqual(sum(lock.lost for lock in locks), 0)
            list(threads.map(self.release, locks))

    def release(self, lock):
        """On a busy machine a far server may not answer in time."""
        with contextlib.suppress(redis.RedisError):
            lock.release()

    def test_what_is_due_goes_out_together(self):
        client = self.through(self.proxy())
        locks = [Lock(client, key, lease=3.0) for key in self.keys]
        exchange, together = _transport.Server.perform, []

        async def noted(server, due):
            together.append(len(due))
            await exchange(server, due)

        with mock.patch.object(_transport.Server, "perform", noted):
            for lock in locks:
                lock.acquire()
            (server,) = (one for one in _transport.servers.values() if one.source is client.connection_pool)
            for lock in locks:
                lock._hold.due = _transport.now()
                server.plan(lock._hold)
            wait_for(lambda: sum(together) >= MANY)
            self.assertGreater(max(together), 1)
            for lock in locks:
                lock.release()

    def test_the_agenda_holds_no_more_than_what_is_held(self):
        client = self.through(self.proxy())
        with Lock(client, self.key):
            for _ in range(1000):
                with Lock(client, self.other):
                    pass
            (server,) = (one for one in _transport.servers.values() if one.source is client.connection_pool)
            self.assertEqual(server.planned, 1)
            self.assertLess(len(server.agenda), 200)

    # --- connections ---

    def test_a_held_lock_outlives_the_servers_last_connection(self):
        client = self.through(self.proxy())
        with Lock(client, self.key, lease=2.0) as lock:
            with ThreadPoolExecutor(12) as threads:
                waits = [threads.submit(Lock(client, self.key, wait=3.0).acquire) for _ in range(12)]
                wait_for(lambda: self.waiting() == 12)
                limit = int(self.client.config_get("maxclients")["maxclients"])
                self.addCleanup(self.client.config_set, "maxclients", limit)
                self.client.config_set("maxclients", len(self.client.client_list()))
                self.assertEqual([wait.result() for wait in waits], [False] * 12)
            self.assertTrue(lock.check())
            self.assertFalse(lock.lost)

    @contextlib.contextmanager
    def no_connection_left(self):
        """Who closes one gets no other one."""
        limit = int(self.client.config_get("maxclients")["maxclients"])
        self.client.config_set("maxclients", 1)
        try:
            yield
        finally:
            self.client.config_set("maxclients", limit)

    def test_all_goes_over_the_renewers_connection_where_no_other_one_is_to_be_had(self):
        client = self.through(self.proxy())
        with Lock(self.client, self.key), Lock(client, self.other, lease=2.0) as lock:
            with self.no_connection_left():
                self.assertTrue(lock.check())
                self.assertEqual(lock.guard("ECHO", "written"), b"written")
                with Lock(client, self.keys[0], wait=0):
                    pass
                self.assertFalse(Lock(client, self.key, wait=5).acquire())
            self.assertFalse(lock.lost)

    def test_all_of_asyncio_goes_over_the_renewers_connection_where_no_other_one_is_to_be_had(self):
        wire = self.proxy()

        async def main():
            async with redis.asyncio.Redis(port=wire.port) as client, AsyncLock(client, self.other, lease=2.0) as lock:
                with self.no_connection_left():
                    self.assertTrue(await lock.check())
                    self.assertEqual(await lock.guard("ECHO", "written"), b"written")
                    async with AsyncLock(client, self.keys[0], wait=0):
                        pass
                    self.assertFalse(await AsyncLock(client, self.key, wait=5).acquire())
                    waiting = asyncio.create_task(AsyncLock(client, self.key).acquire())
                    await until(lambda: self.waiting() == 1)
                    waiting.cancel()
                    await until(lambda: self.waiting() == 0)
                self.assertFalse(lock.lost)

        with Lock(self.client, self.key):
            asyncio.run(main())

    def test_a_late_answer_costs_no_lock_where_no_other_connection_is_to_be_had(self):
        proxy = self.proxy()
        client = self.through(proxy)
        with Lock(client, self.key, lease=12.0) as lock, self.no_connection_left():
            extended = self.calls("extend")
            proxy.hold_next = b"LOCK.EXTEND"
            wait_for(lambda: proxy.hold_next is None)
            time.sleep(2.6)  # a renewal has two seconds
            proxy.held.set()
            wait_for(lambda: self.calls("extend") > extended + 1 or lock.lost)
            self.assertFalse(lock.lost)
            self.assertTrue(lock.check())

    def test_a_late_answer_costs_no_lock_of_asyncio_where_no_other_connection_is_to_be_had(self):
        wire = self.proxy()

        async def main():
            async with redis.asyncio.Redis(port=wire.port) as client, AsyncLock(client, self.key, lease=12.0) as lock:
                with self.no_connection_left():
                    extended = self.calls("extend")
                    wire.hold_next = b"LOCK.EXTEND"
                    await until(lambda: wire.hold_next is None)
                    await asyncio.sleep(2.6)
                    wire.held.set()
                    await until(lambda: self.calls("extend") > extended + 1 or lock.lost)
                    self.assertFalse(lock.lost)

        asyncio.run(main())

    def test_a_loop_that_is_blocked_before_it_asks_has_time_for_the_answer(self):
        exchange, answered = _tasks.TaskServer.exchange, []

        async def busy(*asked):
            asyncio.get_running_loop().call_soon(time.sleep, 3.2)  # a renewal has three seconds
            answered.append(False)
            await exchange(*asked)
            answered.append(True)

        async def main():
            async with redis.asyncio.Redis(port=PORT) as client, AsyncLock(client, self.key, lease=18.0) as lock:
                (server,) = (one for one in _transport.servers.values() if one.source is client.connection_pool)
                with mock.patch.object(_tasks.TaskServer, "exchange", busy):
                    lock._hold.due = _transport.now()
                    server.plan(lock._hold)
                    await until(lambda: len(answered) > 1)
                self.assertEqual(answered, [False, True])

        asyncio.run(main())

    def test_a_held_lock_outlives_the_last_descriptor(self):
        client = self.through(self.proxy())
        with Lock(client, self.key, lease=1.0) as lock:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            files = []
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
                with contextlib.suppress(OSError):
                    while True:
                        files.append(open(os.devnull))  # noqa: SIM115
                time.sleep(2.0)
                self.assertFalse(lock.lost)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for file in files:
                    file.close()
            self.assertTrue(lock.check())

    def test_the_renewers_connection_is_there_from_the_first_hold_on(self):
        proxy = self.proxy()
        client = self.through(proxy)
        with Lock(client, self.key, lease=1.0) as lock:
            accepted = proxy.accepted
            extended = self.calls("extend")
            wait_for(lambda: self.calls("extend") > extended + 2)
            self.assertEqual(proxy.accepted, accepted)
            proxy.cut()
            wait_for(lambda: proxy.accepted > accepted)  # before it is needed, or with the next renewal
            time.sleep(1.5)
            self.assertFalse(lock.lost)

    def renew_in_vain(self, lock):
        """The renewer's connection, which is the first one, is gone when it is due."""
        first = min(int(client["id"]) for client in self.client.client_list() if client["name"] == "far")
        self.client.client_kill_filter(_id=first)
        lock._hold.due = _transport.now()
        lock._hold.server.plan(lock._hold)

    def is_renewed(self, lock):
        """Returns what is true once it was renewed again, or is lost."""
        extended = self.calls("extend")
        return lambda: lock.lost or self.calls("extend") > extended

    def test_an_opening_that_is_late_serves_the_next_attempt(self):
        wire = self.proxy()
        with Lock(self.through(wire, client_name="far"), self.key, lease=24.0) as lock:
            wire.delay = 0.8  # in each direction: a greeting takes several times as much, and an attempt has 4 s
            self.renew_in_vain(lock)
            wait_for(self.is_renewed(lock))
            self.assertFalse(lock.lost)
            self.assertEqual(wire.accepted, 2)
            wire.delay = 0.0

    def test_an_opening_of_asyncio_that_is_late_serves_the_next_attempt(self):
        wire = self.proxy()

        async def main():
            async with (
                redis.asyncio.Redis(port=wire.port, client_name="far") as client,
                AsyncLock(client, self.key, lease=24.0) as lock,
            ):
                wire.delay = 0.8
                self.renew_in_vain(lock)
                await until(self.is_renewed(lock))
                self.assertFalse(lock.lost)
                self.assertEqual(wire.accepted, 2)
                wire.delay = 0.0

        asyncio.run(main())

    def test_an_idle_connection_is_the_renewers_if_no_new_one_is_open_in_time(self):
        wire = self.proxy()
        with Lock(self.through(wire, client_name="far"), self.key, lease=12.0) as lock:
            self.assertTrue(lock.check())  # over a second one
            wire.hangs = True
            self.renew_in_vain(lock)
            wait_for(self.is_renewed(lock))
            self.assertFalse(lock.lost)
            self.assertEqual(wire.accepted, 3)
            wire.hangs = False

    def test_an_idle_connection_of_asyncio_is_the_renewers_if_no_new_one_is_open_in_time(self):
        wire = self.proxy()

        async def main():
            async with (
                redis.asyncio.Redis(port=wire.port, client_name="far") as client,
                AsyncLock(client, self.key, lease=12.0) as lock,
            ):
                self.assertTrue(await lock.check())
                wire.hangs = True
                self.renew_in_vain(lock)
                await until(self.is_renewed(lock))
                self.assertFalse(lock.lost)
                self.assertEqual(wire.accepted, 3)
                wire.hangs = False

        asyncio.run(main())

    def test_an_opening_that_hangs_is_given_up_for_another_one(self):
        wire = self.proxy()
        with Lock(self.through(wire, client_name="far"), self.key, lease=18.0) as lock:
            wire.hangs = True
            self.renew_in_vain(lock)
            wait_for(lambda: wire.accepted == 2)
            wire.hangs = False
            wait_for(self.is_renewed(lock))
            self.assertFalse(lock.lost)
            self.assertEqual(wire.accepted, 3)

    def test_the_renewers_connection_is_opened_where_no_thread_is_left(self):
        wire = self.proxy()
        with Lock(self.through(wire, client_name="far"), self.key, lease=12.0) as lock:
            with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                self.renew_in_vain(lock)
                wait_for(self.is_renewed(lock))
            self.assertFalse(lock.lost)

    def test_an_opening_of_asyncio_ends_with_its_loop(self):
        wire, openings = self.proxy(), []

        async def main():
            async with redis.asyncio.Redis(port=wire.port, client_name="far", socket_timeout=0.5) as client:
                lock = AsyncLock(client, self.key, lease=2.0)
                await lock.acquire()
                server = lock._hold.server
                begin = server.begin_opening

                async def noted(limit):
                    openings.append(await begin(limit))
                    return openings[-1]

                server.begin_opening = noted
                wire.hangs = True
                wire.hush()
                with self.assertRaises(redis.RedisError):
                    await lock.release()  # it is owed, also when the loop ends

        asyncio.run(main())
        self.assertTrue(openings)
        self.assertTrue(all(opening.runner.done() for opening in openings))

    def test_connections_that_died_together_without_a_word_cost_no_lock(self):
        proxy = self.proxy()
        client = self.through(proxy)
        with Lock(client, self.key, lease=4.0) as lock:
            burst = [Lock(client, key) for key in self.keys[:6]]
            with ThreadPoolExecutor(6) as threads:
                list(threads.map(lambda one: one.acquire(), burst))
                list(threads.map(lambda one: one.release(), burst))
            proxy.hush()
            time.sleep(6)
            self.assertFalse(lock.lost)
            self.assertTrue(lock.check())
            with Lock(client, self.keys[0], wait=5):
                pass

    def test_a_burst_leaves_few_connections(self):
        proxy = self.proxy()
        client = self.through(proxy, client_name="burst")
        with Lock(client, self.key):
            with ThreadPoolExecutor(MANY) as threads:
                list(threads.map(self.hold_for_a_moment, [client] * MANY, self.keys))
            wait_for(lambda: self.connections("burst") <= 8 + 2, 20)

    def hold_for_a_moment(self, client, key):
        with contextlib.suppress(redis.RedisError), Lock(client, key):
            pass

    def connections(self, name):
        return [client["name"] for client in self.client.client_list()].count(name)

    # --- waiting ---

    def test_more_waits_than_may_block_take_turns_over_few_connections(self):
        proxy = self.proxy()
        client = self.through(proxy, client_name="crowd")
        holder = Lock(self.client, self.key)
        holder.acquire()
        got, blocking = [], _transport.blocking

        def wait():
            with Lock(client, self.key, wait=60):
                got.append(1)

        with ThreadPoolExecutor(60) as threads:
            for _ in range(60):
                threads.submit(wait)
            wait_for(lambda: self.waiting() == 60)
            self.assertLessEqual(self.connections("crowd"), 32 + 2)
            time.sleep(2)
            self.assertEqual(self.waiting(), 60)
            holder.release()
            most = []
            wait_for(lambda: most.append(self.connections("crowd")) or len(got) == 60)
        self.assertLessEqual(max(most), 32 + 2)
        self.assertEqual(_transport.blocking, blocking)

    def costs(self, before, accepted, proxy, locks):
        """What a lock took since then: see clients/costs.json."""
        sent = sum(self.counts()) - sum(before)
        return {"requests": sent / locks, "connections": proxy.accepted - accepted}

    def counts(self):
        return [self.calls(command) for command in ("acquire", "extend", "release")]

    def test_a_free_lock_costs_what_is_written_down(self):
        proxy = self.proxy()
        client = self.through(proxy)
        with Lock(client, self.key):
            pass
        before, accepted = self.counts(), proxy.accepted
        for _ in range(50):
            with Lock(client, self.key):
                pass
        self.assertEqual(self.costs(before, accepted, proxy, 50), COSTS["free"])

    def test_a_contended_lock_costs_what_is_written_down(self):
        proxy = self.proxy()
        client = self.through(proxy)
        barrier = threading.Barrier(4)

        def work():
            barrier.wait()
            for _ in range(25):
                with Lock(client, self.key):
                    pass

        together(4, work)
        before, accepted = self.counts(), proxy.accepted
        together(4, work)
        self.assertEqual(self.costs(before, accepted, proxy, 100), COSTS["contended"])

    def test_a_lock_that_is_waited_for_by_notify_costs_what_is_written_down(self):
        proxy = self.proxy()
        client = self.through(proxy)
        waits = 20

        def wait():
            with Lock(client, self.key, wait=60, max_blocking=0):
                pass

        # No wait asks by itself meanwhile, however busy the machine is.
        with mock.patch("redis_lock_client._waiting.NOTIFY_QUEUE", 600.0), ThreadPoolExecutor(waits) as threads:
            for count in (1, waits):
                holder = Lock(self.client, self.key)
                holder.acquire()
                before, accepted = self.counts(), proxy.accepted
                all_waits = [threads.submit(wait) for _ in range(count)]
                wait_for(lambda count=count: self.waiting() == count)
                holder.release()
                for one in all_waits:
                    one.result()
        before[2] += 1  # the holder's release
        self.assertEqual(self.costs(before, accepted, proxy, waits), COSTS["notified"])

    # --- servers that hang ---

    def test_to_try_once_at_a_server_that_hangs_takes_one_time_for_an_answer(self):
        proxy = self.proxy()
        client = self.through(proxy)
        with Lock(client, self.key):
            pass
        proxy.hangs = True
        proxy.hush()
        start = time.monotonic()
        # What is left on the server is left in the background, however long that takes.
        with mock.patch("redis_lock_client._engine.LEAVE", 60.0), self.assertRaises(redis.TimeoutError):
            Lock(client, self.key, wait=0).acquire()
        self.assertLess(time.monotonic() - start, 30)

    def test_a_release_without_an_answer_is_repeated(self):
        proxy = self.proxy()
        client = self.through(proxy)
        lock = Lock(client, self.key, lease=30.0)
        lock.acquire()
        proxy.hush()
        proxy.refuses = True
        with self.assertRaises(redis.RedisError):
            lock.release()
        self.assertEqual(self.client.exists(self.key), 1)
        proxy.refuses = False
        wait_for(lambda: self.client.exists(self.key) == 0, 20)

    def test_a_request_that_the_server_reads_after_the_end_of_its_wait_locks_nobody_out(self):
        wire = self.proxy()
        client = self.through(wire, socket_timeout=1)
        before = self.calls("release")
        wire.hold_next = b"LOCK.ACQUIRE"
        with self.assertRaises(redis.TimeoutError):
            Lock(client, self.key, lease=600.0, wait=0).acquire()
        wait_for(lambda: self.calls("release") > before)
        acquired = self.calls("acquire")
        wire.held.set()
        wait_for(lambda: self.calls("acquire") > acquired)
        wait_for(lambda: self.client.exists(self.key) == 0, 30)

    def test_a_request_that_the_server_reads_after_its_cancellation_locks_nobody_out(self):
        wire = self.proxy()

        async def main():
            client = redis.asyncio.Redis(port=wire.port)
            before, acquired = self.calls("release"), self.calls("acquire")
            wire.hold_next = b"LOCK.ACQUIRE"
            waiting = asyncio.create_task(AsyncLock(client, self.key, lease=600.0).acquire())
            await until(lambda: not wire.hold_next)
            waiting.cancel()
            await until(lambda: self.calls("release") > before)
            wire.held.set()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await until(lambda: self.calls("acquire") > acquired and not self.client.exists(self.key))
            await client.aclose()

        asyncio.run(main())

    # --- renewals that the server reads late ---

    def hold_back_a_renewal(self, lock, wire):
        """The renewal stays in the wire. Returns what is true once it was given up, and another one was answered."""
        extended = self.calls("extend")
        wire.hold_next = b"LOCK.EXTEND"
        lock._hold.due = _transport.now()
        lock._hold.server.plan(lock._hold)
        return lambda: wire.hold_next is None and self.calls("extend") > extended

    def read_late(self, wire):
        extended = self.calls("extend")
        wire.held.set()
        wait_for(lambda: self.calls("extend") > extended)

    def assert_ends_in(self, seconds):
        """Or it has ended meanwhile, on a busy machine."""
        info = self.info()
        left = as_map(info[b"holders"][0])[b"ttl_ms"] / 1000 if info else 0
        self.assertLessEqual(left, seconds)
        self.assertGreaterEqual(left, seconds - 60)

    def test_a_renewal_that_is_read_late_does_not_change_when_a_lock_ends(self):
        for seconds in (5, 600):
            wire = self.proxy()
            lock = Lock(self.through(wire), self.key, lease=12.0)
            lock.acquire()
            wait_for(self.hold_back_a_renewal(lock, wire))
            lock.release_after(seconds)
            self.read_late(wire)
            self.assert_ends_in(seconds)
            self.break_it()

    def test_a_renewal_that_is_read_late_does_not_change_when_a_lock_of_asyncio_ends(self):
        async def main():
            for seconds in (5, 600):
                wire = self.proxy()
                async with redis.asyncio.Redis(port=wire.port) as client:
                    lock = AsyncLock(client, self.key, lease=12.0)
                    await lock.acquire()
                    await until(self.hold_back_a_renewal(lock, wire))
                    await lock.release_after(seconds)
                    await asyncio.to_thread(self.read_late, wire)
                    self.assert_ends_in(seconds)
                    self.break_it()

        asyncio.run(main())

    def test_a_lock_whose_fence_cannot_be_raised_yet_is_let_go_with_its_own(self):
        wire = self.proxy()
        lock = Lock(self.through(wire), self.key)
        lock.acquire()
        lock._hold.unanswered = True  # a renewal may be read late
        wire.replaces = (b"MINFENCE\r\n$16\r\n1", b"MINFENCE\r\n$16\r\n8")  # after the year 2200
        fence = lock.fence
        lock.release_after(600)
        self.assert_ends_in(600)
        self.assertEqual(as_map(self.info()[b"holders"][0])[b"fence"], fence)

    def test_a_renewal_that_is_read_late_changes_no_later_hold_of_its_owner(self):
        for again in (self.taken_over, self.taken_again):
            wire = self.proxy()
            with Lock(self.client, self.other) as outer:
                lock = Lock(self.through(wire), self.key, lease=12.0, within=outer)
                lock.acquire()
                wait_for(self.hold_back_a_renewal(lock, wire))
                with again(lock, outer) as later:
                    self.read_late(wire)
                    self.assert_ends_in(600)
                    self.assertEqual(later.owner, lock.owner)

    def test_an_end_that_is_read_late_changes_no_later_hold_of_its_owner(self):
        for is_late in (False, True):  # a renewal, too
            wire = self.proxy()
            with Lock(self.client, self.other) as outer:
                lock = Lock(self.through(wire), self.key, lease=12.0, within=outer)
                lock.acquire()
                lock._hold.unanswered = is_late
                wire.hold_next = b"LOCK.EXTEND"
                lock.release_after(60)
                self.assertIsNone(wire.hold_next)
                with Lock(self.client, self.key, lease=600.0, within=outer) as later:
                    self.read_late(wire)
                    self.assert_ends_in(600)
                    self.assertEqual(later.owner, lock.owner)

    def test_an_end_whose_answer_is_lost_is_no_loss(self):
        wire = self.proxy()
        lock = Lock(self.through(wire), self.key, lease=12.0)
        lock.acquire()
        lock._hold.unanswered = True  # a renewal may be read late
        wire.mute_next = b"MINFENCE"
        lock.release_after(600)
        self.assert_ends_in(600)

    def taken_over(self, lock, _):
        return Lock.from_token(self.client, lock.detach(), lease=600.0)

    def taken_again(self, lock, outer):
        lock.release()
        return Lock(self.client, self.key, lease=600.0, within=outer)

    def test_memory_that_is_full_is_waited_for_in_the_place(self):
        self.client.config_set("maxmemory-policy", "noeviction")
        self.addCleanup(self.client.config_set, "maxmemory", 0)
        holder = Lock(self.client, self.key)
        holder.acquire()
        got = threading.Event()
        waiter = threading.Thread(target=lambda: Lock(self.client, self.key, wait=60).acquire() and got.set())
        waiter.start()
        wait_for(lambda: self.waiting() == 1)
        self.client.config_set("maxmemory", 1)
        other = threading.Thread(target=lambda: Lock(self.client, self.keys[0], wait=60).acquire() and got.set())
        other.start()
        time.sleep(1.5)
        self.assertTrue(other.is_alive())
        self.client.config_set("maxmemory", 0)
        holder.release()
        for one in (waiter, other):
            one.join(30)
            self.assertFalse(one.is_alive())


class LossTest(OnServer):
    def test_a_loss_is_told_within_a_second_although_a_clock_jumps(self):
        jump, plain = [0.0], _transport.now
        patches = [mock.patch(f"redis_lock_client.{name}.now", lambda: plain() + jump[0]) for name in PATCHED]
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            told = []
            lock = Lock(self.client, self.key, lease=60.0, on_trouble=told.append)
            lock.acquire()
            waits = threading.Thread(target=lock.wait_lost)
            waits.start()
            time.sleep(0.2)
            jump[0] = 120.0
            start = time.monotonic()
            wait_for(lambda: told)
            waits.join(10)
            self.assertFalse(waits.is_alive())
            self.assertLess(time.monotonic() - start, 10)
            self.assertEqual([trouble.kind for trouble in told], ["lost"])
            with self.assertRaises(LockLost):
                lock.release()


PATCHED = ("_transport", "_threads", "_engine", "_face")

if __name__ == "__main__":
    unittest.main()
