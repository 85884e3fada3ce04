//! Which owners are to be checked for deadlocks: each once, the last that was marked first.

use super::waiter::CycleCause;
use crate::model::owner::Owner;
use crate::model::request::WaiterId;
use alloc::collections::BTreeMap;

/// Owners to be checked. One entry stands for all waits of an owner, since a search begins at the owner.
#[derive(Debug)]
pub(super) struct Checks {
    entries: BTreeMap<u64, Check>,
    numbers: BTreeMap<Owner, u64>,
    marked: u64,
}

/// An owner to be checked.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) owner: Owner,
    pub(super) cause: CycleCause,
    /// The waiter whose keys are opened for it, while that waits.
    pub(super) at: WaiterId,
}

impl Checks {
    pub(super) const fn new() -> Checks {
        Checks { entries: BTreeMap::new(), numbers: BTreeMap::new(), marked: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Enters an owner. If it is entered already, its entry keeps its place, and has the graver cause.
    pub(super) fn mark(&mut self, owner: &Owner, at: WaiterId, cause: CycleCause) {
        let number = *self.numbers.entry(owner.clone()).or_insert_with(|| {
            self.marked += 1;
            self.marked
        });
        let check = self.entries.entry(number).or_insert_with(|| Check { owner: owner.clone(), cause, at });
        check.cause = cause.max(check.cause);
    }

    /// The entry that was made last.
    pub(super) fn last(&self) -> Option<&Check> {
        self.entries.last_key_value().map(|(_, check)| check)
    }

    /// Removes an owner's entry.
    pub(super) fn take(&mut self, owner: &Owner) -> Option<Check> {
        let number = self.numbers.remove(owner)?;
        self.entries.remove(&number)
    }
}
