//! How holders hold a key, and which holders a waiter can be served beside.

use crate::model::hold::{Hold, Mode};
use crate::model::owner::Owner;
use crate::wait::waiter::Waiter;

/// How a holder holds a key: in the order of how much it keeps others waiting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub(super) writes: bool,
    pub(super) reads: u32,
}

impl Held {
    pub(super) fn of(hold: &Hold) -> Held {
        Held { writes: hold.writes() > 0, reads: hold.reads() }
    }

    /// True if it keeps a waiter waiting that can be served beside so many reads of a holder.
    pub(super) fn exceeds(self, most: u32) -> bool {
        self.writes || self.reads > most
    }
}

/// Beside how many reads of one holder a waiter can be served.
#[derive(Clone, Copy)]
pub(super) struct Beside<'r> {
    pub(super) most: u32,
    /// The owner of the waiter that says so, if it is another one that stands before.
    pub(super) by: Option<&'r Owner>,
}

impl<'r> Beside<'r> {
    /// Any reads: it reads itself.
    pub(super) const READERS: Beside<'static> = Beside { most: u32::MAX, by: None };
    /// None: it writes.
    pub(super) const NOBODY: Beside<'static> = Beside { most: 0, by: None };

    /// Beside how many one can that holds nothing, by what it asks for itself.
    pub(super) fn of(waiter: &Waiter) -> Beside<'static> {
        match waiter.operation.mode {
            Mode::Write => Beside::NOBODY,
            Mode::Read => waiter.operation.most_beside().map_or(Beside::READERS, |most| Beside { most, by: None }),
        }
    }

    /// The one that leaves less room.
    pub(super) fn stricter(self, other: Beside<'r>) -> Beside<'r> {
        if other.most < self.most { other } else { self }
    }
}
