"""What the recipes of docs/operations/configuring.md begin with, and what they must not have broken."""


def before(stage):
    stage.installed()


def before_one_server_that_keeps_its_locks(stage):
    stage.installed()
    # What could go wrong: a server that begins to use an append-only file at its start loses what it had.
    stage.first.cli("SET", "before", "kept")


def after_one_server_that_keeps_its_locks(stage):
    assert stage.first.cli("GET", "before") == "kept", "the data of before is gone"
