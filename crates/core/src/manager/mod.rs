//! The lock manager: what it knows beside the locks themselves (the fence clock, the index of leases, the epoch).
//! Requests are served in [`serve`], records are applied in [`records`].

pub mod acquire;
mod announce;
pub mod begun;
pub mod break_holds;
pub mod enqueue;
pub mod extend;
mod follow;
mod grace;
mod grant;
pub mod guard;
pub mod jobs;
mod key_expiry;
pub mod lease_index;
mod leases;
mod moved_keys;
mod place;
pub mod records;
pub mod release;
pub mod scan;
pub mod serve;
mod sessions;
pub mod view;
pub mod wake;

use crate::collections::wheel::Generations;
use crate::model::effect::EndedHolds;
use crate::model::ended_holds::Settling;
use crate::model::fence::{Fence, FenceClock};
use crate::model::grace::Grace;
use crate::model::hashing::KeyedHash;
use crate::model::hold::Epoch;
use crate::model::holds::Holds;
use crate::model::key::{Db, KeyIndex, KeyName, NameSet};
use crate::model::keyspace::Keyspace;
use crate::model::limits::Limits;
use crate::model::lock::Leases;
use crate::model::notify::ChannelId;
use crate::model::offers::Offers;
use crate::model::session::Sessions;
use crate::model::step::Step;
use crate::model::time::{Timestamp, WallTime};
use crate::wait::deadlock::Budgets;
use crate::wait::retired::Retired;
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
    /// Waits that have ended together, likewise.
    pub(super) retired_waits: Vec<Retired>,
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
            retired_waits: Vec::new(),
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

    /// The next moment at which [`LockManager::poll_leases`], [`LockManager::poll_timeouts`] or
    /// [`LockManager::end_grace`] is worth calling; None when there is nothing to wait for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let deadlines = [self.leases.next_deadline(), self.wait_table.soonest(), self.grace_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Gives back a bounded piece of the memory of indexes of data that are gone; false when there is none left.
    pub fn shed(&mut self) -> bool {
        const HOLDS_PER_POLL: usize = 64;
        if let Some(waits) = self.retired_waits.last_mut() {
            if !waits.shed() {
                self.retired_waits.pop();
            }
            return true;
        }
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

    /// Names the channel of a request, for [`Step::notify`], until [`LockManager::forget_channel`].
    pub fn channel(&mut self, bytes: &[u8]) -> ChannelId {
        self.wait_table.channel(bytes)
    }

    /// The request that named a channel is served.
    pub fn forget_channel(&mut self) {
        self.wait_table.forget_channel();
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

    /// The first of the wait table's invariants that does not hold, by its number.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        self.wait_table.broken_invariant()
    }
}
