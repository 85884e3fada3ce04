//! The program redis-lock, beside real servers. It is judged by what the server and the command saw.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod apart;
mod codes;
mod deaths;
mod documents;
mod harness;
mod hindered;
mod holding;
mod losses;
mod messages;
mod operators;
mod process;
mod quorum;
mod servers;
mod signals;
mod stops;
mod terminal;
#[cfg(feature = "top")]
mod top;
