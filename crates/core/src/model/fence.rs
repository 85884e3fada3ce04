//! Fences: the rising numbers by which a protected resource tells an old holder from a new one.
//!
//! One clock per node, never one counter per key: a deleted key leaves nothing behind that would have to be remembered.
//! The idea of the fencing token is Martin Kleppmann's, "How to do distributed locking" (2016).

use super::time::{Millis, WallTime};
use core::num::NonZeroU64;

/// The number given with each new hold; greater than 0 and below 2^53, so that it is exact in a double.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Zero is no fence, so that an Option of it costs nothing.
pub struct Fence(NonZeroU64);

impl Fence {
    /// The highest fence there can be: 2^53 - 1, the highest integer that JavaScript holds exactly.
    pub const MAX: Fence = Fence(NonZeroU64::new((1 << 53) - 1).expect("is not zero"));

    /// A fence from outside, if it is in range.
    #[must_use]
    pub fn new(value: u64) -> Option<Fence> {
        NonZeroU64::new(value).filter(|value| *value <= Self::MAX.0).map(Fence)
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// True if this fence lies more than a year ahead of the wall clock. No clock of ours made such a fence, and to
    /// accept it from a client would poison ours.
    #[must_use]
    pub fn is_far_ahead(self, wall: WallTime) -> bool {
        const YEAR_US: u64 = 366 * 24 * 3600 * 1_000_000;
        self.get() > wall.0.saturating_add(YEAR_US)
    }
}

/// The node's one source of fences: `fence = max(last + 1, wall clock in microseconds)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceClock {
    last: u64,
    /// True if it has jumped since the process began.
    begun: bool,
}

impl FenceClock {
    /// A wall clock beyond this is not believed, so that one bad setting of it cannot use up the fences up to
    /// [`Fence::MAX`]. It is reached in the year 2255.
    const WALL_MAX: u64 = Fence::MAX.get() - (1 << 40);

    /// A clock that has given and seen no fence.
    #[must_use]
    pub const fn new() -> FenceClock {
        FenceClock { last: 0, begun: false }
    }

    /// Gives the next fence; None when there is none left.
    pub fn next(&mut self, wall: WallTime) -> Option<Fence> {
        self.next_from(None, wall)
    }

    /// The same, of at least this one. It is to be one that the clock [admits](FenceClock::admits).
    pub fn next_from(&mut self, least: Option<Fence>, wall: WallTime) -> Option<Fence> {
        let fence = Fence::new(self.least_next(wall).max(least.map_or(0, Fence::get)))?;
        self.last = fence.get();
        Some(fence)
    }

    /// True if a client may have this fence if it asks for it: it was given or seen already, or it is ahead of the wall
    /// clock by half of `skew` at most.
    ///
    /// The other half is left for wall clocks that differ: a promotion jumps by all of `skew`.
    #[must_use]
    pub fn admits(self, fence: Fence, wall: WallTime, skew: Millis) -> bool {
        let furthest = wall.0.min(Self::WALL_MAX).saturating_add(skew.0.saturating_mul(500));
        fence.get() <= self.last.max(furthest)
    }

    /// How many fences can still be given.
    #[must_use]
    pub fn left(self, wall: WallTime) -> u64 {
        (Fence::MAX.get() + 1).saturating_sub(self.least_next(wall))
    }

    fn least_next(self, wall: WallTime) -> u64 {
        (self.last + 1).max(wall.0.min(Self::WALL_MAX))
    }

    /// Takes note of a fence that was given elsewhere or before: no later one will be below it.
    pub fn observe(&mut self, fence: Fence) {
        self.last = self.last.max(fence.get());
    }

    /// Before the first fence that this process gives: skips the fences that the process before it may have given
    /// unrecorded. That one may itself have been ahead of the wall clock by a jump.
    pub fn begin(&mut self, wall: WallTime, skew: Millis) {
        if !self.begun {
            self.jump(wall, skew);
        }
    }

    /// On becoming primary: skips the fences that the old primary may have given unseen, while its clock was ahead by
    /// up to `skew`.
    pub fn jump(&mut self, wall: WallTime, skew: Millis) {
        let from = self.last.max(wall.0.min(Self::WALL_MAX));
        self.last = from.saturating_add(skew.0.saturating_mul(1000)).min(Fence::MAX.get());
        self.begun = true;
    }

    /// On gaining slots: skips the fences that their old node may have given on keys that are free, while its wall
    /// clock was ahead by up to `skew`. Many slots that come one after the other lead no further than one.
    pub fn lead(&mut self, wall: WallTime, skew: Millis) {
        let mut led = FenceClock::new();
        led.jump(wall, skew);
        self.last = self.last.max(led.last);
    }

    /// The last fence given or seen; None when there was none yet.
    #[must_use]
    pub fn last(self) -> Option<Fence> {
        Fence::new(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_rise_while_the_wall_clock_is_set_back() {
        let mut clock = FenceClock::default();
        let fences = [5_000, 1_000, 9_000].map(|wall| clock.next(WallTime(wall)).unwrap().get());
        assert_eq!(fences, [5_000, 5_001, 9_000]);
    }

    #[test]
    fn an_exhausted_clock_gives_nothing_and_stays() {
        let mut clock = FenceClock::default();
        clock.observe(Fence::new(Fence::MAX.get() - 1).unwrap());
        assert_eq!(clock.left(WallTime(0)), 1);
        assert_eq!(clock.next(WallTime(0)), Some(Fence::MAX));
        assert_eq!(clock.left(WallTime(0)), 0);
        assert_eq!(clock.next(WallTime(0)), None);
        assert_eq!(clock.last(), Some(Fence::MAX));
    }

    #[test]
    fn a_wall_clock_gone_mad_does_not_use_up_the_fences() {
        let mut clock = FenceClock::default();
        assert!(clock.next(WallTime(u64::MAX)).is_some());
        assert!(clock.next(WallTime(u64::MAX)).is_some());
    }

    #[test]
    fn becoming_primary_jumps_over_what_the_old_one_may_have_given() {
        let mut clock = FenceClock::default();
        clock.observe(Fence::new(7_000).unwrap());
        clock.jump(WallTime(5_000), Millis(2));
        assert_eq!(clock.last().unwrap().get(), 9_000);
    }

    #[test]
    fn slots_that_come_one_after_the_other_lead_no_further_than_one() {
        let mut clock = FenceClock::default();
        clock.observe(Fence::new(6_000).unwrap());
        clock.lead(WallTime(5_000), Millis(2));
        clock.lead(WallTime(5_000), Millis(2));
        assert_eq!(clock.last().unwrap().get(), 7_000);
        clock.lead(WallTime(1_000), Millis(2));
        assert_eq!(clock.last().unwrap().get(), 7_000, "never back");
    }

    #[test]
    fn a_process_begins_above_what_the_one_before_may_have_given_after_a_promotion() {
        // Promoted, one grant, killed with nothing saved, started again within the second: its fence went back.
        let (mut before, mut after) = (FenceClock::default(), FenceClock::default());
        before.jump(WallTime(5_000_000), Millis(1_000));
        let lost = before.next(WallTime(5_000_010)).unwrap();
        after.begin(WallTime(5_020_000), Millis(1_000));
        let first = after.next(WallTime(5_020_000)).unwrap();
        assert!(first > lost);
        after.begin(WallTime(5_020_000), Millis(1_000));
        assert_eq!(after.next(WallTime(0)).unwrap().get(), first.get() + 1, "it jumps once");
    }

    #[test]
    fn zero_and_two_to_the_53_are_no_fences() {
        assert_eq!(Fence::new(0), None);
        assert_eq!(Fence::new(1 << 53), None);
        assert!(Fence::new((1 << 53) - 1).is_some());
    }
}
