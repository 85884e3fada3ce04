//! The lock itself: what lies under a key. Small, and ignorant of who waits for it.
//!
//! Invariants, checked after every step by the model test ([`Lock::broken_invariant`]):
//!
//! - I1: every hold counts at least one read or write.
//! - I2: who holds for writing holds alone.
//! - I3: no two holds have the same fence, and none is above the highest given on this lock.
//! - I4: a lock that is held has an entry in the index of leases, at its earliest deadline or before.
//! - I5: after settling at a time, no hold is over at that time.
//! - I6: a lock without a hold does not exist.

use super::fence::Fence;
use super::heap::allocated;
use super::hold::{Hold, Holds, Mode};
use super::keyspace::Db;
use super::owner::Owner;
use super::session::{Session, Sessions};
use super::time::{Millis, Timestamp};
use super::wheel::{EntryId, Leases};
use alloc::collections::BTreeSet;

/// The value of type `redislock`.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// The holds by owner.
    pub holds: Holds,
    /// The highest fence given on this lock while it exists; None before the first.
    pub fence: Option<Fence>,
    /// This lock's entry in the index of leases of its database.
    pub lease: Option<EntryId>,
}

impl Lock {
    /// Whether nobody holds it: such a lock's key is to go.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holds.is_empty()
    }

    /// The mode it is held in, if it is held.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.holds.any().map(|(_, hold)| hold.mode())
    }

    /// Whether some owner other than this one holds it.
    #[must_use]
    pub fn held_by_other(&self, owner: &[u8]) -> bool {
        self.holds.len() > usize::from(self.holds.get(owner).is_some())
    }

    /// Takes note of a fence given on this lock.
    pub fn raise_fence(&mut self, fence: Fence) {
        self.fence = self.fence.max(Some(fence));
    }

    /// Bytes of memory that this lock costs beyond its key, with its entry in the index of leases.
    #[must_use]
    pub fn bytes(&self, key_len: usize) -> usize {
        // Two pointers, to the type and to the value, by which a server holds a module's value and which it does not
        // count. (Redis before 8 does not count its object's 16 bytes either: there this is that much too low.)
        const HELD_BY: usize = 16;
        HELD_BY + allocated(size_of::<Lock>()) + self.holds.heap_bytes() + Leases::entry_bytes(key_len)
    }

    /// The first of the invariants I1 to I3 that does not hold, by its number.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let mut fences = BTreeSet::new();
        for (_, hold) in self.holds.iter() {
            if hold.total() == 0 {
                return Some("I1");
            }
            if hold.writes > 0 && self.holds.len() > 1 {
                return Some("I2");
            }
            if !fences.insert(hold.fence) || Some(hold.fence) > self.fence {
                return Some("I3");
            }
        }
        None
    }
}

// The usual lock, with one holder, is one allocation of 128 bytes.
const _: () = assert!(size_of::<Lock>() <= 128);

/// A lock as it is to be seen: settled, though nothing was changed.
#[derive(Clone, Debug)]
pub struct View<'a> {
    lock: &'a Lock,
    at: Sight<'a>,
}

/// Where and when a lock is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// In which database.
    pub db: Db,
    /// Under which name.
    pub name: &'a [u8],
    /// Who knows which holds are bound to a connection.
    pub sessions: &'a Sessions,
    /// When.
    pub now: Timestamp,
}

impl Sight<'_> {
    fn is_over(self, hold: &Hold) -> bool {
        self.sessions.end_of(hold) <= self.now
    }
}

/// One holder as it is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// Who.
    pub owner: &'a [u8],
    /// The stronger of the modes held.
    pub mode: Mode,
    /// How often for reading.
    pub reads: u32,
    /// How often for writing.
    pub writes: u32,
    /// The hold's fence.
    pub fence: Fence,
    /// What is left of the lease.
    pub left: Millis,
    /// How long it has been held, since the grant or since it was carried here.
    pub held: Millis,
    /// What binds it to a connection.
    pub session: Option<Session>,
    /// What the holder says about itself.
    pub note: Option<&'a [u8]>,
}

impl<'a> View<'a> {
    /// The lock as it is then; None when nobody holds it.
    #[must_use]
    pub fn of(lock: &'a Lock, at: Sight<'a>) -> Option<View<'a>> {
        let view = View { lock, at };
        (view.holding() > 0).then_some(view)
    }

    /// How many hold it.
    #[must_use]
    pub fn holding(&self) -> usize {
        if self.at.sessions.some_closed() {
            return self.lock.holds.iter().filter(|(_, hold)| !self.at.is_over(hold)).count();
        }
        self.lock.holds.len() - self.lock.holds.over(self.at.now)
    }

    /// The mode it is held in.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.lock.holds.iter().find(|(_, hold)| !self.at.is_over(hold)).map(|(_, hold)| hold.mode())
    }

    /// The highest fence given on it.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.lock.fence
    }

    /// The holders, in order of owner.
    pub fn holders(&self) -> impl Iterator<Item = Holder<'a>> {
        let at = self.at;
        self.lock.holds.iter().filter_map(move |(owner, hold)| Holder::of(owner, hold, at))
    }

    /// One owner's hold.
    #[must_use]
    pub fn holder(&self, owner: &[u8]) -> Option<Holder<'a>> {
        let (owner, hold) = self.lock.holds.entry(owner)?;
        Holder::of(owner, hold, self.at)
    }
}

impl<'a> Holder<'a> {
    /// None when the hold is over.
    fn of(owner: &'a Owner, hold: &'a Hold, at: Sight<'a>) -> Option<Holder<'a>> {
        (!at.is_over(hold)).then(|| Holder {
            owner: owner.as_bytes(),
            mode: hold.mode(),
            reads: hold.reads,
            writes: hold.writes,
            fence: hold.fence,
            left: at.sessions.end_of(hold).left(at.now),
            held: hold.since.ago(at.now),
            session: at.sessions.of(at.db, at.name, owner, hold),
            note: hold.note().map(|note| &*note.0),
        })
    }
}
