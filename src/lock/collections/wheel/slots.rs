//! Where an entry of the wheel is linked: ticks, levels and slots, and their compact form in an entry.

use crate::lock::model::time::Timestamp;

/// A millisecond of the monotonic clock. A deadline belongs to the first tick that is not before it.
pub(super) type Tick = u64;

pub(super) const SLOT_BITS: u32 = 6;
pub(super) const SLOTS: usize = 1 << SLOT_BITS;
/// Seven levels of 64 slots reach 64^7 ms, 139 years, beyond the longest lease that can be configured.
pub(super) const LEVELS: usize = 7;
/// How far ahead an entry can be placed: one slot of the highest level less than a turn of it.
pub(super) const REACH: Tick = (SLOTS as u64 - 1) << (SLOT_BITS * (LEVELS as u32 - 1));

/// When an entry is due, and where it is linked meanwhile, in eight bytes: the tick in 55 bits, which is enough for
/// every deadline that there can be, the level in 3 and the slot in 6.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due(u64);

impl Due {
    pub(super) const PLACE_BITS: u32 = 9;

    pub(super) fn at(tick: Tick) -> Due {
        Due(tick << Due::PLACE_BITS)
    }

    pub(super) fn tick(self) -> Tick {
        self.0 >> Due::PLACE_BITS
    }

    pub(super) fn linked_at(self, level: usize, slot: usize) -> Due {
        Due((self.tick() << Due::PLACE_BITS) | ((level << SLOT_BITS) | slot) as u64)
    }

    pub(super) fn place(self) -> (usize, usize) {
        let place = (self.0 % (1 << Due::PLACE_BITS)) as usize;
        (place >> SLOT_BITS, place % SLOTS)
    }
}

/// The index of the next entry in a list, or its end, in four bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link(u32);

impl Link {
    pub(super) const END: Link = Link(u32::MAX);

    pub(super) fn to(index: u32) -> Link {
        Link(index)
    }

    pub(super) fn index(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
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
