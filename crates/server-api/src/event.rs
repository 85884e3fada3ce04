//! Events of the server and of keys: what happens without a command of the module.

use super::blocked::before_sleep;
use super::context::Ctx;
use super::delivery::{after_sleep, client_gone};
use super::guard::guard;
use super::load::{LoadError, Loader};
use super::string::Str;
use super::timer::set_about_to_sleep;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Receives the events of the server and of keys.
pub trait Listener {
    /// Something happened to the server.
    fn on_server(ctx: &mut Ctx<'_>, event: ServerEvent);
    /// Something happened to a key of the selected database. No key may be written here: replicas would get that write
    /// before the change that it follows.
    fn on_key(ctx: &mut Ctx<'_>, event: &CStr, key: Str<'_>);
}

/// An event of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A database is about to be emptied; None stands for all.
    Flush(Option<u32>),
    /// Two databases changed places.
    Swap(u32, u32),
    /// Loading begins.
    LoadingStarted(LoadedFrom),
    /// Loading has ended or failed.
    LoadingEnded,
    /// A replica begins to load a data set beside the one that it serves. [`ServerEvent::LoadingStarted`] follows.
    /// Until [`ServerEvent::SwappedIn`] all keys that are opened are of the old data set, and no timer rings.
    LoadingBeside,
    /// The replica serves the new data set from now on. The values of the old one are freed in the background, without
    /// [`Value::unlinked`](super::value::Value::unlinked). [`ServerEvent::LoadingEnded`] follows.
    SwappedIn,
    /// The load beside the old data set has failed. Its values are freed in the background, and the old data set stays.
    Abandoned,
    /// The server has become a primary.
    BecamePrimary,
    /// The server has become a replica.
    BecameReplica,
    /// This node serves slots that were moved to it as a whole. Redis reports it from 8.4 on, Valkey from 9.0 on. No
    /// server reports it of slots that are moved key by key.
    SlotsGained,
    /// An operator has set `maxmemory-policy`, and it is in force.
    EvictionPolicySet,
    /// The server's regular tick.
    Tick,
    /// The server has forked a child, which saves the present data set to disk or for a replica.
    Forked,
    /// All clients were served, and the server is about to sleep. Comes only while the module watches the event loop:
    /// [`Ctx::watch_event_loop`].
    BeforeSleep,
    /// The connection of this number is closed, by either side. No key may be written here.
    ///
    /// Comes from within any command, even a script that takes too long, from within a tick, while loading, or after
    /// [`ServerEvent::BeforeSleep`]. In the last case a timer that is set here still rings in time.
    ///
    /// For a client that was answered, [`Parked::lost`](super::Parked::lost) comes before this; for one that waits,
    /// after it. Comes once for each number that [`Ctx::connection`] gave; for the link to a primary it may come again.
    ClientGone(u64),
}

/// The source of the data set that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadedFrom {
    /// The server's own RDB or AOF.
    Disk,
    /// The primary.
    Primary,
}

impl Loader<'_> {
    /// Subscribes to all events of [`ServerEvent`] but [`ServerEvent::BeforeSleep`], and to the keyspace events of the
    /// classes generic and loaded.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn listener<L: Listener>(&mut self) -> Result<(), LoadError> {
        // These ids mean the same on Redis and Valkey.
        let events = [
            raw::REDISMODULE_EVENT_CLIENT_CHANGE,
            raw::REDISMODULE_EVENT_FLUSHDB,
            raw::REDISMODULE_EVENT_SWAPDB,
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            raw::REDISMODULE_EVENT_CRON_LOOP,
            raw::REDISMODULE_EVENT_FORK_CHILD,
            raw::REDISMODULE_EVENT_CONFIG,
        ];
        if let Some(id) = events.into_iter().find(|id| !self.subscribe::<L>(*id)) {
            return Err(LoadError(format!("the server refused a subscription to its event {id}")));
        }
        // A server that does not move slots as a whole refuses this, which is right.
        self.subscribe::<L>(if self.is_valkey() { VALKEY_SLOTS_MOVED.0 } else { REDIS_SLOTS_MOVED.0 });
        // SAFETY: the context of the load, which lives for it (rule 2).
        let subscribed = unsafe {
            api!(RedisModule_SubscribeToKeyspaceEvents(
                self.as_ptr(),
                raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_LOADED,
                Some(on_key::<L>)
            ))
        };
        if subscribed != raw::REDISMODULE_OK as c_int {
            return Err(LoadError("the server refused a subscription to keyspace events".to_owned()));
        }
        Ok(())
    }

    fn subscribe<L: Listener>(&mut self, id: u64) -> bool {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context of the load, which lives for it (rule 2).
        let subscribed =
            unsafe { api!(RedisModule_SubscribeToServerEvent(self.as_ptr(), event, Some(on_server::<L>))) };
        subscribed == raw::REDISMODULE_OK as c_int
    }
}

impl Ctx<'_> {
    /// Subscribes to the turns of the event loop: [`ServerEvent::BeforeSleep`]. Costs the server almost a microsecond a
    /// turn, whatever is done there.
    pub fn watch_event_loop<L: Listener>(&mut self) {
        // SAFETY: the context lives for this call (rule 2).
        unsafe { api!(RedisModule_SubscribeToServerEvent(self.as_ptr(), TURNS, Some(on_server::<L>))) };
    }

    /// Ends that subscription. To be called from a timer alone. Elsewhere the server may be walking its list of
    /// listeners, and would go on with one that was freed: in an event, or in a command that another module calls
    /// there.
    ///
    /// To be called only while subscribed: otherwise the server adds a listener without a function, and calls it.
    pub fn unwatch_event_loop(&mut self) {
        // SAFETY: the context lives for this call (rule 2). Without a function the subscription ends.
        unsafe { api!(RedisModule_SubscribeToServerEvent(self.as_ptr(), TURNS, None)) };
        set_about_to_sleep(true);
    }
}

/// The event of the turns of the event loop.
const TURNS: raw::RedisModuleEvent = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };

/// The event of slots that are moved as a whole, and its part that says that they have come. From 18 on, ids of events
/// mean other things on Redis than on Valkey.
const REDIS_SLOTS_MOVED: (u64, u64) = (18, 2);
const VALKEY_SLOTS_MOVED: (u64, u64) = (19, 4);

extern "C" fn on_server<L: Listener>(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    guard(|| {
        if event.id == raw::REDISMODULE_EVENT_EVENTLOOP {
            let is_before = subevent == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP;
            set_about_to_sleep(is_before);
            if !is_before {
                after_sleep();
            }
        }
        // SAFETY: the server passes the data that belongs to the event, for this call (rule 2).
        if let Some(event) = unsafe { read_event(event.id, subevent, data) } {
            if let ServerEvent::ClientGone(client_id) = event {
                client_gone(client_id);
            }
            // SAFETY: the server passes the context for this call; this is the only Ctx made of it (rules 2 and 3).
            guard(|| L::on_server(&mut unsafe { Ctx::lent(ctx) }, event));
            if event == ServerEvent::BeforeSleep {
                before_sleep();
            }
        }
    });
}

/// # Safety
/// `data` must be what the server passes with this event, during its callback.
unsafe fn read_event(id: u64, subevent: u64, data: *mut c_void) -> Option<ServerEvent> {
    match (id, subevent) {
        (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_START) => {
            // SAFETY: the caller passes the data of this event, which has this type and lives for its callback.
            let info = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
            Some(ServerEvent::Flush(u32::try_from(info.dbnum).ok()))
        }
        (raw::REDISMODULE_EVENT_SWAPDB, _) => {
            // SAFETY: the caller passes the data of this event, which has this type and lives for its callback.
            let info = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
            Some(ServerEvent::Swap(info.dbnum_first.max(0) as u32, info.dbnum_second.max(0) as u32))
        }
        (raw::REDISMODULE_EVENT_LOADING, _) => Some(loading_event(subevent)),
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, _) => Some(async_load_event(subevent)),
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER) => {
            Some(ServerEvent::BecamePrimary)
        }
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, _) => Some(ServerEvent::BecameReplica),
        // The module has subscribed to one of the two at most.
        REDIS_SLOTS_MOVED | VALKEY_SLOTS_MOVED => Some(ServerEvent::SlotsGained),
        (raw::REDISMODULE_EVENT_CRON_LOOP, _) => Some(ServerEvent::Tick),
        (raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN) => Some(ServerEvent::Forked),
        (raw::REDISMODULE_EVENT_EVENTLOOP, raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP) => {
            Some(ServerEvent::BeforeSleep)
        }
        (raw::REDISMODULE_EVENT_CONFIG, raw::REDISMODULE_SUBEVENT_CONFIG_CHANGE) => {
            // SAFETY: the caller passes the data of this event, which has this type and lives for its callback: as many
            // names as it says, each a text that ends with NUL.
            let is_policy = unsafe {
                let change = &*data.cast::<raw::RedisModuleConfigChange>();
                (0..change.num_changes as usize)
                    .any(|at| CStr::from_ptr(*change.config_names.add(at)) == c"maxmemory-policy")
            };
            is_policy.then_some(ServerEvent::EvictionPolicySet)
        }
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
            // SAFETY: the caller passes the data of this event, which has this type and lives for its callback.
            let info = unsafe { &*data.cast::<raw::RedisModuleClientInfo>() };
            Some(ServerEvent::ClientGone(info.id))
        }
        _ => None,
    }
}

fn loading_event(subevent: u64) -> ServerEvent {
    match subevent {
        raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => ServerEvent::LoadingStarted(LoadedFrom::Primary),
        raw::REDISMODULE_SUBEVENT_LOADING_RDB_START | raw::REDISMODULE_SUBEVENT_LOADING_AOF_START => {
            ServerEvent::LoadingStarted(LoadedFrom::Disk)
        }
        _ => ServerEvent::LoadingEnded,
    }
}

fn async_load_event(subevent: u64) -> ServerEvent {
    match subevent {
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED => ServerEvent::LoadingBeside,
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => ServerEvent::SwappedIn,
        _ => ServerEvent::Abandoned,
    }
}

extern "C" fn on_key<L: Listener>(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    guard(|| {
        // SAFETY: the server passes a text that ends with NUL and a key's name, which live for this call (rule 2).
        let (event, key) = unsafe { (CStr::from_ptr(event), Str::lent(key)) };
        if let Some(key) = key {
            // SAFETY: the server passes the context for this call; this is the only Ctx made of it (rules 2 and 3).
            L::on_key(&mut unsafe { Ctx::lent(ctx) }, event, key);
        }
    });
    raw::REDISMODULE_OK as c_int
}
