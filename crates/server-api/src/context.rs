//! The context of one call from the server, and what the server says of itself in it.
//!
//! Other files add to it what they are for: replies, replication, access control, timers, blocking.

use super::args::Args;
use super::string::{OwnedStr, Str};
use bitflags::bitflags;
use redis_module::raw;
use std::cell::{Cell, OnceCell};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The context of one call. There is one for each call, and it is never copied (rule 3 in mod.rs).
#[derive(Debug)]
pub struct Ctx<'a> {
    raw: NonNull<raw::RedisModuleCtx>,
    /// True if a reply was begun, or will come later. Then a panic must not add another.
    replied: bool,
    /// The arguments of the command that is called, if one is. Then a client expects a reply.
    args: Option<Args<'a>>,
    /// Does not change within one call; asked for at its first use.
    flags: Cell<Option<Flags>>,
    /// The name of its client's user, likewise.
    pub(super) user_name: OnceCell<Option<OwnedStr>>,
    lent: PhantomData<&'a mut raw::RedisModuleCtx>,
}

bitflags! {
    /// The state of the server and of the call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// A script calls the command.
        const LUA = raw::REDISMODULE_CTX_FLAGS_LUA;
        /// EXEC calls the command.
        const MULTI = raw::REDISMODULE_CTX_FLAGS_MULTI;
        /// The server is a primary.
        const PRIMARY = raw::REDISMODULE_CTX_FLAGS_MASTER;
        /// The command came from the primary, or from the source of a slot.
        const REPLICATED = raw::REDISMODULE_CTX_FLAGS_REPLICATED;
        /// The server writes an AOF.
        const AOF = raw::REDISMODULE_CTX_FLAGS_AOF;
        /// The server is a node of a cluster.
        const CLUSTER = raw::REDISMODULE_CTX_FLAGS_CLUSTER;
        /// The server is loading an RDB or an AOF.
        const LOADING = raw::REDISMODULE_CTX_FLAGS_LOADING;
        /// More memory is used than `maxmemory` allows. The server may be evicting keys still.
        const OVER_MAXMEMORY = raw::REDISMODULE_CTX_FLAGS_OOM;
        /// The caller needs its reply at once: EXEC, a script, or another module.
        const DENY_BLOCKING = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        // All other bits. Some of them mean different things on Redis and Valkey.
        const _ = !0;
    }
}

impl<'a> Ctx<'a> {
    /// # Safety
    /// The server must have passed `raw` to a call that lasts for `'a`, and no other `Ctx` may be made of it (rule 3).
    pub(super) unsafe fn lent(raw: *mut raw::RedisModuleCtx) -> Ctx<'a> {
        let raw = NonNull::new(raw).expect("the server passes a context");
        let (flags, user_name) = (Cell::new(None), OnceCell::new());
        Ctx { raw, replied: false, args: None, flags, user_name, lent: PhantomData }
    }

    /// # Safety
    /// As for `lent`, and the call must be that of a command with these arguments.
    pub(super) unsafe fn of_command(raw: *mut raw::RedisModuleCtx, args: Args<'a>) -> Ctx<'a> {
        // SAFETY: the caller keeps the contract of `lent`.
        Ctx { args: Some(args), ..unsafe { Ctx::lent(raw) } }
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.raw.as_ptr()
    }

    pub(super) fn as_non_null(&self) -> NonNull<raw::RedisModuleCtx> {
        self.raw
    }

    pub(super) fn is_command(&self) -> bool {
        self.args.is_some()
    }

    /// An argument of the command with these bytes, behind its key. Looks at few: owners mostly come first.
    pub(super) fn argument(&self, bytes: &[u8]) -> Option<Str<'a>> {
        const FIRST: usize = 2;
        const LAST: usize = 16;
        let args = self.args?;
        (FIRST..args.len().min(LAST)).filter_map(|at| args.get(at)).find(|arg| arg.as_bytes() == bytes)
    }

    pub(super) fn has_replied(&self) -> bool {
        self.replied
    }

    /// The reply to this call is being written, or will come later.
    pub(super) fn will_reply(&mut self) {
        self.replied = true;
    }

    /// Returns the state of the server and of the call.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.flags.get().unwrap_or_else(|| {
            // SAFETY: the context lives for this call (rule 2).
            let flags = unsafe { flags_of(self.as_ptr()) };
            self.flags.set(Some(flags));
            flags
        })
    }

    /// True if a transaction, a script, a function or another module calls the command: the server serves no other
    /// client before all of that is done. Their ids would not tell which: scripts share one.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.flags().intersects(Flags::MULTI | Flags::LUA | Flags::DENY_BLOCKING)
    }

    /// The number of the selected database.
    #[must_use]
    pub fn db(&self) -> u32 {
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_GetSelectedDb(self.as_ptr())) as u32 }
    }

    /// Selects a database; false if the server has none of that number.
    pub fn select_db(&mut self, db: u32) -> bool {
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_SelectDb(self.as_ptr(), db as c_int)) == raw::REDISMODULE_OK as c_int }
    }
}

/// Returns the state of the server, for callbacks without a context.
#[must_use]
pub fn flags() -> Flags {
    // SAFETY: null is allowed. The server then leaves out the flags that belong to a client.
    unsafe { flags_of(ptr::null_mut()) }
}

/// # Safety
/// `ctx` must be the context of a call that lasts, or null.
pub(super) unsafe fn flags_of(ctx: *mut raw::RedisModuleCtx) -> Flags {
    // SAFETY: the caller passes a context that lives, or null, which the server allows.
    Flags::from_bits_retain(unsafe { api!(RedisModule_GetContextFlags(ctx)) } as u32)
}
