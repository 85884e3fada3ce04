//! Messages to owners of places that are on their way.

use lock_core::model::notify::Message;
use std::cell::{Cell, RefCell};

/// Messages that are on their way.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Those of a transaction or a script, within whose reply they could come to stand.
    pub(super) held: RefCell<Vec<Message>>,
    /// True if they are spread by shard; None until the server was asked.
    pub(super) by_shard: Cell<Option<bool>>,
}
