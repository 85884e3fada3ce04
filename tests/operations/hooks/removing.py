"""What the recipes of docs/operations/removing.md begin with, and what they must not have broken.

They are about each server: make test-servers runs them on all.
"""

import time

from machine import Stage

LIBRARY = "#!lua name=kept\nredis.register_function('kept', function() return 'kept' end)"
DATA = {
    "SET text value": "GET text",
    "SET short value EX 100000": "TTL short",
    "RPUSH list a b c": "LRANGE list 0 -1",
    "HSET hash field value": "HGETALL hash",
    "ZADD scores 1.5 one 2 two": "ZRANGE scores 0 -1 WITHSCORES",
    "XADD stream 1-1 field value": "XRANGE stream - +",
}


def fill(machine):
    """Data of each kind, locks that are held, and a user with rights to them."""
    for write in DATA:
        machine.cli(*write.split())
    machine.cli("FUNCTION", "LOAD", LIBRARY)
    machine.must("redis-cli -n 3 SET text other")
    for lock in ("LOCK.ACQUIRE report alice PX 600000", "LOCK.RW page reader READ PX 600000"):
        assert int(machine.cli(*lock.split())) > 0
    machine.must("redis-cli -n 3 LOCK.ACQUIRE 'a name' alice PX 600000")
    machine.cli("ACL", "SETUSER", "app", "on", ">change-me", "~lock:*", "+lock.acquire", "+lock.release")
    machine.cli("CONFIG", "REWRITE")


def assert_filled(machine):
    """All is there but the locks."""
    assert machine.cli("GET", "text") == "value"
    assert 0 < int(machine.cli("TTL", "short")) <= 100000
    assert machine.cli("LRANGE", "list", "0", "-1") == "a\nb\nc"
    assert machine.cli("HGETALL", "hash") == "field\nvalue"
    assert machine.cli("ZRANGE", "scores", "0", "-1", "WITHSCORES") == "one\n1.5\ntwo\n2"
    assert machine.cli("XRANGE", "stream", "-", "+") == "1-1\nfield\nvalue"
    assert "kept" in machine.cli("FUNCTION", "LIST")
    assert machine.must("redis-cli -n 3 GET text | cat").strip() == "other"
    assert machine.cli("DBSIZE") == str(len(DATA)), "a lock has stayed"
    assert "lock" not in machine.cli("COMMAND", "LIST", "FILTERBY", "PATTERN", "lock.*")


def assert_free(machine):
    """Each of its files loads without the module."""
    assert_filled(machine)
    assert machine.path("/var/lib/redis/dump.rdb").exists(), "no RDB file was written anew"
    machine.must("systemctl restart redis-server")
    assert_filled(machine)
    machine.must("systemctl stop redis-server; rm -rf /var/lib/redis/appendonlydir")
    machine.must("sed -i 's/^appendonly yes/appendonly no/' /etc/redis/redis.conf; systemctl start redis-server")
    assert_filled(machine)


def before_one_server(stage):
    stage.loaded("lock.default-lease-ms 10000\n")
    fill(stage.first)


def after_one_server(stage):
    assert_free(stage.first)
    # The file that was moved away does need the module: otherwise these steps would be for nothing.
    stage.first.must("systemctl stop redis-server; cp /var/backups/with-locks.rdb /var/lib/redis/dump.rdb")
    assert stage.first.bash("systemctl start redis-server")[0] != 0, "it starts with a file that has locks"


def test_one_server_that_has_an_append_only_file_with_a_preamble():
    with Stage("a file with a preamble", ["10.0.0.1"]) as stage:
        stage.loaded("appendonly yes\nlock.default-lease-ms 10000\n")
        fill(stage.first)
        stage.follow("removing", "One server")
        assert_free(stage.first)


def test_a_lock_that_is_taken_after_the_file_was_written_keeps_the_server_from_starting():
    # What could go wrong: the page lets an operator believe that nothing is to be stopped.
    with Stage("a lock comes late", ["10.0.0.1"]) as stage:
        stage.loaded("appendonly yes\naof-use-rdb-preamble no\n")
        stage.first.must("redis-cli LOCK.ACQUIRE report alice; systemctl stop redis-server")
        stage.first.must("sed -i /^loadmodule/d /etc/redis/redis.conf")
        assert stage.first.bash("systemctl start redis-server")[0] != 0
        assert "nknown command 'LOCK.HOLD'" in stage.logs()


def before_a_primary_and_its_replicas(stage):
    primary, replica = stage.machines["10.0.0.1"], stage.machines["10.0.0.2"]
    primary.write("/etc/redis/redis.conf", "bind 127.0.0.1 10.0.0.1\nprotected-mode no\n", add=True)
    replica.write("/etc/redis/redis.conf", "replicaof 10.0.0.1 6379\nappendonly yes\n", add=True)
    stage.loaded("repl-diskless-sync-delay 0\n")
    fill(primary)
    replica.cli("ACL", "SETUSER", "app", "on", "+lock.acquire")
    in_step(replica)
    stage.follow("removing", "One server")
    in_step(replica)


def after_a_primary_and_its_replicas(stage):
    replica = stage.machines["10.0.0.2"]
    assert_filled(replica)
    replica.must("systemctl restart redis-server")
    in_step(replica)
    assert_filled(replica)


def in_step(replica):
    deadline = time.monotonic() + 60
    while "master_link_status:up" not in replica.cli("INFO", "replication"):
        assert time.monotonic() < deadline, "the replica does not follow"
        time.sleep(0.05)


def before_a_server_that_does_not_start(stage):
    stage.loaded()
    fence = stage.first.cli("LOCK.ACQUIRE", "report", "alice", "PX", "600000")
    stage.fences["1795254138291343"] = fence
    stage.first.must("redis-cli SAVE; systemctl stop redis-server; sed -i /^loadmodule/d /etc/redis/redis.conf")


def before_a_replica_that_exits(stage):
    stage.add("10.0.0.1")
    primary, replica = stage.machines["10.0.0.1"], stage.machines["10.0.0.2"]
    primary.write("/etc/redis/redis.conf", "bind 127.0.0.1 10.0.0.1\nprotected-mode no\n", add=True)
    replica.must("systemctl start redis-server")
    stage.loaded("repl-diskless-sync-delay 0\n", only=[primary])
    primary.cli("LOCK.ACQUIRE", "report", "alice", "PX", "600000")
    replica.write("/etc/redis/redis.conf", "replicaof 10.0.0.1 6379\n", add=True)
    # It exits as soon as it has copied, perhaps while systemctl still waits.
    replica.bash("systemctl restart redis-server")
    deadline = time.monotonic() + 60
    while replica.bash("systemctl is-active redis-server")[0] == 0:
        assert time.monotonic() < deadline, "the replica goes on"
        time.sleep(0.05)


def after_a_replica_that_exits(stage):
    replica = stage.machines["10.0.0.2"]
    assert replica.cli("EXISTS", "report") == "1"
