//! What the nodes of a cluster tell each other: how far the fence clock of each is ahead of its wall clock.
//!
//! A slot that is moved takes its keys along, and these their fences. A key that is free in it takes nothing along, and
//! most servers do not say that a slot has come. Its next fence would be from a clock that knows nothing of the old
//! node's, and the old node's may be ahead of the wall clock: after a promotion or a start, by lock.promotion-skew-ms.

use super::clock;
use super::shell::with_manager;
use crate::ffi::peers::Peer;
use crate::ffi::{Ctx, Flags};
use crate::lock::model::fence::Fence;
use crate::lock::model::time::Timestamp;
use std::cell::{Cell, OnceCell};

/// The others hear of a fence at most so often: each message is some 2 KB to every node.
const PAUSE_US: u64 = 10_000;
/// A fence so far ahead is not from a promotion or a start but from a wall clock that was set back, and may be ahead
/// for hours.
const FAR_US: u64 = 10_000_000;
/// Then they hear of it at most so often. And so often they are told again: some could not be reached, or were not
/// there yet.
const LONG_PAUSE_US: u64 = 1_000_000;
/// What is ahead of our wall clock by more is not taken from others: one clock that was wrong would lift those of all.
const HEARD_US_MAX: u64 = 24 * 3600 * 1_000_000;

thread_local! {
    static IS_CLUSTER: OnceCell<bool> = const { OnceCell::new() };
    /// The highest fence that all have been told, by us or another node, and when we told one last.
    static BROADCAST: Cell<(Option<Fence>, Timestamp)> = const { Cell::new((None, Timestamp(0))) };
}

/// Tells the others where this node's fence clock is, if it is ahead of the wall clock and they do not know.
pub(crate) fn broadcast(ctx: &mut Ctx<'_>) {
    if is_cluster(ctx) {
        let fence = with_manager(|manager| manager.last_fence());
        if fence > BROADCAST.get().0 {
            broadcast_after(ctx, fence, PAUSE_US);
        }
    }
}

/// The same for those who did not hear of it.
pub(crate) fn tick(ctx: &mut Ctx<'_>) {
    if is_cluster(ctx) {
        let fence = with_manager(|manager| manager.last_fence());
        broadcast_after(ctx, fence, LONG_PAUSE_US);
    }
}

/// Whether this node is one of a cluster.
pub(crate) fn is_cluster(ctx: &Ctx<'_>) -> bool {
    IS_CLUSTER.with(|known| *known.get_or_init(|| ctx.flags().contains(Flags::CLUSTER)))
}

fn broadcast_after(ctx: &mut Ctx<'_>, fence: Option<Fence>, pause_us: u64) {
    let Some(fence) = fence else { return };
    let now = clock::now();
    let ahead_us = fence.get().saturating_sub(now.wall.0);
    let pause_us = if ahead_us > FAR_US { LONG_PAUSE_US } else { pause_us };
    let (told, at) = BROADCAST.get();
    let flags = ctx.flags();
    if ahead_us > 0
        && now.mono.0 >= at.0 + pause_us
        && flags.contains(Flags::PRIMARY)
        && !flags.contains(Flags::LOADING)
    {
        BROADCAST.set((told.max(Some(fence)), now.mono));
        ctx.broadcast(fence.get());
    }
}

/// The ear for the other nodes.
#[derive(Debug)]
pub struct FenceGossip;

impl Peer for FenceGossip {
    fn on_message(number: u64) {
        let believed = number.saturating_sub(clock::now().wall.0) <= HEARD_US_MAX;
        if let Some(fence) = Fence::new(number).filter(|_| believed) {
            with_manager(|manager| manager.observe_fence(fence));
            let (told, at) = BROADCAST.get();
            BROADCAST.set((told.max(Some(fence)), at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_clock_is_wrong_by_days_lifts_nobody_elses() {
        let ahead = |us: u64| clock::now().wall.0 + us;
        FenceGossip::on_message(ahead(2 * HEARD_US_MAX));
        assert_eq!(with_manager(|manager| manager.last_fence()), None);
        let told = ahead(HEARD_US_MAX / 2);
        FenceGossip::on_message(told);
        assert_eq!(with_manager(|manager| manager.last_fence()).map(Fence::get), Some(told));
    }
}
