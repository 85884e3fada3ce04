//! When keys expire that are waited for: a client has given them a time to live.
//!
//! A server deletes such a key when somebody opens it, and else when its own search comes to it. Nobody opens a key
//! that all wait for. So the module does, at the moment that is noted here.
//!
//! What is noted may be too early: the key has lost its time to live, or has got a later one. Whoever opens it then
//! notes what is true now. It is never too late: what gives a key an earlier one is noted at once.

use crate::model::key::{Db, KeyName};
use crate::model::time::WallTime;
use alloc::collections::{BTreeMap, BTreeSet};

/// The keys that are waited for and expire, at most one entry each.
#[derive(Debug)]
pub(super) struct Expiries {
    keys: BTreeMap<(Db, KeyName), WallTime>,
    order: BTreeSet<(WallTime, Db, KeyName)>,
}

impl Expiries {
    /// None.
    pub(super) const fn new() -> Expiries {
        Expiries { keys: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// True if no key that is waited for is known to expire.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Notes when a key expires; None: never.
    pub(super) fn set(&mut self, db: Db, name: &KeyName, at: Option<WallTime>) {
        if self.is_empty() && at.is_none() {
            return;
        }
        let place = (db, name.clone());
        let was = match at {
            Some(at) => self.keys.insert(place, at),
            None => self.keys.remove(&place),
        };
        if was == at {
            return;
        }
        if let Some(was) = was {
            self.order.remove(&(was, db, name.clone()));
        }
        if let Some(at) = at {
            self.order.insert((at, db, name.clone()));
        }
    }

    /// Returns when a key expires, as far as is noted.
    pub(super) fn of(&self, db: Db, name: &KeyName) -> Option<WallTime> {
        // Most nodes know none: then the name is not copied.
        (!self.is_empty()).then(|| self.keys.get(&(db, name.clone())).copied()).flatten()
    }

    /// Returns the key that expires first, and when.
    pub(super) fn first(&self) -> Option<&(WallTime, Db, KeyName)> {
        self.order.first()
    }

    /// True if each key is accepted, and stands in the order once.
    pub(super) fn are_all(&self, mut accepts: impl FnMut(Db, &KeyName) -> bool) -> bool {
        self.keys.len() == self.order.len() && self.keys.keys().all(|(db, name)| accepts(*db, name))
    }
}
