//! The core's node, for as long as the module is loaded. What else there is to remember lies in the file it belongs to.

use crate::lock::limits::Limits;
use crate::lock::node::Node;
use crate::lock::time::Millis;
use std::cell::RefCell;

/// Until the configuration table has set each of these, which it does before the first command.
const NOTHING_ALLOWED: Limits = Limits {
    lease_default: Millis(0),
    lease_max: Millis(0),
    owner_bytes_max: 0,
    note_bytes_max: 0,
    holders_per_key_max: 0,
    promotion_skew: Millis(0),
};

thread_local! {
    // The server calls a module on its main thread alone, but for freeing values, which needs none of this.
    static NODE: RefCell<Node> = const { RefCell::new(Node::new(NOTHING_ALLOWED)) };
}

/// Works with the node. Must not be called from within itself: nothing that calls the server happens inside, but
/// creating a lock.
pub fn with_node<R>(work: impl FnOnce(&mut Node) -> R) -> R {
    NODE.with_borrow_mut(work)
}
