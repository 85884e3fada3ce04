//! The channels on which owners of places are told to ask again. Each is kept once, and dies with its last place.

use crate::model::hashing::KeyedHash;
use crate::model::key::KeyName;
use crate::model::notify::ChannelId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU32;

/// All channels of places, and that of the request that is being served.
#[derive(Debug)]
pub(super) struct Channels {
    slots: Vec<Slot>,
    free: Vec<ChannelId>,
    by_name: BTreeMap<KeyName, ChannelId>,
    /// The channel that a request has named last: no place may have it yet.
    asked: Option<ChannelId>,
    /// The channel that a request has named last, while it is kept: most requests of a connection name the same.
    last: Option<ChannelId>,
    /// How many bytes count for those that places have.
    bytes: usize,
    /// How many of them there are.
    used: usize,
}

#[derive(Debug)]
struct Slot {
    name: KeyName,
    /// How many waiters have it.
    waiters: usize,
}

/// Bytes that a channel takes beside its name.
const BESIDE: usize = 64;

impl Channels {
    /// Returns no channels.
    pub(super) const fn new() -> Channels {
        Channels {
            slots: Vec::new(),
            free: Vec::new(),
            by_name: BTreeMap::new(),
            asked: None,
            last: None,
            bytes: 0,
            used: 0,
        }
    }

    /// Returns the bytes that count for all channels of places.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of channels that places have.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Returns the bytes that a place with this channel would add.
    pub(super) fn bytes_of(&self, id: ChannelId) -> usize {
        self.slot(id).filter(|slot| slot.waiters == 0).map_or(0, |slot| slot.name.len() + BESIDE)
    }

    /// Returns the name of a channel.
    pub(super) fn name(&self, id: ChannelId) -> Option<&KeyName> {
        self.slot(id).map(|slot| &slot.name)
    }

    /// Returns the names of the channels that places have.
    pub(super) fn names(&self) -> impl Iterator<Item = &KeyName> {
        let slots = self.by_name.values().filter_map(|id| self.slot(*id));
        slots.filter(|slot| slot.waiters > 0).map(|slot| &slot.name)
    }

    /// Names the channel of a request, which no place may have yet. It is kept until the next request names one, or
    /// [`Channels::forget_asked`].
    pub(super) fn ask(&mut self, bytes: &[u8], hash: KeyedHash) -> ChannelId {
        self.forget_asked();
        let last = self.last.filter(|id| self.name(*id).is_some_and(|name| **name == *bytes));
        let id = last.unwrap_or_else(|| {
            let name = KeyName::new(bytes, hash);
            self.by_name.get(&name).copied().unwrap_or_else(|| self.add(name))
        });
        (self.asked, self.last) = (Some(id), Some(id));
        id
    }

    fn add(&mut self, name: KeyName) -> ChannelId {
        let slot = Slot { name: name.clone(), waiters: 0 };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[index(id)] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                // There are far fewer than 2^32 places.
                ChannelId(NonZeroU32::new(self.slots.len() as u32).unwrap_or(NonZeroU32::MIN))
            }
        };
        self.by_name.insert(name, id);
        id
    }

    /// Forgets the channel of a request that is served, unless a place has it.
    pub(super) fn forget_asked(&mut self) {
        if let Some(id) = self.asked.take() {
            self.drop_unused(id);
        }
    }

    /// Counts one more waiter with this channel.
    pub(super) fn join(&mut self, id: ChannelId) {
        let bytes = self.bytes_of(id);
        let Some(slot) = self.slots.get_mut(index(id)) else { return };
        slot.waiters += 1;
        if slot.waiters == 1 {
            self.bytes += bytes;
            self.used += 1;
        }
    }

    /// Counts one waiter less. Drops the channel after its last.
    pub(super) fn leave(&mut self, id: ChannelId) {
        let Some(slot) = self.slots.get_mut(index(id)) else { return };
        slot.waiters -= 1;
        if slot.waiters == 0 {
            self.bytes -= slot.name.len() + BESIDE;
            self.used -= 1;
            self.drop_unused(id);
        }
    }

    fn drop_unused(&mut self, id: ChannelId) {
        if self.asked == Some(id) || self.slot(id).is_none_or(|slot| slot.waiters > 0) {
            return;
        }
        let slot = &mut self.slots[index(id)];
        if self.by_name.remove(&slot.name).is_none() {
            return;
        }
        slot.name = KeyName::EMPTY;
        self.free.push(id);
        // Else the empty name would be found in its free slot.
        self.last = self.last.filter(|last| *last != id);
        if self.by_name.is_empty() {
            // Gives the memory back.
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
    }

    fn slot(&self, id: ChannelId) -> Option<&Slot> {
        self.slots.get(index(id))
    }

    /// True if so many waiters have each channel, and nothing else is kept or counted.
    pub(super) fn are_sound(&self, counts: &BTreeMap<ChannelId, usize>) -> bool {
        let used = self.by_name.values().filter(|id| self.slot(**id).is_some_and(|slot| slot.waiters > 0));
        let unused = self.by_name.values().filter(|id| self.slot(**id).is_none_or(|slot| slot.waiters == 0));
        let bytes: usize = self.names().map(|name| name.len() + BESIDE).sum();
        counts.iter().all(|(id, count)| self.slot(*id).is_some_and(|slot| slot.waiters == *count))
            && used.count() == counts.len()
            && unused.into_iter().all(|id| self.asked == Some(*id))
            && (bytes, counts.len()) == (self.bytes, self.used)
    }
}

fn index(id: ChannelId) -> usize {
    id.0.get() as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_kept_once_and_dies_with_its_last_place() {
        let mut channels = Channels::new();
        let one = channels.ask(b"one", |_| 0);
        assert_eq!((channels.bytes(), channels.len(), channels.bytes_of(one)), (0, 0, 67));
        channels.join(one);
        assert_eq!(channels.ask(b"one", |_| 0), one);
        channels.join(one);
        assert_eq!((channels.bytes(), channels.len(), channels.bytes_of(one)), (67, 1, 0));
        let other = channels.ask(b"the other", |_| 0);
        assert_ne!(one, other);
        channels.forget_asked();
        assert_eq!(channels.name(other).map(|name| name.len()), Some(0), "no place has it");
        for name in [&b"third"[..], b"the other"] {
            assert_eq!(channels.ask(name, |_| 0), other, "its slot is free");
            assert_eq!(channels.name(other).map(|name| &**name), Some(name));
        }
        channels.forget_asked();
        let empty = channels.ask(b"", |_| 0);
        channels.join(empty);
        assert!(channels.are_sound(&BTreeMap::from([(one, 2), (empty, 1)])), "a free slot has no name");
        channels.leave(empty);
        channels.forget_asked();
        channels.leave(one);
        assert_eq!(channels.name(one).map(|name| &**name), Some(&b"one"[..]));
        channels.leave(one);
        assert_eq!((channels.bytes(), channels.len(), channels.slots.len()), (0, 0, 0));
        assert!(channels.are_sound(&BTreeMap::new()));
    }
}
