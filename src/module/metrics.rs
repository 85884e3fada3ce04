//! Counters, fed from outcomes and changes at the edge, and the section `INFO lock` that shows them.

use super::state::with_node;
use crate::ffi::info::InfoFields;
use crate::lock::change::{Cause, Change};
use crate::lock::fence::Fence;
use crate::lock::request::{Outcome, Refusal};
use std::cell::RefCell;
use std::ffi::CStr;

/// What happened since the start.
#[derive(Clone, Debug)]
struct Counters {
    granted: u64,
    refused: u64,
    released: u64,
    extended: u64,
    lapsed: u64,
}

thread_local! {
    static COUNTERS: RefCell<Counters> =
        const { RefCell::new(Counters { granted: 0, refused: 0, released: 0, extended: 0, lapsed: 0 }) };
}

/// Counts what a request came to.
pub(crate) fn count_outcome(outcome: &Result<Outcome, Refusal>) {
    if matches!(outcome, Ok(Outcome::Held)) {
        count(|counters| counters.refused += 1);
    }
}

/// Counts a change to a hold.
pub(crate) fn count_change(change: &Change) {
    count(|counters| match change.cause {
        Cause::Acquire => counters.granted += 1,
        Cause::Release => counters.released += 1,
        Cause::Extend => counters.extended += 1,
        Cause::Lapse => counters.lapsed += 1,
        Cause::Told => {}
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
        let (leases, fence) = with_node(|node| (node.leases_len(), node.last_fence().map_or(0, Fence::get)));
        each(c"granted", counters.granted);
        each(c"refused", counters.refused);
        each(c"released", counters.released);
        each(c"extended", counters.extended);
        each(c"lapsed", counters.lapsed);
        each(c"leases", leases as u64);
        each(c"fence_clock", fence);
    }
}
