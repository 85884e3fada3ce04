//! What the program says by its exit code, and to people.

use crate::speaker;
use redis_lock_client::Error;
use std::ffi::OsStr;
use std::fmt::Display;

/// The command line makes no sense, or names a file that is no token (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// The answer is no: the lock is not held, or not to be broken.
pub(crate) const NO: u8 = 1;
/// The lock could not be asked for: no server, no module, no right (EX_UNAVAILABLE).
pub(crate) const UNAVAILABLE: u8 = 69;
/// The token could not be written, or is that of another lock that is held (EX_CANTCREAT).
pub(crate) const CANNOT_WRITE: u8 = 73;
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

/// Says something to people. Does not wait until they read it.
pub(crate) fn say(text: impl Display) {
    speaker::write(format!("redis-lock: {}\n", printable(text)));
}

/// A text without what controls a terminal: a server may have sent it.
pub(crate) fn printable(text: impl Display) -> String {
    let mut printable = String::new();
    for char in text.to_string().chars() {
        if char.is_control() { printable.extend(char.escape_default()) } else { printable.push(char) }
    }
    printable
}

/// The same about the lock of this key.
pub(crate) fn say_of(key: &OsStr, text: impl Display) {
    say(format_args!("{}: {text}", key.display()));
}

/// The exit code for an error of the lock, and a text for it.
pub(crate) fn of_error(error: &Error) -> (u8, String) {
    let text = error.to_string();
    let code = match error {
        Error::Server(server) => server.code().unwrap_or_default(),
        _ => "",
    };
    match error {
        Error::Refused(_) => (USAGE, text),
        _ if lease_limit(error).is_some() => {
            let limit = lease_limit(error).unwrap_or_default();
            (USAGE, format!("--lease is longer than the server allows: its lock.max-lease-ms is {limit}"))
        }
        _ if code == "WRONGPASS" => (UNAVAILABLE, "wrong user or password".to_owned()),
        _ if code == "NOAUTH" => (UNAVAILABLE, format!("{text} (set $REDISCLI_AUTH)")),
        _ if is_without_locks(error) => {
            (UNAVAILABLE, "the server has no locks: load the module redis-lock there".to_owned())
        }
        _ => (UNAVAILABLE, with_right(text)),
    }
}

/// True if the server does not know the command.
pub(crate) fn is_without_locks(error: &Error) -> bool {
    matches!(error, Error::Server(server) if server.detail().unwrap_or_default().starts_with("unknown command"))
}

/// What a server said, with the command that the user may not run as a rule for the user has it.
fn with_right(text: String) -> String {
    let command = text.split_once("run the '").and_then(|(_, rest)| rest.split_once('\''));
    match command {
        Some((command, _)) => format!("{text} (the user needs +{command})"),
        None => text,
    }
}

/// The longest lease that the server allows, in milliseconds, if this error says that it was exceeded.
pub(crate) fn lease_limit(error: &Error) -> Option<u128> {
    let Error::Server(error) = error else { return None };
    error.detail()?.strip_prefix("PX must be a whole number from 1 to ")?.parse().ok()
}
