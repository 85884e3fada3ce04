//! Replies that the tests of many topics expect.

pub(crate) const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The reply to a client whose wait CLIENT UNBLOCK ends with an error.
pub(crate) const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

/// The reply to a request whose place a later request of its owner has taken over.
pub(crate) const TAKEN_OVER: &str = "UNBLOCKED lock wait ended: a later request of this owner waits there now";
