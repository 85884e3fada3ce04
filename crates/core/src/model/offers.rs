//! Offers: grants to places in a queue whose owners had no request at the server (QUEUE). An offer is a hold that no
//! client knows of yet. Its owner collects it by asking again; otherwise it ends, and the next waiter is granted.
//!
//! That a hold is an offer lies in the hold itself, so that it goes where the hold goes. Here is which holds belong
//! together: those of one request for several keys are collected all at once. Nothing of this is saved or replicated.
//! After a failover or a restart an offer is a plain hold with what was left of its time.

use super::key::{Db, KeyName};
use alloc::collections::{BTreeMap, BTreeSet};
use core::num::NonZeroU32;
use smallvec::SmallVec;

/// Names one offer. No two have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfferId {
    /// How often all had been forgotten when it was made.
    epoch: u32,
    number: u64,
}

/// All offers of this node.
#[derive(Debug)]
pub(crate) struct Offers {
    made: u64,
    epoch: u32,
    by_id: BTreeMap<OfferId, Parts>,
    /// Offers without a hold. Kept until the step ends: a lock that is renamed over another leaves one key
    /// before it comes to the other, with all offers on it.
    emptied: BTreeSet<OfferId>,
}

/// One key of a request that was granted as an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Its name when it was asked for. The owner asks again by this one, wherever the hold has gone.
    asked: KeyName,
    db: Db,
    name: KeyName,
    state: PartState,
    /// Of shares: the limit up to which they were granted.
    limit: Option<NonZeroU32>,
}

/// In the order in which they were asked for; in place for the usual single key.
type Parts = SmallVec<[Part; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartState {
    /// The hold was made by the offer, and is there still.
    Offered,
    /// The owner held the key before. That hold is no part of the offer.
    Held,
    /// The hold was made by the offer, and is gone.
    Gone,
}

/// The outcome of a request by the owner of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It names all keys of the offer, and all that was offered is there.
    Whole,
    /// It names all keys of the offer. Some of what was offered is gone, or lies elsewhere.
    Broken,
    /// It names other keys.
    Other,
}

impl Part {
    /// A key that lies where it was asked for.
    fn new(db: Db, name: KeyName, state: PartState, limit: Option<NonZeroU32>) -> Part {
        Part { asked: name.clone(), db, name, state, limit }
    }

    /// True if it has a hold that no client knows of.
    fn stands(&self) -> bool {
        self.state == PartState::Offered
    }
}

impl Offers {
    /// None.
    pub(crate) const fn new() -> Offers {
        Offers { made: 0, epoch: 0, by_id: BTreeMap::new(), emptied: BTreeSet::new() }
    }

    /// The keys on which they stand.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (Db, &KeyName)> {
        self.by_id.values().flatten().filter(|part| part.stands()).map(|part| (part.db, &part.name))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len() - self.emptied.len()
    }

    /// Forgets those of which no hold is left. No lock is on its way from one key to another now.
    pub(crate) fn forget_emptied(&mut self) {
        while let Some(id) = self.emptied.pop_first() {
            self.by_id.remove(&id);
        }
    }

    /// True if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the next offer.
    pub(crate) fn next_id(&mut self) -> OfferId {
        self.made += 1;
        OfferId { epoch: self.epoch, number: self.made }
    }

    /// An offer was made on these keys, unless the owner held all of them before: it says which. Whether one was made.
    pub(crate) fn made(
        &mut self,
        id: OfferId,
        db: Db,
        limit: Option<NonZeroU32>,
        keys: impl Iterator<Item = (KeyName, bool)>,
    ) -> bool {
        self.forget_emptied();
        let state = |held| if held { PartState::Held } else { PartState::Offered };
        let parts: Parts = keys.map(|(name, held)| Part::new(db, name, state(held), limit)).collect();
        let is_made = parts.iter().any(Part::stands);
        if is_made {
            self.by_id.insert(id, parts);
        }
        is_made
    }

    /// Returns the outcome of a request for these keys, by the offer that its owner has on one of them.
    pub(crate) fn claim(&self, id: OfferId, db: Db, names: &[KeyName]) -> Claim {
        // What this node does not know of any more is one key, which lies there.
        let Some(parts) = self.by_id.get(&id) else {
            return if names.len() == 1 { Claim::Whole } else { Claim::Other };
        };
        let named_by = |name_of: fn(&Part) -> &KeyName| parts.iter().map(name_of).eq(names);
        let is_there = |part: &Part| part.state != PartState::Gone && part.db == db;
        match (named_by(|part| &part.name), named_by(|part| &part.asked)) {
            (true, _) if parts.iter().all(is_there) => Claim::Whole,
            (false, false) => Claim::Other,
            _ => Claim::Broken,
        }
    }

    /// The limit up to which offered shares were granted; None if they are none, or if that is not known any more.
    pub(crate) fn limit_of(&self, id: OfferId) -> Option<NonZeroU32> {
        self.by_id.get(&id)?.iter().find_map(|part| part.limit)
    }

    /// The keys of this database on which an offer stands.
    pub(crate) fn keys_of(&self, id: OfferId, db: Db) -> SmallVec<[KeyName; 1]> {
        let parts = self.by_id.get(&id).into_iter().flatten();
        parts.filter(|part| part.stands() && part.db == db).map(|part| part.name.clone()).collect()
    }

    /// A hold of an offer has ended or was collected, or its lock left the key.
    pub(crate) fn leave(&mut self, id: OfferId, db: Db, name: &KeyName) {
        let Some(parts) = self.by_id.get_mut(&id) else { return };
        for part in parts.iter_mut().filter(|part| part.stands() && part.db == db && part.name == *name) {
            part.state = PartState::Gone;
        }
        if !parts.iter().any(Part::stands) {
            self.emptied.insert(id);
        }
    }

    /// A lock with an offered hold came from another key, if it is known from which.
    pub(crate) fn carry(&mut self, id: OfferId, from: Option<(Db, &KeyName)>, to: (Db, &KeyName)) {
        let here = Part::new(to.0, to.1.clone(), PartState::Offered, None);
        if id.epoch != self.epoch {
            return;
        }
        // It left the old key before. It may have been forgotten, if it was not known at once where the lock went.
        let parts = self.by_id.entry(id).or_insert_with(|| Parts::from([here.clone()]));
        let came = |part: &&mut Part| from.is_some_and(|(db, name)| part.db == db && part.name == *name);
        if let Some(part) = parts.iter_mut().filter(|part| part.state == PartState::Gone).find(came) {
            *part = Part { asked: part.asked.clone(), limit: part.limit, ..here };
        }
        if parts.iter().any(Part::stands) {
            self.emptied.remove(&id);
        }
    }

    /// A database, or all of them, was emptied.
    pub(crate) fn flush(&mut self, db: Option<Db>) {
        self.by_id.retain(|_, parts| {
            for part in parts.iter_mut().filter(|part| part.stands() && db.is_none_or(|db| db == part.db)) {
                part.state = PartState::Gone;
            }
            parts.iter().any(Part::stands)
        });
        self.emptied.clear();
    }

    /// Two databases changed places.
    pub(crate) fn swap(&mut self, one: Db, other: Db) {
        for part in self.by_id.values_mut().flatten() {
            part.db = match part.db {
                db if db == one => other,
                db if db == other => one,
                db => db,
            };
        }
    }

    /// This node grants no more. What it has offered is a plain hold to the next primary, which may be itself.
    pub(crate) fn clear(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.by_id.clear();
        self.emptied.clear();
    }
}
