//! What a node knows beside its locks: the fence clock, the index of leases, the term. Requests are served in serve.rs,
//! facts are taken in in records.rs; here is what happens to keys and to the node without either.

pub mod grant;
pub mod leases;
pub mod operator;
pub mod records;
pub mod serve;
pub mod view;
pub mod wake;

use crate::lock::collections::wheel::{EntryId, Generations};
use crate::lock::model::effect::{self, Effects, close, settle};
use crate::lock::model::fence::{Fence, FenceClock};
use crate::lock::model::hold::{Connection, Epoch};
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::keyspace::{Keyspace, Place};
use crate::lock::model::limits::{GRANTS_PER_BATCH, Limits};
use crate::lock::model::lock::{Leases, Lock};
use crate::lock::model::session::{Sessions, UnlinkedLock};
use crate::lock::model::time::{Now, Timestamp, WallTime};
use crate::lock::wait::table::WaitTable;
use alloc::vec::Vec;
use leases::Index;
pub use leases::LeasePoll;

/// What a node knows beside the locks themselves.
#[derive(Debug)]
pub struct LockManager {
    /// What is allowed.
    pub limits: Limits,
    pub(crate) fences: FenceClock,
    pub(crate) epoch: Epoch,
    /// Who waits.
    pub(crate) wait_table: WaitTable,
    /// Which holds end with which connection.
    pub(crate) sessions: Sessions,
    /// The index of leases.
    leases: Index,
    /// That of the data set that is being loaded beside the one that is served; None when none is.
    incoming: Option<Index>,
    /// One count for all of them, so that an entry's id means nothing in another database.
    generations: Generations,
    /// Indexes of data that are gone, whose memory is given back little by little.
    retired: Vec<Leases>,
}

impl LockManager {
    /// A node that has given no fence and knows no lock.
    #[must_use]
    pub const fn new(limits: Limits) -> LockManager {
        LockManager {
            limits,
            fences: FenceClock::new(),
            epoch: Epoch::FIRST,
            wait_table: WaitTable::new(),
            sessions: Sessions::new(),
            leases: Index::new(),
            incoming: None,
            generations: Generations::new(),
            retired: Vec::new(),
        }
    }

    /// A lock came from another name or database, if it is known from where: it goes on here, carried.
    pub fn carry(&mut self, from: Option<(Db, &[u8])>, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        lock.holds.carry(now);
        for (owner, hold) in lock.holds.iter() {
            if let Some(session) = hold.session() {
                self.sessions.bind(db, name, owner, session.connection);
            }
        }
        if let Some(from) = from {
            self.wait_table.carried(from, (db, name), lock);
        }
        self.wait_table.mark_ready_and_check(db, name);
        self.follow_lock(db, name, lock, now);
    }

    /// A lock left its key, to go elsewhere or away: its lease is no longer looked after here, and who waited for it
    /// may have the key.
    pub fn on_unlinked(&mut self, db: Db, name: &[u8], unlinked: &UnlinkedLock) {
        if let Some(id) = unlinked.lease {
            self.leases.disarm(db, id);
        }
        self.sessions.on_unlinked(db, name, unlinked);
        if unlinked.held {
            // Whose hold has left may wait for the key with others, behind somebody from now on.
            self.wait_table.mark_ready_and_check(db, name);
        } else {
            self.wait_table.mark_ready(db, name);
        }
    }

    /// A database, or all of them, was emptied.
    pub fn flush(&mut self, db: Option<Db>) {
        retire(&mut self.retired, self.leases.take(db));
        self.sessions.flush(db);
        self.wait_table.mark_all_ready_and_check(db);
    }

    /// Two databases changed places. What lay under a key of one lies under the same key of the other now, so every
    /// hold counts as carried.
    pub fn swap(&mut self, one: Db, other: Db) {
        if one == other {
            return;
        }
        self.leases.swap(one, other);
        self.sessions.swap(one, other);
        self.wait_table.swapped(one, other);
        self.epoch = self.epoch.next();
        // Who waits stays with the number of its database.
        for db in [one, other] {
            self.wait_table.mark_all_ready_and_check(Some(db));
        }
    }

    /// A data set begins to be loaded beside the one that is served, which goes on until
    /// [`LockManager::take_incoming`].
    pub fn begin_incoming(&mut self) {
        self.drop_incoming();
        self.incoming = Some(Index::new());
    }

    /// Whether a data set is being loaded beside the one that is served.
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
        // Also if the load breaks off: a fence that was passed over harms nobody.
        if let Some(fence) = lock.fence {
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

    /// The next entry whose database is not known, and the name of its key. To be treated as [`LeasePoll::Unplaced`].
    pub fn next_unplaced(&mut self) -> Option<(EntryId, KeyName)> {
        self.leases.next_unplaced()
    }

    /// Puts an unplaced entry into the index of this database, if it is that of this lock; only one lock has it.
    /// Whether it is.
    pub fn place(&mut self, db: Db, name: &[u8], lock: &mut Lock, entry: EntryId, now: Timestamp) -> bool {
        let is_of_this = lock.lease == Some(entry);
        if is_of_this {
            self.follow_lock(db, name, lock, now);
        }
        is_of_this
    }

    /// No database has a lock with this unplaced entry.
    pub fn drop_unplaced(&mut self, entry: EntryId) {
        self.leases.disarm_unplaced(entry);
    }

    /// This node has become the primary: all its holds are carried, and its fences pass by those that the old primary
    /// may have given unseen.
    pub fn promote(&mut self, wall: WallTime) {
        self.epoch = self.epoch.next();
        self.fences.jump(wall, self.limits.promotion_skew);
    }

    /// This node serves slots that another one served until now.
    pub fn gain_slots(&mut self, wall: WallTime) {
        self.fences.lead(wall, self.limits.promotion_skew);
    }

    /// So many owners may hold one key together from now on. If there is room for more, those who wait for it have it
    /// first.
    pub fn limit_holders(&mut self, most: usize) {
        if most > self.limits.holders_per_key_max {
            self.wait_table.mark_all_ready();
        }
        self.limits.holders_per_key_max = most;
    }

    /// A fence was given elsewhere or before.
    pub fn observe_fence(&mut self, fence: Fence) {
        self.fences.observe(fence);
    }

    /// The last fence given or seen.
    #[must_use]
    pub fn last_fence(&self) -> Option<Fence> {
        self.fences.last()
    }

    /// How many keys have a running lease.
    #[must_use]
    pub fn leases_len(&self) -> usize {
        self.leases.len()
    }

    /// The next moment at which [`LockManager::poll_leases`] or [`LockManager::poll_timeouts`] is worth calling; None
    /// when there is nothing to wait for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.leases.next_deadline().into_iter().chain(self.wait_table.next_deadline()).min()
    }

    /// Looks for a lease that is over, and does a bounded piece of work on the way.
    pub fn poll_leases(&mut self, now: Timestamp) -> LeasePoll {
        self.leases.poll_leases(now)
    }

    /// Gives back a bounded piece of the memory of indexes of data that are gone; false when there is none left.
    pub fn shed(&mut self) -> bool {
        let Some(leases) = self.retired.last_mut() else { return self.sessions.shed() };
        if !leases.shed() {
            self.retired.pop();
        }
        true
    }

    /// Drops an entry whose key has something else now.
    pub fn drop_entry(&mut self, db: Db, entry: EntryId) {
        self.leases.disarm(db, entry);
    }

    /// Ends at most `most` holds that are over on the key of a due entry, and lets in who waited for that.
    ///
    /// An entry whose lock is not there any more (its value was lost without a word from the server) is dropped.
    pub fn lapse<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        entry: EntryId,
        now: Now,
        most: usize,
    ) -> Effects {
        let mut effects = Effects::new();
        let Place { db, lock, .. } = keys.place(key);
        if lock.is_none_or(|lock| lock.lease != Some(entry)) {
            self.leases.disarm(db, entry);
            return effects;
        }
        effect::lapse(keys, key, now.mono, most, &mut effects);
        let more =
            keys.lock(key).and_then(|lock| lock.holds.earliest()).is_some_and(|(deadline, _)| deadline <= now.mono);
        if !more {
            self.settle_and_wake(keys, key, now, most, &mut effects);
        }
        self.follow(keys, &mut effects, now.mono);
        effects
    }

    /// The connection of a client has closed. True when holds are bound to it, which is work for the module's own hand
    /// now ([`Job::Close`](crate::lock::wait::table::Job::Close)).
    pub fn close(&mut self, client: u64, now: Timestamp) -> bool {
        let connection = self.sessions.connection(client);
        self.wait_table.closed(connection, now);
        self.sessions.close(connection, now)
    }

    /// Ends at most `most` of the holds on a key that are bound to a connection which has closed, or cuts their leases,
    /// and lets in who waited for that.
    pub fn end_session<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        connection: Connection,
        now: Now,
        most: usize,
    ) -> Effects {
        let mut effects = Effects::new();
        let Place { db, name, .. } = keys.place(key);
        let name = KeyName::from_slice(name);
        for owner in self.sessions.owners_on(db, &name, connection, most) {
            if let Some(lock) = keys.lock(key) {
                close(lock, key, &self.sessions, &owner, now.mono, &mut effects);
            }
            self.sessions.unbind(db, &name, &owner, connection);
        }
        self.settle_and_wake(keys, key, now, most, &mut effects);
        self.follow(keys, &mut effects, now.mono);
        effects
    }

    /// Settles a key, all of it, and looks at its line; or puts both off, where connections have closed and it may take
    /// long: until the holds that are bound to them have been ended bit by bit.
    fn settle_and_wake<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        now: Now,
        most: usize,
        effects: &mut Effects,
    ) {
        if self.sessions.some_closed() {
            let Place { db, name, lock } = keys.place(key);
            if lock.is_some_and(|lock| lock.holds.len() > most) {
                return self.wait_table.mark_ready(db, name);
            }
            settle(keys, key, &self.sessions, now.mono, effects);
        }
        self.wake_waiters(keys, key, now, GRANTS_PER_BATCH, effects);
    }

    /// Leaves the holds on a key as they are that are bound to a connection which has closed: the key is not this
    /// node's any more to change, or it is no lock.
    pub fn abandon_session(&mut self, db: Db, name: &[u8], connection: Connection) {
        for owner in self.sessions.owners_on(db, name, connection, usize::MAX) {
            self.sessions.unbind(db, name, &owner, connection);
        }
    }

    /// Who knows which holds are bound to a connection.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Whether the index has an entry for this lock that stands no later than `deadline` (I4).
    #[must_use]
    pub fn covers(&self, db: Db, lock: &Lock, deadline: Timestamp) -> bool {
        lock.lease.is_some_and(|id| self.leases.covers(db, id, deadline, Timestamp(0)))
    }

    /// The first of the waiting room's invariants that does not hold, by its number.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        self.wait_table.broken_invariant()
    }

    /// Lets the indexes follow what a step did.
    pub(crate) fn follow<K: Keyspace>(&mut self, keys: &mut K, effects: &mut Effects, now: Timestamp) {
        // Before what the step put in their places: it may be bound just as they were.
        self.clean_up_unlinked(keys);
        for key in keys.all() {
            if let Place { db, name, lock: Some(lock) } = keys.place(key) {
                effects.needs_rearm |= self.follow_lock(db, name, lock, now);
            }
        }
        effects.needs_rearm |= !effects.bindings.is_empty();
        if self.wait_table.waiting() > 0 {
            // A holder that asks for its key again, with others, waits for nobody there; from now on it does. And it
            // passes waiters for several keys elsewhere as long as it keeps them waiting; from now on it may wait for
            // them.
            for change in effects.changes.iter().filter(|change| change.may_weaken()) {
                self.check_for_new_hold(&change.owner);
            }
        }
        for binding in effects.bindings.drain(..) {
            let Place { db, name, .. } = keys.place(binding.key);
            if let Some(was) = binding.was {
                self.sessions.unbind(db, name, &binding.owner, was.connection);
            }
            if let Some(is) = binding.is {
                self.sessions.bind(db, name, &binding.owner, is.connection);
            }
        }
    }

    /// Forgets locks that left their keys because the step looked there.
    pub(crate) fn clean_up_unlinked<K: Keyspace>(&mut self, keys: &mut K) {
        for (db, name, unlinked) in keys.take_unlinked() {
            self.on_unlinked(db, &name, &unlinked);
        }
    }

    /// Keeps I4. An entry that stands early enough stays: moving it at every re-entry would cost more than one look too
    /// many.
    ///
    /// Whether an entry stands where none stood.
    pub(crate) fn follow_lock(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) -> bool {
        let earliest = lock.holds.earliest().map(|(deadline, _)| deadline);
        match (lock.lease, earliest) {
            (Some(id), Some(deadline)) if self.leases.keeps(db, id, deadline, now) => false,
            (Some(id), Some(deadline)) if self.leases.rearm(db, id, deadline) => true,
            (was, Some(deadline)) => {
                lock.lease = Some(self.leases.arm(Some(db), name, deadline, &mut self.generations));
                if let Some(was) = was {
                    self.leases.disarm_unplaced(was);
                }
                true
            }
            (Some(id), None) => {
                self.leases.disarm(db, id);
                lock.lease = None;
                false
            }
            (None, None) => false,
        }
    }
}

/// Drops indexes of data that are gone. Large ones are kept, to be given back little by little: to free a million
/// entries takes a while.
fn retire(retired: &mut Vec<Leases>, gone: impl Iterator<Item = Leases>) {
    const AT_ONCE: usize = 4_096;
    retired.extend(gone.filter(|leases| leases.len() > AT_ONCE));
}
