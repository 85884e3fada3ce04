"""The blocking helper, as Python programs use it: needs a server with the module on 127.0.0.1:REDIS_LOCK_PORT."""

import contextlib
import gc
import socket
import threading
import time
import unittest
from unittest import mock

import redis
from stage import PORT, OnServer, as_map, closed_port, wait_for

from redis_lock_client import Deadlock, Lock, LockError, LockLost, LockNotAcquired, _engine, _threads, _transport


class LockTest(OnServer):
    def test_a_with_statement_holds_the_lock_and_releases_it(self):
        with Lock(self.client, self.key) as lock:
            self.assertEqual(self.info()[b"fence"], lock.fence)
            self.assertTrue(lock.check())
            self.assertFalse(lock.lost)
        self.assertIsNone(self.info())
        self.assertFalse(lock.check())
        self.assertFalse(lock.lost)

    def test_a_with_statement_that_is_not_served_in_time_raises(self):
        with Lock(self.client, self.key):
            for wait in (0, 0.05):
                with self.assertRaises(LockNotAcquired), Lock(self.client, self.key, blocking_timeout=wait):
                    self.fail("two hold it")
        self.assertIsNone(self.info())

    def test_a_key_that_cannot_be_sent_is_an_error_at_once_and_breaks_no_connection(self):
        client = redis.Redis(port=PORT, encoding="latin-1")
        self.addCleanup(client.close)
        # With its own connection, and over that of the renewals.
        for most in (32, 0):
            with Lock(client, self.key, max_blocking=most) as held:
                (server,) = (one for one in _transport.servers.values() if one.source is client.connection_pool)
                wait_for(lambda: server.own is not None)  # noqa: B023 - called here
                own = server.own
                with self.assertRaises(UnicodeEncodeError):
                    Lock(client, f"{self.key}:\u4e2d", wait=60, max_blocking=most).acquire()
                self.assertIs(server.own, own)
                self.assertTrue(held.check())

    def test_errors_are_those_of_redis_py_too(self):
        self.assertTrue(issubclass(LockLost, redis.exceptions.LockNotOwnedError))
        self.assertTrue(issubclass(LockNotAcquired, redis.exceptions.LockError))
        self.assertTrue(issubclass(Deadlock, redis.exceptions.LockError))
        with self.assertRaises(redis.exceptions.LockError) as caught:
            Lock(self.client, self.key).release()
        self.assertNotIsInstance(caught.exception, LockLost)

    def test_a_loss_is_raised_at_the_end_of_the_block(self):
        with self.assertRaises(LockLost) as caught, Lock(self.client, self.key) as lock:
            self.break_it()
        self.assertTrue(lock.lost)
        self.assertEqual(caught.exception.lock_name, self.key)

    def test_a_loss_does_not_hide_the_error_of_the_block(self):
        with self.assertRaises(ZeroDivisionError), Lock(self.client, self.key) as lock:
            self.break_it()
            print(1 / 0)
        self.assertTrue(lock.lost)

    def test_a_network_error_of_the_release_does_not_hide_the_error_of_the_block(self):
        with self.assertRaises(ZeroDivisionError), Lock(self.client, self.key):
            for server in _transport.servers.values():
                server.source = UnreachablePool()
                server.close_all()
            print(1 / 0)

    def test_a_loss_may_be_told_without_an_exception(self):
        with Lock(self.client, self.key, raise_on_release_error=False) as lock:
            self.break_it()
        self.assertTrue(lock.lost)

    def test_a_thread_may_wait_for_the_loss(self):
        with Lock(self.client, self.key, lease=1.0) as lock:
            self.assertFalse(lock.wait_lost(0.01))
        self.assertFalse(lock.wait_lost(), "a lock that is released is not lost")
        with self.assertRaises(LockLost), lock:
            self.break_it()
            self.assertTrue(lock.wait_lost(60))

    def test_a_guarded_command_has_its_own_error_and_the_clients_decoding(self):
        for settings, one in (({}, b"one"), ({"decode_responses": True}, "one")):
            with Lock(self.client_of(PORT, **settings), self.key) as lock:
                self.assertTrue(lock.guard("SET", self.other, "one"))
                self.assertEqual(lock.guard("GET", self.other), one)
                with self.assertRaises(redis.ResponseError):
                    lock.guard("LPUSH", self.other, "x")

    def test_the_texts_of_errors_name_the_key(self):
        with Lock(self.client, self.key) as lock:
            with self.assertRaises(LockNotAcquired) as caught, Lock(self.client, self.key, wait=0):
                self.fail("two hold it")
            self.assertEqual(str(caught.exception), f'lock "{self.key}" was not acquired: it was not free within 0 s')
            with self.assertRaises(LockError) as caught, Lock(self.client, self.other, shared=True) as reader:
                reader.guard("PING")
            self.assertEqual(str(caught.exception), f'lock "{self.other}": guard needs an exclusive lock')
            for misuse in (lock.acquire, Lock(self.client, self.key, within=lock).acquire):
                with self.assertRaises(LockError) as caught:
                    misuse()
                self.assertIn(f'lock "{self.key}"', str(caught.exception))
            self.break_it()
            with self.assertRaises(LockLost) as caught:
                lock.guard("PING")
            self.assertEqual(str(caught.exception), f'lock "{self.key}" is lost: nothing was run')
            with self.assertRaises(LockLost) as caught:
                lock.release()
            self.assertEqual(str(caught.exception), f'lock "{self.key}" was lost before it was released')
            for misuse in (lock.release, lambda: Lock(self.client, self.key).fence):
                with self.assertRaises(LockError) as caught:
                    misuse()
                self.assertIn(f'lock "{self.key}"', str(caught.exception))
            lock.acquire()

    def test_nothing_is_asked_for_within_a_lost_lock(self):
        with self.assertRaises(LockLost), Lock(self.client, self.key) as outer:
            self.break_it()
            self.assertFalse(outer.check())
            with self.assertRaisesRegex(LockLost, f'^the outer lock "{self.key}" is lost$'):
                Lock(self.client, self.other, within=outer).acquire()
        self.assertEqual(self.client.exists(self.other), 0)

    def test_a_lost_lock_must_be_released_before_it_is_taken_again(self):
        with self.assertRaises(LockLost), Lock(self.client, self.key) as lock:
            self.break_it()
            lock.check()
            with self.assertRaisesRegex(LockError, "was lost, and must be released first"):
                lock.acquire()

    def test_a_loss_tells_why_the_renewal_failed(self):
        self.client.acl_setuser("renewer", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-lock.extend"])
        self.addCleanup(self.client.acl_deluser, "renewer")
        with redis.Redis(port=PORT, username="renewer", password="any") as client:  # noqa: S106
            with self.assertRaises(LockLost) as caught, Lock(client, self.key, lease=1.0) as lock:
                self.assertTrue(lock.wait_lost(60))
            self.assertIsInstance(caught.exception.__cause__, redis.exceptions.NoPermissionError)

    def test_a_connection_goes_back_once(self):
        server = _threads.ThreadServer.enter(self.client.connection_pool)
        self.addCleanup(server.leave)
        request = _threads.run(server.send(["PING"], 1.0))
        self.assertEqual(_threads.run(request.reply(1.0)), b"PONG")
        request.close()
        other = _threads.run(server.send(["LOCK.INFO", self.key], 1.0))
        request.close()
        self.assertIsNone(_threads.run(other.reply(1.0)))

    @mock.patch.object(_transport, "IDLE", 0.5)
    def test_two_interrupts_leave_no_renewer(self):
        leave = _engine.Hold.leave

        async def interrupted(_):
            raise KeyboardInterrupt

        self.addCleanup(setattr, _engine.Hold, "leave", leave)
        client = self.client_of(PORT)
        with Lock(self.client, self.key):
            _engine.Hold.leave = interrupted
            with self.assertRaises(KeyboardInterrupt):
                Lock(client, self.key, wait=0.1).acquire()
            ours = id(client.connection_pool)
            wait_for(lambda: all(key[2] != ours for key in _transport.servers))

    def test_its_text_tells_the_keys_and_the_state(self):
        lock = Lock(self.client, [self.key, self.other.encode()])
        keys = f'"{self.key}, {self.key}:2"'
        self.assertEqual(repr(lock), f"<Lock {keys}: not acquired>")
        with lock:
            self.assertEqual(repr(lock), f"<Lock {keys}: held>")
            other = Lock(self.client, self.key)
            waits = threading.Thread(target=self.hold_for_a_moment, args=(other,))
            waits.start()
            wait_for(lambda: self.waiting() == 1)
            self.assertEqual(repr(other), f'<Lock "{self.key}": waiting>')
        waits.join()
        self.assertEqual(repr(lock), f"<Lock {keys}: released>")
        with self.assertRaises(LockLost), lock:
            self.break_it()
        self.assertEqual(repr(lock), f"<Lock {keys}: lost>")
        with Lock(self.client, self.key):
            self.assertFalse(lock.acquire(blocking=False))
        self.assertEqual(repr(lock), f"<Lock {keys}: not acquired>")

    def test_several_keys_have_a_fence_each(self):
        with Lock(self.client, [self.key, self.other]) as lock:
            self.assertEqual(lock.fences, (self.info()[b"fence"], self.info(self.other)[b"fence"]))
            with self.assertRaises(ValueError):
                print(lock.fence)
            lock.guard("PING", key=self.other)

    def test_a_wait_that_ends_while_the_server_hangs_is_released_later(self):
        proxy = self.proxy()
        lock = Lock(self.client_of(proxy.port, socket_timeout=2), self.key, wait=1.0)
        holder = Lock(self.client, self.key)
        holder.acquire()
        waits = threading.Thread(target=self.wait_in_vain, args=(lock,))
        waits.start()
        wait_for(lambda: self.waiting() == 1)
        proxy.open.clear()
        holder.release()
        waits.join()
        self.assertIsNotNone(self.info())
        proxy.open.set()
        wait_for(lambda: self.info() is None, 10)

    def wait_in_vain(self, lock):
        with contextlib.suppress(redis.RedisError):
            self.assertFalse(lock.acquire())

    def test_bad_arguments_are_refused(self):
        for options in (
            {"lease": 0.9},
            {"lease": float("nan")},
            {"wait": -1},
            {"limit": 0},
            {"take": 2},
            {"take": 3, "limit": 2},
            {"limit": 2, "shared": True},
            {"key": ["a", "b"], "limit": 2},
            {"key": []},
            {"key": ["a", b"a"]},
        ):
            with self.subTest(options), self.assertRaises(ValueError):
                Lock(self.client, **{"key": self.key} | options)

    def hold_for_a_moment(self, lock):
        with lock:
            pass

    def test_the_arguments_of_redis_py_mean_the_same(self):
        with self.client.lock(self.key, timeout=5, lock_class=Lock) as lock:
            self.assertTrue(lock.owned())
            self.assertTrue(lock.locked())
            (holder,) = map(as_map, self.info()[b"holders"])
            self.assertTrue(4_000 < holder[b"ttl_ms"] <= 5_000)
            other = self.client.lock(self.key, blocking=False, lock_class=Lock)
            self.assertFalse(other.acquire())
            self.assertFalse(other.acquire(blocking=True, blocking_timeout=0.05))
            self.assertFalse(self.client.lock(self.key, blocking_timeout=0.05, lock_class=Lock).acquire())
            self.assertFalse(other.owned())
        self.assertFalse(lock.locked())

    def test_a_lock_that_is_dropped_is_not_renewed(self):
        lock = Lock(self.client, self.key, lease=1.0)
        lock.acquire()
        time.sleep(1.5)
        self.assertIsNotNone(self.info())
        del lock
        gc.collect()
        wait_for(lambda: self.info() is None)

    def test_what_goes_on_when_a_server_hangs_is_the_renewal_of_other_servers(self):
        proxy = self.proxy()
        proxy.hangs = True
        asking = threading.Thread(target=self.ask_in_vain, args=(Lock(self.client_of(proxy.port), self.key, wait=0),))
        asking.start()
        with Lock(self.client, self.key, lease=1.0) as lock:
            time.sleep(2.0)
            self.assertTrue(lock.check())
        asking.join()

    def test_a_server_that_answers_byte_by_byte_is_not_waited_for_without_limit(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self.drip, args=(listener,), daemon=True).start()
            start = time.monotonic()
            lock = Lock(redis.Redis(port=listener.getsockname()[1], protocol=2, socket_timeout=1), self.key, wait=0)
            with self.assertRaises(redis.RedisError):
                lock.acquire()
            self.assertLess(time.monotonic() - start, 10)

    def drip(self, listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self.drip_into, args=(connection,), daemon=True).start()

    def drip_into(self, connection):
        with contextlib.suppress(OSError), connection:
            for _ in range(200):
                connection.sendall(b"+")
                time.sleep(0.1)

    def ask_in_vain(self, lock):
        with self.assertRaises(redis.TimeoutError):
            lock.acquire()


class UnreachablePool:
    """Settings for a port where nobody listens."""

    connection_class = redis.Connection

    def __init__(self):
        self.connection_kwargs = {"host": "127.0.0.1", "port": closed_port()}


if __name__ == "__main__":
    unittest.main()
