//! Tests against real servers. Each test starts its own; see the crate testbed.
//!
//! `REDIS_LOCK_SERVER` names another server than the `redis-server` in the path, so that the same tests run on every
//! server that is supported.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cluster;
mod commands;
mod docs;
mod grace;
mod guard;
mod harness;
mod leases;
mod notify;
mod operators;
mod persistence;
mod places;
mod replication;
mod sessions;
mod shares;
mod waiting;
