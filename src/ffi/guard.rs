//! Keeps panics out of the server's stack frames.

use super::log::log_warning;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook};

/// Runs the body of a function that the server called. None if it panicked; the hook has logged that.
pub(super) fn guard<R>(body: impl FnOnce() -> R) -> Option<R> {
    // State shared with the body stays usable: the core commits only after it has checked everything, and unwinding
    // ends all borrows.
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Makes each panic one line in the server's log.
///
/// With RUST_BACKTRACE, the standard hook prints a backtrace, for which it frees memory that libc allocated. That
/// aborts Valkey, which loads modules with RTLD_DEEPBIND.
pub(super) fn install_hook() {
    set_hook(Box::new(|panic: &PanicHookInfo<'_>| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let message = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("(no message)");
        match panic.location() {
            Some(at) => log_warning(&format!("panic at {}:{}: {message}", at.file(), at.line())),
            None => log_warning(&format!("panic: {message}")),
        }
    }));
}
