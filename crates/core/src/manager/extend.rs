//! Extending: a holder's lease ends later, or sooner. Its fence may rise.

use super::LockManager;
use super::grant::{GrantContext, raised};
use crate::model::effect::Cause;
use crate::model::fence::Fence;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::request::{Extend, Outcome, Refusal};
use crate::model::step::{Step, per_key};

impl LockManager {
    /// Extends the holds on these keys, each that the owner has.
    pub(super) fn extend<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Extend),
    ) -> Result<Outcome, Refusal> {
        let extended = per_key(named, |key| self.extend_key(step, key, (owner, operation)))?;
        // An owner that names a fence which it does not have, or a key that it does not hold, knows of no grant.
        if !self.wait_table.is_empty() {
            let done = named.iter().zip(&extended).filter(|(_, fence)| fence.is_some()).map(|(key, _)| *key);
            self.confirm_grants(step, done, owner);
        }
        Ok(Outcome::Extended(extended))
    }

    /// Extends one hold. It is refused only where its fence is to rise, which is asked for one key alone.
    fn extend_key<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        (owner, operation): (&Owner, &Extend),
    ) -> Result<Option<Fence>, Refusal> {
        let Some(lock) = step.keys.lock(key) else { return Ok(None) };
        // The owner of an offer does not know of it.
        let hold = lock.hold_of(owner, operation.fence).filter(|hold| hold.offer().is_none());
        let Some(mut hold) = hold.cloned() else { return Ok(None) };
        if let Some(least) = operation.min_fence.filter(|least| *least > hold.fence()) {
            let mut context = GrantContext::new(&mut self.fences, self.epoch, self.limits.promotion_skew);
            let fence = raised(&hold, lock.fence(), least, &mut context, step.now.wall);
            hold.set_fence(fence.ok_or(Refusal::FencesUsedUp)?);
            // The fence is one that this node has given on this key.
            hold.set_granted_in(self.epoch);
        }
        hold.deadline = step.now.mono + operation.lease;
        hold.rebind(operation.session);
        if let Some(note) = &operation.note {
            hold.set_note(Some(note.clone()).filter(|note| !note.0.is_empty()));
        }
        let fence = hold.fence();
        step.effects.commit_hold(lock, key, Cause::Extend, owner, hold);
        Ok(Some(fence))
    }
}
