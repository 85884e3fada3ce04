//! Lines of the server's log, for what an operator must act on or may look for.

use std::ffi::{CStr, CString};
use std::ptr;

/// Writes one line that an operator must act on, whatever the text: a client whose bytes are in it forges no other.
pub fn log_warning(text: &str) {
    log(c"warning", text);
}

/// Writes one line that an operator may look for.
pub fn log_notice(text: &str) {
    log(c"notice", text);
}

fn log(level: &CStr, text: &str) {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() { line.extend(char.escape_default()) } else { line.push(char) }
    }
    let Ok(line) = CString::new(line) else { return };
    // SAFETY: the context may be null, and the level is a text that ends with NUL. The format takes one string, which
    // ends with NUL and outlives the call; the text itself is never a format.
    unsafe { api!(RedisModule_Log(ptr::null_mut(), level.as_ptr(), c"%s".as_ptr(), line.as_ptr())) };
}
