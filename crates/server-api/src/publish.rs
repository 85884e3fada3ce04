//! Messages to subscribers of channels, and who may send them.

use super::context::{Ctx, Flags};
use super::serving::is_own_slot;
use super::string::OwnedStr;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr;

/// From this version on, the server keeps what it pushes to a client behind the reply that it is writing to it.
const PUSHES_LATE: c_int = 0x0007_0200;

/// The kind of the messages of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// As by PUBLISH: all nodes of a cluster would hear of it.
    Everywhere,
    /// As by SPUBLISH: the nodes of the channel's slot alone.
    Shard,
}

/// Sends a message to the subscribers of a channel. Returns how many clients of this node get it.
pub fn publish(channel: &[u8], message: &[u8], spread: Spread) -> usize {
    let (channel, message) = (OwnedStr::new(channel), OwnedStr::new(message));
    // SAFETY: no server reads the context, so that there need be none. Both strings outlive the call, in which the
    // server copies them.
    let receivers = unsafe {
        match spread {
            Spread::Everywhere => api!(RedisModule_PublishMessage(ptr::null_mut(), channel.as_ptr(), message.as_ptr())),
            Spread::Shard => {
                api!(RedisModule_PublishMessageShard(ptr::null_mut(), channel.as_ptr(), message.as_ptr()))
            }
        }
    };
    usize::try_from(receivers).unwrap_or_default()
}

impl Ctx<'_> {
    /// Returns the kind of message that costs other nodes the least.
    #[must_use]
    pub fn spread(&self) -> Spread {
        if self.flags().contains(Flags::CLUSTER) { Spread::Shard } else { Spread::Everywhere }
    }

    /// True if a message that is sent now could come to stand within a reply: Redis 7.0 sends it at once to a client of
    /// RESP3 whose transaction or script is being replied to (redis #12326).
    #[must_use]
    pub fn would_push_into_reply(&self) -> bool {
        // SAFETY: the function takes no argument.
        self.is_nested() && unsafe { api!(RedisModule_GetServerVersion()) } < PUSHES_LATE
    }

    /// True if the client of this call may send messages to this channel, as they are spread here. If it may not, that
    /// is noted in ACL LOG.
    pub fn may_publish(&mut self, channel: &[u8]) -> bool {
        let command = OwnedStr::new(match self.spread() {
            Spread::Everywhere => b"PUBLISH",
            Spread::Shard => &b"SPUBLISH"[..],
        });
        let channel = OwnedStr::new(channel);
        // The message matters to no right: any string will do.
        let mut words = [&command, &channel, &channel].map(OwnedStr::as_ptr);
        let Some(name) = self.user_name() else { return false };
        // SAFETY: the context lives for this call (rule 2). The name and the words are owned by the module and outlive
        // the calls. The user is the module's, freed once and not used after that; it is null if the user was deleted.
        unsafe {
            let user = api!(RedisModule_GetModuleUserFromUserName(name.as_ptr()));
            if user.is_null() {
                return false;
            }
            let (words, len) = (words.as_mut_ptr(), words.len() as c_int);
            let may = api!(RedisModule_ACLCheckCommandPermissions(user, words, len)) == raw::REDISMODULE_OK as c_int;
            if !may {
                let reason = raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CHANNEL;
                api!(RedisModule_ACLAddLogEntry(self.as_ptr(), user, channel.as_ptr(), reason));
            }
            api!(RedisModule_FreeModuleUser(user));
            may
        }
    }

    /// True if messages to this channel reach its subscribers from here: in a cluster, if this node has the channel's
    /// slot or imports it.
    pub fn reaches(&mut self, channel: &[u8]) -> bool {
        if !self.flags().contains(Flags::CLUSTER) {
            return true;
        }
        is_own_slot(self.as_non_null(), &OwnedStr::new(channel))
    }
}
