//! What operators do and see: they break holds, and list the longest waits and the most contended keys.

use super::LockManager;
use super::waiters::Waiting;
use crate::lock::model::effect::Cause;
use crate::lock::model::key::{Db, KeyIndex, KeyName, PlainName};
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::limits::GRANTS_PER_BATCH;
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
        let most = self.limits.holds_ended_per_step;
        step.settle(key, owner, self.settling(most));
        let before = step.effects.changes.len();
        let holders = step.keys.lock(key).map_or(0, |lock| lock.holds.len());
        let broken = match owner {
            None if holders > most || step.is_unsettled(key) => step.end_all(key, Cause::Break, self.settling(most)),
            _ => {
                break_each(step, key, owner);
                step.effects.changes.len() - before
            }
        };
        if self.wait_table.contended() > 0 {
            let (db, name) = self.place_of(step, key);
            self.wait_table.expire_reservation(db, &name, owner, step.now.mono);
        }
        if let Some(owner) = owner {
            self.leave_places(step, &[key], owner, None);
        }
        self.wake_waiters(step, key, GRANTS_PER_BATCH);
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
        // In the order of their names, as far as these are short: long ones may be alike but for their ends.
        const COMPARED: usize = 64;
        let prefix = |name: &KeyName| PlainName::from_slice(&name[..name.len().min(COMPARED)]);
        top(contended, most, |ContendedKey { db, name, waiting, .. }| {
            (usize::MAX - waiting, *db, prefix(name), name.clone())
        })
    }
}

/// Ends an owner's hold, or each there is.
fn break_each<K: Keyspace>(step: &mut Step<'_, K>, key: KeyIndex, owner: Option<&Owner>) {
    let Some(lock) = step.keys.lock(key) else { return };
    let broken: Vec<Owner> = match owner {
        Some(owner) => Vec::from([owner.clone()]),
        None => lock.holds.iter().map(|(holder, _)| holder.clone()).collect(),
    };
    for holder in &broken {
        step.effects.commit_end(lock, key, Cause::Break, holder);
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
