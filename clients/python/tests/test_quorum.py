"""The helper for a quorum, as Python programs use it: five servers with the module on the REDIS_LOCK_PORTS."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import redis
from stage import FOLDER, PORTS, Proxy, as_map, closed_port, run, together, wait_for

from redis_lock_client import _common, quorum
from redis_lock_client.quorum import Deadlock, LockError, LockLost, LockNotAcquired, NoQuorum, QuorumLock

MAJORITY = 3


def setUpModule():
    """A shell lets what it starts in the background ignore SIGINT, and Python then raises no KeyboardInterrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def patience(seconds):
    """Lets a node take that long to answer."""
    with mock.patch.object(quorum._engine, "ANSWER", seconds), mock.patch.object(quorum._wires, "ANSWER", seconds):
        yield


class Nodes:
    """What the tests of both kinds of locks ask the servers."""

    def set_up_nodes(self, prefix):
        self.nodes = [redis.Redis(port=port) for port in PORTS]
        self.key = f"{prefix}:{self.id().rpartition('.')[2]}"
        for node in self.nodes:
            self.addCleanup(node.close)
            node.delete(self.key, f"{self.key}:2")
            self.addCleanup(node.delete, self.key, f"{self.key}:2")

    def info(self, at, key=None):
        return as_map(self.nodes[at].execute_command("LOCK.INFO", key or self.key))

    def fences(self):
        """The fence at each node; None where it is free."""
        return [(self.info(at) or {}).get(b"fence") for at in range(len(self.nodes))]

    def all_hold(self, lock):
        """Do all nodes hold it? A node that was asked later may have given a higher fence."""
        fences = self.fences()
        return None not in fences and min(fences) >= lock.fence

    def waiting(self, at=0, key=None):
        return (self.info(at, key) or {}).get(b"waiting", 0)

    def is_free(self):
        return self.fences() == [None] * len(self.nodes)

    def calls(self, at, command):
        stats = self.nodes[at].info("commandstats")
        return stats.get(f"cmdstat_lock.{command}", {}).get("calls", 0)

    def wire(self, at):
        wire = Proxy(PORTS[at])
        self.addCleanup(wire.close)
        return wire

    def break_majority(self):
        self.break_at(*range(MAJORITY))

    def break_at(self, *nodes):
        for at in nodes:
            self.nodes[at].execute_command("LOCK.BREAK", self.key)


class QuorumLockTest(Nodes, unittest.TestCase):
    def setUp(self):
        self.set_up_nodes("quorum")
        self.clients = self.clients_of(PORTS)

    def clients_of(self, ports):
        clients = [redis.Redis(port=port) for port in ports]
        for client in clients:
            self.addCleanup(client.close)
        return clients

    def lock(self, clients=None, **options):
        return QuorumLock(clients or self.clients, self.key, **options)

    # --- taking ---

    def test_a_with_statement_holds_all_nodes_under_one_fence_and_releases_them(self):
        with self.lock() as lock:
            self.assertGreaterEqual(self.fences().count(lock.fence), MAJORITY)
            wait_for(lambda: self.all_hold(lock))
            self.assertTrue(lock.check())
            self.assertFalse(lock.lost)
            self.assertEqual(repr(lock), f'<QuorumLock "{self.key}": held>')
        wait_for(self.is_free)
        self.assertFalse(lock.check())
        self.assertFalse(lock.lost)
        self.assertEqual(repr(lock), f'<QuorumLock "{self.key}": released>')

    def test_a_lock_may_be_taken_again_and_its_fence_rises(self):
        lock = self.lock()
        with lock:
            first, owner = lock.fence, lock.owner
        with lock:
            self.assertGreater(lock.fence, first)
            self.assertNotEqual(lock.owner, owner)

    def test_a_fence_is_raised_where_a_node_gave_a_lower_one(self):
        ahead = time.time_ns() // 1000 + 400_000
        given = self.nodes[2].execute_command("LOCK.ACQUIRE", self.key, "x", "PX", 1000, "MINFENCE", ahead)
        self.nodes[2].execute_command("LOCK.RELEASE", self.key, "x")
        nodes = self.clients_of([*PORTS[:3], closed_port(), closed_port()])
        with self.answered() as answered, self.lock(nodes) as lock:
            self.assertEqual(answered[-1].count(lock.fence), MAJORITY)
            self.assertGreater(lock.fence, given)
            self.assertEqual(self.fences()[:3], [lock.fence] * 3)
        # Another majority, with but one node in common that was not ahead.
        nodes = self.clients_of([PORTS[0], closed_port(), closed_port(), *PORTS[3:]])
        with self.lock(nodes) as other:
            self.assertGreater(other.fence, lock.fence)

    @contextlib.contextmanager
    def answered(self):
        """What the nodes had answered when a lock was taken for held."""
        fences, hold_it = [], quorum._engine.Hold.hold_it

        def noted(hold):
            fences.append([part.fence for part in hold.parts])
            return hold_it(hold)

        with mock.patch.object(quorum._engine.Hold, "hold_it", noted):
            yield fences

    def test_a_fence_that_is_too_far_ahead_for_the_clocks_is_asked_for_again(self):
        before = self.calls(0, "acquire")
        with mock.patch.object(quorum._engine, "AHEAD", 700_000), self.lock():
            self.assertGreater(self.calls(0, "acquire"), before + 1)
        with mock.patch.object(quorum._engine, "AHEAD", 3_600_000_000):
            with self.assertRaisesRegex(redis.ResponseError, "MINFENCE"):
                self.lock(lease=1.0, wait=0).acquire()
            wait_for(self.is_free)

    def test_nodes_that_are_down_or_hang_cost_no_timeout(self):
        wire = self.wire(0)
        wire.open.clear()
        nodes = self.clients_of([wire.port, *PORTS[1:4], closed_port()])
        before = [self.calls(at, command) for at in (1, 2, 3) for command in ("acquire", "extend")]
        with patience(60.0):
            start = time.monotonic()
            with self.lock(nodes, lease=1200.0) as lock:
                self.assertLess(time.monotonic() - start, 30)
                self.assertEqual(self.fences()[1:4], [lock.fence] * 3)
                after = [self.calls(at, command) for at in (1, 2, 3) for command in ("acquire", "extend")]
                more = [now - then for now, then in zip(after, before, strict=True)]
                self.assertTrue(all(count <= 2 for count in more), f"more than two round trips: {more}")
            self.assertLess(time.monotonic() - start, 30)

    def test_without_a_majority_the_error_is_raised(self):
        nodes = self.clients_of([*PORTS[:2], closed_port(), closed_port(), closed_port()])
        for wait in (0, 0.3):
            with self.assertRaises(redis.ConnectionError):
                self.lock(nodes, wait=wait).acquire()
            wait_for(self.is_free)

    def test_a_lock_of_somebody_else_is_not_taken(self):
        with self.lock() as lock:
            for wait in (0, 0.05):
                with self.assertRaises(LockNotAcquired), self.lock(wait=wait):
                    self.fail("two hold it")
            self.assertFalse(self.lock().acquire(blocking=False))
            self.assertEqual([self.waiting(at) for at in range(5)], [0] * 5)
            self.assertTrue(lock.check())
        wait_for(self.is_free)

    def test_a_minority_that_somebody_holds_is_no_hindrance(self):
        for at in (3, 4):
            self.nodes[at].execute_command("LOCK.ACQUIRE", self.key, "another", "PX", 60_000)
        for wait in (0, 60):
            with self.lock(wait=wait) as lock:
                self.assertEqual(self.fences()[:3], [lock.fence] * 3)

    def test_a_majority_that_somebody_holds_is_waited_for(self):
        for at in (0, 1, 2):
            self.nodes[at].execute_command("LOCK.ACQUIRE", self.key, "another", "PX", 60_000)
        self.assertFalse(self.lock(wait=0).acquire())
        wait_for(lambda: self.fences()[3:] == [None] * 2)

    def test_of_rivals_that_try_once_one_succeeds(self):
        for _ in range(10):
            start = threading.Barrier(6)

            def attempt(start=start):
                lock = self.lock(wait=0)
                start.wait()
                return lock if lock.acquire() else None

            [winner] = filter(None, together(6, attempt))
            winner.release()

    def test_one_that_tries_once_insists_where_the_first_node_has_granted(self):
        for at in (1, 2, 3):
            self.nodes[at].execute_command("LOCK.ACQUIRE", self.key, "rival", "PX", 60_000)
        lock, got = self.lock(wait=0, lease=50.0), []
        attempt = threading.Thread(target=lambda: got.append(lock.acquire()))
        attempt.start()
        wait_for(lambda: self.waiting(1) + self.waiting(2) + self.waiting(3) > 0 or got)
        for at in (1, 2, 3):
            self.nodes[at].execute_command("LOCK.RELEASE", self.key, "rival", "ALL")
        attempt.join()
        self.assertEqual(got, [True])
        lock.release()

    def test_threads_exclude_each_other_and_fences_rise(self):
        within, most, fences = 0, 0, []

        def work():
            nonlocal within, most
            for _ in range(5):
                with self.lock() as lock:
                    within += 1
                    most = max(most, within)
                    time.sleep(0.001)
                    within -= 1
                    fences.append(lock.fence)

        together(8, work)
        self.assertEqual((most, len(fences)), (1, 40))
        self.assertEqual(fences, sorted(set(fences)))

    def test_readers_hold_together(self):
        with self.lock(shared=True), self.lock(shared=True) as reader:
            self.assertTrue(reader.check())
            self.assertFalse(self.lock(wait=0).acquire())
        with self.lock():
            self.assertFalse(self.lock(shared=True, wait=0).acquire())

    # --- waiting ---

    def test_waiters_are_served_in_their_order(self):
        order = []

        def wait(number):
            with self.lock():
                order.append(number)

        with self.lock():
            waiters = [threading.Thread(target=wait, args=(number,)) for number in range(4)]
            for number, waiter in enumerate(waiters):
                waiter.start()
                wait_for(lambda number=number: self.waiting() == number + 1)
            self.assertEqual([self.waiting(at) for at in range(1, 5)], [0] * 4)
        for waiter in waiters:
            waiter.join()
        self.assertEqual(order, list(range(4)))

    def test_a_wait_goes_on_at_the_next_node_when_one_dies(self):
        wire = self.wire(0)
        nodes = self.clients_of([wire.port, *PORTS[1:]])
        got = threading.Event()
        with self.lock():
            waiter = threading.Thread(target=lambda: self.lock(nodes).acquire() and got.set())
            waiter.start()
            wait_for(lambda: self.waiting(0) == 1)
            wire.refuses = True
            wire.cut()
            wait_for(lambda: self.waiting(1) == 1)
            self.assertFalse(got.is_set())
        waiter.join()
        self.assertTrue(got.is_set())

    def test_a_lost_connection_costs_no_place(self):
        wire = self.wire(0)
        nodes = self.clients_of([wire.port, *PORTS[1:]])
        lock = self.lock(nodes)
        with self.lock():
            waiter = threading.Thread(target=lock.acquire)
            waiter.start()
            wait_for(lambda: self.waiting(0) == 1)
            owner = lock.owner
            wire.cut()
            wait_for(lambda: self.calls(0, "acquire") > 0 and self.waiting(0) == 1)
        waiter.join()
        self.assertEqual(lock.owner, owner)
        lock.release()

    def test_a_deadlock_is_told_at_once(self):
        second = f"{self.key}:2"
        with self.lock() as one, QuorumLock(self.clients, second) as other:
            waits = threading.Thread(target=self.hold_for_a_moment, args=(one, second))
            waits.start()
            wait_for(lambda: self.waiting(0, second) == 1)
            with self.assertRaises(Deadlock) as caught:
                self.lock(within=other).acquire()
            self.assertRegex(str(caught.exception), f'^lock "{self.key}" was not acquired: DEADLOCK ')
            other.release()
            waits.join()
            other.acquire()

    def hold_for_a_moment(self, outer, key):
        with QuorumLock(self.clients, key, within=outer) as lock:
            self.assertEqual(lock.owner, outer.owner)

    def test_a_lock_that_is_held_is_not_taken_a_second_time(self):
        with self.lock() as lock:
            with self.assertRaisesRegex(LockError, "held already"):
                lock.acquire()
            with self.assertRaisesRegex(LockError, "the outer lock has this key already"):
                self.lock(within=lock).acquire()
            self.assertTrue(lock.check())

    def test_an_interrupt_while_waiting_leaves_the_queue(self):
        with self.lock() as lock:
            interrupt = threading.Thread(target=self.interrupt_when, args=(lambda: self.waiting() == 1,))
            interrupt.start()
            with self.assertRaises(KeyboardInterrupt):
                self.lock().acquire()
            interrupt.join()
            self.assertEqual(self.waiting(), 0)
            self.assertTrue(lock.check())

    def interrupt_when(self, condition):
        wait_for(condition)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def test_an_interrupt_at_any_moment_locks_nobody_out(self):
        for attempt in range(20):
            lock = self.lock(lease=600.0)
            delay = random.Random(attempt).uniform(0, 0.02)
            timer = threading.Timer(delay, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                lock.acquire()
                timer.join()
                time.sleep(0.001)
            timer.join()
            with contextlib.suppress(KeyboardInterrupt, LockError):
                lock.release()
            with contextlib.suppress(LockError):
                lock.release()
            wait_for(self.is_free)

    # --- losing ---

    def test_a_lock_is_renewed_at_each_node(self):
        with self.lock(lease=3.0) as lock:
            time.sleep(5)
            self.assertTrue(lock.check())
            self.assertTrue(self.all_hold(lock))

    def test_a_node_that_hangs_holds_up_no_renewal_of_another(self):
        wires = [self.wire(at) for at in (0, 1)]
        nodes = self.clients_of([*(wire.port for wire in wires), *PORTS[2:]])
        with self.lock(nodes, lease=2.0) as lock:
            for wire in wires:
                wire.open.clear()
            time.sleep(5)
            self.assertTrue(lock.check())
            for wire in wires:
                wire.open.set()
            wait_for(lambda: self.all_hold(lock))
            self.assertFalse(lock.lost)
        wait_for(self.is_free)

    def test_a_node_that_lost_its_hold_gets_it_again_under_no_lower_fence(self):
        with self.lock(lease=3.0) as lock:
            fence = lock.fence
            wait_for(lambda: self.all_hold(lock))
            self.break_at(1)
            self.nodes[3].flushall()
            wait_for(lambda: self.all_hold(lock))
            self.assertEqual(lock.fence, fence)
            self.assertFalse(lock.lost)
            # Each of the former majority may be lost, as long as not at once.
            for at in (0, 2, 4):
                self.break_at(at)
                wait_for(lambda: self.all_hold(lock))
            self.assertTrue(lock.check())
        wait_for(self.is_free)

    def test_a_node_that_answers_over_another_connection_is_asked_there(self):
        wire = self.wire(0)
        with self.lock(self.clients_of([wire.port, *PORTS[1:]]), lease=3.0) as lock:
            wait_for(lambda: self.all_hold(lock))
            wire.hold_next = b"LOCK.ACQUIRE"
            self.break_at(0)
            wait_for(lambda: not wire.hold_next)
            wait_for(lambda: self.all_hold(lock))
            self.assertFalse(lock.lost)
        wait_for(self.is_free)
        before = self.calls(0, "acquire")
        wire.held.set()
        wait_for(lambda: self.calls(0, "acquire") > before)
        wait_for(self.is_free)

    def test_a_majority_that_is_broken_is_a_loss_once_and_for_all(self):
        with self.assertRaises(LockLost) as caught, self.lock(lease=1.0) as lock:
            # A renewal between the first and the last of them might get the first one again.
            wait_for(lambda: self.break_majority() or lock.wait_lost(1))
            before = [self.calls(at, command) for at in range(5) for command in ("acquire", "extend")]
            time.sleep(1.5)
            after = [self.calls(at, command) for at in range(5) for command in ("acquire", "extend")]
            self.assertEqual(after, before)
            self.assertTrue(lock.lost)
        self.assertEqual(caught.exception.lock_name, self.key)
        wait_for(self.is_free)

    def test_a_majority_that_hangs_is_a_loss_when_the_lease_is_over(self):
        wires = [self.wire(at) for at in range(MAJORITY)]
        nodes = self.clients_of([*(wire.port for wire in wires), *PORTS[3:]])
        with contextlib.suppress(redis.RedisError), self.lock(nodes, lease=2.0) as lock:
            for wire in wires:
                wire.open.clear()
            start = time.monotonic()
            self.assertFalse(lock.lost)
            self.assertTrue(lock.wait_lost(60))
            # Not later than any of its leases.
            self.assertLess(time.monotonic() - start, 2.0 + 1)
            self.assertTrue(lock.lost)
        self.assertTrue(lock.lost)

    def test_it_is_valid_as_long_as_the_last_majority(self):
        lock = self.lock(lease=20.0)
        with lock:
            hold = lock._hold
            ends = sorted(part.end for part in hold.parts)
            # A node that was asked later may have given a higher fence.
            wait_for(lambda: all((part.fence or 0) >= lock.fence for part in hold.parts))
            ends = sorted(part.end for part in hold.parts)
            self.assertEqual(hold.valid_until(), ends[2])
            self.assertLessEqual(ends[-1], _common.now() + 20 - 0.2 - 0.002)
            with mock.patch.object(hold.parts[0], "end", 0), mock.patch.object(hold.parts[1], "end", 0):
                self.assertFalse(lock.lost)

    def test_a_check_asks_a_majority(self):
        with self.assertRaises(LockLost), self.lock(lease=600.0) as lock:
            wait_for(lambda: self.all_hold(lock))
            self.break_at(0)
            self.assertTrue(lock.check())
            wait_for(lambda: self.all_hold(lock))
            for at in range(MAJORITY):
                self.nodes[at].set(self.key, "something else")
            self.assertFalse(lock.check())
            self.assertTrue(lock.lost)

    def test_a_lock_that_is_dropped_is_not_renewed(self):
        lock = self.lock(lease=1.0)
        lock.acquire()
        del lock
        gc.collect()
        wait_for(self.is_free)

    # --- releasing ---

    def test_a_node_that_reads_the_request_late_reads_the_release_behind_it(self):
        wire = self.wire(0)
        nodes = self.clients_of([wire.port, *PORTS[1:]])
        before = self.calls(0, "acquire")
        wire.hold_next = b"LOCK.ACQUIRE"
        with self.lock(nodes, lease=600.0):
            wait_for(lambda: None not in self.fences()[1:])
            wait_for(lambda: not wire.hold_next)  # else the release may come before the request is on its way
            self.assertIsNone(self.fences()[0])
        wire.held.set()
        wait_for(lambda: self.calls(0, "acquire") > before)
        wait_for(self.is_free, 20)

    def test_a_release_reaches_a_node_that_was_cut_off(self):
        wire = self.wire(2)
        nodes = self.clients_of([*PORTS[:2], wire.port, *PORTS[3:]])
        with patience(0.5):
            with self.lock(nodes, lease=600.0) as lock:
                wait_for(lambda: self.all_hold(lock))
                part = lock._hold.parts[2]
                wire.open.clear()
            wait_for(lambda: self.fences()[:2] == [None] * 2)
            wait_for(lambda: part.owes_until > 0 and part.ticket)  # both attempts were in vain
        wire.cut()  # what was on its way is lost
        wire.open.set()
        wait_for(self.is_free)

    def test_nothing_is_left_a_moment_after_the_last_lock(self):
        # In a process of its own: what other tests have cut off is still asked for.
        program = f"""
import sys, threading, time, redis
from redis_lock_client import _transport
from redis_lock_client.quorum import QuorumLock, _background
_transport.IDLE = _background.IDLE = 0.5
clients = [redis.Redis(port=port, client_name="nothing-left") for port in {PORTS!r}]
for _ in range(20):
    with QuorumLock(clients, {self.key!r}):
        pass
with QuorumLock(clients, {self.key!r}):
    assert not QuorumLock(clients, {self.key!r}, wait=0.01).acquire()
    assert "redis-lock quorum" in [thread.name for thread in threading.enumerate()]
give_up = time.monotonic() + 30
while threading.active_count() > 1:
    assert time.monotonic() < give_up, threading.enumerate()
    time.sleep(0.01)
assert not _transport.servers
print("left")
sys.stdin.read()
"""
        command, env = [sys.executable, "-c", program], os.environ | {"PYTHONPATH": str(FOLDER)}
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.assertEqual(process.stdout.readline(), "left\n")
        for node in self.nodes:
            wait_for(lambda node=node: "nothing-left" not in [client["name"] for client in node.client_list()])

    def test_a_process_that_ends_with_the_lock_prints_nothing(self):
        program = f"""
import redis
from redis_lock_client.quorum import QuorumLock
lock = QuorumLock([redis.Redis(port=port) for port in {PORTS!r}], {self.key!r}, lease=1.0)
lock.acquire()
print(lock.fence)
"""
        ended = run(program, capture_output=True, text=True)
        self.assertEqual(ended.stderr, "")
        wait_for(self.is_free)

    def test_a_child_of_a_fork_has_lost_the_lock(self):
        program = f"""
import os, redis
from redis_lock_client.quorum import QuorumLock, LockError
clients = [redis.Redis(port=port) for port in {PORTS!r}]
lock = QuorumLock(clients, {self.key!r}, lease=2.0)
lock.acquire()
child = os.fork()
if child == 0:
    lost = lock.lost and lock.wait_lost() and not lock.check()
    try:
        QuorumLock(clients, {self.key + ":2"!r}, wait=0, within=lock).acquire()
    except LockError:
        lost = lost and lock.lost
    else:
        os._exit(2)
    lock.release()
    with QuorumLock(clients, {self.key + ":2"!r}, wait=5) as own:
        os._exit(0 if lost and own.check() else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
import time
time.sleep(2.5)
assert lock.check() and not lock.lost
lock.release()
"""
        run(program)

    def test_a_node_that_lost_its_hold_is_not_won_back_before_the_others_were_asked(self):
        with self.lock() as lock:
            wait_for(lambda: self.all_hold(lock))
            try:
                for node in self.nodes[1:]:
                    node.client_pause(20_000, all=False)  # renewals have to wait there
                self.nodes[0].delete(self.key)
                self.assertTrue(lock.check())
                asked = self.calls(0, "acquire")
                time.sleep(1)
                self.assertEqual((self.fences()[0], self.calls(0, "acquire")), (None, asked))
            finally:
                for node in self.nodes[1:]:
                    node.client_unpause()
            wait_for(lambda: self.all_hold(lock))
            self.assertFalse(lock.lost)

    # --- what is no quorum ---

    def test_a_server_that_is_named_twice_is_no_quorum(self):
        nodes = self.clients_of([PORTS[0], closed_port(), PORTS[0]])
        with self.assertRaisesRegex(NoQuorum, r"is the same server as \S+:\d+$"):
            self.lock(nodes).acquire()
        wait_for(self.is_free)

    def test_a_primary_and_its_replica_are_no_quorum(self):
        self.nodes[4].replicaof("127.0.0.1", PORTS[0])
        self.addCleanup(self.nodes[4].replicaof, "NO", "ONE")
        wait_for(lambda: self.nodes[4].info("replication")["master_link_status"] == "up")
        with self.assertRaisesRegex(NoQuorum, "is a replica|replicates with"):
            self.lock(self.clients_of([PORTS[0], PORTS[4], closed_port()])).acquire()
        # A replica counts for nothing, also without its primary.
        with self.assertRaisesRegex(NoQuorum, "is a replica"):
            self.lock(self.clients_of([PORTS[4], PORTS[1], closed_port()])).acquire()
        wait_for(lambda: self.fences()[:4] == [None] * 4)

    def test_a_node_of_a_cluster_is_no_quorum(self):
        identity = quorum._wires.Identity("a", "b", "master", cluster=True)
        of = mock.patch.object(quorum._wires.Identity, "of", mock.AsyncMock(return_value=identity))
        with of, self.assertRaisesRegex(NoQuorum, "is a node of a cluster"):
            self.lock(self.clients_of(PORTS)).acquire()
        wait_for(self.is_free)

    def test_a_user_that_may_not_ask_is_trusted(self):
        for node in self.nodes:
            node.acl_setuser("quorum", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
            self.addCleanup(node.acl_deluser, "quorum")
        clients = [redis.Redis(port=port, username="quorum", password="any") for port in PORTS]  # noqa: S106
        with self.lock(clients) as lock:
            self.assertTrue(lock.check())

    def test_bad_arguments_are_refused(self):
        for error, options in (
            (ValueError, {"lease": 0.9}),
            (ValueError, {"lease": float("nan")}),
            (ValueError, {"wait": -1}),
            (TypeError, {"key": ["a", "b"]}),
            (TypeError, {"key": 7}),
            (ValueError, {"clients": self.clients[:2]}),
            (TypeError, {"clients": self.clients[0]}),
            (TypeError, {"clients": None}),
            (TypeError, {"clients": ["redis://a", "redis://b", "redis://c"]}),
            (ValueError, {"clients": [*self.clients[:2], self.clients[0]]}),
            (ValueError, {"clients": [*self.clients[:2], mock.Mock(spec=redis.RedisCluster, nodes_manager=None)]}),
            (TypeError, {"clients": [*self.clients[:2], redis.asyncio.Redis()]}),
        ):
            with self.subTest(options), self.assertRaises(error):
                QuorumLock(**{"key": self.key, "clients": self.clients} | options)
        with self.assertRaises(TypeError):
            self.lock(limit=2)


if __name__ == "__main__":
    unittest.main()
