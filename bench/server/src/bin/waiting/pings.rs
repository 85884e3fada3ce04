//! What another client sees of the server while it is busy with a crowd.

use crate::sample::median;
use hdrhistogram::Histogram;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// How long it was measured, and how long each PING took.
pub(crate) struct Pings {
    pub(crate) ms: f64,
    pub(crate) us: Histogram<u64>,
}

impl Pings {
    /// One PING after the other, as long as it goes on, which is checked between two.
    pub(crate) fn while_it(other: &mut TcpStream, mut goes_on: impl FnMut() -> bool) -> Pings {
        let mut us = Histogram::new(3).unwrap();
        let start = Instant::now();
        while goes_on() {
            let sent = Instant::now();
            other.write_all(b"PING\r\n").unwrap();
            other.read_exact(&mut [0; 7]).unwrap();
            us.record(sent.elapsed().as_micros() as u64).expect("it grows");
        }
        Pings { ms: start.elapsed().as_secs_f64() * 1e3, us }
    }
}

/// A row of the table: medians of the rounds, and the worst of all.
pub(crate) fn row(name: &str, pings: &[Pings]) {
    println!(
        "{name:<30} {:>10.1} {:>10.0} {:>10.2} {:>10.2} {:>10.2}",
        median(pings, |pings| pings.ms),
        median(pings, |pings| pings.us.len() as f64),
        median(pings, |pings| pings.us.value_at_quantile(0.99) as f64 / 1e3),
        median(pings, |pings| pings.us.max() as f64 / 1e3),
        pings.iter().map(|pings| pings.us.max()).max().unwrap() as f64 / 1e3,
    );
}
