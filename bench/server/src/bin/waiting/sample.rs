//! What a measurement gives, and what several of them give together.

use crate::driver::{Driver, Workload};
use bench::ratio::Spread;
use bench::server::Bench;
use std::time::{Duration, Instant};

/// What one measurement of a workload gave.
pub(crate) struct Sample {
    /// Locks granted in a second.
    pub(crate) rate: f64,
    /// Server CPU in microseconds, commands that clients sent, commands that the server ran (those of scripts too):
    /// each per lock granted.
    pub(crate) cpu_us: f64,
    pub(crate) sent: f64,
    pub(crate) run: f64,
    pub(crate) wait_p50_ms: f64,
    pub(crate) wait_p99_ms: f64,
    pub(crate) wait_max_ms: f64,
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
        let (cpu_us, sent, run) = (server.cpu_us(), driver.lines.sent, commands_run(server));
        workload.tally().clear();
        let start = Instant::now();
        driver.run(workload, time);
        let seconds = start.elapsed().as_secs_f64();
        let (run, sent, cpu_us) = (commands_run(server) - run, driver.lines.sent - sent, server.cpu_us() - cpu_us);
        let tally = workload.tally();
        tally.finish();
        let granted = tally.grants.iter().sum::<u64>() as f64;
        let (most, least) = (tally.grants.iter().max().unwrap(), tally.grants.iter().min().unwrap());
        Sample {
            rate: granted / seconds,
            cpu_us: cpu_us / granted,
            sent: sent as f64 / granted,
            run: run / granted,
            wait_p50_ms: tally.waits.value_at_quantile(0.5) as f64 / 1e3,
            wait_p99_ms: tally.waits.value_at_quantile(0.99) as f64 / 1e3,
            wait_max_ms: tally.waits.max() as f64 / 1e3,
            unfairness: *most as f64 / *least as f64,
        }
    }
}

fn commands_run(server: &mut Bench) -> f64 {
    server.conn.info("stats", "total_commands_processed").parse().unwrap()
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
