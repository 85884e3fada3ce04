//! The server's log.

use std::ffi::CString;
use std::ptr;

/// Writes a line to the server's log, for what an operator must act on. One line whatever the text: a client whose bytes
/// are in it cannot forge another.
pub(super) fn log_warning(text: &str) {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() { line.extend(char.escape_default()) } else { line.push(char) }
    }
    let Ok(line) = CString::new(line) else { return };
    // SAFETY: a null context is allowed; the format takes one string, so that text is never a format.
    unsafe { api!(RedisModule_Log(ptr::null_mut(), c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr())) };
}
