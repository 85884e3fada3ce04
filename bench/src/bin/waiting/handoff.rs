//! Hand-offs of one lock, without a pause, among few and among many who wait; beside a list's only element.

use crate::clients::Then;
use crate::driver::Driver;
use crate::rivals::{Line, list, locks};
use crate::sample::{Ratio, Sample, median};
use crate::support::Server;
use std::time::Duration;

const WARM_UP: Duration = Duration::from_millis(100);
/// With fewer clients the line is empty at times.
const CROWDED: usize = 16;

pub(crate) fn table(server: &mut Server, sizes: &[usize], rounds: usize, time: Duration) {
    println!("\nhand-offs of one lock: LOCK.ACQUIRE BLOCK 0 + LOCK.RELEASE beside BLPOP 0 + LPUSH");
    println!(
        "{:>8} {:>10} {:>10} {:>18}   {:>10} {:>10} {:>18}",
        "clients", "LOCK/s", "BLPOP/s", "ratio", "LOCK cpu", "BLPOP cpu", "ratio"
    );
    let (mut lock_rates, mut list_rates) = (Vec::new(), Vec::new());
    for &size in sizes {
        let mut driver = Driver::connect(server.address(), size);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(measure(server, &mut driver, locks(size, Then::AskAgain), time));
            theirs.push(measure(server, &mut driver, list(size, Then::AskAgain, 1), time));
        }
        let (lock_rate, list_rate) = (median(&ours, |sample| sample.rate), median(&theirs, |sample| sample.rate));
        println!(
            "{size:>8} {lock_rate:>10.0} {list_rate:>10.0} {:>18}   {:>10.2} {:>10.2} {:>18}",
            Ratio::of(&ours, &theirs, |sample| sample.rate).to_string(),
            median(&ours, |sample| sample.cpu_us),
            median(&theirs, |sample| sample.cpu_us),
            Ratio::of(&ours, &theirs, |sample| sample.cpu_us).to_string(),
        );
        if size >= CROWDED {
            lock_rates.push(lock_rate);
            list_rates.push(list_rate);
        }
        drop(driver);
        server.alone();
    }
    if lock_rates.len() > 1 {
        println!(
            "fastest to slowest, {CROWDED} clients and more: LOCK {:.2}, BLPOP {:.2}",
            spread(&lock_rates),
            spread(&list_rates)
        );
    }
    println!(
        "cpu: server CPU, microseconds per hand-off; ratio: of the same round, median [least, most] of {rounds} rounds"
    );
}

fn measure(server: &mut Server, driver: &mut Driver, mut line: Line, time: Duration) -> Sample {
    line.fill(server, driver);
    line.open.exec(&mut server.conn).unwrap();
    driver.run(&mut line.ring, WARM_UP);
    let sample = Sample::take(server, driver, &mut line.ring, time);
    line.finish(driver);
    sample
}

fn spread(rates: &[f64]) -> f64 {
    let (most, least) =
        rates.iter().fold((0.0, f64::INFINITY), |(most, least), &rate| (rate.max(most), rate.min(least)));
    most / least
}
