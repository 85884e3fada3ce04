//! What operators do and see: they break holds, and list the longest waits and the most contended keys.

use super::LockManager;
use super::waiters::Waiting;
use crate::lock::model::effect::Cause;
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::keyspace::{Keyspace, Place};
use crate::lock::model::owner::Owner;
use crate::lock::model::step::Step;
use crate::lock::model::time::{Millis, Timestamp};
use alloc::vec::Vec;

/// A key that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContendedKey {
    /// In which database.
    pub db: Db,
    /// Its name.
    pub name: KeyName,
    /// How many wait for it.
    pub waiting: usize,
    /// How long its first waiter has waited.
    pub waited: Millis,
}

impl LockManager {
    /// Ends an owner's hold on a key, and its place, or all holds there are; and the key's reservation. Then the next
    /// waiters are granted.
    ///
    /// How many holds were ended.
    pub fn break_holds<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, owner: Option<&Owner>) -> usize {
        step.settle(key, &self.sessions);
        let before = step.effects.changes.len();
        if let Some(lock) = step.keys.lock(key) {
            let holders = lock.holds.iter().map(|(holder, _)| holder);
            let broken: Vec<Owner> =
                holders.filter(|holder| owner.is_none_or(|owner| owner == *holder)).cloned().collect();
            for holder in &broken {
                step.effects.commit_end(lock, key, Cause::Break, holder);
            }
        }
        let broken = step.effects.changes.len() - before;
        let Place { db, name, .. } = step.keys.place(key);
        self.wait_table.expire_reservation(db, name, owner, step.now.mono);
        if let Some(owner) = owner {
            self.leave_place(step, key, owner, |_| true);
        }
        self.wake_waiters(step, key, self.limits.step.answers);
        self.follow(step);
        broken
    }

    /// The longest waits, at most so many, the longest first.
    #[must_use]
    pub fn longest_waits(&self, most: usize, now: Timestamp) -> Vec<Waiting<'_>> {
        top(self.everybody_waiting(now), most, |waiting| (waiting.waiter.since, waiting.id))
    }

    /// The most contended keys, at most so many, the most contended first.
    #[must_use]
    pub fn most_contended(&self, most: usize, now: Timestamp) -> Vec<ContendedKey> {
        let contended = self.wait_table.queues().map(|(db, name, queue)| {
            let since = queue.iter().filter_map(|id| self.wait_table.waiter(id)).map(|waiter| waiter.since).min();
            let waited = since.map_or(Millis(0), |since| since.ago(now));
            ContendedKey { db, name: name.clone(), waiting: queue.len(), waited }
        });
        top(contended, most, |contended| (usize::MAX - contended.waiting, contended.db, contended.name.clone()))
    }
}

/// The least of these by a key, at most so many, in order.
fn top<T, O: Ord>(all: impl Iterator<Item = T>, most: usize, by: impl Fn(&T) -> O) -> Vec<T> {
    let mut kept = Vec::new();
    for item in all {
        kept.push(item);
        // Now and then, so that it costs no more memory than twice what is asked for.
        if kept.len() >= most.saturating_mul(2).max(64) {
            kept.sort_by_key(&by);
            kept.truncate(most);
        }
    }
    kept.sort_by_key(by);
    kept.truncate(most);
    kept
}
