//! What replicas and the AOF learn: facts, not requests. Every change to a hold is one LOCK.HOLD, the absolute state of
//! that hold; it is idempotent and decides nothing.

use crate::ffi::context::{Numbers, Record};
use crate::ffi::{Ctx, Str};
use crate::lock::owner::Owner;
use crate::lock::request::{Change, Fact};
use crate::lock::time::Now;
use std::ffi::CStr;

/// The command that carries facts.
pub const COMMAND: &CStr = c"LOCK.HOLD";

/// Sends a change.
pub(crate) fn send(ctx: &mut Ctx<'_>, key: Str<'_>, change: &Change, now: Now) {
    match &change.hold {
        Some(hold) => with_record(&Fact::of(&change.owner, hold, now), |record| ctx.replicate(key, record)),
        None => ctx.replicate(key, removal(&change.owner, change.fence.get())),
    }
}

/// The record of a hold that stands: `key owner reads writes fence wall-deadline-ms remaining-ms [note]`.
pub(crate) fn with_record<R>(fact: &Fact, each: impl FnOnce(Record<'_>) -> R) -> R {
    each(Record {
        command: COMMAND,
        name: fact.owner.as_bytes(),
        numbers: Numbers::Five([
            i64::from(fact.reads),
            i64::from(fact.writes),
            fact.fence.map_or(0, |fence| fence.get() as i64),
            fact.wall_deadline.millis() as i64,
            fact.left.0 as i64,
        ]),
        text: fact.note.as_ref().map(|note| &*note.0),
    })
}

/// The record of a hold that is gone: `key owner 0 0 fence`.
fn removal(owner: &Owner, fence: u64) -> Record<'_> {
    Record { command: COMMAND, name: owner.as_bytes(), numbers: Numbers::Three([0, 0, fence as i64]), text: None }
}
