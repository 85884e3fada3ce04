//! The waiters of each owner. Knows owners by their digests alone, which a few of them may share.

use crate::lock::collections::inline_map::{InlineMap, Iter};
use crate::lock::model::owner::Owner;
use crate::lock::model::request::WaiterId;
use alloc::vec::Vec;

/// Waiters by the digest of their owner, each owner's in the order of their tickets.
///
/// They are spread over many small maps: most of these have one waiter, which is found without a search.
#[derive(Debug)]
pub(super) struct Owners(Vec<InlineMap<(u64, u64), WaiterId>>);

/// How many maps there are, once there was a waiter.
const MAPS: usize = 1_024;

impl Owners {
    pub(super) const fn new() -> Owners {
        Owners(Vec::new())
    }

    /// The waiters of this owner, and those of others with its digest.
    #[inline]
    pub(super) fn of(&self, owner: &Owner) -> impl DoubleEndedIterator<Item = WaiterId> + use<'_> {
        let digest = owner.digest();
        let found = self.0.get(place(digest)).map(|map| map.range((digest, 0)..=(digest, u64::MAX)));
        found.unwrap_or(Iter::One(None)).map(|(_, id)| id)
    }

    /// All waiters, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = WaiterId> + use<'_> {
        self.0.iter().flat_map(InlineMap::iter).map(|(_, id)| id)
    }

    /// Enters a waiter of an owner, in place of the one with this ticket if there is one.
    pub(super) fn insert(&mut self, owner: &Owner, ticket: u64, id: WaiterId) {
        if self.0.is_empty() {
            self.0.resize_with(MAPS, InlineMap::default);
        }
        let digest = owner.digest();
        self.0[place(digest)].insert((digest, ticket), id);
    }

    /// Removes the waiter with this ticket.
    pub(super) fn remove(&mut self, owner: &Owner, ticket: u64) {
        let digest = owner.digest();
        if let Some(map) = self.0.get_mut(place(digest)) {
            map.remove((digest, ticket));
        }
    }
}

fn place(digest: u64) -> usize {
    digest as usize % MAPS
}
