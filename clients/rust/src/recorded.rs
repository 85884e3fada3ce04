//! The figures of locks as instruments of OpenTelemetry. Exports nothing: the application does.

use crate::listener::Listener;
use opentelemetry::metrics::{Counter, Histogram, Meter};
use std::time::Duration;

/// The bounds of the buckets, in seconds, from a round trip to work of hours. A meter's own are for milliseconds.
const BOUNDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0];

/// Returns a listener that records the figures with a meter of OpenTelemetry: with the feature `opentelemetry`.
///
/// Times are histograms in seconds: `redis_lock.waited`, `redis_lock.refused`, `redis_lock.held`, `redis_lock.lost`.
/// Counters are `redis_lock.renewal_failed`, and `redis_lock.dropped` for what the listener missed. None has an
/// attribute.
///
/// ```no_run
/// use redis_lock_client::{Client, opentelemetry, recorded};
///
/// let meter = opentelemetry::global::meter("app");
/// let client = Client::open("redis://127.0.0.1")?.listener(recorded(&meter))?;
/// # Ok::<(), redis_lock_client::Error>(())
/// ```
pub fn recorded(meter: &Meter) -> impl Listener + use<> {
    let times = |name, description| {
        let histogram = meter.f64_histogram(name).with_unit("s").with_description(description);
        histogram.with_boundaries(BOUNDS.to_vec()).build()
    };
    let count = |name, unit, description| meter.u64_counter(name).with_unit(unit).with_description(description).build();
    Recorder {
        waited: times("redis_lock.waited", "from the first request to the grant"),
        refused: times("redis_lock.refused", "how long others had a lock that was not granted"),
        held: times("redis_lock.held", "from the grant to the release"),
        lost: times("redis_lock.lost", "from the grant to the loss"),
        failures: count("redis_lock.renewal_failed", "{renewal}", "renewals that failed, and were tried again"),
        dropped: count("redis_lock.dropped", "{figure}", "figures that came faster than they were recorded"),
    }
}

struct Recorder {
    waited: Histogram<f64>,
    refused: Histogram<f64>,
    held: Histogram<f64>,
    lost: Histogram<f64>,
    failures: Counter<u64>,
    dropped: Counter<u64>,
}

impl Listener for Recorder {
    fn waited(&self, time: Duration) {
        self.waited.record(time.as_secs_f64(), &[]);
    }

    fn refused(&self, time: Duration) {
        self.refused.record(time.as_secs_f64(), &[]);
    }

    fn held(&self, time: Duration) {
        self.held.record(time.as_secs_f64(), &[]);
    }

    fn lost(&self, time: Duration) {
        self.lost.record(time.as_secs_f64(), &[]);
    }

    fn renewal_failed(&self) {
        self.failures.add(1, &[]);
    }

    fn dropped(&self, calls: u64) {
        self.dropped.add(calls, &[]);
    }
}
