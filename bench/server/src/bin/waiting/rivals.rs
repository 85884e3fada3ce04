//! What is measured: the lock of the module, and what people use where there is none.

use crate::clients::{Requests, Ring, Then};
use crate::driver::{Driver, PATIENCE, Workload};
use bench::scripts::TAKE_PERMIT;
use bench::server::Bench;
use redis::Cmd;
use std::time::{Duration, Instant};

const KEY: &str = "lock:report";
const CHANNEL: &str = "lock:report:released";
/// Long enough that no lease ends in a measurement.
const LEASE_MS: &str = "60000";
/// The owner that keeps the lock until the gate opens.
const GATE: &str = "gate";
const RETRY: Duration = Duration::from_millis(10);

/// As long as a UUID.
fn owner(client: usize) -> String {
    format!("client-{client:029}")
}

fn requests(clients: usize, given: i64, take: impl Fn(&str) -> Cmd, give: impl Fn(&str) -> Cmd) -> Vec<Requests> {
    let pack = |owner: &str| Requests {
        take: take(owner).get_packed_command(),
        give: give(owner).get_packed_command(),
        given,
    };
    (0..clients).map(|client| pack(&owner(client))).collect()
}

fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

fn load(server: &mut Bench, script: &str) -> String {
    server.conn.get(&["SCRIPT", "LOAD", script])
}

/// Clients that wait in the server, and a gate before them: shut while they queue up, then opened.
pub(crate) struct Line {
    pub(crate) ring: Ring,
    pub(crate) open: Cmd,
    shut: Option<Cmd>,
}

impl Line {
    /// Clients of our lock.
    fn behind_gate(requests: Vec<Requests>, then: Then) -> Line {
        let shut = Some(command(&["LOCK.ACQUIRE", KEY, GATE, "PX", LEASE_MS]));
        Line { ring: Ring::new(requests, then, None), shut, open: release(GATE) }
    }

    /// Queues all of them up behind the gate.
    pub(crate) fn fill(&mut self, server: &mut Bench, driver: &mut Driver) {
        server.conn.ok(&["FLUSHALL"]);
        if let Some(shut) = &self.shut {
            shut.exec(&mut server.conn.0).unwrap();
        }
        self.ring.start(&mut driver.lines);
        let (start, all) = (Instant::now(), self.ring.clients().to_string());
        while server.conn.info("clients", "blocked_clients") != all {
            assert!(start.elapsed() < PATIENCE, "not all clients wait");
            // A client is answered here only to be refused: that ends the program at once.
            driver.turn(&mut self.ring, Duration::ZERO);
        }
    }

    /// Lets all of them through, once each.
    pub(crate) fn finish(&mut self, driver: &mut Driver) {
        self.ring.then = Then::GiveBack;
        driver.run_until(&mut self.ring, |ring| ring.done == ring.clients());
    }
}

/// Our lock: waiters are granted in order.
pub(crate) fn locks(clients: usize, then: Then) -> Line {
    let take = |owner: &str| command(&["LOCK.ACQUIRE", KEY, owner, "PX", LEASE_MS, "BLOCK", "0"]);
    Line::behind_gate(requests(clients, 0, take, release), then)
}

/// Our lock, as a semaphore: up to `limit` waiters hold it together.
pub(crate) fn shares(clients: usize, limit: usize, then: Then) -> Line {
    let limit = limit.to_string();
    let take = |owner: &str| command(&["LOCK.SHARE", KEY, owner, &limit, "PX", LEASE_MS, "BLOCK", "0"]);
    Line::behind_gate(requests(clients, 0, take, release), then)
}

/// A semaphore in a sorted set, asked again and again.
pub(crate) fn permit_pollers(server: &mut Bench, clients: usize, limit: usize) -> Ring {
    let (script, limit) = (load(server, TAKE_PERMIT), limit.to_string());
    // The moment of all requests: no lease ends in a measurement.
    let take = |owner: &str| command(&["EVALSHA", &script, "1", KEY, owner, &limit, "1800000000000", LEASE_MS]);
    let give = |owner: &str| command(&["ZREM", KEY, owner]);
    Ring::new(requests(clients, 1, take, give), Then::AskAgain, Some(RETRY))
}

/// Our lock, for owners of so many processes that are told when to ask: their requests, and the subscriptions. With no
/// process each waits on a connection of its own.
pub(crate) fn notified(clients: usize, processes: usize) -> (Vec<Requests>, Vec<Vec<u8>>) {
    let channel = |process: usize| format!("{CHANNEL}:{process}");
    let pack = |client: usize| {
        let owner = owner(client);
        let take = ["LOCK.ACQUIRE", KEY, &owner, "PX", LEASE_MS];
        let take = match processes {
            0 => command(&[&take[..], &["BLOCK", "0"]].concat()),
            _ => command(&[&take[..], &["QUEUE", "30000", "NOTIFY", &channel(client % processes)]].concat()),
        };
        Requests { take: take.get_packed_command(), give: release(&owner).get_packed_command(), given: 0 }
    };
    let subscribe = |process| command(&["SUBSCRIBE", &channel(process)]).get_packed_command();
    ((0..clients).map(pack).collect(), (0..processes).map(subscribe).collect())
}

/// Our lock, for owners that keep a place and ask again and again.
pub(crate) fn polled_places(clients: usize) -> Vec<Requests> {
    let take = |owner: &str| command(&["LOCK.ACQUIRE", KEY, owner, "PX", LEASE_MS, "QUEUE", "1000"]);
    requests(clients, 0, take, release)
}

fn release(owner: &str) -> Cmd {
    command(&["LOCK.RELEASE", KEY, owner])
}

/// A list as a lock: a waiter pops the one element and pushes it again.
pub(crate) fn list(clients: usize, then: Then) -> Line {
    let take = |_: &str| command(&["BLPOP", KEY, "0"]);
    let give = |_: &str| command(&["LPUSH", KEY, "x"]);
    let open = command(&["RPUSH", KEY, "x"]);
    Line { ring: Ring::new(requests(clients, 1, take, give), then, None), shut: None, open }
}
