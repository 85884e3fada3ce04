//! Clients send all commands at random. Meanwhile this program reads what the server sends to its replicas. From the
//! records alone it sees that a writer holds alone, that shares stay within their limit, that each fence is above all
//! before, and that each end names a hold. The clients see that each request gets exactly one reply. Each fence that
//! they were told of is in a record. When all leases are over, no hold is left.
//!
//! A round is five seconds of that on a fresh server.

mod client;
mod records;

use self::client::{Client, LEASE_MS_MAX};
use self::records::Records;
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::wire::Wire;
use redis::{RedisResult, Value};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Server, wait_for};

const CLIENTS: u64 = 24;
const LOAD: Duration = Duration::from_secs(5);
/// Published when all is over: the last command of the stream.
const END: &str = "this is the end of the stream";

/// What must be above zero: without these a run could not have shown a violation.
const EVIDENCE: [&str; 19] = [
    "records",
    "ends of holds",
    "fences compared",
    "hung up",
    "closed by the server",
    "LOCK.ACQUIRE served",
    "LOCK.ACQUIRE null",
    "LOCK.RW served",
    "LOCK.SHARE served",
    "LOCK.SHARE null",
    "LOCK.MACQUIRE served",
    "LOCK.RELEASE served",
    "LOCK.EXTEND served",
    "LOCK.BREAK served",
    "EXEC served",
    "EVAL served",
    "RENAME served",
    "SWAPDB served",
    "PEXPIRE served",
];

pub const SCENE: Scene = Scene {
    name: "stream",
    about: "Checks what a server sends to its replicas; a round is 5 s",
    rounds: "4",
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    for round in 0..options.rounds {
        play_round(round, options, report);
    }
    report.must_see(EVIDENCE);
}

fn play_round(round: u64, options: &Options, report: &mut Report) {
    let server = Server::setup().option("repl-diskless-sync-delay", "0").option("databases", "2").start();
    let port = server.port();
    let mut link = Wire::new(port, Duration::from_secs(60)).expect("a server that runs");
    link.follow().expect("a replica is served");
    let reader = thread::spawn(move || read(link));
    let until = Instant::now() + LOAD;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = Client::new(port, options.dice((round << 16) + number));
            thread::spawn(move || client.live(until))
        })
        .collect();
    let saw: Vec<_> = clients.into_iter().map(|client| client.join().expect("clients do not panic")).collect();
    let mut conn = server.connect();
    let over = Instant::now() + Duration::from_millis(2 * LEASE_MS_MAX);
    wait_for("all leases to be over", || {
        Instant::now() > over && ["lock_leases", "lock_waiters"].iter().all(|field| conn.info("lock", field) == "0")
    });
    conn.get::<i64>(&["PUBLISH", "stream", END]);
    let records = reader.join().expect("the reader does not panic").expect("the stream goes on to its end");
    report.add("records", records.seen);
    report.add("ends of holds", records.ends);
    for (figure, count) in saw.iter().flat_map(|saw| &saw.figures) {
        report.add(figure, *count);
    }
    for fence in saw.iter().flat_map(|saw| &saw.fences) {
        report.add("fences compared", 1);
        if !records.was_given(*fence) {
            report.violation(format!("round {round}: a client was told of fence {fence}, and no record has it"));
        }
    }
    for key in records.held() {
        report.violation(format!("round {round}: a hold without an end: {key:?}"));
    }
    let all = records.violations.into_iter().chain(saw.into_iter().flat_map(|saw| saw.violations));
    report.violations(all.map(|what| format!("round {round}: {what}")));
}

/// Reads the stream to its end.
fn read(mut link: Wire) -> RedisResult<Records> {
    let mut records = Records::default();
    loop {
        let command @ Value::Array(_) = link.read()? else { continue };
        let command: Vec<String> = redis::from_redis_value(command)?;
        if command.last().is_some_and(|last| last == END) {
            return Ok(records);
        }
        records.read(&command);
    }
}
