//! What a measurement gives, and what several of them give together.

use crate::alone;
use crate::driver::{Driver, Workload};
use bench::ratio::Spread;
use bench::server::Bench;
use std::time::{Duration, Instant};

const WARM_UP: Duration = Duration::from_millis(300);

/// What one measurement of a workload gave.
pub(crate) struct Sample {
    /// Locks granted in a second.
    pub(crate) rate: f64,
    /// Server CPU in microseconds, and commands that clients sent: each per lock granted.
    pub(crate) cpu_us: f64,
    pub(crate) sent: f64,
    pub(crate) wait_p99_ms: f64,
    /// What the luckiest client got for each lock that the unluckiest got.
    pub(crate) unfairness: f64,
}

impl Sample {
    /// Runs a workload that is under way for some time.
    pub(crate) fn take(
        server: &mut Bench,
        driver: &mut Driver,
        workload: &mut impl Workload,
        time: Duration,
    ) -> Sample {
        let (cpu_us, sent) = (server.cpu_us(), driver.lines.sent);
        workload.tally().clear();
        let start = Instant::now();
        driver.run(workload, time);
        let seconds = start.elapsed().as_secs_f64();
        let (sent, cpu_us) = (driver.lines.sent - sent, server.cpu_us() - cpu_us);
        let tally = workload.tally();
        tally.finish();
        let granted = tally.grants.iter().sum::<u64>() as f64;
        let (most, least) = (tally.grants.iter().max().unwrap(), tally.grants.iter().min().unwrap());
        Sample {
            rate: granted / seconds,
            cpu_us: cpu_us / granted,
            sent: sent as f64 / granted,
            wait_p99_ms: tally.waits.value_at_quantile(0.99) as f64 / 1e3,
            unfairness: *most as f64 / *least as f64,
        }
    }
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

pub(crate) fn median<T>(samples: &[T], value: impl Fn(&T) -> f64) -> f64 {
    spread(samples, value).median
}

pub(crate) fn spread<T>(samples: &[T], value: impl Fn(&T) -> f64) -> Spread {
    Spread::of(samples.iter().map(value))
}

/// What one is to the other in the same round.
pub(crate) fn ratio<T>(ours: &[T], others: &[T], value: impl Fn(&T) -> f64) -> Spread {
    Spread::of(ours.iter().zip(others).map(|(our, other)| value(our) / value(other)))
}
