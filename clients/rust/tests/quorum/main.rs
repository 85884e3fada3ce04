//! Locks at a quorum of real servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod apart;
mod fences;
mod harness;
mod lost;
mod player;
mod refused;
mod taken;
mod waited_for;
