//! The grants of a measurement, and the waits for them.

use hdrhistogram::Histogram;
use std::time::Instant;

/// What the clients got, and how long they waited for it.
pub(crate) struct Tally {
    pub(crate) grants: Vec<u64>,
    /// In microseconds.
    pub(crate) waits: Histogram<u64>,
    asked: Vec<Option<Instant>>,
}

impl Tally {
    pub(crate) fn new(clients: usize) -> Tally {
        Tally { grants: vec![0; clients], waits: Histogram::new(3).unwrap(), asked: vec![None; clients] }
    }

    pub(crate) fn asks(&mut self, client: usize, now: Instant) {
        self.asked[client] = Some(now);
    }

    pub(crate) fn gets(&mut self, client: usize, now: Instant) {
        let asked = self.asked[client].take().expect("who gets has asked");
        self.waits.record((now - asked).as_micros() as u64).expect("it grows");
        self.grants[client] += 1;
    }

    /// Begins a measurement; the waiters go on waiting.
    pub(crate) fn clear(&mut self) {
        self.grants.fill(0);
        self.waits.reset();
    }

    /// Ends a measurement. A wait that still runs counts as long as it is so far, or a starving client would not show.
    pub(crate) fn finish(&mut self) {
        let now = Instant::now();
        for asked in self.asked.iter().flatten() {
            self.waits.record((now - *asked).as_micros() as u64).expect("it grows");
        }
    }
}
