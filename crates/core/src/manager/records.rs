//! Applying records: the primary's and the disk's are believed, a client's is checked.

use super::LockManager;
use crate::model::effect::Cause;
use crate::model::fence::Fence;
use crate::model::hold::Hold;
use crate::model::holds::Holds;
use crate::model::key::{Db, KeyIndex};
use crate::model::keyspace::Keyspace;
use crate::model::limits::Limits;
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::record::{DecodedLock, HoldRecord, Origin, Update};
use crate::model::request::Refusal;
use crate::model::step::Step;
use crate::model::time::{Now, Timestamp, WallTime};

impl LockManager {
    /// Does what a LOCK.HOLD says. A client's is settled first and checked; the primary's and the disk's are believed.
    ///
    /// # Errors
    /// Only for a client's: the fence is far ahead, or the hold would break the lock.
    pub fn apply<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        update: &Update,
        origin: Origin,
    ) -> Result<(), Refusal> {
        let mut checked = Ok(());
        if origin == Origin::Client {
            let owner = if let Update::State(record) = update { Some(&record.owner) } else { None };
            step.settle(key, owner, self.settling(self.limits.step.holds_ended));
            self.wake_waiters(step, key, self.limits.step.answers);
            checked = check(step.keys.lock(key).as_deref(), update, &self.limits, step.now.wall);
        }
        if checked.is_ok() {
            self.apply_update(step, key, update, origin);
        }
        if origin == Origin::Client {
            if checked.is_ok()
                && let Update::State(record) = update
            {
                self.note_new_hold(&record.owner);
            }
            self.mark_ready_for_holders(step, key);
            // Also where a hold has ended.
            self.wake_waiters(step, key, self.limits.step.answers);
        }
        self.follow(step);
        checked
    }

    fn apply_update<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, update: &Update, origin: Origin) {
        if let Some(fence) = update.fence() {
            self.fences.observe(fence);
        }
        // A replica polls no lease, so entries fall due; and it may have dropped the entry of a lock that it did not
        // see, since its key had expired.
        step.effects.check_leases = true;
        let record = match update {
            Update::State(record) => record,
            Update::End(fence) => return end_by_fence(step, key, *fence),
        };
        let owner = &record.owner;
        let Some(mut hold) = record.hold(origin, step.now) else {
            if let Some(lock) = step.keys.lock(key) {
                step.effects.commit_end(lock, key, Cause::Replicated, owner);
            }
            return;
        };
        let lock = step.keys.lock_or_create(key);
        if let Some(old) = lock.holds.get(owner.as_bytes()) {
            hold.set_since(old.since());
        }
        step.effects.commit_hold(lock, key, Cause::Replicated, owner, hold);
    }

    /// The lock that was saved. It lies under no key yet and may never do: until [`LockManager::arrive`] its leases are
    /// not watched, and its fence is not noted.
    ///
    /// # Errors
    /// When it comes from a client (RESTORE) and a fence is far ahead.
    pub fn load(saved: &DecodedLock, origin: Origin, now: Now) -> Result<Lock, Refusal> {
        if origin == Origin::Client && saved.fence.is_some_and(|fence| fence.is_far_ahead(now.wall)) {
            return Err(Refusal::FenceFarAhead);
        }
        let hold = |record: &HoldRecord| Some((record.owner.clone(), record.hold(origin, now)?));
        let holds = Holds::from_sorted(saved.fence, saved.holds.iter().filter_map(hold).collect());
        Ok(Lock { holds, ..Lock::default() })
    }

    /// A lock that was loaded lies under its key now.
    pub fn arrive(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        if let Some(fence) = lock.fence() {
            self.fences.observe(fence);
        }
        if self.wait_table.contended() > 0 {
            self.wait_table.mark_ready_and_check(db, &self.name(name));
        }
        self.follow_lock(db, name, lock, now);
    }
}

/// Ends the hold with this fence, if there is one.
fn end_by_fence<K: Keyspace>(step: &mut Step<'_, K>, key: KeyIndex, fence: Fence) {
    let Some(lock) = step.keys.lock(key) else { return };
    if let Some(owner) = lock.holds.owner_of(fence).cloned() {
        step.effects.commit_end(lock, key, Cause::Replicated, &owner);
    }
}

/// Checks that a client's record may stand: its fence is not far ahead, and it keeps I2 and I3.
fn check(lock: Option<&Lock>, update: &Update, limits: &Limits, wall: WallTime) -> Result<(), Refusal> {
    if update.fence().is_some_and(|fence| fence.is_far_ahead(wall)) {
        return Err(Refusal::FenceFarAhead);
    }
    let (Some(lock), Update::State(record)) = (lock, update) else { return Ok(()) };
    if record.state.is_end() {
        return Ok(());
    }
    let owner = record.owner.as_bytes();
    let excludes = record.state.writes > 0
        || lock.holds.any().is_some_and(|(holder, hold)| holder != &record.owner && hold.writes() > 0);
    let same_fence =
        |(holder, hold): (&Owner, &Hold)| Some(hold.fence()) == record.state.fence && holder != &record.owner;
    if lock.held_by_other(owner) && (excludes || lock.holds.iter().any(same_fence)) {
        return Err(Refusal::BreaksLock);
    }
    if lock.holds.get(owner).is_none() && lock.holds.len() >= limits.holders_per_key_max {
        return Err(Refusal::TooManyHolders);
    }
    Ok(())
}
