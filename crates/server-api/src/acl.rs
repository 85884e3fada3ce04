//! Access control: the categories of commands, which stand in the `SPEC` of each, and what a client may read.

use super::context::{Ctx, Flags};
use super::load::Loader;
use super::string::OwnedStr;
use redis_module::raw;
use std::ffi::{CStr, c_int};

/// The ACL categories of a command.
#[derive(Clone, Copy, Debug)]
pub struct Acl {
    /// The server's own categories.
    pub known: &'static str,
    /// The module's own category. Left out where the server has none but its own.
    pub own: &'static CStr,
}

impl Loader<'_> {
    /// Sets a command's ACL categories. Redis 7.2 takes its own alone; Redis 7.4 and Valkey 8.0 take the module's too.
    /// Redis 7.0 has none for commands of modules: there, users allow them by name.
    pub(super) fn categorise(&mut self, command: *mut raw::RedisModuleCommand, acl: Acl) {
        // SAFETY: reads a pointer to a function, written once, before the load began.
        let Some(set) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else { return };
        let own = acl.own.to_str().expect("a constant of ASCII letters");
        let all = format!("{} {own}\0", acl.known);
        let known = format!("{}\0", acl.known);
        // SAFETY: the caller has just got `command` from the server, for which it lives; both texts end with NUL,
        // outlive the calls and are copied. An unknown category makes the first call fail as a whole; the second leaves
        // it out.
        unsafe {
            if set(command, all.as_ptr().cast()) != raw::REDISMODULE_OK as c_int {
                set(command, known.as_ptr().cast());
            }
        }
    }

    /// Adds an ACL category of the module's own, where the server lets a module have one.
    pub fn acl_category(&mut self, name: &CStr) {
        // SAFETY: reads a pointer to a function, written once, before the load began. The context is that of the load;
        // the name is copied.
        unsafe {
            if let Some(add) = raw::RedisModule_AddACLCategory {
                add(self.as_ptr(), name.as_ptr());
            }
        }
    }
}

impl Ctx<'_> {
    /// True if the client of this call may read this key. A call without a user may: it comes from the server, its
    /// primary, the AOF or another module. A script may not: not every server tells on whose behalf it runs.
    #[must_use]
    pub fn may_read(&self, key: &[u8]) -> bool {
        if self.flags().contains(Flags::LUA) {
            return false;
        }
        let Some(name) = self.user_name() else { return true };
        let key = OwnedStr::new(key);
        // SAFETY: both names are owned by the module and outlive the calls. The user is the module's, freed once and
        // not used after that; it is null if the user was deleted.
        unsafe {
            let user = api!(RedisModule_GetModuleUserFromUserName(name.as_ptr()));
            if user.is_null() {
                return false;
            }
            let access = raw::REDISMODULE_CMD_KEY_ACCESS as c_int;
            let allowed = api!(RedisModule_ACLCheckKeyPermissions(user, key.as_str().as_ptr(), access));
            api!(RedisModule_FreeModuleUser(user));
            allowed == raw::REDISMODULE_OK as c_int
        }
    }
}
