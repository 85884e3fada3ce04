//! The only place that reads the time.

use crate::lock::model::time::{Now, Timestamp, WallTime};
use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Where monotonic time begins: the first look at the clock.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How far the wall clock is ahead of the monotonic one is read anew after so long. Each of two looks at a clock would
/// cost as much as finding a key.
const WALL_KEPT_US: u64 = 1_000;

thread_local! {
    /// When both clocks were read last, and how far the wall clock was ahead.
    static WALL_AHEAD: Cell<Option<(Timestamp, u64)>> = const { Cell::new(None) };
}

/// The present on both clocks. A wall clock that is set is followed after a millisecond.
#[must_use]
pub fn now() -> Now {
    let mono = mono();
    let ahead = match WALL_AHEAD.get() {
        Some((read, ahead)) if mono.0 < read.0 + WALL_KEPT_US => ahead,
        _ => {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
            let ahead = wall.saturating_sub(mono.0);
            WALL_AHEAD.set(Some((mono, ahead)));
            ahead
        }
    };
    Now { mono, wall: WallTime(mono.0 + ahead) }
}

/// The present on the monotonic clock.
#[must_use]
pub fn mono() -> Timestamp {
    Timestamp(ORIGIN.elapsed().as_micros() as u64)
}
