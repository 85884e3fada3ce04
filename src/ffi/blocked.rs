//! Parked clients: those whose command is answered later.
//!
//! A client is parked on its keys, so that the server sends it away by itself when a key's slot moves, and is unblocked
//! by hand: whatever is signalled under those keys answers nobody.

use super::answered::{Answered, await_delivery};
use super::client::client_exists;
use super::context::{Ctx, Flags};
use super::guard::guard;
use super::string::Str;
use super::timer::stay_awake;
use redis_module::raw;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

/// A kind of parked client, and what becomes of one. The ticket is the one that was made in [`Ctx::block`].
///
/// Each parked client sees one of these, and nothing else:
///
/// | calls | when |
/// | --- | --- |
/// | `answer`, `done` | it was unblocked and has its answer, or CLIENT UNBLOCK TIMEOUT ended its wait |
/// | `lost`, `done` | it went away, or the server sent it something else: CLIENT KILL, CLIENT UNBLOCK ERROR, a role change, a redirect |
/// | `answer`, `lost`, `done` | it was unblocked, but went away, was closed by the server or was sent something else before the answer reached it |
///
/// So `answer` promises nothing until `done` has come without `lost`. That the answer reached the client means that the
/// server has passed it on to the connection of a client that is still there, after the turn of its loop in which it
/// let go of the client (answered.rs); a connection that breaks later may lose it all the same.
///
/// `answer` may come from within [`Blocked::unblock`] (Valkey) or later, `lost` from within any command or event,
/// `done` from the server's loop alone. So nothing that these borrow may be borrowed while [`Blocked::unblock`] is
/// called.
///
/// The module must [`Ctx::watch_event_loop`] from [`Ctx::block`] until `done`: of one that was answered and not lost,
/// `done` comes when the server has slept.
pub trait Parked {
    /// The wait is over, by [`Blocked::unblock`] or by CLIENT UNBLOCK TIMEOUT: replies exactly once, and does nothing
    /// else with the context.
    fn answer(ctx: &mut Ctx<'_>, ticket: u64);
    /// The client does not get an answer of ours, or not the one that was given. Nothing may be written here.
    fn lost(ticket: u64);
    /// The server has let go of the client. Comes last and exactly once; after it the ticket is never mentioned again.
    fn done(ticket: u64);
}

/// A parked client, to be unblocked once. To drop it leaves the client parked; once the client was lost or answered it
/// does nothing.
#[derive(Debug)]
pub struct Blocked(Rc<Parking>);

/// What is known of one parked client: shared by the server, which holds it until `done`, and [`Blocked`].
#[derive(Debug)]
struct Parking {
    /// Made when the client is parked.
    ticket: Cell<u64>,
    client_id: u64,
    /// Null as soon as it must not be unblocked any more: to do so twice, or late, would free memory twice.
    handle: Cell<*mut raw::RedisModuleBlockedClient>,
    progress: Cell<Progress>,
}

/// How far a wait has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing happened yet, or the server has yet to ask for the answer.
    Waiting,
    /// The server is being told to unblock it.
    Unblocking,
    /// Answered while the server was being told. What was written may still be thrown away, on Valkey, or be followed
    /// by the end of the client.
    Given,
    /// Answered when the server asked for it. It sends this and nothing else, unless it closes the client first.
    Answered,
    /// Reported as lost.
    Lost,
}

thread_local! {
    /// Those to be unblocked at the next moment at which nothing can come between: see [`Moment`].
    static PUT_OFF: RefCell<Vec<Blocked>> = const { RefCell::new(Vec::new()) };
}

impl Ctx<'_> {
    /// Whether the client of this call may be made to wait: not from a script, a transaction or another module, which
    /// need their answer now, and not the primary or the AOF, which wait for none.
    #[must_use]
    pub fn can_block(&self) -> bool {
        let never = Flags::LUA | Flags::MULTI | Flags::DENY_BLOCKING | Flags::REPLICATED | Flags::LOADING;
        self.is_command() && !self.flags().intersects(never)
    }

    /// Parks the client of this call, which has had no reply yet. None when it cannot wait: then nothing was done, and
    /// a reply is still owed. Beyond [`Ctx::can_block`], that is a subscriber on Valkey.
    ///
    /// `ticket` is asked for once the client is parked, and never when it cannot wait: what it does need not be undone.
    ///
    /// Each costs the server some 30 KB. Whenever one of `keys` is created, the server looks at all that are parked on
    /// it.
    pub fn block<P: Parked>(&mut self, keys: &[Str<'_>], ticket: impl FnOnce() -> u64) -> Option<Blocked> {
        // To block in spite of these would end some servers, and send others' clients an error.
        if !self.can_block() {
            return None;
        }
        assert!(!self.has_replied(), "a client that has its reply does not wait, nor does one that waits already");
        let parking = Rc::new(Parking {
            client_id: self.client_id(),
            ticket: Cell::new(0),
            handle: Cell::new(ptr::null_mut()),
            progress: Cell::new(Progress::Waiting),
        });
        let kept = Rc::into_raw(Rc::clone(&parking));
        let mut keys: SmallVec<[_; 4]> = keys.iter().map(|key| key.as_ptr()).collect();
        // SAFETY: the context of a command whose client may be blocked (above). The server keeps the keys by itself,
        // and `kept` until it gives it to `done`.
        let handle = unsafe {
            api!(RedisModule_BlockClientOnKeys(
                self.as_ptr(),
                Some(signalled),
                Some(answer::<P>),
                Some(done::<P>),
                0,
                keys.as_mut_ptr(),
                keys.len() as c_int,
                kept.cast_mut().cast()
            ))
        };
        if handle.is_null() {
            // SAFETY: from `into_raw` above; the server has not taken it.
            drop(unsafe { Rc::from_raw(kept) });
            return None;
        }
        // SAFETY: a handle just made.
        unsafe { api!(RedisModule_SetDisconnectCallback(handle, Some(lost::<P>))) };
        parking.handle.set(handle);
        // The server calls nothing of ours before this command is over.
        parking.ticket.set(ticket());
        self.will_reply();
        Some(Blocked(parking))
    }
}

impl Blocked {
    /// Ends the wait: the server asks for the answer, at once or soon. On Redis 7.0 the module must
    /// [`Ctx::watch_event_loop`] for that.
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
            // That may have been already.
            stay_awake();
        }
        if is_first && moment == Moment::Timer {
            // SAFETY: a handle that was not unblocked yet (not null); the context is used for one call, then freed.
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
/// Redis 7.0 and 7.2, and what Valkey made of the latter, ask for the answer while they are being told, send it, and
/// forget that they have: were a CLIENT UNBLOCK ERROR served before they let go of the client, it would get a second
/// reply. There we tell them when no more clients will be served before they let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// At once: Redis from 7.4 on asks for the answer when it lets go of the client, Valkey from 8.0 on keeps it aside
    /// until then.
    Now,
    /// In the event before the server sleeps, after which Redis 7.0 lets go of clients.
    BeforeSleep,
    /// In a timer. Timers ring when clients were served, and before 7.2 lets go of clients; the event comes after that.
    Timer,
}

impl Moment {
    fn of_server() -> Moment {
        // SAFETY: takes no argument. Valkey says its own number, and has had none below 7.2.
        match unsafe { api!(RedisModule_GetServerVersion()) } {
            ..0x0007_0200 => Moment::BeforeSleep,
            0x0007_0200..0x0007_0400 => Moment::Timer,
            _ => Moment::Now,
        }
    }
}

/// The server is about to sleep, and the module has done what it does then.
pub(super) fn before_sleep() {
    if Moment::of_server() == Moment::BeforeSleep {
        unblock_put_off();
    }
}

fn unblock_put_off() {
    for blocked in PUT_OFF.take() {
        blocked.0.unblock();
    }
}

impl Parking {
    fn unblock(&self) {
        let handle = self.handle.replace(ptr::null_mut());
        if handle.is_null() {
            return;
        }
        self.progress.set(Progress::Unblocking);
        // SAFETY: a handle that lives, since it was not null, and that is unblocked here for the first and last time.
        unsafe { api!(RedisModule_UnblockClient(handle, ptr::null_mut())) };
        if self.progress.get() == Progress::Unblocking {
            self.progress.set(Progress::Waiting);
        }
    }

    fn lose<P: Parked>(&self) {
        self.handle.set(ptr::null_mut());
        self.progress.set(Progress::Lost);
        guard(|| P::lost(self.ticket.get()));
    }
}

/// # Safety
/// `ctx` must be the context of a callback for a client that `block` has parked and that is not done.
unsafe fn parking_of<'a>(ctx: *mut raw::RedisModuleCtx) -> &'a Parking {
    // SAFETY: as required of the caller: the data is what `block` gave, and the server's share of it lasts until
    // `done`.
    unsafe { &*api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Parking>() }
}

/// Something happened to a key that clients are parked on: nothing to us.
extern "C" fn signalled(_: *mut raw::RedisModuleCtx, _: *mut *mut raw::RedisModuleString, _: c_int) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

extern "C" fn answer<P: Parked>(ctx: *mut raw::RedisModuleCtx, _: *mut *mut raw::RedisModuleString, _: c_int) -> c_int {
    guard(|| {
        // SAFETY: the server calls this for a client that is parked.
        let parking = unsafe { parking_of(ctx) };
        parking.handle.set(ptr::null_mut());
        parking.progress.set(match parking.progress.get() {
            Progress::Unblocking => Progress::Given,
            _ => Progress::Answered,
        });
        // SAFETY: the context of this call, made into a Ctx once.
        let mut ctx = unsafe { Ctx::lent(ctx) };
        if guard(|| P::answer(&mut ctx, parking.ticket.get())).is_none() {
            ctx.reply_panic();
        }
    });
    raw::REDISMODULE_OK as c_int
}

extern "C" fn lost<P: Parked>(ctx: *mut raw::RedisModuleCtx, _: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server calls this for a client that is parked.
    guard(|| unsafe { parking_of(ctx) }.lose::<P>());
}

extern "C" fn done<P: Parked>(ctx: *mut raw::RedisModuleCtx, kept: *mut c_void) {
    guard(|| {
        // SAFETY: what `block` gave to the server, which gives it back here, once.
        let parking = unsafe { Rc::from_raw(kept.cast_const().cast::<Parking>()) };
        // SAFETY: the context of this call.
        let gone = unsafe { api!(RedisModule_BlockedClientDisconnected(ctx)) } != 0;
        let is_answered = match parking.progress.get() {
            Progress::Waiting | Progress::Unblocking | Progress::Lost => false,
            Progress::Given => !gone,
            // After CLIENT UNBLOCK TIMEOUT the server calls the client gone, though it is there and has its answer.
            Progress::Answered => !gone || client_exists(parking.client_id),
        };
        let ticket = parking.ticket.get();
        if is_answered {
            // The server may close it yet in this turn, with the answer unsent.
            await_delivery(Answered { client_id: parking.client_id, ticket, lost: P::lost, done: P::done });
            return;
        }
        if parking.progress.get() != Progress::Lost {
            parking.lose::<P>();
        }
        P::done(ticket);
    });
}
