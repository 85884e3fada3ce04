//! The set of holds on one key.

use super::fence::Fence;
use super::hold::{Connection, Hold, Session};
use super::offers::OfferId;
use super::owner::Owner;
use super::time::Timestamp;
use crate::collections::heap::{allocated, of_tree};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::{Bound, RangeInclusive};

/// The holds on one key, by owner and by deadline.
///
/// One hold, by far the most frequent case, lives in place. From the second on they move to two trees; they stay there
/// until the last is gone, so that a reader coming and going beside another does not allocate each time. A single hold
/// whose fence is not the highest given is kept there, too.
#[derive(Clone, Debug, Default)]
pub struct Holds(Repr);

#[derive(Clone, Debug)]
enum Repr {
    /// None now; the highest fence given before.
    None(Option<Fence>),
    /// Its fence is the highest given.
    One(Owner, Hold),
    Many(Box<Many>),
}

impl Default for Repr {
    fn default() -> Repr {
        Repr::None(None)
    }
}

#[derive(Clone, Debug, Default)]
struct Many {
    /// The highest fence given.
    highest: Option<Fence>,
    /// The read counts of all together.
    reads: u64,
    by_owner: BTreeMap<Owner, Hold>,
    by_deadline: BTreeSet<(Timestamp, Owner)>,
    /// The number of holds that each session binds.
    bound: BTreeMap<Session, usize>,
    /// The holds that sessions bind, by session and owner.
    by_session: BTreeSet<(Session, Owner)>,
    /// How many are parts of offers.
    offered: usize,
}

impl Holds {
    /// Makes them of holds in order of owner, each owner once. A tree of many is built faster at once than one by one.
    pub(crate) fn from_sorted(highest: Option<Fence>, all: Vec<(Owner, Hold)>) -> Holds {
        let mut holds = Holds(Repr::None(highest));
        if all.len() <= 1 {
            all.into_iter().for_each(|(owner, hold)| drop(holds.put(&owner, hold)));
            return holds;
        }
        let mut many = Many { highest, ..Many::default() };
        many.by_deadline = all.iter().map(|(owner, hold)| (hold.deadline, owner.clone())).collect();
        for (owner, hold) in &all {
            many.note(owner, hold);
        }
        many.by_owner = all.into_iter().collect();
        Holds(Repr::Many(Box::new(many)))
    }

    /// How many owners hold.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::None(_) => 0,
            Repr::One(..) => 1,
            Repr::Many(many) => many.by_owner.len(),
        }
    }

    /// The read counts of all together.
    #[must_use]
    pub fn reads(&self) -> u64 {
        match &self.0 {
            Repr::None(_) => 0,
            Repr::One(_, hold) => u64::from(hold.reads()),
            Repr::Many(many) => many.reads,
        }
    }

    /// True if there is no hold.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hold of one owner.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, owner: &[u8]) -> Option<&Hold> {
        self.entry(owner).map(|(_, hold)| hold)
    }

    /// The hold of one owner, and the owner as it is kept here.
    #[must_use]
    #[inline(always)]
    pub fn entry(&self, owner: &[u8]) -> Option<(&Owner, &Hold)> {
        match &self.0 {
            Repr::None(_) => None,
            Repr::One(holder, hold) => (holder.as_bytes() == owner).then_some((holder, hold)),
            Repr::Many(many) => many.entry(owner),
        }
    }

    /// The owner whose hold has this fence. O(N), where N is the number of holds.
    #[must_use]
    pub fn owner_of(&self, fence: Fence) -> Option<&Owner> {
        self.iter().find(|(_, hold)| hold.fence() == fence).map(|(owner, _)| owner)
    }

    /// Any one of the holds: enough to tell the mode, since holds of one key never differ in it.
    #[must_use]
    pub fn any(&self) -> Option<(&Owner, &Hold)> {
        self.iter().next()
    }

    /// All holds, in order of owner.
    pub fn iter(&self) -> impl Iterator<Item = (&Owner, &Hold)> {
        let (one, many) = match &self.0 {
            Repr::None(_) => (None, None),
            Repr::One(owner, hold) => (Some((owner, hold)), None),
            Repr::Many(many) => (None, Some(many.by_owner.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Returns the holds behind an owner, in order of owner; all of them where none is named.
    pub(crate) fn after<'h>(&'h self, owner: Option<&Owner>) -> impl Iterator<Item = (&'h Owner, &'h Hold)> + use<'h> {
        let (one, many) = match &self.0 {
            Repr::None(_) => (None, None),
            Repr::One(holder, hold) => (owner.is_none_or(|owner| holder > owner).then_some((holder, hold)), None),
            Repr::Many(many) => {
                let from = owner.map_or(Bound::Unbounded, Bound::Excluded);
                (None, Some(many.by_owner.range::<Owner, _>((from, Bound::Unbounded))))
            }
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The earliest deadline and its owner.
    #[must_use]
    pub fn earliest(&self) -> Option<(Timestamp, &Owner)> {
        match &self.0 {
            Repr::None(_) => None,
            Repr::One(owner, hold) => Some((hold.deadline, owner)),
            Repr::Many(many) => many.by_deadline.first().map(|(deadline, owner)| (*deadline, owner)),
        }
    }

    /// Returns the holds whose leases run on after `now`, the latest deadline first.
    pub fn running(&self, now: Timestamp) -> impl Iterator<Item = (&Owner, &Hold)> {
        let (one, many) = match &self.0 {
            Repr::None(_) => (None, None),
            Repr::One(owner, hold) => (Some((owner, hold)).filter(|(_, hold)| hold.deadline > now), None),
            Repr::Many(many) => (None, Some(many.running(now))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The sessions that bind holds, and how many each.
    pub fn bound(&self) -> impl Iterator<Item = (Session, usize)> {
        let (one, many) = match &self.0 {
            Repr::None(_) => (None, None),
            Repr::One(_, hold) => (hold.session(), None),
            Repr::Many(many) => (None, Some(many.bound.iter().map(|(session, count)| (*session, *count)))),
        };
        one.map(|session| (session, 1)).into_iter().chain(many.into_iter().flatten())
    }

    /// How many sessions bind holds.
    #[must_use]
    pub fn sessions(&self) -> usize {
        match &self.0 {
            Repr::None(_) => 0,
            Repr::One(_, hold) => usize::from(hold.session().is_some()),
            Repr::Many(many) => many.bound.len(),
        }
    }

    /// The sessions of one connection that bind holds, and how many each.
    pub fn bound_to(&self, connection: Connection) -> impl Iterator<Item = (Session, usize)> {
        let (one, many) = match &self.0 {
            Repr::None(_) => (None, None),
            Repr::One(_, hold) => (hold.session().filter(|session| session.connection == connection), None),
            Repr::Many(many) => {
                (None, Some(many.bound.range(Session::all_of(connection)).map(|(session, count)| (*session, *count))))
            }
        };
        one.map(|session| (session, 1)).into_iter().chain(many.into_iter().flatten())
    }

    /// The connections that holds are bound to, and how many each. O(N), where N is the number of sessions.
    pub(crate) fn connections(&self) -> Vec<(Connection, usize)> {
        let mut all: Vec<(Connection, usize)> = Vec::new();
        for (session, count) in self.bound() {
            match all.last_mut() {
                Some((last, sum)) if *last == session.connection => *sum += count,
                _ => all.push((session.connection, count)),
            }
        }
        all
    }

    /// The owners whose holds are bound by these sessions, in order of session.
    pub(crate) fn owners_by(&self, sessions: RangeInclusive<Session>) -> impl Iterator<Item = &Owner> {
        let (one, many) = match &self.0 {
            Repr::None(_) => (None, None),
            Repr::One(owner, hold) => (hold.session().filter(|by| sessions.contains(by)).map(|_| owner), None),
            Repr::Many(many) => {
                let from = (*sessions.start(), Owner::new(b""));
                let bound = many.by_session.range(from..).take_while(move |(by, _)| by <= sessions.end());
                (None, Some(bound.map(|(_, owner)| owner)))
            }
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The owners whose holds are bound to a connection.
    pub fn owners_bound_to(&self, connection: Connection) -> impl Iterator<Item = &Owner> {
        self.owners_by(Session::all_of(connection))
    }

    /// The offers that holds are parts of. None is looked at where there is no offer.
    pub(crate) fn offers(&self) -> impl Iterator<Item = OfferId> {
        let some = !matches!(&self.0, Repr::Many(many) if many.offered == 0);
        some.then(|| self.iter().filter_map(|(_, hold)| hold.offer())).into_iter().flatten()
    }

    /// How many leases are over at `now`.
    #[must_use]
    pub fn over(&self, now: Timestamp) -> usize {
        match &self.0 {
            Repr::None(_) => 0,
            Repr::One(_, hold) => usize::from(hold.deadline <= now),
            Repr::Many(many) => many.by_deadline.iter().take_while(|(deadline, _)| *deadline <= now).count(),
        }
    }

    /// The highest fence given on this lock while it exists; None before the first.
    #[must_use]
    pub fn highest_fence(&self) -> Option<Fence> {
        match &self.0 {
            Repr::None(highest) => *highest,
            Repr::One(_, hold) => Some(hold.fence()),
            Repr::Many(many) => many.highest,
        }
    }

    /// Takes note of a fence given on this lock, apart from those of the holds that are put here.
    pub fn raise_fence(&mut self, fence: Fence) {
        match &mut self.0 {
            Repr::None(highest) => *highest = (*highest).max(Some(fence)),
            Repr::One(_, hold) if hold.fence() >= fence => {}
            Repr::One(..) => self.spread(|many| many.raise(fence)),
            Repr::Many(many) => many.raise(fence),
        }
    }

    /// Moves what is in place to trees, and lets these be changed.
    #[cold]
    fn spread<R>(&mut self, change: impl FnOnce(&mut Many) -> R) -> R {
        let mut many = Box::<Many>::default();
        match core::mem::take(&mut self.0) {
            Repr::None(highest) => many.highest = highest,
            Repr::One(owner, hold) => drop(many.put(&owner, hold)),
            Repr::Many(same) => many = same,
        }
        let changed = change(&mut many);
        self.0 = Repr::Many(many);
        changed
    }

    /// Puts an owner's hold, in place of what it held before, which is returned.
    #[inline]
    pub fn put(&mut self, owner: &Owner, hold: Hold) -> Option<Hold> {
        match &mut self.0 {
            Repr::None(highest) if *highest <= Some(hold.fence()) => {
                self.0 = Repr::One(owner.clone(), hold);
                None
            }
            Repr::One(holder, old) if old.fence() <= hold.fence() && holder == owner => {
                Some(core::mem::replace(old, hold))
            }
            Repr::None(_) | Repr::One(..) => self.spread(|many| many.put(owner, hold)),
            Repr::Many(many) => many.put(owner, hold),
        }
    }

    /// Takes an owner's hold away.
    pub fn take(&mut self, owner: &[u8]) -> Option<Hold> {
        match &mut self.0 {
            Repr::None(_) => None,
            Repr::One(holder, _) if holder.as_bytes() != owner => None,
            Repr::One(_, hold) => {
                let highest = Some(hold.fence());
                match core::mem::replace(&mut self.0, Repr::None(highest)) {
                    Repr::One(_, hold) => Some(hold),
                    Repr::None(_) | Repr::Many(_) => None,
                }
            }
            Repr::Many(many) => {
                let hold = many.take(owner);
                if many.by_owner.is_empty() {
                    self.0 = Repr::None(many.highest);
                }
                hold
            }
        }
    }

    /// Takes away the hold that ended first, if it is over at `now`.
    #[inline(always)]
    pub fn take_lapsed(&mut self, now: Timestamp) -> Option<(Owner, Hold)> {
        let is_over = self.earliest().is_some_and(|(deadline, _)| deadline <= now);
        if is_over { self.take_earliest() } else { None }
    }

    #[inline(never)]
    fn take_earliest(&mut self) -> Option<(Owner, Hold)> {
        let owner = self.earliest()?.1.clone();
        let hold = self.take(owner.as_bytes())?;
        Some((owner, hold))
    }

    /// Takes away any one of them.
    pub(crate) fn take_any(&mut self) -> Option<(Owner, Hold)> {
        self.take_earliest()
    }

    /// Takes away all of them. The highest fence given stays.
    pub(crate) fn take_all(&mut self) -> Holds {
        let highest = self.highest_fence();
        core::mem::replace(self, Holds(Repr::None(highest)))
    }

    /// Marks all as carried here at `now`.
    pub fn carry(&mut self, now: Timestamp) {
        let (one, many) = match &mut self.0 {
            Repr::None(_) => (None, None),
            Repr::One(_, hold) => (Some(hold), None),
            Repr::Many(many) => (None, Some(many.by_owner.values_mut())),
        };
        for hold in one.into_iter().chain(many.into_iter().flatten()) {
            hold.carry(now);
        }
    }

    /// Bytes allocated outside of the value itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let of_holds: usize = self.iter().map(|(owner, hold)| owner.heap_bytes() + hold.heap_bytes()).sum();
        match &self.0 {
            Repr::None(_) | Repr::One(..) => of_holds,
            Repr::Many(many) => of_holds + many.heap_bytes(),
        }
    }
}

impl Many {
    // Kept out of the way of locks with one holder.
    #[inline(never)]
    fn entry(&self, owner: &[u8]) -> Option<(&Owner, &Hold)> {
        self.by_owner.get_key_value(owner)
    }

    fn raise(&mut self, fence: Fence) {
        self.highest = self.highest.max(Some(fence));
    }

    fn put(&mut self, owner: &Owner, hold: Hold) -> Option<Hold> {
        let deadline = hold.deadline;
        self.note(owner, &hold);
        let session = hold.session();
        let old = self.by_owner.insert(owner.clone(), hold);
        if let Some(old) = &old {
            self.forget(owner, old, session);
        }
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
        self.forget(&owner, &hold, None);
        self.by_deadline.remove(&(hold.deadline, owner));
        Some(hold)
    }

    /// Counts a hold that comes.
    fn note(&mut self, owner: &Owner, hold: &Hold) {
        self.raise(hold.fence());
        self.reads += u64::from(hold.reads());
        self.offered += usize::from(hold.offer().is_some());
        if let Some(session) = hold.session() {
            *self.bound.entry(session).or_default() += 1;
            self.by_session.insert((session, owner.clone()));
        }
    }

    /// Counts a hold no more. The owner's next one, if there is one, is bound by this session.
    fn forget(&mut self, owner: &Owner, hold: &Hold, next: Option<Session>) {
        self.reads -= u64::from(hold.reads());
        self.offered -= usize::from(hold.offer().is_some());
        let Some(session) = hold.session() else { return };
        if next != Some(session) {
            self.by_session.remove(&(session, owner.clone()));
        }
        if let Some(count) = self.bound.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                self.bound.remove(&session);
            }
        }
    }

    fn running(&self, now: Timestamp) -> impl Iterator<Item = (&Owner, &Hold)> {
        let running = self.by_deadline.iter().rev().take_while(move |(deadline, _)| *deadline > now);
        running.filter_map(|(_, owner)| self.by_owner.get_key_value(owner))
    }

    fn heap_bytes(&self) -> usize {
        let holds = of_tree(self.by_owner.len(), size_of::<(Owner, Hold)>());
        let deadlines = of_tree(self.by_deadline.len(), size_of::<(Timestamp, Owner)>());
        // Each deadline has its own copy of the owner.
        let spilled: usize = self.by_owner.keys().map(Owner::heap_bytes).sum();
        let sessions = of_tree(self.bound.len(), size_of::<(Session, usize)>());
        let bound = of_tree(self.by_session.len(), size_of::<(Session, Owner)>());
        let spilled_bound: usize = self.by_session.iter().map(|(_, owner)| owner.heap_bytes()).sum();
        allocated(size_of::<Many>()) + holds + deadlines + sessions + bound + spilled + spilled_bound
    }
}
