//! What the pure core costs by itself, without a server: `cargo bench --bench core`.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use redis_lock::lock::hold::Mode;
use redis_lock::lock::keyspace::{Db, KeyIndex, Keyspace, Place};
use redis_lock::lock::limits::Limits;
use redis_lock::lock::node::Node;
use redis_lock::lock::owner::Owner;
use redis_lock::lock::request::{Acquire, Amount, Ask, Outcome, Release, Request};
use redis_lock::lock::time::{Millis, Now, Timestamp, WallTime};
use redis_lock::lock::value::Lock;
use std::cell::RefCell;
use std::hint::black_box;

const LIMITS: Limits = Limits {
    lease_default: Millis(30_000),
    lease_max: Millis(86_400_000),
    owner_bytes_max: 256,
    note_bytes_max: 256,
    holders_per_key_max: 65_536,
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
        let step = self.node.serve(&mut self.key, request, self.now);
        if self.key.0.as_ref().is_some_and(|lock| lock.is_free()) {
            self.key.0 = None;
        }
        black_box(&step.effects);
        step.outcome.unwrap()
    }
}

const OWNER: &str = "5f0c2f1e-4f9b-4a1c-9d62-8f3f6f0f4c11";

fn acquire(owner: &str, mode: Mode) -> Request {
    let ask = Ask::Acquire(Acquire { mode, lease: Millis(30_000), note: None });
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

criterion_group!(benches, core);
criterion_main!(benches);
