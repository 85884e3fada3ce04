//! The core's node, for as long as the module is loaded. What else there is to remember lies in the file it belongs to.

use crate::lock::manager::LockManager;
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::limits::Limits;
use crate::lock::model::session::UnlinkedLock;
use crate::lock::model::time::Millis;
use std::cell::RefCell;

/// Until the configuration table has set each of these, which it does before the first command.
const NOTHING_ALLOWED: Limits = Limits {
    holders_per_key_max: 0,
    waiters_max: 0,
    waiters_per_key_max: 0,
    reserve_max: Millis(0),
    deadlock_detection: true,
    promotion_skew: Millis(0),
};

thread_local! {
    // The server calls a module on its main thread alone, but for freeing values, which needs none of this.
    static MANAGER: RefCell<LockManager> = const { RefCell::new(LockManager::new(NOTHING_ALLOWED)) };
    /// Locks that left their keys while the node was at work.
    static UNLINKED: RefCell<Vec<(Db, KeyName, UnlinkedLock)>> = const { RefCell::new(Vec::new()) };
}

/// Works with the node. Must not be called from within itself: nothing that calls the server happens inside, but
/// opening, looking at and creating locks.
pub fn with_manager<R>(work: impl FnOnce(&mut LockManager) -> R) -> R {
    MANAGER.with_borrow_mut(|manager| {
        let result = work(manager);
        if UNLINKED.with_borrow(|gone| !gone.is_empty()) {
            for (db, name, unlinked) in take_unlinked() {
                manager.on_unlinked(db, &name, &unlinked);
            }
        }
        result
    })
}

/// Those of the locks that left their keys while the node was at work that it has not heard of yet.
pub(crate) fn take_unlinked() -> Vec<(Db, KeyName, UnlinkedLock)> {
    UNLINKED.take()
}

/// A lock has left its key. Also while the node is at work: the server deletes a key that has expired when it is
/// opened.
pub fn on_unlinked(db: Db, name: &[u8], unlinked: UnlinkedLock) {
    MANAGER.with(|manager| match manager.try_borrow_mut() {
        Ok(mut manager) => manager.on_unlinked(db, name, &unlinked),
        Err(_) => UNLINKED.with_borrow_mut(|gone| gone.push((db, KeyName::from_slice(name), unlinked))),
    });
}
