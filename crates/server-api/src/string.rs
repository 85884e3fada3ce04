//! The server's strings, lent and owned. They may hold any bytes, NUL and 0xFF too.

use redis_module::raw;
use std::ptr::{self, NonNull};
use std::slice;

/// A string that the server lends for the length of a call: an argument, a key's name.
#[derive(Clone, Copy, Debug)]
pub struct Str<'a> {
    raw: NonNull<raw::RedisModuleString>,
    bytes: &'a [u8],
}

impl<'a> Str<'a> {
    /// # Safety
    /// `raw` must be null, or a string that lives unchanged for `'a`.
    pub(super) unsafe fn lent(raw: *mut raw::RedisModuleString) -> Option<Str<'a>> {
        let raw = NonNull::new(raw)?;
        let mut len = 0;
        // SAFETY: the string is not null. The caller says that it lives unchanged for `'a`, and so do its bytes.
        let bytes = unsafe {
            let bytes = api!(RedisModule_StringPtrLen(raw.as_ptr(), &raw mut len));
            slice::from_raw_parts(bytes.cast(), len)
        };
        Some(Str { raw, bytes })
    }

    pub(super) fn as_ptr(self) -> *mut raw::RedisModuleString {
        self.raw.as_ptr()
    }

    /// A copy.
    #[must_use]
    pub fn to_owned(self) -> OwnedStr {
        OwnedStr::new(self.bytes)
    }

    /// Any bytes, NUL and 0xFF too.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> From<Str<'a>> for &'a [u8] {
    fn from(text: Str<'a>) -> &'a [u8] {
        text.as_bytes()
    }
}

/// A string of the server's kind that the module owns. Freed on drop.
#[derive(Debug)]
pub struct OwnedStr(NonNull<raw::RedisModuleString>);

impl OwnedStr {
    /// Copies the bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> OwnedStr {
        // SAFETY: the server copies the bytes. Without a context, the module owns the string until it frees it.
        let raw = unsafe { api!(RedisModule_CreateString(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())) };
        OwnedStr(NonNull::new(raw).expect("the server aborts when memory runs out"))
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleString {
        self.0.as_ptr()
    }

    /// # Safety
    /// `raw` must be null, or a string that the caller owns and gives up.
    pub(super) unsafe fn owned(raw: *mut raw::RedisModuleString) -> Option<OwnedStr> {
        NonNull::new(raw).map(OwnedStr)
    }

    /// Lends the string.
    #[must_use]
    pub fn as_str(&self) -> Str<'_> {
        // SAFETY: `self` owns the string, which nothing changes, and is borrowed for as long as the result.
        unsafe { Str::lent(self.0.as_ptr()) }.expect("it is not null")
    }

    /// Gives the string up to the server.
    pub(super) fn into_ptr(self) -> *mut raw::RedisModuleString {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }
}

impl Drop for OwnedStr {
    fn drop(&mut self) {
        // SAFETY: `self` owns the string, and is used no more.
        unsafe { api!(RedisModule_FreeString(ptr::null_mut(), self.0.as_ptr())) }
    }
}
