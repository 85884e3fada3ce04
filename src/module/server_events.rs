//! What the server tells the module: its own events, those of keys, and messages of other nodes.

use super::data_type::Stored;
use super::open_locks::{gone_at, with_key};
use super::scheduler::Callbacks;
use super::shell::{shell, with_manager};
use super::{background, blocked_clients, eviction, grace, notify};
use lock_core::manager::LockManager;
use lock_core::model::key::{Db, PlainName};
use lock_core::model::lock::Lock;
use lock_core::model::time::Timestamp;
use server_api::event::{Listener, ServerEvent};
use server_api::peers::Peer;
use server_api::{Access, Ctx, Flags, LoadError, Loader, OwnedStr, Str};
use std::ffi::CStr;

/// Subscribes to the events of the server and of keys.
///
/// # Errors
/// When the server refuses.
pub fn load(loader: &mut Loader<'_>) -> Result<(), LoadError> {
    shell().scheduler.install(Callbacks {
        ring: background::on_ring,
        watch: |ctx| ctx.watch_event_loop::<ServerEvents>(),
        unwatch: |ctx| {
            if !shell().needs_event_loop() {
                shell().scheduler.unwatch_event_loop(ctx);
            }
        },
    });
    loader.listener::<ServerEvents>()
}

/// The listener for events of the server and of keys.
#[derive(Debug)]
pub struct ServerEvents;

impl Listener for ServerEvents {
    fn on_server(ctx: &mut Ctx<'_>, event: ServerEvent) {
        let shell = shell();
        match event {
            ServerEvent::Flush(db) => with_manager(|manager| manager.flush(db.map(Db))),
            ServerEvent::Swap(one, other) => {
                with_manager(|manager| manager.swap(Db(one), Db(other)));
                shell.resync.swap(Db(one), Db(other));
            }
            ServerEvent::LoadingStarted(from) => shell.loading.set(Some(from)),
            ServerEvent::LoadingEnded => shell.loading.set(None),
            ServerEvent::LoadingBeside => with_manager(LockManager::begin_incoming),
            ServerEvent::SwappedIn => with_manager(LockManager::take_incoming),
            ServerEvent::Abandoned => with_manager(LockManager::drop_incoming),
            ServerEvent::Forked => shell.stream.may_begin(),
            ServerEvent::BecamePrimary => {
                shell.role.set_primary(true);
                shell.stream.may_begin();
                with_manager(|manager| manager.promote(shell.clock.now().wall));
                grace::on_promotion();
                broadcast_fence(ctx);
                shell.schedule(ctx);
            }
            ServerEvent::BecameReplica => {
                shell.role.set_primary(false);
                shell.scheduler.stop_timer(ctx);
                keep_offers(ctx);
                blocked_clients::dismiss(ctx);
            }
            ServerEvent::SlotsGained => with_manager(|manager| manager.gain_slots(shell.clock.now().wall)),
            ServerEvent::EvictionPolicySet => eviction::warn_if_locks_may_go(),
            ServerEvent::Tick => on_tick(ctx),
            ServerEvent::BeforeSleep => {
                shell.clock.end_unit();
                notify::send_held(ctx);
                background::on_before_sleep(ctx);
                broadcast_fence(ctx);
            }
            // A client disconnects. The hand-off of what its connection held is a job of the background.
            ServerEvent::ClientGone(client) => {
                let had_holds = with_manager(|manager| manager.disconnect(client, shell.clock.mono()));
                if had_holds {
                    shell.metrics.count_session_closed();
                }
                // It may come after the event before the server sleeps. A grant that did not reach the client is to be
                // revoked, too.
                if had_holds || shell.has_jobs() {
                    shell.schedule(ctx);
                }
            }
        }
    }

    fn on_key(ctx: &mut Ctx<'_>, event: &CStr, key: Str<'_>) {
        let shell = shell();
        match event.to_bytes() {
            // The server says at once, one after the other, from where and to where.
            b"rename_from" => drop(shell.renamed_from.replace(Some(PlainName::from_slice(key.as_bytes())))),
            b"rename_to" => {
                let from = shell.renamed_from.take().map(|name| (Db(ctx.db()), name));
                carry(ctx, key, from);
            }
            b"move_from" => shell.moved_from.set(Some(Db(ctx.db()))),
            b"move_to" => {
                let from = shell.moved_from.get().map(|db| (db, PlainName::from_slice(key.as_bytes())));
                carry(ctx, key, from);
                // Valkey 8.1 selects the event's database for the client itself, and leaves it there: its next commands
                // would go to the wrong one, and so would what replicas are told of this one.
                if let Some(Db(db)) = shell.moved_from.take() {
                    ctx.select_db(db);
                }
            }
            b"loaded" if shell.lock_arrived.take() => {
                if with_manager(|manager| manager.has_incoming()) {
                    // It lies beside the data set that is served, where this name has another lock or none.
                    return;
                }
                // This name lies on the server's stack: to open a key with it would end the server.
                let name = OwnedStr::new(key.as_bytes());
                with_lock_at(ctx, name.as_str(), LockManager::arrive);
            }
            b"restore" if shell.lock_arrived.take() => {
                if let Some(db) = with_lock_at(ctx, key, LockManager::arrive)
                    && is_ours_to_tell(ctx.flags())
                {
                    shell.resync.enqueue(db, key.as_bytes());
                }
                // Its lease may be the earliest now.
                shell.schedule(ctx);
            }
            b"expire" => note_expiry(ctx, key),
            _ => {}
        }
    }
}

/// A key was given a time to live. If it is waited for, somebody must open it then.
fn note_expiry(ctx: &mut Ctx<'_>, key: Str<'_>) {
    let db = Db(ctx.db());
    if !with_manager(|manager| manager.is_waited_for(db, key.as_bytes())) {
        return;
    }
    if let Ok(Some(at)) = with_key(ctx, key, Access::Read, |keys| keys.expires_at(0))
        && with_manager(|manager| manager.set_expiry(db, key.as_bytes(), gone_at(at)))
    {
        shell().schedule(ctx);
    }
}

/// The server's tick.
fn on_tick(ctx: &mut Ctx<'_>) {
    let shell = shell();
    shell.role.refresh(ctx);
    shell.stream.tick(ctx);
    background::on_tick(ctx);
    shell.gossip.tick(ctx, with_manager(|manager| manager.last_fence()), shell.clock.now());
    if shell.gossip.is_cluster(ctx) {
        // Fences are told there.
        shell.scheduler.watch_event_loop(ctx);
    } else if shell.scheduler.watches_event_loop() && !shell.needs_event_loop() {
        shell.scheduler.unwatch_soon(ctx);
    }
}

/// Tells the other nodes of a cluster how far the fence clock is.
fn broadcast_fence(ctx: &mut Ctx<'_>) {
    let shell = shell();
    shell.gossip.broadcast(ctx, with_manager(|manager| manager.last_fence()), || shell.clock.now());
}

/// The listener for messages of other nodes.
#[derive(Debug)]
pub struct PeerMessages;

impl Peer for PeerMessages {
    fn on_message(number: u64) {
        let shell = shell();
        if let Some(fence) = shell.gossip.on_message(number, shell.clock.now()) {
            with_manager(|manager| manager.observe_fence(fence));
        }
    }
}

/// Makes plain holds of what this node has offered: from now on it does not know which of them belong together.
fn keep_offers(ctx: &mut Ctx<'_>) {
    let selected = ctx.db();
    for (db, name) in with_manager(|manager| manager.offered_keys()) {
        ctx.select_db(db.0);
        let name = OwnedStr::new(&name);
        // Something else than a lock may lie there: it has no offers.
        let _ = with_key(ctx, name.as_str(), Access::Write, |keys| keys.get_mut(0).map(|lock| lock.0.keep_offers()));
    }
    ctx.select_db(selected);
}

/// A lock came from another key.
fn carry(ctx: &mut Ctx<'_>, key: Str<'_>, from: Option<(Db, PlainName)>) {
    let from = from.as_ref().map(|(db, name)| (*db, &name[..]));
    if let Some(db) = with_lock_at(ctx, key, |manager, db, name, lock, now| manager.carry(from, db, name, lock, now)) {
        shell().resync.follow(db, key.as_bytes());
    }
}

/// True if this node sends records to others.
fn is_ours_to_tell(flags: Flags) -> bool {
    flags.contains(Flags::PRIMARY) && !flags.contains(Flags::LOADING)
}

/// Tells the core of the lock that lies under a key now, and says in which database; None when it is none.
fn with_lock_at(
    ctx: &mut Ctx<'_>,
    key: Str<'_>,
    tell: impl FnOnce(&mut LockManager, Db, &[u8], &mut Lock, Timestamp),
) -> Option<Db> {
    let told = with_key(ctx, key, Access::Write, |keys| {
        let db = Db(keys.db());
        let Stored(lock) = keys.get_mut(0)?;
        with_manager(|manager| tell(manager, db, key.as_bytes(), lock, shell().clock.mono()));
        Some(db)
    });
    told.ok()?
}
