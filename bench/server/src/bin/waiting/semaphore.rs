//! A semaphore that more clients want than it has shares, without pauses: beside a lock that as many want, and beside
//! a semaphore in a sorted set.

use crate::alone;
use crate::clients::Then;
use crate::driver::Driver;
use crate::handoff;
use crate::rivals::{locks, permit_pollers, shares};
use crate::sample::{measure, median, ratio};
use bench::server::Bench;
use std::time::Duration;

const CLIENTS: usize = 64;
const LIMIT: usize = 8;

/// Measures it.
pub(crate) fn table(server: &mut Bench, rounds: usize, time: Duration) {
    println!("\n{CLIENTS} clients, a semaphore of {LIMIT}, no pause between; medians of {rounds} rounds of {time:?}");
    let (mut ours, mut one, mut polled) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut driver = Driver::connect(server.address(), CLIENTS);
        ours.push(handoff::measure(server, &mut driver, shares(CLIENTS, LIMIT, Then::AskAgain), time));
        one.push(handoff::measure(server, &mut driver, locks(CLIENTS, Then::AskAgain), time));
        drop(driver);
        alone(server);
        let ring = permit_pollers(server, CLIENTS, LIMIT);
        polled.push(measure(server, ring, CLIENTS, time));
    }
    println!("{:<38} {:>9} {:>8} {:>8} {:>8} {:>8}", "", "grants/s", "cpu us", "sent", "p99 ms", "max/min");
    for (name, samples) in
        [("LOCK.SHARE", &ours), ("LOCK.ACQUIRE", &one), ("redis-semaphore's shape, each 10 ms", &polled)]
    {
        println!(
            "{name:<38} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>8.3}",
            median(samples, |sample| sample.rate),
            median(samples, |sample| sample.cpu_us),
            median(samples, |sample| sample.sent),
            median(samples, |sample| sample.wait_p99_ms),
            median(samples, |sample| sample.unfairness),
        );
    }
    println!(
        "server CPU of a grant: {:.2} of LOCK.ACQUIRE's, {:.2} of redis-semaphore's shape; p99 {:.3} of that",
        ratio(&ours, &one, |sample| sample.cpu_us).median,
        ratio(&ours, &polled, |sample| sample.cpu_us).median,
        ratio(&ours, &polled, |sample| sample.wait_p99_ms).median,
    );
}
