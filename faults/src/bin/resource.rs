//! Clients that sleep through their leases, and operators that break locks, in the middle of reading and writing a
//! shared storage. One that refuses older fences loses no update, and nothing changes under a reader; one that does not
//! loses some.
//!
//! A round is five seconds with fences and five without.

use faults::caller::Caller;
use faults::options::Options;
use faults::report::Report;
use rand::{RngExt, rngs::StdRng};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use testbed::Server;

const COUNTERS: usize = 4;
const CLIENTS: u64 = 16;
const HALF_ROUND: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let options = Options::read("resource", "Clients that are late write to a storage that looks at fences", "1");
    let mut report = Report::default();
    let server = Server::new();
    for round in 0..options.rounds {
        for looks_at_fences in [true, false] {
            let storage: Storage =
                std::array::from_fn(|_| Mutex::new(Counter { looks_at_fences, ..Counter::default() }));
            let until = Instant::now() + HALF_ROUND;
            let counts = thread::scope(|scope| {
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|number| {
                        let dice = options.dice(round * 1000 + number * 2 + u64::from(looks_at_fences));
                        let name = format!("{round}.{looks_at_fences}.{number}");
                        let caller = Caller::new(server.port(), PATIENCE);
                        let client = Client { name, caller, dice, storage: &storage, counts: Counts::default() };
                        scope.spawn(move || client.live(until))
                    })
                    .collect();
                break_locks(&server, options.dice(round), until);
                clients.into_iter().map(|client| client.join().expect("clients do not panic")).collect::<Vec<_>>()
            });
            tell(&mut report, looks_at_fences, &storage, &counts);
        }
    }
    for what in ["updates lost", "values changed under a reader"] {
        let seen = report.figure(&format!("with fences: {what}"));
        if seen > 0 {
            report.violation(format!("with fences: {what}: {seen}"));
        }
    }
    for figure in ["with fences: refused as too late", "without fences: updates lost"] {
        report.must_see(figure);
    }
    report.must_see("without fences: values changed under a reader");
    report.finish()
}

/// What is shared, each counter under a lock of its own.
type Storage = [Mutex<Counter>; COUNTERS];

/// One counter. Reading and writing it are requests apart, as on any storage.
#[derive(Debug, Default)]
struct Counter {
    looks_at_fences: bool,
    value: u64,
    highest: i64,
    highest_writer: i64,
}

/// The storage has seen a newer fence.
struct TooLate;

impl Counter {
    /// The rule of docs/guide/fencing.md: a writer's fence must not be below any seen, a reader's not below the highest
    /// writer's.
    fn admit(&mut self, fence: i64, writes: bool) -> Result<(), TooLate> {
        let least = if writes { self.highest } else { self.highest_writer };
        if self.looks_at_fences && fence < least {
            return Err(TooLate);
        }
        self.highest = self.highest.max(fence);
        if writes {
            self.highest_writer = self.highest_writer.max(fence);
        }
        Ok(())
    }

    /// What is stored, for a client that reads, or that will write.
    fn read(&mut self, fence: i64, writes: bool) -> Result<u64, TooLate> {
        self.admit(fence, writes).map(|()| self.value)
    }

    fn write(&mut self, fence: i64, value: u64) -> Result<(), TooLate> {
        self.admit(fence, true).map(|()| self.value = value)
    }
}

/// What a client saw.
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
            let (key, owner) = (format!("counter{number}"), format!("{}.{requests}", self.name));
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
        let counter = || -> MutexGuard<Counter> { self.storage[number].lock().expect("nobody panics with it") };
        let value = counter().read(fence, writes)?;
        let late = self.dice.random_bool(0.2);
        self.counts.late += u64::from(late);
        thread::sleep(Duration::from_millis(if late { self.dice.random_range(lease_ms..lease_ms * 4) } else { 2 }));
        if writes {
            counter().write(fence, value + 1)?;
            self.counts.acknowledged += 1;
        } else {
            let again = counter().read(fence, writes)?;
            self.counts.read_twice += 1;
            self.counts.changed += u64::from(again != value);
        }
        Ok(())
    }
}

/// Takes locks from their holders, which are not informed.
fn break_locks(server: &Server, mut dice: StdRng, until: Instant) {
    let mut conn = server.connect();
    while Instant::now() < until {
        conn.get::<i64>(&["LOCK.BREAK", &format!("counter{}", dice.random_range(0..COUNTERS))]);
        thread::sleep(Duration::from_millis(dice.random_range(1..40)));
    }
}

fn tell(report: &mut Report, looks_at_fences: bool, storage: &Storage, counts: &[Counts]) {
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let stored: u64 = storage.iter().map(|counter| counter.lock().expect("nobody panics with it").value).sum();
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
        report.add(&format!("{} fences: {what}", if looks_at_fences { "with" } else { "without" }), count);
    }
}
