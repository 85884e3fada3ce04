//! The only place that reads the time.

use crate::lock::time::{Now, Timestamp, WallTime};
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Where monotonic time begins: the first look at the clock.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The present on both clocks.
#[must_use]
pub fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    Now { mono: mono(), wall: WallTime(wall) }
}

/// The present on the monotonic clock.
#[must_use]
pub fn mono() -> Timestamp {
    Timestamp(ORIGIN.elapsed().as_micros() as u64)
}
