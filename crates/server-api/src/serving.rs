//! Asks the server whether this node serves a key, and whether it would take a write.
//!
//! Each question is a call of one of the server's own commands, which it refuses as it would refuse a client.
//!
//! In a cluster, one call with keys of two slots spoils a pooled client of Valkey 9.1, whichever module or script made
//! the call. The server then refuses all calls by that client, and it takes the same client each time. So a refusal
//! counts only if a call without keys is not refused. If that is refused too, the module asks by another client. The
//! server takes one out of its pool for each event that it reports, and puts it back after the event. The event is that
//! of a deleted key, which this file makes and deletes.
//!
//! With the flag getkeys-api the server would check all keys of a command itself. But Redis 8.6,
//! Valkey 8.1 and Valkey 9.1 then call the module from their I/O threads. Around that call they count the depth of
//! execution up and down, in a number of the main thread, without a lock. One lost count ends replication and AOF until
//! a restart.

use super::args::Args;
use super::context::{Ctx, Flags, flags_of};
use super::guard::guard;
use super::slot::{has, is_importing, slot_of};
use super::string::{OwnedStr, Str};
use redis_module::raw;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;

/// The server's reply to keys of several slots.
const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
/// The server's reply to keys of a slot that is moving, of which some are elsewhere.
const TRY_AGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

/// Part of the refusal of a write while the cluster is down.
const CLUSTER_DOWN: &[u8] = b"cluster is down";
/// Part of the refusal of a key that the node does not serve.
const NOT_LOCAL: &[u8] = b"non local key";

/// How many spoiled clients one question passes over at most. Each was spoiled by a call of its own.
const CLIENTS_MAX: u8 = 16;

/// The event of a key that is deleted or overwritten. Redis, from 7.2 on, and Valkey have the same number for it.
const KEY_EVENT: raw::RedisModuleEvent = raw::RedisModuleEvent { id: 17, dataver: 1 };

type RawCtx = NonNull<raw::RedisModuleCtx>;

/// This node's answer to a client that names a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// This node serves it.
    Yes,
    /// No node serves it for now: too few replicas (NOREPLICAS), no disk (MISCONF), or the cluster is down.
    NotNow,
    /// Another node serves it: it has the slot, or the slot is moving there and the key is not here.
    Elsewhere,
}

/// A question. The strings that it points to live until it is answered.
#[derive(Clone, Copy)]
enum Question {
    /// A client that reads these keys.
    Read(*const *mut raw::RedisModuleString, usize),
    /// A client that writes to this key.
    Write(*mut raw::RedisModuleString),
    /// A slot that may be being imported, key by key.
    Importing(u16),
    /// A slot that the node may have, or import.
    Own(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    NotNow,
    No,
}

thread_local! {
    /// The question to ask in the next event of a deleted key, and how many clients it has passed over.
    static ASKED: Cell<Option<(Question, u8)>> = const { Cell::new(None) };
    static ANSWERED: Cell<Option<Answer>> = const { Cell::new(None) };
    static LISTENS: Cell<bool> = const { Cell::new(false) };
}

impl Ctx<'_> {
    /// Returns this node's answer to a client that writes to this key now.
    pub fn serving(&mut self, key: Str<'_>) -> Serving {
        match answering(self.as_non_null(), key) {
            Serving::Yes => match ask(self.as_non_null(), Question::Write(key.as_ptr())) {
                Answer::NotNow => Serving::NotNow,
                // The server says No last of all, and here only of a slot that is moving here: see `answering`.
                Answer::Yes | Answer::No => Serving::Yes,
            },
            answering => answering,
        }
    }

    /// The server's own refusal of the first argument together with the keys of the command at this place.
    pub(super) fn refuses_with_command(&mut self, args: Args<'_>, at: usize) -> Option<&'static str> {
        if !self.flags().contains(Flags::CLUSTER) {
            return None;
        }
        let of_command = self.keys_of(args.after(at));
        let keys: Vec<Str<'_>> = args.get(1).into_iter().chain(of_command.iter().map(OwnedStr::as_str)).collect();
        self.refuses_together(&keys)
    }

    /// The server's own refusal of these keys together, though it serves the first of them. In a cluster all must have
    /// one slot, and be here if that slot is moving.
    pub(super) fn refuses_together(&mut self, keys: &[Str<'_>]) -> Option<&'static str> {
        if keys.len() < 2 || !self.flags().contains(Flags::CLUSTER) {
            return None;
        }
        let slot = slot_of(keys[0].as_bytes());
        if keys.iter().any(|key| slot_of(key.as_bytes()) != slot) {
            return Some(CROSS_SLOT);
        }
        let names: SmallVec<[_; 8]> = keys.iter().map(|key| key.as_ptr()).collect();
        let ctx = self.as_non_null();
        if ask(ctx, Question::Read(names.as_ptr(), names.len())) != Answer::No {
            return None;
        }
        // The slot is moving. If all keys have arrived, a node that imports the slot serves a client that sent ASKING.
        // The call above had no ASKING.
        if keys.iter().all(|key| is_here(ctx, *key)) { None } else { Some(TRY_AGAIN) }
    }
}

/// Returns this node's answer to a client that reads this key now.
pub(super) fn answering(ctx: RawCtx, key: Str<'_>) -> Serving {
    // SAFETY: the caller's context lives for its call (rule 2).
    if !unsafe { flags_of(ctx.as_ptr()) }.contains(Flags::CLUSTER) {
        return Serving::Yes;
    }
    match ask(ctx, Question::Read([key.as_ptr()].as_ptr(), 1)) {
        Answer::Yes => Serving::Yes,
        Answer::NotNow => Serving::NotNow,
        // A key that has arrived with a slot that is moving here belongs to this node, for a client that sent ASKING.
        Answer::No if is_here(ctx, key) => match ask(ctx, Question::Importing(slot_of(key.as_bytes()))) {
            Answer::Yes => Serving::Yes,
            Answer::NotNow | Answer::No => Serving::Elsewhere,
        },
        Answer::No => Serving::Elsewhere,
    }
}

/// True if this node has the slot of this name, or imports it, in a cluster.
pub(super) fn is_own_slot(ctx: RawCtx, name: &OwnedStr) -> bool {
    let name = name.as_str();
    match ask(ctx, Question::Read([name.as_ptr()].as_ptr(), 1)) {
        Answer::Yes | Answer::NotNow => true,
        // The slot may be moving: then a name without a value says nothing.
        Answer::No => ask(ctx, Question::Own(slot_of(name.as_bytes()))) == Answer::Yes,
    }
}

/// Asks, by another pooled client if the server refuses all calls of its first one.
fn ask(ctx: RawCtx, question: Question) -> Answer {
    match put(ctx, question) {
        Answer::No if refuses_all(ctx) => beside(ctx, question, 1),
        answer => answer,
    }
}

/// Asks by the pooled client that the server takes.
fn put(ctx: RawCtx, question: Question) -> Answer {
    match question {
        Question::Read(names, len) => takes_reads(ctx, names, len),
        Question::Write(name) => takes_writes(ctx, name),
        Question::Importing(slot) => says_of_itself(ctx, |nodes| is_importing(nodes, slot)),
        Question::Own(slot) => says_of_itself(ctx, |nodes| has(nodes, slot) || is_importing(nodes, slot)),
    }
}

fn takes_reads(ctx: RawCtx, names: *const *mut raw::RedisModuleString, len: usize) -> Answer {
    // SAFETY: the caller's context lives for its call (rule 2), and the names until the question is answered. The
    // format describes an array and its length.
    let reply = unsafe { api!(RedisModule_Call(ctx.as_ptr(), c"EXISTS".as_ptr(), c"v".as_ptr(), names, len)) };
    let error = io::Error::last_os_error();
    match NonNull::new(reply) {
        Some(reply) => {
            free(reply);
            Answer::Yes
        }
        None if error.kind() == io::ErrorKind::PermissionDenied => Answer::No,
        // The cluster is down, for which servers have different errors.
        None => Answer::NotNow,
    }
}

/// Yes if CLUSTER NODES says this of the node itself.
fn says_of_itself(ctx: RawCtx, says: impl FnOnce(&[u8]) -> bool) -> Answer {
    // SAFETY: the caller's context lives for its call (rule 2). The format describes the argument, a constant.
    let reply = unsafe { api!(RedisModule_Call(ctx.as_ptr(), c"CLUSTER".as_ptr(), c"c".as_ptr(), c"NODES".as_ptr())) };
    let Some(reply) = NonNull::new(reply) else { return Answer::No };
    let mut len = 0;
    // SAFETY: this function owns the reply and frees it below. The text belongs to the reply, and may be null.
    let is_ours = unsafe {
        let text = api!(RedisModule_CallReplyStringPtr(reply.as_ptr(), &raw mut len));
        !text.is_null() && says(std::slice::from_raw_parts(text.cast(), len))
    };
    free(reply);
    if is_ours { Answer::Yes } else { Answer::No }
}

fn takes_writes(ctx: RawCtx, key: *mut raw::RedisModuleString) -> Answer {
    let Some(reply) = try_write(ctx, key) else { return Answer::Yes };
    // SAFETY: this function owns the reply, and frees it below, after the last use of the text.
    let text = unsafe { error_text(reply) };
    let says = |part: &[u8]| text.windows(part.len()).any(|there| there == part);
    let answer = if text.starts_with(b"MISCONF") || text.starts_with(b"NOREPLICAS") || says(CLUSTER_DOWN) {
        // The last is said by a cluster that is down and still allows reads.
        Answer::NotNow
    } else if says(NOT_LOCAL) {
        Answer::No
    } else {
        Answer::Yes
    };
    free(reply);
    answer
}

/// Calls a write that changes nothing. The caller owns the reply; None if there is none.
fn try_write(ctx: RawCtx, key: *mut raw::RedisModuleString) -> Option<NonNull<raw::RedisModuleCallReply>> {
    // S: refuse as for a script, which checks disk and replicas. E: refuse by an error reply. D: a dry run.
    // Redis 7.0 does not know D. There the call is a write that changes nothing, whatever the key holds: GT sets a time
    // to live of one millisecond only where a shorter one is set.
    // SAFETY: reads a pointer to a function, written once, at load.
    let knows_dry_run = unsafe { raw::RedisModule_SetCommandACLCategories }.is_some();
    // SAFETY: the caller's context lives for its call (rule 2), and the name until the question is answered. The
    // formats describe the arguments.
    NonNull::new(unsafe {
        if knows_dry_run {
            api!(RedisModule_Call(ctx.as_ptr(), c"UNLINK".as_ptr(), c"SDEs".as_ptr(), key))
        } else {
            let (time, greater) = (c"1".as_ptr(), c"GT".as_ptr());
            api!(RedisModule_Call(ctx.as_ptr(), c"PEXPIRE".as_ptr(), c"SEscc".as_ptr(), key, time, greater))
        }
    })
}

/// The text of an error reply, code first. Empty for any other reply.
///
/// # Safety
/// `reply` must be a reply that is not freed within `'a`.
unsafe fn error_text<'a>(reply: NonNull<raw::RedisModuleCallReply>) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the caller says that the reply lives for `'a`. The text, if there is one, belongs to it.
    let text = unsafe {
        if api!(RedisModule_CallReplyType(reply.as_ptr())) != raw::REDISMODULE_REPLY_ERROR as c_int {
            return b"";
        }
        let text = api!(RedisModule_CallReplyStringPtr(reply.as_ptr(), &raw mut len));
        if text.is_null() { &b""[..] } else { std::slice::from_raw_parts(text.cast(), len) }
    };
    text.strip_prefix(b"-").unwrap_or(text)
}

/// True if the server refuses even calls without keys, because the client that it takes is spoiled.
fn refuses_all(ctx: RawCtx) -> bool {
    // SAFETY: the caller's context lives for its call (rule 2). The format says that no argument follows.
    let reply = unsafe { api!(RedisModule_Call(ctx.as_ptr(), c"PING".as_ptr(), c"".as_ptr())) };
    match NonNull::new(reply) {
        Some(reply) => {
            free(reply);
            false
        }
        None => true,
    }
}

fn free(reply: NonNull<raw::RedisModuleCallReply>) {
    // SAFETY: every caller owns the reply that it passes, and does not use it after that.
    unsafe { api!(RedisModule_FreeCallReply(reply.as_ptr())) };
}

/// True if the key has a value on this node.
fn is_here(ctx: RawCtx, key: Str<'_>) -> bool {
    // SAFETY: the caller's context lives for its call (rule 2), and the name until the key is closed. A null key may be
    // asked for its type, and closed.
    unsafe {
        let open = api!(RedisModule_OpenKey(ctx.as_ptr(), key.as_ptr(), raw::REDISMODULE_READ as c_int));
        let kind = api!(RedisModule_KeyType(open)) as isize;
        api!(RedisModule_CloseKey(open));
        kind != raw::REDISMODULE_KEYTYPE_EMPTY
    }
}

/// Asks by the next client of the server's pool, within an event, which occupies the first. If that is impossible the
/// answer is No: nothing is granted then.
fn beside(ctx: RawCtx, question: Question, passed: u8) -> Answer {
    // SAFETY: the caller's context lives for its call (rule 2).
    let is_primary = unsafe { flags_of(ctx.as_ptr()) }.contains(Flags::PRIMARY);
    if !is_primary || passed > CLIENTS_MAX || !listens(ctx) {
        return Answer::No;
    }
    ANSWERED.set(None);
    // A name that no client uses. It differs at each step: the key of the last step is still being deleted.
    let name = OwnedStr::new(format!("\0lock:asks:{passed}").as_bytes());
    // SAFETY: the caller's context lives for its call (rule 2), and the name until the key is closed.
    unsafe {
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        let key = api!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), mode as c_int));
        if api!(RedisModule_KeyType(key)) as isize == raw::REDISMODULE_KEYTYPE_EMPTY {
            api!(RedisModule_StringSet(key, name.as_ptr()));
            ASKED.set(Some((question, passed)));
            api!(RedisModule_DeleteKey(key));
            ASKED.set(None);
        }
        api!(RedisModule_CloseKey(key));
    }
    ANSWERED.take().unwrap_or(Answer::No)
}

/// Subscribes to deleted keys, once. The subscription stays: it cannot be ended within an event.
fn listens(ctx: RawCtx) -> bool {
    if !LISTENS.get() {
        // SAFETY: the caller's context lives for its call (rule 2). A server without this event refuses.
        let subscribed =
            unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), KEY_EVENT, Some(on_deleted_key))) };
        LISTENS.set(subscribed == raw::REDISMODULE_OK as c_int);
    }
    LISTENS.get()
}

/// A key is deleted. If it is the one of `beside`, this asks the question.
extern "C" fn on_deleted_key(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _what: u64,
    _data: *mut c_void,
) {
    let Some((question, passed)) = ASKED.take() else { return };
    guard(|| {
        let Some(ctx) = NonNull::new(ctx) else { return };
        let answer = match put(ctx, question) {
            Answer::No if refuses_all(ctx) => beside(ctx, question, passed + 1),
            answer => answer,
        };
        ANSWERED.set(Some(answer));
    });
}
