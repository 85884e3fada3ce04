//! A world without a server: a primary, a replica that receives what the primary's effects say, and the naive model.

use crate::naive::{Answer, Naive, Row};
use crate::queue::{Ask as Wish, Kind, Rules, Waiter};
use crate::told::Places;
use lock_core::codec;
use lock_core::manager::begun::Asked;
use lock_core::manager::view::{self, View, ViewContext, Waiting};
use lock_core::manager::{LeasePoll, LockManager};
use lock_core::model::effect::{Cause, Change, Effects, Record};
use lock_core::model::fence::Fence;
use lock_core::model::hold::{Hold, Mode, Session};
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::keyspace::{KeyEntry, Keyspace};
use lock_core::model::limits::{Limits, StepLimits};
use lock_core::model::lock::Lock;
use lock_core::model::notify::Notify;
use lock_core::model::owner::{Note, Owner};
use lock_core::model::record::{HoldRecord, Origin, Update};
use lock_core::model::request::{
    self, Acquire, Amount, Begun, Check, Extend, Guard, Hop, Operation, Outcome, RedirectReason, Refusal, Release,
    Request, Share, Wait, WaiterId,
};
use lock_core::model::session::UnlinkedLock;
use lock_core::model::state::State;
use lock_core::model::step;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use lock_core::wait::deadlock::Budgets;
use lock_core::wait::jobs::Job;
use lock_core::wait::timers::WaitPoll;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

pub const SKEW: Millis = Millis(7);

/// What can happen.
#[derive(Clone, Debug)]
pub enum Op {
    Acquire {
        db: u32,
        keys: Vec<u8>,
        owner: u8,
        mode: Mode,
        lease: u64,
        note: Option<u8>,
        wait: Wait,
        retry: Option<u32>,
        session: Option<Bound>,
        /// For how many milliseconds the place outlives the request.
        queue: Option<u64>,
        /// Of how many shares it takes how many; of a single key, for reading.
        share: Option<(u32, u32)>,
    },
    Release {
        db: u32,
        keys: Vec<u8>,
        owner: u8,
        mode: Option<Mode>,
        amount: Amount,
        fence: Named,
    },
    Extend {
        keys: Vec<u8>,
        owner: u8,
        lease: u64,
        fence: Named,
        session: Option<Bound>,
        /// Some(None) takes away what is there.
        note: Option<Option<u8>>,
    },
    /// An owner runs a command, if it holds the key for writing.
    Guard {
        db: u32,
        key: u8,
        owner: u8,
        fence: Named,
    },
    /// A client's connection closes. It comes back as another one.
    Close {
        client: u8,
        /// Whether nothing is done about it before the next thing happens.
        late: bool,
    },
    /// An operator ends holds, of this owner or all, and for how long the key is kept.
    Break {
        key: u8,
        owner: Option<u8>,
    },
    Pass {
        us: u64,
    },
    /// Time passes, and nothing is done about it before the next thing happens.
    Late {
        us: u64,
    },
    /// The commands of a transaction or a script: what clients ask for, and what becomes of keys. Nothing happens
    /// between two of them but that the present moves on, by `Pass`.
    Unit {
        commands: Vec<Op>,
    },
    /// A request to hold, or to extend, whose fence is to be this one at least.
    AtLeast {
        fence: Least,
        of: Box<Op>,
    },
    /// The client of a waiter, or of a grant, has gone.
    Lose {
        nth: usize,
    },
    /// The client of a grant has its reply.
    Deliver {
        nth: usize,
    },
    /// A waiter is unblocked by another client.
    Cancel {
        nth: usize,
    },
    /// This node has become a replica.
    Dismiss,
    /// This node was a replica, is the primary again, and grants nothing for so many milliseconds.
    Grace {
        ms: u64,
    },
    /// An operator sets how long a grace is.
    SetGrace {
        ms: u64,
    },
    /// Something else than a lock is put under a key.
    SetOver {
        key: u8,
    },
    SetWall {
        us: u64,
    },
    Alarm {
        most: usize,
    },
    Delete {
        key: u8,
    },
    /// A client gives a lock so many milliseconds to live, or takes its time to live away.
    Expire {
        key: u8,
        ms: Option<u64>,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Move {
        key: u8,
    },
    Reload {
        key: u8,
    },
    Swap,
    Flush {
        all: bool,
    },
    Promote,
}

impl Op {
    /// The database of a request to hold or to extend.
    fn db(&self) -> u32 {
        if let Op::Acquire { db, .. } = self { *db } else { 0 }
    }

    /// Whether it may be one of the commands of a transaction or a script.
    fn may_be_in_unit(&self) -> bool {
        let is_request = matches!(
            self,
            Op::Acquire { .. }
                | Op::Release { .. }
                | Op::Extend { .. }
                | Op::Guard { .. }
                | Op::Break { .. }
                | Op::AtLeast { .. }
        );
        let is_about_keys =
            matches!(self, Op::SetOver { .. } | Op::Delete { .. } | Op::Rename { .. } | Op::Swap | Op::Flush { .. });
        is_request || is_about_keys || matches!(self, Op::Pass { .. })
    }
}

/// Which fence a request names.
#[derive(Clone, Copy, Debug)]
pub enum Named {
    None,
    /// The one that the owner has on the first key, if it has one.
    Own,
    Other,
}

/// Which fence a hold is to have at least, by how much it is above or below another one.
#[derive(Clone, Copy, Debug)]
pub enum Least {
    /// The last one that was given or seen.
    Last(i64),
    /// The wall clock.
    Wall(i64),
    /// The furthest ahead of the wall clock that a client may ask for.
    Furthest(i64),
    /// The highest fence of the holds on the key.
    Highest(i64),
    /// The highest there is.
    Max,
}

/// What a hold is bound to: which of a few clients, and how many milliseconds it outlives its connection.
pub type Bound = (u8, u64);

/// A hold as it lies there: database, key, owner, reads, writes, fence, note.
type RawRow = (u32, u8, Owner, u32, u32, Fence, Option<Note>);

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
    foreign: BTreeSet<(u32, u8)>,
    /// The database and the keys of the current step.
    db: u32,
    step: Vec<(u32, u8)>,
    /// How many of them the step began with.
    named: usize,
    /// How often a key was opened in it.
    opens: usize,
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
    fn in_unit<R>(
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

    fn rename(&mut self, db: u32, from: u8, to: u8, now: Timestamp) {
        let expires = self.expires.get(&(db, from)).copied();
        if let Some(mut lock) = self.leave(db, from) {
            self.delete(db, to);
            self.expires.extend(expires.map(|at| ((db, to), at)));
            self.manager.carry(Some((Db(db), name(from))), Db(db), name(to), &mut lock, now);
            self.locks.insert((db, to), lock);
        }
    }

    fn move_to_1(&mut self, key: u8, now: Timestamp) {
        let expires = self.expires.get(&(0, key)).copied();
        if let Some(mut lock) = self.leave(0, key) {
            self.expires.extend(expires.map(|at| ((1, key), at)));
            self.manager.carry(Some((Db(0), name(key))), Db(1), name(key), &mut lock, now);
            self.locks.insert((1, key), lock);
        }
    }

    fn reload(&mut self, db: u32, key: u8, now: Now) {
        if let Some(lock) = self.leave(db, key) {
            let saved = codec::decode(&codec::encode(&lock, now)).unwrap();
            let mut lock = LockManager::load(&saved, Origin::Peer, now).unwrap();
            self.manager.arrive(Db(db), name(key), &mut lock, now.mono);
            self.locks.insert((db, key), lock);
        }
    }

    fn swap(&mut self) {
        self.manager.swap(Db(0), Db(1));
        self.locks =
            std::mem::take(&mut self.locks).into_iter().map(|((db, key), lock)| ((1 - db, key), lock)).collect();
        self.expires =
            std::mem::take(&mut self.expires).into_iter().map(|((db, key), at)| ((1 - db, key), at)).collect();
        self.foreign = std::mem::take(&mut self.foreign).into_iter().map(|(db, key)| (1 - db, key)).collect();
    }

    fn flush(&mut self, db: Option<u32>) {
        self.manager.flush(db.map(Db));
        self.locks.retain(|(in_db, _), _| db.is_some_and(|db| db != *in_db));
        self.expires.retain(|(in_db, _), _| db.is_some_and(|db| db != *in_db));
        self.foreign.retain(|(in_db, _)| db.is_some_and(|db| db != *in_db));
        while self.manager.shed() {}
    }

    /// Every hold as it lies there, settled or not; the deadline left out.
    fn raw(&self) -> Vec<RawRow> {
        let of = |(&(db, key), lock): (&(u32, u8), &Lock)| {
            let rows = lock.holds.iter();
            rows.map(|(owner, hold)| {
                (db, key, owner.clone(), hold.reads(), hold.writes(), hold.fence(), hold.note().cloned())
            })
            .collect::<Vec<_>>()
        };
        self.locks.iter().flat_map(of).collect()
    }

    fn sight<'a>(&'a self, db: u32, name: &'a [u8], (now, judged): (Timestamp, Timestamp)) -> ViewContext<'a> {
        ViewContext { db: Db(db), name, sessions: self.manager.sessions(), now, judged }
    }

    /// Every hold as LOCK.INFO shows it, as the model's rows.
    fn seen(&self, (now, judged): (Timestamp, Timestamp)) -> Vec<Row> {
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

/// The three of them.
pub struct World {
    pub primary: Side,
    pub replica: Side,
    pub naive: Naive,
    pub now: Now,
    /// By which time the commands of the transaction or script that runs are judged.
    unit: Option<Timestamp>,
    /// The fence that the next request's hold is to have at least.
    min_fence: Option<Fence>,
    /// Whether locks have come to other keys in it. Their queues hear of that in the background.
    carried: bool,
    /// Whether time has passed unnoticed, a connection closed, or a transaction or a script goes on.
    late: bool,
    /// Whether some requests are repeated over a connection that the server does not let wait.
    pub some_cannot_wait: bool,
    /// Whether some requests come while the server has no memory left.
    pub memory_is_short: bool,
    /// Whether nothing can be granted now and then when the time of a place is up.
    pub some_places_are_overdue: bool,
    /// Which connection each client has, by how many it had before.
    connections: [u64; 3],
    /// What was answered last.
    pub last: Option<Answer>,
    /// Which owners are to be told.
    told: Places,
}

impl World {
    pub fn new(rules: Rules) -> World {
        World {
            primary: Side::new(limits(rules)),
            replica: Side::new(limits(rules)),
            naive: Naive::new(rules, SKEW.0 * 1000),
            now: Now { mono: Timestamp(5_000_000), wall: WallTime(1_000_000) },
            unit: None,
            min_fence: None,
            carried: false,
            late: false,
            some_cannot_wait: false,
            memory_is_short: false,
            some_places_are_overdue: false,
            connections: [0; 3],
            last: None,
            told: Places::default(),
        }
    }

    /// The same, with this much for the part of a search for deadlocks that reads queues.
    pub fn searching(rules: Rules, units: usize) -> World {
        let mut world = World::new(rules);
        world.primary.manager.searches = Budgets::with_queues(units);
        world.naive.may_overlook = true;
        world
    }

    /// Does one thing in all three, works off what it leaves to do, and compares what they answer.
    pub fn step(&mut self, op: &Op) {
        match op {
            // A request is judged when its queues were served, as far as its step goes. The naive model serves all of
            // them first, so nothing is left undone here.
            Op::Unit { commands } if self.naive.rules.small_steps => {
                return commands.iter().for_each(|command| self.step(command));
            }
            Op::Late { us } if self.naive.rules.small_steps => return self.step(&Op::Pass { us: *us }),
            Op::Close { client, late: true } if self.naive.rules.small_steps => {
                return self.step(&Op::Close { client: *client, late: false });
            }
            Op::Unit { commands } => return self.unit(commands),
            _ => {}
        }
        self.naive.refresh_offers();
        if !matches!(op, Op::Late { .. } | Op::Close { late: true, .. }) {
            self.open_all();
        }
        match op {
            // What is bound to nothing any more, a connection that has closed does not end.
            Op::Dismiss | Op::Grace { .. } => self.naive.unbind(None),
            Op::Reload { key } => self.naive.unbind(Some((0, *key))),
            _ => {}
        }
        // No queue is scanned when time passes or a connection closes.
        if !matches!(op, Op::Late { .. } | Op::Close { .. }) {
            self.naive.settle(self.now.mono.0);
        }
        let late = match op {
            // What ends with the connection and what is taken back may come in either order then.
            Op::Close { late: true, .. } => self.naive.granted.is_empty(),
            _ => matches!(op, Op::Late { .. }),
        };
        self.act(op);
        self.late = late;
        if !self.late {
            self.naive.settle(self.now.mono.0);
            self.drain();
        }
    }

    /// Does the commands of a transaction or a script, and compares all that can be seen between two of them.
    fn unit(&mut self, commands: &[Op]) {
        let judged = self.now.mono;
        self.open_all();
        self.naive.settle(judged.0);
        (self.unit, self.naive.unit_us, self.late) = (Some(judged), Some(judged.0), true);
        for command in commands {
            assert!(command.may_be_in_unit(), "{command:?}");
            self.naive.refresh_offers();
            self.act(command);
            // What came to a key and is over there already has taken it.
            self.naive.end_keeping();
            self.carried |= matches!(command, Op::Rename { .. } | Op::Swap);
            self.check();
        }
        (self.unit, self.naive.unit_us, self.late, self.carried) = (None, None, false, false);
        self.naive.settle(self.now.mono.0);
        self.drain();
    }

    /// By which time it is judged what is over.
    fn judged(&self) -> Timestamp {
        self.unit.unwrap_or(self.now.mono)
    }

    fn act(&mut self, op: &Op) {
        let now = self.now;
        match op {
            Op::Acquire { db, keys, owner, mode, lease, note, wait, retry, session, queue, share } => {
                if self.is_foreign(*db, keys) {
                    return;
                }
                // As the parser has it.
                let wait = if self.unit.is_some() { Wait::Never } else { *wait };
                let (mode, retry) = (*mode, retry.or(queue.map(|_| share.map_or(1, |(_, take)| take))));
                let note_kept = note.map(|note| Note::new(&[note]));
                let ask = Acquire {
                    mode,
                    lease: Millis(*lease),
                    note: note_kept,
                    wait,
                    retry,
                    session: self.session(*session),
                    queue: queue.map(Millis),
                    share: share.and_then(|(limit, take)| {
                        Some(Share { limit: NonZeroU32::new(limit)?, take: NonZeroU32::new(take)? })
                    }),
                    // As the parser has it.
                    min_fence: self.min_fence.filter(|_| keys.len() == 1 && share.is_none()),
                };
                let min_fence = ask.min_fence.map(Fence::get);
                let (lease_us, note, keys) = (lease * 1000, *note, keys.clone());
                let (owner_, session) = (*owner, self.bound(*session));
                let wish = Wish {
                    db: *db,
                    keys: keys.clone(),
                    owner: owner_,
                    mode,
                    lease_us,
                    note,
                    wait,
                    retry,
                    session,
                    queue_us: queue.map(|ms| ms * 1000),
                    share: *share,
                    min_fence,
                };
                self.serve((*db, &keys), *owner, Operation::Acquire(ask), |naive| {
                    naive.acquire(&wish, now.mono.0, now.wall.0)
                });
            }
            Op::Release { db, keys, owner, mode, amount, fence } => {
                if self.is_foreign(*db, keys) {
                    return;
                }
                let fence = self.named(*fence, (*db, keys[0]), *owner);
                let ask = Release { mode: *mode, amount: *amount, fence };
                let at = (*db, &keys[..]);
                self.serve(at, *owner, Operation::Release(ask), |naive| {
                    naive.release(at, *owner, *mode, *amount, fence.map(Fence::get))
                });
            }
            Op::Extend { keys, owner, lease, fence, session, note } => {
                if self.is_foreign(0, keys) {
                    return;
                }
                let fence = self.named(*fence, (0, keys[0]), *owner);
                let ask = Extend {
                    lease: Millis(*lease),
                    session: self.session(*session),
                    fence,
                    note: note.map(|note| Note::new(note.as_slice())),
                    min_fence: self.min_fence.filter(|_| keys.len() == 1),
                };
                let wish = (now.mono.0 + lease * 1000, self.bound(*session), *note);
                let fences = (fence.map(Fence::get), ask.min_fence.map(Fence::get));
                self.serve((0, keys), *owner, Operation::Extend(ask), |naive| {
                    naive.extend((0, keys), *owner, wish, fences, now.wall.0)
                });
            }
            Op::Guard { db, key, owner, fence } => {
                if self.is_foreign(*db, &[*key]) {
                    return;
                }
                let fence = self.named(*fence, (*db, *key), *owner).unwrap_or(Fence::MAX);
                self.serve((*db, &[*key]), *owner, Operation::Guard(Guard { fence }), |naive| {
                    naive.guard((*db, *key), *owner, fence.get())
                });
            }
            Op::Pass { us } | Op::Late { us } => {
                self.now.mono.0 += us;
                self.now.wall.0 += us;
            }
            Op::Close { client, .. } => self.close(*client),
            Op::Break { key, owner } => {
                if self.is_foreign(0, &[*key]) {
                    return;
                }
                let whose = owner.map(|owner| Owner::new(&[owner]));
                let Step { outcome: broken, effects } =
                    self.primary.in_unit((0, &[*key]), (now, self.unit.unwrap_or(now.mono)), |manager, step| {
                        manager.break_holds(step, KeyIndex(0), whose.as_ref())
                    });
                assert_eq!(broken, self.naive.break_holds((0, *key), *owner, now.mono.0));
                self.after_look(0, &[*key], effects);
            }
            Op::Lose { nth } => self.client_gone(*nth),
            Op::Deliver { nth } => {
                if let Some(at) = nth.checked_rem(self.naive.granted.len()) {
                    self.primary.manager.delivered(id_of(self.naive.granted.remove(at).id));
                }
            }
            Op::Cancel { nth } => {
                if let Some(at) = nth.checked_rem(self.naive.waiters.len()) {
                    let id = self.naive.waiters[at].id;
                    // A place without a client has no client that could be unblocked.
                    if !self.naive.waiters[at].is_detached() {
                        assert!(self.primary.manager.cancel(id_of(id), now.mono).is_some());
                        self.leave_client(id, false);
                    }
                }
                self.naive.end_keeping();
            }
            Op::Grace { ms } => {
                self.act(&Op::Dismiss);
                self.act(&Op::SetGrace { ms: *ms });
                let begun = self.primary.manager.begin_grace(now.mono);
                assert_eq!(begun, Some(Millis(*ms)).filter(|length| *length > Millis(0)));
                self.naive.begin_grace(ms * 1000, now.mono.0);
            }
            Op::SetGrace { ms } => {
                self.primary.manager.set_grace(Millis(*ms), now.mono);
                self.naive.set_grace(ms * 1000, now.mono.0);
            }
            Op::Dismiss => {
                for (db, name) in self.primary.manager.offered_keys() {
                    self.primary.locks.get_mut(&(db.0, name[0])).expect("is offered").keep_offers();
                }
                assert!(
                    self.primary.locks.values().all(|lock| lock.holds.iter().all(|(_, hold)| hold.offer().is_none()))
                );
                let manager = &self.primary.manager;
                let is_there = |id: &u64| manager.waited_since(id_of(*id)).is_some();
                let there: BTreeSet<u64> = self.told.ids().filter(is_there).collect();
                let ended = self.primary.manager.dismiss();
                self.told.dismissed(&ended.messages, |id| there.contains(&id));
                let answers = ended.waits;
                assert!(
                    answers.iter().all(|(_, answer)| *answer == request::WaitEnd::Redirected(RedirectReason::Demoted))
                );
                let told: BTreeSet<u64> = answers.iter().map(|(id, _)| id.to_number()).collect();
                assert_eq!(told, self.naive.waiters.drain(..).map(|waiter| waiter.id).collect());
                self.naive.granted.clear();
                self.naive.offers.clear();
                self.naive.rows.iter_mut().for_each(|row| row.offered = false);
                self.naive.end_keeping();
            }
            Op::SetWall { us } => self.now.wall = WallTime(*us),
            Op::Alarm { most } => self.alarm(*most),
            Op::SetOver { key } => {
                self.naive.delete(0, *key);
                self.naive.foreign.insert((0, *key));
                self.primary.set_over(0, *key);
                self.replica.set_over(0, *key);
            }
            Op::Delete { key } => {
                self.naive.delete(0, *key);
                self.naive.foreign.remove(&(0, *key));
                self.primary.delete(0, *key);
                self.replica.delete(0, *key);
            }
            Op::Expire { key, ms } => self.set_expiry(*key, *ms),
            Op::Rename { from, to } => {
                if from == to || self.is_foreign(0, &[*from, *to]) {
                    return;
                }
                // The server renames a key whose holds are all over too, and its target goes. The naive model knows no
                // such keys, so they are settled first, by an owner that holds nothing.
                let ask = Release { mode: None, amount: Amount::One, fence: None };
                self.serve((0, &[*from, *to]), b'n', Operation::Release(ask), |_| Answer::Released(vec![None, None]));
                if !self.primary.locks.contains_key(&(0, *from)) {
                    return;
                }
                self.naive.rename(0, *from, *to);
                self.primary.rename(0, *from, *to, now.mono);
                self.replica.rename(0, *from, *to, now.mono);
            }
            Op::Move { key } => {
                if self.is_foreign(0, &[*key]) || self.is_foreign(1, &[*key]) {
                    return;
                }
                // As before a rename: a target that is over would be in the way.
                self.alarm(usize::MAX);
                if self.primary.locks.contains_key(&(1, *key)) {
                    return;
                }
                let ask = Release { mode: None, amount: Amount::One, fence: None };
                self.serve((0, &[*key]), b'n', Operation::Release(ask), |_| Answer::Released(vec![None]));
                if self.primary.locks.contains_key(&(1, *key)) {
                    return;
                }
                self.naive.move_to_1(*key);
                self.primary.move_to_1(*key, now.mono);
                self.replica.move_to_1(*key, now.mono);
            }
            Op::Reload { key } => {
                self.naive.reload(0, *key, now.mono.0);
                self.primary.reload(0, *key, now);
                self.replica.reload(0, *key, now);
            }
            Op::Swap => {
                self.naive.swap();
                self.primary.swap();
                self.replica.swap();
            }
            Op::Flush { all } => {
                let db = (!all).then_some(0);
                self.naive.flush(db);
                self.primary.flush(db);
                self.replica.flush(db);
            }
            Op::AtLeast { fence, of } => {
                let (Op::Acquire { keys, .. } | Op::Extend { keys, .. }, db) = (&**of, of.db()) else {
                    panic!("{of:?} gives no fence");
                };
                self.min_fence = self.least(*fence, (db, keys[0]));
                self.act(of);
                self.min_fence = None;
            }
            Op::Unit { .. } => unreachable!("no unit is a part of another"),
            Op::Promote => {
                self.naive.promote(now.wall.0);
                self.primary.manager.promote(now.wall);
            }
        }
    }

    fn is_foreign(&self, db: u32, keys: &[u8]) -> bool {
        keys.iter().any(|key| self.naive.foreign.contains(&(db, *key)))
    }

    fn named(&self, fence: Named, at: (u32, u8), owner: u8) -> Option<Fence> {
        let own = self.primary.locks.get(&at).and_then(|lock| lock.holds.get(&[owner])).map(|hold| hold.fence());
        match fence {
            Named::None => None,
            Named::Own => own,
            Named::Other => Fence::new(1),
        }
    }

    /// The fence that is meant.
    fn least(&self, fence: Least, at: (u32, u8)) -> Option<Fence> {
        let rows = self.naive.rows.iter().filter(|row| (row.db, row.key) == at);
        let (from, by) = match fence {
            Least::Last(by) => (self.naive.last_fence, by),
            Least::Wall(by) => (self.now.wall.0, by),
            Least::Furthest(by) => (self.now.wall.0 + SKEW.0 * 500, by),
            Least::Highest(by) => (rows.map(|row| row.fence).max().unwrap_or(0), by),
            Least::Max => (Fence::MAX.get(), 0),
        };
        Fence::new(from.saturating_add_signed(by).max(1))
    }

    fn connection(&self, client: u8) -> u64 {
        self.connections[usize::from(client)] * 10 + u64::from(client)
    }

    fn session(&self, session: Option<Bound>) -> Option<Session> {
        let of = |(client, grace)| Session {
            connection: self.primary.manager.sessions().connection(self.connection(client)),
            grace: Millis(grace),
        };
        session.map(of)
    }

    fn bound(&self, session: Option<Bound>) -> Option<(u64, u64)> {
        session.map(|(client, grace)| (self.connection(client), grace * 1000))
    }

    /// What was granted to a connection that may not have received the reply, and whether its owner has shown that it
    /// knows.
    fn granted_to(&self, connection: u64) -> Vec<(u64, bool)> {
        let granted = self.naive.granted.iter();
        let to = granted.filter(|granted| granted.ask.session.is_some_and(|(whose, _)| whose == connection));
        to.map(|granted| (granted.id, granted.confirmed)).collect()
    }

    /// A connection closes: its waiters are gone, its grants without a delivered reply are taken back, and what is
    /// bound to it ends.
    fn close(&mut self, client: u8) {
        let (connection, now) = (self.connection(client), self.now.mono);
        self.connections[usize::from(client)] += 1;
        let asked = |ask: &Wish| ask.session.is_some_and(|(whose, _)| whose == connection);
        let lost = self.granted_to(connection);
        let manager = &mut self.primary.manager;
        // The server says so before or after it reports the waiters that are gone.
        let first = self.naive.tickets.is_multiple_of(2);
        if first {
            manager.disconnect(connection, now);
        }
        let gone: Vec<u64> =
            self.naive.waiters.iter().filter(|waiter| asked(&waiter.ask)).map(|waiter| waiter.id).collect();
        for id in gone {
            assert!(!self.primary.manager.client_gone(id_of(id), Some(0), now), "nothing to take back");
            self.leave_client(id, true);
        }
        self.naive.end_keeping();
        let away_us = self.naive.rules.away_us;
        for granted in self.naive.granted.iter_mut().filter(|granted| asked(&granted.ask)) {
            granted.ask.keep_no_longer(away_us);
        }
        let manager = &mut self.primary.manager;
        for (id, confirmed) in &lost {
            assert_eq!(manager.client_gone(id_of(*id), Some(0), now), !confirmed);
        }
        if !first {
            manager.disconnect(connection, now);
        }
        // The last first: what one gave may have changed what an earlier one did.
        for (id, _) in lost.iter().rev() {
            self.naive.revoke_undelivered(*id, now.0);
        }
        self.naive.closed.insert(connection, now.0);
        if !lost.is_empty() {
            // Before the timer or a command comes to those keys, which would end what is bound before it is taken back.
            self.naive.settle(now.0);
            self.work();
        }
    }

    /// What a request says of the channel of its place: by chance, and the channel.
    fn notify(&mut self, has_place: bool) -> (Notify, u8) {
        let channel = b'0' + (self.naive.tickets + self.now.mono.0 / 1_000) as u8 % 4;
        match channel {
            _ if !has_place => (Notify::AsBefore, channel),
            b'0' => (Notify::AsBefore, channel),
            b'1' => (Notify::Never, channel),
            _ => (Notify::On { channel: self.primary.manager.channel(&[channel]), client: 0 }, channel),
        }
    }

    /// A request for a place was answered: it has one, or has renewed it, or has none.
    fn note_asked(
        &mut self,
        (db, keys): (u32, &[u8]),
        owner: u8,
        (ask, outcome): (&Acquire, &Result<Outcome, Refusal>),
        told: (Notify, u8),
    ) {
        match outcome {
            Ok(Outcome::Begun(Begun::New(id))) => self.told.asked((None, *id), owner, told, true),
            Ok(Outcome::Begun(Begun::Place(id))) => self.told.asked((None, *id), owner, told, false),
            Ok(Outcome::Begun(Begun::Repeat(old))) if self.naive.cannot_wait => {
                self.told.asked((None, *old), owner, told, true);
            }
            Ok(Outcome::Unavailable) | Err(Refusal::Grace(_)) => {
                let mut queue = self.primary.manager.queue(Db(db), name(keys[0]), Timestamp(0));
                let is_it = |waiting: &Waiting<'_>| {
                    let waiter = waiting.waiter;
                    waiter.owner.as_bytes() == [owner] && waiter.is_place() && waiter.operation.kind() == ask.kind()
                };
                // A client may wait for it already, by a request without QUEUE.
                let renewed = queue.find(is_it).map(|waiting| (waiting.id, !waiting.waiter.is_detached()));
                drop(queue);
                if let Some((id, has_client)) = renewed {
                    self.told.asked((None, id), owner, told, has_client);
                }
            }
            _ => {}
        }
    }

    fn client_gone(&mut self, nth: usize) {
        let waiting = self.naive.waiters.len();
        let Some(at) = nth.checked_rem(waiting + self.naive.granted.len()) else { return };
        let now = self.now.mono;
        if at < waiting {
            let id = self.naive.waiters[at].id;
            if !self.naive.waiters[at].is_detached() {
                assert!(!self.primary.manager.client_gone(id_of(id), Some(0), now), "nothing to take back");
                self.leave_client(id, true);
            }
            self.naive.end_keeping();
        } else {
            let away_us = self.naive.rules.away_us;
            let granted = &mut self.naive.granted[at - waiting];
            granted.ask.keep_no_longer(away_us);
            let (id, confirmed) = (granted.id, granted.confirmed);
            assert_eq!(self.primary.manager.client_gone(id_of(id), Some(0), now), !confirmed);
            if confirmed {
                self.naive.granted.remove(at - waiting);
            }
        }
    }

    /// The client of a waiter waits no more, and may have closed its connection. A place goes on, under another name.
    fn leave_client(&mut self, id: u64, has_closed: bool) {
        let now = self.now.mono;
        let at = self.naive.waiters.iter().position(|waiter| waiter.id == id).expect("waits");
        if has_closed {
            let away_us = self.naive.rules.away_us;
            self.naive.waiters[at].ask.keep_no_longer(away_us);
        }
        if !self.naive.waiters[at].detach(now.0) {
            self.naive.waiters.remove(at);
            self.told.left(id, None);
            return;
        }
        let Wish { db, ref keys, owner, .. } = self.naive.waiters[at].ask;
        let mut queue = self.primary.manager.queue(Db(db), name(keys[0]), now);
        let is_it = |waiting: &Waiting<'_>| waiting.waiter.owner.as_bytes() == [owner] && waiting.waiter.is_place();
        let place = queue.find(is_it).expect("stands there").id.to_number();
        drop(queue);
        self.told.left(id, Some(place));
        self.naive.waiters[at].id = place;
    }

    /// The server parks the client of a request that begins to wait, or does not.
    fn begin(
        &mut self,
        (begun, operation): (Begun, &Acquire),
        owner: u8,
        (notify, channel): (Notify, u8),
        turns_away: bool,
    ) -> Outcome {
        let manager = &mut self.primary.manager;
        let asked = Asked { begun, operation, notify, client: 0, is_partial: true, now: self.now.mono };
        let cannot_wait = if matches!(begun, Begun::Repeat(_)) { self.naive.cannot_wait } else { turns_away };
        if cannot_wait || !manager.may_park(begun) {
            let settled = manager.client_not_parked(&asked);
            assert!(settled.counts && settled.taken_over.is_none(), "no wait goes on, none ends");
            return settled.outcome;
        }
        let Begun::Repeat(old) = begun else { return manager.client_parked(&asked).1.outcome };
        assert_eq!(self.naive.replaced.take(), Some(old.to_number()));
        let waited_at_place = manager.waits_at_place(old);
        let (heir, settled) = manager.client_parked(&asked);
        let goes_on = waited_at_place || operation.queue.is_some();
        let answer = if goes_on { request::WaitEnd::TakenOver } else { request::WaitEnd::Replaced };
        assert_eq!((settled.counts, settled.taken_over), (!goes_on, Some((old, answer))));
        match operation.queue {
            Some(_) => self.told.asked((Some(old), heir), owner, (notify, channel), true),
            None => self.told.left(old.to_number(), None),
        }
        settled.outcome
    }

    fn serve(
        &mut self,
        (db, keys): (u32, &[u8]),
        owner: u8,
        ask: Operation,
        expected: impl FnOnce(&mut Naive) -> Answer,
    ) {
        let request = Request { owner: Owner::new(&[owner]), operation: ask };
        let (now, judged_at, before) = (self.now, self.judged(), self.primary.raw());
        let cut = self.primary.manager.searches_cut();
        let has_marks = self.primary.manager.has_owners_to_mark();
        let memory_full = self.memory_is_short && self.naive.tickets % 4 > 1;
        let asks = if let Operation::Acquire(ask) = &request.operation { ask.queue.map(|_| ask.clone()) } else { None };
        let (notify, channel) = self.notify(asks.is_some());
        let step = self.primary.in_unit((db, keys), (now, judged_at), |manager, step| {
            step.memory_full = memory_full;
            step.notify = notify;
            manager.serve(step, &request)
        });
        let left_by = matches!(request.operation, Operation::Release(_)).then_some(owner);
        self.told.follow(&step.effects.wait_ends, step.effects.messages(), (left_by, None));
        let answered = step.outcome.clone();
        self.renew_overdue();
        if step.effects.changes.is_empty() {
            assert_eq!(self.primary.raw(), before, "changed without an effect");
        } else if matches!(request.operation, Operation::Release(_))
            && step.effects.wait_ends.is_empty()
            && step.effects.changes.iter().all(|change| change.cause != Cause::Close)
        {
            assert_ne!(self.primary.raw(), before, "an effect without a change");
        }
        self.tell(&step.effects.changes);
        // First what is over ends, and the queues are served; then the request is judged.
        let mut answers = step.effects.wait_ends.into_iter().collect::<VecDeque<_>>();
        // What was granted before anything was released was so before the request was judged.
        let causes: Vec<Cause> = step.effects.changes.iter().map(|change| change.cause).collect();
        let judged = causes.iter().position(|cause| *cause == Cause::Release);
        let is_grant = |cause: &&Cause| **cause == Cause::Acquire;
        let mut grants = judged.map_or(usize::MAX, |at| causes[..at].iter().filter(is_grant).count());
        let (mut served, mut unsure) = (BTreeSet::new(), false);
        while let Some((id, answer)) = answers.front().cloned() {
            if !self.is_due(id, &answer) || (grants == 0 && is_granted(&answer)) {
                break;
            }
            answers.pop_front();
            if let request::WaitEnd::Granted(_) | request::WaitEnd::Offered { .. } = &answer {
                let waiter = self.naive.waiter(id.to_number()).expect("is due");
                grants = grants.saturating_sub(self.naive.grants_of(waiter));
                served.extend(self.naive.waiter(id.to_number()).map(|waiter| waiter.ask.owner));
            }
            // The time-out may also have been reported after the release, when it freed a place for others.
            let is_late = matches!(
                answer,
                request::WaitEnd::TimedOut | request::WaitEnd::Detached(_) | request::WaitEnd::InGrace { .. }
            );
            unsure |= grants == 0 && is_late;
            self.hear(id, answer);
        }
        // A waiter that was granted may go before others now where else it waits: those queues are scanned later.
        let overlooked = self.naive.overlooked_at((db, keys), &served, now.mono.0);
        // A waiter for a key on which holds are left that are over may be served when the last of them has ended.
        // So may one whose owner has got a hold: its queues are marked in pieces.
        let unsure = unsure || self.has_over((db, keys)) || has_marks || self.primary.manager.has_owners_to_mark();
        assert!(unsure || self.carried || overlooked.is_none(), "settles first: {overlooked:?}");
        for key in keys {
            self.naive.looked(db, *key, now.mono.0);
        }
        // Some servers let some connections not wait.
        self.naive.cannot_wait = self.some_cannot_wait && self.naive.tickets.is_multiple_of(3);
        self.naive.memory_full = memory_full;
        self.naive.lets_in = matches!(step.outcome, Ok(Outcome::Granted(_)));
        self.naive.lets_wait = matches!(step.outcome, Ok(Outcome::Begun(Begun::New(_) | Begun::Place(_))));
        // Fewer of those that wait for the first time: else hardly a queue would be long.
        let turns_away = self.some_cannot_wait && self.naive.tickets.is_multiple_of(15);
        let mut expected = expected(&mut self.naive);
        let outcome = match (step.outcome, &request.operation) {
            (Ok(Outcome::Begun(begun)), Operation::Acquire(ask)) => {
                Ok(self.begin((begun, ask), owner, (notify, channel), turns_away))
            }
            (outcome, _) => outcome,
        };
        self.primary.manager.forget_channel();
        if let Some(ask) = &asks {
            self.note_asked((db, keys), owner, (ask, &answered), (notify, channel));
        }
        if self.primary.manager.searches_cut() > cut {
            assert!(self.naive.may_be_waited_for(owner), "cut for nothing: {request:?} {:?}", self.naive);
        }
        if let (Ok(Outcome::Begun(Begun::New(id))), Answer::Queued, true) = (&answered, &expected, turns_away) {
            self.naive.call_last(id.to_number());
            self.leave_client(id.to_number(), false);
            expected = match asks {
                Some(_) => Answer::Placed,
                None if self.naive.is_in_grace(now.mono.0) => Answer::Grace,
                None => Answer::Unavailable,
            };
        }
        // As the shell has it.
        let outcome = match outcome {
            Ok(Outcome::Unavailable) => self.primary.manager.unless_grace(Outcome::Unavailable, now.mono, judged_at),
            outcome => outcome,
        };
        if let Err(Refusal::Grace(left)) = &outcome {
            assert_eq!(*left, self.naive.grace_left(now.mono.0).unwrap_or(Millis(0)));
        }
        if let (Err(Refusal::Deadlock(cycle)), Answer::Deadlock) = (&outcome, &expected) {
            let asker = self.naive.refused.take().expect("was refused");
            self.naive.waiters.push(asker.clone());
            self.check_cycle(&asker, &cycle.0);
            self.naive.waiters.pop();
        }
        if let (Ok(Outcome::Queued(id)), Answer::Queued) | (Ok(Outcome::Placed(id)), Answer::Placed) =
            (&outcome, &expected)
        {
            self.naive.call_last(id.to_number());
        }
        assert_eq!(answer_of(outcome), expected, "{request:?} {:?}", self.naive);
        self.last = Some(expected);
        assert_eq!(self.naive.replaced, None, "only a repeated request takes over a place");
        for (id, answer) in answers {
            self.hear(id, answer);
        }
        self.naive.end_keeping();
        if let Operation::Release(_) = request.operation {
            for key in keys {
                self.naive.looked(db, *key, now.mono.0);
            }
        }
        for key in keys {
            self.check_settled((db, *key), &request.owner);
        }
    }

    /// Whether holds that are over lie on one of these keys.
    fn has_over(&self, (db, keys): (u32, &[u8])) -> bool {
        let mut locks = keys.iter().filter_map(|key| self.primary.locks.get(&(db, *key)));
        let sessions = self.primary.manager.sessions();
        locks.any(|lock| lock.holds.iter().any(|(_, hold)| sessions.end_of(hold) <= self.judged()))
    }

    /// I5: what is over on a key after a step for an owner is another owner's, more than a step may end, and not all
    /// there is; and the background comes to it.
    fn check_settled(&mut self, (db, key): (u32, u8), owner: &Owner) {
        if !self.has_over((db, &[key])) {
            return;
        }
        let (lock, sessions) = (&self.primary.locks[&(db, key)], self.primary.manager.sessions());
        let is_over = |hold: &Hold| sessions.end_of(hold) <= self.judged();
        assert!(lock.holds.get(owner.as_bytes()).is_none_or(|hold| !is_over(hold)), "I5: its own on {key}");
        assert!(self.naive.rules.ended_max < lock.holds.len() + 3, "I5 on {key}");
        assert!(lock.holds.iter().any(|(holder, hold)| holder != owner && !is_over(hold)), "I5: all on {key}");
        assert!(lock.holds.iter().all(|(_, hold)| hold.writes() == 0), "I5: a writer on {key}");
        // The index goes by whole milliseconds: at most one late.
        let is_due = self.primary.manager.next_deadline().is_some_and(|at| at <= self.now.mono + Millis(1));
        assert!(is_due || sessions.some_closed(), "I5: {key} is forgotten");
    }

    /// Whether this answer is right at this moment.
    fn is_due(&self, id: WaiterId, answer: &request::WaitEnd) -> bool {
        let now = self.now.mono.0;
        self.naive.waiter(id.to_number()).is_some_and(|waiter| match answer {
            request::WaitEnd::Granted(_) => !waiter.is_detached() && self.naive.is_servable(waiter, now),
            request::WaitEnd::Offered { since } => {
                since.0 == waiter.since_us && waiter.is_detached() && self.naive.is_servable(waiter, now)
            }
            request::WaitEnd::TimedOut => {
                let is_served = waiter.is_detached() || (!waiter.is_place() && !self.naive.ended_in_grace(waiter, now));
                waiter.is_over(now) && is_served
            }
            request::WaitEnd::Detached(_) => {
                let has_client = waiter.is_place() && !waiter.is_detached();
                waiter.is_over(now) && has_client && !self.naive.ended_in_grace(waiter, now)
            }
            request::WaitEnd::InGrace { left, place } => {
                let left_is_right = Some(*left) == self.naive.grace_left(now).or(Some(Millis(0)));
                let ended = waiter.is_over(now) && !waiter.is_detached() && self.naive.ended_in_grace(waiter, now);
                left_is_right && ended && place.is_some() == waiter.is_place()
            }
            request::WaitEnd::Left => {
                let is_settled = waiter.is_detached() && self.naive.is_settled_otherwise(waiter, now);
                is_settled || self.naive.is_left_in_cycle(waiter, now)
            }
            request::WaitEnd::Refused(Refusal::QueuedUpgrade) => {
                waiter.ask.mode == Mode::Write && self.naive.is_settled_otherwise(waiter, now)
            }
            request::WaitEnd::Refused(Refusal::HoldsShares) => {
                let is_share = waiter.ask.kind() == Kind::Share && !waiter.is_detached();
                is_share && self.naive.is_settled_otherwise(waiter, now)
            }
            request::WaitEnd::Refused(Refusal::MinFenceAhead) => {
                self.naive.is_too_far_ahead(waiter, now, self.now.wall.0)
            }
            request::WaitEnd::HoldLost => self.naive.has_lost_its_hold(waiter),
            request::WaitEnd::WrongType => self.is_foreign(waiter.ask.db, &waiter.ask.keys),
            _ => false,
        })
    }

    /// A waiter was answered: that must have been right, and the naive model follows.
    fn hear(&mut self, id: WaiterId, answer: request::WaitEnd) {
        let (number, now) = (id.to_number(), self.now);
        match answer {
            request::WaitEnd::Granted(fences) => {
                let expected = self.naive.serve_waiter(number, now.mono.0, now.wall.0);
                assert_eq!(fences.into_iter().map(Fence::get).collect::<Vec<_>>(), expected);
                return;
            }
            request::WaitEnd::Offered { since } => {
                let waiter = self.naive.waiter(number).expect("waits");
                assert!(waiter.is_detached() && waiter.since_us == since.0, "{waiter:?}");
                self.naive.serve_waiter(number, now.mono.0, now.wall.0);
                return;
            }
            request::WaitEnd::Detached(place) | request::WaitEnd::InGrace { place: Some(place), .. } => {
                assert!(self.is_due(id, &answer), "{answer:?} to {:?}", self.naive.waiter(number));
                let waiter = self.naive.waiters.iter_mut().find(|waiter| waiter.id == number).expect("is due");
                assert!(waiter.detach(now.mono.0));
                waiter.id = place.to_number();
                return;
            }
            request::WaitEnd::Left if self.naive.left.contains(&number) => {
                self.naive.left.retain(|left| *left != number);
                return;
            }
            request::WaitEnd::Refused(Refusal::Deadlock(cycle)) => {
                assert!(self.naive.rules.detects);
                self.check_cycle(self.naive.waiter(number).expect("waits"), &cycle.0);
            }
            answer => assert!(self.is_due(id, &answer), "{answer:?} to {:?}", self.naive.waiter(number)),
        }
        self.naive.waiters.retain(|waiter| waiter.id != number);
        self.naive.end_keeping();
    }

    fn check_cycle(&self, asker: &Waiter, cycle: &[Hop]) {
        let waits = |db: u32, owner: u8, key: u8| {
            let mut asks = self.naive.waiters.iter().map(|waiter| &waiter.ask);
            asks.any(|ask| ask.db == db && ask.owner == owner && ask.keys.contains(&key))
        };
        let astray = cycle.iter().find(|hop| !waits(hop.db.0, hop.owner.as_bytes()[0], hop.key[0]));
        assert_eq!(astray, None, "waits in another database: {:?}", self.naive);
        let cycle: Vec<(u8, u8)> = cycle.iter().map(|hop| (hop.owner.as_bytes()[0], hop.key[0])).collect();
        assert_eq!(cycle[0].0, asker.ask.owner);
        assert_eq!(self.naive.false_hop(&cycle, self.now.mono.0), None, "{cycle:?} {:?}", self.naive);
        // It waits for the requester as well, if an owner in the cycle holds what it wants to write.
        let is_in = |other: &Waiter, key: u8| {
            let holds =
                |owner| self.naive.rows.iter().any(|row| (row.db, row.key, row.owner) == (other.ask.db, key, owner));
            let waits_for = |owner| owner == other.ask.owner || other.ask.mode == Mode::Write && holds(owner);
            !other.passed && cycle.iter().any(|(owner, _)| waits_for(*owner))
        };
        let hindrance = self.naive.hindrance(asker, self.now.mono.0, is_in);
        assert!(hindrance.is_some(), "{asker:?} may pass all in {cycle:?}");
    }

    /// The replica learns what the effects say, and nothing else.
    fn tell(&mut self, changes: &[Change]) {
        let now = self.now;
        for change in changes {
            let fence = change.hold.fence();
            let update = update_of(change, now);
            let (db, key) = self.primary.step[change.key.0];
            if !change.ended {
                // As the shell does with a new or changed hold.
                self.primary.expires.remove(&(db, key));
            }
            match change.record {
                Record::State => {}
                Record::Emptied => {
                    self.replica.delete(db, key);
                    continue;
                }
                Record::Sent => continue,
            }
            let Step { outcome: told, effects } = self
                .replica
                .in_step(db, &[key], now, |manager, step| manager.apply(step, KeyIndex(0), &update, Origin::Peer));
            assert_eq!(told, Ok(()));
            assert!(effects.wait_ends.is_empty());
            assert!(self.replica.manager.last_fence() >= Some(fence), "a fence that the replica may give again");
        }
    }

    /// A scan of these keys was made in the background.
    fn after_look(&mut self, db: u32, keys: &[u8], effects: Effects) {
        self.told.follow(&effects.wait_ends, effects.messages(), (None, None));
        self.after_look_told(db, keys, effects);
    }

    fn after_look_told(&mut self, db: u32, keys: &[u8], effects: Effects) {
        self.tell(&effects.changes);
        // A lock may have come from elsewhere. The queue learns of it by the scan alone, before any waiter is answered.
        self.naive.end_keeping_of(db, keys);
        for (id, answer) in effects.wait_ends {
            self.hear(id, answer);
        }
        for key in keys {
            self.naive.looked(db, *key, self.now.mono.0);
        }
    }

    /// Does all that is left to the background.
    fn drain(&mut self) {
        self.primary.manager.end_grace(self.now.mono);
        for _ in 0..1_000 {
            self.expire();
            self.open_due();
            self.alarm(usize::MAX);
            if !self.work() {
                return;
            }
        }
        panic!("the work does not come to an end");
    }

    fn expire(&mut self) {
        loop {
            match self.primary.manager.poll_timeouts(self.now.mono) {
                WaitPoll::Ended(id, answer) => {
                    self.told.follow(&[(id, answer.clone())], &[], (None, None));
                    self.hear(id, answer);
                }
                WaitPoll::PlaceOver(id, ..) => self.end_place(id),
                WaitPoll::Pending => {}
                WaitPoll::Idle => return,
            }
        }
    }

    /// A request was served, so that the node grants again: a place whose time was up meanwhile has it again.
    fn renew_overdue(&mut self) {
        let now = self.now.mono;
        for waiter in self.naive.waiters.iter_mut().filter(|waiter| waiter.overdue && waiter.is_over(now.0)) {
            let renewed = now.0 + waiter.ask.queue_us.expect("a place");
            let mut queue = self.primary.manager.queue(Db(waiter.ask.db), name(waiter.ask.keys[0]), now);
            let there = queue.find(|waiting| waiting.id.to_number() == waiter.id);
            if there.is_some_and(|waiting| waiting.waiter.until == Some(Timestamp(renewed))) {
                waiter.keep_until(renewed);
            }
        }
    }

    /// The time of a place is up, now and then while nothing can be granted.
    fn end_place(&mut self, id: WaiterId) {
        let (number, now) = (id.to_number(), self.now.mono);
        let at = self.naive.waiters.iter().position(|waiter| waiter.id == number).expect("waits");
        let waiter = &mut self.naive.waiters[at];
        assert!(waiter.is_detached() && waiter.is_over(now.0), "{waiter:?}");
        let may_grant = !self.some_places_are_overdue || !(waiter.ticket + now.0 / 1000).is_multiple_of(4);
        match (may_grant, waiter.overdue) {
            (false, _) => {
                waiter.keep_until(now.0 + 1_000_000);
                waiter.overdue = true;
            }
            (true, true) => waiter.keep_until(now.0 + waiter.ask.queue_us.expect("a place")),
            (true, false) => {
                self.told.left(number, None);
                drop(self.naive.waiters.remove(at));
            }
        }
        self.primary.manager.end_place(id, may_grant, now);
        self.naive.end_keeping();
    }

    /// Whether there was any.
    fn work(&mut self) -> bool {
        let (now, mut worked) = (self.now, false);
        while let Some(work) = self.primary.manager.next_job() {
            worked = true;
            match work {
                Job::ServeQueue(Db(db), name) => {
                    let key = name[0];
                    if self.is_foreign(db, &[key]) {
                        self.end_waits(db, key);
                        continue;
                    }
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db, &[key], now, |manager, step| manager.serve_ready_queue(step, KeyIndex(0), 1));
                    self.after_look(db, &[key], effects);
                }
                Job::MarkQueues => self.primary.manager.mark_queues(),
                Job::ShortenPlaces => self.primary.manager.shorten_places(),
                Job::Check(id, Db(db), name) => {
                    let Step { effects, .. } =
                        self.primary.in_step(db, &[name[0]], now, |manager, step| manager.check_waiter(step, id));
                    self.tell(&effects.changes);
                    self.told.follow(&effects.wait_ends, effects.messages(), (None, None));
                    // Its own step saw all locks: what closed a cycle came after it.
                    for (id, answer) in effects.wait_ends {
                        self.hear(id, answer);
                    }
                }
                Job::EndSession(connection, Db(db), name) => {
                    let key = name[0];
                    if self.is_foreign(db, &[key]) {
                        self.primary.manager.abandon_session(Db(db), &name, connection);
                        continue;
                    }
                    // Pieces of several sizes.
                    let most = 1 + self.naive.tickets as usize % 3;
                    let Step { effects, .. } = self.primary.in_step(db, &[key], now, |manager, step| {
                        manager.end_session(step, KeyIndex(0), connection, most);
                    });
                    self.after_look(db, &[key], effects);
                }
                Job::AnnounceEnds(Db(db), name) => {
                    let key = name[0];
                    if self.is_foreign(db, &[key]) {
                        self.primary.manager.abandon_ends(Db(db), &name, 1);
                        continue;
                    }
                    let most = 1 + self.naive.tickets as usize % 3;
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db, &[key], now, |manager, step| manager.announce_ends(step, KeyIndex(0), most));
                    assert!(effects.wait_ends.is_empty() && effects.changes.iter().all(|change| change.ended));
                    self.tell(&effects.changes);
                }
                Job::RevokeUndelivered(id, Db(db), names) => {
                    let keys: Vec<u8> = names.iter().map(|name| name[0]).collect();
                    // The core opens them: one of them may be no lock any more, which must not keep the others taken.
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db, &[], now, |manager, step| manager.revoke_undelivered(step, id, Db(db)));
                    let known = self.naive.granted.iter().find(|granted| granted.id == id.to_number());
                    let is_last = self.primary.manager.waited_since(id).is_none();
                    let tells = is_last && known.is_none_or(|granted| !granted.confirmed);
                    let undelivered = Some(id.to_number()).filter(|_| tells);
                    self.told.follow(&effects.wait_ends, effects.messages(), (None, undelivered));
                    // Else it was when its connection closed.
                    if self.naive.granted.iter().any(|granted| granted.id == id.to_number()) {
                        self.naive.revoke_undelivered(id.to_number(), now.mono.0);
                    }
                    let keys: Vec<u8> = keys.into_iter().filter(|key| !self.is_foreign(db, &[*key])).collect();
                    self.after_look_told(db, &keys, effects);
                }
            }
        }
        assert!(!self.primary.manager.has_jobs());
        worked
    }

    fn end_waits(&mut self, db: u32, key: u8) {
        while !self.naive.queue(db, key).is_empty() {
            let ended = self.primary.manager.end_waits(Db(db), name(key), &request::WaitEnd::WrongType);
            assert!((1..=self.primary.manager.limits.step.answers).contains(&ended.waits.len()));
            self.told.follow(&ended.waits, &ended.messages, (None, None));
            for (id, answer) in ended.waits {
                assert_eq!(answer, request::WaitEnd::WrongType);
                self.naive.waiters.retain(|waiter| waiter.id != id.to_number());
            }
        }
        assert!(self.naive.queue(db, key).is_empty());
        self.naive.end_keeping();
    }

    /// Works off all that is due, at most so many holds at a time.
    fn alarm(&mut self, most: usize) {
        let now = self.now;
        for _ in 0..100_000 {
            match self.primary.manager.poll_leases(now.mono) {
                LeasePoll::Key(db, entry, name) => {
                    let keys = [name[0]];
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db.0, &keys, now, |manager, step| manager.lapse(step, KeyIndex(0), entry, most));
                    self.after_look(db.0, &keys, effects);
                }
                LeasePoll::DbUnknown(..) => panic!("nothing was loaded beside what is served"),
                LeasePoll::Pending => {}
                LeasePoll::Idle => {
                    let next = self.primary.manager.next_deadline();
                    assert!(self.late || next.is_none_or(|at| at > now.mono), "the alarm would spin");
                    for lock in self.primary.locks.values() {
                        // The index goes by whole milliseconds: at most one late.
                        assert_eq!(lock.holds.over(Timestamp(now.mono.0 - 1_000)), 0, "the alarm forgot a lease");
                    }
                    return;
                }
            }
        }
        panic!("the alarm does not come to an end");
    }

    /// Compares all three, and checks the invariants.
    pub fn check(&mut self) {
        let now = self.now.mono;
        let mut settled = self.naive.clone();
        settled.settle(now.0);
        let mut expected = settled.rows.clone();
        expected.iter_mut().for_each(|row| row.carried = false);
        expected.sort();
        assert_eq!(self.primary.seen((now, self.judged())), expected, "primary and model");
        self.check_checks(&settled);
        if self.late {
            return;
        }
        self.naive.settle(now.0);
        self.check_sessions();
        self.naive.refresh_offers();
        assert_eq!(self.primary.manager.offered(), self.naive.offers.len(), "offers: {:?}", self.naive.offers);
        assert!(self.naive.left.is_empty(), "places that were given back: {:?}", self.naive.left);
        self.check_tops();
        assert_eq!(self.primary.raw(), self.replica.raw(), "primary and replica");
        assert_eq!(self.primary.manager.last_fence().map_or(0, Fence::get), self.naive.last_fence, "fence clocks");
        self.check_lines();
        self.check_expiries();
        for side in [&self.primary, &self.replica] {
            assert_eq!(side.manager.leases_len(), side.locks.len(), "one entry per lock, none left over");
            for (&(db, _), lock) in &side.locks {
                assert_eq!(lock.broken_invariant(), None);
                let (earliest, _) = lock.holds.earliest().expect("I6");
                assert!(side.manager.covers(Db(db), lock, earliest), "I4");
            }
        }
    }

    /// LOCK.CHECK by anybody, of anything, before and after what is over was ended.
    fn check_checks(&self, settled: &Naive) {
        let fences = settled.rows.iter().map(|row| Some(row.fence)).chain([None, Some(1)]);
        let fences: Vec<Option<u64>> = fences.collect();
        for (&(db, key), lock) in &self.primary.locks {
            let at = self.primary.sight(db, name(key), (self.now.mono, self.judged()));
            for owner in b'a'..=b'e' {
                for mode in [None, Some(Mode::Read), Some(Mode::Write)] {
                    for &fence in &fences {
                        let wanted = Check { mode, fence: fence.and_then(Fence::new) };
                        let found = view::check(lock, at, &[owner], wanted).map(Fence::get);
                        let expected = settled.check((db, key), owner, mode, fence);
                        assert_eq!(found, expected, "a check of {key} by {owner}: {wanted:?}");
                    }
                }
            }
        }
    }

    /// S1.
    fn check_sessions(&self) {
        let mut bound: BTreeSet<(u32, u8, u8, u64)> = BTreeSet::new();
        for (to, db, name, count) in self.primary.manager.sessions().iter() {
            let lock = self.primary.locks.get(&(db.0, name[0]));
            let owners = lock.into_iter().flat_map(|lock| lock.holds.owners_bound_to(to));
            let before = bound.len();
            bound.extend(owners.map(|owner| (db.0, name[0], owner.as_bytes()[0], to.client())));
            assert_eq!(bound.len() - before, count, "S1: what {to:?} has on {name:?}");
        }
        assert_eq!(self.primary.manager.sessions().len(), bound.len());
        // The index of leases goes by whole milliseconds: some may be over that were not ended.
        let is_over = |(db, key, owner, _): &(u32, u8, u8, u64)| {
            let hold = self.primary.locks.get(&(*db, *key)).and_then(|lock| lock.holds.get(&[*owner]));
            hold.is_some_and(|hold| hold.deadline <= self.now.mono)
        };
        let bound: BTreeSet<_> = bound.into_iter().filter(|bound| !is_over(bound)).collect();
        let rows = self.naive.rows.iter();
        let expected = rows.filter_map(|row| Some((row.db, row.key, row.owner, row.session?.0))).collect();
        assert_eq!(bound, expected, "S1");
        assert!(!self.primary.manager.sessions().some_closed(), "everything was ended that was bound");
        assert!(self.replica.manager.sessions().is_empty(), "no hold ends with a connection to another node");
    }

    /// What operators see.
    fn check_tops(&self) {
        let (manager, naive, now) = (&self.primary.manager, &self.naive, self.now.mono);
        let of = |waiter: &Waiter| (waiter.since_us, waiter.id);
        let mut waits: Vec<(u64, u64)> = naive.waiters.iter().map(of).collect();
        waits.sort_unstable();
        let mut crowds: Vec<(usize, u32, u8, u64)> = Vec::new();
        for (db, key) in naive.contended() {
            let queue = naive.queue(db, key);
            let since = queue.iter().map(|waiter| waiter.since_us).min().expect("contended");
            crowds.push((queue.len(), db, key, (now.0 - since) / 1000));
        }
        crowds.sort_by_key(|(waiting, db, key, _)| (usize::MAX - waiting, *db, *key));
        for most in [0, 2, 99] {
            let longest = manager.longest_waits(most, now).into_iter();
            let longest: Vec<(u64, u64)> =
                longest.map(|waiting| (waiting.waiter.since.0, waiting.id.to_number())).collect();
            // Waiters that came in the same moment stand in any order.
            let since = |waits: &[(u64, u64)]| waits.iter().take(most).map(|wait| wait.0).collect::<Vec<_>>();
            assert_eq!(since(&longest), since(&waits), "who has waited longest");
            assert!(longest.iter().all(|wait| waits.contains(wait)));
            assert_eq!(longest.iter().collect::<BTreeSet<_>>().len(), most.min(waits.len()));
            let crowded = manager.most_contended(most, now).into_iter();
            let crowded: Vec<_> =
                crowded.map(|crowd| (crowd.waiting, crowd.db.0, crowd.name[0], crowd.waited.0)).collect();
            assert_eq!(crowded, crowds[..most.min(crowds.len())], "where most wait");
        }
    }

    fn check_lines(&self) {
        let (manager, naive, now) = (&self.primary.manager, &self.naive, self.now.mono);
        assert_eq!(manager.broken_invariant(), None);
        assert_eq!(manager.waiting(), naive.waiters.len());
        let count = |is: fn(&Waiter) -> bool| naive.waiters.iter().filter(|waiter| is(waiter)).count();
        assert_eq!(manager.places(), count(Waiter::is_place));
        assert_eq!(manager.parked(), count(|waiter| !waiter.is_detached()));
        let contended = naive.contended();
        assert_eq!(manager.contended(), contended.len());
        for (db, key) in contended {
            let queue: Vec<u64> = manager.queue(Db(db), name(key), now).map(|waiting| waiting.id.to_number()).collect();
            let expected: Vec<u64> = naive.queue(db, key).into_iter().map(|waiter| waiter.id).collect();
            assert_eq!(queue, expected, "the line of {key}");
        }
        assert_eq!(naive.overlooked(now.0).map(|waiter| waiter.id), None, "W2: {naive:?}");
        assert_eq!(manager.grace_left(now), naive.grace_left(now.0));
        // A cycle of places alone ends when the grace does.
        if naive.rules.detects && naive.grace_left(now.0).is_none() {
            assert_eq!(naive.short_cycle_of_holds(now.0), None, "in a deadlock: {naive:?}");
            let mut waiters = naive.waiters.iter().filter(|_| !naive.may_overlook);
            let stuck = waiters.find(|waiter| naive.is_in_lasting_cycle(waiter.ask.owner, now.0));
            assert_eq!(stuck.map(|waiter| waiter.id), None, "in a deadlock: {naive:?}");
        }
    }
}

/// What a replica receives of a change.
pub fn update_of(change: &Change, now: Now) -> Update {
    let Change { owner, hold, .. } = change;
    match (change.ended, change.ends_writer()) {
        (false, _) => Update::State(HoldRecord::of(owner, hold, now)),
        (true, false) => Update::State(HoldRecord::new(owner.clone(), State::end(Some(hold.fence())), None)),
        (true, true) => Update::End(hold.fence()),
    }
}

fn is_granted(answer: &request::WaitEnd) -> bool {
    matches!(answer, request::WaitEnd::Granted(_) | request::WaitEnd::Offered { .. })
}

fn id_of(number: u64) -> WaiterId {
    WaiterId::from_number(number).expect("was an id")
}

fn answer_of(outcome: Result<Outcome, Refusal>) -> Answer {
    match outcome {
        Ok(Outcome::Granted(fences)) => Answer::Granted(fences.into_iter().map(Fence::get).collect()),
        Ok(Outcome::Unavailable) => Answer::Unavailable,
        Ok(Outcome::Queued(_)) => Answer::Queued,
        Ok(Outcome::Begun(_)) => unreachable!("its client was parked, or not"),
        Ok(Outcome::Released(left)) => Answer::Released(left.into_vec()),
        Ok(Outcome::Extended(fences)) => Answer::Extended(fences.into_iter().map(|f| f.map(Fence::get)).collect()),
        Ok(Outcome::Guarded(fence)) => Answer::Guarded(fence.map(Fence::get)),
        Err(Refusal::TooManyHolders) => Answer::TooManyHolders,
        Err(Refusal::AmbiguousRelease) => Answer::Ambiguous,
        Err(Refusal::AlreadyWaits) => Answer::AlreadyWaits,
        Err(Refusal::TooManyWaiters) => Answer::TooManyWaiters,
        Err(Refusal::TooManyWaitersOfKey) => Answer::TooManyWaitersOfKey,
        Ok(Outcome::Placed(_)) => Answer::Placed,
        Err(Refusal::TooManyPlaces) => Answer::TooManyPlaces,
        Err(Refusal::OtherMode) => Answer::OtherMode,
        Err(Refusal::OtherTake) => Answer::OtherTake,
        Err(Refusal::HoldsShares) => Answer::HoldsShares,
        Err(Refusal::OtherKeys) => Answer::OtherKeys,
        Err(Refusal::QueuedUpgrade) => Answer::QueuedUpgrade,
        Err(Refusal::Deadlock(_)) => Answer::Deadlock,
        Err(Refusal::Grace(_)) => Answer::Grace,
        Err(Refusal::MinFenceAhead) => Answer::MinFenceAhead,
        Err(Refusal::OutOfMemory) => Answer::OutOfMemory,
        Err(other) => panic!("not in the model: {other:?}"),
    }
}
