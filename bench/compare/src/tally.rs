//! What the clients of one lock got, how long they waited, and whether ever two of them held it at once.

use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// The account of one slice.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The locks that each client got.
    grants: Vec<u64>,
    /// From request to grant, in microseconds.
    waits: Histogram<u64>,
    /// From request to the answer to the release, in microseconds.
    rounds: Histogram<u64>,
    asked: Vec<Option<Instant>>,
    exclusion: Exclusion,
}

/// Checks that a lock excludes, as the code does that a lock protects: it reads a number when it holds the lock, and
/// writes the next one at the end.
#[derive(Debug, Default)]
struct Exclusion {
    inside: usize,
    left: u64,
    number: u64,
    overlaps: u64,
}

/// What a client read when it got the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry(u64);

/// What a slice gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) grants: u64,
    pub(crate) wait_p50_ms: f64,
    pub(crate) wait_p99_ms: f64,
    pub(crate) wait_max_ms: f64,
    pub(crate) round_p50_ms: f64,
    pub(crate) round_p99_ms: f64,
    /// The locks of the luckiest client, and of the unluckiest.
    pub(crate) most: u64,
    pub(crate) least: u64,
    /// The clients that got no lock while another got two or more. In a queue there are none, however slow it is.
    pub(crate) starved: u64,
    /// How often a client got the lock while another held it, or lost what another had written.
    pub(crate) overlaps: u64,
}

impl Tally {
    pub(crate) fn new(clients: usize) -> Tally {
        let histogram = || Histogram::new(3).expect("three digits are allowed");
        Tally {
            grants: vec![0; clients],
            waits: histogram(),
            rounds: histogram(),
            asked: vec![None; clients],
            exclusion: Exclusion::default(),
        }
    }

    pub(crate) fn asks(&mut self, client: usize, now: Instant) {
        self.asked[client] = Some(now);
    }

    /// A client got the lock.
    pub(crate) fn gets(&mut self, client: usize, now: Instant) -> Entry {
        let asked = self.asked[client].take().expect("a client asks before it gets");
        record(&mut self.waits, now - asked);
        self.grants[client] += 1;
        self.exclusion.enter()
    }

    /// It is about to release the lock.
    pub(crate) fn leaves(&mut self, entry: Entry) {
        self.exclusion.leave(entry);
    }

    /// The release was answered; the round began at `asked`.
    pub(crate) fn released(&mut self, asked: Instant, now: Instant) {
        record(&mut self.rounds, now - asked);
    }

    /// Begins a measurement; the waiters go on waiting. An overlap before it still counts.
    pub(crate) fn clear(&mut self) {
        self.grants.fill(0);
        self.waits.reset();
        self.rounds.reset();
    }

    /// Whether any client got the lock since.
    pub(crate) fn has_grants(&self) -> bool {
        self.grants.iter().any(|grants| *grants > 0)
    }

    /// Ends a measurement. A wait that still runs counts as long as it is so far, or a starved client would not show.
    pub(crate) fn finish(&mut self, now: Instant) -> Found {
        for asked in self.asked.iter().flatten() {
            record(&mut self.waits, now - *asked);
        }
        let most = self.grants.iter().copied().max().unwrap_or(0);
        let without = self.grants.iter().filter(|grants| **grants == 0).count() as u64;
        let ms = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Found {
            grants: self.grants.iter().sum(),
            wait_p50_ms: ms(&self.waits, 0.5),
            wait_p99_ms: ms(&self.waits, 0.99),
            wait_max_ms: self.waits.max() as f64 / 1e3,
            round_p50_ms: ms(&self.rounds, 0.5),
            round_p99_ms: ms(&self.rounds, 0.99),
            most,
            least: self.grants.iter().copied().min().unwrap_or(0),
            starved: if most >= 2 { without } else { 0 },
            overlaps: self.exclusion.faults(),
        }
    }
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.record(time.as_micros() as u64).expect("it grows");
}

impl Exclusion {
    fn enter(&mut self) -> Entry {
        self.overlaps += u64::from(self.inside > 0);
        self.inside += 1;
        Entry(self.number)
    }

    fn leave(&mut self, entry: Entry) {
        self.number = entry.0 + 1;
        self.inside -= 1;
        self.left += 1;
    }

    /// Each client that left has raised the number by one, if it was alone.
    fn faults(&self) -> u64 {
        self.overlaps.max(self.left - self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn two_holders_at_once_are_counted() {
        // A lock that does not exclude would win each comparison.
        let (mut tally, start) = (Tally::new(3), Instant::now());
        (0..3).for_each(|client| tally.asks(client, start));
        let first = tally.gets(0, start);
        tally.leaves(first);
        assert_eq!(tally.finish(start).overlaps, 0, "one after the other");
        let (second, third) = (tally.gets(1, start), tally.gets(2, start));
        tally.leaves(second);
        tally.leaves(third);
        assert_eq!(tally.exclusion.number, 2, "what one wrote is lost");
        assert_eq!(tally.finish(start).overlaps, 1);
    }

    #[test]
    fn a_client_that_got_nothing_counts_as_starved_and_its_wait_counts() {
        // The waits of clients that never get the lock end with no grant: without them the p99 would flatter.
        let (mut tally, start) = (Tally::new(3), Instant::now());
        (0..3).for_each(|client| tally.asks(client, start));
        for (client, ms) in [(0, 1), (0, 2), (1, 2)] {
            tally.asks(client, start);
            let entry = tally.gets(client, after(start, ms));
            tally.leaves(entry);
        }
        let found = tally.finish(after(start, 500));
        assert_eq!((found.grants, found.most, found.least, found.starved), (3, 2, 0, 1));
        assert!((499.0..501.0).contains(&found.wait_max_ms), "{found:?}");
        assert!((499.0..501.0).contains(&found.wait_p99_ms), "{found:?}");
        assert!((1.9..2.1).contains(&found.wait_p50_ms), "{found:?}");
    }

    #[test]
    fn a_client_of_a_slow_queue_is_not_starved() {
        // In a slice that is shorter than one turn of all clients some get none, as fair as the queue may be.
        let (mut tally, start) = (Tally::new(2), Instant::now());
        (0..2).for_each(|client| tally.asks(client, start));
        let entry = tally.gets(0, after(start, 400));
        tally.leaves(entry);
        let found = tally.finish(after(start, 500));
        assert_eq!((found.most, found.least, found.starved), (1, 0, 0));
    }

    #[test]
    fn what_came_before_a_measurement_does_not_count_but_an_overlap() {
        let (mut tally, start) = (Tally::new(2), Instant::now());
        tally.asks(0, start);
        tally.asks(1, start);
        let (one, other) = (tally.gets(0, after(start, 9)), tally.gets(1, after(start, 9)));
        tally.leaves(one);
        tally.leaves(other);
        tally.clear();
        let found = tally.finish(after(start, 10));
        assert_eq!((found.grants, found.most, found.overlaps), (0, 0, 1));
        assert_eq!(found.wait_max_ms, 0.0);
    }
}
