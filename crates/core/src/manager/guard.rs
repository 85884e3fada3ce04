//! Guarding: whether an owner may run a command now, because it holds the lock for writing.

use super::LockManager;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::request::{Check, Guard, Outcome};
use crate::model::step::Step;

impl LockManager {
    /// Judges by the first key of the step, which is settled. Changes no hold.
    pub(super) fn guard<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        (owner, operation): (&Owner, Guard),
    ) -> Outcome {
        let key = KeyIndex(0);
        let hold = step.keys.lock(key).and_then(|lock| lock.holds.get(owner.as_bytes()));
        let fence = hold.filter(|hold| Check::from(operation).admits(hold)).map(|hold| hold.fence());
        // An owner that names its fence knows of the grant.
        self.confirm_grants(step, fence.map(|_| key).into_iter(), owner);
        Outcome::Guarded(fence)
    }
}
