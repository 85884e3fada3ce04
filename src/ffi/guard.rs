//! Keeps panics out of the server's stack frames.

use super::log::log_warning;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};

/// Runs the body of a function that the server called. On a panic, which the hook has logged, returns None.
pub(super) fn guard<R>(body: impl FnOnce() -> R) -> Option<R> {
    // State shared with the body stays usable: the core commits only after all is checked, and borrows end with the
    // unwinding.
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Makes a panic a line in the server's log.
///
/// The standard hook would print a backtrace when RUST_BACKTRACE is set, and its symboliser frees memory that libc
/// allocated: on Valkey, which loads modules with RTLD_DEEPBIND, that aborts the server.
pub(super) fn install_hook() {
    set_hook(Box::new(|panic: &PanicHookInfo<'_>| {
        let message = panic.payload_as_str().unwrap_or("(no message)");
        match panic.location() {
            Some(at) => log_warning(&format!("panic at {}:{}: {message}", at.file(), at.line())),
            None => log_warning(&format!("panic: {message}")),
        }
    }));
}
