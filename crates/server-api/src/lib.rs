//! The only code that speaks C: safe types over the part of the servers' module API that this module uses.
//!
//! This crate knows nothing of locks. Every function that the server calls is guarded: a panic is caught, logged and
//! replied to, and never unwinds into the server. A function that some supported server lacks is tested for: it is a
//! null pointer there. All others are called through `api!`, and exist in Redis 7.0, the oldest supported server.
//!
//! Soundness rests on four rules, to which SAFETY comments refer by number:
//!
//! 1. The server calls the module on its main thread alone. The one exception is `free` (value.rs), which may run on a
//!    background thread and touches nothing but its value.
//! 2. What the server passes to a callback (context, arguments, key name, event data) lives until that callback
//!    returns. Types with a lifetime `'a` carry that: [`Ctx`], [`Args`], [`Str`].
//! 3. The server passes a context for each call, and one [`Ctx`] is made of it. [`Keys`] borrow it exclusively while
//!    values are open. So no value is open twice, and a value that is being changed has no other reference.
//! 4. What the module gives the server to keep lives until the server passes it back for the last time, or for ever.
//!    Such are the data of a callback, a value, and the state of a blocked client.

#![warn(missing_docs)]

/// Calls a function of the module API that Redis 7.0 has. The pointer to it is written once, at load. It is there: a
/// server that lacks a function of 7.0 does not get past the load (load.rs). To ask at each call would cost some 100
/// instructions of a lock that is taken and released. Builds with debug assertions ask.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {
        (redis_module::raw::$name.unwrap_unchecked())($($arg),*)
    };
}

pub mod acl;
pub mod alloc;
pub mod args;
pub mod blocked;
pub mod call;
pub mod client;
pub mod command;
pub mod command_info;
pub mod config;
pub mod context;
mod delivery;
pub mod event;
mod few;
pub mod guard;
pub mod info;
pub mod keys;
pub mod load;
pub mod log;
pub mod peers;
pub mod publish;
pub mod record;
mod replicate;
mod reply;
mod serving;
mod slot;
pub mod string;
pub mod time;
pub mod timer;
pub mod value;

pub use acl::Acl;
pub use args::Args;
pub use blocked::{Blocked, Parked};
pub use command::Command;
pub use command_info::CommandSpec;
pub use context::{Ctx, Flags};
pub use keys::{Access, Keys, Names, WrongType};
pub use load::{LoadError, Loader, Module};
/// For [`server_module`], whose function has types of it.
#[doc(hidden)]
pub use redis_module;
pub use serving::Serving;
pub use string::{OwnedStr, Str};
