//! What the server does to keys beside commands of locks: it renames and moves them, empties and swaps databases, and
//! loads data sets, also beside the one that is served.

use super::LockManager;
use super::lease_index::Index;
use crate::collections::wheel::EntryId;
use crate::model::key::{Db, PlainName};
use crate::model::lock::{Leases, Lock};
use crate::model::session::UnlinkedLock;
use crate::model::time::Timestamp;
use crate::wait::sweep::SweepKind;
use alloc::vec::Vec;

impl LockManager {
    /// A lock came from another name or database, if it is known from where: it goes on here, carried.
    pub fn carry(&mut self, from: Option<(Db, &[u8])>, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        lock.holds.carry(now);
        let at = self.name(name);
        let from = from.map(|(db, name)| (db, self.name(name)));
        let from = from.as_ref().map(|(db, name)| (*db, name));
        for offer in lock.holds.offers() {
            self.offers.carry(offer, from, (db, &at));
        }
        for (connection, count) in lock.holds.connections() {
            self.sessions.bind(db, &at, connection, count);
        }
        if let Some(from) = from {
            self.wait_table.carried(from, (db, &at), lock);
        }
        // It is not free now, though no step has seen that yet.
        self.wait_table.clear_reservation(db, &at);
        self.wait_table.mark_ready_and_check(db, &at);
        self.follow_lock(db, name, lock, now);
    }

    /// A lock left its key, to go elsewhere or away: its lease is no longer watched here, and the waiters may have the
    /// key.
    pub fn on_unlinked(&mut self, db: Db, name: &[u8], unlinked: &UnlinkedLock) {
        if let Some(id) = unlinked.lease {
            self.leases.disarm(db, id);
        }
        if self.wait_table.contended() == 0 && unlinked.is_plain() {
            return;
        }
        let name = &self.name(name);
        self.wait_table.note_expiry(db, name, None);
        self.sessions.on_unlinked(db, name, unlinked);
        for offer in &unlinked.offers {
            self.offers.leave(*offer, db, name);
        }
        if unlinked.held {
            // An owner whose hold has left may wait for the key with others, behind another waiter from now on.
            self.wait_table.mark_ready_and_check(db, name);
        } else {
            self.wait_table.mark_ready(db, name);
        }
    }

    /// A database, or all of them, was emptied.
    pub fn flush(&mut self, db: Option<Db>) {
        retire(&mut self.retired, self.leases.take(db));
        self.sessions.flush(db);
        self.offers.flush(db);
        self.drop_ended(db);
        self.sweep(db, SweepKind { checks: true, clears: false });
    }

    /// Two databases changed places. What lay under a key of one lies under the same key of the other now, so every
    /// hold counts as carried.
    pub fn swap(&mut self, one: Db, other: Db) {
        if one == other {
            return;
        }
        self.leases.swap(one, other);
        self.sessions.swap(one, other);
        self.offers.swap(one, other);
        for (db, ..) in &mut self.ended {
            *db = match *db {
                db if db == one => other,
                db if db == other => one,
                db => db,
            };
        }
        self.wait_table.swapped(one, other);
        self.epoch = self.epoch.next();
        // Waiters stay with the number of their database. Which of their keys were free, and are, is not known.
        for db in [one, other] {
            self.sweep(Some(db), SweepKind { checks: true, clears: true });
        }
    }

    /// A data set begins to be loaded beside the one that is served, which goes on until
    /// [`LockManager::take_incoming`].
    pub fn begin_incoming(&mut self) {
        self.drop_incoming();
        self.incoming = Some(Index::new());
    }

    /// True if a data set is being loaded beside the one that is served.
    #[must_use]
    pub fn has_incoming(&self) -> bool {
        self.incoming.is_some()
    }

    /// A lock is being loaded beside the data set that is served. It will lie under this name, in this database if that
    /// is known. Its entry is made now, since the server does not say later what has become of it.
    pub fn index_incoming(&mut self, db: Option<Db>, name: &[u8], lock: &mut Lock) {
        let Some(incoming) = &mut self.incoming else { return };
        if let Some((deadline, _)) = lock.holds.earliest() {
            lock.lease = Some(incoming.arm(db, name, deadline, &mut self.generations));
        }
        // Also if the load breaks off: a fence that was passed over does no harm.
        if let Some(fence) = lock.fence() {
            self.fences.observe(fence);
        }
    }

    /// The incoming data set has taken the place of the one that was served until now. The server frees the old locks
    /// without a word.
    pub fn take_incoming(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            self.flush(None);
            self.leases = incoming;
        }
    }

    /// The load of the incoming data set has broken off: the old one goes on.
    pub fn drop_incoming(&mut self) {
        if let Some(mut incoming) = self.incoming.take() {
            retire(&mut self.retired, incoming.take(None));
        }
    }

    /// The next entry whose database is not known, and the name of its key. To be treated as
    /// [`super::LeasePoll::DbUnknown`].
    pub fn next_db_unknown(&mut self) -> Option<(EntryId, PlainName)> {
        self.leases.next_db_unknown()
    }

    /// Puts an entry of unknown database into the index of this one, if it is that of this lock; only one lock has it.
    /// True if it is.
    pub fn resolve_db(&mut self, db: Db, name: &[u8], lock: &mut Lock, entry: EntryId, now: Timestamp) -> bool {
        let is_of_this = lock.lease == Some(entry);
        if is_of_this {
            self.follow_lock(db, name, lock, now);
        }
        is_of_this
    }

    /// No database has a lock with this entry.
    pub fn drop_db_unknown(&mut self, entry: EntryId) {
        self.leases.disarm_db_unknown(entry);
    }
}

/// Drops indexes of data that are gone. Large ones are kept, to be given back little by little: to free a million
/// entries takes a while.
fn retire(retired: &mut Vec<Leases>, gone: impl Iterator<Item = Leases>) {
    const AT_ONCE: usize = 4_096;
    retired.extend(gone.filter(|leases| leases.len() > AT_ONCE));
}
