//! Applying records: the primary's and the disk's are believed, a client's is checked.

use super::LockManager;
use crate::lock::model::effect::Cause;
use crate::lock::model::hold::Hold;
use crate::lock::model::key::{Db, KeyIndex};
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::limits::{GRANTS_PER_BATCH, Limits};
use crate::lock::model::lock::Lock;
use crate::lock::model::owner::Owner;
use crate::lock::model::record::{DecodedLock, HoldRecord, Origin};
use crate::lock::model::request::Refusal;
use crate::lock::model::step::Step;
use crate::lock::model::time::{Now, Timestamp, WallTime};

impl LockManager {
    /// Does what a LOCK.HOLD says. A client's record is settled first and checked; the primary's and the disk's are
    /// believed.
    ///
    /// # Errors
    /// Only for a client's: the fence is far ahead, or the hold would break the lock.
    pub fn apply<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        record: &HoldRecord,
        origin: Origin,
    ) -> Result<(), Refusal> {
        let mut checked = Ok(());
        if origin == Origin::Client {
            step.settle(key, &self.sessions);
            self.wake_waiters(step, key, GRANTS_PER_BATCH);
            checked = check(step.keys.lock(key).as_deref(), record, &self.limits, step.now.wall);
        }
        if checked.is_ok() {
            self.apply_record(step, key, record, origin);
        }
        if origin == Origin::Client {
            if checked.is_ok() {
                self.note_new_hold(&record.owner);
            }
            self.mark_ready_for_holders(step, key);
            // Also where the record removed a hold.
            self.wake_waiters(step, key, GRANTS_PER_BATCH);
        }
        self.follow(step);
        checked
    }

    fn apply_record<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        record: &HoldRecord,
        origin: Origin,
    ) {
        if let Some(fence) = record.fence {
            self.fences.observe(fence);
        }
        // A replica polls no lease, so entries fall due; and it may have dropped the entry of a lock that it did not
        // see, since its key had expired.
        step.effects.check_leases = true;
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
        let mut lock = Lock::default();
        if let Some(fence) = saved.fence {
            lock.holds.raise_fence(fence);
        }
        if origin == Origin::Client && lock.fence().is_some_and(|fence| fence.is_far_ahead(now.wall)) {
            return Err(Refusal::FenceFarAhead);
        }
        for record in &saved.holds {
            if let Some(hold) = record.hold(origin, now) {
                lock.holds.put(&record.owner, hold);
            }
        }
        Ok(lock)
    }

    /// A lock that was loaded lies under its key now.
    pub fn arrive(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        if let Some(fence) = lock.fence() {
            self.fences.observe(fence);
        }
        self.wait_table.mark_ready_and_check(db, name);
        self.follow_lock(db, name, lock, now);
    }
}

/// Whether a client's record may stand: its fence is not far ahead and it keeps I2 and I3.
fn check(lock: Option<&Lock>, record: &HoldRecord, limits: &Limits, wall: WallTime) -> Result<(), Refusal> {
    if record.fence.is_some_and(|fence| fence.is_far_ahead(wall)) {
        return Err(Refusal::FenceFarAhead);
    }
    let Some(lock) = lock else { return Ok(()) };
    if record.is_removal() {
        return Ok(());
    }
    let owner = record.owner.as_bytes();
    let excludes = record.writes > 0
        || lock.holds.any().is_some_and(|(holder, hold)| holder != &record.owner && hold.writes() > 0);
    let same_fence = |(holder, hold): (&Owner, &Hold)| Some(hold.fence()) == record.fence && holder != &record.owner;
    if lock.held_by_other(owner) && (excludes || lock.holds.iter().any(same_fence)) {
        return Err(Refusal::BreaksLock);
    }
    if lock.holds.get(owner).is_none() && lock.holds.len() >= limits.holders_per_key_max {
        return Err(Refusal::TooManyHolders);
    }
    Ok(())
}
