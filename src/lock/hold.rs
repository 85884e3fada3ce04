//! What one owner has on one key, and the set of such holds on a key.

use super::fence::Fence;
use super::heap::{allocated, of_tree};
use super::owner::{Note, Owner};
use super::session::{self, Session};
use super::time::Timestamp;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};

/// How a lock is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Shared: any number of owners together.
    Read,
    /// Exclusive: one owner alone.
    Write,
}

/// The period in which this node granted by its own hand: it changes at promotion and when databases swap.
///
/// A hold of another term is *carried*: it came here by load, promotion, RESTORE, RENAME or MOVE, and gets a new fence
/// at its owner's next ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term(u32);

impl Term {
    /// The term of holds that this node did not grant on this key.
    pub const CARRIED: Term = Term(0);
    /// The term of a node that has just started.
    pub const FIRST: Term = Term(1);

    /// The term after this one.
    #[must_use]
    pub fn next(self) -> Term {
        // Skips CARRIED after 2^32 promotions.
        Term(self.0.wrapping_add(1).max(1))
    }
}

/// What an owner has on one key: counts, one lease, one fence. Valid while now < deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// How often it is held for reading.
    pub reads: u32,
    /// How often it is held for writing.
    pub writes: u32,
    /// Given with the hold; rises with each new one on the key.
    pub fence: Fence,
    /// When the lease ends.
    pub deadline: Timestamp,
    /// When it was granted, or carried here.
    pub since: Timestamp,
    /// When this node granted it, in terms; [`Term::CARRIED`] if it did not.
    pub granted_in: Term,
    /// What few holds have.
    extra: Option<Box<Extra>>,
}

/// What few holds have, outside of the hold itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    note: Option<Note>,
    bond: Option<Bond>,
}

/// That a hold ends with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bond {
    /// It will.
    Open(session::Bond),
    /// The connection has closed: what is left of the lease is the grace that was asked for.
    Closed,
}

impl Hold {
    /// A hold that counts nothing yet.
    #[must_use]
    pub fn new(fence: Fence, deadline: Timestamp, since: Timestamp, granted_in: Term) -> Hold {
        Hold { reads: 0, writes: 0, fence, deadline, since, granted_in, extra: None }
    }

    /// What the holder says about itself.
    #[must_use]
    pub fn note(&self) -> Option<&Note> {
        self.extra.as_ref()?.note.as_ref()
    }

    /// Sets what the holder says about itself.
    pub fn set_note(&mut self, note: Option<Note>) {
        if note.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().note = note;
            self.drop_empty_extra();
        }
    }

    /// What binds it to a connection.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        self.bond().map(|bond| bond.session)
    }

    /// What binds it to a connection, or did at a time that is over.
    pub(super) fn bond(&self) -> Option<session::Bond> {
        match self.extra.as_ref()?.bond {
            Some(Bond::Open(bond)) => Some(bond),
            Some(Bond::Closed) | None => None,
        }
    }

    /// Whether the connection that it was bound to has closed, and its owner has not been heard of since.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.bond == Some(Bond::Closed))
    }

    /// Binds it to a connection, or to none.
    pub(super) fn bind(&mut self, bond: Option<session::Bond>) {
        self.set_bond(bond.map(Bond::Open));
    }

    /// Its owner was heard of: binds it anew if that is asked for, else only what has been closed is over.
    pub(super) fn rebind(&mut self, bond: Option<session::Bond>) {
        if bond.is_some() || self.is_orphaned() {
            self.bind(bond);
        }
    }

    /// The connection that it was bound to has closed.
    pub(super) fn orphan(&mut self) {
        self.set_bond(Some(Bond::Closed));
    }

    fn set_bond(&mut self, bond: Option<Bond>) {
        if bond.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().bond = bond;
            self.drop_empty_extra();
        }
    }

    fn drop_empty_extra(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| **extra == Extra::default()) {
            self.extra = None;
        }
    }

    fn heap_bytes(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| {
            allocated(size_of::<Extra>()) + extra.note.as_ref().map_or(0, |note| allocated(note.0.len()))
        })
    }

    /// The count in one mode.
    #[must_use]
    pub fn count(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Read => self.reads,
            Mode::Write => self.writes,
        }
    }

    /// Sets the count in one mode.
    pub fn set_count(&mut self, mode: Mode, count: u32) {
        match mode {
            Mode::Read => self.reads = count,
            Mode::Write => self.writes = count,
        }
    }

    /// Reads and writes together: what RELEASE answers.
    #[must_use]
    pub fn total(&self) -> u64 {
        u64::from(self.reads) + u64::from(self.writes)
    }

    /// The stronger of the modes held: who writes and reads is a writer.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.writes > 0 { Mode::Write } else { Mode::Read }
    }
}

/// The holds on one key, by owner and by deadline.
///
/// One hold, by far the most frequent case, lives in place. From the second on they move to two trees; they stay there
/// until the last is gone, so that a reader coming and going beside another does not allocate each time.
#[derive(Clone, Debug, Default)]
pub struct Holds(Repr);

#[derive(Clone, Debug, Default)]
enum Repr {
    #[default]
    None,
    One(Owner, Hold),
    Many(Box<Many>),
}

#[derive(Clone, Debug, Default)]
struct Many {
    by_owner: BTreeMap<Owner, Hold>,
    by_deadline: BTreeSet<(Timestamp, Owner)>,
}

impl Holds {
    /// How many owners hold.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::None => 0,
            Repr::One(..) => 1,
            Repr::Many(many) => many.by_owner.len(),
        }
    }

    /// Whether nobody holds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hold of one owner.
    #[must_use]
    pub fn get(&self, owner: &[u8]) -> Option<&Hold> {
        self.entry(owner).map(|(_, hold)| hold)
    }

    /// The hold of one owner, and the owner as it is kept here.
    #[must_use]
    pub fn entry(&self, owner: &[u8]) -> Option<(&Owner, &Hold)> {
        match &self.0 {
            Repr::None => None,
            Repr::One(who, hold) => (who.as_bytes() == owner).then_some((who, hold)),
            Repr::Many(many) => many.by_owner.get_key_value(owner),
        }
    }

    /// Any one of the holds: enough to tell the mode, since holds of one key never differ in it.
    #[must_use]
    pub fn any(&self) -> Option<(&Owner, &Hold)> {
        self.iter().next()
    }

    /// All holds, in order of owner.
    pub fn iter(&self) -> impl Iterator<Item = (&Owner, &Hold)> {
        let (one, many) = match &self.0 {
            Repr::None => (None, None),
            Repr::One(owner, hold) => (Some((owner, hold)), None),
            Repr::Many(many) => (None, Some(many.by_owner.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The earliest deadline and whose it is.
    #[must_use]
    pub fn earliest(&self) -> Option<(Timestamp, &Owner)> {
        match &self.0 {
            Repr::None => None,
            Repr::One(owner, hold) => Some((hold.deadline, owner)),
            Repr::Many(many) => many.by_deadline.first().map(|(deadline, owner)| (*deadline, owner)),
        }
    }

    /// How many leases are over at `now`.
    #[must_use]
    pub fn over(&self, now: Timestamp) -> usize {
        match &self.0 {
            Repr::None => 0,
            Repr::One(_, hold) => usize::from(hold.deadline <= now),
            Repr::Many(many) => many.by_deadline.iter().take_while(|(deadline, _)| *deadline <= now).count(),
        }
    }

    /// Puts an owner's hold, in place of what it held before, which is returned.
    pub fn put(&mut self, owner: &Owner, hold: Hold) -> Option<Hold> {
        match &mut self.0 {
            Repr::None => {
                self.0 = Repr::One(owner.clone(), hold);
                None
            }
            Repr::One(who, old) if who == owner => Some(core::mem::replace(old, hold)),
            Repr::One(..) => {
                let mut many = Box::<Many>::default();
                if let Repr::One(first, held) = core::mem::take(&mut self.0) {
                    many.put(&first, held);
                }
                let old = many.put(owner, hold);
                self.0 = Repr::Many(many);
                old
            }
            Repr::Many(many) => many.put(owner, hold),
        }
    }

    /// Takes an owner's hold away.
    pub fn take(&mut self, owner: &[u8]) -> Option<Hold> {
        match &mut self.0 {
            Repr::None => None,
            Repr::One(who, _) if who.as_bytes() != owner => None,
            Repr::One(..) => match core::mem::take(&mut self.0) {
                Repr::One(_, hold) => Some(hold),
                Repr::None | Repr::Many(_) => None,
            },
            Repr::Many(many) => {
                let hold = many.take(owner);
                if many.by_owner.is_empty() {
                    self.0 = Repr::None;
                }
                hold
            }
        }
    }

    /// Takes away the hold that ended first, if it is over at `now`.
    pub fn take_over(&mut self, now: Timestamp) -> Option<(Owner, Hold)> {
        let (deadline, owner) = self.earliest()?;
        if deadline > now {
            return None;
        }
        let owner = owner.clone();
        let hold = self.take(owner.as_bytes())?;
        Some((owner, hold))
    }

    /// Marks all as carried here at `now`.
    pub fn carry(&mut self, now: Timestamp) {
        let (one, many) = match &mut self.0 {
            Repr::None => (None, None),
            Repr::One(_, hold) => (Some(hold), None),
            Repr::Many(many) => (None, Some(many.by_owner.values_mut())),
        };
        for hold in one.into_iter().chain(many.into_iter().flatten()) {
            hold.granted_in = Term::CARRIED;
            hold.since = now;
        }
    }

    /// Bytes allocated outside of the value itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let of_holds: usize = self.iter().map(|(owner, hold)| owner.heap_bytes() + hold.heap_bytes()).sum();
        match &self.0 {
            Repr::None | Repr::One(..) => of_holds,
            Repr::Many(many) => of_holds + many.heap_bytes(),
        }
    }
}

impl Many {
    fn put(&mut self, owner: &Owner, hold: Hold) -> Option<Hold> {
        let deadline = hold.deadline;
        let old = self.by_owner.insert(owner.clone(), hold);
        let before = old.as_ref().map(|old| old.deadline);
        if before != Some(deadline) {
            if let Some(before) = before {
                self.by_deadline.remove(&(before, owner.clone()));
            }
            self.by_deadline.insert((deadline, owner.clone()));
        }
        old
    }

    fn take(&mut self, owner: &[u8]) -> Option<Hold> {
        let (owner, hold) = self.by_owner.remove_entry(owner)?;
        self.by_deadline.remove(&(hold.deadline, owner));
        Some(hold)
    }

    fn heap_bytes(&self) -> usize {
        let holds = of_tree(self.by_owner.len(), size_of::<(Owner, Hold)>());
        let deadlines = of_tree(self.by_deadline.len(), size_of::<(Timestamp, Owner)>());
        // Each deadline has its own copy of the owner.
        let spilled: usize = self.by_owner.keys().map(Owner::heap_bytes).sum();
        allocated(size_of::<Many>()) + holds + deadlines + spilled
    }
}
