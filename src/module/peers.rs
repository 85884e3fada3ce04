//! What the nodes of a cluster tell each other: how far the fence clock of each is ahead of its wall clock.
//!
//! A slot that is moved takes its keys along, and these their fences. A key that is free in it takes nothing along, and most
//! servers do not say that a slot has come. Its next fence would be from a clock that knows nothing of the old node's, and
//! the old node's may be ahead of the wall clock: after a promotion or a start, by lock.promotion-skew-ms.

use super::clock;
use super::state::with_node;
use crate::ffi::peers::Peer;
use crate::ffi::{Ctx, Flags};
use crate::lock::fence::Fence;
use crate::lock::time::Timestamp;
use std::cell::Cell;

/// The other nodes hear of it at most so often: each message is some 2 KB to every node.
const PAUSE_US: u64 = 1_000;

thread_local! {
    /// The last fence that the others were told, and when.
    static TOLD: Cell<Option<(Fence, Timestamp)>> = const { Cell::new(None) };
}

/// Tells the others where this node's fence clock is, if it is ahead of the wall clock and they do not know.
pub(crate) fn tell(ctx: &mut Ctx<'_>) {
    let flags = ctx.flags();
    if !flags.contains(Flags::CLUSTER | Flags::PRIMARY) || flags.contains(Flags::LOADING) {
        return;
    }
    let Some(fence) = with_node(|node| node.last_fence()) else { return };
    let told = TOLD.get();
    if told.is_some_and(|(told, _)| fence <= told) {
        return;
    }
    let now = clock::now();
    let is_early = told.is_some_and(|(_, at)| now.mono.0 < at.0 + PAUSE_US);
    if fence.get() > now.wall.0 && !is_early {
        TOLD.set(Some((fence, now.mono)));
        ctx.tell_peers(fence.get());
    }
}

/// The ear for the other nodes.
#[derive(Debug)]
pub struct Nodes;

impl Peer for Nodes {
    fn told(number: u64) {
        // None of ours made one that is far ahead, and it would poison this clock, too.
        if let Some(fence) = Fence::new(number).filter(|fence| !fence.is_far_ahead(clock::now().wall)) {
            with_node(|node| node.observe_fence(fence));
        }
    }
}
