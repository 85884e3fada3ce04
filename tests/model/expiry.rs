//! Times to live of keys that are waited for. The server deletes a key whose time is over when somebody opens it, and
//! says nothing before: so the core says when it is to be opened.

use crate::waiting::world;
use lock_core::model::hold::Mode::{Read, Write};
use lock_core::model::time::Millis;
use naive_model::world::{Op, World};

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

#[test]
fn a_time_to_live_that_comes_by_a_rename_in_a_grace_counts_after_it() {
    // What could go wrong: no queue is served in a grace, so nobody looks at the key that has come.
    let mut world = world();
    world.holds(b'a', Write, b"l");
    world.then(&Op::Grace { ms: 10 });
    world.waits(b'b', Write, b"j");
    world.then(&Op::Expire { key: b'l', ms: Some(30) });
    world.then(&Op::Rename { from: b'l', to: b'j' });
    world.pass(20);
    assert_eq!(world.at(b'j'), (vec![b'a'], vec![b'b']));
    world.pass(10);
    assert_eq!(world.at(b'j'), (vec![b'b'], vec![]));
}
