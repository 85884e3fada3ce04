//! Every history of five steps of two owners on two keys.

use crate::queue::Rules;
use crate::world::{Named, Op, RULES, World};
use redis_lock::lock::model::hold::Mode;
use redis_lock::lock::model::request::{Amount, Wait};
use redis_lock::lock::model::time::Millis;

const STEPS: u32 = 5;

/// What can happen at each step: every operation by every owner on every key, and time.
fn ops() -> Vec<Op> {
    // A lease that one passing of time ends, and one that it does not.
    let mut ops = vec![Op::Pass { us: 10_000 }];
    for key in [b'j', b'k'] {
        for owner in [b'a', b'b'] {
            let keys = vec![key];
            for (mode, lease) in [(Mode::Read, 10), (Mode::Write, 15)] {
                ops.push(Op::Acquire {
                    db: 0,
                    keys: keys.clone(),
                    owner,
                    mode,
                    lease,
                    note: None,
                    wait: Wait::Never,
                    retry: None,
                    session: None,
                    queue: None,
                    share: None,
                });
                let release = Op::Release {
                    db: 0,
                    keys: keys.clone(),
                    owner,
                    mode: Some(mode),
                    amount: Amount::One,
                    fence: Named::None,
                };
                ops.push(release);
            }
            ops.push(Op::Extend { keys, owner, lease: 25, fence: Named::None, session: None, note: None });
        }
    }
    ops
}

/// What two owners that wait can do, on two keys of which one may be requested with the other.
fn ops_with_waiting() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Lose { nth: 0 }];
    for owner in *b"abc" {
        for (keys, mode) in [(&b"j"[..], Mode::Read), (b"j", Mode::Write), (b"k", Mode::Write), (b"jk", Mode::Write)] {
            // One key waits for a limited time, which passes with one passing of time or not; one without.
            let wait = if keys == b"k" { Wait::For(Millis(15)) } else { Wait::Forever };
            let (keys, retry) = (keys.to_vec(), None);
            ops.push(Op::Acquire {
                db: 0,
                keys,
                owner,
                mode,
                lease: 15,
                note: None,
                wait,
                retry,
                session: None,
                queue: None,
                share: None,
            });
        }
        let (mode, amount, fence) = (None, Amount::All, Named::None);
        ops.push(Op::Release { db: 0, keys: b"jk".to_vec(), owner, mode, amount, fence });
    }
    ops
}

/// What two owners can do whose holds end with their connections: on one key, or with a second key as well.
fn ops_with_sessions() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Break { key: b'j', owner: None }];
    for client in 0..2 {
        for late in [false, true] {
            ops.push(Op::Close { client, late });
        }
    }
    for owner in *b"ab" {
        let acquire = |keys: &[u8], mode, session| {
            let (keys, wait) = (keys.to_vec(), Wait::Forever);
            Op::Acquire {
                db: 0,
                keys,
                owner,
                mode,
                lease: 15,
                note: None,
                wait,
                retry: None,
                session,
                queue: None,
                share: None,
            }
        };
        // One outlives its connection by less than a passing of time, and the other ends with it.
        ops.push(acquire(b"j", Mode::Write, Some((0, 0))));
        ops.push(acquire(b"j", Mode::Read, Some((1, 5))));
        ops.push(acquire(b"jk", Mode::Write, Some((1, 0))));
        let (keys, session) = (b"jk".to_vec(), Some((0, 5)));
        ops.push(Op::Extend { keys, owner, lease: 25, fence: Named::None, session, note: None });
        let (mode, fence) = (None, Named::None);
        ops.push(Op::Release { db: 0, keys: b"jk".to_vec(), owner, mode, amount: Amount::All, fence });
    }
    ops.extend(b"ab".map(|owner| Op::Guard { db: 0, key: b'j', owner, fence: Named::Own }));
    ops
}

/// What three owners can do on two keys, of which one is held for reading while both are requested.
fn ops_with_upgrades() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }];
    for owner in *b"abc" {
        for (keys, mode) in [(&b"j"[..], Mode::Read), (b"k", Mode::Write), (b"jk", Mode::Read), (b"jk", Mode::Write)] {
            let (keys, wait) = (keys.to_vec(), Wait::Forever);
            let (lease, note, retry, session) = (25, None, None, None);
            ops.push(Op::Acquire {
                db: 0,
                keys,
                owner,
                mode,
                lease,
                note,
                wait,
                retry,
                session,
                queue: None,
                share: None,
            });
        }
        let (mode, amount, fence) = (None, Amount::All, Named::None);
        ops.push(Op::Release { db: 0, keys: b"jk".to_vec(), owner, mode, amount, fence });
    }
    ops
}

/// What two owners can do whose places outlive their requests, beside one that holds: on one key, or with a second.
fn ops_with_places() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Lose { nth: 0 }, Op::Delete { key: b'j' }];
    let acquire = |owner, keys: &[u8], wait, queue| {
        let (keys, mode, lease, note, retry, session) = (keys.to_vec(), Mode::Write, 25, None, None, None);
        Op::Acquire { db: 0, keys, owner, mode, lease, note, wait, retry, session, queue, share: None }
    };
    for owner in *b"ab" {
        // A place ends with one passing of time, or outlives it.
        ops.push(acquire(owner, b"j", Wait::Never, Some(15)));
        ops.push(acquire(owner, b"j", Wait::For(Millis(5)), Some(8)));
        ops.push(acquire(owner, b"jk", Wait::Never, Some(15)));
        ops.push(acquire(owner, b"j", Wait::Forever, None));
    }
    ops.push(acquire(b'c', b"j", Wait::Never, None));
    for owner in *b"abc" {
        let (mode, amount, fence) = (None, Amount::All, Named::None);
        ops.push(Op::Release { db: 0, keys: b"j".to_vec(), owner, mode, amount, fence });
    }
    // As the owner of an offer would, whose fence LOCK.INFO shows.
    ops.push(Op::Guard { db: 0, key: b'j', owner: b'a', fence: Named::Own });
    ops
}

/// What two owners can do around a grace of which one passing of time is half: one holds when it begins, and both ask,
/// with a place or a client, for one key or two.
fn ops_with_grace() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }, Op::Late { us: 10_000 }, Op::SetGrace { ms: 0 }];
    let acquire = |owner, keys: &[u8], mode, wait, queue| {
        let (keys, lease, note, retry, session) = (keys.to_vec(), 25, None, None, None);
        Op::Acquire { db: 0, keys, owner, mode, lease, note, wait, retry, session, queue, share: None }
    };
    for owner in *b"ab" {
        ops.push(acquire(owner, b"j", Mode::Read, Wait::Never, None));
        ops.push(acquire(owner, b"j", Mode::Write, Wait::Forever, None));
        // Its time is up within the grace, with it, or after it.
        ops.push(acquire(owner, b"jk", Mode::Read, Wait::For(Millis(20)), None));
        ops.push(acquire(owner, b"j", Mode::Write, Wait::Never, Some(15)));
        ops.push(acquire(owner, b"k", Mode::Write, Wait::For(Millis(5)), Some(30)));
    }
    let (mode, amount, fence) = (None, Amount::All, Named::None);
    ops.push(Op::Release { db: 0, keys: b"jk".to_vec(), owner: b'a', mode, amount, fence });
    ops
}

/// What three owners can do that share one key, with a client that waits, with a place, or without either.
fn ops_with_shares() -> Vec<Op> {
    let mut ops = vec![Op::Pass { us: 10_000 }];
    let acquire = |owner, mode, share, wait, queue| {
        let (keys, lease, note, retry, session) = (b"j".to_vec(), 25, None, None, None);
        Op::Acquire { db: 0, keys, owner, mode, lease, note, wait, retry, session, queue, share }
    };
    let shares = |owner, share, wait, queue| acquire(owner, Mode::Read, Some(share), wait, queue);
    for owner in *b"ab" {
        ops.push(shares(owner, (3, 2), Wait::Forever, None));
        // A place ends with one passing of time, or outlives it. Its limit becomes another one.
        ops.push(shares(owner, (2, 1), Wait::Never, Some(15)));
        ops.push(shares(owner, (1, 1), Wait::For(Millis(5)), Some(8)));
        let (mode, amount, fence) = (None, Amount::One, Named::None);
        ops.push(Op::Release { db: 0, keys: b"j".to_vec(), owner, mode, amount, fence });
    }
    ops.push(acquire(b'b', Mode::Write, None, Wait::Forever, None));
    ops.push(shares(b'c', (2, 2), Wait::Forever, None));
    ops.push(acquire(b'c', Mode::Read, None, Wait::Forever, None));
    let (mode, amount, fence) = (None, Amount::To(1), Named::None);
    ops.push(Op::Release { db: 0, keys: b"j".to_vec(), owner: b'c', mode, amount, fence });
    ops
}

#[test]
fn every_history_of_six_steps_with_shares_agrees_with_the_model() {
    // What could go wrong: as below, of how many reads there are, whose limit counts, and who is first in line.
    let ops = ops_with_shares();
    let (count, mut histories) = (ops.len(), 0u64);
    for number in 0..count.pow(STEPS) {
        // Owner c begins, and has all shares.
        let mut world = World::new(RULES);
        world.step(&ops[10]);
        for digit in (0..STEPS).map(|step| number / count.pow(step) % count) {
            world.step(&ops[digit]);
        }
        world.check();
        histories += 1;
    }
    assert!(histories > 370_000, "{histories}");
}

#[test]
fn every_history_of_five_steps_in_a_grace_agrees_with_the_model() {
    // What could go wrong: as below, where nothing is granted for a while, also to holders.
    let ops = ops_with_grace();
    let (count, mut histories) = (ops.len(), 0u64);
    for number in 0..count.pow(STEPS - 1) {
        // Owner a has the key for reading, or for writing, or nobody has.
        for held in [Some(Mode::Read), Some(Mode::Write), None] {
            let mut world = World::new(Rules { reserve_us: 10_000, ..RULES });
            if let Some(mode) = held {
                let (keys, wait, session, queue) = (b"j".to_vec(), Wait::Never, None, None);
                let (owner, lease, note, retry) = (b'a', 35, None, None);
                world.step(&Op::Acquire {
                    db: 0,
                    keys,
                    owner,
                    mode,
                    lease,
                    note,
                    wait,
                    retry,
                    session,
                    queue,
                    share: None,
                });
            }
            world.step(&Op::Grace { ms: 20 });
            for digit in (0..STEPS - 1).map(|step| number / count.pow(step) % count) {
                world.step(&ops[digit]);
            }
            world.check();
            histories += 1;
        }
    }
    assert!(histories > 110_000, "{histories}");
}

#[test]
fn every_history_of_six_steps_with_places_agrees_with_the_model() {
    // What could go wrong: as below, about requests that come again, late or never, and grants that lie there for them.
    let ops = ops_with_places();
    let (count, mut histories) = (ops.len(), 0u64);
    for number in 0..count.pow(STEPS) {
        // Owner c begins, and has the key.
        let mut world = World::new(Rules { reserve_us: 10_000, ..RULES });
        world.step(&ops[11]);
        for digit in (0..STEPS).map(|step| number / count.pow(step) % count) {
            world.step(&ops[digit]);
        }
        world.check();
        histories += 1;
    }
    assert!(histories > 700_000, "{histories}");
}

#[test]
fn every_history_of_five_steps_with_upgrades_agrees_with_the_model() {
    // What could go wrong: as below, where one stands first at one key and last at another.
    let ops = ops_with_upgrades();
    let count = ops.len();
    let (first, mut histories) = ([1, 2], 0u64);
    for detects in [true, false] {
        for number in 0..count.pow(STEPS - 1) {
            for before in first {
                // Owner a begins, and has a key.
                let mut world = World::new(Rules { reserve_us: 10_000, detects, ..RULES });
                world.step(&ops[before]);
                for digit in (0..STEPS - 1).map(|step| number / count.pow(step) % count) {
                    world.step(&ops[digit]);
                }
                world.check();
                histories += 1;
            }
        }
    }
    assert!(histories > 260_000, "{histories}");
}

#[test]
fn every_history_of_five_steps_with_sessions_agrees_with_the_model() {
    // What could go wrong: as below, of what is bound to which connection when that closes.
    let ops = ops_with_sessions();
    let count = ops.len();
    let mut histories = 0u64;
    for number in 0..count.pow(STEPS) {
        // The first to do something is owner a, and asks.
        if !(6..9).contains(&(number % count)) {
            continue;
        }
        let mut world = World::new(Rules { reserve_us: 10_000, ..RULES });
        for digit in (0..STEPS).map(|step| number / count.pow(step) % count) {
            world.step(&ops[digit]);
        }
        world.check();
        histories += 1;
    }
    assert!(histories > 190_000, "{histories}");
}

#[test]
fn every_history_of_five_steps_with_waiting_agrees_with_the_model() {
    // What could go wrong: as below, about the waiters and their grants.
    let ops = ops_with_waiting();
    let count = ops.len();
    let mut histories = 0u64;
    for number in 0..count.pow(STEPS) {
        let digits = (0..STEPS).map(|step| number / count.pow(step) % count);
        // Names do not matter: the first to do something is owner a, and before that nothing can happen.
        if !(2..7).contains(&(number % count)) {
            continue;
        }
        let mut world = World::new(Rules { reserve_us: 10_000, ..RULES });
        for digit in digits {
            world.step(&ops[digit]);
        }
        world.check();
        histories += 1;
    }
    assert!(histories > 400_000, "{histories}");
}

#[test]
fn every_history_of_four_steps_agrees_with_the_model_where_a_step_does_little() {
    // What could go wrong: as below, and what is left of a queue is forgotten, or served out of order.
    let mut histories = 0u64;
    for (ops, before) in
        [(ops_with_waiting(), 4), (ops_with_places(), 11), (ops_with_shares(), 10), (ops_with_upgrades(), 1)]
    {
        let count = ops.len();
        for number in 0..count.pow(STEPS - 1) {
            let mut world = World::new(Rules { reserve_us: 10_000, small_steps: true, ..RULES });
            world.step(&ops[before]);
            for digit in (0..STEPS - 1).map(|step| number / count.pow(step) % count) {
                world.step(&ops[digit]);
            }
            world.check();
            histories += 1;
        }
    }
    assert!(histories > 200_000, "{histories}");
}

#[test]
fn every_history_of_five_steps_agrees_with_the_model() {
    // What could go wrong: a combination that random histories are unlikely to meet.
    let ops = ops();
    let count = ops.len();
    let mut histories = 0u64;
    for number in 0..count.pow(STEPS) {
        let digits = (0..STEPS).map(|step| number / count.pow(step) % count);
        // Names do not matter: the first to ask is owner a, on key j.
        let first = digits.clone().find(|digit| *digit > 0).unwrap_or(1);
        if first > 5 {
            continue;
        }
        let mut world = World::new(Rules { holders_max: 2, ..RULES });
        for digit in digits {
            world.step(&ops[digit]);
        }
        world.check();
        histories += 1;
    }
    assert!(histories > 1_000_000, "{histories}");
}
