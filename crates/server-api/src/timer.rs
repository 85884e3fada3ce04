//! One-shot timers of the server. They follow the wall clock, and ring a few milliseconds late at times.

use super::context::Ctx;
use super::guard::guard;
use redis_module::raw;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

/// A timer that is set. Once it rings it must not be stopped any more: the server would free it twice (trap T21 in
/// docs/internals/module-api.md).
#[derive(Clone, Copy, Debug)]
pub struct Timer(raw::RedisModuleTimerID);

/// The function that a timer calls when it rings.
pub type Ring = fn(&mut Ctx<'_>);

thread_local! {
    /// True if the server may be about to sleep: it has said so, or the module does not watch the event loop.
    static MAY_BE_ABOUT_TO_SLEEP: Cell<bool> = const { Cell::new(true) };
}

impl Ctx<'_> {
    /// Sets a timer.
    pub fn set_timer(&mut self, after_ms: u64, ring: Ring) -> Timer {
        let after_ms = raw::mstime_t::try_from(after_ms).unwrap_or(raw::mstime_t::MAX);
        stay_awake();
        // SAFETY: the context lives for this call (rule 2). The data is a function pointer, which lives for ever and
        // which `rung` turns back into one.
        Timer(unsafe { api!(RedisModule_CreateTimer(self.as_ptr(), after_ms, Some(rung), ring as *mut c_void)) })
    }

    /// Stops a timer that has not rung yet.
    pub fn stop_timer(&mut self, timer: Timer) {
        // SAFETY: the context lives for this call (rule 2). The server refuses an id that it does not know.
        unsafe { api!(RedisModule_StopTimer(self.as_ptr(), timer.0, ptr::null_mut())) };
    }
}

/// Notes whether the server may be about to sleep. Without the events of the event loop it always may.
pub(super) fn set_about_to_sleep(may_be: bool) {
    MAY_BE_ABOUT_TO_SLEEP.set(may_be);
}

/// True if the server decides how long to sleep before it announces the sleep, as Redis 7.0 does. It sleeps through
/// timers that are set after that, until its tick. Any command can set one: clients that were released are served
/// there.
fn sleeps_through_timers() -> bool {
    // SAFETY: the function takes no argument.
    unsafe { api!(RedisModule_GetServerVersion()) < 0x0007_0200 }
}

/// Ends the server's next sleep at once, if the server may have fixed its length already.
pub(super) fn stay_awake() {
    if MAY_BE_ABOUT_TO_SLEEP.get() && sleeps_through_timers() {
        // SAFETY: `awake` uses no data, so null will do.
        unsafe { api!(RedisModule_EventLoopAddOneShot(Some(awake), ptr::null_mut())) };
    }
}

extern "C" fn awake(_: *mut c_void) {}

extern "C" fn rung(ctx: *mut raw::RedisModuleCtx, ring: *mut c_void) {
    // SAFETY: `set_timer` made the data of a `Ring`, and the server passes it unchanged (rule 4).
    let ring = unsafe { std::mem::transmute::<*mut c_void, Ring>(ring) };
    // SAFETY: the server passes the context for this call; this is the only Ctx made of it (rules 2 and 3).
    guard(|| ring(&mut unsafe { Ctx::lent(ctx) }));
}
