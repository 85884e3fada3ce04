//! What replicas and the AOF learn: facts, not requests. Every change to a hold is one LOCK.HOLD, the absolute state of
//! that hold; it is idempotent and decides nothing.

use super::clock;
use super::keyspace::LOCK;
use crate::ffi::record::Record;
use crate::ffi::{Access, Ctx, Flags, Keys, Name, OwnedStr, Str, WrongType};
use crate::lock::manager::records::HoldRecord;
use crate::lock::model::effect::{self, Change};
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::time::{Now, Timestamp};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;

/// The command that carries facts.
pub const COMMAND: &CStr = c"LOCK.HOLD";

thread_local! {
    /// Locks that came by RESTORE and whose facts are yet to be sent. Not at once: what is written in a notification
    /// reaches replicas before what it follows.
    static PENDING: RefCell<Vec<(Db, KeyName)>> = const { RefCell::new(Vec::new()) };
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

/// A lock came by RESTORE. The payload that the AOF has of it counts its leases from when it was made, by the clock of
/// who made it: replayed after a restart, it alone would end them early.
pub(crate) fn enqueue_resync(db: Db, name: &[u8]) {
    PENDING.with_borrow_mut(|pending| pending.push((db, KeyName::from_slice(name))));
}

/// Whether facts are yet to be sent.
pub(crate) fn has_pending_resync() -> bool {
    PENDING.with_borrow(|pending| !pending.is_empty())
}

/// Forgets what is owed: this node is not the one to say it.
pub(crate) fn clear_resync() {
    PENDING.take();
}

/// A lock went to another place. It may be one of those, and to send the facts of another does no harm.
pub(crate) fn follow_resync(db: Db, name: &[u8]) {
    if has_pending_resync() {
        enqueue_resync(db, name);
    }
}

/// Two databases changed places.
pub(crate) fn swap_resync(one: Db, other: Db) {
    PENDING.with_borrow_mut(|pending| {
        for (db, _) in pending.iter_mut() {
            *db = if *db == one {
                other
            } else if *db == other {
                one
            } else {
                *db
            };
        }
    });
}

/// Sends what is owed, until it is time to stop.
pub(crate) fn flush_resync(ctx: &mut Ctx<'_>, end: Timestamp) {
    while clock::mono() < end {
        let Some((db, name)) = PENDING.with_borrow_mut(Vec::pop) else { return };
        let name = OwnedStr::new(&name);
        ctx.select_db(db.0);
        let (records, expires_at) = match Keys::open(ctx, &LOCK, &[name.as_str()], Access::Read) {
            Ok(keys) => match keys.get(0) {
                Some(lock) => (effect::all_of(lock, KeyIndex(0)), keys.expires_at(0)),
                None => continue,
            },
            Err(WrongType) => continue,
        };
        for record in &records {
            send(ctx, name.as_str(), record, clock::now());
        }
        // A time to live that came with it, or was set since, ends where the facts are read.
        if let Some(at_ms) = expires_at {
            ctx.replicate_expiry(name.as_str(), at_ms);
        }
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
fn send(ctx: &mut Ctx<'_>, key: Str<'_>, change: &Change, now: Now) {
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
