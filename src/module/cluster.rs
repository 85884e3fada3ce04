//! What the nodes of a cluster tell each other: how far the fence clock of each is ahead of its wall clock.
//!
//! A slot that moves takes its keys along, and these their fences. A key that is free takes nothing along, and most
//! servers do not say that a slot has come. Its next fence would be from a clock that knows nothing of the old node's
//! clock. That one may be ahead of the wall clock: after a promotion or a start, by lock.promotion-skew-ms.

use lock_core::model::fence::Fence;
use lock_core::model::time::{Now, Timestamp};
use server_api::{Ctx, Flags};
use std::cell::{Cell, OnceCell};

/// The pause between two broadcasts: each message is some 2 KB to every node.
const PAUSE_US: u64 = 10_000;
/// A fence so far ahead is not from a promotion or a start but from a wall clock that was set back, and may be ahead
/// for hours.
const FAR_US: u64 = 10_000_000;
/// The pause between two broadcasts of such a fence, and of one that was told before: some nodes could not be reached,
/// or were not there yet.
const LONG_PAUSE_US: u64 = 1_000_000;
/// The most by which a heard fence may be ahead of this wall clock: else one wrong clock would lift those of all.
const HEARD_US_MAX: u64 = 24 * 3600 * 1_000_000;

/// The fences that this node has told the others, and heard from them.
#[derive(Debug)]
pub struct FenceGossip {
    is_cluster: OnceCell<bool>,
    /// The highest fence that all have been told, by this node or another.
    told: Cell<Option<Fence>>,
    /// When this node told one last.
    told_at: Cell<Timestamp>,
}

impl FenceGossip {
    /// Nothing was told or heard yet.
    pub(crate) fn new() -> FenceGossip {
        FenceGossip { is_cluster: OnceCell::new(), told: Cell::new(None), told_at: Cell::new(Timestamp(0)) }
    }

    /// True if this node is one of a cluster.
    pub(crate) fn is_cluster(&self, ctx: &Ctx<'_>) -> bool {
        *self.is_cluster.get_or_init(|| ctx.flags().contains(Flags::CLUSTER))
    }

    /// Tells the others the last fence of this node, if it is ahead of the wall clock and they do not know it.
    pub(crate) fn broadcast(&self, ctx: &mut Ctx<'_>, fence: Option<Fence>, now: impl FnOnce() -> Now) {
        if self.is_cluster(ctx) && fence > self.told.get() {
            self.broadcast_after(ctx, fence, PAUSE_US, now());
        }
    }

    /// The server's tick: tells it again to nodes that could not be reached.
    pub(crate) fn tick(&self, ctx: &mut Ctx<'_>, fence: Option<Fence>, now: Now) {
        if self.is_cluster(ctx) {
            self.broadcast_after(ctx, fence, LONG_PAUSE_US, now);
        }
    }

    fn broadcast_after(&self, ctx: &mut Ctx<'_>, fence: Option<Fence>, pause_us: u64, now: Now) {
        let Some(fence) = fence else { return };
        let ahead_us = fence.get().saturating_sub(now.wall.0);
        let pause_us = if ahead_us > FAR_US { LONG_PAUSE_US } else { pause_us };
        let flags = ctx.flags();
        if ahead_us > 0
            && now.mono.0 >= self.told_at.get().0 + pause_us
            && flags.contains(Flags::PRIMARY)
            && !flags.contains(Flags::LOADING)
        {
            self.told.set(self.told.get().max(Some(fence)));
            self.told_at.set(now.mono);
            ctx.broadcast(fence.get());
        }
    }

    /// Another node has told this number: the fence that this node's clock must pass, if it is to be believed.
    pub(crate) fn on_message(&self, number: u64, now: Now) -> Option<Fence> {
        let is_credible = number.saturating_sub(now.wall.0) <= HEARD_US_MAX;
        let fence = Fence::new(number).filter(|_| is_credible)?;
        self.told.set(self.told.get().max(Some(fence)));
        Some(fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::model::time::WallTime;

    #[test]
    fn a_node_whose_clock_is_wrong_by_days_lifts_nobody_elses() {
        let (gossip, wall) = (FenceGossip::new(), 1_700_000_000_000_000);
        let now = Now { mono: Timestamp(0), wall: WallTime(wall) };
        assert_eq!(gossip.on_message(wall + 2 * HEARD_US_MAX, now), None);
        let told = wall + HEARD_US_MAX / 2;
        assert_eq!(gossip.on_message(told, now).map(Fence::get), Some(told));
    }
}
