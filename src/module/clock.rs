//! The only place that reads the time.

use crate::ffi::Unit;
use crate::lock::model::time::{Now, Timestamp, WallTime};
use std::cell::Cell;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How far the wall clock is ahead of the monotonic one is read anew after so long. To read both clocks each time would
/// cost as much as finding a key.
const WALL_KEPT_US: u64 = 1_000;

/// Both clocks of this process.
#[derive(Debug)]
pub struct Clock {
    /// Where monotonic time begins.
    origin: Instant,
    /// When both clocks were read last, and how far the wall clock was ahead.
    wall_ahead: Cell<Option<(Timestamp, u64)>>,
    /// The last unit, and the time of its first command.
    unit: Cell<(Unit, Timestamp)>,
}

impl Clock {
    /// A clock whose monotonic time begins now.
    pub(crate) fn new() -> Clock {
        Clock { origin: Instant::now(), wall_ahead: Cell::new(None), unit: Cell::new((Unit::Alone, Timestamp(0))) }
    }

    /// The present on both clocks. A wall clock that is set is followed after a millisecond.
    pub(crate) fn now(&self) -> Now {
        let mono = self.mono();
        let ahead = match self.wall_ahead.get() {
            Some((read, ahead)) if mono.0 < read.0 + WALL_KEPT_US => ahead,
            _ => {
                let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
                let ahead = wall.saturating_sub(mono.0);
                self.wall_ahead.set(Some((mono, ahead)));
                ahead
            }
        };
        Now { mono, wall: WallTime(mono.0 + ahead) }
    }

    /// By which time a command is judged that is called now: that of the first command of its unit. A lease that ends
    /// within a script is there for all of it.
    pub(crate) fn judged(&self, unit: Unit, now: Timestamp) -> Timestamp {
        let (last, began) = self.unit.get();
        if unit == last && unit != Unit::Alone {
            return began;
        }
        self.unit.set((unit, now));
        now
    }

    /// The server serves other clients now: a unit that it does not tell from the next one is over.
    pub(crate) fn end_unit(&self) {
        if self.is_unit_open() {
            self.unit.set((Unit::Alone, Timestamp(0)));
        }
    }

    /// Whether [`Clock::end_unit`] is to be called before the next command.
    pub(crate) fn is_unit_open(&self) -> bool {
        self.unit.get().0 == Unit::Inside
    }

    /// The present on the monotonic clock.
    pub(crate) fn mono(&self) -> Timestamp {
        Timestamp(self.origin.elapsed().as_micros() as u64)
    }
}
