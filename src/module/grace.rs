//! Grace after a start and after a promotion: for so long this node grants nothing (`lock_core::manager::grace`).
//!
//! Here it begins, and the log of the server says when it begins and ends. It goes by the monotonic clock of this
//! process alone. A full synchronisation and DEBUG RELOAD begin none: they bring what a primary knows, or what this
//! node has just saved.

use super::shell::{shell, with_manager};
use lock_core::model::time::Millis;
use server_api::log::{log_notice, log_warning};

/// The module is loaded, with all its configurations.
pub fn on_start() {
    let length = shell().grace_length.get();
    let lease_max = shell().bounds.get().lease_max;
    if length > Millis(0) && length < lease_max {
        log_warning(&format!(
            "lock.grace-ms ({}) is below lock.max-lease-ms ({}): a lock may be granted again while a longer lease runs",
            length.0, lease_max.0
        ));
    }
    apply();
    begin("started");
}

/// This node has become a primary.
pub(crate) fn on_promotion() {
    begin("been promoted");
}

/// The configuration of the grace is in force from now on, also for the one that runs.
pub(crate) fn apply() {
    let length = shell().grace_length.get();
    with_manager(|manager| {
        if manager.limits.grace != length {
            manager.set_grace(length, shell().clock.mono());
        }
    });
    tell_end();
}

/// Ends the grace if its time is over.
pub(crate) fn end_if_over() {
    if shell().grace_announced.get() {
        with_manager(|manager| manager.end_grace(shell().clock.mono()));
        tell_end();
    }
}

fn begin(why: &str) {
    if let Some(length) = with_manager(|manager| manager.begin_grace(shell().clock.mono())) {
        shell().grace_announced.set(true);
        log_notice(&format!(
            "no lock is granted for {} ms (lock.grace-ms): this node has {why}, and may have forgotten grants",
            length.0
        ));
    }
}

/// Says in the log that the grace is over, if it is.
fn tell_end() {
    let shell = shell();
    if shell.grace_announced.get() && with_manager(|manager| manager.grace_left(shell.clock.mono())).is_none() {
        shell.grace_announced.set(false);
        log_notice("locks are granted again: the grace is over (lock.grace-ms)");
    }
}
