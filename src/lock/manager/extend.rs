//! Extending: a holder's lease ends later, or sooner.

use super::LockManager;
use crate::lock::model::effect::Cause;
use crate::lock::model::fence::Fence;
use crate::lock::model::key::KeyIndex;
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{Extend, Outcome, PerKey};
use crate::lock::model::step::Step;

impl LockManager {
    /// Extends the holds on the first keys of the step, each that the owner has.
    pub(super) fn extend<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        count: u16,
        (owner, operation): (&Owner, &Extend),
    ) -> Outcome {
        let named = || (0..count).map(KeyIndex);
        let extended: PerKey<Option<Fence>> = named().map(|key| extend(step, key, owner, operation)).collect();
        // An owner that names a fence which it does not have, or a key that it does not hold, knows of no grant.
        let done = named().zip(&extended).filter(|(_, fence)| fence.is_some()).map(|(key, _)| key);
        self.confirm_grants(step, done, owner);
        Outcome::Extended(extended)
    }
}

fn extend<K: Keyspace>(step: &mut Step<'_, K>, key: KeyIndex, owner: &Owner, operation: &Extend) -> Option<Fence> {
    let lock = step.keys.lock(key)?;
    // The owner of an offer does not know of it.
    let mut hold = lock.hold_of(owner, operation.fence).filter(|hold| hold.offer().is_none())?.clone();
    hold.deadline = step.now.mono + operation.lease;
    hold.rebind(operation.session);
    if let Some(note) = &operation.note {
        hold.set_note(Some(note.clone()).filter(|note| !note.0.is_empty()));
    }
    let fence = hold.fence;
    step.effects.commit_hold(lock, key, Cause::Extend, owner, hold);
    Some(fence)
}
