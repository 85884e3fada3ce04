//! The lock manager: what it knows beside the locks themselves (the fence clock, the index of leases, the epoch), and
//! what happens to leases and connections. Requests are served in [`serve`], records are applied in [`records`].

pub mod acquire;
pub mod announce;
pub mod begun;
pub mod enqueue;
pub mod expiry;
pub mod extend;
pub mod grace;
pub mod grant;
pub mod guard;
pub mod jobs;
pub mod keyspace_events;
pub mod lease_index;
pub mod operator;
pub mod place;
pub mod records;
pub mod release;
pub mod scan;
pub mod serve;
pub mod view;
pub mod waiters;
pub mod wake;

use crate::collections::wheel::{EntryId, Generations};
use crate::model::effect::{BindingChange, Change, EndedHolds, IndexChange};
use crate::model::fence::{Fence, FenceClock};
use crate::model::grace::Grace;
use crate::model::hashing::KeyedHash;
use crate::model::hold::{Connection, Epoch};
use crate::model::holds::Holds;
use crate::model::key::{Db, KeyIndex, KeyName, NameSet};
use crate::model::keyspace::{KeyEntry, Keyspace};
use crate::model::limits::Limits;
use crate::model::lock::{Leases, Lock};
use crate::model::notify::ChannelId;
use crate::model::offers::Offers;
use crate::model::request::PerKey;
use crate::model::session::Sessions;
use crate::model::settle::Settling;
use crate::model::step::Step;
use crate::model::time::{Timestamp, WallTime};
use crate::wait::deadlock::Budgets;
use crate::wait::table::WaitTable;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use lease_index::Index;
pub use lease_index::LeasePoll;

/// The manager's knowledge beside the locks themselves.
#[derive(Debug)]
pub struct LockManager {
    /// The limits.
    pub limits: Limits,
    pub(crate) fences: FenceClock,
    pub(crate) epoch: Epoch,
    /// The grace that runs, or whose end was not noticed yet.
    grace: Option<Grace>,
    /// All waiters.
    pub(crate) wait_table: WaitTable,
    /// The holds that end with their connections.
    pub(crate) sessions: Sessions,
    /// Grants that no client knows of.
    pub(crate) offers: Offers,
    /// Holds that have ended together, and that the background is to announce.
    ended: VecDeque<(Db, KeyName, EndedHolds)>,
    /// The holds of data that are gone, of which nobody is told: their memory is given back little by little.
    retired_holds: Vec<Holds>,
    /// The index of leases.
    leases: Index,
    /// The index of the data set that is being loaded beside the one that is served; None when none is.
    incoming: Option<Index>,
    /// One count for all of them, so that an entry's id means nothing in another database.
    generations: Generations,
    /// Indexes of data that are gone, whose memory is given back little by little.
    retired: Vec<Leases>,
    /// The budgets of searches for deadlocks in one step.
    pub searches: Budgets,
    /// How many searches for deadlocks were given up.
    pub(crate) searches_cut: u64,
    /// How owners and long names are hashed.
    hash: KeyedHash,
}

impl LockManager {
    /// A manager that has given no fence and knows no lock. The hash has a key that no client knows.
    #[must_use]
    pub const fn new(limits: Limits, hash: KeyedHash) -> LockManager {
        LockManager {
            limits,
            fences: FenceClock::new(),
            epoch: Epoch::FIRST,
            grace: None,
            wait_table: WaitTable::new(hash),
            sessions: Sessions::new(hash),
            offers: Offers::new(),
            ended: VecDeque::new(),
            retired_holds: Vec::new(),
            leases: Index::new(),
            incoming: None,
            generations: Generations::new(),
            retired: Vec::new(),
            searches: Budgets::new(),
            searches_cut: 0,
            hash,
        }
    }

    /// Returns where a key of the step lies: its database and its name.
    pub(crate) fn place_of<K: Keyspace>(&self, step: &mut Step<'_, K>, key: KeyIndex) -> (Db, KeyName) {
        (step.keys.entry(key).db, step.name(key, self.hash))
    }

    /// Returns where keys of the step lie: their database and their names.
    pub(super) fn names_of<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        keys: impl Iterator<Item = KeyIndex>,
    ) -> (Db, NameSet) {
        let mut db = Db(0);
        let names = keys.map(|key| {
            let name;
            (db, name) = self.place_of(step, key);
            name
        });
        let names = names.collect();
        (db, names)
    }

    /// Makes a name of these bytes, to be looked up.
    pub(super) fn name(&self, bytes: &[u8]) -> KeyName {
        KeyName::new(bytes, self.hash)
    }

    /// This node has become the primary. All its holds are carried, and its fences skip those that the old primary may
    /// have given unseen.
    pub fn promote(&mut self, wall: WallTime) {
        self.epoch = self.epoch.next();
        self.fences.jump(wall, self.limits.promotion_skew);
    }

    /// This node serves slots that another one served until now.
    pub fn gain_slots(&mut self, wall: WallTime) {
        self.fences.lead(wall, self.limits.promotion_skew);
    }

    /// So many owners may hold one key together from now on. If these are more than before, the waiters come first.
    pub fn limit_holders(&mut self, most: usize) {
        if most > self.limits.holders_per_key_max {
            self.serve_all_queues();
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

    /// True if a hold may have this fence at least, if one is asked for.
    pub(super) fn admits(&self, min_fence: Option<Fence>, wall: WallTime) -> bool {
        min_fence.is_none_or(|fence| self.fences.admits(fence, wall, self.limits.promotion_skew))
    }

    /// How many keys have a running lease.
    #[must_use]
    pub fn leases_len(&self) -> usize {
        self.leases.len()
    }

    /// The next moment at which [`LockManager::poll_leases`], [`LockManager::poll_timeouts`] or
    /// [`LockManager::end_grace`] is worth calling; None when there is nothing to wait for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let deadlines = [self.leases.next_deadline(), self.wait_table.soonest(), self.grace_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Finds a lease that is over; does a bounded piece of work on the way.
    pub fn poll_leases(&mut self, now: Timestamp) -> LeasePoll {
        self.leases.poll_leases(now)
    }

    /// Gives back a bounded piece of the memory of indexes of data that are gone; false when there is none left.
    pub fn shed(&mut self) -> bool {
        const HOLDS_PER_POLL: usize = 64;
        if let Some(holds) = self.retired_holds.last_mut() {
            if (0..HOLDS_PER_POLL).any(|_| holds.take_any().is_none()) {
                self.retired_holds.pop();
            }
            return true;
        }
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

    /// Names the channel of a request, for [`Step::notify`], until [`LockManager::forget_channel`].
    pub fn channel(&mut self, bytes: &[u8]) -> ChannelId {
        let name = self.name(bytes);
        self.wait_table.channel(name)
    }

    /// The request that named a channel is served.
    pub fn forget_channel(&mut self) {
        self.wait_table.forget_channel();
    }

    /// A client disconnects. True when holds are bound to its connection. Then the background ends them
    /// ([`Job::EndSession`](crate::wait::jobs::Job::EndSession)), and a hand-off to the next waiters follows.
    pub fn disconnect(&mut self, client: u64, now: Timestamp) -> bool {
        let connection = self.sessions.connection(client);
        self.wait_table.closed(connection, now);
        self.wait_table.connection_closed(client, now);
        self.sessions.close(connection, now)
    }

    /// After a disconnect: ends at most `most` of the holds on a key that are bound to the closed connection, or cuts
    /// their leases. The hand-off to the next waiters follows in the same step.
    pub fn end_session<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        connection: Connection,
        most: usize,
    ) {
        let (db, name) = self.place_of(step, key);
        step.settle(key, None, self.settling(most));
        let left = most.saturating_sub(step.effects.changes.len());
        let Step { keys, effects, now, .. } = &mut *step;
        let close = |lock| effects.close_some((lock, key), &self.sessions, connection, now.mono, left);
        if keys.lock(key).is_none_or(close) {
            self.sessions.unbind_all(db, &name, connection);
        }
        self.settle_and_wake(step, key, most);
        self.follow(step);
    }

    /// By what keys are settled in a step that may end so many holds.
    pub(super) fn settling(&self, most: usize) -> Settling<'_> {
        Settling { sessions: &self.sessions, most }
    }

    /// Settles a key, and serves its queue unless holds are left that are over: then when the last of them has ended.
    fn settle_and_wake<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, most: usize) {
        step.settle(key, None, self.settling(most));
        if !step.is_unsettled(key) {
            self.wake_waiters(step, key, self.limits.step.answers);
        }
    }

    /// Leaves the holds on a key as they are that are bound to a connection which has closed: the key is not this
    /// node's any more to change, or it is no lock.
    pub fn abandon_session(&mut self, db: Db, name: &[u8], connection: Connection) {
        let name = self.name(name);
        self.sessions.unbind_all(db, &name, connection);
    }

    /// Returns the holds that are bound to connections.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// True if the index has an entry for this lock that stands no later than `deadline` (I4).
    #[must_use]
    pub fn covers(&self, db: Db, lock: &Lock, deadline: Timestamp) -> bool {
        lock.lease.is_some_and(|id| self.leases.covers(db, id, deadline, Timestamp(0)))
    }

    /// The first of the wait table's invariants that does not hold, by its number.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        self.wait_table.broken_invariant()
    }

    /// Lets the indexes follow what a step did.
    pub(crate) fn follow<K: Keyspace>(&mut self, step: &mut Step<'_, K>) {
        // Before what the step put in their places: it may be bound just as they were.
        self.clean_up_unlinked(step.keys);
        let Step { keys, now, effects, .. } = step;
        let wakeup = self.leases.first_wakeup();
        for key in keys.all() {
            // Else an entry that stood early enough does so still, and is not read.
            if let KeyEntry { db, name, lock: Some(lock) } = keys.entry(key)
                && (effects.check_leases || lock.lease.is_none())
            {
                self.follow_lock(db, name, lock, now.mono);
            }
        }
        effects.needs_rearm |= self.leases.first_wakeup() != wakeup;
        effects.needs_rearm |= !effects.index_changes.is_empty() || !effects.ended_together.is_empty();
        for (key, ended) in core::mem::take(&mut step.effects.ended_together) {
            let (db, name) = self.place_of(step, key);
            self.ended.push_back((db, name, ended));
        }
        // Their waiters were judged as if all holds stood that are left.
        for key in core::mem::take(&mut step.unsettled) {
            let (db, name) = self.place_of(step, key);
            self.wait_table.mark_ready(db, &name);
        }
        if self.wait_table.waiting() > 0 {
            self.check_ended(step);
        }
        if step.effects.index_changes.is_empty() {
            return;
        }
        self.offers.forget_emptied();
        // Kept until all are followed: to follow them twice does no harm.
        let index_changes = step.effects.index_changes.clone();
        for change in &index_changes {
            match change {
                IndexChange::Binding(binding) => self.follow_binding(step, binding),
                IndexChange::LeftOffer { key, offer, is_weaker } => {
                    let (db, name) = self.place_of(step, *key);
                    self.offers.leave(*offer, db, &name);
                    if *is_weaker {
                        self.wait_table.mark_ready(db, &name);
                    }
                }
            }
        }
        step.effects.index_changes.clear();
    }

    /// Makes up for what a step left undone that ended in a panic: lets the indexes follow, and has the queues of its
    /// keys served if that is asked for, since a scan may have been under way.
    ///
    /// Follows what a step that panicked has changed, so that it can be made known.
    pub fn recover<K: Keyspace>(&mut self, step: &mut Step<'_, K>, serves: bool) {
        for key in step.keys.all().filter(|_| serves) {
            let (db, name) = self.place_of(step, key);
            self.wait_table.mark_ready(db, &name);
        }
        step.effects.check_leases = true;
        self.follow(step);
    }

    /// Has owners checked whose holds have ended on keys that they wait for. A holder that asks for its key again, with
    /// others, does not wait for that key; from now on it does.
    fn check_ended<K: Keyspace>(&mut self, step: &mut Step<'_, K>) {
        let mut begin = 0;
        while let Some(Change { owner, .. }) = step.effects.changes.get(begin) {
            // A request for many keys ends the holds of one owner on all of them.
            let all = step.effects.changes[begin..].iter().take_while(|change| change.owner == *owner);
            begin += all.clone().count();
            let ended: PerKey<KeyIndex> = all.filter(|change| change.ended).map(|change| change.key).collect();
            if ended.is_empty() || self.wait_table.waiting_of(owner).next().is_none() {
                continue;
            }
            let owner = owner.clone();
            let (db, names) = self.names_of(step, ended.into_iter());
            if self.wait_table.waiting_for(&owner, db, &names).next().is_some() {
                self.check_for_new_hold(&owner);
            }
        }
    }

    /// Lets the index of sessions follow what happened to a hold.
    fn follow_binding<K: Keyspace>(&mut self, step: &mut Step<'_, K>, binding: &BindingChange) {
        let (db, name) = self.place_of(step, binding.key);
        if let Some(was) = binding.was {
            self.sessions.unbind(db, &name, was.connection, 1);
        }
        if let Some(is) = binding.is {
            self.sessions.bind(db, &name, is.connection, 1);
        }
    }

    /// Forgets locks that left their keys because the step opened them.
    #[inline(always)]
    pub(crate) fn clean_up_unlinked<K: Keyspace>(&mut self, keys: &mut K) {
        if keys.has_unlinked() {
            self.forget_unlinked(keys);
        }
    }

    #[inline(never)]
    fn forget_unlinked<K: Keyspace>(&mut self, keys: &mut K) {
        for (db, name, unlinked) in keys.take_unlinked() {
            self.on_unlinked(db, &name, &unlinked);
        }
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
