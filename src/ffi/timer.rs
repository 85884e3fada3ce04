//! One-shot timers of the server. They follow the wall clock and come a few milliseconds late at times.

use super::context::{Ctx, Opaque};
use super::guard::guard;
use redis_module::raw;
use std::ffi::c_void;
use std::ptr;

/// A timer that is set. Once it has rung it must not be stopped any more.
#[derive(Clone, Copy, Debug)]
pub struct Timer(raw::RedisModuleTimerID);

/// What a timer calls when it rings.
pub type Ring = fn(&mut Ctx<'_>);

impl Ctx<'_> {
    /// Sets a timer.
    pub fn set_timer(&mut self, after_ms: u64, ring: Ring) -> Timer {
        let after_ms = raw::mstime_t::try_from(after_ms).unwrap_or(raw::mstime_t::MAX);
        // SAFETY: a valid context; the data is a function pointer, which `rung` makes one again.
        Timer(unsafe { api!(RedisModule_CreateTimer(self.as_ptr(), after_ms, Some(rung), ring as Opaque)) })
    }

    /// Stops a timer that has not rung yet.
    pub fn stop_timer(&mut self, timer: Timer) {
        // SAFETY: a valid context; an id that is not known any more is refused by the server.
        unsafe { api!(RedisModule_StopTimer(self.as_ptr(), timer.0, ptr::null_mut())) };
    }
}

impl Ctx<'_> {
    /// Keeps the server from going to sleep before it has looked at its timers once more. To be called when one is set where
    /// [`ServerEvent::BeforeSleep`](super::event::ServerEvent::BeforeSleep) comes from, or later: Redis 7.0 has decided by
    /// then how long it is going to sleep, at most until its next tick.
    pub fn stay_awake(&mut self) {
        // SAFETY: takes no argument. Valkey says its own number, and has had none below 7.2.
        if unsafe { api!(RedisModule_GetServerVersion()) } < 0x0007_0400 {
            // SAFETY: a function that needs no data; the server calls it once.
            unsafe { api!(RedisModule_EventLoopAddOneShot(Some(awake), ptr::null_mut())) };
        }
    }
}

/// That it is called is all that was wanted.
extern "C" fn awake(_: *mut c_void) {}

extern "C" fn rung(ctx: *mut raw::RedisModuleCtx, ring: *mut c_void) {
    // SAFETY: `set_timer` made the data of a `Ring`.
    let ring = unsafe { std::mem::transmute::<*mut c_void, Ring>(ring) };
    // SAFETY: the context of this call, made into a Ctx once.
    guard(|| ring(&mut unsafe { Ctx::lent(ctx) }));
}
