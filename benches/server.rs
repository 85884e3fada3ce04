//! What a lock costs the server, beside the lock that people write by hand, in the same process and in turn:
//! `cargo bench --bench server`.
//!
//! CPU is the server's own account of its user and system time: on a noisy machine it is steadier than throughput.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod support;

use redis::{Pipeline, cmd};
use support::{COMPARE_AND_DELETE, Server};

const ROUNDS: usize = 7;
const PAIRS: usize = 100_000;
const PIPELINE: usize = 16;
const LOCKS: usize = 200_000;
const OWNER: &str = "5f0c2f1e-4f9b-4a1c-9d62-8f3f6f0f4c11";

impl Server {
    /// Server CPU per pair, in microseconds.
    fn pairs(&mut self, add: impl Fn(&mut Pipeline, &str)) -> f64 {
        let before = self.cpu_us();
        for first in (0..PAIRS).step_by(PIPELINE) {
            let mut pipe = redis::pipe();
            for n in first..first + PIPELINE {
                add(&mut pipe, &format!("lock:{n}"));
            }
            pipe.exec(&mut self.conn).unwrap();
        }
        (self.cpu_us() - before) / PAIRS as f64
    }

    /// Bytes of the server's memory for each of many locks.
    fn bytes_per_lock(&mut self, add: impl Fn(&mut Pipeline, &str)) -> f64 {
        let () = cmd("FLUSHALL").arg("SYNC").query(&mut self.conn).unwrap();
        let before: f64 = self.info("memory", "used_memory").parse().unwrap();
        for first in (0..LOCKS).step_by(1_000) {
            let mut pipe = redis::pipe();
            for n in first..first + 1_000 {
                add(&mut pipe, &format!("lock:{n}"));
            }
            pipe.exec(&mut self.conn).unwrap();
        }
        let after: f64 = self.info("memory", "used_memory").parse().unwrap();
        let () = cmd("FLUSHALL").arg("SYNC").query(&mut self.conn).unwrap();
        (after - before) / LOCKS as f64
    }
}

fn take(pipe: &mut Pipeline, key: &str) {
    pipe.cmd("LOCK.ACQUIRE").arg(key).arg(OWNER).arg("PX").arg(600_000);
}

fn set(pipe: &mut Pipeline, key: &str) {
    pipe.cmd("SET").arg(key).arg(OWNER).arg("NX").arg("PX").arg(600_000);
}

fn row(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    println!("{name:<46} {:>8.2} {:>8.2} {:>8.2}", values[0], values[values.len() / 2], values[values.len() - 1]);
}

fn main() {
    let mut server = Server::start(&[]);
    let version = server.info("server", "redis_version");
    println!(
        "server {version}, {ROUNDS} rounds of {PAIRS} pairs, pipelines of {PIPELINE} pairs, nothing saved, no replica"
    );
    let sha: String = cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query(&mut server.conn).unwrap();
    let (mut locks, mut scripts, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        locks.push(server.pairs(|pipe, key| {
            take(pipe, key);
            pipe.cmd("LOCK.RELEASE").arg(key).arg(OWNER);
        }));
        scripts.push(server.pairs(|pipe, key| {
            set(pipe, key);
            pipe.cmd("EVALSHA").arg(&sha).arg(1).arg(key).arg(OWNER);
        }));
        deletes.push(server.pairs(|pipe, key| {
            set(pipe, key);
            pipe.cmd("DEL").arg(key);
        }));
    }
    let ratio = |others: &[f64]| locks.iter().zip(others).map(|(lock, other)| lock / other).collect();
    let (to_scripts, to_deletes) = (ratio(&scripts), ratio(&deletes));
    println!("{:<46} {:>8} {:>8} {:>8}", "server CPU, microseconds per pair", "min", "median", "max");
    row("LOCK.ACQUIRE + LOCK.RELEASE", locks);
    row("SET NX PX + EVALSHA compare-and-delete", scripts);
    row("SET NX PX + DEL", deletes);
    row("ratio to SET NX PX + EVALSHA", to_scripts);
    row("ratio to SET NX PX + DEL", to_deletes);
    // In this order: after the locks the index of their leases is given back little by little.
    let by_hand = server.bytes_per_lock(set);
    let lock = server.bytes_per_lock(take);
    println!(
        "bytes per held lock, owner of 36 bytes: {lock:.0}; as SET NX PX: {by_hand:.0}; ratio {:.2}",
        lock / by_hand
    );
}
