//! The module's section of INFO, and the sections of the server.

use super::guard::guard;
use super::load::{LoadError, Loader};
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::ptr;

/// The fields of the section.
pub trait InfoFields {
    /// Passes the name and the number of each field, in order.
    fn fields(each: &mut dyn FnMut(&CStr, u64));
}

impl Loader<'_> {
    /// Adds the section `INFO <module>`.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn info<I: InfoFields>(&mut self) -> Result<(), LoadError> {
        // SAFETY: the context of the load, which lives for it (rule 2).
        let registered = unsafe { api!(RedisModule_RegisterInfoFunc(self.as_ptr(), Some(info::<I>))) };
        if registered == raw::REDISMODULE_OK as c_int {
            Ok(())
        } else {
            Err(LoadError("the server refused the INFO section".to_owned()))
        }
    }
}

/// A field of a section of the server's INFO.
#[must_use]
pub fn server_field(section: &CStr, field: &CStr) -> Option<String> {
    // SAFETY: the context may be null. Both names end with NUL and outlive the calls. The module owns what the server
    // returns, copies the text that lies in it, and frees it once at the end.
    unsafe {
        let info = api!(RedisModule_GetServerInfo(ptr::null_mut(), section.as_ptr()));
        let text = api!(RedisModule_ServerInfoGetFieldC(info, field.as_ptr()));
        let copy = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
        api!(RedisModule_FreeServerInfo(ptr::null_mut(), info));
        copy
    }
}

extern "C" fn info<I: InfoFields>(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        // The server is crashing, perhaps within the module.
        return;
    }
    guard(|| {
        // SAFETY: the server passes the context, for this call (rule 2). Null names the section after the module.
        let wanted = unsafe { api!(RedisModule_InfoAddSection(ctx, ptr::null())) };
        if wanted == raw::REDISMODULE_OK as c_int {
            I::fields(&mut |name, value| {
                // SAFETY: the context lives for this call (rule 2); the server copies the name.
                unsafe { api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value)) };
            });
        }
    });
}
