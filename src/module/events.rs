//! Events in both directions: what the server tells us, and the keyspace events that subscribers get from us.

use super::keyspace::LOCK;
use super::{alarm, clock, state};
use crate::ffi::event::{Listener, ServerEvent};
use crate::ffi::{Access, Ctx, Str};
use crate::lock::lease::KeyName;
use crate::lock::request::{Cause, Db};
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
            ServerEvent::Flush(db) => state::with(|state| state.node.flush(db.map(Db))),
            ServerEvent::Swap(one, other) => state::with(|state| state.node.swap(Db(one), Db(other))),
            ServerEvent::LoadingStarted(from) => state::with(|state| state.loading = Some(from)),
            ServerEvent::LoadingEnded => state::with(|state| state.loading = None),
            ServerEvent::BecamePrimary => {
                state::with(|state| state.node.promote(clock::now().wall));
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
                    state::with(|state| state.node.carry(db, key.as_bytes(), lock, clock::mono()));
                }
            }
            b"restore" if ctx.open(&LOCK, &[key], Access::Read).is_ok_and(|keys| keys.get(0).is_some()) => {
                // Not now: what is written in a notification reaches replicas before what it follows.
                let place = (Db(ctx.db()), KeyName::from_slice(key.as_bytes()));
                if state::with(|state| state.loading.is_none()) {
                    state::with(|state| state.restored.push(place));
                    alarm::arm(ctx);
                }
            }
            _ => {}
        }
    }
}
