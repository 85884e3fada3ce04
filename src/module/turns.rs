//! The turns of the server's loop. To hear of each costs the server most of a microsecond, whatever it does in it, and
//! that is a sixth of what a client's lone command costs it. So we listen only while there may be something to do
//! between two turns: while somebody waits, while holds are bound to connections, and while timers ring; and always in
//! a cluster.

use super::server_events::ServerEvents;
use super::shell::with_manager;
use super::{alarm, cluster, waiting};
use crate::ffi::Ctx;
use crate::lock::manager::LockManager;
use std::cell::Cell;

thread_local! {
    static WATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Listens from now on, at least until the next tick.
pub(crate) fn watch(ctx: &mut Ctx<'_>) {
    if !WATCHES.replace(true) {
        ctx.watch_event_loop::<ServerEvents>();
    }
}

/// Whether the node may have to do something between two turns, while nobody listens to them.
pub(crate) fn must_watch(manager: &LockManager) -> bool {
    !WATCHES.get() && (!manager.sessions().is_empty() || manager.has_jobs())
}

/// The server's tick: listens no more when there is no need.
pub(crate) fn tick(ctx: &mut Ctx<'_>) {
    if cluster::is_cluster(ctx) {
        watch(ctx);
    } else if WATCHES.get() && !is_needed() {
        ctx.set_timer(0, stop);
    }
}

fn stop(ctx: &mut Ctx<'_>) {
    // Each tick until this rings sets another, and the first has stopped it already.
    if WATCHES.get() && !is_needed() {
        WATCHES.set(false);
        ctx.unwatch_event_loop();
    }
}

fn is_needed() -> bool {
    alarm::is_ringing()
        || waiting::has_clients()
        || with_manager(|manager| !manager.sessions().is_empty() || manager.has_jobs())
}
