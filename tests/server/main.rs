//! Tests against real servers. Each test starts its own; see the crate testbed.
//!
//! `REDIS_LOCK_SERVER` names another server than the `redis-server` in the path, so that the same tests run on every
//! server that is supported.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod acl;
mod agreement;
mod async_load;
mod boundary;
mod boundary_clients;
mod boundary_config;
mod boundary_panic;
mod boundary_watch;
mod clients;
mod compatibility;
mod dashboard;
mod documents;
mod effects;
mod fences;
mod lapses;
mod leases;
mod leases_freeze;
mod leases_index;
mod leases_mass;
mod link;
mod many;
mod many_cluster;
mod memory;
mod operators;
mod parked;
mod payload;
mod payloads;
mod payloads_mutated;
mod persistence;
mod picture;
mod reference;
mod replication;
mod replies;
mod replies_hold;
mod replies_state;
mod replies_syntax;
mod servers;
mod sessions;
mod sessions_cluster;
mod sessions_crowd;
mod sessions_effects;
mod sessions_nowhere;
mod sessions_races;
mod sessions_roles;
mod slots;
mod soak;
mod stream;
mod tools;
mod waiter;
mod waiting;
mod waiting_clients;
mod waiting_cluster;
mod waiting_condemned;
mod waiting_deadlock;
mod waiting_effects;
mod waiting_events;
mod waiting_info;
mod waiting_nowhere;
mod waiting_races;
mod waiting_retry;
mod waiting_roles;
mod wire;
