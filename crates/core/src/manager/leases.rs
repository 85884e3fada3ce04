//! Leases: which are over, and the index that finds them.

use super::LockManager;
use super::lease_index::LeasePoll;
use crate::collections::wheel::EntryId;
use crate::model::key::{Db, KeyIndex};
use crate::model::keyspace::{KeyEntry, Keyspace};
use crate::model::lock::Lock;
use crate::model::step::Step;
use crate::model::time::Timestamp;

impl LockManager {
    /// How many keys have a running lease.
    #[must_use]
    pub fn leases_len(&self) -> usize {
        self.leases.len()
    }

    /// Finds a lease that is over; does a bounded piece of work on the way.
    pub fn poll_leases(&mut self, now: Timestamp) -> LeasePoll {
        self.leases.poll_leases(now)
    }

    /// Drops an entry whose key has something else now.
    pub fn drop_entry(&mut self, db: Db, entry: EntryId) {
        self.leases.disarm(db, entry);
    }

    /// Ends at most `most` holds that are over on the key of a due entry, and grants to the waiters for that.
    ///
    /// An entry whose lock is not there any more (its value was lost without a word from the server) is dropped.
    pub fn lapse<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, entry: EntryId, most: usize) {
        let KeyEntry { db, lock, .. } = step.keys.entry(key);
        if lock.is_none_or(|lock| lock.lease != Some(entry)) {
            self.leases.disarm(db, entry);
            return;
        }
        // The entry is due: if the lock is held on, it stands too early.
        step.effects.check_leases = true;
        self.settle_and_wake(step, key, most);
        self.follow(step);
    }

    /// True if the index has an entry for this lock that stands no later than `deadline` (I4).
    #[must_use]
    pub fn covers(&self, db: Db, lock: &Lock, deadline: Timestamp) -> bool {
        lock.lease.is_some_and(|id| self.leases.covers(db, id, deadline, Timestamp(0)))
    }

    /// Keeps I4. An entry that is early enough stays: a poll too many is cheaper than a move at each re-entry.
    pub(crate) fn follow_lock(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        let earliest = lock.holds.earliest().map(|(deadline, _)| deadline);
        match (lock.lease, earliest) {
            (Some(id), Some(deadline)) if self.leases.keeps(db, id, deadline, now) => {}
            (Some(id), Some(deadline)) if self.leases.rearm(db, id, deadline) => {}
            (was, Some(deadline)) => {
                lock.lease = Some(self.leases.arm(Some(db), name, deadline, &mut self.generations));
                if let Some(was) = was {
                    self.leases.disarm_db_unknown(was);
                }
            }
            (Some(id), None) => {
                self.leases.disarm(db, id);
                lock.lease = None;
            }
            (None, None) => {}
        }
    }
}
