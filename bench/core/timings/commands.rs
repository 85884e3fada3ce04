//! What serving a request costs.

use criterion::{BatchSize, Criterion};
use lock_core::model::hold::Mode;
use std::cell::RefCell;
use std::hint::black_box;
use world::{OWNER, World, acquire, extend, release};

pub(crate) fn commands(c: &mut Criterion) {
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
    let longer = extend(OWNER);
    c.bench_function("EXTEND", |b| b.iter(|| world.serve(black_box(&longer))));
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
