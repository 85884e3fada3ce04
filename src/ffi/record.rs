//! The form of what we write for replicas and the AOF.

use std::ffi::CStr;

/// One record of our own kind for replicas and the AOF: `command key name number... [text]`.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The command that replays it.
    pub command: &'static CStr,
    /// The first argument after the key.
    pub name: &'a [u8],
    /// The numbers after it.
    pub numbers: Numbers,
    /// The last argument.
    pub text: Option<&'a [u8]>,
}

/// The numbers of a [`Record`].
#[derive(Clone, Copy, Debug)]
pub enum Numbers {
    /// Three of them.
    Three([i64; 3]),
    /// Five of them.
    Five([i64; 5]),
}

/// Calls one of the server's variadic functions with the parts of a record; `$head` are its arguments before the format.
macro_rules! emit {
    ($function:ident($head:expr), $key:expr, $record:expr) => {{
        let Record { command, name, numbers, text } = $record;
        let (name_at, name_len) = (name.as_ptr(), name.len());
        match (numbers, text) {
            (Numbers::Three([a, b, c]), None) => {
                api!($function($head, command.as_ptr(), c"sblll".as_ptr(), $key, name_at, name_len, a, b, c))
            }
            (Numbers::Three([a, b, c]), Some(text)) => {
                let (text_at, text_len) = (text.as_ptr(), text.len());
                api!($function(
                    $head,
                    command.as_ptr(),
                    c"sblllb".as_ptr(),
                    $key,
                    name_at,
                    name_len,
                    a,
                    b,
                    c,
                    text_at,
                    text_len
                ))
            }
            (Numbers::Five([a, b, c, d, e]), None) => {
                api!($function($head, command.as_ptr(), c"sblllll".as_ptr(), $key, name_at, name_len, a, b, c, d, e))
            }
            (Numbers::Five([a, b, c, d, e]), Some(text)) => {
                let (text_at, text_len) = (text.as_ptr(), text.len());
                api!($function(
                    $head,
                    command.as_ptr(),
                    c"sblllllb".as_ptr(),
                    $key,
                    name_at,
                    name_len,
                    a,
                    b,
                    c,
                    d,
                    e,
                    text_at,
                    text_len
                ))
            }
        }
    }};
}
pub(super) use emit;
