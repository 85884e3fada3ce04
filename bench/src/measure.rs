//! Measures sequences in turn: round by round, one after the other, on the same server.

use crate::driver::{Driver, Failure, Load};
use crate::ratio::Spread;
use crate::server::Bench;
use crate::template::Sequence;
use std::time::Duration;

/// What one slice gave, for each run of the sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Server CPU in microseconds, user and system.
    pub cpu_us: f64,
    /// Runs in a second.
    pub rate: f64,
}

/// How much of a sequence is measured at a time.
#[derive(Clone, Copy, Debug)]
pub enum Slice {
    /// So many runs of it.
    Count(usize),
    /// As many as take this much of the server's CPU, as long as that takes no more than the second of time.
    Cpu(Duration, Duration),
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many commands each connection has under way.
    pub pipeline: usize,
    /// How many keys there are.
    pub keys: usize,
    /// How long a slice is.
    pub slice: Slice,
    /// How many rounds there are, after one that does not count.
    pub rounds: usize,
}

/// So many runs tell about how many take as long as a slice is to be.
const TRIAL: usize = 500;

/// One sample of each sequence for each round.
pub fn in_turn(
    server: &mut Bench,
    driver: &mut Driver,
    sequences: &[&Sequence],
    shape: Shape,
) -> Result<Vec<Vec<Sample>>, Failure> {
    let mut counts = Vec::new();
    for sequence in sequences {
        counts.push(warm_up(server, driver, sequence, shape)?);
    }
    let mut samples = vec![Vec::new(); sequences.len()];
    for _ in 0..shape.rounds {
        for ((sequence, count), samples) in sequences.iter().zip(&counts).zip(&mut samples) {
            samples.push(one(server, driver, sequence, shape, *count)?);
        }
    }
    Ok(samples)
}

/// One sample of a sequence.
pub fn one(
    server: &mut Bench,
    driver: &mut Driver,
    sequence: &Sequence,
    shape: Shape,
    count: usize,
) -> Result<Sample, Failure> {
    let load = Load { pipeline: shape.pipeline, keys: shape.keys, count };
    let before = server.cpu_us();
    let time = driver.run(sequence, load)?;
    let cpu_us = server.cpu_us() - before;
    server.settle();
    Ok(Sample { cpu_us: cpu_us / count as f64, rate: count as f64 / time.as_secs_f64() })
}

/// Runs a slice of a sequence that does not count, and says how many runs a slice is.
pub fn warm_up(server: &mut Bench, driver: &mut Driver, sequence: &Sequence, shape: Shape) -> Result<usize, Failure> {
    match shape.slice {
        Slice::Count(count) => one(server, driver, sequence, shape, count).map(|_| count),
        Slice::Cpu(cpu, time) => {
            let fitting = |sample: Sample| {
                let by_cpu = cpu.as_secs_f64() * 1e6 / sample.cpu_us;
                let by_time = time.as_secs_f64() * sample.rate;
                TRIAL.max(by_cpu.min(by_time) as usize)
            };
            let about = fitting(one(server, driver, sequence, shape, TRIAL)?);
            one(server, driver, sequence, shape, about).map(fitting)
        }
    }
}

/// The samples' CPU, round by round.
pub fn cpu_us(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.cpu_us).collect()
}

/// The spread of a value of samples.
pub fn spread(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Spread {
    Spread::of(samples.iter().map(value))
}
