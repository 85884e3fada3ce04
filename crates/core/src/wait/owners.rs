//! The waiters of each owner. Knows owners by their hashes alone, which hardly any two of them share.

use crate::collections::inline_map::{InlineMap, Iter};
use crate::model::hashing::KeyedHash;
use crate::model::owner::Owner;
use crate::model::request::WaiterId;
use alloc::vec::Vec;

/// Waiters by the keyed hash of their owner, each owner's in the order of their tickets.
///
/// They are spread over many small maps: most of these have one waiter, which is found without a search.
#[derive(Debug)]
pub(super) struct Owners {
    maps: Vec<InlineMap<(u64, u64), WaiterId>>,
    hash: KeyedHash,
    /// How many waiters there are: most requests meet none, and hash nothing.
    len: usize,
}

/// How many maps there are, once there was a waiter.
const MAPS: usize = 1_024;

impl Owners {
    pub(super) const fn new(hash: KeyedHash) -> Owners {
        Owners { maps: Vec::new(), hash, len: 0 }
    }

    /// The hash that spreads them.
    pub(super) const fn hash(&self) -> KeyedHash {
        self.hash
    }

    /// The waiters of this owner, and those of others with its hash.
    #[inline]
    pub(super) fn of(&self, owner: &Owner) -> impl DoubleEndedIterator<Item = WaiterId> + use<'_> {
        self.of_from(owner, 0)
    }

    /// As [`Owners::of`], without those of earlier tickets.
    #[inline]
    pub(super) fn of_from(&self, owner: &Owner, ticket: u64) -> impl DoubleEndedIterator<Item = WaiterId> + use<'_> {
        let found = (self.len > 0).then(|| {
            let hash = self.hash_of(owner);
            self.maps[place(hash)].range((hash, ticket)..=(hash, u64::MAX))
        });
        found.unwrap_or(Iter::One(None)).map(|(_, id)| id)
    }

    /// All waiters, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = WaiterId> + use<'_> {
        self.maps.iter().flat_map(InlineMap::iter).map(|(_, id)| id)
    }

    /// Enters a waiter of an owner, in place of the one with this ticket if there is one.
    pub(super) fn insert(&mut self, owner: &Owner, ticket: u64, id: WaiterId) {
        if self.maps.is_empty() {
            self.maps.resize_with(MAPS, InlineMap::default);
        }
        let hash = self.hash_of(owner);
        let map = &mut self.maps[place(hash)];
        let before = map.len();
        map.insert((hash, ticket), id);
        self.len += map.len() - before;
    }

    /// Removes the waiter with this ticket.
    pub(super) fn remove(&mut self, owner: &Owner, ticket: u64) {
        let hash = self.hash_of(owner);
        if let Some(map) = self.maps.get_mut(place(hash)) {
            let before = map.len();
            map.remove((hash, ticket));
            self.len -= before - map.len();
        }
    }

    fn hash_of(&self, owner: &Owner) -> u64 {
        (self.hash)(owner.as_bytes())
    }
}

fn place(hash: u64) -> usize {
    hash as usize % MAPS
}
