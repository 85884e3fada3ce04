//! What a lock is and what may be done with it. Pure: no server, no clock, no chance, no logging, no statics.
//!
//! The caller hands in the state, a request and the time; it gets back an outcome and the list of what happened to
//! holds, and does the rest (replies, replication, events). Read in this order: [`model::lock`] for the lock and its
//! invariants, [`model::request`] for what can be asked, [`manager::serve`] for the decisions; [`wait::table`] for who
//! waits, [`mod@wait::queue`] for where, [`wait::order`] for who goes before whom, [`manager::wake`] for how waits end,
//! [`wait::deadlock`] for those that never would; [`model::session`] for holds that end with a connection,
//! [`manager::operator`] for what operators do; [`manager::records`] for what other nodes say, [`manager`] for what
//! there is beside locks, [`manager::leases`] for when leases end; [`collections::wheel`], [`model::fence`] and
//! [`codec`] stand alone.

// It names `core` and `alloc` only, though the crate has std: tests/support/purity builds this folder by itself without
// std, which is the proof that it reads no clock and does no input or output.

#![forbid(unsafe_code)]

pub mod codec;
pub mod collections;
pub mod manager;
pub mod model;
pub mod wait;
