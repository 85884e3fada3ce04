//! The naive model of the core, and a world without a server in which both are played side by side.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cycles;
pub mod expiring;
pub mod naive;
mod offers;
pub mod play;
mod queue;
mod story;
mod told;
pub mod words;
pub mod world;
