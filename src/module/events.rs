//! Events in both directions: what the server tells us, and the keyspace events that subscribers get from us.

use super::keyspace::LOCK;
use super::state::with_node;
use super::{alarm, clock, persistence, replication};
use crate::ffi::event::{Listener, ServerEvent};
use crate::ffi::{Access, Ctx, Flags, Str};
use crate::lock::change::Cause;
use crate::lock::keyspace::Db;
use std::ffi::CStr;

/// The keyspace event of a change; None for facts, which the primary has announced already.
#[must_use]
pub fn name_of(cause: Cause) -> Option<&'static CStr> {
    match cause {
        Cause::Acquire => Some(c"lock.acquire"),
        Cause::Release => Some(c"lock.release"),
        Cause::Extend => Some(c"lock.extend"),
        Cause::Lapse => Some(c"lock.lapse"),
        Cause::Told => None,
    }
}

/// The module's ear.
#[derive(Debug)]
pub struct Ear;

impl Listener for Ear {
    fn on_server(ctx: &mut Ctx<'_>, event: ServerEvent) {
        match event {
            ServerEvent::Flush(db) => with_node(|node| node.flush(db.map(Db))),
            ServerEvent::Swap(one, other) => with_node(|node| node.swap(Db(one), Db(other))),
            ServerEvent::LoadingStarted(from) => persistence::set_loading(Some(from)),
            ServerEvent::LoadingEnded => persistence::set_loading(None),
            ServerEvent::BecamePrimary => {
                with_node(|node| node.promote(clock::now().wall));
                alarm::arm(ctx);
            }
            ServerEvent::BecameReplica => alarm::disarm(ctx),
            ServerEvent::Tick => alarm::tick(ctx),
        }
    }

    fn on_key(ctx: &mut Ctx<'_>, event: &CStr, key: Str<'_>) {
        match event.to_bytes() {
            b"rename_to" | b"move_to" => {
                let db = Db(ctx.db());
                if let Ok(mut keys) = ctx.open(&LOCK, &[key], Access::Write)
                    && let Some(lock) = keys.get_mut(0)
                {
                    with_node(|node| node.carry(db, key.as_bytes(), lock, clock::mono()));
                }
            }
            b"restore" if is_ours_to_tell(ctx.flags()) && has_lock(ctx, key) => {
                replication::owe(Db(ctx.db()), key.as_bytes());
                alarm::arm(ctx);
            }
            _ => {}
        }
    }
}

/// Whether this node is the one that tells others what happened.
fn is_ours_to_tell(flags: Flags) -> bool {
    flags.contains(Flags::PRIMARY) && !flags.contains(Flags::LOADING)
}

fn has_lock(ctx: &mut Ctx<'_>, key: Str<'_>) -> bool {
    ctx.open(&LOCK, &[key], Access::Read).is_ok_and(|keys| keys.get(0).is_some())
}
