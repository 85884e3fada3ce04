//! The last holds that their owners lost: by a lapse, a break, or a closed connection. A ring in memory, never saved.

use crate::ffi::Ctx;
use crate::lock::change::{Cause, Change};
use crate::lock::fence::Fence;
use crate::lock::hold::Mode;
use crate::lock::key::{Db, KeyName};
use crate::lock::owner::{Note, Owner};
use crate::lock::time::{Millis, Now};
use std::cell::RefCell;
use std::collections::VecDeque;

/// A hold that was lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Its number; the next one has the next.
    pub id: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// How.
    pub reason: Reason,
    /// In which database.
    pub db: Db,
    /// On which key.
    pub key: KeyName,
    /// Whose it was.
    pub owner: Owner,
    /// The stronger of its modes.
    pub mode: Mode,
    /// Its fence.
    pub fence: Fence,
    /// How long it was held.
    pub held: Millis,
    /// What its holder said about itself.
    pub note: Option<Note>,
}

/// How a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its lease ended.
    Lapse,
    /// An operator ended it.
    Break,
    /// Its connection closed, and nobody bound it anew.
    Session,
}

struct Ring {
    rows: VecDeque<Lost>,
    len_max: usize,
    given: u64,
}

thread_local! {
    static RING: RefCell<Ring> = const { RefCell::new(Ring { rows: VecDeque::new(), len_max: 0, given: 0 }) };
}

/// Takes note of a change, if a hold was lost by it.
pub(crate) fn note(ctx: &Ctx<'_>, key: &[u8], change: &Change, now: Now) {
    if !change.ended {
        return;
    }
    let reason = match change.cause {
        Cause::Lapse if change.hold.is_orphaned() => Reason::Session,
        Cause::Lapse => Reason::Lapse,
        Cause::Break => Reason::Break,
        Cause::Close => Reason::Session,
        // Its owner knows, or never knew that it had it.
        Cause::Acquire | Cause::Release | Cause::Extend | Cause::TakeBack | Cause::Told => return,
    };
    RING.with_borrow_mut(|ring| {
        if ring.len_max == 0 {
            return;
        }
        ring.given += 1;
        ring.rows.truncate(ring.len_max - 1);
        ring.rows.push_front(Lost {
            id: ring.given,
            at_ms: now.wall.0 / 1000,
            reason,
            db: Db(ctx.db()),
            key: KeyName::from_slice(key),
            owner: change.owner.clone(),
            mode: change.hold.mode(),
            fence: change.hold.fence,
            held: change.hold.since().ago(now.mono),
            note: change.hold.note().cloned(),
        });
    });
}

/// The last ones, at most so many, the latest first.
#[must_use]
pub fn last(most: usize) -> Vec<Lost> {
    RING.with_borrow(|ring| ring.rows.iter().take(most).cloned().collect())
}

/// Forgets all of them.
pub fn reset() {
    RING.with_borrow_mut(|ring| ring.rows.clear());
}

/// How many are remembered at most.
#[must_use]
pub fn len_max() -> usize {
    RING.with_borrow(|ring| ring.len_max)
}

/// Sets how many are remembered.
pub(crate) fn set_len_max(len_max: usize) {
    RING.with_borrow_mut(|ring| {
        ring.len_max = len_max;
        ring.rows.truncate(len_max);
    });
}
