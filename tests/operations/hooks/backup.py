"""What the recipes of docs/operations/backup.md begin with, and what they must not have broken."""

FENCE = "1795254138291343"  # as the page shows it


def fill(stage):
    stage.loaded("appendonly yes\n")
    stage.first.cli("SET", "before", "kept")
    stage.fences[FENCE] = stage.first.cli("LOCK.ACQUIRE", "report", "alice", "PX", "600000")


def before_make_a_backup(stage):
    fill(stage)


def after_make_a_backup(stage):
    # It has the lock, and what the page says of it next is true: it does not load without the module.
    machine = stage.first
    assert machine.must("stat -c %a /var/backups/redis.rdb").strip() == "600", "others may read the backup"
    machine.must("systemctl stop redis-server; rm -rf /var/lib/redis/appendonlydir")
    machine.must("cp /var/backups/redis.rdb /var/lib/redis/dump.rdb; sed -i /^appendonly/d /etc/redis/redis.conf")
    machine.must("systemctl start redis-server")
    assert machine.cli("LOCK.CHECK", "report", "alice") == stage.fences[FENCE]
    machine.must("redis-cli SAVE; systemctl stop redis-server; sed -i /^loadmodule/d /etc/redis/redis.conf")
    assert machine.bash("systemctl start redis-server")[0] != 0


def before_restore(stage):
    fill(stage)
    machine = stage.first
    machine.must("redis-cli --rdb /var/backups/redis.rdb")
    # What came after the backup is not in it.
    machine.cli("SET", "after", "lost")
    stage.later = machine.cli("LOCK.ACQUIRE", "later", "carol", "PX", "600000")


def after_restore(stage):
    machine = stage.first
    assert machine.cli("MGET", "before", "after") == "kept"
    assert machine.cli("EXISTS", "report") == "0"
    assert int(machine.cli("LOCK.ACQUIRE", "later", "dave", "PX", "600000")) > int(stage.later)
    machine.must("systemctl restart redis-server")
    assert machine.cli("GET", "before") == "kept"
    assert machine.cli("LOCK.CHECK", "later", "dave") != ""
    assert machine.cli("CONFIG", "GET", "appendonly") == "appendonly\nyes"
    assert machine.cli("CONFIG", "GET", "lock.grace-ms") == "lock.grace-ms\n0"
