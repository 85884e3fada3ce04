#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acquisition;
mod backend;
mod backoff;
mod cancel;
mod channel;
mod client;
mod clock;
mod connection;
mod errand;
mod error;
mod guard;
mod handover;
mod hold;
mod lanes;
mod listener;
mod lock;
mod notices;
mod one;
mod owner;
mod pool;
mod quorum;
#[cfg(feature = "opentelemetry")]
mod recorded;
mod renew;
mod request;
mod scope;
mod servers;
mod slot;
mod subscription;
mod sync;
#[cfg(feature = "tokio")]
mod task_guard;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod trouble;
mod turns;
mod wait;

pub use cancel::Cancel;
pub use client::Client;
pub use clock::Moment;
pub use error::Error;
pub use guard::{Guard, Held, Loss};
pub use handover::HoldToken;
pub use listener::Listener;
pub use lock::Lock;
/// The crate whose meter [`recorded`] takes.
#[cfg(feature = "opentelemetry")]
pub use opentelemetry;
pub use owner::Owner;
pub use quorum::Quorum;
#[cfg(feature = "opentelemetry")]
pub use recorded::recorded;
/// The crate whose types appear here: commands to guard, settings of connections.
pub use redis;
#[cfg(feature = "tokio")]
pub use task_guard::AsyncGuard;
