//! The context of one call from the server: replies, replication, events, what the server is doing.

use super::record::Record;
use super::string::{OwnedStr, Str};
use bitflags::bitflags;
use redis_module::raw;
use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_int, c_long, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The context of one call. Exists once per call and is never copied: see the top of this folder.
#[derive(Debug)]
pub struct Ctx<'a> {
    raw: NonNull<raw::RedisModuleCtx>,
    /// Whether a reply was begun, or will come later, so that a panic does not add another.
    replied: bool,
    /// Whether this is the call of a command, with a client that waits for the reply.
    command: bool,
    /// What the server is and is doing, which does not change in one call. Asked for when it is needed first.
    flags: OnceCell<Flags>,
    lent: PhantomData<&'a mut raw::RedisModuleCtx>,
}

bitflags! {
    /// What the server is and what it is doing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// The command is called by a script.
        const LUA = raw::REDISMODULE_CTX_FLAGS_LUA;
        /// The command is part of a transaction that is being executed.
        const MULTI = raw::REDISMODULE_CTX_FLAGS_MULTI;
        /// It is a primary.
        const PRIMARY = raw::REDISMODULE_CTX_FLAGS_MASTER;
        /// The command came from the primary, or from the source of a slot.
        const REPLICATED = raw::REDISMODULE_CTX_FLAGS_REPLICATED;
        /// It writes an append-only file.
        const AOF = raw::REDISMODULE_CTX_FLAGS_AOF;
        /// It is a node of a cluster.
        const CLUSTER = raw::REDISMODULE_CTX_FLAGS_CLUSTER;
        /// It is loading RDB or AOF.
        const LOADING = raw::REDISMODULE_CTX_FLAGS_LOADING;
        /// The command's caller does not let it wait: MULTI, a script, or another module.
        const DENY_BLOCKING = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        // Bits that have no name here, some of which mean different things on Redis and Valkey.
        const _ = !0;
    }
}

/// Whether this node serves a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// It does.
    Yes,
    /// Nobody does for now: too few replicas (NOREPLICAS), no disk (MISCONF), the cluster is down.
    NotNow,
    /// Another node does: the slot is not ours, or it is leaving and the key is not here (any more).
    Elsewhere,
}

impl<'a> Ctx<'a> {
    /// # Safety
    /// `raw` must be the context that the server passed to the call that lasts for `'a`, and this the only `Ctx` of it.
    pub(super) unsafe fn lent(raw: *mut raw::RedisModuleCtx) -> Ctx<'a> {
        let raw = NonNull::new(raw).expect("the server passes a context");
        Ctx { raw, replied: false, command: false, flags: OnceCell::new(), lent: PhantomData }
    }

    /// # Safety
    /// As in `lent`, and the call must be that of a command.
    pub(super) unsafe fn of_command(raw: *mut raw::RedisModuleCtx) -> Ctx<'a> {
        // SAFETY: as required of the caller.
        Ctx { command: true, ..unsafe { Ctx::lent(raw) } }
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.raw.as_ptr()
    }

    pub(super) fn as_non_null(&self) -> NonNull<raw::RedisModuleCtx> {
        self.raw
    }

    pub(super) fn is_command(&self) -> bool {
        self.command
    }

    /// Whether a reply was begun, or will come later.
    pub(super) fn has_replied(&self) -> bool {
        self.replied
    }

    /// The reply to this call will come later, from another.
    pub(super) fn will_reply(&mut self) {
        self.replied = true;
    }

    /// Replies that we panicked, unless there is a reply: a second one would be taken for the reply to the client's
    /// next command.
    pub(super) fn reply_panic(&mut self) {
        if !self.replied {
            self.reply_error("ERR internal error of the module, see the server's log");
        }
    }

    /// What the server is and what it is doing.
    #[must_use]
    pub fn flags(&self) -> Flags {
        // SAFETY: a valid context.
        *self.flags.get_or_init(|| unsafe { flags_of(self.as_ptr()) })
    }

    /// The number of the selected database.
    #[must_use]
    pub fn db(&self) -> u32 {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_GetSelectedDb(self.as_ptr())) as u32 }
    }

    /// Selects a database; false when there is none of that number.
    pub fn select_db(&mut self, db: u32) -> bool {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_SelectDb(self.as_ptr(), db as c_int)) == raw::REDISMODULE_OK as c_int }
    }

    /// Whether nothing may be sent to replicas now: CLIENT PAUSE, a failover under way. To replicate all the same would
    /// abort the server.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        // SAFETY: takes no argument.
        unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// Whether the client of this call is allowed to read this key. What runs without a user may: the server itself,
    /// its primary, the AOF, another module. A script may not: whose it is cannot be asked for everywhere.
    #[must_use]
    pub fn may_read(&self, key: &[u8]) -> bool {
        if self.flags().contains(Flags::LUA) {
            return false;
        }
        // By the client's number: to ask for the user of the call would end servers whose client has none.
        // SAFETY: a valid context; the name is ours, since we do not ask the server to free strings by itself.
        let name = unsafe {
            let name =
                api!(RedisModule_GetClientUserNameById(self.as_ptr(), api!(RedisModule_GetClientId(self.as_ptr()))));
            OwnedStr::owned(name)
        };
        let Some(name) = name else { return true };
        let key = OwnedStr::new(key);
        // SAFETY: names that live for the calls; the user is ours, null when it is deleted meanwhile, and freed once.
        unsafe {
            let user = api!(RedisModule_GetModuleUserFromUserName(name.as_str().as_ptr()));
            if user.is_null() {
                return false;
            }
            let access = raw::REDISMODULE_CMD_KEY_ACCESS as c_int;
            let allowed = api!(RedisModule_ACLCheckKeyPermissions(user, key.as_str().as_ptr(), access));
            api!(RedisModule_FreeModuleUser(user));
            allowed == raw::REDISMODULE_OK as c_int
        }
    }

    /// Whether the server has replicas, or keeps what it has sent for replicas that may come back. Costs some ten
    /// microseconds.
    #[must_use]
    pub fn has_replicas(&self) -> bool {
        // SAFETY: a valid context; what the server says is freed after the last look at it.
        unsafe {
            let said = api!(RedisModule_GetServerInfo(self.as_ptr(), c"replication".as_ptr()));
            let number = |field: &CStr| {
                let mut err = 0;
                let number = api!(RedisModule_ServerInfoGetFieldUnsigned(said, field.as_ptr(), &raw mut err));
                // Where it does not say, there may be some.
                if err == 0 { number } else { 1 }
            };
            let some = number(c"connected_slaves") > 0 || number(c"repl_backlog_active") > 0;
            api!(RedisModule_FreeServerInfo(self.as_ptr(), said));
            some
        }
    }

    /// Counts a change for the save points, without telling anybody: for a server that nobody listens to.
    pub fn mark_dirty(&mut self, record: &CStr) {
        // SAFETY: a valid context, of a command in the first case; the format says that there is no argument.
        unsafe {
            if self.is_command() {
                api!(RedisModule_ReplicateVerbatim(self.as_ptr()));
            } else {
                api!(RedisModule_Replicate(self.as_ptr(), record.as_ptr(), c"".as_ptr()));
            }
        }
    }

    /// Sends a record to replicas and the AOF, in the selected database.
    pub fn replicate(&mut self, key: Str<'_>, record: Record<'_>) {
        let command = record.command.as_ptr();
        let (ctx, key) = (self.as_ptr(), key.as_ptr());
        // SAFETY: a valid context and key name; the format describes a string, an array of strings and its length.
        record.with_args(|args| unsafe {
            api!(RedisModule_Replicate(ctx, command, c"sv".as_ptr(), key, args.as_ptr(), args.len()))
        });
    }

    /// Sends when a key's time to live ends, in milliseconds of the wall clock, as the server would.
    pub fn replicate_expiry(&mut self, key: Str<'_>, at_ms: i64) {
        // SAFETY: a valid context; the format describes a key name and a number, which the server copies.
        unsafe {
            api!(RedisModule_Replicate(self.as_ptr(), c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), key.as_ptr(), at_ms))
        };
    }

    /// Tells watchers and tracking clients that a key changed.
    pub fn signal_modified(&mut self, key: Str<'_>) {
        // SAFETY: a valid context and key name.
        unsafe { api!(RedisModule_SignalModifiedKey(self.as_ptr(), key.as_ptr())) };
    }

    /// Sends a keyspace event of the module class (`d`).
    pub fn notify(&mut self, event: &CStr, key: Str<'_>) {
        // SAFETY: a valid context, event and key name.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                self.as_ptr(),
                raw::REDISMODULE_NOTIFY_MODULE,
                event.as_ptr(),
                key.as_ptr()
            ))
        };
    }

    /// Replies with an integer.
    pub fn reply_integer(&mut self, value: i64) {
        self.replied = true;
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.as_ptr(), value)) };
    }

    /// Replies with OK.
    pub fn reply_ok(&mut self) {
        self.replied = true;
        // SAFETY: a valid context; the server copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.as_ptr(), c"OK".as_ptr())) };
    }

    /// Replies with null: `$-1` in RESP2, `_` in RESP3.
    pub fn reply_null(&mut self) {
        self.replied = true;
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_ReplyWithNull(self.as_ptr())) };
    }

    /// Replies with bytes.
    pub fn reply_bytes(&mut self, bytes: &[u8]) {
        self.replied = true;
        // SAFETY: a valid context; the server copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.as_ptr(), bytes.as_ptr().cast(), bytes.len())) };
    }

    /// Starts an array of `len` replies, which must follow.
    pub fn reply_array(&mut self, len: usize) {
        self.replied = true;
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_ReplyWithArray(self.as_ptr(), len as c_long)) };
    }

    /// Starts a map of `len` pairs of replies, which must follow; in RESP2 a flat array.
    pub fn reply_map(&mut self, len: usize) {
        self.replied = true;
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_ReplyWithMap(self.as_ptr(), len as c_long)) };
    }

    /// Replies with an error: a code, a blank, a text. What follows a NUL is left out.
    pub fn reply_error(&mut self, text: &str) {
        self.replied = true;
        let text = CString::new(text.split('\0').next().unwrap_or_default()).expect("cut at the first NUL");
        // SAFETY: a valid context; the server copies the text.
        unsafe { api!(RedisModule_ReplyWithError(self.as_ptr(), text.as_ptr())) };
    }
}

/// The text of a reply that is an error, code first; empty for any other.
///
/// # Safety
/// `reply` must be a reply that is not freed for `'a`.
pub(super) unsafe fn error_text<'a>(reply: NonNull<raw::RedisModuleCallReply>) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: as required of the caller; the text, if any, belongs to the reply.
    let text = unsafe {
        if api!(RedisModule_CallReplyType(reply.as_ptr())) != raw::REDISMODULE_REPLY_ERROR as c_int {
            return b"";
        }
        let text = api!(RedisModule_CallReplyStringPtr(reply.as_ptr(), &raw mut len));
        if text.is_null() { &b""[..] } else { std::slice::from_raw_parts(text.cast(), len) }
    };
    text.strip_prefix(b"-").unwrap_or(text)
}

/// What the server is and is doing, from where there is no context.
#[must_use]
pub fn flags() -> Flags {
    // SAFETY: a null context is allowed: it leaves out what belongs to a client.
    unsafe { flags_of(ptr::null_mut()) }
}

/// # Safety
/// `ctx` must be a valid context, or null.
pub(super) unsafe fn flags_of(ctx: *mut raw::RedisModuleCtx) -> Flags {
    // SAFETY: as required of the caller.
    Flags::from_bits_retain(unsafe { api!(RedisModule_GetContextFlags(ctx)) } as u32)
}

/// Hands an error text over to the server through one of its out-parameters.
///
/// # Safety
/// `err` must be null or point to a place for a string, which the server frees.
pub(super) unsafe fn put_error(err: *mut *mut raw::RedisModuleString, text: &str) {
    if !err.is_null() {
        // SAFETY: as required of the caller.
        unsafe { *err = OwnedStr::new(text.as_bytes()).into_ptr() };
    }
}

/// A function as the opaque data that the server keeps for a callback.
pub(super) type Opaque = *mut c_void;
