"""What the recipes of docs/operations/configuring.md begin with, and what they must not have broken."""


def before(stage):
    stage.installed()


def before_one_server_that_keeps_its_locks(stage):
    stage.installed()
    # What could go wrong: a server that begins to use an append-only file at its start loses what it had.
    stage.first.cli("SET", "before", "kept")


def after_one_server_that_keeps_its_locks(stage):
    assert stage.first.cli("GET", "before") == "kept", "the data of before is gone"
    # A crash, unlike a restart, saves nothing.
    stage.first.cli("CONFIG", "SET", "appendfsync", "always")
    fence = stage.first.cli("LOCK.ACQUIRE", "report", "bob", "PX", "600000")
    stage.first.must("systemctl kill --signal=KILL redis-server; systemctl start redis-server")
    assert stage.first.cli("LOCK.CHECK", "report", "bob") == fence, "a crash has lost the lock"
