//! Clients by their numbers: who calls, and whether that is a connection.
//!
//! The server runs every command as some client. Scripts, other modules and the AOF have clients that nobody is connected
//! to, and that have numbers too, which are used again and again and whose end is never told.

use super::context::{Ctx, Flags};
use super::string::OwnedStr;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;

impl Ctx<'_> {
    /// The client's number, which no other client has had or will have.
    #[must_use]
    pub fn client_id(&self) -> u64 {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_GetClientId(self.as_ptr())) }
    }

    /// The number of the connection that this command came over, by which
    /// [`ClientGone`](super::event::ServerEvent::ClientGone) will name it. None when nobody's end would ever be told: the
    /// command comes from a script or a function, from another module, from the AOF, or from the primary, whose clients
    /// are not ours. In a transaction it is the client's that sent it.
    #[must_use]
    pub fn connection(&self) -> Option<u64> {
        let is_alien = self.flags().intersects(Flags::LUA | Flags::REPLICATED | Flags::LOADING);
        let id = self.client_id();
        (self.is_command() && !is_alien && is_connected(self, id)).then_some(id)
    }
}

/// Whether the server has a connection of this number.
fn is_connected(ctx: &Ctx<'_>, id: u64) -> bool {
    // Each connection has a user, and no server says whose user a client without one runs as. To ask whether the client
    // exists is not enough: Valkey 9.1 says so of whoever runs the command. To ask for its address then ends that server.
    // SAFETY: a valid context; the name is ours, since we do not ask the server to free strings by itself.
    unsafe { OwnedStr::owned(api!(RedisModule_GetClientUserNameById(ctx.as_ptr(), id))) }.is_some()
}

/// Whether there is a client of this number still.
pub(super) fn client_exists(id: u64) -> bool {
    // SAFETY: with a null place for what is known of the client, the server says only whether there is one.
    unsafe { api!(RedisModule_GetClientInfoById(ptr::null_mut(), id)) == raw::REDISMODULE_OK as c_int }
}
