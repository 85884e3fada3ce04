//! A crowd in one queue: how long it takes to queue up.

use crate::alone;
use crate::clients::Then;
use crate::driver::Driver;
use crate::rivals::{Line, list, locks};
use crate::sample::median;
use bench::server::Bench;
use std::time::Instant;

/// Queues a crowd up and serves it.
pub(crate) fn fill_table(server: &mut Bench, size: usize, rounds: usize) {
    println!("\nfilling one line with {size} clients, medians of {rounds} rounds");
    println!("{:<30} {:>10} {:>14}", "", "all ms", "cpu us each");
    let mut driver = Driver::connect(server.address(), size);
    let mut measure = |mut line: Line| {
        let (cpu_us, start) = (server.cpu_us(), Instant::now());
        line.fill(server, &mut driver);
        let sample = (start.elapsed().as_secs_f64() * 1e3, (server.cpu_us() - cpu_us) / size as f64);
        line.open.exec(&mut server.conn.0).unwrap();
        line.finish(&mut driver);
        sample
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(measure(locks(size, Then::GiveBack)));
        theirs.push(measure(list(size, Then::GiveBack)));
    }
    for (name, samples) in [("LOCK.ACQUIRE BLOCK 0", &ours), ("BLPOP 0", &theirs)] {
        println!(
            "{name:<30} {:>10.1} {:>14.2}",
            median(samples, |sample| sample.0),
            median(samples, |sample| sample.1)
        );
    }
    drop(driver);
    alone(server);
}
