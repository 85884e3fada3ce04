//! What replicas and the AOF learn: facts, not requests. Every change to a hold is one LOCK.HOLD, the absolute state of
//! that hold; it is idempotent and decides nothing.

use crate::ffi::record::Record;
use crate::ffi::{Ctx, Flags, Name, Str};
use crate::lock::manager::records::HoldRecord;
use crate::lock::model::effect::Change;
use crate::lock::model::time::Now;
use std::cell::Cell;
use std::ffi::CStr;

/// The command that carries facts.
pub const COMMAND: &CStr = c"LOCK.HOLD";

thread_local! {
    /// Whether somebody may listen to what is replicated: replicas, or an AOF. To build what nobody hears costs more
    /// than all else of a hand-off. Everything that may begin a stream on a primary sets it: a fork, whose snapshot the
    /// stream or the AOF goes on from, and a promotion. Only a tick that has found nobody takes it back. What is
    /// counted unheard between the attachment of a first replica and the fork for it gets into the backlog alone, and
    /// nobody can go on from before the fork. A replica of Valkey 9.1 takes its primary's RDB for its own AOF without a
    /// fork: what it counts unheard goes there as it came, and that is the same record.
    static HAS_CONSUMERS: Cell<bool> = const { Cell::new(true) };
}

/// A stream may begin from what there is now.
pub(crate) fn stream_may_begin() {
    HAS_CONSUMERS.set(true);
}

/// The server's tick: looks whether somebody listens still.
pub(crate) fn tick(ctx: &Ctx<'_>) {
    // In a cluster, those who take over slots listen too, and are in no list.
    if HAS_CONSUMERS.get() && !ctx.flags().intersects(Flags::CLUSTER | Flags::AOF) && !ctx.has_replicas() {
        HAS_CONSUMERS.set(false);
    }
}

/// Sends the changes of a step.
pub(crate) fn publish(ctx: &mut Ctx<'_>, names: &[Name<'_>], changes: &[Change], now: Now) {
    if changes.is_empty() {
        return;
    }
    if !HAS_CONSUMERS.get() {
        return ctx.mark_dirty(COMMAND);
    }
    for change in changes {
        send(ctx, names[usize::from(change.key.0)].as_str(), change, now);
    }
}

/// Sends a change.
pub(super) fn send(ctx: &mut Ctx<'_>, key: Str<'_>, change: &Change, now: Now) {
    if change.ended {
        // `key owner 0 0 fence`
        let numbers = [0, 0, change.hold.fence.get() as i64];
        ctx.replicate(key, Record { command: COMMAND, name: change.owner.as_bytes(), numbers: &numbers, text: None });
    } else {
        with_record(&HoldRecord::of(&change.owner, &change.hold, now), |line| ctx.replicate(key, line));
    }
}

/// The record of a hold that stands: `key owner reads writes fence wall-deadline-ms remaining-ms [note]`.
pub(crate) fn with_record<R>(record: &HoldRecord, each: impl FnOnce(Record<'_>) -> R) -> R {
    let numbers = [
        i64::from(record.reads),
        i64::from(record.writes),
        record.fence.map_or(0, |fence| fence.get() as i64),
        record.wall_deadline.millis() as i64,
        record.left.0 as i64,
    ];
    let text = record.note.as_ref().map(|note| &*note.0);
    each(Record { command: COMMAND, name: record.owner.as_bytes(), numbers: &numbers, text })
}
