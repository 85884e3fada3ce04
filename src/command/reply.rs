//! Writes replies. Every array and every map counts its own entries before it is written: no length is stated by hand.
//!
//! The server could fill lengths in later (RedisModule_ReplySetMapLength). But for each of them it adds a node to the
//! client's list of output, and begins a new block of 16 KB behind it. To count first costs neither that nor an
//! allocation in the module.

use lock_core::model::fence::Fence;
use lock_core::model::hold::Mode;
use lock_core::model::key::{Db, KeyName};
use lock_core::model::owner::Owner;
use lock_core::model::time::Millis;
use server_api::Ctx;

/// A reply, or one entry of a longer one.
pub trait ToReply {
    /// Writes the entry, and all that it contains.
    fn reply(&self, ctx: &mut Ctx<'_>);
}

/// Replies with a map, in this order. In RESP2 it is a flat array.
pub fn reply_map(ctx: &mut Ctx<'_>, entries: &[(&str, &dyn ToReply)]) {
    ctx.reply_map(entries.len());
    for (name, value) in entries {
        ctx.reply_bytes(name.as_bytes());
        value.reply(ctx);
    }
}

/// An array of its elements.
impl<T: ToReply> ToReply for [T] {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_array(self.len());
        for element in self {
            element.reply(ctx);
        }
    }
}

impl<T: ToReply> ToReply for Vec<T> {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        self.as_slice().reply(ctx);
    }
}

/// Null where there is nothing.
impl<T: ToReply> ToReply for Option<T> {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        match self {
            Some(value) => value.reply(ctx),
            None => ctx.reply_null(),
        }
    }
}

impl<T: ToReply + ?Sized> ToReply for &T {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        (**self).reply(ctx);
    }
}

/// Bytes as they are. A slice of bytes alone would be an array of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl ToReply for Bytes<'_> {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_bytes(self.0);
    }
}

impl ToReply for KeyName {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_bytes(self);
    }
}

impl ToReply for Owner {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_bytes(self.as_bytes());
    }
}

impl ToReply for Mode {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_bytes(match self {
            Mode::Read => b"read",
            Mode::Write => b"write",
        });
    }
}

impl ToReply for u64 {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_integer(*self as i64);
    }
}

impl ToReply for usize {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_integer(*self as i64);
    }
}

impl ToReply for Db {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        ctx.reply_integer(self.0.into());
    }
}

impl ToReply for Fence {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        self.get().reply(ctx);
    }
}

impl ToReply for Millis {
    fn reply(&self, ctx: &mut Ctx<'_>) {
        self.0.reply(ctx);
    }
}
