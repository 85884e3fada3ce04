//! The form of what we write for replicas and the AOF.

use std::ffi::CStr;

/// One record of our own kind for replicas and the AOF: `command key name number...`.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The command that replays it.
    pub command: &'static CStr,
    /// The first argument after the key.
    pub name: &'a [u8],
    /// The arguments after it.
    pub rest: Rest<'a>,
}

/// How a [`Record`] goes on: the server's functions take arguments of fixed numbers only.
#[derive(Clone, Copy, Debug)]
pub enum Rest<'a> {
    /// Three numbers.
    Three([i64; 3]),
    /// Five numbers.
    Five([i64; 5]),
    /// Five numbers and a text.
    FiveAndText([i64; 5], &'a [u8]),
}

/// Calls one of the server's variadic functions with the parts of a record; `$head` are its arguments before the format.
macro_rules! emit {
    ($function:ident($head:expr), $key:expr, $record:expr) => {{
        let Record { command, name, rest } = $record;
        let (at, len) = (name.as_ptr(), name.len());
        // The formats: s a string of the server's, b bytes and their length, l a number.
        match rest {
            Rest::Three([a, b, c]) => {
                api!($function($head, command.as_ptr(), c"sblll".as_ptr(), $key, at, len, a, b, c))
            }
            Rest::Five([a, b, c, d, e]) => {
                api!($function($head, command.as_ptr(), c"sblllll".as_ptr(), $key, at, len, a, b, c, d, e))
            }
            Rest::FiveAndText([a, b, c, d, e], text) => {
                let (text, size) = (text.as_ptr(), text.len());
                let format = c"sblllllb".as_ptr();
                api!($function($head, command.as_ptr(), format, $key, at, len, a, b, c, d, e, text, size))
            }
        }
    }};
}
pub(super) use emit;
