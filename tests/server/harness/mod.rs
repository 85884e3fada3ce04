//! What the tests share: connections, transcripts, payloads, and which servers cannot run which tests.

pub(crate) mod lapses;
pub(crate) mod link;
pub(crate) mod parked;
pub(crate) mod payload;
pub(crate) mod picture;
pub(crate) mod servers;
pub(crate) mod stream;
pub(crate) mod waiter;
pub(crate) mod wire;
