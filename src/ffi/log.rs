//! Lines of the server's log, for what an operator must act on.

use std::ffi::CString;
use std::ptr;

/// Writes one line, whatever the text: a client whose bytes are in it cannot forge another.
pub(super) fn log_warning(text: &str) {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() { line.extend(char.escape_default()) } else { line.push(char) }
    }
    let Ok(line) = CString::new(line) else { return };
    // SAFETY: the context may be null. The format takes one string, which ends with NUL and outlives the call; the text
    // itself is never a format.
    unsafe { api!(RedisModule_Log(ptr::null_mut(), c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr())) };
}
