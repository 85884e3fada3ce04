//! Slots that are handed out, taken back and given back to the allocator. Knows nothing of what lies in them.
//!
//! Grows and shrinks in chunks: a million leases are never copied to make room for one more, and when they are over
//! their memory goes back. An [`Id`] names one stay in a slot, so an old one finds nothing rather than a stranger.

use super::heap::allocated;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::num::NonZeroU32;

/// Names one value for as long as it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    index: u32,
    generation: NonZeroU32,
}

/// Counts the stays of values. Arenas that share one count never give the same id.
#[derive(Debug)]
pub struct Generations(NonZeroU32);

impl Default for Generations {
    fn default() -> Generations {
        Generations::new()
    }
}

impl Generations {
    /// Before the first stay.
    #[must_use]
    pub const fn new() -> Generations {
        Generations(NonZeroU32::MIN)
    }

    fn next(&mut self) -> NonZeroU32 {
        self.0 = self.0.checked_add(1).unwrap_or(NonZeroU32::MIN);
        self.0
    }
}

/// A growing and shrinking set of slots.
///
/// Beside each value it can keep a part `H`. That one is aligned on its own: in one type with the value it would be
/// filled up to the alignment of the value.
#[derive(Debug)]
pub struct Arena<T, H = ()> {
    chunks: Vec<Option<Box<Chunk<T, H>>>>,
    /// Chunks with a free slot. The lowest is filled first, so that the others can empty and be freed.
    open: BTreeSet<u32>,
    /// Places in `chunks` without a chunk.
    vacant: Vec<u32>,
    /// The one empty chunk that is kept, so that a single value coming and going does not allocate.
    spare: Option<u32>,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T, H> {
    slots: Vec<Slot<T, H>>,
    free: Option<u32>,
    used: u32,
}

#[derive(Debug)]
enum Slot<T, H> {
    Used { generation: NonZeroU32, beside: H, value: T },
    Free { next: Option<u32> },
}

const CHUNK: u32 = 256;

impl<T, H> Default for Arena<T, H> {
    fn default() -> Arena<T, H> {
        Arena::new()
    }
}

impl<T> Arena<T> {
    /// Puts a value into the lowest chunk that has room.
    pub fn insert(&mut self, value: T, generations: &mut Generations) -> Id {
        self.insert_beside(value, (), generations)
    }
}

impl<T, H> Arena<T, H> {
    /// Without a value.
    #[must_use]
    pub const fn new() -> Arena<T, H> {
        Arena { chunks: Vec::new(), open: BTreeSet::new(), vacant: Vec::new(), spare: None, len: 0 }
    }

    /// How many values are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that one slot takes.
    pub(crate) const SLOT: usize = size_of::<Slot<T, H>>();

    /// Bytes that one slot costs.
    #[must_use]
    pub fn slot_bytes() -> usize {
        allocated(CHUNK as usize * Self::SLOT) / CHUNK as usize
    }

    /// The value of this id, if it is still there.
    #[must_use]
    pub fn get(&self, id: Id) -> Option<&T> {
        match self.slot(id.index)? {
            Slot::Used { generation, value, .. } if *generation == id.generation => Some(value),
            _ => None,
        }
    }

    /// The value of this id, to change.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        match self.slot_mut(id.index)? {
            Slot::Used { generation, value, .. } if *generation == id.generation => Some(value),
            _ => None,
        }
    }

    /// Returns what is kept beside the value of this id, if that is still there.
    #[must_use]
    pub fn beside(&self, id: Id) -> Option<&H> {
        match self.slot(id.index)? {
            Slot::Used { generation, beside, .. } if *generation == id.generation => Some(beside),
            _ => None,
        }
    }

    /// The id and value at an index, whichever is there now.
    #[must_use]
    pub fn at(&self, index: u32) -> Option<(Id, &T)> {
        match self.slot(index)? {
            Slot::Used { generation, value, .. } => Some((Id { index, generation: *generation }, value)),
            Slot::Free { .. } => None,
        }
    }

    /// All values and their ids, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        let chunks = (0..).zip(&self.chunks).filter_map(|(place, chunk)| Some((place, chunk.as_ref()?)));
        chunks.flat_map(|(place, chunk): (u32, _)| {
            (0..).zip(&chunk.slots).filter_map(move |(within, slot): (u32, _)| match slot {
                Slot::Used { generation, value, .. } => {
                    Some((Id { index: place * CHUNK + within, generation: *generation }, value))
                }
                Slot::Free { .. } => None,
            })
        })
    }

    /// All values, to change, in no order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let slots = self.chunks.iter_mut().flatten().flat_map(|chunk| chunk.slots.iter_mut());
        slots.filter_map(|slot| match slot {
            Slot::Used { value, .. } => Some(value),
            Slot::Free { .. } => None,
        })
    }

    /// Returns what is kept beside the value at an index, to change.
    pub fn beside_at_mut(&mut self, index: u32) -> Option<&mut H> {
        match self.slot_mut(index)? {
            Slot::Used { beside, .. } => Some(beside),
            Slot::Free { .. } => None,
        }
    }

    fn slot(&self, index: u32) -> Option<&Slot<T, H>> {
        self.chunks.get((index / CHUNK) as usize)?.as_ref()?.slots.get((index % CHUNK) as usize)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T, H>> {
        self.chunks.get_mut((index / CHUNK) as usize)?.as_mut()?.slots.get_mut((index % CHUNK) as usize)
    }

    /// Puts a value into the lowest chunk that has room, and this beside it.
    pub fn insert_beside(&mut self, value: T, beside: H, generations: &mut Generations) -> Id {
        let place = self.open.first().copied().unwrap_or_else(|| self.add_chunk());
        if self.spare == Some(place) {
            self.spare = None;
        }
        let generation = generations.next();
        let chunk = self.chunks[place as usize].as_mut().expect("an open place has a chunk");
        let filled = Slot::Used { generation, beside, value };
        let within = match chunk.free {
            Some(free) => {
                if let Slot::Free { next } = chunk.slots[free as usize] {
                    chunk.free = next;
                }
                chunk.slots[free as usize] = filled;
                free
            }
            None => {
                chunk.slots.push(filled);
                chunk.slots.len() as u32 - 1
            }
        };
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.open.remove(&place);
        }
        self.len += 1;
        Id { index: place * CHUNK + within, generation }
    }

    /// Takes a value out, if it is still there.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        let mut value = None;
        self.free(id, |slot, freed| match core::mem::replace(slot, freed) {
            Slot::Used { value: there, .. } => value = Some(there),
            Slot::Free { .. } => {}
        });
        value
    }

    /// Drops a value where it lies; false if it was gone already.
    pub fn discard(&mut self, id: Id) -> bool {
        self.free(id, |slot, freed| *slot = freed)
    }

    /// Frees the slot of a value, which `empty` replaces; false if it was gone already.
    fn free(&mut self, id: Id, empty: impl FnOnce(&mut Slot<T, H>, Slot<T, H>)) -> bool {
        if self.get(id).is_none() {
            return false;
        }
        let (place, within) = (id.index / CHUNK, id.index % CHUNK);
        let Some(chunk) = self.chunks[place as usize].as_mut() else { return false };
        empty(&mut chunk.slots[within as usize], Slot::Free { next: chunk.free });
        chunk.free = Some(within);
        if chunk.used == CHUNK {
            self.open.insert(place);
        }
        chunk.used -= 1;
        self.len -= 1;
        if chunk.used == 0 {
            self.retire_chunk(place);
        }
        true
    }

    /// Gives back one chunk with all that is in it; false when there is none left. Only for an arena that is given up.
    pub fn shed(&mut self) -> bool {
        self.chunks.pop().is_some()
    }

    fn add_chunk(&mut self) -> u32 {
        let chunk = Box::new(Chunk { slots: Vec::with_capacity(CHUNK as usize), free: None, used: 0 });
        let place = match self.vacant.pop() {
            Some(place) => {
                self.chunks[place as usize] = Some(chunk);
                place
            }
            None => {
                self.chunks.push(Some(chunk));
                self.chunks.len() as u32 - 1
            }
        };
        self.open.insert(place);
        place
    }

    fn retire_chunk(&mut self, place: u32) {
        if self.spare.is_none() {
            self.spare = Some(place);
            return;
        }
        self.chunks[place as usize] = None;
        self.open.remove(&place);
        self.vacant.push(place);
    }
}

impl Id {
    /// The index that this id's slot has in its arena.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// All of it in one number, never 0: for callers that can carry no more.
    #[must_use]
    pub fn to_number(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index)
    }

    /// The id of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Id> {
        Some(Id { index: number as u32, generation: NonZeroU32::new((number >> 32) as u32)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_finds_nothing_after_its_slot_went_to_another() {
        let (mut arena, mut generations) = (Arena::default(), Generations::new());
        let old = arena.insert('a', &mut generations);
        assert_eq!(arena.remove(old), Some('a'));
        let new = arena.insert('b', &mut generations);
        assert_eq!(old.index(), new.index(), "the slot is used again");
        assert_eq!(arena.get(old), None);
        assert_eq!(arena.remove(old), None);
        assert_eq!(arena.get(new), Some(&'b'));
    }

    #[test]
    fn emptied_chunks_are_given_back_but_for_one() {
        let (mut arena, mut generations) = (Arena::default(), Generations::new());
        let ids: Vec<Id> = (0..10 * CHUNK).map(|n| arena.insert(n, &mut generations)).collect();
        assert_eq!(arena.chunks.iter().flatten().count(), 10);
        for (n, id) in ids.into_iter().enumerate() {
            assert_eq!(arena.remove(id), Some(n as u32));
        }
        assert_eq!(arena.len(), 0);
        assert_eq!(arena.chunks.iter().flatten().count(), 1);
    }

    #[test]
    fn freed_places_are_filled_before_new_chunks_are_made() {
        let (mut arena, mut generations) = (Arena::default(), Generations::new());
        let ids: Vec<Id> = (0..3 * CHUNK).map(|n| arena.insert(n, &mut generations)).collect();
        for id in ids.iter().filter(|id| id.index() % 2 == 0) {
            arena.remove(*id);
        }
        for n in 0..3 * CHUNK / 2 {
            arena.insert(n, &mut generations);
        }
        assert_eq!(arena.chunks.len(), 3);
        assert_eq!(arena.len(), 3 * CHUNK as usize);
    }
}
