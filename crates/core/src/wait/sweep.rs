//! Sweeps: all queues of a database are to be served, which the background notes of a few at a time.
//!
//! A queue that no sweep has come to yet is to be served all the same: it has a lower number than the last sweep, and a
//! step that names its key sees that ([`super::table::WaitTable`]).

use super::queue::{Pending, WaitQueue};
use super::waiter::Timer;
use crate::collections::wheel::Wheel;
use crate::model::key::{Db, KeyName};
use alloc::collections::VecDeque;

/// The sweep of the queues of a database.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The number of the last sweep.
    pub(super) number: u64,
    /// The number of the last one after which waiters are checked for deadlocks as well.
    pub(super) checks: u64,
    /// The number of the last one that ends reservations.
    pub(super) clears: u64,
    /// The queue that it came to last; the next one goes on behind it.
    pub(super) behind: Option<KeyName>,
    /// How many queues it has still to come to, at most.
    pub(super) left: usize,
}

/// The work of a sweep on each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SweepKind {
    /// True if its waiters are checked for deadlocks as well.
    pub(crate) checks: bool,
    /// True if its reservation ends.
    pub(crate) clears: bool,
}

impl Sweep {
    /// Does with a queue what the sweeps do that have not come to it yet.
    pub(super) fn reach(
        &self,
        (db, name, queue): (Db, &KeyName, &mut WaitQueue),
        ready: &mut VecDeque<(Db, KeyName)>,
        wheel: &mut Wheel<Timer>,
    ) {
        let before = core::mem::replace(&mut queue.swept, self.number);
        if before >= self.number {
            return;
        }
        if before < self.clears
            && let Some(reservation) = queue.reservation.take()
        {
            wheel.disarm(reservation.timer);
        }
        let pending = if before < self.checks { Pending::WakeAndCheck } else { Pending::Wake };
        if queue.mark(pending) {
            ready.push_back((db, name.clone()));
        }
    }
}
