//! What the program says by its exit code, and to people.

use crate::speaker;
use redis_lock_client::Error;
use std::ffi::OsStr;
use std::fmt::Display;

/// The command line makes no sense (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// The answer is no: the lock is not held, or not to be broken.
pub(crate) const NO: u8 = 1;
/// The lock could not be asked for: no server, no module, no right (EX_UNAVAILABLE).
pub(crate) const UNAVAILABLE: u8 = 69;
/// The token could not be written (EX_CANTCREAT).
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
    match error {
        Error::Refused(why) => (USAGE, why.clone()),
        Error::Server(server) => {
            let detail = server.detail().unwrap_or_default();
            let text = match server.code().unwrap_or_default() {
                "WRONGPASS" => "wrong user or password".to_owned(),
                "NOPERM" => match command_of(detail) {
                    Some(command) => format!("{error} (the user needs +{command})"),
                    None => error.to_string(),
                },
                "NOAUTH" => format!("{error} (set $REDISCLI_AUTH)"),
                "ERR" if detail.starts_with("unknown command") => {
                    "the server has no locks: load the module redis-lock there".to_owned()
                }
                _ => error.to_string(),
            };
            (UNAVAILABLE, text)
        }
        _ => (UNAVAILABLE, error.to_string()),
    }
}

/// The command that a server says the user may not run, as a rule for the user has it.
fn command_of(detail: &str) -> Option<&str> {
    let (name, _) = detail.split_once("run the '")?.1.split_once('\'')?;
    Some(name)
}

/// The longest lease that the server allows, in milliseconds, if this error says that it was exceeded.
pub(crate) fn lease_limit(error: &Error) -> Option<u128> {
    let Error::Server(error) = error else { return None };
    error.detail()?.strip_prefix("PX must be a whole number from 1 to ")?.parse().ok()
}
