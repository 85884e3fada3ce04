//! What operators do and see: they break holds, and list the longest waits and the most contended keys.

use super::LockManager;
use super::waiters::Waiting;
use crate::model::effect::Cause;
use crate::model::key::{Db, KeyIndex, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::step::Step;
use crate::model::time::{Millis, Timestamp};
use alloc::vec::Vec;
use core::cmp::Reverse;

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
        let most = self.limits.step.holds_ended;
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
            self.leave_places(step, &[key], owner, (None, true));
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
        // In the order of their names, as far as these are short: long ones may be alike but for their ends.
        const COMPARED: usize = 64;
        let queues = top(self.wait_table.queues(), most, |(db, name, queue)| {
            let name: &KeyName = name;
            (Reverse(queue.len()), *db, &name[..name.len().min(COMPARED)], name)
        });
        // Only the queues that are shown are read.
        let contended = queues.into_iter().map(|(db, name, queue)| {
            let since = queue.iter().filter_map(|id| self.wait_table.waiter(id)).map(|waiter| waiter.since).min();
            let waited = since.map_or(Millis(0), |since| since.ago(now));
            ContendedKey { db, name: name.clone(), waiting: queue.len(), waited }
        });
        contended.collect()
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

/// The least of these by a key, at most so many, in order. One that is no less than those that are kept costs one
/// comparison.
fn top<T, O: Ord>(all: impl Iterator<Item = T>, most: usize, by: impl Fn(&T) -> O) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    let mut last = None;
    for item in all {
        if last.as_ref().is_some_and(|last| by(&item) >= *last) {
            continue;
        }
        kept.push(item);
        // Now and then, so that it costs no more memory than twice what is asked for.
        if kept.len() >= most.saturating_mul(2).max(64) {
            kept.sort_by_key(&by);
            kept.truncate(most);
            last = kept.last().map(&by);
        }
    }
    kept.sort_by_key(by);
    kept.truncate(most);
    kept
}

#[cfg(test)]
mod tests {
    use super::top;
    use alloc::vec::Vec;
    use core::cell::Cell;

    #[test]
    fn the_first_of_many_are_found_without_sorting_the_others() {
        // LOCK.TOP beside 100,000 places sorted all of them, 64 at a time, with names that were copied for that.
        const COUNT: u64 = 100_000;
        let scrambled = || (0..COUNT).map(|number| number * 7_919 % COUNT);
        let looked_at = Cell::new(0);
        let first = top(scrambled(), 10, |number| {
            looked_at.set(looked_at.get() + 1);
            *number
        });
        assert_eq!(first, (0..10).collect::<Vec<_>>());
        assert!(looked_at.get() < 2 * COUNT, "{} keys of {COUNT} items", looked_at.get());
    }
}
