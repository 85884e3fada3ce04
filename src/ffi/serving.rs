//! Questions to the server: does this node serve a key, and would it take a write? Each is a call of one of the server's own
//! commands, which it refuses as it would refuse a client.
//!
//! In a cluster, Valkey 9.1 keeps from one call to the next that the keys of a call lay in two slots. The note stays with the
//! pooled client that the call was made by, whichever module or script made it. From then on the server refuses all calls by
//! that client, and it takes the same one each time. So a refusal counts only where a call without keys is not refused.
//! Where it is, the question is asked by another client: the server takes a client out of its pool for each event that it
//! tells, and keeps it until the event is told. The event is that of a deleted key, which this file makes and deletes.
//!
//! The flag getkeys-api, by which the server would check all keys of a command itself, is no way round. Redis 8.6 and Valkey
//! 8.1 and 9.1 then call the module from their I/O threads. Around that call they count the depth of execution up and down,
//! in a number of the main thread and without a lock. One lost count ends all replication, and AOF, until a restart.

use super::context::{Ctx, Flags, Serving, error_text, flags_of};
use super::guard::guard;
use super::slot::{is_importing, slot_of};
use super::string::{OwnedStr, Str};
use redis_module::raw;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;

/// What servers say to keys of several slots.
const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
/// What servers say to keys of a slot that is moving, some of which may be here and some there.
const TRY_AGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

/// Part of what a node says when it takes no writes because its cluster is down.
const CLUSTER_DOWN: &[u8] = b"cluster is down";
/// Part of what a node says to a call that replies with its refusal, for keys that it does not serve.
const NOT_LOCAL: &[u8] = b"non local key";

/// How many pooled clients one question passes over, at most. Each was spoiled by a call of its own.
const CLIENTS_MAX: u8 = 16;

/// The event of a key that is deleted or overwritten: the same number on Redis, from 7.2 on, and on Valkey.
const KEY_EVENT: raw::RedisModuleEvent = raw::RedisModuleEvent { id: 17, dataver: 1 };

type RawCtx = NonNull<raw::RedisModuleCtx>;

/// A question. Its pointers are to strings that live until it is answered.
#[derive(Clone, Copy)]
enum Question {
    /// Whether this node would answer a client that reads these keys.
    Read(*const *mut raw::RedisModuleString, usize),
    /// Whether this node would take a write to this key.
    Write(*mut raw::RedisModuleString),
    /// Whether this node is taking this slot over, key by key.
    Importing(u16),
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    NotNow,
    No,
}

thread_local! {
    /// The question that is asked in the next event of a deleted key, and how many clients it has passed over.
    static ASKED: Cell<Option<(Question, u8)>> = const { Cell::new(None) };
    static ANSWERED: Cell<Option<Answer>> = const { Cell::new(None) };
    static LISTENS: Cell<bool> = const { Cell::new(false) };
}

impl Ctx<'_> {
    /// Whether this node would serve a write to this key to a client now.
    pub fn serving(&mut self, key: Str<'_>) -> Serving {
        match answering(self.as_non_null(), key) {
            Serving::Yes => match ask(self.as_non_null(), Question::Write(key.as_ptr())) {
                Answer::NotNow => Serving::NotNow,
                // That it is not ours, the server says last, and of a slot that is on its way here: see `answering`.
                Answer::Yes | Answer::No => Serving::Yes,
            },
            answering => answering,
        }
    }

    /// Why the server would not serve these keys together, in its own words, though it serves the first of them: in a cluster
    /// all must lie in one slot, and be here if that slot is moving.
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
        // The slot is moving. To the one that asks here by ASKING a node that takes the slot over serves what has all come:
        // the call above has not asked so.
        if keys.iter().all(|key| is_here(ctx, *key)) { None } else { Some(TRY_AGAIN) }
    }
}

/// Whether this node would answer a client that reads this key now.
pub(super) fn answering(ctx: RawCtx, key: Str<'_>) -> Serving {
    // SAFETY: a valid context.
    if !unsafe { flags_of(ctx.as_ptr()) }.contains(Flags::CLUSTER) {
        return Serving::Yes;
    }
    match ask(ctx, Question::Read([key.as_ptr()].as_ptr(), 1)) {
        Answer::Yes => Serving::Yes,
        Answer::NotNow => Serving::NotNow,
        // What has come with a slot that is on its way here is this node's, for who asks by ASKING.
        Answer::No if is_here(ctx, key) => match ask(ctx, Question::Importing(slot_of(key.as_bytes()))) {
            Answer::Yes => Serving::Yes,
            Answer::NotNow | Answer::No => Serving::Elsewhere,
        },
        Answer::No => Serving::Elsewhere,
    }
}

/// Asks, by another of the server's clients if the one that it takes refuses all calls.
fn ask(ctx: RawCtx, question: Question) -> Answer {
    match put(ctx, question) {
        Answer::No if refuses_all(ctx) => beside(ctx, question, 1),
        answer => answer,
    }
}

/// Asks by the client that the server takes.
fn put(ctx: RawCtx, question: Question) -> Answer {
    match question {
        Question::Read(names, len) => {
            // SAFETY: a valid context; the names live until there is an answer; the format describes an array and its length.
            let reply = unsafe { api!(RedisModule_Call(ctx.as_ptr(), c"EXISTS".as_ptr(), c"v".as_ptr(), names, len)) };
            let error = io::Error::last_os_error();
            match NonNull::new(reply) {
                Some(reply) => {
                    free(reply);
                    Answer::Yes
                }
                None if error.kind() == io::ErrorKind::PermissionDenied => Answer::No,
                // The cluster is down, which it says in different words on different servers.
                None => Answer::NotNow,
            }
        }
        Question::Write(name) => takes_writes(ctx, name),
        Question::Importing(slot) => {
            // SAFETY: a valid context; the format describes the argument.
            let reply =
                unsafe { api!(RedisModule_Call(ctx.as_ptr(), c"CLUSTER".as_ptr(), c"c".as_ptr(), c"NODES".as_ptr())) };
            let Some(reply) = NonNull::new(reply) else { return Answer::No };
            let mut len = 0;
            // SAFETY: a reply of ours, freed after the last look at its text, which belongs to it and may be null.
            let imports = unsafe {
                let text = api!(RedisModule_CallReplyStringPtr(reply.as_ptr(), &raw mut len));
                !text.is_null() && is_importing(std::slice::from_raw_parts(text.cast(), len), slot)
            };
            free(reply);
            if imports { Answer::Yes } else { Answer::No }
        }
    }
}

fn takes_writes(ctx: RawCtx, key: *mut raw::RedisModuleString) -> Answer {
    // S: refuse as for a script, which looks at disk and replicas; E: refuse by a reply; D: do no more than that.
    // Redis 7.0 does not know D. There the call is made, of a write that changes nothing whatever lies under the key:
    // a time to live that is only set where a longer one, or none, is not.
    // SAFETY: reads a pointer that is written once, at load.
    let knows_dry_run = unsafe { raw::RedisModule_SetCommandACLCategories }.is_some();
    // SAFETY: a valid context; the key lives for the call; the formats describe the arguments.
    let reply = NonNull::new(unsafe {
        if knows_dry_run {
            api!(RedisModule_Call(ctx.as_ptr(), c"UNLINK".as_ptr(), c"SDEs".as_ptr(), key))
        } else {
            let (time, greater) = (c"1".as_ptr(), c"GT".as_ptr());
            api!(RedisModule_Call(ctx.as_ptr(), c"PEXPIRE".as_ptr(), c"SEscc".as_ptr(), key, time, greater))
        }
    });
    let Some(reply) = reply else { return Answer::Yes };
    // SAFETY: a reply of ours, freed after the last look at its text.
    let text = unsafe { error_text(reply) };
    let says = |part: &[u8]| text.windows(part.len()).any(|there| there == part);
    let answer = if text.starts_with(b"MISCONF") || text.starts_with(b"NOREPLICAS") || says(CLUSTER_DOWN) {
        // The last is of a cluster that is down and lets nothing but reads pass.
        Answer::NotNow
    } else if says(NOT_LOCAL) {
        Answer::No
    } else {
        Answer::Yes
    };
    free(reply);
    answer
}

/// Whether the client that the server takes for calls refuses those, too, that have no keys.
fn refuses_all(ctx: RawCtx) -> bool {
    // SAFETY: a valid context; the format says that there is no argument.
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
    // SAFETY: all callers pass a reply of theirs, and do not touch it afterwards.
    unsafe { api!(RedisModule_FreeCallReply(reply.as_ptr())) };
}

/// Whether there is a value under a key.
fn is_here(ctx: RawCtx, key: Str<'_>) -> bool {
    // SAFETY: a valid context and a name that lives longer than the key is open; a null key may be asked for its type, and
    // closed.
    unsafe {
        let open = api!(RedisModule_OpenKey(ctx.as_ptr(), key.as_ptr(), raw::REDISMODULE_READ as c_int));
        let kind = api!(RedisModule_KeyType(open)) as isize;
        api!(RedisModule_CloseKey(open));
        kind != raw::REDISMODULE_KEYTYPE_EMPTY
    }
}

/// Asks by the next client of the server's pool: within an event, which has the first one. Where that cannot be, the answer is
/// no: nothing is granted then.
fn beside(ctx: RawCtx, question: Question, passed: u8) -> Answer {
    // SAFETY: a valid context.
    let is_primary = unsafe { flags_of(ctx.as_ptr()) }.contains(Flags::PRIMARY);
    if !is_primary || passed > CLIENTS_MAX || !listens(ctx) {
        return Answer::No;
    }
    ANSWERED.set(None);
    // One that nobody has: a step further, the last one is being deleted still.
    let name = OwnedStr::new(format!("\0lock:asks:{passed}").as_bytes());
    // SAFETY: a valid context, and a name that lives longer than the key is open.
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

/// Sees to it that the module hears of deleted keys. It goes on to hear of them: a subscription cannot be ended here.
fn listens(ctx: RawCtx) -> bool {
    if !LISTENS.get() {
        // SAFETY: a valid context; the server refuses an event that it does not have.
        let subscribed =
            unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), KEY_EVENT, Some(on_deleted_key))) };
        LISTENS.set(subscribed == raw::REDISMODULE_OK as c_int);
    }
    LISTENS.get()
}

/// A key is deleted; nothing is asked but in the event of our own.
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
