//! Measures sequences in turn: round by round, one after the other, on the same server.

use crate::driver::{Driver, Failure, Load};
use crate::ratio::Spread;
use crate::server::Bench;
use crate::template::Sequence;
use std::time::Duration;

/// A server, and the clients that it is measured with.
pub struct Bed {
    pub server: Bench,
    pub driver: Driver,
}

/// What is measured beside others: a sequence, and which of the beds it is run on.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    pub bed: usize,
    pub sequence: &'a Sequence,
}

/// What a round gave, for each run of the sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Server CPU in microseconds, user and system.
    pub cpu_us: f64,
    pub rate: f64,
}

/// How much of a sequence is measured in a round.
#[derive(Clone, Copy, Debug)]
pub enum Slice {
    /// So many runs of it.
    Count(usize),
    /// As many as take this much of the server's CPU, as long as that takes no more than the second of time.
    Cpu(Duration, Duration),
}

/// How it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub pipeline: usize,
    pub keys: usize,
    pub slice: Slice,
    /// How many rounds there are, after one that does not count.
    pub rounds: usize,
}

/// So many runs tell about how many take as long as a slice is to be.
const TRIAL: usize = 500;
/// A slice is cut into so many parts, and these are measured in turn: what disturbs the machine for a while disturbs
/// all.
const PARTS: usize = 5;

/// One sample of each lane for each round.
pub fn in_turn(beds: &mut [Bed], lanes: &[Lane<'_>], shape: Shape) -> Result<Vec<Vec<Sample>>, Failure> {
    let mut counts = Vec::new();
    for lane in lanes {
        counts.push(beds[lane.bed].warm_up(lane.sequence, shape)?);
    }
    let mut samples = vec![Vec::new(); lanes.len()];
    for _ in 0..shape.rounds {
        let mut costs = vec![Cost::default(); lanes.len()];
        for part in 0..PARTS {
            for ((lane, count), cost) in lanes.iter().zip(&counts).zip(&mut costs) {
                let count = (part + 1) * count / PARTS - part * count / PARTS;
                cost.add(beds[lane.bed].run(lane.sequence, shape, count)?);
            }
        }
        samples.iter_mut().zip(costs).for_each(|(samples, cost)| samples.push(cost.each()));
    }
    Ok(samples)
}

/// What some runs cost together.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    runs: usize,
    cpu_us: f64,
    time: Duration,
}

impl Cost {
    fn add(&mut self, more: Cost) {
        self.runs += more.runs;
        self.cpu_us += more.cpu_us;
        self.time += more.time;
    }

    fn each(&self) -> Sample {
        Sample { cpu_us: self.cpu_us / self.runs as f64, rate: self.runs as f64 / self.time.as_secs_f64() }
    }
}

impl Bed {
    fn run(&mut self, sequence: &Sequence, shape: Shape, runs: usize) -> Result<Cost, Failure> {
        let load = Load { pipeline: shape.pipeline, keys: shape.keys, count: runs };
        let before = self.server.cpu_us();
        let time = self.driver.run(sequence, load)?;
        let cpu_us = self.server.cpu_us() - before;
        self.server.settle();
        Ok(Cost { runs, cpu_us, time })
    }

    /// Runs a slice of a sequence that does not count, and says how many runs a slice is.
    fn warm_up(&mut self, sequence: &Sequence, shape: Shape) -> Result<usize, Failure> {
        match shape.slice {
            Slice::Count(count) => self.run(sequence, shape, count).map(|_| count),
            Slice::Cpu(cpu, time) => {
                let fitting = |cost: Cost| {
                    let by_cpu = cpu.as_secs_f64() * 1e6 / cost.each().cpu_us;
                    let by_time = time.as_secs_f64() * cost.each().rate;
                    TRIAL.max(by_cpu.min(by_time) as usize)
                };
                let about = fitting(self.run(sequence, shape, TRIAL)?);
                self.run(sequence, shape, about).map(fitting)
            }
        }
    }
}

pub fn cpu_us(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.cpu_us).collect()
}

pub fn spread(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Spread {
    Spread::of(samples.iter().map(value))
}
