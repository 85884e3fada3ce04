//! Clients that sleep through their leases, and operators that break locks, in the middle of reading and writing a
//! shared storage. One that refuses older fences loses no update, and nothing changes under a reader; one that does not
//! loses some.
//!
//! The data lie outside, or in Redis beside the locks. There, LOCK.GUARD takes the place of the fences. There, too,
//! primaries are killed that their replica has not heard of for a while.
//!
//! A round is five seconds with fences, or guarded, and five without; with kills, eight of them each.

mod kills;

use crate::caller::{Answer, Caller};
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::resource::Resource;
use rand::{RngExt, rngs::StdRng};
use redis::Value;
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
    let in_redis = match options.variant {
        "redis-with-kills" => return kills::play(options, report),
        data => data == "redis",
    };
    let server = Server::new();
    for (round, is_safe) in (0..options.rounds).flat_map(|round| [(round, true), (round, false)]) {
        run(&server, options, round, (in_redis, is_safe), report);
    }
    let [safe, other] = if in_redis { ["guarded", "not guarded"] } else { ["with fences", "without fences"] };
    for what in ["updates lost", "values changed under a reader"] {
        let seen = report.figure(&format!("{safe}: {what}"));
        if seen > 0 {
            report.violation(format!("{safe}: {what}: {seen}"));
        }
    }
    report.must_see([&*format!("{safe}: refused as too late"), &format!("{other}: updates lost")]);
    if !in_redis {
        report.must_see(["without fences: values changed under a reader"]);
    }
}

fn run(server: &Server, options: &Options, round: u64, (in_redis, is_safe): (bool, bool), report: &mut Report) {
    let storage: Storage =
        std::array::from_fn(|_| Mutex::new(Counter { looks_at_fences: is_safe, ..Counter::default() }));
    let data = if in_redis { Data::Redis { guarded: is_safe } } else { Data::Outside(&storage) };
    server.connect().ok(&["FLUSHALL"]);
    let until = Instant::now() + HALF_ROUND;
    let counts = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let dice = options.dice(round * 1000 + number * 2 + u64::from(is_safe));
                let name = format!("{round}.{is_safe}.{number}");
                let caller = Caller::new(server.port(), PATIENCE);
                let client = Client { name, caller, dice, data, counts: Counts::default() };
                scope.spawn(move || client.live(until))
            })
            .collect();
        break_locks(server, options.dice(round), until);
        clients.into_iter().map(|client| client.join().expect("clients do not panic")).collect::<Vec<_>>()
    });
    tell(report, server, data, &counts);
}

#[derive(Clone, Copy)]
enum Data<'s> {
    /// In a storage of their own.
    Outside(&'s Storage),
    /// Beside the locks. All clients write.
    Redis { guarded: bool },
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
    data: Data<'s>,
    counts: Counts,
}

impl Client<'_> {
    fn live(mut self, until: Instant) -> Counts {
        let mut requests = 0;
        while Instant::now() < until {
            requests += 1;
            let (number, writes) = (self.dice.random_range(0..COUNTERS), self.dice.random_bool(0.6));
            let writes = writes || matches!(self.data, Data::Redis { .. });
            let (key, owner) = (format!("counter{number}"), format!("{}.{requests}", self.name));
            let (mode, lease) = (if writes { "WRITE" } else { "READ" }, self.dice.random_range(10..60));
            let request = format!("LOCK.RW {key} {owner} {mode} PX {lease} BLOCK 100");
            let (_, answer, _) = self.caller.ask_long(&request, Duration::from_millis(100));
            let Some(fence) = answer.int() else { continue };
            if self.work((number, &owner), fence, writes, lease).is_err() {
                self.counts.too_late += 1;
            }
            self.caller.ask(&format!("LOCK.RELEASE {key} {owner}"));
        }
        self.counts
    }

    /// Adds one, or reads twice, with a pause in the middle that is sometimes longer than the lease.
    fn work(&mut self, (number, owner): (usize, &str), fence: i64, writes: bool, lease_ms: u64) -> Result<(), TooLate> {
        let value = self.read((number, owner), fence, writes)?;
        let late = self.dice.random_bool(0.2);
        self.counts.late += u64::from(late);
        thread::sleep(Duration::from_millis(if late { self.dice.random_range(lease_ms..lease_ms * 4) } else { 2 }));
        if writes {
            match self.data {
                Data::Outside(storage) => counter(storage, number).write(fence, value + 1)?,
                Data::Redis { .. } => drop(self.ask((number, owner), fence, "SET", &(value + 1).to_string())?),
            }
            self.counts.acknowledged += 1;
        } else {
            let again = self.read((number, owner), fence, writes)?;
            self.counts.read_twice += 1;
            self.counts.changed += u64::from(again != value);
        }
        Ok(())
    }

    fn read(&mut self, (number, owner): (usize, &str), fence: i64, writes: bool) -> Result<u64, TooLate> {
        if let Data::Outside(storage) = self.data {
            return counter(storage, number).read(fence, writes);
        }
        let value = self.ask((number, owner), fence, "GET", "")?;
        Ok(redis::from_redis_value::<Option<u64>>(value).expect("a number, or nothing").unwrap_or(0))
    }

    /// What a command on the data in Redis is answered.
    fn ask(&mut self, (number, owner): (usize, &str), fence: i64, name: &str, word: &str) -> Result<Value, TooLate> {
        let command = format!("{name} data{number} {word}").trim_end().to_owned();
        let Data::Redis { guarded: true } = self.data else {
            return match self.caller.ask(&command).1 {
                Answer::Value(value) => Ok(value),
                Answer::Null => Ok(Value::Nil),
                other => panic!("{command}: {other:?}"),
            };
        };
        match self.caller.ask(&format!("LOCK.GUARD counter{number} {owner} {fence} {command}")).1 {
            Answer::Value(Value::Array(mut pair)) => Ok(pair.pop().expect("the fence and the reply")),
            Answer::Null => Err(TooLate),
            other => panic!("{command}: {other:?}"),
        }
    }
}

fn counter(storage: &Storage, number: usize) -> MutexGuard<'_, Counter> {
    storage[number].lock().expect("nobody panics with it")
}

/// Takes locks from their holders, which are not informed.
fn break_locks(server: &Server, mut dice: StdRng, until: Instant) {
    let mut conn = server.connect();
    while Instant::now() < until {
        conn.get::<i64>(&["LOCK.BREAK", &format!("counter{}", dice.random_range(0..COUNTERS))]);
        thread::sleep(Duration::from_millis(dice.random_range(1..40)));
    }
}

fn tell(report: &mut Report, server: &Server, data: Data<'_>, counts: &[Counts]) {
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let mut conn = server.connect();
    let stored: u64 = (0..COUNTERS)
        .map(|number| match data {
            Data::Outside(storage) => counter(storage, number).value,
            Data::Redis { .. } => conn.get::<Option<u64>>(&["GET", &format!("data{number}")]).unwrap_or(0),
        })
        .sum();
    let how = match data {
        Data::Outside(storage) if counter(storage, 0).looks_at_fences => "with fences",
        Data::Outside(_) => "without fences",
        Data::Redis { guarded: true } => "guarded",
        Data::Redis { guarded: false } => "not guarded",
    };
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
