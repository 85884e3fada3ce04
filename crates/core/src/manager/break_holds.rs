//! Breaking: an operator ends holds of others.

use super::LockManager;
use crate::model::effect::Cause;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::step::Step;
use alloc::vec::Vec;

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
