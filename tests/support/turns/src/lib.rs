//! A module that measures the CPU of each turn of the server's event loop. Never part of what is delivered.
//!
//! `TURNS.LONGEST`: replies with the CPU of the longest turn since it was asked last, in microseconds, and begins anew.
//! The turn in which it is asked does not count.

use redis_module::{Context, RedisResult, RedisString, Status, raw, redis_module};
use rustix::time::{ClockId, clock_gettime};
use server_api::alloc::ServerAlloc;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the server's thread had used when it woke last; 0 in a turn that does not count.
static BEGUN_NS: AtomicU64 = AtomicU64::new(0);
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);

/// The CPU that this thread has used.
fn spent_ns() -> u64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
}

extern "C" fn on_turn(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, subevent: u64, _: *mut c_void) {
    // What others do as the server goes to sleep belongs to this turn, too: it ends when the server wakes again.
    if subevent == raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP {
        let now = spent_ns();
        let begun = BEGUN_NS.swap(now, Relaxed);
        if begun > 0 {
            LONGEST_NS.fetch_max(now - begun, Relaxed);
        }
    }
}

fn longest(_: &Context, _: Vec<RedisString>) -> RedisResult {
    BEGUN_NS.store(0, Relaxed);
    Ok((LONGEST_NS.swap(0, Relaxed) as i64 / 1_000).into())
}

fn load(ctx: &Context, _: &[RedisString]) -> Status {
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };
    // SAFETY: the context is that of the load; the callback lives as long as the module.
    let subscribed = unsafe {
        raw::RedisModule_SubscribeToServerEvent.expect("since Redis 6.0")(ctx.get_raw(), event, Some(on_turn))
    };
    if subscribed == raw::REDISMODULE_OK as c_int { Status::Ok } else { Status::Err }
}

redis_module! {
    name: "turns",
    version: 1,
    allocator: (ServerAlloc, ServerAlloc),
    data_types: [],
    init: load,
    commands: [["turns.longest", longest, "readonly", 0, 0, 0, ""]],
}
