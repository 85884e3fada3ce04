//! One-shot timers of the server. They follow the wall clock and come a few milliseconds late at times.

use super::context::{Ctx, Opaque};
use super::guard::guard;
use redis_module::raw;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

/// A timer that is set. Once it has rung it must not be stopped any more.
#[derive(Clone, Copy, Debug)]
pub struct Timer(raw::RedisModuleTimerID);

/// What a timer calls when it rings.
pub type Ring = fn(&mut Ctx<'_>);

thread_local! {
    /// Whether the server may be about to sleep: it has said so and has not slept yet, or the module hears nothing of it.
    static MAY_BE_ABOUT_TO_SLEEP: Cell<bool> = const { Cell::new(true) };
}

impl Ctx<'_> {
    /// Sets a timer.
    pub fn set_timer(&mut self, after_ms: u64, ring: Ring) -> Timer {
        let after_ms = raw::mstime_t::try_from(after_ms).unwrap_or(raw::mstime_t::MAX);
        stay_awake();
        // SAFETY: a valid context; the data is a function pointer, which `rung` makes one again.
        Timer(unsafe { api!(RedisModule_CreateTimer(self.as_ptr(), after_ms, Some(rung), ring as Opaque)) })
    }

    /// Stops a timer that has not rung yet.
    pub fn stop_timer(&mut self, timer: Timer) {
        // SAFETY: a valid context; an id that is not known any more is refused by the server.
        unsafe { api!(RedisModule_StopTimer(self.as_ptr(), timer.0, ptr::null_mut())) };
    }
}

/// The server is about to sleep, or does not say so any more; or it has slept.
pub(super) fn set_about_to_sleep(may_be: bool) {
    MAY_BE_ABOUT_TO_SLEEP.set(may_be);
}

/// Whether the server has decided for how long it will sleep before it says that it is about to, as Redis 7.0 does: then
/// it sleeps through the timers that are set later, until its tick. Clients that it has let go of are served there, so these
/// may be set by any command.
fn sleeps_through_timers() -> bool {
    // SAFETY: takes no argument.
    unsafe { api!(RedisModule_GetServerVersion()) < 0x0007_0200 }
}

/// Lets the server's next sleep end at once, if it may be on its way there and would know nothing of what is left to do.
pub(super) fn stay_awake() {
    if MAY_BE_ABOUT_TO_SLEEP.get() && sleeps_through_timers() {
        // SAFETY: a function that takes no data.
        unsafe { api!(RedisModule_EventLoopAddOneShot(Some(awake), ptr::null_mut())) };
    }
}

extern "C" fn awake(_: *mut c_void) {}

extern "C" fn rung(ctx: *mut raw::RedisModuleCtx, ring: *mut c_void) {
    // SAFETY: `set_timer` made the data of a `Ring`.
    let ring = unsafe { std::mem::transmute::<*mut c_void, Ring>(ring) };
    // SAFETY: the context of this call, made into a Ctx once.
    guard(|| ring(&mut unsafe { Ctx::lent(ctx) }));
}
