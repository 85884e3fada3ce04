//! A node and its keys: what a server is to the core.

use crate::words::Row;
use crate::words::Rules;
use lock_core::codec;
use lock_core::manager::LockManager;
use lock_core::manager::view::{View, ViewContext};
use lock_core::model::effect::{Change, Effects};
use lock_core::model::fence::Fence;
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::keyspace::{KeyEntry, Keyspace};
use lock_core::model::limits::{Limits, StepLimits};
use lock_core::model::lock::Lock;
use lock_core::model::owner::{Note, Owner};
use lock_core::model::record::{HoldRecord, Origin, Update};
use lock_core::model::request::{self, Outcome, Refusal, Request};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::state::State;
use lock_core::model::step;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use std::collections::{BTreeMap, BTreeSet};

pub const SKEW: Millis = Millis(7);

/// A hold as it lies there: database, key, owner, reads, writes, fence, note.
pub(super) type RawRow = (u32, u8, Owner, u32, u32, Fence, Option<Note>);

/// What a request came to and what it left to do.
pub struct Step<R = Result<Outcome, Refusal>> {
    pub outcome: R,
    pub effects: Effects,
}

/// A node and its keys.
pub struct Side {
    pub manager: LockManager,
    pub locks: BTreeMap<(u32, u8), Lock>,
    /// When keys expire that have a time to live.
    pub expires: BTreeMap<(u32, u8), WallTime>,
    /// Keys with something else than a lock.
    pub(super) foreign: BTreeSet<(u32, u8)>,
    /// The database and the keys of the current step.
    pub(super) db: u32,
    pub(super) step: Vec<(u32, u8)>,
    /// How many of them the step began with.
    pub(super) named: usize,
    /// How often a key was opened in it.
    pub(super) opens: usize,
    /// How often a lock was read that is none of the step's.
    pub peeks: usize,
}

/// The name of a key: long ones are shared, short ones live in place.
pub fn name(key: u8) -> &'static [u8] {
    static NAMES: [[u8; 30]; 256] = {
        let mut names = [[0; 30]; 256];
        let mut key = 0;
        while key < 256 {
            names[key] = [key as u8; 30];
            key += 1;
        }
        names
    };
    &NAMES[usize::from(key)][..if key.is_multiple_of(2) { 30 } else { 1 }]
}

/// A hash of which most owners and names have the same: nothing may come of that but more comparisons.
pub fn weak_hash(bytes: &[u8]) -> u64 {
    bytes.first().map_or(0, |first| u64::from(first / 3 % 2))
}

impl Keyspace for Side {
    fn count(&self) -> usize {
        self.step.len()
    }

    fn entry(&mut self, key: KeyIndex) -> KeyEntry<'_> {
        let (db, key) = self.step[key.0];
        KeyEntry { db: Db(db), name: name(key), lock: self.locks.get_mut(&(db, key)) }
    }

    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, request::WaitEnd> {
        let db = self.db;
        if self.foreign.contains(&(db, name[0])) {
            return Err(request::WaitEnd::WrongType);
        }
        let at = self.step.iter().position(|(_, open)| *open == name[0]).unwrap_or_else(|| {
            self.step.push((db, name[0]));
            self.step.len() - 1
        });
        let most = self.named + self.manager.limits.step.keys_open + KEYS_MAX;
        assert!(self.step.len() <= most, "{} keys are open, {} of them named", self.step.len(), self.named);
        self.opens += 1;
        Ok(KeyIndex(at))
    }

    fn close(&mut self, key: KeyIndex) {
        assert!(key.0 >= self.named, "a key of the request");
        self.step.swap_remove(key.0);
    }

    fn peek<R>(&mut self, db: Db, name: &[u8], read: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.peeks += 1;
        self.locks.get(&(db.0, name[0])).map(read)
    }

    fn expires_at(&mut self, key: KeyIndex) -> Option<WallTime> {
        self.expires.get(&self.step[key.0]).copied()
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        let (db, key) = self.step[key.0];
        assert!(!self.locks.contains_key(&(db, key)), "created over a lock");
        self.locks.entry((db, key)).or_default()
    }
}

impl Side {
    pub fn new(limits: Limits) -> Side {
        let (locks, foreign) = (BTreeMap::new(), BTreeSet::new());
        Side {
            manager: LockManager::new(limits, weak_hash),
            locks,
            expires: BTreeMap::new(),
            foreign,
            db: 0,
            step: Vec::new(),
            named: 0,
            opens: 0,
            peeks: 0,
        }
    }

    /// Serves a request on these keys.
    pub fn serve(&mut self, db: u32, keys: &[u8], request: &Request, now: Now) -> Step {
        self.in_step(db, keys, now, |manager, step| manager.serve(step, request))
    }

    /// A step of the manager on these keys, judged by the time of its unit.
    pub(super) fn in_unit<R>(
        &mut self,
        (db, keys): (u32, &[u8]),
        (now, judged): (Now, Timestamp),
        work: impl FnOnce(&mut LockManager, &mut step::Step<'_, Side>) -> R,
    ) -> Step<R> {
        self.in_step(db, keys, now, |manager, step| {
            step.judged = judged;
            work(manager, step)
        })
    }

    /// A step of the manager on these keys.
    pub fn in_step<R>(
        &mut self,
        db: u32,
        keys: &[u8],
        now: Now,
        work: impl FnOnce(&mut LockManager, &mut step::Step<'_, Side>) -> R,
    ) -> Step<R> {
        self.on(db, keys, |manager, side| {
            let mut effects = Effects::new();
            Step { outcome: work(manager, &mut step::Step::new(side, now, &mut effects)), effects }
        })
    }

    /// Does a piece of work of the node on these keys, and tidies up as the shell does.
    pub fn on<R>(&mut self, db: u32, keys: &[u8], work: impl FnOnce(&mut LockManager, &mut Side) -> R) -> R {
        // The limits stay for what is opened.
        let limits = self.manager.limits;
        let mut manager = std::mem::replace(&mut self.manager, LockManager::new(limits, weak_hash));
        (self.db, self.step) = (db, keys.iter().map(|key| (db, *key)).collect());
        (self.named, self.opens) = (keys.len(), 0);
        let result = work(&mut manager, self);
        self.manager = manager;
        self.locks.retain(|_, lock| !lock.is_free());
        self.expires.retain(|at, _| self.locks.contains_key(at));
        result
    }

    pub fn delete(&mut self, db: u32, key: u8) {
        self.foreign.remove(&(db, key));
        self.leave(db, key);
    }

    /// Takes the lock away from its key.
    fn leave(&mut self, db: u32, key: u8) -> Option<Lock> {
        let mut lock = self.locks.remove(&(db, key))?;
        self.expires.remove(&(db, key));
        let unlinked = UnlinkedLock::of(&lock);
        lock.lease = None;
        self.manager.on_unlinked(Db(db), name(key), &unlinked);
        Some(lock)
    }

    pub fn set_over(&mut self, db: u32, key: u8) {
        self.leave(db, key);
        self.foreign.insert((db, key));
        // As the notification of a key that was overwritten.
        self.manager.on_unlinked(Db(db), name(key), &UnlinkedLock::default());
    }

    pub(super) fn rename(&mut self, db: u32, from: u8, to: u8, now: Timestamp) {
        let expires = self.expires.get(&(db, from)).copied();
        if let Some(mut lock) = self.leave(db, from) {
            self.delete(db, to);
            self.expires.extend(expires.map(|at| ((db, to), at)));
            self.manager.carry(Some((Db(db), name(from))), Db(db), name(to), &mut lock, now);
            self.locks.insert((db, to), lock);
        }
    }

    pub(super) fn move_to_1(&mut self, key: u8, now: Timestamp) {
        let expires = self.expires.get(&(0, key)).copied();
        if let Some(mut lock) = self.leave(0, key) {
            self.expires.extend(expires.map(|at| ((1, key), at)));
            self.manager.carry(Some((Db(0), name(key))), Db(1), name(key), &mut lock, now);
            self.locks.insert((1, key), lock);
        }
    }

    pub(super) fn reload(&mut self, db: u32, key: u8, now: Now) {
        if let Some(lock) = self.leave(db, key) {
            let saved = codec::decode(&codec::encode(&lock, now)).unwrap();
            let mut lock = LockManager::load(&saved, Origin::Peer, now).unwrap();
            self.manager.arrive(Db(db), name(key), &mut lock, now.mono);
            self.locks.insert((db, key), lock);
        }
    }

    pub(super) fn swap(&mut self) {
        self.manager.swap(Db(0), Db(1));
        self.locks =
            std::mem::take(&mut self.locks).into_iter().map(|((db, key), lock)| ((1 - db, key), lock)).collect();
        self.expires =
            std::mem::take(&mut self.expires).into_iter().map(|((db, key), at)| ((1 - db, key), at)).collect();
        self.foreign = std::mem::take(&mut self.foreign).into_iter().map(|(db, key)| (1 - db, key)).collect();
    }

    pub(super) fn flush(&mut self, db: Option<u32>) {
        self.manager.flush(db.map(Db));
        self.locks.retain(|(in_db, _), _| db.is_some_and(|db| db != *in_db));
        self.expires.retain(|(in_db, _), _| db.is_some_and(|db| db != *in_db));
        self.foreign.retain(|(in_db, _)| db.is_some_and(|db| db != *in_db));
        while self.manager.shed() {}
    }

    /// Every hold as it lies there, settled or not; the deadline left out.
    pub(super) fn raw(&self) -> Vec<RawRow> {
        let of = |(&(db, key), lock): (&(u32, u8), &Lock)| {
            let rows = lock.holds.iter();
            rows.map(|(owner, hold)| {
                (db, key, owner.clone(), hold.reads(), hold.writes(), hold.fence(), hold.note().cloned())
            })
            .collect::<Vec<_>>()
        };
        self.locks.iter().flat_map(of).collect()
    }

    pub(super) fn sight<'a>(
        &'a self,
        db: u32,
        name: &'a [u8],
        (now, judged): (Timestamp, Timestamp),
    ) -> ViewContext<'a> {
        ViewContext { db: Db(db), name, sessions: self.manager.sessions(), now, judged }
    }

    /// Every hold as LOCK.INFO shows it, as the model's rows.
    pub(super) fn seen(&self, (now, judged): (Timestamp, Timestamp)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (&(db, key), lock) in &self.locks {
            let Some(view) = View::of(lock, self.sight(db, name(key), (now, judged))) else { continue };
            assert_eq!(view.holders().count(), view.holding());
            for holder in view.holders() {
                assert_eq!(view.holder(holder.owner).unwrap().fence, holder.fence);
                let end = self.manager.sessions().end_of(lock.holds.get(holder.owner).unwrap());
                assert_eq!(holder.left, end.left(now));
                rows.push(Row {
                    db,
                    key,
                    owner: holder.owner[0],
                    reads: holder.reads,
                    writes: holder.writes,
                    fence: holder.fence.get(),
                    deadline_us: end.0,
                    note: holder.note.map(|note| note[0]),
                    session: holder.session.map(|session| (session.connection.client(), session.grace.0 * 1000)),
                    offered: holder.offered,
                    carried: false,
                });
            }
        }
        rows.sort();
        rows
    }
}

/// What is allowed where a test is not about that.
pub const RULES: Rules = Rules {
    holders_max: 9,
    waiters_max: 9_999,
    waiters_per_key_max: 9_999,
    places_max: 9_999,
    away_us: 0,
    reserve_us: 20_000,
    detects: true,
    ended_max: StepLimits::DEFAULT.holds_ended,
    small_steps: false,
    marked_max: StepLimits::DEFAULT.queues_marked,
};

/// The most keys that a request names here.
const KEYS_MAX: usize = 4;

/// Limits that most steps reach.
const SMALL: StepLimits = StepLimits {
    answers: 2,
    keys_granted: 1,
    keys_judged: 1,
    keys_judged_first: 2,
    keys_open: 1,
    holds_ended: 1,
    queues_marked: 1,
};

pub fn limits(rules: Rules) -> Limits {
    Limits {
        holders_per_key_max: rules.holders_max,
        waiters_max: rules.waiters_max,
        waiters_per_key_max: rules.waiters_per_key_max,
        places_max: rules.places_max,
        place_bytes_max: usize::MAX,
        away_max: Millis(rules.away_us / 1_000),
        waiter_bytes_max: usize::MAX,
        reserve_max: Millis(rules.reserve_us / 1000),
        deadlock_detection: rules.detects,
        promotion_skew: SKEW,
        grace: Millis(0),
        step: StepLimits {
            holds_ended: rules.ended_max,
            queues_marked: rules.marked_max,
            ..if rules.small_steps { SMALL } else { StepLimits::DEFAULT }
        },
    }
}

/// What a replica receives of a change.
pub fn update_of(change: &Change, now: Now) -> Update {
    let Change { owner, hold, .. } = change;
    match (change.ended, change.ends_writer()) {
        (false, _) => Update::State(HoldRecord::of(owner, hold, now)),
        (true, false) => {
            Update::State(HoldRecord { owner: owner.clone(), state: State::end(Some(hold.fence())), note: None })
        }
        (true, true) => Update::End(hold.fence()),
    }
}
