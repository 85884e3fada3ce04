//! A grace: for a while after a start or a promotion a node grants nothing.

use super::request::WaiterId;
use super::time::Timestamp;
use alloc::vec::Vec;

/// A grace that runs, or whose end was not noticed yet.
#[derive(Debug)]
pub(crate) struct Grace {
    /// When it began.
    pub(crate) begun: Timestamp,
    /// Waiters that are in cycles, though only places in queues keep them waiting. When the grace is over, each goes
    /// before the others of its cycle.
    pub(crate) in_cycles: Vec<WaiterId>,
}
