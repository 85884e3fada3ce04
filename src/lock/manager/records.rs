//! Facts: the absolute state of a hold, as LOCK.HOLD and the saved form carry it, and how a node takes them in.
//!
//! A fact is idempotent and decides nothing. The primary's and the disk's are believed; a client's is checked.

use super::LockManager;
use crate::lock::model::effect::{Cause, Effects, commit_end, commit_hold, settle};
use crate::lock::model::fence::Fence;
use crate::lock::model::hold::{Epoch, Hold};
use crate::lock::model::key::{Db, KeyIndex};
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::limits::{GRANTS_PER_BATCH, LEASE_CEILING, Limits};
use crate::lock::model::lock::Lock;
use crate::lock::model::owner::{Note, Owner};
use crate::lock::model::request::Refusal;
use crate::lock::model::time::{Millis, Now, Timestamp, WallTime};
use alloc::vec::Vec;

/// The absolute state of one hold, as LOCK.HOLD and the saved form carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRecord {
    /// Whose hold.
    pub owner: Owner,
    /// How often for reading; 0 with 0 writes removes the hold.
    pub reads: u32,
    /// How often for writing.
    pub writes: u32,
    /// Its fence; only a removal may lack it.
    pub fence: Option<Fence>,
    /// When the lease ends by the wall clock of who wrote this.
    pub wall_deadline: WallTime,
    /// What was left of the lease when this was written.
    pub left: Millis,
    /// What the holder says about itself.
    pub note: Option<Note>,
}

/// A lock as it was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedLock {
    /// The highest fence given on it.
    pub fence: Option<Fence>,
    /// Its holds, in order of owner.
    pub holds: Vec<HoldRecord>,
}

/// Where a fact comes from, which decides how its deadline is read and how far it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This node's own disk: the time that passed while it was down counts, so the earlier of both deadlines stands.
    Disk,
    /// Another node, whose wall clock may be off: what was left counts from its arrival, so no copy ends before the
    /// original.
    Peer,
    /// A client that replays (`lock.allow-hold`): as a peer's, but checked.
    Client,
}

impl LockManager {
    /// Does what a LOCK.HOLD says. A client's is settled first and checked; the primary's and the disk's are facts.
    ///
    /// # Errors
    /// Only for a client's: the fence is far ahead, or the hold would break the lock.
    pub fn apply<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        record: &HoldRecord,
        origin: Origin,
        now: Now,
    ) -> (Result<(), Refusal>, Effects) {
        let mut effects = Effects::new();
        let mut checked = Ok(());
        if origin == Origin::Client {
            settle(keys, key, &self.sessions, now.mono, &mut effects);
            self.wake_waiters(keys, key, now, GRANTS_PER_BATCH, &mut effects);
            checked = check(keys.lock(key).as_deref(), record, &self.limits, now.wall);
        }
        if checked.is_ok() {
            self.apply_record(keys, key, record, origin, now, &mut effects);
        }
        if origin == Origin::Client {
            self.mark_ready_for_holders(keys, key);
            // Also where the fact took a hold away.
            self.wake_waiters(keys, key, now, GRANTS_PER_BATCH, &mut effects);
        }
        self.follow(keys, &mut effects, now.mono);
        (checked, effects)
    }

    fn apply_record<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        record: &HoldRecord,
        origin: Origin,
        now: Now,
        effects: &mut Effects,
    ) {
        if let Some(fence) = record.fence {
            self.fences.observe(fence);
        }
        let owner = &record.owner;
        let Some(mut hold) = record.hold(origin, now) else {
            if let Some(lock) = keys.lock(key) {
                commit_end(lock, key, Cause::Replicated, owner, effects);
            }
            return;
        };
        let lock = keys.lock_or_create(key);
        if let Some(old) = lock.holds.get(owner.as_bytes()) {
            hold.set_since(old.since());
        }
        lock.raise_fence(hold.fence);
        commit_hold(lock, key, Cause::Replicated, owner, hold, effects);
    }

    /// The lock that was saved. It lies under no key yet and may never do: until [`LockManager::arrive`] nobody looks
    /// after its leases, and its fence is not noted.
    ///
    /// # Errors
    /// When it comes from a client (RESTORE) and a fence is far ahead.
    pub fn load(saved: &DecodedLock, origin: Origin, now: Now) -> Result<Lock, Refusal> {
        let mut lock = Lock { fence: saved.fence, ..Lock::default() };
        if origin == Origin::Client && lock.fence.is_some_and(|fence| fence.is_far_ahead(now.wall)) {
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
        if let Some(fence) = lock.fence {
            self.fences.observe(fence);
        }
        self.wait_table.mark_ready_and_check(db, name);
        self.follow_lock(db, name, lock, now);
    }
}

/// Whether a client's fact may stand: its fence is not far ahead and it keeps I2 and I3.
fn check(lock: Option<&Lock>, record: &HoldRecord, limits: &Limits, wall: WallTime) -> Result<(), Refusal> {
    if record.fence.is_some_and(|fence| fence.is_far_ahead(wall)) {
        return Err(Refusal::FenceFarAhead);
    }
    let Some(lock) = lock else { return Ok(()) };
    if record.is_removal() {
        return Ok(());
    }
    let owner = record.owner.as_bytes();
    let excludes =
        record.writes > 0 || lock.holds.any().is_some_and(|(who, hold)| who != &record.owner && hold.writes > 0);
    let same_fence = |(who, hold): (&Owner, &Hold)| Some(hold.fence) == record.fence && who != &record.owner;
    if lock.held_by_other(owner) && (excludes || lock.holds.iter().any(same_fence)) {
        return Err(Refusal::BreaksLock);
    }
    if lock.holds.get(owner).is_none() && lock.holds.len() >= limits.holders_per_key_max {
        return Err(Refusal::TooManyHolders);
    }
    Ok(())
}

impl HoldRecord {
    /// Whether it says that the hold is gone.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        self.reads == 0 && self.writes == 0
    }

    /// The fact of a hold as it stands now.
    #[must_use]
    pub fn of(owner: &Owner, hold: &Hold, now: Now) -> HoldRecord {
        HoldRecord {
            owner: owner.clone(),
            reads: hold.reads,
            writes: hold.writes,
            fence: Some(hold.fence),
            wall_deadline: now.wall_at(hold.deadline),
            left: hold.deadline.left(now.mono),
            note: hold.note().cloned(),
        }
    }

    /// The hold that this fact describes, carried here now; None for a removal.
    fn hold(&self, origin: Origin, now: Now) -> Option<Hold> {
        if self.is_removal() {
            return None;
        }
        let left = match origin {
            Origin::Disk => self.left.min(now.left_until(self.wall_deadline)),
            Origin::Peer | Origin::Client => self.left,
        };
        let mut hold = Hold::new(self.fence?, now.mono + left.min(LEASE_CEILING), now.mono, Epoch::CARRIED);
        hold.reads = self.reads;
        hold.writes = self.writes;
        hold.set_note(self.note.clone());
        Some(hold)
    }
}
