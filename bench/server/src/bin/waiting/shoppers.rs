//! Many clients that each want a few keys of a few: what the search for deadlocks costs where nearly all wait.

use crate::alone;
use crate::driver::{Driver, Lines, Workload};
use crate::sample::median;
use crate::tally::Tally;
use bench::reply::Reply;
use bench::server::Bench;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{RngExt, SeedableRng};
use std::time::{Duration, Instant};

const CLIENTS: usize = 900;
/// How many keys there are, and how many of them each request names.
const KEYS: usize = 20;
const NAMED: usize = 4;

/// Clients that take some keys by LOCK.MACQUIRE, release them, and take others.
struct Shoppers {
    rng: SmallRng,
    /// The keys that each client holds or waits for.
    wants: Vec<String>,
    holds: Vec<bool>,
    granted: u64,
    tally: Tally,
}

impl Shoppers {
    fn new(seed: u64) -> Shoppers {
        Shoppers {
            rng: SmallRng::seed_from_u64(seed),
            wants: vec![String::new(); CLIENTS],
            holds: vec![false; CLIENTS],
            granted: 0,
            tally: Tally::new(CLIENTS),
        }
    }

    fn ask(&mut self, client: usize, lines: &mut Lines) {
        let keys: Vec<String> = sample(&mut self.rng, KEYS, NAMED).iter().map(|key| format!("shelf{key}")).collect();
        self.wants[client] = keys.join(" ");
        self.holds[client] = false;
        self.tally.asks(client, Instant::now());
        let keys = &self.wants[client];
        lines.send(client, format!("LOCK.MACQUIRE {NAMED} {keys} c{client} PX 600000 BLOCK 0\r\n").as_bytes());
    }
}

impl Workload for Shoppers {
    fn start(&mut self, lines: &mut Lines) {
        (0..CLIENTS).for_each(|client| self.ask(client, lines));
    }

    fn reply(&mut self, client: usize, reply: &Reply<'_>, now: Instant, lines: &mut Lines) {
        assert!(matches!(reply, Reply::Array(..)), "answered {reply}");
        if std::mem::replace(&mut self.holds[client], true) {
            return self.ask(client, lines);
        }
        self.granted += 1;
        self.tally.gets(client, now);
        let keys = &self.wants[client];
        lines.send(client, format!("LOCK.MRELEASE {NAMED} {keys} c{client}\r\n").as_bytes());
    }

    fn resume(&mut self, _: usize, _: &mut Lines) {}

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

struct Found {
    granted: f64,
    cpu_us: f64,
}

/// The same clients with the search for deadlocks and without it, in turn.
pub(crate) fn table(server: &mut Bench, rounds: usize, time: Duration) {
    println!("\n{CLIENTS} clients, MACQUIRE of {NAMED} of {KEYS} keys by chance; medians of {rounds} rounds");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut seeds = SmallRng::seed_from_u64(1);
    for _ in 0..rounds {
        let seed = seeds.random();
        with.push(measure(server, "yes", seed, time));
        without.push(measure(server, "no", seed, time));
    }
    server.conn.ok(&["CONFIG", "SET", "lock.deadlock-detection", "yes"]);
    println!("{:<30} {:>14} {:>20}", "", "grants", "cpu us of a grant");
    let cpu = |found: &[Found]| median(found, |found| found.cpu_us);
    for (name, found) in [("detection on", &with), ("detection off", &without)] {
        println!("{name:<30} {:>14.0} {:>20.1}", median(found, |found| found.granted), cpu(found));
    }
    println!("{:<30} {:>35.2}", "on / off", cpu(&with) / cpu(&without));
    alone(server);
}

fn measure(server: &mut Bench, detection: &str, seed: u64, time: Duration) -> Found {
    server.conn.ok(&["CONFIG", "SET", "lock.deadlock-detection", detection]);
    let mut driver = Driver::connect(server.address(), CLIENTS);
    let mut shoppers = Shoppers::new(seed);
    shoppers.start(&mut driver.lines);
    // All requests of 900 clients that come at once are one turn of the server, whatever they ask for.
    while server.conn.info_number("lock", "lock_waiters") < (CLIENTS - KEYS) as u64 {
        driver.turn(&mut shoppers, Duration::from_millis(1));
    }
    shoppers.granted = 0;
    let cpu_us = server.cpu_us();
    driver.run(&mut shoppers, time);
    let granted = shoppers.granted as f64;
    assert!(granted > 0.0, "nobody was granted anything");
    let cpu_us = (server.cpu_us() - cpu_us) / granted;
    drop(driver);
    alone(server);
    Found { granted, cpu_us }
}
