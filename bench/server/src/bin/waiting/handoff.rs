//! Hand-offs of one lock, without a pause, among few waiters and among many; beside a list's only element.

use crate::alone;
use crate::clients::Then;
use crate::driver::Driver;
use crate::rivals::{Line, list, locks};
use crate::sample::{Sample, ratio, spread};
use bench::goals::{self, Measured};
use bench::ratio::Spread;
use bench::server::Bench;
use serde_json::{Value, json};
use std::time::Duration;

const WARM_UP: Duration = Duration::from_millis(100);
/// With fewer clients the queue is empty at times.
const CROWDED: usize = 16;

/// Measures it, and returns what was found for other programs.
pub(crate) fn table(server: &mut Bench, sizes: &[usize], rounds: usize, time: Duration) -> Value {
    let (kind, version) = server.version();
    println!("\nhand-offs of one lock: LOCK.ACQUIRE BLOCK 0 + LOCK.RELEASE beside BLPOP 0 + LPUSH");
    println!(
        "{:>8} {:>10} {:>10} {:>20}   {:>10} {:>10} {:>20}",
        "clients", "LOCK/s", "BLPOP/s", "ratio", "LOCK cpu", "BLPOP cpu", "ratio"
    );
    let mut found = Vec::new();
    let (mut lock_rates, mut list_rates) = (Vec::new(), Vec::new());
    for &size in sizes {
        let mut driver = Driver::connect(server.address(), size);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(measure(server, &mut driver, locks(size, Then::AskAgain), time));
            theirs.push(measure(server, &mut driver, list(size, Then::AskAgain), time));
        }
        let (lock_rate, list_rate) = (spread(&ours, |sample| sample.rate), spread(&theirs, |sample| sample.rate));
        let (lock_cpu, list_cpu) = (spread(&ours, |sample| sample.cpu_us), spread(&theirs, |sample| sample.cpu_us));
        let rate_ratio = ratio(&ours, &theirs, |sample| sample.rate);
        let cpu_ratio = ratio(&ours, &theirs, |sample| sample.cpu_us);
        let goal = goals::of(Measured::HandOff(size), (kind, &version));
        let (verdict, judged) = goals::judged(goal, cpu_ratio.median);
        println!(
            "{size:>8} {:>10.0} {:>10.0} {rate_ratio:>20}   {:>10.2} {:>10.2} {cpu_ratio:>20}   {verdict}",
            lock_rate.median, list_rate.median, lock_cpu.median, list_cpu.median
        );
        found.push(json!({
            "clients": size,
            "lock": { "rate": lock_rate.json(), "cpu_us": lock_cpu.json() },
            "list": { "rate": list_rate.json(), "cpu_us": list_cpu.json() },
            "ratio": { "rate": rate_ratio.json(), "cpu": cpu_ratio.json() }, "judged": judged,
        }));
        if size >= CROWDED {
            lock_rates.push(lock_rate.median);
            list_rates.push(list_rate.median);
        }
        drop(driver);
        alone(server);
    }
    if lock_rates.len() > 1 {
        println!(
            "fastest to slowest, {CROWDED} clients and more: LOCK {:.2}, BLPOP {:.2}",
            fastest_to_slowest(lock_rates),
            fastest_to_slowest(list_rates)
        );
    }
    println!(
        "cpu: server CPU, microseconds per hand-off; ratio: of the same round, min - median - max of {rounds} rounds"
    );
    json!({ "rounds": rounds, "sizes": found })
}

/// Measures clients that wait in the server, and then go their ways.
pub(crate) fn measure(server: &mut Bench, driver: &mut Driver, mut line: Line, time: Duration) -> Sample {
    line.fill(server, driver);
    line.open.exec(&mut server.conn.0).unwrap();
    driver.run(&mut line.ring, WARM_UP);
    let sample = Sample::take(server, driver, &mut line.ring, time);
    line.finish(driver);
    sample
}

fn fastest_to_slowest(rates: Vec<f64>) -> f64 {
    let rates = Spread::of(rates);
    rates.max / rates.min
}
