//! How long a client waits for a lock, and whether all get it equally often. Waiting in the server is measured beside
//! asking again and again, and beside a lock that informs all subscribers when it is free.

use crate::alone;
use crate::clients::Then;
use crate::driver::{Driver, Workload};
use crate::rivals::{locks, pollers, redisson};
use crate::sample::{Sample, median, ratio};
use bench::server::Bench;
use std::time::Duration;

const WARM_UP: Duration = Duration::from_millis(300);

pub(crate) fn table(server: &mut Bench, sizes: &[usize], rounds: usize, time: Duration) {
    println!("\nwaiting for one lock, no pause between; medians of {rounds} rounds of {time:?}");
    println!(
        "{:<30} {:>9} {:>8} {:>8}   {:>8} {:>8} {:>8} {:>8}",
        "", "locks/s", "sent", "run", "p50 ms", "p99 ms", "max ms", "max/min"
    );
    for &size in sizes {
        let (mut ours, mut polled, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(measure(server, locks(size, Then::AskAgain).ring, size, time));
            let ring = pollers(server, size);
            polled.push(measure(server, ring, size, time));
            let listeners = redisson(server, size);
            told.push(measure(server, listeners, 2 * size, time));
        }
        row(&format!("{size} clients, LOCK"), &ours);
        row(&format!("{size} clients, SET NX each 10 ms"), &polled);
        row(&format!("{size} clients, Redisson's shape"), &told);
        println!(
            "{size} clients: p99 is {:.3} of SET NX's, {:.3} of Redisson's shape; locks/s {:.1} times SET NX's, {:.1} times \
             Redisson's shape",
            ratio(&ours, &polled, |sample| sample.wait_p99_ms).median,
            ratio(&ours, &told, |sample| sample.wait_p99_ms).median,
            ratio(&ours, &polled, |sample| sample.rate).median,
            ratio(&ours, &told, |sample| sample.rate).median,
        );
    }
    println!("sent, run: commands per lock that clients sent, that the server ran (those of scripts and INFO too)");
    println!("a wait that had not ended counts as long as it was by then; max/min: locks of one client to another's");
}

/// Measures clients that do not wait in the server.
pub(crate) fn measure(server: &mut Bench, mut workload: impl Workload, conns: usize, time: Duration) -> Sample {
    let mut driver = Driver::connect(server.address(), conns);
    workload.start(&mut driver.lines);
    driver.run(&mut workload, WARM_UP);
    let sample = Sample::take(server, &mut driver, &mut workload, time);
    drop(driver);
    alone(server);
    sample
}

fn row(name: &str, samples: &[Sample]) {
    println!(
        "{name:<30} {:>9.0} {:>8.2} {:>8.2}   {:>8.2} {:>8.2} {:>8.2} {:>8.3}",
        median(samples, |sample| sample.rate),
        median(samples, |sample| sample.sent),
        median(samples, |sample| sample.run),
        median(samples, |sample| sample.wait_p50_ms),
        median(samples, |sample| sample.wait_p99_ms),
        median(samples, |sample| sample.wait_max_ms),
        median(samples, |sample| sample.unfairness),
    );
}
