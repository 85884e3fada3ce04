//! The section `INFO lock`.

use super::shell::{shell, with_manager};
use lock_core::model::fence::Fence;
use server_api::info::InfoFields;
use std::ffi::CStr;

/// The section `INFO lock`.
#[derive(Debug)]
pub struct Section;

impl InfoFields for Section {
    fn fields(each: &mut dyn FnMut(&CStr, u64)) {
        let metrics = &shell().metrics;
        let counters = metrics.counters();
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
        each(c"guarded", counters.guarded);
        each(c"guard_refused", counters.guard_refused);
        each(c"shares_refused", counters.shares_refused);
        each(c"shares_queued", counters.shares_queued);
        each(c"notified", counters.notified);
        each(c"notified_unheard", counters.notified_unheard);
        with_manager(|manager| {
            each(c"waiters", manager.parked() as u64);
            each(c"waiter_bytes", manager.waiter_bytes() as u64);
            each(c"places", manager.places() as u64);
            each(c"place_bytes", manager.place_bytes() as u64);
            each(c"notify_channels", manager.channels() as u64);
            each(c"offered", manager.offered() as u64);
            each(c"shares_waiting", manager.shares_waiting() as u64);
            each(c"contended_keys", manager.contended() as u64);
            each(c"searches_cut", manager.searches_cut());
            each(c"leases", manager.leases_len() as u64);
            each(c"session_holds", manager.sessions().len() as u64);
            let left = manager.grace_left(shell().clock.mono());
            each(c"grace_left_ms", left.map_or(0, |left| left.0));
            each(c"fence_clock", manager.last_fence().map_or(0, Fence::get));
        });
        each(c"wait_p50_us", metrics.wait_us(0.5));
        each(c"wait_p99_us", metrics.wait_us(0.99));
        each(c"wait_max_us", metrics.wait_us(1.0));
    }
}
