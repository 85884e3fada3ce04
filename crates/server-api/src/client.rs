//! Numbers of clients, and which of them are connections.
//!
//! The server runs every command as some client. Scripts, other modules and the AOF have clients without a connection.
//! These have numbers too, which the server uses again and again, and whose end it never reports.

use super::context::{Ctx, Flags};
use super::string::OwnedStr;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;

impl Ctx<'_> {
    /// The number of the client of this call. Numbers of connections are never used again.
    #[must_use]
    pub fn client_id(&self) -> u64 {
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_GetClientId(self.as_ptr())) }
    }

    /// The number of the connection that this command came over. [`ClientGone`](super::event::ServerEvent::ClientGone)
    /// will name it. In a transaction it is that of the client that sent it.
    ///
    /// None if the end of the client would never be reported: the command comes from a script or a function, from
    /// another module, from the AOF, or from the primary, whose clients are not those of this node.
    #[must_use]
    pub fn connection(&self) -> Option<u64> {
        let is_alien = self.flags().intersects(Flags::LUA | Flags::REPLICATED | Flags::LOADING);
        // No server names a user for a client without a connection.
        (self.is_command() && !is_alien && self.user_name().is_some()).then_some(self.client_id())
    }

    /// Returns the name of the user of this call's client; None for a client without a connection.
    ///
    /// Whether the client exists is the wrong question: Valkey 9.1 says yes of any client that runs a command, and
    /// crashes if asked for its address.
    pub(super) fn user_name(&self) -> Option<&OwnedStr> {
        let name = self.user_name.get_or_init(|| {
            // By the client's number: Redis 7.0 crashes when it is asked for the user of a call that has none.
            // SAFETY: the context lives for this call (rule 2). The name is the module's: without automatic memory, the
            // server does not free it.
            unsafe { OwnedStr::owned(api!(RedisModule_GetClientUserNameById(self.as_ptr(), self.client_id()))) }
        });
        name.as_ref()
    }
}

/// True if a client of this number still exists.
pub(super) fn client_exists(id: u64) -> bool {
    // SAFETY: with null in place of the struct to fill in, every server says only whether the client exists.
    unsafe { api!(RedisModule_GetClientInfoById(ptr::null_mut(), id)) == raw::REDISMODULE_OK as c_int }
}
