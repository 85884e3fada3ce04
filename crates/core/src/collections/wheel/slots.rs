//! Where an entry of the wheel is linked: ticks, levels and slots, and their compact form in an entry.

use crate::model::time::Timestamp;

/// A millisecond of the monotonic clock. A deadline belongs to the first tick that is not before it.
pub(super) type Tick = u64;

pub(super) const SLOT_BITS: u32 = 6;
pub(super) const SLOTS: usize = 1 << SLOT_BITS;
/// Six levels of 64 slots turn once in 64^6 ms, two years.
pub(super) const LEVELS: usize = 6;
/// How far ahead an entry can be placed: as far as its tick can be told by four bytes of it, 49 days. It is more than
/// a slot of the highest level, and less than a turn of it by more than one.
pub(super) const REACH: Tick = u32::MAX as Tick;

/// Where an entry stands: its tick, and its neighbours in the list of its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stand {
    /// The last four bytes of the tick. All entries stand between `elapsed` and its reach, so that is enough.
    tick: u32,
    /// The entry before it, or the slot of which it is the first.
    pub(super) prev: Link,
    pub(super) next: Link,
}

impl Stand {
    pub(super) const NOWHERE: Stand = Stand { tick: 0, prev: Link::END, next: Link::END };

    pub(super) fn first_of(level: usize, slot: usize, tick: Tick, next: Link) -> Stand {
        Stand { tick: tick as u32, prev: Link::first_of(level, slot), next }
    }

    /// Its tick, which is not before `elapsed`.
    pub(super) fn tick(self, elapsed: Tick) -> Tick {
        elapsed + Tick::from(self.tick.wrapping_sub(elapsed as u32))
    }
}

/// The index of a neighbour in a list, or what is at its ends, in four bytes: the slot before the first entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link(u32);

impl Link {
    /// No index: there is memory for no arena so large.
    const NO_INDEX: u32 = u32::MAX - (LEVELS * SLOTS) as u32;

    pub(super) const END: Link = Link(u32::MAX);

    pub(super) fn to(index: u32) -> Link {
        Link(index)
    }

    fn first_of(level: usize, slot: usize) -> Link {
        Link(Link::NO_INDEX + ((level << SLOT_BITS) | slot) as u32)
    }

    pub(super) fn index(self) -> Option<u32> {
        (self.0 < Link::NO_INDEX).then_some(self.0)
    }

    /// The level and the slot whose first entry has this before it.
    pub(super) fn slot(self) -> (usize, usize) {
        let slot = self.0.saturating_sub(Link::NO_INDEX) as usize;
        (slot >> SLOT_BITS, slot % SLOTS)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// Bit n is set when slot n has entries.
    pub(super) occupied: u64,
    pub(super) heads: [Link; SLOTS],
}

pub(super) fn tick_of(deadline: Timestamp) -> Tick {
    deadline.0.div_ceil(1000)
}

/// The level at which an entry for `tick` lies, seen from `elapsed`: that of the highest digit, in base 64, in which
/// the two differ.
pub(super) fn level_of(elapsed: Tick, tick: Tick) -> usize {
    let differing = (elapsed ^ tick) | (SLOTS as u64 - 1);
    (((63 - differing.leading_zeros()) / SLOT_BITS) as usize).min(LEVELS - 1)
}

pub(super) fn slot_of(level: usize, tick: Tick) -> usize {
    ((tick >> (SLOT_BITS * level as u32)) % SLOTS as u64) as usize
}
