//! What happens in the server without a command of ours: emptied and swapped databases, loading, roles, ticks, and what
//! others do to keys.

use super::answered::{after_sleep, client_gone};
use super::blocked::before_sleep;
use super::context::Ctx;
use super::guard::guard;
use super::load::{LoadError, Loader};
use super::string::Str;
use super::timer::set_about_to_sleep;
use redis_module::raw;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Gets the events of the server and of keys.
pub trait Listener {
    /// Something happened to the server.
    fn on_server(ctx: &mut Ctx<'_>, event: ServerEvent);
    /// Something happened to a key of the selected database. Nothing may be written here: it would reach replicas
    /// before what it follows.
    fn on_key(ctx: &mut Ctx<'_>, event: &CStr, key: Str<'_>);
}

/// What happened to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A database is about to be emptied; None: all.
    Flush(Option<u32>),
    /// Two databases changed places.
    Swap(u32, u32),
    /// Loading begins.
    LoadingStarted(LoadedFrom),
    /// Loading is over, well or not.
    LoadingEnded,
    /// A replica begins to load a data set beside the one that it serves, which all keys that are opened are of until
    /// [`ServerEvent::SwappedIn`]. [`ServerEvent::LoadingStarted`] follows. No timer rings meanwhile.
    LoadingBeside,
    /// That data set is the one that is served from now on. The values of the old one are freed in the background,
    /// without [`Value::unlinked`](super::value::Value::unlinked). [`ServerEvent::LoadingEnded`] follows.
    SwappedIn,
    /// That load has broken off. What came of it is freed in the background, and the old data set goes on being served.
    Abandoned,
    /// The server has become a primary.
    BecamePrimary,
    /// The server has become a replica.
    BecameReplica,
    /// This node serves slots that were moved to it at once: Redis says so from 8.4 on, Valkey from 9.0 on. Nobody says
    /// it of slots that are moved key by key.
    SlotsGained,
    /// The server's regular tick.
    Tick,
    /// The server has forked a child, which saves what there is now, to disk or for a replica.
    Forked,
    /// All that clients have sent was served, and the server is about to wait for more. Only while
    /// [`Ctx::watch_event_loop`].
    BeforeSleep,
    /// The connection of this number is closed, by whichever side; nothing will come over it any more. Comes from
    /// within any command, even a script that takes too long, from within a tick, while loading, or after
    /// [`ServerEvent::BeforeSleep`]; in the latter case a timer that is set here still rings in time. Nothing may be
    /// written here. Comes after [`Parked::lost`](super::Parked::lost) of a client that was answered, and before that
    /// of one that waits. Comes once for each that [`Ctx::connection`] names; the link to a primary may come again.
    ClientGone(u64),
}

/// Where what is loaded comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadedFrom {
    /// The server's own RDB or AOF.
    Disk,
    /// The primary.
    Primary,
}

impl Loader<'_> {
    /// Subscribes to what [`ServerEvent`] names, but for [`ServerEvent::BeforeSleep`], and to the events of keys of the
    /// generic class and of loading.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn listener<L: Listener>(&mut self) -> Result<(), LoadError> {
        // The ids below mean the same on Redis and Valkey.
        let events = [
            raw::REDISMODULE_EVENT_CLIENT_CHANGE,
            raw::REDISMODULE_EVENT_FLUSHDB,
            raw::REDISMODULE_EVENT_SWAPDB,
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            raw::REDISMODULE_EVENT_CRON_LOOP,
            raw::REDISMODULE_EVENT_FORK_CHILD,
        ];
        if let Some(id) = events.into_iter().find(|id| !self.subscribe::<L>(*id)) {
            return Err(LoadError(format!("the server refused a subscription to its event {id}")));
        }
        // Where slots are not moved at once, the server does not know it.
        self.subscribe::<L>(if self.is_valkey() { VALKEY_SLOTS_MOVED.0 } else { REDIS_SLOTS_MOVED.0 });
        // SAFETY: the context of the load.
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
        // SAFETY: the context of the load.
        let subscribed =
            unsafe { api!(RedisModule_SubscribeToServerEvent(self.as_ptr(), event, Some(on_server::<L>))) };
        subscribed == raw::REDISMODULE_OK as c_int
    }
}

impl Ctx<'_> {
    /// Hears of the turns of the server's loop from now on: [`ServerEvent::BeforeSleep`]. That costs the server most of
    /// a microsecond for each, whatever is done in it.
    pub fn watch_event_loop<L: Listener>(&mut self) {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_SubscribeToServerEvent(self.as_ptr(), TURNS, Some(on_server::<L>))) };
    }

    /// Hears of them no more. To be called from a timer: the server may be going through the list of listeners in any
    /// event, and in a command that another module calls from one, and would go on with one that is freed. And only
    /// while it hears of them: to end a subscription that is not there makes one without a function, which the server
    /// calls all the same.
    pub fn unwatch_event_loop(&mut self) {
        // SAFETY: a valid context; without a function the subscription ends.
        unsafe { api!(RedisModule_SubscribeToServerEvent(self.as_ptr(), TURNS, None)) };
        set_about_to_sleep(true);
    }
}

/// The event of the turns of the server's loop.
const TURNS: raw::RedisModuleEvent = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };

/// The event of slots that are moved at once, and its part that says that they have come. From 18 on the ids mean other
/// things on Redis than on Valkey.
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
        // SAFETY: the server passes the data that belongs to the event.
        if let Some(event) = unsafe { read_event(event.id, subevent, data) } {
            if let ServerEvent::ClientGone(client_id) = event {
                client_gone(client_id);
            }
            // SAFETY: the context of this call, made into a Ctx once.
            guard(|| L::on_server(&mut unsafe { Ctx::lent(ctx) }, event));
            if event == ServerEvent::BeforeSleep {
                before_sleep();
            }
        }
    });
}

/// # Safety
/// `data` must be what the server passes with this event.
unsafe fn read_event(id: u64, subevent: u64, data: *mut c_void) -> Option<ServerEvent> {
    match (id, subevent) {
        (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_START) => {
            // SAFETY: as required of the caller.
            let info = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
            Some(ServerEvent::Flush(u32::try_from(info.dbnum).ok()))
        }
        (raw::REDISMODULE_EVENT_SWAPDB, _) => {
            // SAFETY: as required of the caller.
            let info = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
            Some(ServerEvent::Swap(info.dbnum_first.max(0) as u32, info.dbnum_second.max(0) as u32))
        }
        (raw::REDISMODULE_EVENT_LOADING, raw::REDISMODULE_SUBEVENT_LOADING_REPL_START) => {
            Some(ServerEvent::LoadingStarted(LoadedFrom::Primary))
        }
        (
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_SUBEVENT_LOADING_RDB_START | raw::REDISMODULE_SUBEVENT_LOADING_AOF_START,
        ) => Some(ServerEvent::LoadingStarted(LoadedFrom::Disk)),
        (raw::REDISMODULE_EVENT_LOADING, _) => Some(ServerEvent::LoadingEnded),
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED) => {
            Some(ServerEvent::LoadingBeside)
        }
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED) => {
            Some(ServerEvent::SwappedIn)
        }
        (raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, _) => Some(ServerEvent::Abandoned),
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER) => {
            Some(ServerEvent::BecamePrimary)
        }
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, _) => Some(ServerEvent::BecameReplica),
        // To one of the two at most is subscribed.
        REDIS_SLOTS_MOVED | VALKEY_SLOTS_MOVED => Some(ServerEvent::SlotsGained),
        (raw::REDISMODULE_EVENT_CRON_LOOP, _) => Some(ServerEvent::Tick),
        (raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN) => Some(ServerEvent::Forked),
        (raw::REDISMODULE_EVENT_EVENTLOOP, raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP) => {
            Some(ServerEvent::BeforeSleep)
        }
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
            // SAFETY: as required of the caller.
            let info = unsafe { &*data.cast::<raw::RedisModuleClientInfo>() };
            Some(ServerEvent::ClientGone(info.id))
        }
        _ => None,
    }
}

extern "C" fn on_key<L: Listener>(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    guard(|| {
        // SAFETY: the server passes a text that ends with NUL and a key name, both alive for this call.
        let (event, key) = unsafe { (CStr::from_ptr(event), Str::lent(key)) };
        if let Some(key) = key {
            // SAFETY: the context of this call, made into a Ctx once.
            L::on_key(&mut unsafe { Ctx::lent(ctx) }, event, key);
        }
    });
    raw::REDISMODULE_OK as c_int
}
