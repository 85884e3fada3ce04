//! Points in time and spans between them. Never reads a clock: the caller says what time it is.
//!
//! Absolute and relative time, monotonic and wall, are four types that do not mix.

use core::ops::Add;

/// A span of time in milliseconds: a lease, what is left of it, a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// A moment on this process's monotonic clock, in microseconds since an origin that the caller chose.
///
/// Leases end by it. It means nothing on another machine or after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// A moment on the wall clock, in microseconds since 1970. May jump either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub u64);

/// The present, read once per command on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The clock of leases.
    pub mono: Timestamp,
    /// The clock that fences start from, which survives a restart.
    pub wall: WallTime,
}

impl Add<Millis> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Millis) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0.saturating_mul(1000)))
    }
}

impl Timestamp {
    /// Returns the time from `now` until this moment, rounded up so that a copy never ends before the original; 0 when
    /// past.
    #[must_use]
    pub fn left(self, now: Timestamp) -> Millis {
        Millis(self.0.saturating_sub(now.0).div_ceil(1000))
    }

    /// How long ago this moment was, rounded down; 0 when it lies ahead.
    #[must_use]
    pub fn ago(self, now: Timestamp) -> Millis {
        Millis(now.0.saturating_sub(self.0) / 1000)
    }
}

impl WallTime {
    /// In milliseconds since 1970, rounded up.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// From milliseconds since 1970.
    #[must_use]
    pub fn from_millis(ms: u64) -> WallTime {
        WallTime(ms.saturating_mul(1000))
    }
}

impl Now {
    /// The wall-clock time of a monotonic deadline, as the two clocks stand now.
    #[must_use]
    pub fn wall_at(self, deadline: Timestamp) -> WallTime {
        WallTime(self.wall.0.saturating_add(deadline.0.saturating_sub(self.mono.0)))
    }

    /// Returns the time until a wall-clock deadline, rounded up; 0 when past.
    #[must_use]
    pub fn left_until(self, deadline: WallTime) -> Millis {
        Millis(deadline.0.saturating_sub(self.wall.0).div_ceil(1000))
    }
}
