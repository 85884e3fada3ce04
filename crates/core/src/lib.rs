//! What a lock is and what may be done with it. Pure: no server, no clock, no chance, no logging, no statics.
//!
//! The caller hands in the locks, a request and the time as a [`model::step::Step`]. It gets back an outcome, and in
//! the step the list of what happened to holds and waiters. The rest is the caller's: replies, replication, events.
//!
//! Read in this order:
//!
//! - [`model::lock`] and [`model::request`]: the lock with its invariants, and what can be asked;
//! - [`manager::serve`]: the decisions of a request ([`manager::acquire`], [`manager::release`], [`manager::extend`]),
//!   [`manager::enqueue`] for a request that must wait, and [`manager::begun`] for what then becomes of it;
//! - [`wait::table`], [`mod@wait::queue`] and [`wait::order`]: all waiters, their queues, and which goes before which;
//! - [`manager::wake`] and [`manager::jobs`]: how waits end, in a step and in the background;
//! - [`wait::deadlock`]: waits that would never end;
//! - [`model::session`]: holds that end with a connection; [`manager::lease_index`]: when leases end;
//! - [`manager::records`]: what other nodes say; [`manager::break_holds`]: what operators do;
//! - [`manager::view`]: what there is to see.
//!
//! [`collections`], [`model::fence`] and [`codec`] stand alone.

// Without the standard library there is no clock, no chance, no thread, no file and no server that it could reach.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;
// Tests print and compare as all tests do.
#[cfg(test)]
extern crate std;

pub mod codec;
pub mod collections;
pub mod manager;
pub mod model;
pub mod wait;
