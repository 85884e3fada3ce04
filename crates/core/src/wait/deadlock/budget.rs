//! What searches may cost.

use crate::model::key::KeyName;

/// A number of units, of some 25 nanoseconds each, that a part of a search may still cost.
#[derive(Clone, Debug)]
pub(crate) struct Budget(usize);

/// The budget of all searches together that the server waits for in one step: some five milliseconds.
#[derive(Clone, Debug)]
pub struct Budgets {
    /// The part of a search that follows holds alone. Waiters cannot use it up: queues are not read for it.
    pub(crate) holds: Budget,
    /// The part that follows queues as well.
    pub(crate) queues: Budget,
    /// The question whether anybody waits for the requester.
    pub(crate) waited_for: Budget,
}

/// A search was given up: it would have exceeded its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// A key that is met first is looked up in the keyspace and in the wait table.
const KEY_COST: usize = 64;

/// To look for one hold costs less than to meet a key.
pub(super) const PEEK_COST: usize = 24;

/// An owner that is to be checked has an entry.
const MARK_COST: usize = 16;

/// A holder is looked up in the wait table.
pub(super) const HOLDER_COST: usize = 32;

impl Budgets {
    /// Returns the budget of a node.
    #[must_use]
    pub const fn new() -> Budgets {
        Budgets { holds: Budget(65_536), queues: Budget(147_456), waited_for: Budget(196_608) }
    }

    /// The same, with so much for the part that follows queues.
    #[must_use]
    pub const fn with_queues(units: usize) -> Budgets {
        Budgets { queues: Budget(units), ..Budgets::new() }
    }

    /// Pays for the note that an owner is to be checked. False if that was the last one.
    pub(crate) fn pay_for_mark(&mut self) -> bool {
        self.queues.pay(MARK_COST)
    }
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets::new()
    }
}

impl Budget {
    /// All that is left of it.
    pub(super) fn take(&mut self) -> Budget {
        Budget(core::mem::take(&mut self.0))
    }

    /// Pays for a piece of a search. False if that was the last one.
    pub(crate) fn pay(&mut self, cost: usize) -> bool {
        self.0 = self.0.saturating_sub(cost);
        !self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// How many pieces of this cost it has left.
    pub(super) fn affords(&self, cost: usize) -> usize {
        self.0 / cost
    }
}

/// Returns the cost of meeting a key: its name is copied, hashed, and compared with other names.
pub(super) fn meeting(name: &KeyName) -> usize {
    KEY_COST + name.len() / 16
}

/// Returns the cost of looking for one hold on a key.
pub(super) fn peeking(name: &KeyName) -> usize {
    PEEK_COST + name.len() / 32
}

/// Returns the cost of seeing that a key was met already, beside the visit: its name is compared.
pub(super) fn comparing(name: &KeyName) -> usize {
    name.len() / 64
}
