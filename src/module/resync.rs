//! Locks whose records replicas and the AOF must still get: a RESTORE has brought them, and they are sent after it.

use super::keyspace::LOCK;
use super::{clock, replication};
use crate::ffi::{Access, Ctx, Keys, OwnedStr, WrongType};
use crate::lock::model::effect;
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::time::Timestamp;
use std::cell::RefCell;

thread_local! {
    /// Locks that came by RESTORE and whose records are yet to be sent. Not at once: what is written in a notification
    /// reaches replicas before what it follows.
    static PENDING: RefCell<Vec<(Db, KeyName)>> = const { RefCell::new(Vec::new()) };
}

/// A lock came by RESTORE. The payload that the AOF has of it counts its leases from when it was made, by the clock of
/// who made it: replayed after a restart, it alone would end them early.
pub(crate) fn enqueue(db: Db, name: &[u8]) {
    PENDING.with_borrow_mut(|pending| pending.push((db, KeyName::from_slice(name))));
}

/// Whether facts are yet to be sent.
pub(crate) fn has_pending() -> bool {
    PENDING.with_borrow(|pending| !pending.is_empty())
}

/// Forgets what is owed: this node is not the one to say it.
pub(crate) fn clear() {
    PENDING.take();
}

/// A lock went to another place. It may be one of those, and to send the facts of another does no harm.
pub(crate) fn follow(db: Db, name: &[u8]) {
    if has_pending() {
        enqueue(db, name);
    }
}

/// Two databases changed places.
pub(crate) fn swap(one: Db, other: Db) {
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
pub(crate) fn flush(ctx: &mut Ctx<'_>, end: Timestamp) {
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
            replication::send(ctx, name.as_str(), record, clock::now());
        }
        // A time to live that came with it, or was set since, ends where the facts are read.
        if let Some(at_ms) = expires_at {
            ctx.replicate_expiry(name.as_str(), at_ms);
        }
    }
}
