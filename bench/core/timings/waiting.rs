//! What waiting costs where many wait.

use criterion::{BatchSize, Criterion};
use lock_core::model::hold::Mode;
use lock_core::model::request::{Refusal, Wait};
use lock_core::model::time::Timestamp;
use std::cell::RefCell;
use std::hint::black_box;
use world::crowd::{Crowd, names};
use world::{OWNER, acquire_or, release};

/// One key with one holder, and so many waiters in its queue.
fn in_line(waiters: u64) -> Crowd {
    let mut crowd = Crowd::new();
    crowd.hold(OWNER, &names("key", 1));
    for n in 0..waiters {
        crowd.wait(&format!("waiter-{n:029}"), Mode::Write, &names("key", 1));
    }
    crowd
}

/// Owners that wait each for the next one's key.
fn chain(owners: usize) -> Crowd {
    let mut crowd = Crowd::new();
    let keys = names("key", owners);
    for n in 0..owners {
        crowd.hold(&format!("owner-{n}"), &keys[n..=n]);
    }
    for n in 0..owners - 1 {
        crowd.wait(&format!("owner-{n}"), Mode::Write, &keys[n + 1..n + 2]);
    }
    crowd
}

pub(crate) fn waiting(c: &mut Criterion) {
    let crowd = RefCell::new(in_line(10_000));
    c.bench_function("cancel of the last of 10000 waiters", |b| {
        let queue = || crowd.borrow_mut().wait("the last", Mode::Write, &names("key", 1));
        b.iter_batched(
            queue,
            |waiter| crowd.borrow_mut().manager.cancel(black_box(waiter), Timestamp(0)),
            BatchSize::PerIteration,
        );
    });
    let crowd = RefCell::new(in_line(10_000));
    c.bench_function("RELEASE before 10000 waiters, with the hand-off", |b| {
        // Finds the next holder, and fills the queue up.
        let next = || {
            let mut crowd = crowd.borrow_mut();
            let lock = crowd.keys.locks.values().next().unwrap();
            let holder = String::from_utf8(lock.holds.any().unwrap().0.as_bytes().to_vec()).unwrap();
            if holder != OWNER {
                let number = crowd.manager.last_fence().unwrap().get();
                crowd.wait(&format!("waiter-{number:029}"), Mode::Write, &names("key", 1));
            }
            release(&holder)
        };
        let give_back = |give| {
            let mut crowd = crowd.borrow_mut();
            let (outcome, effects) = crowd.serve(&names("key", 1), &give);
            effects.wait_ends.iter().for_each(|(waiter, _)| crowd.manager.delivered(*waiter));
            outcome
        };
        b.iter_batched(next, give_back, BatchSize::PerIteration);
    });
    let crowd = RefCell::new(chain(1_000));
    c.bench_function("DEADLOCK found along a chain of 1000 owners", |b| {
        let ask = acquire_or("owner-999", Mode::Write, Wait::Forever);
        let first = names("key", 1);
        b.iter(|| assert!(matches!(crowd.borrow_mut().serve(&first, &ask).0, Err(Refusal::Deadlock(_)))));
    });
    let mut slow = c.benchmark_group("line");
    slow.sample_size(10);
    slow.bench_function("10000 waiters, one after the other", |b| b.iter(|| in_line(10_000)));
    slow.finish();
}
