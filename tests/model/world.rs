//! A world without a server: a primary, a replica that is told what the primary's effects say, and the naive model.

use crate::naive::{Answer, Naive, Row};
use redis_lock::lock::change::Change;
use redis_lock::lock::codec;
use redis_lock::lock::fact::{Fact, Origin};
use redis_lock::lock::fence::Fence;
use redis_lock::lock::hold::Mode;
use redis_lock::lock::keyspace::{Db, KeyIndex, Keyspace, Place};
use redis_lock::lock::limits::Limits;
use redis_lock::lock::node::{Due, Node};
use redis_lock::lock::owner::{Note, Owner};
use redis_lock::lock::request::{Acquire, Amount, Ask, Extend, Outcome, Refusal, Release, Request};
use redis_lock::lock::time::{Millis, Now, Timestamp, WallTime};
use redis_lock::lock::value::{Lock, View};
use std::collections::BTreeMap;

pub(crate) const SKEW: Millis = Millis(7);

/// What can happen.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Acquire { keys: Vec<u8>, owner: u8, mode: Mode, lease: u64, note: Option<u8> },
    Release { keys: Vec<u8>, owner: u8, mode: Option<Mode>, amount: Amount, fence: Named },
    Extend { keys: Vec<u8>, owner: u8, lease: u64, fence: Named },
    Pass { us: u64 },
    SetWall { us: u64 },
    Alarm { most: usize },
    Delete { key: u8 },
    Rename { from: u8, to: u8 },
    Move { key: u8 },
    Reload { key: u8 },
    Swap,
    Flush { all: bool },
    Promote,
}

/// Which fence a request names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    None,
    /// The one that the owner has on the first key, if it has one.
    Own,
    Other,
}

/// A hold as it lies there: database, key, owner, reads, writes, fence, note.
type RawRow = (u32, u8, Owner, u32, u32, Fence, Option<Note>);

/// A node and its keys.
pub(crate) struct Side {
    pub(crate) node: Node,
    pub(crate) locks: BTreeMap<(u32, u8), Lock>,
    /// The keys of the current step.
    step: Vec<(u32, [u8; 1])>,
}

impl Keyspace for Side {
    fn count(&self) -> u16 {
        self.step.len() as u16
    }

    fn place(&mut self, key: KeyIndex) -> Place<'_> {
        let (db, name) = &self.step[usize::from(key.0)];
        Place { db: Db(*db), name, lock: self.locks.get_mut(&(*db, name[0])) }
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        let (db, name) = self.step[usize::from(key.0)];
        assert!(!self.locks.contains_key(&(db, name[0])), "created over a lock");
        self.locks.entry((db, name[0])).or_default()
    }
}

impl Side {
    pub(crate) fn new(limits: Limits) -> Side {
        Side { node: Node::new(limits), locks: BTreeMap::new(), step: Vec::new() }
    }

    /// Does a piece of work of the node on these keys, and tidies up as the shell does.
    pub(crate) fn on<R>(&mut self, db: u32, keys: &[u8], work: impl FnOnce(&mut Node, &mut Side) -> R) -> R {
        let mut node = std::mem::replace(&mut self.node, Node::new(limits(0)));
        self.step = keys.iter().map(|key| (db, [*key])).collect();
        let result = work(&mut node, self);
        self.node = node;
        self.locks.retain(|_, lock| !lock.is_free());
        result
    }

    fn delete(&mut self, db: u32, key: u8) {
        if let Some(lock) = self.locks.remove(&(db, key)) {
            self.node.forget(Db(db), &lock);
        }
    }

    fn rename(&mut self, db: u32, from: u8, to: u8, now: Timestamp) {
        if let Some(mut lock) = self.locks.remove(&(db, from)) {
            self.node.forget(Db(db), &lock);
            self.delete(db, to);
            self.node.carry(Db(db), &[to], &mut lock, now);
            self.locks.insert((db, to), lock);
        }
    }

    fn move_to_1(&mut self, key: u8, now: Timestamp) {
        if let Some(mut lock) = self.locks.remove(&(0, key)) {
            self.node.forget(Db(0), &lock);
            self.node.carry(Db(1), &[key], &mut lock, now);
            self.locks.insert((1, key), lock);
        }
    }

    fn reload(&mut self, db: u32, key: u8, now: Now) {
        if let Some(lock) = self.locks.remove(&(db, key)) {
            self.node.forget(Db(db), &lock);
            let saved = codec::decode(&codec::encode(&lock, now)).unwrap();
            let mut lock = Node::load(&saved, Origin::Peer, now).unwrap();
            self.node.arrive(Db(db), &[key], &mut lock, now.mono);
            self.locks.insert((db, key), lock);
        }
    }

    fn swap(&mut self) {
        self.node.swap(Db(0), Db(1));
        self.locks =
            std::mem::take(&mut self.locks).into_iter().map(|((db, key), lock)| ((1 - db, key), lock)).collect();
    }

    fn flush(&mut self, db: Option<u32>) {
        self.node.flush(db.map(Db));
        self.locks.retain(|(in_db, _), _| db.is_some_and(|db| db != *in_db));
        while self.node.shed() {}
    }

    /// Every hold as it lies there, settled or not; the deadline left out.
    fn raw(&self) -> Vec<RawRow> {
        let of = |(&(db, key), lock): (&(u32, u8), &Lock)| {
            let rows = lock.holds.iter();
            rows.map(|(owner, hold)| (db, key, owner.clone(), hold.reads, hold.writes, hold.fence, hold.note.clone()))
                .collect::<Vec<_>>()
        };
        self.locks.iter().flat_map(of).collect()
    }

    /// Every hold as LOCK.INFO shows it, as the model's rows.
    fn seen(&self, now: Timestamp) -> Vec<Row> {
        let mut rows = Vec::new();
        for (&(db, key), lock) in &self.locks {
            let Some(view) = View::of(lock, now) else { continue };
            assert_eq!(view.holders().count(), view.holding());
            for holder in view.holders() {
                assert_eq!(view.holder(holder.owner).unwrap().fence, holder.fence);
                rows.push(Row {
                    db,
                    key,
                    owner: holder.owner[0],
                    reads: holder.reads,
                    writes: holder.writes,
                    fence: holder.fence.get(),
                    deadline_us: lock.holds.get(holder.owner).unwrap().deadline.0,
                    note: holder.note.map(|note| note[0]),
                });
            }
        }
        rows.sort();
        rows
    }
}

pub(crate) fn limits(holders_per_key_max: usize) -> Limits {
    Limits {
        lease_default: Millis(30),
        lease_max: Millis(1_000_000),
        owner_bytes_max: 8,
        note_bytes_max: 8,
        holders_per_key_max,
        promotion_skew: SKEW,
    }
}

/// The three of them.
pub(crate) struct World {
    primary: Side,
    replica: Side,
    naive: Naive,
    now: Now,
}

impl World {
    pub(crate) fn new(holders_max: usize) -> World {
        World {
            primary: Side::new(limits(holders_max)),
            replica: Side::new(limits(holders_max)),
            naive: Naive::new(holders_max, SKEW.0 * 1000),
            now: Now { mono: Timestamp(5_000_000), wall: WallTime(1_000_000) },
        }
    }

    /// Does one thing in all three, and compares what they answer.
    pub(crate) fn step(&mut self, op: &Op) {
        let now = self.now;
        self.naive.settle(now.mono.0);
        match op {
            Op::Acquire { keys, owner, mode, lease, note } => {
                let ask = Acquire { mode: *mode, lease: Millis(*lease), note: note.map(|note| Note::new(&[note])) };
                let deadline = now.mono.0 + lease * 1000;
                let expected = self.naive.acquire((0, keys), *owner, *mode, deadline, *note, now.wall.0);
                self.serve(keys, *owner, Ask::Acquire(ask), &expected);
            }
            Op::Release { keys, owner, mode, amount, fence } => {
                let fence = self.named(*fence, keys[0], *owner);
                let ask = Release { mode: *mode, amount: *amount, fence };
                let expected = self.naive.release((0, keys), *owner, *mode, *amount, fence.map(Fence::get));
                self.serve(keys, *owner, Ask::Release(ask), &expected);
            }
            Op::Extend { keys, owner, lease, fence } => {
                let fence = self.named(*fence, keys[0], *owner);
                let ask = Extend { lease: Millis(*lease), fence };
                let expected = self.naive.extend((0, keys), *owner, now.mono.0 + lease * 1000, fence.map(Fence::get));
                self.serve(keys, *owner, Ask::Extend(ask), &expected);
            }
            Op::Pass { us } => {
                self.now.mono.0 += us;
                self.now.wall.0 += us;
            }
            Op::SetWall { us } => self.now.wall = WallTime(*us),
            Op::Alarm { most } => self.alarm(*most),
            Op::Delete { key } => {
                self.naive.delete(0, *key);
                self.primary.delete(0, *key);
                self.replica.delete(0, *key);
            }
            Op::Rename { from, to } => {
                if from == to {
                    return;
                }
                // The server renames a key whose holds are all over too, and its target goes. The naive model knows no
                // such keys, so they are settled first, by somebody who holds nothing.
                let ask = Release { mode: None, amount: Amount::One, fence: None };
                self.serve(&[*from, *to], b'n', Ask::Release(ask), &Answer::Released(vec![None, None]));
                self.naive.rename(0, *from, *to);
                self.primary.rename(0, *from, *to, now.mono);
                self.replica.rename(0, *from, *to, now.mono);
            }
            Op::Move { key } => {
                // As before a rename: a target that is over would be in the way.
                self.alarm(usize::MAX);
                if self.primary.locks.contains_key(&(1, *key)) {
                    return;
                }
                let ask = Release { mode: None, amount: Amount::One, fence: None };
                self.serve(&[*key], b'n', Ask::Release(ask), &Answer::Released(vec![None]));
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
            Op::Promote => {
                self.naive.promote(now.wall.0);
                self.primary.node.promote(now.wall);
            }
        }
    }

    fn named(&self, fence: Named, key: u8, owner: u8) -> Option<Fence> {
        let own = self.primary.locks.get(&(0, key)).and_then(|lock| lock.holds.get(&[owner])).map(|hold| hold.fence);
        match fence {
            Named::None => None,
            Named::Own => own,
            Named::Other => Fence::new(1),
        }
    }

    fn serve(&mut self, keys: &[u8], owner: u8, ask: Ask, expected: &Answer) {
        let request = Request { owner: Owner::new(&[owner]), ask };
        let (now, before) = (self.now, self.primary.raw());
        let step = self.primary.on(0, keys, |node, side| node.serve(side, &request, now));
        assert_eq!(answer_of(step.outcome), *expected, "{request:?}");
        if step.effects.is_empty() {
            assert_eq!(self.primary.raw(), before, "changed without an effect");
        } else if matches!(request.ask, Ask::Release(_)) {
            assert_ne!(self.primary.raw(), before, "an effect without a change");
        }
        self.tell(keys, &step.effects);
        for key in keys {
            let over = self.primary.locks.get(&(0, *key)).map_or(0, |lock| lock.holds.over(now.mono));
            assert_eq!(over, 0, "I5 on {key}");
        }
    }

    /// The replica learns what the effects say, and nothing else.
    fn tell(&mut self, keys: &[u8], effects: &[Change]) {
        self.tell_in(0, keys, effects);
    }

    fn tell_in(&mut self, db: u32, keys: &[u8], effects: &[Change]) {
        let now = self.now;
        for change in effects {
            let fact = match &change.hold {
                Some(hold) => Fact::of(&change.owner, hold, now),
                None => Fact {
                    owner: change.owner.clone(),
                    reads: 0,
                    writes: 0,
                    fence: Some(change.fence),
                    wall_deadline: WallTime(0),
                    left: Millis(0),
                    note: None,
                },
            };
            let key = keys[usize::from(change.key.0)];
            let (told, _) =
                self.replica.on(db, &[key], |node, side| node.apply(side, KeyIndex(0), &fact, Origin::Peer, now));
            assert_eq!(told, Ok(()));
            assert!(self.replica.node.last_fence() >= Some(change.fence), "a fence that the replica may give again");
        }
    }

    /// Works off all that is due, at most so many holds at a time.
    fn alarm(&mut self, most: usize) {
        let now = self.now;
        for _ in 0..100_000 {
            match self.primary.node.due(now.mono) {
                Due::Key(db, entry, name) => {
                    let key = name[0];
                    let effects = self
                        .primary
                        .on(db.0, &[key], |node, side| node.lapse(side, KeyIndex(0), entry, now.mono, most));
                    self.tell_in(db.0, &[key], &effects);
                }
                Due::Again => {}
                Due::Nothing => {
                    assert!(self.primary.node.next_look().is_none_or(|at| at > now.mono), "the alarm would spin");
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

    /// Compares all three, and looks at the invariants.
    pub(crate) fn check(&mut self) {
        let now = self.now.mono;
        self.naive.settle(now.0);
        let mut expected = self.naive.rows.clone();
        expected.sort();
        assert_eq!(self.primary.seen(now), expected, "primary and model");
        assert_eq!(self.primary.raw(), self.replica.raw(), "primary and replica");
        assert_eq!(self.primary.node.last_fence().map_or(0, Fence::get), self.naive.last_fence, "fence clocks");
        for side in [&self.primary, &self.replica] {
            assert_eq!(side.node.leases_len(), side.locks.len(), "one entry per lock, none left over");
            for (&(db, _), lock) in &side.locks {
                assert_eq!(lock.broken_invariant(), None);
                let (earliest, _) = lock.holds.earliest().expect("I6");
                assert!(side.node.covers(Db(db), lock, earliest), "I4");
            }
        }
    }
}

fn answer_of(outcome: Result<Outcome, Refusal>) -> Answer {
    match outcome {
        Ok(Outcome::Granted(fences)) => Answer::Granted(fences.into_iter().map(Fence::get).collect()),
        Ok(Outcome::Held) => Answer::Held,
        Ok(Outcome::Released(left)) => Answer::Released(left.into_vec()),
        Ok(Outcome::Extended(fences)) => Answer::Extended(fences.into_iter().map(|f| f.map(Fence::get)).collect()),
        Err(Refusal::TooManyHolders) => Answer::TooManyHolders,
        Err(Refusal::AmbiguousRelease) => Answer::Ambiguous,
        Err(other) => panic!("not in the model: {other:?}"),
    }
}
