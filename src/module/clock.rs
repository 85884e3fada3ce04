//! The only place that reads the time.

use lock_core::model::time::{Now, Timestamp, WallTime};
use server_api::time::monotonic_us;
use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

/// How far the wall clock is ahead of the monotonic one is read anew after so long. To read both clocks each time would
/// cost as much as finding a key.
const WALL_KEPT_US: u64 = 1_000;

/// Both clocks of this process.
#[derive(Debug)]
pub struct Clock {
    /// Where monotonic time begins.
    origin: u64,
    /// When both clocks were read last, and how far the wall clock was ahead.
    wall_ahead: Cell<Option<(Timestamp, u64)>>,
    /// The time of the first command of the transaction or script that may go on.
    unit: Cell<Option<Timestamp>>,
}

impl Clock {
    /// A clock whose monotonic time begins now.
    pub(crate) fn new() -> Clock {
        Clock { origin: monotonic_us(), wall_ahead: Cell::new(None), unit: Cell::new(None) }
    }

    /// The present on both clocks. A wall clock that is set is followed after a millisecond.
    #[inline]
    pub(crate) fn now(&self) -> Now {
        let mono = self.mono();
        let ahead = match self.wall_ahead.get() {
            Some((read, ahead)) if mono.0 < read.0 + WALL_KEPT_US => ahead,
            _ => self.read_wall(mono),
        };
        Now { mono, wall: WallTime(mono.0 + ahead) }
    }

    /// Reads how far the wall clock is ahead.
    #[inline(never)]
    fn read_wall(&self, mono: Timestamp) -> u64 {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let ahead = wall.saturating_sub(mono.0);
        self.wall_ahead.set(Some((mono, ahead)));
        ahead
    }

    /// By which time a command is judged that is called now. All of a transaction or a script have one time, that of
    /// their first command: a lease that ends within a script is there for all of it.
    pub(crate) fn judged(&self, is_nested: bool, now: Timestamp) -> Timestamp {
        let began = self.unit.get().filter(|_| is_nested).unwrap_or(now);
        self.unit.set(is_nested.then_some(began));
        began
    }

    /// The server turns to other clients: what called the last commands is done.
    pub(crate) fn end_unit(&self) {
        self.unit.set(None);
    }

    /// True if [`Clock::end_unit`] is to be called when the server does so.
    pub(crate) fn is_unit_open(&self) -> bool {
        self.unit.get().is_some()
    }

    /// The present on the monotonic clock.
    pub(crate) fn mono(&self) -> Timestamp {
        // If the system's clock went back, as after a restored snapshot of a machine, time stands still.
        Timestamp(monotonic_us().saturating_sub(self.origin))
    }
}
