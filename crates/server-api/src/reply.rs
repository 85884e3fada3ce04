//! Replies to the client of a call. The server turns them into RESP2 or RESP3.

use super::context::Ctx;
use std::ffi::{CString, c_long};

impl Ctx<'_> {
    /// `:n`.
    pub fn reply_integer(&mut self, value: i64) {
        self.will_reply();
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_ReplyWithLongLong(self.as_ptr(), value)) };
    }

    /// `+OK`.
    pub fn reply_ok(&mut self) {
        self.will_reply();
        // SAFETY: the context lives for this call (rule 2); the server copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.as_ptr(), c"OK".as_ptr())) };
    }

    /// `$-1` in RESP2, `_` in RESP3.
    pub fn reply_null(&mut self) {
        self.will_reply();
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_ReplyWithNull(self.as_ptr())) };
    }

    /// A bulk string: `$len`, then the bytes.
    pub fn reply_bytes(&mut self, bytes: &[u8]) {
        self.will_reply();
        // SAFETY: the context lives for this call (rule 2); the server copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.as_ptr(), bytes.as_ptr().cast(), bytes.len())) };
    }

    /// Starts an array of `len` replies, which must follow.
    pub fn reply_array(&mut self, len: usize) {
        self.will_reply();
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_ReplyWithArray(self.as_ptr(), len as c_long)) };
    }

    /// Starts a map of `len` pairs of replies, which must follow; in RESP2 a flat array.
    pub fn reply_map(&mut self, len: usize) {
        self.will_reply();
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_ReplyWithMap(self.as_ptr(), len as c_long)) };
    }

    /// Replies with an error: a code, a blank, a text. A NUL ends the text.
    pub fn reply_error(&mut self, text: &str) {
        self.will_reply();
        let text = CString::new(text.split('\0').next().unwrap_or_default()).expect("cut at the first NUL");
        // SAFETY: the context lives for this call (rule 2); the server copies the text.
        unsafe { api!(RedisModule_ReplyWithError(self.as_ptr(), text.as_ptr())) };
    }

    /// Replies that the module panicked, unless a reply was begun: the client would take a second one for the reply to
    /// its next command.
    pub(super) fn reply_panic(&mut self) {
        if !self.has_replied() {
            self.reply_error("ERR internal error of the module, see the server's log");
        }
    }
}
