//! `redis-lock check`: whether an owner holds a lock under a fence.

use crate::args::Check;
use crate::backend::client;
use crate::exit;
use std::os::unix::ffi::OsStrExt;

/// Asks, and gives the exit code.
pub(crate) fn check(check: &Check) -> u8 {
    match client(&check.servers).and_then(|client| client.check(check.key.as_bytes(), &check.owner, check.fence)) {
        Ok(true) => 0,
        Ok(false) => exit::NO,
        Err(error) => {
            let (code, text) = exit::of_error(&error);
            exit::say_of(&check.key, text);
            code
        }
    }
}
