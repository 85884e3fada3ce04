//! Clients that sleep through their leases, and operators that break locks, in the middle of reading and writing a
//! shared storage. One that refuses older fences loses no update, and nothing changes under a reader; one that does not
//! loses some.
//!
//! The data lie outside, or in Redis beside the locks. There, LOCK.GUARD takes the place of the fences. There, too,
//! primaries are killed that their replica has not heard of for a while.
//!
//! A round is five seconds with fences, or guarded, and five without; with kills, eight of them each.

mod beside;

use self::beside::Harm;
use crate::breaks::break_locks;
use crate::caller::Caller;
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::resource::Resource;
use rand::{RngExt, rngs::StdRng};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use testbed::Server;

const COUNTERS: usize = 4;
const CLIENTS: u64 = 16;
const HALF_ROUND: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);

pub const SCENE: Scene = Scene {
    name: "resource",
    about: "Clients that are late write to a storage that looks at fences, or by LOCK.GUARD",
    variants: (
        "data",
        "Where the data lie that the locks protect; in Redis, also with primaries that are killed",
        &["outside", "redis", "redis-with-kills"],
    ),
    attempts: 3,
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    match options.variant {
        "redis" => beside::play(Harm::Breaks(HALF_ROUND), options, report),
        "redis-with-kills" => beside::play(Harm::Kills, options, report),
        _ => play_outside(options, report),
    }
}

fn play_outside(options: &Options, report: &mut Report) {
    let server = Server::new();
    for (round, has_fences) in (0..options.rounds).flat_map(|round| [(round, true), (round, false)]) {
        half_round(&server, options, round, has_fences, report);
    }
    let what = ["updates lost", "values changed under a reader"];
    for figure in what.map(|what| format!("with fences: {what}")) {
        let seen = report.figure(&figure);
        if seen > 0 {
            report.violation(format!("{figure}: {seen}"));
        }
    }
    report.must_see(what.map(|what| format!("without fences: {what}")));
    report.must_see(["with fences: refused as too late"]);
}

fn half_round(server: &Server, options: &Options, round: u64, has_fences: bool, report: &mut Report) {
    let storage: Storage =
        std::array::from_fn(|_| Mutex::new(Counter { looks_at_fences: has_fences, ..Counter::default() }));
    server.connect().ok(&["FLUSHALL"]);
    let until = Instant::now() + HALF_ROUND;
    let counts = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let dice = options.dice(round * 1000 + number * 2 + u64::from(has_fences));
                let name = format!("{round}.{has_fences}.{number}");
                let caller = Caller::new(server.port(), PATIENCE);
                let client = Client { name, caller, dice, storage: &storage, counts: Counts::default() };
                scope.spawn(move || client.live(until))
            })
            .collect();
        break_locks(server, COUNTERS, options.dice(round), until);
        clients.into_iter().map(|client| client.join().expect("clients do not panic")).collect::<Vec<_>>()
    });
    tell(report, if has_fences { "with fences" } else { "without fences" }, &storage, &counts);
}

/// What is shared, each counter under a lock of its own.
type Storage = [Mutex<Counter>; COUNTERS];

/// One counter. Reading and writing it are requests apart, as on any storage.
#[derive(Debug, Default)]
struct Counter {
    looks_at_fences: bool,
    value: u64,
    resource: Resource,
}

/// The storage has seen a newer fence.
struct TooLate;

impl Counter {
    fn admit(&mut self, fence: i64, writes: bool) -> Result<(), TooLate> {
        let used = self.resource.is_used(Some(fence).filter(|_| self.looks_at_fences), 0, writes);
        if used.accepted { Ok(()) } else { Err(TooLate) }
    }

    /// What is stored, for a client that reads, or that will write.
    fn read(&mut self, fence: i64, writes: bool) -> Result<u64, TooLate> {
        self.admit(fence, writes).map(|()| self.value)
    }

    fn write(&mut self, fence: i64, value: u64) -> Result<(), TooLate> {
        self.admit(fence, true).map(|()| self.value = value)
    }
}

#[derive(Debug, Default)]
struct Counts {
    acknowledged: u64,
    read_twice: u64,
    changed: u64,
    too_late: u64,
    late: u64,
}

struct Client<'s> {
    name: String,
    caller: Caller,
    dice: StdRng,
    storage: &'s Storage,
    counts: Counts,
}

impl Client<'_> {
    fn live(mut self, until: Instant) -> Counts {
        let mut requests = 0;
        while Instant::now() < until {
            requests += 1;
            let (number, writes) = (self.dice.random_range(0..COUNTERS), self.dice.random_bool(0.6));
            let (key, owner) = (format!("lock{number}"), format!("{}.{requests}", self.name));
            let (mode, lease) = (if writes { "WRITE" } else { "READ" }, self.dice.random_range(10..60));
            let request = format!("LOCK.RW {key} {owner} {mode} PX {lease} BLOCK 100");
            let (_, answer, _) = self.caller.ask_long(&request, Duration::from_millis(100));
            let Some(fence) = answer.int() else { continue };
            if self.work(number, fence, writes, lease).is_err() {
                self.counts.too_late += 1;
            }
            self.caller.ask(&format!("LOCK.RELEASE {key} {owner}"));
        }
        self.counts
    }

    /// Adds one, or reads twice, with a pause in the middle that is sometimes longer than the lease.
    fn work(&mut self, number: usize, fence: i64, writes: bool, lease_ms: u64) -> Result<(), TooLate> {
        let value = counter(self.storage, number).read(fence, writes)?;
        let late = self.dice.random_bool(0.2);
        self.counts.late += u64::from(late);
        thread::sleep(Duration::from_millis(if late { self.dice.random_range(lease_ms..lease_ms * 4) } else { 2 }));
        if writes {
            counter(self.storage, number).write(fence, value + 1)?;
            self.counts.acknowledged += 1;
        } else {
            let again = counter(self.storage, number).read(fence, writes)?;
            self.counts.read_twice += 1;
            self.counts.changed += u64::from(again != value);
        }
        Ok(())
    }
}

fn counter(storage: &Storage, number: usize) -> MutexGuard<'_, Counter> {
    storage[number].lock().expect("nobody panics with it")
}

fn tell(report: &mut Report, how: &str, storage: &Storage, counts: &[Counts]) {
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let stored: u64 = (0..COUNTERS).map(|number| counter(storage, number).value).sum();
    let acknowledged = sum(|client| client.acknowledged);
    for (what, count) in [
        ("updates acknowledged", acknowledged),
        // Every write stores at least one more than was there: what is missing was overwritten.
        ("updates lost", acknowledged - stored),
        ("values read twice", sum(|client| client.read_twice)),
        ("values changed under a reader", sum(|client| client.changed)),
        ("refused as too late", sum(|client| client.too_late)),
        ("pauses beyond the lease", sum(|client| client.late)),
    ] {
        report.add(&format!("{how}: {what}"), count);
    }
}
