//! The lock itself: what lies under a key. Small, and ignorant of its waiters.
//!
//! Invariants, checked after every step by the model test ([`Lock::broken_invariant`]):
//!
//! - I1: every hold counts at least one read or write.
//! - I2: an owner that holds for writing holds alone.
//! - I3: no two holds have the same fence, and none is above the highest given on this lock.
//! - I4: a lock that is held has an entry in the index of leases, at its earliest deadline or before.
//! - I5: after settling at a time, no hold is over at that time.
//! - I6: a lock without a hold does not exist.

use super::fence::Fence;
use super::hold::{Hold, Mode};
use super::holds::Holds;
use super::key::PlainName;
use super::owner::Owner;
use crate::collections::heap::allocated;
use crate::collections::wheel::{EntryId, Wheel};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// The leases of one database.
pub type Leases = Wheel<PlainName>;

/// The value of type `redislock`.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// The holds by owner.
    pub holds: Holds,
    /// This lock's entry in the index of leases of its database.
    pub lease: Option<EntryId>,
}

impl Lock {
    /// Turns its offers into plain holds.
    pub fn keep_offers(&mut self) {
        let offered = |(owner, hold): (&Owner, &Hold)| hold.offer().is_some().then(|| (owner.clone(), hold.clone()));
        let offered: Vec<(Owner, Hold)> = self.holds.iter().filter_map(offered).collect();
        for (owner, mut hold) in offered {
            hold.set_offer(None);
            hold.bind(None);
            self.holds.put(&owner, hold);
        }
    }

    /// The highest fence given on this lock while it exists; None before the first.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.holds.highest_fence()
    }

    /// True if it has no hold: such a lock's key is to be deleted.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holds.is_empty()
    }

    /// The mode it is held in, if it is held.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.holds.any().map(|(_, hold)| hold.mode())
    }

    /// True if some owner other than this one holds it.
    #[must_use]
    pub fn held_by_other(&self, owner: &[u8]) -> bool {
        self.holds.len() > usize::from(self.holds.get(owner).is_some())
    }

    /// The hold of this owner, if it has the fence that was named.
    #[must_use]
    pub fn hold_of(&self, owner: &Owner, fence: Option<Fence>) -> Option<&Hold> {
        self.holds.get(owner.as_bytes()).filter(|hold| fence.is_none_or(|fence| fence == hold.fence()))
    }

    /// Bytes of memory that this lock costs beyond its key, with its entry in the index of leases.
    #[must_use]
    pub fn bytes(&self, key_len: usize) -> usize {
        // Two pointers, to the type and to the value, by which a server holds a module's value and which it does not
        // count. (Redis before 8 does not count its object's 16 bytes either: there this is that much too low.)
        const HELD_BY: usize = 16;
        HELD_BY
            + allocated(size_of::<Lock>())
            + self.holds.heap_bytes()
            + Leases::entry_bytes()
            + PlainName::heap_bytes_of(key_len)
    }

    /// The first of the invariants I1 to I3 that does not hold, by its number.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let mut fences = BTreeSet::new();
        for (_, hold) in self.holds.iter() {
            if hold.total() == 0 {
                return Some("I1");
            }
            if hold.writes() > 0 && self.holds.len() > 1 {
                return Some("I2");
            }
            if !fences.insert(hold.fence()) || Some(hold.fence()) > self.fence() {
                return Some("I3");
            }
        }
        None
    }
}

// The usual lock, with one holder, is one allocation of 80 bytes.
const _: () = assert!(size_of::<Lock>() == 80);

// A key with a short name costs this much in the index.
const _: () = assert!(Leases::ENTRY == 40);
