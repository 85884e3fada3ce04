//! What a measurement gives, and what several of them give together.

use crate::driver::{Driver, Workload};
use crate::support::Server;
use std::fmt::{Display, Formatter};
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
        server: &mut Server,
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

fn commands_run(server: &mut Server) -> f64 {
    server.info("stats", "total_commands_processed").parse().unwrap()
}

pub(crate) fn median<T>(samples: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let values = sorted(samples, value);
    values[values.len() / 2]
}

fn sorted<T>(samples: &[T], value: impl Fn(&T) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = samples.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// What one is to the other in the same round: the least, the median and the most of all rounds.
pub(crate) struct Ratio {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Ratio {
    pub(crate) fn of<T>(ours: &[T], others: &[T], value: impl Fn(&T) -> f64) -> Ratio {
        let pairs: Vec<(&T, &T)> = ours.iter().zip(others).collect();
        let ratios = sorted(&pairs, |(our, other)| value(our) / value(other));
        Ratio { least: ratios[0], median: ratios[ratios.len() / 2], most: ratios[ratios.len() - 1] }
    }
}

impl Display for Ratio {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} [{:.2}, {:.2}]", self.median, self.least, self.most)
    }
}
