//! Counters, fed from outcomes and changes after each step. `INFO lock` shows them ([`super::info`]).

use hdrhistogram::Histogram;
use lock_core::model::effect::{Cause, Change};
use lock_core::model::request::{Operation, Outcome, Refusal, WaitEnd};
use std::cell::RefCell;

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    pub(crate) queued: u64,
    pub(crate) handed_off: u64,
    pub(crate) timed_out: u64,
    pub(crate) cancelled: u64,
    pub(crate) deadlocks: u64,
    pub(crate) released: u64,
    pub(crate) extended: u64,
    pub(crate) lapsed: u64,
    pub(crate) broken: u64,
    pub(crate) sessions_closed: u64,
    pub(crate) taken_back: u64,
    pub(crate) guarded: u64,
    pub(crate) guard_refused: u64,
    /// Messages to owners of places.
    pub(crate) notified: u64,
    /// Of these, those that no client of this node got.
    pub(crate) notified_unheard: u64,
    /// Of the refused requests, those for shares.
    pub(crate) shares_refused: u64,
    /// Of the queued requests, those for shares.
    pub(crate) shares_queued: u64,
}

/// Counters, and how long requests waited.
#[derive(Debug)]
pub struct Metrics {
    counters: RefCell<Counters>,
    /// How long the requests waited that were granted in the end, in microseconds: to two digits.
    waits: RefCell<Histogram<u64>>,
}

impl Metrics {
    /// Nothing has happened yet.
    pub(crate) fn new() -> Metrics {
        let waits = Histogram::new(2).expect("two digits are allowed");
        Metrics { counters: RefCell::default(), waits: RefCell::new(waits) }
    }

    /// Returns the counts until now.
    pub(crate) fn counters(&self) -> Counters {
        self.counters.borrow().clone()
    }

    /// How long this share of the granted requests waited at most, in microseconds.
    pub(crate) fn wait_us(&self, quantile: f64) -> u64 {
        self.waits.borrow().value_at_quantile(quantile)
    }

    /// Counts what a request came to.
    pub(crate) fn count_outcome(&self, operation: &Operation, outcome: &Result<Outcome, Refusal>) {
        // A grant asks nothing of this.
        let shares = || u64::from(matches!(operation, Operation::Acquire(asked) if asked.share.is_some()));
        let refused = |counters: &mut Counters| {
            counters.refused += 1;
            counters.shares_refused += shares();
        };
        let queued = |counters: &mut Counters| {
            counters.queued += 1;
            counters.shares_queued += shares();
        };
        match outcome {
            Ok(Outcome::Unavailable) | Err(Refusal::Grace(_)) => self.count(refused),
            Ok(Outcome::Placed(_)) => self.count(|counters| {
                refused(counters);
                queued(counters);
            }),
            Ok(Outcome::Queued(_)) => self.count(queued),
            Ok(Outcome::Guarded(Some(_))) => self.count(|counters| counters.guarded += 1),
            Ok(Outcome::Guarded(None)) => self.count(|counters| counters.guard_refused += 1),
            Err(Refusal::Deadlock(_)) => self.count(|counters| counters.deadlocks += 1),
            Ok(_) | Err(_) => {}
        }
    }

    /// Counts how a wait ended.
    pub(crate) fn count_wait_end(&self, answer: &WaitEnd) {
        self.count(|counters| match answer {
            WaitEnd::Granted(_) | WaitEnd::Offered { .. } => counters.handed_off += 1,
            WaitEnd::TimedOut | WaitEnd::InGrace { place: None, .. } => counters.timed_out += 1,
            // The wait goes on: without a client, or with another one.
            WaitEnd::Detached(_) | WaitEnd::InGrace { .. } | WaitEnd::TakenOver => {}
            WaitEnd::Refused(Refusal::Deadlock(_)) => counters.deadlocks += 1,
            WaitEnd::Replaced
            | WaitEnd::Left
            | WaitEnd::HoldLost
            | WaitEnd::Refused(_)
            | WaitEnd::WrongType
            | WaitEnd::Redirected(_) => {
                counters.cancelled += 1;
            }
        });
    }

    /// Counts a wait whose client has gone.
    pub(crate) fn count_cancelled(&self) {
        self.count(|counters| counters.cancelled += 1);
    }

    /// Counts how long one waited that was granted what it waited for, in microseconds.
    pub(crate) fn count_wait(&self, us: u64) {
        // It grows as it must, up to any number there is.
        self.waits.borrow_mut().record(us).expect("a histogram that grows takes every number");
    }

    /// Counts a connection that closed while holds were bound to it.
    pub(crate) fn count_session_closed(&self) {
        self.count(|counters| counters.sessions_closed += 1);
    }

    /// Counts a message to the owner of a place, which so many clients got.
    pub(crate) fn count_notified(&self, heard: usize) {
        self.count(|counters| {
            counters.notified += 1;
            counters.notified_unheard += u64::from(heard == 0);
        });
    }

    /// Counts a change to a hold.
    pub(crate) fn count_change(&self, change: &Change) {
        self.count(|counters| match change.cause {
            Cause::Acquire => counters.granted += 1,
            Cause::Release => counters.released += 1,
            Cause::Close if change.ended => counters.released += 1,
            Cause::Break => counters.broken += 1,
            Cause::Extend => counters.extended += 1,
            Cause::Lapse => counters.lapsed += 1,
            Cause::RevokeUndelivered => counters.taken_back += 1,
            // A lease that was cut will lapse; what is told was counted where it was done.
            Cause::Close | Cause::Replicated => {}
            // It was counted as granted when it was granted.
            Cause::Offer | Cause::Collect => {}
        });
    }

    fn count(&self, work: impl FnOnce(&mut Counters)) {
        work(&mut self.counters.borrow_mut());
    }
}
