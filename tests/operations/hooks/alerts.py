"""The cause of each alert, before what docs/operations/alerts.md types for it."""

from causes import CAUSES, GRACE_CONF


def begin(name):
    def before(stage):
        stage.loaded(GRACE_CONF if name == "LockGrace" else "")
        # Waiters wait for as long as their connections are open.
        stage.kept = CAUSES[name](stage.first)

    return before


for alert in CAUSES:
    globals()[f"before_{alert.lower()}"] = begin(alert)
