//! Messages to owners of places that are on their way.

use lock_core::model::notify::Message;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Messages that are on their way.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Those that are sent before the server sleeps.
    pub(super) held: RefCell<VecDeque<Message>>,
    /// True if they are spread by shard; None until the server was asked.
    pub(super) by_shard: Cell<Option<bool>>,
}
