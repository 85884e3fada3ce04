//! Blocked clients: their commands get a reply later, exactly once.
//!
//! A client is parked on its keys, so that the server itself redirects it when a slot moves. (On Redis 7.0 it is parked
//! on a stand-in for them: `stand_in_of`.) The module alone unblocks it: what the server signals on those keys is
//! ignored.

use super::client::client_exists;
use super::context::{Ctx, Flags};
use super::delivery::{Answered, await_delivery, has_closed};
use super::guard::guard;
use super::slot;
use super::string::{OwnedStr, Str};
use super::timer::stay_awake;
use redis_module::raw;
use smallvec::{SmallVec, smallvec};
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, RandomState};
use std::ptr;
use std::rc::Rc;

/// The callbacks of a kind of blocked client when its wait ends. The ticket is the one that was made in [`Ctx::block`].
///
/// For each blocked client the calls of one row come, in this order, and no others:
///
/// | calls | end of the wait |
/// | --- | --- |
/// | `answer`, `done` | unblocked, and the reply was sent; also CLIENT UNBLOCK TIMEOUT |
/// | `lost`, `done` | disconnected, or the server replied: CLIENT KILL or UNBLOCK ERROR, a role change, a redirect |
/// | `answer`, `lost`, `done` | unblocked, but disconnected, closed or sent another reply before ours was sent |
///
/// So `answer` means nothing until `done` has come without `lost`. A reply counts as sent when the client is still
/// there after the turn of the event loop in which the server released it (delivery.rs). A connection that breaks later
/// may still lose it.
///
/// `answer` may come from within [`Blocked::unblock`] (Valkey) or later, `lost` from within any command or event, and
/// `done` from the event loop alone. So while [`Blocked::unblock`] runs, nothing may be borrowed that these borrow.
///
/// The module must [`Ctx::watch_event_loop`] from [`Ctx::block`] until `done`: after a reply that was sent, `done`
/// comes when the server has slept.
pub trait Parked {
    /// The wait ended by [`Blocked::unblock`] or by CLIENT UNBLOCK TIMEOUT. Replies exactly once, and does nothing else
    /// with the context.
    fn answer(ctx: &mut Ctx<'_>, ticket: u64);
    /// The client gets no reply of the module, or not the one that was written. `has_closed` is true if its connection
    /// has closed, not if the server replied in place of the module. No key may be written here.
    fn lost(ticket: u64, has_closed: bool);
    /// The server has released the client. Comes last and exactly once. No later call has this ticket.
    fn done(ticket: u64);
}

/// A blocked client, to be unblocked once. Dropping this leaves the client blocked. After `answer` or `lost` it has no
/// effect.
#[derive(Debug)]
pub struct Blocked(Rc<Parking>);

/// One blocked client. Shared by [`Blocked`] and the server, which keeps its share until `done` (rule 4).
#[derive(Debug)]
struct Parking {
    /// Made once the client is blocked.
    ticket: Cell<u64>,
    client_id: u64,
    /// Null from the moment at which the client must not be unblocked any more: that would free memory twice.
    handle: Cell<*mut raw::RedisModuleBlockedClient>,
    progress: Cell<Progress>,
}

/// How far the end of a wait has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Not unblocked yet, or the server has not called `answer` yet.
    Waiting,
    /// RedisModule_UnblockClient is running.
    Unblocking,
    /// Answered within RedisModule_UnblockClient. Valkey may still discard the reply, and any server may still close
    /// the client.
    Given,
    /// Answered later. The server sends this reply and no other, unless it closes the client first.
    Answered,
    /// `lost` was called.
    Lost,
}

thread_local! {
    /// Clients to unblock later in this turn of the event loop: see [`Moment`].
    static PUT_OFF: RefCell<Vec<Blocked>> = const { RefCell::new(Vec::new()) };
}

impl Ctx<'_> {
    /// True if the client of this call may be blocked. A script, a transaction or another module may not: it needs its
    /// reply at once. The primary and the AOF may not: they wait for no reply.
    #[must_use]
    pub fn can_block(&self) -> bool {
        let never = Flags::LUA | Flags::MULTI | Flags::DENY_BLOCKING | Flags::REPLICATED | Flags::LOADING;
        self.is_command() && !self.flags().intersects(never)
    }

    /// Blocks the client of this call, which has had no reply yet. None if it cannot wait: then nothing was done, and
    /// the caller must reply. Even if [`Ctx::can_block`], a subscriber cannot wait on Valkey.
    ///
    /// `ticket` is called only once the client is blocked, so its effects never need undoing.
    ///
    /// Each blocked client costs the server some 30 KB. When one of `keys` is created, the server visits all clients
    /// that are parked on it.
    pub fn block<P: Parked>(&mut self, keys: &[Str<'_>], ticket: impl FnOnce() -> u64) -> Option<Blocked> {
        // Otherwise some servers crash, and others send the client an error (trap T0 in docs/internals/module-api.md).
        if !self.can_block() {
            return None;
        }
        assert!(!self.has_replied(), "a client with a reply, or one that is blocked, cannot be blocked");
        let parking = Rc::new(Parking {
            client_id: self.client_id(),
            ticket: Cell::new(0),
            handle: Cell::new(ptr::null_mut()),
            progress: Cell::new(Progress::Waiting),
        });
        let kept = Rc::into_raw(Rc::clone(&parking));
        let handle = self.park::<P>(keys, kept.cast_mut().cast());
        if handle.is_null() {
            // SAFETY: `kept` comes from `into_raw` above. The server refused, so it keeps no share.
            drop(unsafe { Rc::from_raw(kept) });
            return None;
        }
        parking.handle.set(handle);
        // The server calls none of the callbacks before this command has returned.
        parking.ticket.set(ticket());
        self.will_reply();
        Some(Blocked(parking))
    }

    /// Blocks the client on its keys, without a timeout. Null if the server refuses.
    fn park<P: Parked>(&mut self, keys: &[Str<'_>], kept: *mut c_void) -> *mut raw::RedisModuleBlockedClient {
        let mut of_slot = None;
        let mut keys: SmallVec<[_; 4]> = if !keeps_refused_client() {
            keys.iter().map(|key| key.as_ptr()).collect()
        } else if self.flags().contains(Flags::CLUSTER) {
            smallvec![of_slot.insert(stand_in_of(keys[0])).as_ptr()]
        } else {
            smallvec![STAND_IN.with(|name| name.as_ptr())]
        };
        // SAFETY: the context lives for this call (rule 2) and is that of a command whose client may be blocked, as
        // `block` has checked. The server copies the names. It keeps `kept` until it passes it to `done` (rule 4).
        let handle = unsafe {
            api!(RedisModule_BlockClientOnKeys(
                self.as_ptr(),
                Some(signalled),
                Some(answer::<P>),
                Some(done::<P>),
                0,
                keys.as_mut_ptr(),
                keys.len() as c_int,
                kept
            ))
        };
        if !handle.is_null() {
            // SAFETY: the server has just made this handle, which lives until `done`.
            unsafe { api!(RedisModule_SetDisconnectCallback(handle, Some(lost::<P>))) };
        }
        handle
    }
}

/// True if the server is Redis 7.0, which keeps as its current client one that a created key did not release. If a
/// command creates the key, the server mends that itself. If the background does, and the client is freed by another
/// client's command, the server reads freed memory: trap T27 in docs/internals/module-api.md.
fn keeps_refused_client() -> bool {
    Moment::of_server() == Moment::BeforeSleep
}

thread_local! {
    /// A random part of names, so that no client can guess them.
    static MARK: String = format!("{:016x}", RandomState::new().hash_one(0));
    /// The name that all clients are blocked on in place of their keys, where there are no slots. Never freed.
    static STAND_IN: &'static OwnedStr = Box::leak(Box::new(stand_in(b"")));
}

/// Returns the name that a client is blocked on in place of this key. Nobody creates it, since nobody knows it. The
/// server redirects the client by the slot of the name alone, so one name stands for all keys of a request.
fn stand_in_of(key: Str<'_>) -> OwnedStr {
    stand_in(key.as_bytes())
}

fn stand_in(key: &[u8]) -> OwnedStr {
    MARK.with(|mark| OwnedStr::new(&slot::stand_in(key, mark)))
}

impl Blocked {
    /// Ends the wait: the server calls `answer`, at once or later in this turn of the event loop. On Redis 7.0 the
    /// module must [`Ctx::watch_event_loop`] for that.
    pub fn unblock(self) {
        let moment = Moment::of_server();
        let handle = self.0.handle.get();
        if moment == Moment::Now || handle.is_null() {
            return self.0.unblock();
        }
        let is_first = PUT_OFF.with_borrow_mut(|put_off| {
            put_off.push(self);
            put_off.len() == 1
        });
        if moment == Moment::BeforeSleep {
            // That event may have passed in this turn.
            stay_awake();
        }
        if is_first && moment == Moment::Timer {
            // SAFETY: a handle that is not null lives and was not unblocked. The context is made here, used for one
            // call, and freed.
            unsafe {
                let ctx = api!(RedisModule_GetThreadSafeContext(handle));
                Ctx::lent(ctx).set_timer(0, |_| unblock_put_off());
                api!(RedisModule_FreeThreadSafeContext(ctx));
            }
        }
    }
}

/// When to tell the server to unblock a client.
///
/// Redis 7.0, Redis 7.2 and Valkey 7.2 call `answer` within RedisModule_UnblockClient, send the reply, and do not
/// remember it. If they served a CLIENT UNBLOCK ERROR before they release the client, it would get a second reply. So
/// on these servers a client is unblocked at a moment after which no other client is served before the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// At once. Redis from 7.4 on calls `answer` when it releases the client. Valkey from 8.0 on calls it at once, but
    /// keeps the reply back until the release.
    Now,
    /// In the event before the server sleeps. Redis 7.0 releases clients right after it.
    BeforeSleep,
    /// In a timer. In Redis 7.2 timers ring after all clients were served and before the release; the event before
    /// sleep would be too late.
    Timer,
}

impl Moment {
    fn of_server() -> Moment {
        // SAFETY: the function takes no argument. Valkey says its own version, which is 7.2 or later.
        match unsafe { api!(RedisModule_GetServerVersion()) } {
            ..0x0007_0200 => Moment::BeforeSleep,
            0x0007_0200..0x0007_0400 => Moment::Timer,
            _ => Moment::Now,
        }
    }
}

/// The server is about to sleep, and the module has handled that event.
pub(super) fn before_sleep() {
    if Moment::of_server() == Moment::BeforeSleep {
        unblock_put_off();
    }
}

fn unblock_put_off() {
    let mut put_off = PUT_OFF.take();
    put_off.drain(..).for_each(|blocked| blocked.0.unblock());
    // The list is kept for the next turn, unless it has grown.
    if put_off.capacity() <= PUT_OFF_KEPT {
        PUT_OFF.with_borrow_mut(|others| {
            put_off.append(others);
            *others = put_off;
        });
    }
}

/// A list with room for more is freed.
const PUT_OFF_KEPT: usize = 64;

impl Parking {
    fn unblock(&self) {
        let handle = self.handle.replace(ptr::null_mut());
        if handle.is_null() {
            return;
        }
        self.progress.set(Progress::Unblocking);
        // SAFETY: the handle was not null, so it lives. From here on it is null: this is the only unblocking.
        unsafe { api!(RedisModule_UnblockClient(handle, ptr::null_mut())) };
        if self.progress.get() == Progress::Unblocking {
            self.progress.set(Progress::Waiting);
        }
    }

    fn lose<P: Parked>(&self) {
        self.handle.set(ptr::null_mut());
        self.progress.set(Progress::Lost);
        guard(|| P::lost(self.ticket.get(), has_closed(self.client_id)));
    }
}

/// # Safety
/// `ctx` must be the context of a callback for a client that `block` has blocked, before its `done`.
unsafe fn parking_of<'a>(ctx: *mut raw::RedisModuleCtx) -> &'a Parking {
    // SAFETY: the caller's context belongs to a client of `block`, which gave the server this data to keep until `done`
    // (rule 4).
    unsafe { &*api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Parking>() }
}

/// The server signals a key that a client is parked on. The client stays blocked.
extern "C" fn signalled(_: *mut raw::RedisModuleCtx, _: *mut *mut raw::RedisModuleString, _: c_int) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

extern "C" fn answer<P: Parked>(ctx: *mut raw::RedisModuleCtx, _: *mut *mut raw::RedisModuleString, _: c_int) -> c_int {
    guard(|| {
        // SAFETY: the server calls this for a client of `block`, before its `done`.
        let parking = unsafe { parking_of(ctx) };
        parking.handle.set(ptr::null_mut());
        parking.progress.set(match parking.progress.get() {
            Progress::Unblocking => Progress::Given,
            _ => Progress::Answered,
        });
        // SAFETY: the server passes the context for this call; this is the only Ctx made of it (rules 2 and 3).
        let mut ctx = unsafe { Ctx::lent(ctx) };
        if guard(|| P::answer(&mut ctx, parking.ticket.get())).is_none() {
            ctx.reply_panic();
        }
    });
    raw::REDISMODULE_OK as c_int
}

extern "C" fn lost<P: Parked>(ctx: *mut raw::RedisModuleCtx, _: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server calls this for a client of `block`, before its `done`.
    guard(|| unsafe { parking_of(ctx) }.lose::<P>());
}

extern "C" fn done<P: Parked>(ctx: *mut raw::RedisModuleCtx, kept: *mut c_void) {
    guard(|| {
        // SAFETY: the server gives back here, once and for the last time, what `block` made it keep (rule 4).
        let parking = unsafe { Rc::from_raw(kept.cast_const().cast::<Parking>()) };
        // SAFETY: the server passes the context, for this call (rule 2).
        let gone = unsafe { api!(RedisModule_BlockedClientDisconnected(ctx)) } != 0;
        let is_answered = match parking.progress.get() {
            Progress::Waiting | Progress::Unblocking | Progress::Lost => false,
            Progress::Given => !gone,
            // After CLIENT UNBLOCK TIMEOUT the server says that the client is gone, though it is there and has its
            // reply.
            Progress::Answered => !gone || client_exists(parking.client_id),
        };
        let ticket = parking.ticket.get();
        if is_answered {
            // The server may still close it in this turn, with the reply unsent.
            await_delivery(Answered { client_id: parking.client_id, ticket, lost: P::lost, done: P::done });
            return;
        }
        if parking.progress.get() != Progress::Lost {
            parking.lose::<P>();
        }
        P::done(ticket);
    });
}
