//! Checks the invariants of the wait table ([`super::table`]), for the model test.

use super::queue::WaitQueue;
use super::table::WaitTable;
use super::waiter::{queue_bytes, seat_bytes};
use crate::model::key::{Db, KeyName};
use crate::model::time::Timestamp;
use alloc::collections::{BTreeMap, BTreeSet};

impl WaitTable {
    /// The first of the invariants that does not hold, by its number; of W2, that a job will come to each queue.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let mut seats = 0;
        let mut asked = BTreeSet::new();
        for (id, waiter) in self.waiters.iter() {
            if !waiter.is_waiting() {
                continue;
            }
            seats += waiter.keys.len();
            if !waiter.keys.iter().all(|key| {
                self.queue(waiter.db, &key.name).is_some_and(|queue| queue.at(waiter.position_at(key)) == Some(id))
            }) {
                return Some("W1");
            }
            if waiter
                .until
                .is_some_and(|until| !waiter.entry.is_some_and(|at| self.wheel.covers(at, until, Timestamp(0))))
            {
                return Some("W3");
            }
            let kind = waiter.operation.kind();
            if !waiter.keys.iter().all(|key| asked.insert((waiter.db, key.name.clone(), waiter.owner.clone(), kind))) {
                return Some("W4");
            }
        }
        let mut queues = self.queues();
        let going_on = self.sweeps.iter().filter(|sweep| sweep.left > 0).count();
        let is_left = |db: Db| self.sweeps[db.0 as usize].left > 0;
        if going_on != self.sweeping || !queues.all(|(db, _, queue)| self.is_swept(db, queue) || is_left(db)) {
            return Some("W2");
        }
        let paid = |(_, name, queue): (Db, &KeyName, &WaitQueue)| queue.has_payer().then(|| queue_bytes(name));
        let Some(queues) = self.queues().map(paid).sum::<Option<usize>>() else { return Some("W5") };
        let waiting = self.all_waiting();
        let own: usize = waiting.map(|waiter| seat_bytes(&waiter.owner, waiter.keys.len())).sum();
        if own + queues != self.place_bytes + self.waiter_bytes {
            return Some("W5");
        }
        if !self.expiries_are_sound() {
            return Some("W6");
        }
        if !self.told_is_sound() {
            return Some("W7");
        }
        let queues = self.queues.iter().flat_map(BTreeMap::values);
        let stand: usize = queues.clone().map(WaitQueue::len).sum();
        (stand != seats || !queues.clone().all(WaitQueue::is_sound)).then_some("W1")
    }
}
