//! Runs another command of the server for the client of a call, as that client could run it itself.
//!
//! docs/internals/module-api.md has what was measured of such calls, server by server.

use super::args::Args;
use super::context::{Ctx, Flags};
use super::string::{OwnedStr, Str};
use redis_module::raw;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::ptr::NonNull;
use std::slice;

/// Part of the refusal of a command that no script may run. All servers have the same text.
const NOT_FOR_SCRIPTS: &str = " is not allowed on script mode";

thread_local! {
    /// Names of the server's own commands, in lower case. A name stays what it is while the server runs.
    static OWN_COMMANDS: RefCell<BTreeSet<Vec<u8>>> = const { RefCell::new(BTreeSet::new()) };
}

/// The reply of a command that was run. Freed on drop.
#[derive(Debug)]
pub struct CallReply(NonNull<raw::RedisModuleCallReply>);

/// Why a command gave no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The server does not let scripts run it, nor this module.
    NotForScripts,
    /// It is a command of another module, which might block the client that calls it. Servers end at that.
    MayBlock,
    /// The client has no right to it, or to one of its keys or channels: the server's words, code first.
    Denied(String),
    /// It has replied with nothing, not even null. Whatever it was to do, it may have done.
    Silent,
}

impl Ctx<'_> {
    /// Runs a command with the rights of this call's client. The first of these words is its name.
    ///
    /// It is refused where a script's would be: when memory is full, on a replica, when the disk or the replicas fail.
    /// What it changes is replicated as itself. An error of the command, and such a refusal, is a reply like any other.
    ///
    /// No key may be open: the command may change or delete any.
    ///
    /// # Errors
    /// If it was not run, or has given no reply.
    pub fn call_for_client(&mut self, words: Args<'_>) -> Result<CallReply, CallError> {
        // The server has no command with NUL in its name.
        let name = words.get(0).and_then(|name| CString::new(name.as_bytes()).ok()).ok_or(CallError::NotForScripts)?;
        // Within these, modules ask whether they may block.
        if !self.flags().intersects(Flags::MULTI | Flags::LUA) && !self.is_of_server(words) {
            return Err(CallError::MayBlock);
        }
        let (argv, argc) = words.after(1).as_raw();
        // !: replicate. C: check the client's rights. S: refuse what scripts may not run, and where. M: refuse when
        // memory is full. E: refuse by an error reply, without which S crashes Valkey 9.1. 0: reply in the client's
        // protocol.
        // SAFETY: the context lives for this call (rule 2), and so do the words, of which the server keeps what it
        // needs. The format describes an array of strings and its length. The caller says that no key is open.
        let reply = unsafe { api!(RedisModule_Call(self.as_ptr(), name.as_ptr(), c"!CSME0v".as_ptr(), argv, argc)) };
        let error = io::Error::last_os_error();
        let reply = CallReply(NonNull::new(reply).ok_or(CallError::Silent)?);
        let text = match reply.kind() {
            raw::REDISMODULE_REPLY_UNKNOWN => {
                drop(reply);
                return self.late_reply().ok_or(CallError::Silent);
            }
            raw::REDISMODULE_REPLY_ERROR => reply.text(),
            _ => return Ok(reply),
        };
        if text.ends_with(NOT_FOR_SCRIPTS) {
            return Err(CallError::NotForScripts);
        }
        // Redis 7.0 has the code ERR for this.
        match text.strip_prefix("ERR ") {
            Some(words) if error.kind() == io::ErrorKind::PermissionDenied && words.starts_with("acl ") => {
                Err(CallError::Denied(format!("NOPERM {words}")))
            }
            _ => Ok(reply),
        }
    }

    /// The error that a command left behind with the client that the server ran it by. GETDEL and GETSET do so on
    /// Valkey where the key has a wrong type. Whatever used that client next would reply with it, and be a reply behind
    /// for good (trap T28 in docs/internals/module-api.md).
    fn late_reply(&mut self) -> Option<CallReply> {
        // SAFETY: the context lives for this call (rule 2). The format says that no argument follows.
        let reply = unsafe { api!(RedisModule_Call(self.as_ptr(), c"PING".as_ptr(), c"E0".as_ptr())) };
        NonNull::new(reply).map(CallReply).filter(CallReply::is_error)
    }

    /// True if a command is the server's own, or this module's. True also if there is no such command: the server says
    /// so.
    fn is_of_server(&mut self, words: Args<'_>) -> bool {
        let Some(word) = words.get(0) else { return true };
        let name = word.as_bytes().to_ascii_lowercase();
        if name.starts_with(b"lock.") || OWN_COMMANDS.with_borrow(|own| own.contains(&name)) {
            return true;
        }
        // SAFETY: the context lives for this call (rule 2), and so does the word. The format describes both arguments.
        let reply = unsafe {
            let info = c"INFO".as_ptr();
            api!(RedisModule_Call(self.as_ptr(), c"COMMAND".as_ptr(), c"cs".as_ptr(), info, word.as_ptr()))
        };
        let Some(reply) = NonNull::new(reply).map(CallReply) else {
            // An operator has renamed that command. What is known to block is refused, and what looks like a module's.
            return !name.contains(&b'.') && !matches!(&name[..], b"vadd" | b"vsim");
        };
        match reply.is_of_module() {
            Some(true) => return false,
            Some(false) => drop(OWN_COMMANDS.with_borrow_mut(|own| own.insert(name))),
            None => {}
        }
        true
    }

    /// True if the server refuses commands that may need new memory: it is above `maxmemory`, and eviction has not
    /// helped. Of a command in a transaction or a script: it was so when that began.
    ///
    /// No key may be open.
    pub fn is_out_of_memory(&mut self, key: Str<'_>) -> bool {
        if !self.flags().contains(Flags::OVER_MAXMEMORY) {
            return false;
        }
        // Only the server knows whether eviction goes on, and how memory was when a transaction began. M: it refuses
        // this command when memory is full. The command reads one bit, and writes none.
        // SAFETY: the context lives for this call (rule 2), and so does the name. The format describes a string and
        // three texts.
        let reply = unsafe {
            let [name, get, kind, at] = [c"BITFIELD", c"GET", c"u1", c"0"].map(CStr::as_ptr);
            api!(RedisModule_Call(self.as_ptr(), name, c"MEsccc".as_ptr(), key.as_ptr(), get, kind, at))
        };
        // An operator may have renamed the command: then the flag decides.
        let Some(reply) = NonNull::new(reply).map(CallReply) else { return true };
        reply.is_error() && !reply.text().starts_with("WRONGTYPE ")
    }

    /// Replies as a command did that was run.
    pub fn reply_call(&mut self, reply: &CallReply) {
        self.will_reply();
        // SAFETY: the context lives for this call (rule 2), and `reply` owns the reply, which the server copies.
        unsafe { api!(RedisModule_ReplyWithCallReply(self.as_ptr(), reply.0.as_ptr())) };
    }

    /// The keys of a command, as the server finds them. None for a command that does not exist, has no keys or has the
    /// wrong number of arguments.
    pub(super) fn keys_of(&mut self, words: Args<'_>) -> Vec<OwnedStr> {
        let (argv, argc) = words.as_raw();
        // SAFETY: the context lives for this call (rule 2), and so do the words. The format describes a text, and an
        // array of strings and its length.
        let reply = unsafe {
            api!(RedisModule_Call(self.as_ptr(), c"COMMAND".as_ptr(), c"cv".as_ptr(), c"GETKEYS".as_ptr(), argv, argc))
        };
        match NonNull::new(reply).map(CallReply) {
            Some(reply) => reply.strings(),
            // An operator has renamed that command.
            None => self.places_of_keys(words).iter().filter_map(|at| words.get(*at)).map(Str::to_owned).collect(),
        }
    }

    /// The same by a function of the server. Where there are many keys, it loses 8 bytes for each on most servers.
    fn places_of_keys(&mut self, words: Args<'_>) -> Vec<usize> {
        let (argv, argc) = words.as_raw();
        let mut len: c_int = 0;
        // SAFETY: the context lives for this call (rule 2), and so do the words, which the server reads. What it
        // returns, if not null, is an array of `len` numbers, which the module frees.
        unsafe {
            let argc = c_int::try_from(argc).unwrap_or(0);
            let places = api!(RedisModule_GetCommandKeys(self.as_ptr(), argv, argc, &raw mut len));
            if places.is_null() {
                return Vec::new();
            }
            let there = slice::from_raw_parts(places, usize::try_from(len).unwrap_or(0));
            let copy = there.iter().filter_map(|at| usize::try_from(*at).ok()).collect();
            api!(RedisModule_Free(places.cast::<c_void>()));
            copy
        }
    }
}

impl CallReply {
    /// True if it is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.kind() == raw::REDISMODULE_REPLY_ERROR
    }

    fn kind(&self) -> isize {
        // SAFETY: `self` owns the reply.
        unsafe { api!(RedisModule_CallReplyType(self.0.as_ptr())) as isize }
    }

    /// True if the first command that this reply of COMMAND INFO describes is a module's; None if it describes none.
    fn is_of_module(&self) -> Option<bool> {
        const FLAGS: usize = 2;
        // SAFETY: `self` owns the reply, and its elements with it. An element that there is not is null, of which all
        // of these functions say that it has none either.
        unsafe {
            let command = api!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), 0));
            let flags = NonNull::new(api!(RedisModule_CallReplyArrayElement(NonNull::new(command)?.as_ptr(), FLAGS)))?;
            let flag = |at| {
                let flag = NonNull::new(api!(RedisModule_CallReplyArrayElement(flags.as_ptr(), at)))?;
                let mut len = 0;
                let text = api!(RedisModule_CallReplyStringPtr(flag.as_ptr(), &raw mut len));
                (!text.is_null()).then(|| slice::from_raw_parts(text.cast::<u8>(), len))
            };
            let len = api!(RedisModule_CallReplyLength(flags.as_ptr()));
            Some((0..len).any(|at| flag(at) == Some(b"module")))
        }
    }

    /// The texts of an array; none of any other reply.
    fn strings(&self) -> Vec<OwnedStr> {
        if self.kind() != raw::REDISMODULE_REPLY_ARRAY {
            return Vec::new();
        }
        // SAFETY: `self` owns the reply, and its elements with it. Each text is made for the module.
        unsafe {
            let len = api!(RedisModule_CallReplyLength(self.0.as_ptr()));
            let element = |at| api!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), at));
            (0..len)
                .filter_map(|at| OwnedStr::owned(api!(RedisModule_CreateStringFromCallReply(element(at)))))
                .collect()
        }
    }

    /// The text of an error, code first.
    fn text(&self) -> String {
        let mut len = 0;
        // SAFETY: `self` owns the reply, to which the text belongs, if there is one.
        let text = unsafe {
            let text = api!(RedisModule_CallReplyStringPtr(self.0.as_ptr(), &raw mut len));
            if text.is_null() { &b""[..] } else { slice::from_raw_parts(text.cast(), len) }
        };
        String::from_utf8_lossy(text.strip_prefix(b"-").unwrap_or(text)).into_owned()
    }
}

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: `self` owns the reply, and is used no more.
        unsafe { api!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}
