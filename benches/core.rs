//! What the pure core costs by itself, without a server: `cargo bench --bench core`.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use redis_lock::lock::change::Effects;
use redis_lock::lock::hold::Mode;
use redis_lock::lock::key::{Db, KeyIndex, KeyName};
use redis_lock::lock::keyspace::{Keyspace, Place};
use redis_lock::lock::limits::Limits;
use redis_lock::lock::node::Node;
use redis_lock::lock::owner::Owner;
use redis_lock::lock::request::{Acquire, Amount, Answer, Ask, Outcome, Refusal, Release, Request, Wait};
use redis_lock::lock::room::WaiterId;
use redis_lock::lock::time::{Millis, Now, Timestamp, WallTime};
use redis_lock::lock::value::Lock;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;

const LIMITS: Limits = Limits {
    lease_default: Millis(30_000),
    lease_max: Millis(86_400_000),
    owner_bytes_max: 256,
    note_bytes_max: 256,
    holders_per_key_max: 65_536,
    waiters_max: 20_000,
    waiters_per_key_max: 20_000,
    keys_max: 64,
    reserve_max: Millis(5_000),
    deadlock_detection: true,
    promotion_skew: Millis(1_000),
};

/// A keyspace of one key.
#[derive(Default)]
struct OneKey(Option<Box<Lock>>);

impl Keyspace for OneKey {
    fn count(&self) -> u16 {
        1
    }

    fn place(&mut self, _: KeyIndex) -> Place<'_> {
        Place { db: Db(0), name: b"lock:report", lock: self.0.as_deref_mut() }
    }

    fn open(&mut self, _: &[u8]) -> Result<KeyIndex, Answer> {
        Ok(KeyIndex(0))
    }

    fn close(&mut self, _: u16) {}

    fn peek<R>(&mut self, _: Db, _: &[u8], look: impl FnOnce(&Lock) -> R) -> Option<R> {
        self.0.as_deref().map(look)
    }

    fn create(&mut self, _: KeyIndex) -> &mut Lock {
        self.0.insert(Box::default())
    }
}

struct World {
    node: Node,
    key: OneKey,
    now: Now,
}

impl World {
    /// A node on which `leases` other keys are held, and one key with `readers`.
    fn new(leases: u64, readers: u64) -> World {
        let now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };
        let mut world = World { node: Node::new(LIMITS), key: OneKey::default(), now };
        for n in 0..leases {
            world.now.mono.0 += 50;
            world.serve(&acquire(&format!("other-{n}"), Mode::Write));
            world.key.0 = None;
        }
        for n in 0..readers {
            world.serve(&acquire(&format!("reader-{n:029}"), Mode::Read));
        }
        world
    }

    fn serve(&mut self, request: &Request) -> Outcome {
        let mut effects = Effects::new();
        let outcome = self.node.serve(&mut self.key, request, self.now, &mut effects);
        if self.key.0.as_ref().is_some_and(|lock| lock.is_free()) {
            self.key.0 = None;
        }
        black_box(&effects);
        outcome.unwrap()
    }
}

const OWNER: &str = "5f0c2f1e-4f9b-4a1c-9d62-8f3f6f0f4c11";

fn acquire(owner: &str, mode: Mode) -> Request {
    acquire_or(owner, mode, Wait::Never)
}

fn acquire_or(owner: &str, mode: Mode, wait: Wait) -> Request {
    let ask = Ask::Acquire(Acquire { mode, lease: Millis(30_000), note: None, wait, retry: None, session: None });
    Request { owner: Owner::new(owner.as_bytes()), ask }
}

fn release(owner: &str) -> Request {
    let ask = Ask::Release(Release { mode: None, amount: Amount::One, fence: None });
    Request { owner: Owner::new(owner.as_bytes()), ask }
}

fn core(c: &mut Criterion) {
    let (take, give) = (acquire(OWNER, Mode::Write), release(OWNER));
    for leases in [0, 1_000_000] {
        let world = RefCell::new(World::new(leases, 0));
        c.bench_function(&format!("ACQUIRE, {leases} leases running"), |b| {
            let free = || drop(world.borrow_mut().serve(&give));
            b.iter_batched(free, |()| world.borrow_mut().serve(black_box(&take)), BatchSize::PerIteration);
        });
        c.bench_function(&format!("RELEASE, {leases} leases running"), |b| {
            let hold = || drop(world.borrow_mut().serve(&take));
            b.iter_batched(hold, |()| world.borrow_mut().serve(black_box(&give)), BatchSize::PerIteration);
        });
        let mut world = World::new(leases, 0);
        c.bench_function(&format!("ACQUIRE + RELEASE, {leases} leases running"), |b| {
            b.iter(|| {
                world.now.mono.0 += 1;
                world.serve(black_box(&take));
                world.serve(black_box(&give))
            });
        });
    }
    let mut world = World::new(0, 0);
    world.serve(&take);
    let other = acquire("another", Mode::Write);
    c.bench_function("ACQUIRE, held by another", |b| b.iter(|| world.serve(black_box(&other))));
    c.bench_function("ACQUIRE again + RELEASE", |b| {
        b.iter(|| {
            world.serve(black_box(&take));
            world.serve(black_box(&give))
        });
    });
    let (read, leave) = (acquire(OWNER, Mode::Read), release(OWNER));
    for readers in [1, 100, 10_000] {
        let mut world = World::new(0, readers);
        c.bench_function(&format!("RW READ + RELEASE beside {readers} readers"), |b| {
            b.iter(|| {
                world.serve(black_box(&read));
                world.serve(black_box(&leave))
            });
        });
    }
}

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

fn waiting(c: &mut Criterion) {
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

criterion_group!(benches, core, waiting);
criterion_main!(benches);
