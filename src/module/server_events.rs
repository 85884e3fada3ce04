//! Events in both directions: what the server tells us, and the keyspace events that subscribers get from us.

use super::keyspace::LOCK;
use super::shell::with_manager;
use super::{alarm, clock, cluster, data_type, metrics, replication, resync, role, turns, waiting};
use crate::ffi::event::{Listener, ServerEvent};
use crate::ffi::{Access, Ctx, Flags, Keys, OwnedStr, Str};
use crate::lock::manager::LockManager;
use crate::lock::model::effect::Cause;
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::lock::Lock;
use crate::lock::model::time::Timestamp;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;

/// The keyspace event of a change; None for facts, which the primary has announced already.
#[must_use]
pub fn name_of(cause: Cause, ended: bool) -> Option<&'static CStr> {
    match cause {
        Cause::Acquire => Some(c"lock.acquire"),
        Cause::Release | Cause::RevokeUndelivered => Some(c"lock.release"),
        // A closed connection gives its holds back, or moves the end of their leases.
        Cause::Close if ended => Some(c"lock.release"),
        Cause::Extend | Cause::Close => Some(c"lock.extend"),
        Cause::Lapse => Some(c"lock.lapse"),
        Cause::Break => Some(c"lock.break"),
        Cause::Replicated => None,
    }
}

thread_local! {
    /// The database that a key is being moved from.
    static MOVED_FROM: Cell<Option<u32>> = const { Cell::new(None) };
    /// The name that a key is being renamed from.
    static RENAMED_FROM: RefCell<Option<KeyName>> = const { RefCell::new(None) };
}

/// The module's ear.
#[derive(Debug)]
pub struct ServerEvents;

impl Listener for ServerEvents {
    fn on_server(ctx: &mut Ctx<'_>, event: ServerEvent) {
        match event {
            ServerEvent::Flush(db) => with_manager(|manager| manager.flush(db.map(Db))),
            ServerEvent::Swap(one, other) => {
                with_manager(|manager| manager.swap(Db(one), Db(other)));
                resync::swap(Db(one), Db(other));
            }
            ServerEvent::LoadingStarted(from) => data_type::set_loading(Some(from)),
            ServerEvent::LoadingEnded => data_type::set_loading(None),
            ServerEvent::LoadingBeside => with_manager(LockManager::begin_incoming),
            ServerEvent::SwappedIn => with_manager(LockManager::take_incoming),
            ServerEvent::Abandoned => with_manager(LockManager::drop_incoming),
            ServerEvent::Forked => replication::stream_may_begin(),
            ServerEvent::BecamePrimary => {
                role::set_primary(true);
                replication::stream_may_begin();
                with_manager(|manager| manager.promote(clock::now().wall));
                cluster::broadcast(ctx);
                alarm::arm(ctx);
            }
            ServerEvent::BecameReplica => {
                role::set_primary(false);
                alarm::disarm(ctx);
                waiting::dismiss();
            }
            ServerEvent::SlotsGained => with_manager(|manager| manager.gain_slots(clock::now().wall)),
            ServerEvent::Tick => {
                role::tick(ctx);
                replication::tick(ctx);
                alarm::tick(ctx);
                cluster::tick(ctx);
                turns::tick(ctx);
            }
            ServerEvent::BeforeSleep => {
                waiting::work(ctx);
                alarm::before_sleep(ctx);
                cluster::broadcast(ctx);
            }
            ServerEvent::ClientGone(client) => {
                let had_some = with_manager(|manager| manager.close(client, clock::mono()));
                if had_some {
                    metrics::count_session_closed();
                }
                // It may come after the event before the server sleeps. What it was granted and did not learn of is to
                // be taken back, too.
                if had_some || with_manager(|manager| waiting::has_jobs_in(manager)) {
                    alarm::arm(ctx);
                }
            }
        }
    }

    fn on_key(ctx: &mut Ctx<'_>, event: &CStr, key: Str<'_>) {
        match event.to_bytes() {
            // The server says at once, one after the other, from where and to where.
            b"rename_from" => drop(RENAMED_FROM.replace(Some(KeyName::from_slice(key.as_bytes())))),
            b"rename_to" => {
                let from = RENAMED_FROM.take().map(|name| (Db(ctx.db()), name));
                carry(ctx, key, from);
            }
            b"move_from" => MOVED_FROM.set(Some(ctx.db())),
            b"move_to" => {
                let from = MOVED_FROM.get().map(|db| (Db(db), KeyName::from_slice(key.as_bytes())));
                carry(ctx, key, from);
                // Valkey 8.1 selects the event's database for the client itself, and leaves it there: its next commands
                // would go to the wrong one, and so would what replicas are told of this one.
                if let Some(db) = MOVED_FROM.take() {
                    ctx.select_db(db);
                }
            }
            b"loaded" if data_type::take_arriving() => {
                if with_manager(|manager| manager.has_incoming()) {
                    // It lies beside the data set that is served, where this name has another lock or none.
                    return;
                }
                // This name lies on the server's stack: to open a key with it would end the server.
                let name = OwnedStr::new(key.as_bytes());
                placed(ctx, name.as_str(), LockManager::arrive);
            }
            b"restore" if data_type::take_arriving() => {
                if let Some(db) = placed(ctx, key, LockManager::arrive)
                    && is_ours_to_tell(ctx.flags())
                {
                    resync::enqueue(db, key.as_bytes());
                }
                // Its lease may be the earliest now.
                alarm::arm(ctx);
            }
            _ => {}
        }
    }
}

/// A lock came from another key.
fn carry(ctx: &mut Ctx<'_>, key: Str<'_>, from: Option<(Db, KeyName)>) {
    let from = from.as_ref().map(|(db, name)| (*db, &name[..]));
    if let Some(db) = placed(ctx, key, |manager, db, name, lock, now| manager.carry(from, db, name, lock, now)) {
        resync::follow(db, key.as_bytes());
    }
}

/// Whether this node is the one that tells others what happened.
fn is_ours_to_tell(flags: Flags) -> bool {
    flags.contains(Flags::PRIMARY) && !flags.contains(Flags::LOADING)
}

/// Tells the core of the lock that lies under a key now, and says in which database; None when it is none.
fn placed(
    ctx: &mut Ctx<'_>,
    key: Str<'_>,
    tell: impl FnOnce(&mut LockManager, Db, &[u8], &mut Lock, Timestamp),
) -> Option<Db> {
    let mut keys = Keys::open(ctx, &LOCK, &[key], Access::Write).ok()?;
    let db = Db(keys.db());
    let lock = keys.get_mut(0)?;
    with_manager(|manager| tell(manager, db, key.as_bytes(), lock, clock::mono()));
    Some(db)
}
