//! What the parts cost that a command is made of.

use criterion::Criterion;
use lock_core::codec;
use lock_core::collections::wheel::Generations;
use lock_core::model::fence::{Fence, FenceClock};
use lock_core::model::hold::{Epoch, Hold, Mode};
use lock_core::model::key::PlainName;
use lock_core::model::lock::{Leases, Lock};
use lock_core::model::owner::{Note, Owner};
use lock_core::model::record::HoldRecord;
use lock_core::model::time::{Millis, Now, Timestamp, WallTime};
use std::collections::VecDeque;
use std::hint::black_box;
use world::OWNER;

const NOW: Now = Now { mono: Timestamp(1_000_000), wall: WallTime(1_700_000_000_000_000) };
const LEASE: Millis = Millis(30_000);
const NAMES: [(&str, &[u8]); 2] = [("18", b"lock:report:000001"), ("40", b"lock:{tenant-000017}:invoices:2024-02-29")];

pub(crate) fn parts(c: &mut Criterion) {
    wheel(c);
    names(c);
    holds(c);
    saved(c);
    let mut fences = FenceClock::new();
    c.bench_function("fence: the next", |b| b.iter(|| fences.next(black_box(NOW.wall))));
}

/// The index of leases.
fn wheel(c: &mut Criterion) {
    for leases in [0, 1_000, 1_000_000] {
        let (mut wheel, mut generations) = (Leases::new(), Generations::new());
        let name = PlainName::from_slice(NAMES[0].1);
        let mut now = NOW.mono;
        let mut step = move || {
            now.0 += 50;
            now + LEASE
        };
        let mut ids: VecDeque<_> = (0..leases).map(|_| wheel.arm(name.clone(), step(), &mut generations)).collect();
        c.bench_function(&format!("wheel: arm + disarm, {leases} entries"), |b| {
            b.iter(|| {
                let id = wheel.arm(black_box(&name).clone(), step(), &mut generations);
                wheel.disarm(black_box(id))
            });
        });
        let Some(&oldest) = ids.front() else { continue };
        c.bench_function(&format!("wheel: covers, {leases} entries"), |b| {
            b.iter(|| wheel.covers(black_box(oldest), step(), NOW.mono));
        });
        // Its memory has not been touched for long.
        c.bench_function(&format!("wheel: disarm of the oldest + arm, {leases} entries"), |b| {
            b.iter(|| {
                wheel.disarm(ids.pop_front().unwrap());
                ids.push_back(wheel.arm(black_box(&name).clone(), step(), &mut generations));
            });
        });
    }
}

fn names(c: &mut Criterion) {
    let (owner, same) = (Owner::new(OWNER.as_bytes()), Owner::new(OWNER.as_bytes()));
    c.bench_function("owner of 36 bytes: new", |b| b.iter(|| Owner::new(black_box(OWNER.as_bytes()))));
    c.bench_function("owner of 36 bytes: clone", |b| b.iter(|| black_box(&owner).clone()));
    c.bench_function("owner of 36 bytes: equal", |b| b.iter(|| black_box(&owner) == black_box(&same)));
    for (len, bytes) in NAMES {
        let name = PlainName::from_slice(bytes);
        c.bench_function(&format!("key name of {len} bytes: from a slice"), |b| {
            b.iter(|| PlainName::from_slice(black_box(bytes)));
        });
        c.bench_function(&format!("key name of {len} bytes: clone"), |b| b.iter(|| black_box(&name).clone()));
    }
}

fn hold(number: u64) -> Hold {
    let mut hold = Hold::new(Fence::new(number).unwrap(), NOW.mono + LEASE, NOW.mono, Epoch::FIRST);
    hold.set_count(Mode::Write, 1);
    hold
}

/// A lock with one hold.
fn held(note: Option<Note>) -> Lock {
    let mut hold = hold(17);
    hold.set_note(note);
    let mut lock = Lock::default();
    lock.holds.put(&Owner::new(OWNER.as_bytes()), hold);
    lock
}

fn holds(c: &mut Criterion) {
    let owner = Owner::new(OWNER.as_bytes());
    let mut holds = Lock::default().holds;
    c.bench_function("holds: put + take of the only one", |b| {
        b.iter(|| {
            holds.put(black_box(&owner), hold(17));
            holds.take(black_box(owner.as_bytes()))
        });
    });
    let mut lock = held(None);
    c.bench_function("holds: get the only one", |b| b.iter(|| lock.holds.get(black_box(owner.as_bytes())).is_some()));
    c.bench_function("holds: put the only one again", |b| b.iter(|| lock.holds.put(black_box(&owner), hold(17))));
    c.bench_function("lock with one hold: made and dropped", |b| b.iter(|| Box::new(held(None))));
}

/// What replicas, files and DUMP receive.
fn saved(c: &mut Criterion) {
    for (what, note) in [("one hold", None), ("one hold with a note", Some(Note::new(b"host-17:4242:nightly")))] {
        let lock = held(note);
        let (owner, hold) = lock.holds.any().unwrap();
        c.bench_function(&format!("fact of {what}"), |b| {
            b.iter(|| HoldRecord::of(black_box(owner), black_box(hold), NOW))
        });
        c.bench_function(&format!("codec: save {what}"), |b| b.iter(|| codec::encode(black_box(&lock), NOW)));
        let bytes = codec::encode(&lock, NOW);
        c.bench_function(&format!("codec: load {what}"), |b| b.iter(|| codec::decode(black_box(&bytes)).unwrap()));
    }
}
