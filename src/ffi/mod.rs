//! The only code that speaks C: a safe face of the servers' module API, as far as this module uses it.
//!
//! Knows nothing of locks. Every function that the server calls is guarded: a panic is caught, logged and answered, and
//! never unwinds into the server. What some server lacks is tested for (an absent function is a null pointer); what is
//! called unasked is in Redis 7.0, the oldest server there is support for.
//!
//! Soundness rests on two facts. The server calls a module on one thread, but for `free`, which may come from a
//! background thread and touches the value alone. And a [`Ctx`] exists once per call and is borrowed exclusively by
//! [`Keys`] while values are open, so no value is open twice.

#![allow(unsafe_code, reason = "this is the folder for it")]

/// Calls a function of the module API that every supported server has.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {
        (redis_module::raw::$name.expect(concat!(stringify!($name), " is in Redis 7.0")))($($arg),*)
    };
}

pub mod alloc;
mod answered;
pub mod args;
pub mod blocked;
pub mod client;
pub mod command;
pub mod config;
pub mod context;
pub mod event;
mod guard;
pub mod info;
pub mod keys;
pub mod load;
mod log;
pub mod peers;
pub mod record;
mod serving;
mod slot;
pub mod string;
pub mod timer;
pub mod value;

pub use args::Args;
pub use blocked::{Blocked, Parked};
pub use command::{Acl, Command, CommandSpec};
pub use context::{Ctx, Flags, Serving};
pub use keys::{Access, Keys, Name, WrongType};
pub use load::{LoadError, Loader, Module};
pub use string::{OwnedStr, Str};
