//! Keeps panics out of the server's stack frames, and lets what was begun be made good before they go on.

use super::log::log_warning;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook};

/// Runs the body of a function that the server called. None if it panicked; the hook has logged that.
pub(super) fn guard<R>(body: impl FnOnce() -> R) -> Option<R> {
    // State shared with the body stays usable: a step makes good what a panic leaves undone, and unwinding ends all
    // borrows.
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// A panic that was caught, to go on later.
pub struct Caught(Box<dyn Any + Send>);

impl fmt::Debug for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caught")
    }
}

impl Caught {
    /// Lets it go on to the boundary of the call, where a command is answered by an error.
    pub fn go_on(self) -> ! {
        resume_unwind(self.0)
    }
}

/// Does a piece of work that must not leave the rest undone if it panics.
///
/// # Errors
/// The panic, which the hook has logged. What the work has changed until then stays so.
#[inline(always)]
pub fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Caught> {
    // State shared with the work: the caller makes good what was left undone.
    catch_unwind(AssertUnwindSafe(work)).map_err(Caught)
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
