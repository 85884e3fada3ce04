//! What replicas and the AOF get: records, not requests. Every change to a hold is one LOCK.HOLD: its absolute state,
//! which is idempotent and decides nothing. Each word costs the server a thousand instructions. So the end of a
//! writer has no owner.

use lock_core::model::effect::{Change, Record as Told};
use lock_core::model::owner::{Note, Owner};
use lock_core::model::state::State;
use lock_core::model::time::Now;
use server_api::record::Record;
use server_api::{Ctx, Flags, Names, Str};
use std::cell::Cell;
use std::ffi::CStr;

/// The command that carries a record.
pub const COMMAND: &CStr = c"LOCK.HOLD";

/// The stream of records to replicas and to the AOF.
#[derive(Debug)]
pub struct Stream {
    /// True while a replica, the backlog or the AOF may consume the stream. Building records that nobody reads costs
    /// more than the rest of a hand-off.
    ///
    /// Everything that may begin a stream on a primary sets it: a promotion, and a fork, whose snapshot the stream or
    /// the AOF goes on from. Only a tick that has found no consumer clears it.
    ///
    /// Between the attachment of a first replica and the fork for it, changes are only counted. They get into the
    /// backlog alone, and no replica can go on from before the fork. A replica of Valkey 9.1 takes its primary's RDB
    /// for its own AOF without a fork. What it only counts goes there as it came, and that is the same record.
    has_consumers: Cell<bool>,
}

impl Stream {
    /// A stream that may have consumers.
    pub(crate) fn new() -> Stream {
        Stream { has_consumers: Cell::new(true) }
    }

    /// A consumer may begin to read from what there is now.
    pub(crate) fn may_begin(&self) {
        self.has_consumers.set(true);
    }

    /// The server's tick: asks whether there are consumers still.
    pub(crate) fn tick(&self, ctx: &Ctx<'_>) {
        // In a cluster, nodes that take over slots consume the stream too, and are in no list.
        if self.has_consumers.get() && !ctx.flags().intersects(Flags::CLUSTER | Flags::AOF) && !ctx.has_replicas() {
            self.has_consumers.set(false);
        }
    }

    /// Sends the changes of a step.
    pub(crate) fn publish(&self, ctx: &mut Ctx<'_>, names: &Names<'_>, changes: &[Change], now: Now) {
        if changes.iter().all(|change| change.record == Told::Sent) {
            return;
        }
        if !self.has_consumers.get() {
            return ctx.mark_dirty(COMMAND);
        }
        send_all(ctx, names, changes, now);
    }
}

// Kept out of the way of servers without a consumer.
#[inline(never)]
fn send_all(ctx: &mut Ctx<'_>, names: &Names<'_>, changes: &[Change], now: Now) {
    for change in changes {
        send(ctx, names.get(change.key.0), change, now);
    }
}

/// Sends the record of one change.
pub(crate) fn send(ctx: &mut Ctx<'_>, key: Str<'_>, change: &Change, now: Now) {
    let Change { owner, hold, .. } = change;
    if change.record == Told::Sent {
    } else if change.record == Told::Emptied {
        ctx.replicate_unlink(key);
    } else if change.ends_writer() {
        ctx.replicate_word(COMMAND, key, State::end(Some(hold.fence())).word().as_bytes());
    } else if change.ended {
        with_record(owner, State::end(Some(hold.fence())), None, |record| ctx.replicate(key, record));
    } else {
        with_record(owner, State::of(hold, now), hold.note(), |record| ctx.replicate(key, record));
    }
}

/// Makes the record of an owner's hold: `key owner state [note]`.
pub(crate) fn with_record(owner: &Owner, state: State, note: Option<&Note>, each: impl FnOnce(Record<'_>)) {
    let (word, text) = (state.word(), note.map(|note| &*note.0));
    each(Record { command: COMMAND, name: owner.as_bytes(), word: word.as_bytes(), text });
}
