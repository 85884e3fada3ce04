//! Times to live of keys that are waited for. The server deletes a key whose time is over when somebody opens it, and
//! says nothing before: so the core says when it is to be opened.

use crate::waiting::world;
use crate::world::{Op, World, name};
use redis_lock::lock::model::hold::Mode::{Read, Write};
use redis_lock::lock::model::key::Db;
use redis_lock::lock::model::time::{Millis, WallTime};

impl World {
    /// A client gives a lock a time to live, or takes it away.
    pub(crate) fn set_expiry(&mut self, key: u8, ms: Option<u64>) {
        let at = (0, key);
        if !self.primary.locks.contains_key(&at) {
            return;
        }
        let Some(ms) = ms else {
            self.primary.expires.remove(&at);
            return;
        };
        let end = WallTime(self.now.wall.0 + ms * 1000);
        self.primary.expires.insert(at, end);
        self.primary.manager.set_expiry(Db(0), name(key), end);
    }

    /// The background opens the keys that are due, which the server deletes if they have expired.
    pub(crate) fn open_due(&mut self) {
        while let Some((Db(db), name)) = self.primary.manager.due_expiry(self.now.wall) {
            let at = (db, name[0]);
            if self.has_expired(at) {
                self.delete_expired(at);
            }
            let end = self.primary.expires.get(&at).copied();
            self.primary.manager.see_expiry(Db(db), &name, end);
        }
    }

    /// Somebody opens all keys, as the commands that come next might.
    pub(crate) fn open_all(&mut self) {
        let over: Vec<(u32, u8)> = self.primary.expires.keys().copied().filter(|at| self.has_expired(*at)).collect();
        over.into_iter().for_each(|at| self.delete_expired(at));
    }

    fn has_expired(&self, at: (u32, u8)) -> bool {
        self.primary.expires.get(&at).is_some_and(|end| *end <= self.now.wall)
    }

    fn delete_expired(&mut self, (db, key): (u32, u8)) {
        self.naive.delete(db, key);
        self.primary.delete(db, key);
        self.replica.delete(db, key);
    }

    /// W6: each key that is waited for and has a time to live is noted, by its end at the latest.
    pub(crate) fn check_expiries(&self) {
        for (&(db, key), end) in &self.primary.expires {
            if self.naive.queue(db, key).is_empty() {
                continue;
            }
            let first = self.primary.manager.next_expiry();
            assert!(first.is_some_and(|first| first <= *end), "W6: {key} expires at {end:?}, noted is {first:?}");
            assert!(*end > self.now.wall, "{key} has expired, and nobody has opened it");
        }
    }
}

fn expires(world: &mut World, ms: u64) {
    world.then(&Op::Expire { key: b'j', ms: Some(ms) });
}

/// A world in which one owner holds a key and others wait for it, and perhaps for more.
fn crowd() -> World {
    let mut world = world();
    world.holds(b'a', Write, b"j");
    world.waits(b'b', Write, b"j");
    world.waits(b'c', Read, b"kj");
    world
}

#[test]
fn the_first_waiter_has_the_lock_when_its_time_to_live_is_over() {
    // What could go wrong: nobody opens the key, and all wait for a lock that nobody holds.
    let mut world = crowd();
    expires(&mut world, 30);
    world.pass(29);
    assert_eq!(world.at(b'j'), (vec![b'a'], vec![b'b', b'c']));
    world.pass(1);
    assert_eq!(world.at(b'j'), (vec![b'b'], vec![b'c']));
    assert_eq!(world.primary.manager.next_expiry(), None);
}

#[test]
fn a_time_to_live_from_before_the_wait_counts_as_well() {
    // What could go wrong: only an EXPIRE is heard, not what the key has already when a request begins to wait.
    let mut world = world();
    world.holds(b'a', Write, b"j");
    expires(&mut world, 30);
    assert_eq!(world.primary.manager.next_expiry(), None, "nobody waits for it");
    world.waits(b'c', Write, b"kj");
    world.pass(30);
    assert_eq!(world.at(b'j'), (vec![b'c'], vec![]));
}

#[test]
fn a_time_to_live_that_is_moved_or_taken_away_is_followed() {
    // What could go wrong: the lock is looked at once, when its first time to live would have been over, or it ends
    // then.
    let mut world = crowd();
    expires(&mut world, 30);
    expires(&mut world, 50);
    world.pass(40);
    assert_eq!(world.at(b'j').0, b"a");
    expires(&mut world, 30);
    expires(&mut world, 5);
    world.then(&Op::Expire { key: b'j', ms: None });
    world.pass(60);
    assert_eq!(world.at(b'j').0, b"a");
    expires(&mut world, 7);
    world.pass(7);
    assert_eq!(world.at(b'j').0, b"b");
}

#[test]
fn a_lock_that_comes_with_a_time_to_live_is_noted_by_the_queue_to_which_it_comes() {
    // What could go wrong: RENAME, MOVE or SWAPDB brings it to waiters that were blocked by another lock.
    let mut world = world();
    world.holds(b'a', Write, b"k");
    world.holds(b'x', Write, b"j");
    world.waits(b'b', Write, b"k");
    expires(&mut world, 30);
    world.then(&Op::Rename { from: b'j', to: b'k' });
    assert_eq!(world.at(b'k'), (vec![b'x'], vec![b'b']));
    world.pass(30);
    assert_eq!(world.at(b'k'), (vec![b'b'], vec![]));
}

#[test]
fn what_is_noted_goes_with_its_queue() {
    // What could go wrong: clients fill the memory with keys that expire in years and that nobody waits for any more.
    let mut world = crowd();
    expires(&mut world, 1_000_000);
    world.then(&Op::Cancel { nth: 0 });
    assert!(world.primary.manager.next_expiry().is_some());
    world.then(&Op::Cancel { nth: 0 });
    assert_eq!(world.primary.manager.next_expiry(), None);
    assert_eq!(world.primary.manager.next_deadline().map(|at| at > world.now.mono + Millis(10)), Some(true));
}
