//! The form of the records that the module writes for replicas and the AOF.

use std::ffi::CStr;

/// One record: `command key name word [text]`.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The command that replays it.
    pub command: &'static CStr,
    /// The first argument after the key.
    pub name: &'a [u8],
    /// The argument after it.
    pub word: &'a [u8],
    /// The last argument, if there is one more.
    pub text: Option<&'a [u8]>,
}
