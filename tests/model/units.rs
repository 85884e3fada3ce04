//! One time for one unit, case by case: all commands of a transaction or a script are judged by the time of the first.

use crate::waiting::world;
use lock_core::model::hold::Mode::{self, Read, Write};
use lock_core::model::request::Amount;
use naive_model::play::LONG;
use naive_model::words::Answer;
use naive_model::world::{Named, Op, acquire, release};

fn asks(owner: u8, mode: Mode, keys: &[u8], lease: u64) -> Op {
    acquire(owner, mode, keys).lease(lease)
}

fn extends(owner: u8, lease: u64) -> Op {
    Op::Extend { keys: b"k".to_vec(), owner, lease, fence: Named::Own, session: None, note: None }
}

fn releases(owner: u8) -> Op {
    release(owner, b"k", Amount::All)
}

fn pass(ms: u64) -> Op {
    Op::Pass { us: ms * 1000 }
}

#[test]
fn a_hold_that_is_over_within_a_unit_is_there_for_all_of_it() {
    // The check after each command compares what LOCK.INFO and LOCK.CHECK see as well.
    let guards = Op::Guard { db: 0, key: b'k', owner: b'a', fence: Named::Own };
    for (command, expected) in [
        (asks(b'b', Write, b"k", LONG), Answer::Unavailable),
        (asks(b'a', Write, b"k", LONG), Answer::Granted(vec![1_007_001])),
        (extends(b'a', 5), Answer::Extended(vec![Some(1_007_001)])),
        (guards, Answer::Guarded(Some(1_007_001))),
        (releases(b'a'), Answer::Released(vec![Some(0)])),
    ] {
        let mut world = world();
        let taken = asks(b'a', Write, b"k", 5);
        assert_eq!(world.runs(&[taken, pass(20), command]), expected);
    }
}

#[test]
fn a_hold_that_was_over_before_a_unit_is_there_for_none_of_it() {
    let mut world = world();
    world.then(&asks(b'a', Write, b"k", 5));
    world.play("5 ms unnoticed.");
    assert_eq!(world.runs(&[extends(b'a', 5), pass(20), extends(b'a', 5)]), Answer::Extended(vec![None]));
}

#[test]
fn what_is_granted_or_extended_late_in_a_unit_has_its_whole_lease_from_then_on() {
    let mut world = world();
    world.then(&asks(b'a', Write, b"k", 50));
    world.runs(&[releases(b'n'), pass(100), extends(b'a', 30), asks(b'b', Write, b"j", 30)]);
    world.play("29 ms.");
    assert_eq!((world.at(b'k').0, world.at(b'j').0), (vec![b'a'], vec![b'b']));
    world.play("1 ms.");
    assert_eq!((world.at(b'k').0, world.at(b'j').0), (vec![], vec![]));
}

#[test]
fn a_holder_by_the_time_of_its_unit_goes_before_a_waiter_that_it_keeps_waiting() {
    // What could go wrong: whether a waiter delays the request is judged by the present. There the hold is over for
    // which the waiter waits.
    let mut world = world();
    world.play("h writes l.");
    world.then(&asks(b'a', Write, b"k", 5));
    world.play("w waits to write ljk.");
    let commands = [asks(b'b', Write, b"k", LONG), pass(10), asks(b'a', Write, b"j", LONG)];
    assert!(matches!(world.runs(&commands), Answer::Granted(_)));
}

#[test]
fn a_grace_that_ends_within_a_unit_goes_on_for_all_of_it() {
    let mut world = world();
    world.play("grace of 10 ms.");
    let asked = asks(b'a', Read, b"k", LONG);
    assert_eq!(world.runs(&[asked.clone(), pass(20), asked.clone()]), Answer::Grace);
    assert!(matches!(world.runs(&[asked]), Answer::Granted(_)));
}

#[test]
fn a_break_of_a_lock_that_was_renamed_in_the_same_unit_opens_no_reservation() {
    // What could go wrong: the key was free and reserved before the lock came, and the reservation is still known. To
    // break the lock is not to open the reservation, and no request may pass the waiter that it was for.
    let mut world = world();
    world.then(&asks(b'd', Write, b"kl", LONG));
    world.play("a waits to write jk.");
    let renamed = Op::Rename { from: b'l', to: b'j' };
    let broken = |key| Op::Break { key, owner: None };
    let polled = || acquire(b'b', Read, b"j").queue(Some(50));
    assert_eq!(world.runs(&[renamed, broken(b'l'), broken(b'j'), polled(), polled()]), Answer::Unavailable);
}

#[test]
fn a_lock_that_comes_and_lapses_within_a_unit_ends_the_reservation_that_was_there_before() {
    // What could go wrong: the time of the old reservation is up when the lock lapses, and another waiter passes.
    let mut world = world();
    world.then(&asks(b'd', Write, b"jk", 2));
    world.play("a waits to read jk. j becomes l. e waits to write j.");
    let extended =
        Op::Extend { keys: b"k".to_vec(), owner: b'd', lease: 50, fence: Named::None, session: None, note: None };
    world.then(&Op::Unit { commands: vec![Op::Rename { from: b'l', to: b'j' }, pass(94), extended] });
    world.play("j: -/ae.");
}
