"""What locks do, for the figures of an application."""

from __future__ import annotations

from typing import Any, Protocol

from redis_lock_client._trouble import OWN, logger


class Listener:
    """Hears what locks do, to count it: `Lock(..., listener=...)`. Override what is of interest. Times are in seconds.

    It is called in the thread that acquires or releases, in a thread of its own for what a renewal finds, and with
    asyncio in the event loop. What it raises is logged. The key is not told: as a label of a figure it would make one
    of each key.
    """

    def waited(self, seconds: float) -> None:
        """A lock was granted, so long after it was asked for."""

    def refused(self, seconds: float) -> None:
        """A lock was not granted: others had it, for so long."""

    def held(self, seconds: float) -> None:
        """A lock was released, or let lapse, after it was held for so long."""

    def lost(self, seconds: float) -> None:
        """A lock was lost, after it was held for so long."""

    def renewal_failed(self) -> None:
        """A renewal failed, and will be tried again."""


class Meter(Protocol):
    """What the figures need of a `Meter` of OpenTelemetry."""

    def create_histogram(
        self, name: str, unit: str = ..., description: str = ..., *, explicit_bucket_boundaries_advisory: Any = ...
    ) -> Any:
        """Makes a histogram."""

    def create_counter(self, name: str, unit: str = ..., description: str = ...) -> Any:
        """Makes a counter."""


# In seconds, from a round trip to work of hours. A meter's own are for milliseconds.
_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)


class _Recorder(Listener):
    def __init__(self, meter: Meter) -> None:
        def times(what: str, description: str) -> Any:
            histogram = meter.create_histogram(
                f"redis_lock.{what}", unit="s", description=description, explicit_bucket_boundaries_advisory=_BOUNDS
            )
            return histogram.record

        self.waited = times("waited", "from the first request to the grant")  # type: ignore[method-assign]
        self.refused = times("refused", "how long others had it")  # type: ignore[method-assign]
        self.held = times("held", "from the grant to the release")  # type: ignore[method-assign]
        self.lost = times("lost", "from the grant to the loss")  # type: ignore[method-assign]
        text = "renewals that failed, and were tried again"
        self.failures = meter.create_counter("redis_lock.renewal_failed", unit="{renewal}", description=text)

    def renewal_failed(self) -> None:
        self.failures.add(1)


def recorded(meter: Meter) -> Listener:
    """Records the figures with a meter of OpenTelemetry: `Lock(..., listener=recorded(metrics.get_meter("app")))`."""
    return _Recorder(meter)


def tell(listener: Listener, what: str, *seconds: float) -> None:
    """Tells one figure. Whatever the listener raises harms nothing."""
    try:
        getattr(listener, what)(*seconds)
    except OWN:
        logger.exception("the listener has failed")
