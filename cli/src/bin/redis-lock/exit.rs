//! What the program says by its exit code, and to people.

use redis_lock_client::Error;
use std::fmt::Display;

/// The command line makes no sense (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// The lock could not be asked for: no server, no module, no right (EX_UNAVAILABLE).
pub(crate) const UNAVAILABLE: u8 = 69;
/// Others held the lock (EX_TEMPFAIL).
pub(crate) const CONFLICT: u8 = 75;
/// The lock was lost before the command ended.
pub(crate) const LOST: u8 = 76;
/// The command ran for too long, as timeout has it.
pub(crate) const TOO_LONG: u8 = 124;
/// The command cannot be run, as shells have it.
pub(crate) const CANNOT_RUN: u8 = 126;
/// There is no such command, as shells have it.
pub(crate) const NOT_FOUND: u8 = 127;

/// What shells answer for a process that a signal ended.
pub(crate) fn by_signal(signal: i32) -> u8 {
    128_u8.wrapping_add(u8::try_from(signal).unwrap_or(0))
}

/// Says something to people. That it cannot be said is no error.
pub(crate) fn say(text: impl Display) {
    use std::io::Write;
    // In one write, so that lines of several programs do not mix.
    drop(std::io::stderr().write_all(format!("redis-lock: {text}\n").as_bytes()));
}

/// The exit code for an error of the lock, and a text for it.
pub(crate) fn of_error(error: &Error) -> (u8, String) {
    match error {
        Error::Refused(why) => (USAGE, why.clone()),
        Error::Server(server) if is_unknown_command(server) => {
            (UNAVAILABLE, format!("the server has no locks: load the module redis-lock there ({error})"))
        }
        _ => (UNAVAILABLE, error.to_string()),
    }
}

fn is_unknown_command(error: &redis_lock_client::redis::RedisError) -> bool {
    error.detail().is_some_and(|text| text.starts_with("unknown command"))
}
