//! The pure core against a naive model of it, at random and exhaustively. No server, no clock: time is an argument.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bites;
mod codec;
mod deadlocks;
mod ends;
mod exhaustive;
mod expiring;
mod expiry;
mod fences;
mod incoming;
mod naive;
mod places;
mod queue;
mod random;
mod sessions;
mod shares;
mod state;
mod told;
mod units;
mod waiting;
mod work;
mod world;
