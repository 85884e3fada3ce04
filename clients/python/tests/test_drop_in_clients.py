"""All clients with the helper's lock, of redis-py and valkey-py: on 127.0.0.1:REDIS_LOCK_PORT, and on a cluster."""

import asyncio
import importlib.util
import inspect
import pickle
import unittest

import redis
from stage import PORT, Cluster, closed_port

from redis_lock_client import Deadlock, LockLost, drop_in
from redis_lock_client._transport import servers

PATIENCE = 60


async def done(said):
    """What a call says, of a blocking client or of one of asyncio."""
    return await said if inspect.isawaitable(said) else said


class Clients:
    """Of one library: the classes of its drop-in, for one server and for a cluster, and its errors."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def play(self, steps):
        for kind in self.alone:
            with self.subTest(kind):
                asyncio.run(self.played(kind, PORT, steps, redis.Redis(port=PORT)))
        for kind in self.clusters:
            with self.subTest(kind):
                asyncio.run(self.played(kind, self.cluster.ports[0], steps, self.cluster.client()))

    async def played(self, kind, port, steps, others):
        client = kind(host="127.0.0.1", port=port)
        try:
            for number in range(4):  # keys of both nodes
                key = f"clients:{number}"
                others.delete(key)
                await steps(client, key, others)
        finally:
            others.close()
            await done(getattr(client, "aclose", client.close)())

    def test_the_lock_keeps_others_out_and_is_extended_and_given_back(self):
        async def steps(client, key, others):
            lock, other = client.lock(key, timeout=PATIENCE), client.lock(key, blocking_timeout=0.05)
            self.assertIs(await done(lock.acquire(blocking=False)), True)
            self.assertTrue(others.execute_command("LOCK.CHECK", key, lock.owner))
            self.assertFalse(await done(other.acquire()))
            self.assertTrue(await done(other.locked()))
            self.assertIs(await done(lock.extend(PATIENCE)), True)
            self.assertGreater(lock.valid_for, PATIENCE)
            await done(lock.release())
            self.assertIs(await done(other.acquire()), True)
            await done(other.release())
            self.assertFalse(others.exists(key))

        self.play(steps)

    def test_errors_are_those_of_the_library_and_the_helpers(self):
        async def steps(client, key, others):
            lock = client.lock(key, timeout=PATIENCE)
            with self.assertRaises(self.errors.LockError):
                await done(lock.release())
            await done(lock.acquire())
            others.execute_command("LOCK.BREAK", key)
            with self.assertRaises(self.errors.LockNotOwnedError) as caught:
                await done(lock.extend(1))
            self.assertIsInstance(caught.exception, LockLost)
            with self.assertRaises(self.errors.LockNotOwnedError):
                await done(lock.release())

        self.play(steps)

    def test_a_block_raises_the_librarys_errors_too(self):
        async def steps(client, key, _):
            if not hasattr(client.lock(key), "__aexit__"):
                with client.lock(key):
                    with self.assertRaises(self.errors.LockError) as caught, client.lock(key):
                        self.fail("two hold it")
                    self.assertIsInstance(caught.exception, Deadlock)
                    with self.assertRaises(self.errors.LockError), client.lock(key, blocking=False):
                        self.fail("two hold it")
                return
            async with client.lock(key):
                for named in ({}, {"blocking": False}):
                    with self.assertRaises(self.errors.LockError):
                        async with client.lock(key, **named):
                            self.fail("two hold it")

        self.play(steps)

    def test_the_lock_of_a_pipeline_is_the_clients(self):
        async def steps(client, key, others):
            pipeline = client.pipeline()
            lock = pipeline.lock(key, timeout=PATIENCE)
            self.assertIs(type(lock), type(client.lock(key)))
            self.assertIs(await done(lock.acquire(blocking=False)), True)
            self.assertTrue(others.execute_command("LOCK.CHECK", key, lock.owner))
            self.assertFalse(await done(client.lock(key).acquire(blocking=False)))
            await done(lock.release())

        self.play(steps)

    def test_a_server_that_is_down_is_an_error_of_the_library(self):
        async def play(kind):
            client = kind(port=closed_port())
            with self.assertRaises(self.errors.ConnectionError):
                await done(client.lock("k", blocking=False).acquire())
            await done(getattr(client, "aclose", client.close)())

        for kind in self.alone:
            with self.subTest(kind):
                asyncio.run(play(kind))


class RedisClientsTest(Clients, unittest.TestCase):
    alone = drop_in.Redis, drop_in.AsyncRedis
    clusters = drop_in.RedisCluster, drop_in.AsyncRedisCluster
    errors = redis.exceptions


@unittest.skipUnless(importlib.util.find_spec("valkey"), "valkey-py is not installed")
class ValkeyClientsTest(Clients, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import valkey  # noqa: PLC0415 - it may not be there

        from redis_lock_client import drop_in_valkey  # noqa: PLC0415

        cls.ours, cls.valkey, cls.errors = drop_in_valkey, valkey, valkey.exceptions
        cls.alone = cls.ours.Valkey, cls.ours.AsyncValkey
        cls.clusters = cls.ours.ValkeyCluster, cls.ours.AsyncValkeyCluster

    def test_its_requests_have_the_settings_of_the_client(self):
        admin = redis.Redis(port=PORT)
        self.addCleanup(admin.close)
        admin.acl_setuser("valkey", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
        self.addCleanup(admin.acl_deluser, "valkey")
        client = self.ours.Valkey.from_url(f"redis://valkey:secret@127.0.0.1:{PORT}/3", client_name="from-valkey")
        self.addCleanup(client.close)
        with client.lock("clients:settings", timeout=PATIENCE):
            mine = [one for one in admin.client_list() if one["name"] == "from-valkey"]
            self.assertEqual({(one["user"], one["db"]) for one in mine}, {("valkey", "3")})
            self.assertTrue(client.exists("clients:settings"))

    def test_its_connections_begin_as_those_of_the_client(self):
        def begin(connection):
            begun.append(type(connection))
            connection.on_connect()

        for kind, port in ((self.ours.Valkey, PORT), (self.ours.ValkeyCluster, self.cluster.ports[0])):
            with self.subTest(kind):
                begun = []
                client = kind(host="127.0.0.1", port=port, valkey_connect_func=begin)
                self.addCleanup(client.close)
                with client.lock("clients:begun"):
                    self.assertIn(redis.Connection, begun)

    def test_clients_with_one_pool_have_one_renewer(self):
        pool = self.valkey.ConnectionPool(port=PORT)
        self.addCleanup(pool.disconnect)
        before = set(servers)
        for _ in range(5):
            with self.ours.Valkey(connection_pool=pool).lock("clients:pool"):
                pass
        self.assertEqual(len(set(servers) - before), 1)

    def test_a_connection_of_another_kind_is_refused(self):
        class Odd(self.valkey.Connection):
            pass

        client = self.ours.Valkey(connection_pool=self.valkey.ConnectionPool(Odd))
        self.assertRaisesRegex(TypeError, "connections of the class Odd", client.lock, "k")

    def test_an_error_goes_to_another_process(self):
        lock = self.ours.Valkey(port=PORT).lock("clients:pickled")
        with self.assertRaises(self.errors.LockError) as caught:
            lock.release()
        error = pickle.loads(pickle.dumps(caught.exception))  # noqa: S301 - it is our own
        self.assertEqual((type(error), str(error)), (type(caught.exception), str(caught.exception)))


if __name__ == "__main__":
    unittest.main()
