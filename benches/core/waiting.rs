//! What waiting costs where many wait.

use crate::world::{LIMITS, OWNER, acquire, acquire_or, release};
use criterion::{BatchSize, Criterion};
use redis_lock::lock::change::Effects;
use redis_lock::lock::hold::Mode;
use redis_lock::lock::key::{Db, KeyIndex, KeyName};
use redis_lock::lock::keyspace::{Keyspace, Place};
use redis_lock::lock::node::Node;
use redis_lock::lock::request::{Answer, Outcome, Refusal, Request, Wait};
use redis_lock::lock::room::WaiterId;
use redis_lock::lock::time::{Millis, Now, Timestamp, WallTime};
use redis_lock::lock::value::Lock;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;

/// A keyspace of any number of keys, of which a step names one.
#[derive(Default)]
struct Keys {
    locks: HashMap<KeyName, Lock>,
    step: Vec<KeyName>,
}

impl Keyspace for Keys {
    fn count(&self) -> u16 {
        self.step.len() as u16
    }

    fn place(&mut self, key: KeyIndex) -> Place<'_> {
        let name = &self.step[usize::from(key.0)];
        Place { db: Db(0), name, lock: self.locks.get_mut(name) }
    }

    fn open(&mut self, name: &[u8]) -> Result<KeyIndex, Answer> {
        let at = self.step.iter().position(|open| **open == *name).unwrap_or_else(|| {
            self.step.push(KeyName::from_slice(name));
            self.step.len() - 1
        });
        Ok(KeyIndex(at as u16))
    }

    fn close(&mut self, left: u16) {
        self.step.truncate(usize::from(left));
    }

    fn peek<R>(&mut self, _: Db, name: &[u8], look: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.locks.get(name).map(look)
    }

    fn create(&mut self, key: KeyIndex) -> &mut Lock {
        self.locks.entry(self.step[usize::from(key.0)].clone()).or_default()
    }
}

/// A node on which many wait.
struct Crowd {
    node: Node,
    keys: Keys,
}

const NOW: Now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };

impl Crowd {
    fn new() -> Crowd {
        Crowd { node: Node::new(LIMITS), keys: Keys::default() }
    }

    /// One key, held by one, with so many in its line.
    fn in_line(waiters: u64) -> Crowd {
        let mut crowd = Crowd::new();
        drop(crowd.serve("key", &acquire(OWNER, Mode::Write)));
        for n in 0..waiters {
            crowd.wait("key", &format!("waiter-{n:029}"));
        }
        crowd
    }

    /// Owners who wait each for the next one's key.
    fn chain(owners: u64) -> Crowd {
        let mut crowd = Crowd::new();
        for n in 0..owners {
            drop(crowd.serve(&format!("key-{n}"), &acquire(&format!("owner-{n}"), Mode::Write)));
        }
        for n in 0..owners - 1 {
            crowd.wait(&format!("key-{}", n + 1), &format!("owner-{n}"));
        }
        crowd
    }

    fn serve(&mut self, key: &str, request: &Request) -> Result<Outcome, Refusal> {
        self.keys.step = vec![KeyName::from_slice(key.as_bytes())];
        let mut effects = Effects::new();
        let outcome = self.node.serve(&mut self.keys, request, NOW, &mut effects);
        for (waiter, _) in &effects.answers {
            self.node.delivered(*waiter);
        }
        outcome
    }

    fn wait(&mut self, key: &str, owner: &str) -> WaiterId {
        match self.serve(key, &acquire_or(owner, Mode::Write, Wait::For(Millis(60_000)))) {
            Ok(Outcome::Queued(waiter)) => waiter,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn waiting(c: &mut Criterion) {
    let crowd = RefCell::new(Crowd::in_line(10_000));
    c.bench_function("cancel of the last of 10000 waiters", |b| {
        let queue = || crowd.borrow_mut().wait("key", "the last");
        b.iter_batched(queue, |waiter| crowd.borrow_mut().node.cancel(black_box(waiter)), BatchSize::PerIteration);
    });
    let crowd = RefCell::new(Crowd::in_line(10_000));
    c.bench_function("RELEASE before 10000 waiters, with the hand-off", |b| {
        // Who holds it next is asked for, and the line is filled up.
        let next = || {
            let mut crowd = crowd.borrow_mut();
            let lock = &crowd.keys.locks[&KeyName::from_slice(b"key")];
            let holder = String::from_utf8(lock.holds.any().unwrap().0.as_bytes().to_vec()).unwrap();
            if holder != OWNER {
                let number = crowd.node.last_fence().unwrap().get();
                crowd.wait("key", &format!("waiter-{number:029}"));
            }
            release(&holder)
        };
        b.iter_batched(next, |give| crowd.borrow_mut().serve("key", &give), BatchSize::PerIteration);
    });
    let crowd = RefCell::new(Crowd::chain(1_000));
    c.bench_function("DEADLOCK found along a chain of 1000 owners", |b| {
        let ask = acquire_or("owner-999", Mode::Write, Wait::Forever);
        b.iter(|| assert!(matches!(crowd.borrow_mut().serve("key-0", &ask), Err(Refusal::Deadlock(_)))));
    });
    let mut slow = c.benchmark_group("line");
    slow.sample_size(10);
    slow.bench_function("10000 waiters, one after the other", |b| b.iter(|| Crowd::in_line(10_000)));
    slow.finish();
}
