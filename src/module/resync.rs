//! Locks that a RESTORE has brought, and whose records replicas and the AOF must still get.
//!
//! The payload that the AOF has of such a lock counts its leases from when the payload was made, by the clock of its
//! maker. Replayed after a restart, it alone would end them early. The records cannot go out at once: what is written
//! in a notification reaches replicas before what it follows. So the background sends them.

use lock_core::model::key::{Db, PlainName};
use lock_core::model::owner::Owner;
use std::cell::RefCell;

/// A lock whose records are yet to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Unsent {
    pub(crate) db: Db,
    pub(crate) name: PlainName,
    /// The last owner whose record was sent: a lock of many holders is sent in pieces.
    pub(crate) after: Option<Owner>,
}

/// Locks whose records are yet to be sent.
#[derive(Debug, Default)]
pub struct Resync(RefCell<Vec<Unsent>>);

impl Resync {
    /// A lock came by RESTORE.
    pub(crate) fn enqueue(&self, db: Db, name: &[u8]) {
        self.push(Unsent { db, name: PlainName::from_slice(name), after: None });
    }

    /// The rest of a lock is to be sent later.
    pub(crate) fn push(&self, unsent: Unsent) {
        self.0.borrow_mut().push(unsent);
    }

    /// True if records are yet to be sent.
    pub(crate) fn has_pending(&self) -> bool {
        !self.0.borrow().is_empty()
    }

    /// The next lock whose records are to be sent, which is taken out.
    pub(crate) fn pop(&self) -> Option<Unsent> {
        self.0.borrow_mut().pop()
    }

    /// Drops all of them: this node is not the one that sends records.
    pub(crate) fn clear(&self) {
        self.0.take();
    }

    /// A lock moved to another key. It may be one of those, and to send the records of another does no harm.
    pub(crate) fn follow(&self, db: Db, name: &[u8]) {
        if self.has_pending() {
            self.enqueue(db, name);
        }
    }

    /// Two databases changed places.
    pub(crate) fn swap(&self, one: Db, other: Db) {
        for Unsent { db, .. } in self.0.borrow_mut().iter_mut() {
            *db = if *db == one {
                other
            } else if *db == other {
                one
            } else {
                *db
            };
        }
    }
}
