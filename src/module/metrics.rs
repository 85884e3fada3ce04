//! Counters, fed from outcomes and changes at the edge, and the section `INFO lock` that shows them.

use super::state;
use crate::ffi::info::InfoFields;
use crate::lock::fence::Fence;
use crate::lock::request::{Cause, Change, Outcome, Refusal};
use std::ffi::CStr;

/// What happened since the start, or since CONFIG RESETSTAT would not reset it: the counters only rise.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    granted: u64,
    refused: u64,
    released: u64,
    extended: u64,
    lapsed: u64,
}

impl Counters {
    /// All zero.
    pub(super) const fn new() -> Counters {
        Counters { granted: 0, refused: 0, released: 0, extended: 0, lapsed: 0 }
    }
}

/// Counts what a request came to.
pub(crate) fn count_outcome(outcome: &Result<Outcome, Refusal>) {
    if matches!(outcome, Ok(Outcome::Held)) {
        state::with(|state| state.counters.refused += 1);
    }
}

/// Counts a change to a hold.
pub(crate) fn count_change(change: &Change) {
    state::with(|state| {
        let counters = &mut state.counters;
        match change.cause {
            Cause::Acquire => counters.granted += 1,
            Cause::Release => counters.released += 1,
            Cause::Extend => counters.extended += 1,
            Cause::Lapse => counters.lapsed += 1,
            Cause::Told => {}
        }
    });
}

/// The section `INFO lock`.
#[derive(Debug)]
pub struct Section;

impl InfoFields for Section {
    fn fields(each: &mut dyn FnMut(&CStr, u64)) {
        let (counters, leases, fence) = state::with(|state| {
            (state.counters, state.node.leases_len(), state.node.last_fence().map_or(0, Fence::get))
        });
        each(c"granted", counters.granted);
        each(c"refused", counters.refused);
        each(c"released", counters.released);
        each(c"extended", counters.extended);
        each(c"lapsed", counters.lapsed);
        each(c"leases", leases as u64);
        each(c"fence_clock", fence);
    }
}
