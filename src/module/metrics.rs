//! Counters, fed from outcomes and changes at the edge, and the section `INFO lock` that shows them.

use super::shell::with_manager;
use crate::ffi::info::InfoFields;
use crate::lock::model::effect::{Cause, Change};
use crate::lock::model::fence::Fence;
use crate::lock::model::request::{Outcome, Refusal, WaitEnd};
use hdrhistogram::Histogram;
use std::cell::{LazyCell, RefCell};
use std::ffi::CStr;

/// What happened since the start.
#[derive(Clone, Debug)]
struct Counters {
    granted: u64,
    refused: u64,
    queued: u64,
    handed_off: u64,
    timed_out: u64,
    cancelled: u64,
    deadlocks: u64,
    released: u64,
    extended: u64,
    lapsed: u64,
    broken: u64,
    sessions_closed: u64,
    taken_back: u64,
}

thread_local! {
    static COUNTERS: RefCell<Counters> = const {
        RefCell::new(Counters {
            granted: 0,
            refused: 0,
            queued: 0,
            handed_off: 0,
            timed_out: 0,
            cancelled: 0,
            deadlocks: 0,
            released: 0,
            extended: 0,
            lapsed: 0,
            broken: 0,
            sessions_closed: 0,
            taken_back: 0,
        })
    };
    /// How long those waited who were granted what they waited for, in microseconds: to two digits.
    static WAITS: LazyCell<RefCell<Histogram<u64>>> =
        LazyCell::new(|| RefCell::new(Histogram::new(2).expect("two digits are allowed")));
}

/// Counts what a request came to.
pub(crate) fn count_outcome(outcome: &Result<Outcome, Refusal>) {
    match outcome {
        Ok(Outcome::Unavailable) => count(|counters| counters.refused += 1),
        Ok(Outcome::Queued(_)) => count(|counters| counters.queued += 1),
        Err(Refusal::Deadlock(_)) => count(|counters| counters.deadlocks += 1),
        Ok(_) | Err(_) => {}
    }
}

/// Counts how a wait ended.
pub(crate) fn count_wait_end(answer: &WaitEnd) {
    count(|counters| match answer {
        WaitEnd::Granted(_) => counters.handed_off += 1,
        WaitEnd::TimedOut => counters.timed_out += 1,
        WaitEnd::Refused(Refusal::Deadlock(_)) => counters.deadlocks += 1,
        WaitEnd::Replaced | WaitEnd::HoldLost | WaitEnd::Refused(_) | WaitEnd::WrongType | WaitEnd::Redirected(_) => {
            counters.cancelled += 1;
        }
    });
}

/// Counts a wait whose client has gone.
pub(crate) fn count_cancelled() {
    count(|counters| counters.cancelled += 1);
}

/// Counts how long one waited that was granted what it waited for, in microseconds.
pub(crate) fn count_wait(us: u64) {
    // It grows as it must, up to any number there is.
    WAITS.with(|waits| waits.borrow_mut().record(us).expect("a histogram that grows takes every number"));
}

/// Counts a connection that closed while holds were bound to it.
pub(crate) fn count_session_closed() {
    count(|counters| counters.sessions_closed += 1);
}

/// Counts a change to a hold.
pub(crate) fn count_change(change: &Change) {
    count(|counters| match change.cause {
        Cause::Acquire => counters.granted += 1,
        Cause::Release => counters.released += 1,
        Cause::Close if change.ended => counters.released += 1,
        Cause::Break => counters.broken += 1,
        Cause::Extend => counters.extended += 1,
        Cause::Lapse => counters.lapsed += 1,
        Cause::RevokeUndelivered => counters.taken_back += 1,
        // A lease that was cut will lapse; what is told was counted where it was done.
        Cause::Close | Cause::Replicated => {}
    });
}

fn count(work: impl FnOnce(&mut Counters)) {
    COUNTERS.with_borrow_mut(work);
}

/// The section `INFO lock`.
#[derive(Debug)]
pub struct Section;

impl InfoFields for Section {
    fn fields(each: &mut dyn FnMut(&CStr, u64)) {
        let counters = COUNTERS.with_borrow(Counters::clone);
        let waits = |quantile| WAITS.with(|waits| waits.borrow().value_at_quantile(quantile));
        each(c"granted", counters.granted);
        each(c"refused", counters.refused);
        each(c"queued", counters.queued);
        each(c"handed_off", counters.handed_off);
        each(c"timed_out", counters.timed_out);
        each(c"cancelled", counters.cancelled);
        each(c"deadlocks", counters.deadlocks);
        each(c"released", counters.released);
        each(c"extended", counters.extended);
        each(c"lapsed", counters.lapsed);
        each(c"broken", counters.broken);
        each(c"sessions_closed", counters.sessions_closed);
        each(c"taken_back", counters.taken_back);
        with_manager(|manager| {
            each(c"waiters", manager.waiting() as u64);
            each(c"contended_keys", manager.contended() as u64);
            each(c"leases", manager.leases_len() as u64);
            each(c"session_holds", manager.sessions().len() as u64);
            each(c"fence_clock", manager.last_fence().map_or(0, Fence::get));
        });
        each(c"wait_p50_us", waits(0.5));
        each(c"wait_p99_us", waits(0.99));
        each(c"wait_max_us", waits(1.0));
    }
}
