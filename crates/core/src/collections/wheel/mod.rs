//! An index of things by deadline: a hierarchical timing wheel (Varghese and Lauck, 1987).
//!
//! Arming and disarming cost the same whether ten entries stand in it or ten million. A poll for what is due does a
//! small bounded piece of work, so that a million leases ending in one millisecond stall no client. The wheel ends
//! nothing and reads no clock: it only says what is due.
//!
//! In the index of leases one entry stands for one key, at the earliest deadline on it or before. A lease made longer
//! leaves its entry where it is: an early poll costs less than moving the entry each time.

mod slots;

pub use super::arena::Generations;
use super::arena::{Arena, Id};
use crate::model::time::Timestamp;
use alloc::collections::BTreeMap;
use slots::{LEVELS, Level, Link, REACH, SLOT_BITS, SLOTS, Stand, Tick, level_of, slot_of, tick_of};

/// Names one entry. An old one finds nothing.
pub type EntryId = Id;
/// How many entries one call of [`Wheel::poll`] moves down a level before its caller may read the clock.
const ITEMS_PER_POLL: usize = 64;

/// The index.
#[derive(Debug)]
pub struct Wheel<T> {
    entries: Arena<T, Stand>,
    levels: [Level; LEVELS],
    /// The ticks of entries beyond the reach of the wheel, by their index. They stand within it until they are moved.
    far: BTreeMap<u32, Tick>,
    /// All ticks before this one have been polled.
    elapsed: Tick,
    /// A slot that is being emptied: its entries belong to lower levels by now. `elapsed` stands still meanwhile.
    emptying: Option<(usize, usize)>,
    /// No slot with an entry starts before this tick. Disarming an entry leaves it as it is; a poll that finds nothing
    /// corrects it.
    soonest: Tick,
}

/// The result of a poll of the index.
#[derive(Debug, PartialEq, Eq)]
pub enum Poll<T> {
    /// This one's deadline has come: a key whose earliest lease may be over.
    Due(EntryId, T),
    /// Entries were moved: poll again, after reading the clock.
    Pending,
    /// Nothing is due.
    Idle,
}

impl<T> Default for Wheel<T> {
    fn default() -> Wheel<T> {
        Wheel::new()
    }
}

impl<T> Wheel<T> {
    /// The size of an entry.
    pub(crate) const ENTRY: usize = Arena::<T, Stand>::SLOT;

    /// Bytes that an entry costs, without what it has outside of itself.
    #[must_use]
    pub fn entry_bytes() -> usize {
        Arena::<T, Stand>::slot_bytes()
    }

    /// Without an entry.
    #[must_use]
    pub const fn new() -> Wheel<T> {
        let level = Level { occupied: 0, heads: [Link::END; SLOTS] };
        Wheel {
            entries: Arena::new(),
            levels: [level; LEVELS],
            far: BTreeMap::new(),
            elapsed: 0,
            emptying: None,
            soonest: Tick::MAX,
        }
    }
}

impl<T: Clone> Wheel<T> {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives back the memory of some entries of an index that is not used any more; false when all is given back.
    pub fn shed(&mut self) -> bool {
        self.entries.shed()
    }

    /// Adds an entry.
    pub fn arm(&mut self, what: T, deadline: Timestamp, generations: &mut Generations) -> EntryId {
        let id = self.entries.insert_beside(what, Stand::NOWHERE, generations);
        self.link(id.index(), tick_of(deadline));
        id
    }

    /// Removes an entry; false if it was gone already.
    pub fn disarm(&mut self, id: EntryId) -> bool {
        if self.entries.get(id).is_none() {
            return false;
        }
        self.unlink(id.index());
        self.entries.discard(id)
    }

    /// Moves an entry to another deadline; false if the entry is gone.
    pub fn rearm(&mut self, id: EntryId, deadline: Timestamp) -> bool {
        if self.entries.get(id).is_none() {
            return false;
        }
        self.unlink(id.index());
        self.link(id.index(), tick_of(deadline));
        true
    }

    /// True if this entry stands no later than the deadline and is not yet due: then it may stay where it is.
    #[must_use]
    pub fn covers(&self, id: EntryId, deadline: Timestamp, now: Timestamp) -> bool {
        self.entries.beside(id).is_some_and(|stand| {
            let tick = self.tick(id.index(), *stand);
            // An entry that was due when it was armed stands where the wheel stood then.
            tick <= tick_of(deadline).max(self.elapsed) && tick > now.0 / 1000
        })
    }

    /// The next moment at which a poll is worth while; None when there is no entry.
    ///
    /// Not later than the earliest deadline, rounded up to the millisecond. It may be earlier: entries far ahead are
    /// moved on their way.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.emptying.is_some() {
            return Some(Timestamp(self.elapsed * 1000));
        }
        self.next_slot().map(|(_, _, start)| Timestamp(start * 1000))
    }

    /// As [`Wheel::next_deadline`], or earlier: it costs nothing to know.
    #[must_use]
    pub fn soonest(&self) -> Option<Timestamp> {
        (self.soonest < Tick::MAX).then(|| Timestamp(self.soonest * 1000))
    }

    /// Finds an entry whose deadline has come at `now`; does a bounded piece of work on the way.
    ///
    /// A due entry stays in the index until it is disarmed or rearmed.
    pub fn poll(&mut self, now: Timestamp) -> Poll<T> {
        let now_tick = now.0 / 1000;
        for _ in 0..ITEMS_PER_POLL {
            if let Some((level, slot)) = self.emptying {
                match self.levels[level].heads[slot].index() {
                    Some(index) => {
                        let tick = self.unlink(index);
                        self.link(index, tick);
                    }
                    None => self.emptying = None,
                }
                continue;
            }
            match self.next_slot() {
                Some((level, slot, start)) if start <= now_tick => {
                    self.elapsed = self.elapsed.max(start);
                    if level > 0 {
                        self.emptying = Some((level, slot));
                        continue;
                    }
                    let head = self.levels[0].heads[slot].index().expect("an occupied slot has a head");
                    let (id, what) = self.entries.at(head).expect("a linked entry is there");
                    return Poll::Due(id, what.clone());
                }
                _ => {
                    // Nothing up to now: later entries are placed as seen from here.
                    self.elapsed = self.elapsed.max(now_tick);
                    self.soonest = self.next_slot().map_or(Tick::MAX, |(_, _, start)| start);
                    return Poll::Idle;
                }
            }
        }
        Poll::Pending
    }

    /// The first slot in time that has entries: its level, its number, and the tick at which it starts.
    ///
    /// Each level covers the time after the one below, so the lowest level with entries has the earliest.
    fn next_slot(&self) -> Option<(usize, usize, Tick)> {
        let (level, found) = self.levels.iter().enumerate().find(|(_, level)| level.occupied != 0)?;
        let shift = SLOT_BITS * level as u32;
        let current = (self.elapsed >> shift) % SLOTS as u64;
        // Entries lie between the current slot and the end of this level's turn: slots before it are empty.
        let ahead = found.occupied.rotate_right(current as u32).trailing_zeros() as u64;
        let start = ((self.elapsed >> shift) + ahead) << shift;
        Some((level, ((current + ahead) % SLOTS as u64) as usize, start))
    }

    fn stand(&mut self, index: u32) -> &mut Stand {
        self.entries.beside_at_mut(index).expect("a linked entry is there")
    }

    /// The tick of the entry that stands there.
    #[inline]
    fn tick(&self, index: u32, stand: Stand) -> Tick {
        match self.far.is_empty() {
            true => stand.tick(self.elapsed),
            false => self.far.get(&index).copied().unwrap_or_else(|| stand.tick(self.elapsed)),
        }
    }

    #[inline(always)]
    fn link(&mut self, index: u32, due: Tick) {
        let elapsed = self.elapsed;
        // What is due already goes into the slot that is polled next. What lies beyond the wheel's reach goes into a
        // slot of the highest level, and is moved on its way.
        let tick = due.clamp(elapsed, elapsed + REACH);
        if tick < due {
            self.far.insert(index, due);
        }
        let level = level_of(elapsed, tick);
        let slot = slot_of(level, tick);
        let shift = SLOT_BITS * level as u32;
        self.soonest = self.soonest.min((tick >> shift) << shift);
        let head = core::mem::replace(&mut self.levels[level].heads[slot], Link::to(index));
        self.levels[level].occupied |= 1 << slot;
        if let Some(head) = head.index() {
            self.stand(head).prev = Link::to(index);
        }
        *self.stand(index) = Stand::first_of(level, slot, tick, head);
    }

    /// Takes an entry out of its list. Its tick.
    #[inline]
    fn unlink(&mut self, index: u32) -> Tick {
        let stand = *self.stand(index);
        let tick = self.tick(index, stand);
        if !self.far.is_empty() {
            self.far.remove(&index);
        }
        let Stand { prev, next, .. } = stand;
        if let Some(next) = next.index() {
            self.stand(next).prev = prev;
        }
        match prev.index() {
            Some(prev) => self.stand(prev).next = next,
            None => {
                let (level, slot) = prev.slot();
                self.levels[level].heads[slot] = next;
                if next.index().is_none() {
                    self.levels[level].occupied &= !(1 << slot);
                }
            }
        }
        tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::key::PlainName;

    type Leases = Wheel<PlainName>;
    use alloc::vec::Vec;

    fn ms(n: u64) -> Timestamp {
        Timestamp(n.saturating_mul(1000))
    }

    fn name(bytes: &[u8]) -> PlainName {
        PlainName::from_slice(bytes)
    }

    /// Everything due at `now`, disarmed as it comes, poll by poll.
    fn drain(leases: &mut Leases, now: Timestamp) -> Vec<PlainName> {
        let mut keys = Vec::new();
        loop {
            match leases.poll(now) {
                Poll::Due(id, key) => {
                    assert!(leases.disarm(id));
                    keys.push(key);
                }
                Poll::Pending => {}
                Poll::Idle => return keys,
            }
        }
    }

    #[test]
    fn a_lease_is_due_at_its_deadline_and_not_before() {
        for span in [1, 2, 63, 64, 65, 4_095, 4_096, 30_000, 86_400_000, 315_360_000_000] {
            for start in [0, 1, 63, 64, 4_000, 262_143, 1 << 30] {
                let (mut leases, mut count) = (Leases::default(), Generations::new());
                assert_eq!(leases.poll(ms(start)), Poll::Idle);
                leases.arm(name(b"k"), ms(start + span), &mut count);
                assert!(leases.next_deadline().unwrap() <= ms(start + span));
                assert_eq!(drain(&mut leases, ms(start + span - 1)).len(), 0, "{start} + {span}");
                assert_eq!(drain(&mut leases, ms(start + span)).len(), 1, "{start} + {span}");
            }
        }
    }

    #[test]
    fn a_deadline_beyond_the_wheels_reach_neither_spins_nor_hides_others() {
        // A damaged or foreign payload may say anything. It once went back into the slot that was being emptied, for
        // ever, and nothing else of the database was found any more.
        for far in [REACH, REACH + 1, REACH + (1 << 30), 64 * REACH, 1 << 42, (1 << 42) + 12_345, u64::MAX / 1000] {
            for start in [0, 5_000, 1 << 37, (1 << 42) - 3] {
                let (mut leases, mut count) = (Leases::default(), Generations::new());
                assert_eq!(leases.poll(ms(start)), Poll::Idle);
                let deadline = Timestamp(ms(far).0.saturating_add(ms(start).0));
                let id = leases.arm(name(b"far"), deadline, &mut count);
                leases.arm(name(b"near"), ms(start + 70_000), &mut count);
                assert_eq!(drain(&mut leases, ms(start + 69_999)).len(), 0);
                assert_eq!(drain(&mut leases, ms(start + 70_000)).len(), 1, "{far} after {start}");
                // It moves on as time passes, in bounded work.
                let later = ms(start + far.min(5 << 36) - 1);
                assert!((0..100).any(|_| leases.poll(later) == Poll::Idle), "{far} after {start}");
                assert!(leases.next_deadline().unwrap() > later);
                assert!(leases.covers(id, deadline, later) && !leases.covers(id, later, later), "it has its own");
                if far < 1 << 43 {
                    assert_eq!(drain(&mut leases, Timestamp(deadline.0 - 1000)).len(), 0, "{far} after {start}");
                    assert!(matches!(leases.poll(deadline), Poll::Due(due, _) if due == id));
                }
                assert!(leases.disarm(id) && leases.is_empty() && leases.far.is_empty());
            }
        }
    }

    #[test]
    fn a_deadline_within_a_millisecond_is_due_at_the_end_of_it() {
        let (mut leases, mut count) = (Leases::default(), Generations::new());
        leases.arm(name(b"k"), Timestamp(1_001), &mut count);
        assert_eq!(leases.poll(Timestamp(1_999)), Poll::Idle);
        assert!(matches!(leases.poll(Timestamp(2_000)), Poll::Due(..)));
    }

    #[test]
    fn waking_at_next_deadline_alone_finds_every_lease_in_its_millisecond() {
        // A wake-up later than the earliest deadline would keep an abandoned lock; one that does not move would spin.
        let (mut leases, mut count) = (Leases::default(), Generations::new());
        let mut pending: Vec<u64> = (0..2_000u64).map(|n| 1 + n * n * 37 % 9_000_000).collect();
        for tick in &pending {
            leases.arm(name(&tick.to_le_bytes()), ms(*tick), &mut count);
        }
        pending.sort_unstable();
        let mut found = Vec::new();
        let mut wakes = 0;
        while let Some(at) = leases.next_deadline() {
            wakes += 1;
            for key in drain(&mut leases, at) {
                let tick = u64::from_le_bytes((*key).try_into().unwrap());
                assert_eq!(ms(tick), at, "found in its own millisecond");
                found.push(tick);
            }
        }
        assert_eq!(found, pending);
        assert!(wakes < 5 * pending.len(), "{wakes} wake-ups for {} leases", pending.len());
    }

    #[test]
    fn entries_armed_while_a_slot_is_being_emptied_are_found_in_time() {
        let (mut leases, mut count) = (Leases::default(), Generations::new());
        for n in 0..1_000u64 {
            leases.arm(name(b"far"), ms(4_096 + n % 5), &mut count);
        }
        // One poll into the far slot, then entries nearer than what is left in it.
        assert_eq!(leases.poll(ms(4_096)), Poll::Pending);
        leases.arm(name(b"near"), ms(4_097), &mut count);
        leases.arm(name(b"past"), ms(10), &mut count);
        let at_once = drain(&mut leases, ms(4_096));
        assert_eq!(at_once.len(), 201, "a fifth of the thousand, and the one armed in the past");
        assert!(at_once.iter().any(|key| **key == *b"past"));
        assert_eq!(drain(&mut leases, ms(4_097)).len(), 201);
        assert_eq!(drain(&mut leases, ms(5_000)).len(), 600);
    }

    #[test]
    fn a_million_leases_of_one_millisecond_come_in_bounded_pieces() {
        let (mut leases, mut count) = (Leases::default(), Generations::new());
        for _ in 0..1_000_000 {
            leases.arm(name(b"k"), ms(30_000), &mut count);
        }
        // Each poll moves at most ITEMS_PER_POLL entries: the number of polls bounds each.
        let mut polls = 0;
        let mut found = 0;
        loop {
            polls += 1;
            match leases.poll(ms(30_000)) {
                Poll::Due(id, _) => {
                    found += 1;
                    leases.disarm(id);
                }
                Poll::Pending => {}
                Poll::Idle => break,
            }
        }
        assert_eq!(found, 1_000_000);
        assert!(polls >= 1_000_000 + 1_000_000 / ITEMS_PER_POLL);
        assert!(leases.is_empty());
    }

    #[test]
    fn rearming_moves_an_entry_either_way() {
        let (mut leases, mut count) = (Leases::default(), Generations::new());
        let id = leases.arm(name(b"k"), ms(50), &mut count);
        assert!(leases.covers(id, ms(5_000), ms(0)), "a longer lease may leave its entry");
        assert!(!leases.covers(id, ms(49), ms(0)), "a shorter one may not");
        assert!(!leases.covers(id, ms(5_000), ms(50)), "a due entry must move");
        assert!(leases.rearm(id, ms(5_000)));
        assert_eq!(leases.poll(ms(4_999)), Poll::Idle);
        assert!(leases.rearm(id, ms(5_001)));
        assert!(leases.rearm(id, ms(4_999)));
        assert!(matches!(leases.poll(ms(4_999)), Poll::Due(..)));
        assert!(leases.disarm(id));
        assert!(!leases.disarm(id) && !leases.rearm(id, ms(1)));
        assert_eq!(leases.next_deadline(), None);
    }

    #[test]
    fn an_id_of_one_index_finds_nothing_in_another() {
        // A lock that was moved to another database by a server that told us the wrong one.
        let mut count = Generations::new();
        let (mut one, mut other) = (Leases::default(), Leases::default());
        let id = one.arm(name(b"moved"), ms(50), &mut count);
        other.arm(name(b"stranger"), ms(50), &mut count);
        assert!(!other.covers(id, ms(50), ms(0)) && !other.rearm(id, ms(60)) && !other.disarm(id));
        assert_eq!(other.len(), 1);
    }
}
