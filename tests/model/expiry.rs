//! Times to live of keys that are waited for. The server deletes a key whose time is over when somebody opens it, and
//! says nothing before: so the core says when it is to be opened.

use crate::waiting::world;
use lock_core::model::time::Millis;
use naive_model::world::World;

/// A world in which one owner holds a key and others wait for it, and perhaps for more.
fn crowd() -> World {
    let mut world = world();
    world.play("a writes j. b waits to write j. c waits to read kj.");
    world
}

#[test]
fn the_first_waiter_has_the_lock_when_its_time_to_live_is_over() {
    // What could go wrong: nobody opens the key, and all wait for a lock that nobody holds.
    let mut world = crowd();
    world.play("j expires in 30 ms. 29 ms. j: a/bc. 1 ms. j: b/c.");
    assert_eq!(world.primary.manager.next_expiry(), None);
}

#[test]
fn a_time_to_live_from_before_the_wait_counts_as_well() {
    // What could go wrong: only an EXPIRE is heard, not what the key has already when a request begins to wait.
    let mut world = world();
    world.play("a writes j. j expires in 30 ms.");
    assert_eq!(world.primary.manager.next_expiry(), None, "nobody waits for it");
    world.play("c waits to write kj. 30 ms. j: c/-.");
}

#[test]
fn a_time_to_live_that_is_moved_or_taken_away_is_followed() {
    // What could go wrong: the lock is looked at once, when its first time to live would have been over, or it ends
    // then.
    crowd().play(
        "j expires in 30 ms. j expires in 50 ms. 40 ms. j: a/bc. j expires in 30 ms. j expires in 5 ms. \
         j expires never. 60 ms. j: a/bc. j expires in 7 ms. 7 ms. j: b/c.",
    );
}

#[test]
fn a_lock_that_comes_with_a_time_to_live_is_noted_by_the_queue_to_which_it_comes() {
    // What could go wrong: RENAME, MOVE or SWAPDB brings it to waiters that were blocked by another lock.
    world().play("a writes k. x writes j. b waits to write k. j expires in 30 ms. j becomes k. k: x/b. 30 ms. k: b/-.");
}

#[test]
fn what_is_noted_goes_with_its_queue() {
    // What could go wrong: clients fill the memory with keys that expire in years and that nobody waits for any more.
    let mut world = crowd();
    world.play("j expires in 1000000 ms. waiter 0 is cancelled.");
    assert!(world.primary.manager.next_expiry().is_some());
    world.play("waiter 0 is cancelled.");
    assert_eq!(world.primary.manager.next_expiry(), None);
    assert_eq!(world.primary.manager.next_deadline().map(|at| at > world.now.mono + Millis(10)), Some(true));
}

#[test]
fn a_time_to_live_that_comes_by_a_rename_in_a_grace_counts_after_it() {
    // What could go wrong: no queue is served in a grace, so nobody looks at the key that has come.
    world().play(
        "a writes l. grace of 10 ms. b waits to write j. l expires in 30 ms. l becomes j. 20 ms. j: a/b. 10 ms. \
         j: b/-.",
    );
}
