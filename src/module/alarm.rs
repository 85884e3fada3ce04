//! Ends leases by the module's own hand, at the millisecond, on the primary alone.
//!
//! One server timer for the earliest lease, and a look at every tick, since the server's timers follow the wall clock
//! and may be late by as much as that was set back.

use super::keyspace::{LOCK, OpenLocks};
use super::shell::with_manager;
use super::{clock, finish, resync, turns, waiting};
use crate::ffi::timer::Timer;
use crate::ffi::{Access, Ctx, Flags, Keys, OwnedStr, Serving};
use crate::lock::collections::wheel::EntryId;
use crate::lock::manager::LeasePoll;
use crate::lock::model::key::{Db, KeyIndex};
use crate::lock::model::time::{Millis, Timestamp};
use std::cell::Cell;

/// How long one slice of work may last. Between slices the server serves its clients.
pub(crate) const SLICE_MS: Millis = Millis(1);
/// How many holds of one key may end between two looks at the clock.
pub(crate) const ITEMS_PER_POLL: usize = 64;

thread_local! {
    /// The timer, if it is set, and what it is set for.
    static TIMER: Cell<Option<(Timestamp, Timer)>> = const { Cell::new(None) };
    /// While the server rings, from our ring until it says that it is about to sleep: whether the timer is to be set
    /// then.
    static RINGING: Cell<Option<bool>> = const { Cell::new(None) };
    /// When the slice ends that has begun in this turn of the server's loop.
    static SLICE_END: Cell<Option<Timestamp>> = const { Cell::new(None) };
}

/// When to stop working in this turn of the server's loop: the timer and what is done before it sleeps share one slice.
pub(crate) fn slice_end() -> Timestamp {
    SLICE_END.take().unwrap_or_else(|| clock::mono() + SLICE_MS)
}

/// Sees to it that the timer rings for the earliest lease, and that the module hears of the server's turns if it must.
pub(crate) fn arm(ctx: &mut Ctx<'_>) {
    // The server rings what is due by the wall clock as it was when it began to ring. If that is set back meanwhile, a
    // timer that is set now is due at once, and the next, and the server would do nothing else until the clock is where
    // it was.
    if RINGING.get().is_some() {
        RINGING.set(Some(true));
        return;
    }
    let (next, must_watch) = with_manager(|manager| {
        let at_once = resync::has_pending() || waiting::has_jobs_in(manager);
        (if at_once { Some(clock::mono()) } else { manager.next_deadline() }, turns::must_watch(manager))
    });
    if must_watch {
        turns::watch(ctx);
    }
    let set = TIMER.get().map(|(at, _)| at);
    if let Some(next) = next
        && set.is_none_or(|at| next < at)
        && ctx.flags().contains(Flags::PRIMARY)
    {
        disarm(ctx);
        let timer = ctx.set_timer(next.left(clock::mono()).0, ring);
        TIMER.set(Some((next, timer)));
    }
}

/// Sets the timer off: leases are the primary's to end.
pub(crate) fn disarm(ctx: &mut Ctx<'_>) {
    if let Some((_, timer)) = TIMER.take() {
        ctx.stop_timer(timer);
    }
}

/// Whether the server rings timers, ours among them.
pub(crate) fn is_ringing() -> bool {
    RINGING.get().is_some()
}

/// The server is about to sleep, and rings no timers any more.
pub(crate) fn before_sleep(ctx: &mut Ctx<'_>) {
    if RINGING.take() == Some(true) {
        arm(ctx);
    }
}

/// The server's tick: looks for itself, and sets the timer anew in case the wall clock was set meanwhile.
pub(crate) fn tick(ctx: &mut Ctx<'_>) {
    disarm(ctx);
    let end = clock::mono() + SLICE_MS;
    while with_manager(|manager| manager.shed()) && clock::mono() < end {}
    while let Some((entry, name)) = with_manager(|manager| manager.next_unplaced()) {
        place(ctx, entry, &OwnedStr::new(&name));
        if clock::mono() >= end {
            break;
        }
    }
    waiting::tick();
    work(ctx);
}

fn ring(ctx: &mut Ctx<'_>) {
    // It has rung and must not be stopped any more.
    TIMER.set(None);
    turns::watch(ctx);
    RINGING.set(Some(false));
    work(ctx);
}

/// Ends what is over, for one slice. While writes may not flow nothing ends here; the next tick looks again.
fn work(ctx: &mut Ctx<'_>) {
    if !ctx.flags().contains(Flags::PRIMARY) || ctx.flags().contains(Flags::LOADING) {
        resync::clear();
        return;
    }
    let end = clock::mono() + SLICE_MS;
    SLICE_END.set(Some(end));
    waiting::time_out_waiters(end);
    if ctx.is_paused() {
        return;
    }
    resync::flush(ctx, end);
    let mut serving = None;
    loop {
        let now = clock::mono();
        match with_manager(|manager| manager.poll_leases(now)) {
            LeasePoll::Key(db, entry, name) => {
                let name = OwnedStr::new(&name);
                ctx.select_db(db.0);
                // Without slots, one key is as good as another.
                let asked = serving.filter(|_| !ctx.flags().contains(Flags::CLUSTER));
                let answer = asked.unwrap_or_else(|| ctx.serving(name.as_str()));
                serving = Some(answer);
                match answer {
                    Serving::Yes => {}
                    Serving::NotNow => return,
                    Serving::Elsewhere => waiting::redirect_waiters(db, name.as_str().as_bytes()),
                }
                lapse(ctx, db, entry, &name);
            }
            LeasePoll::Unplaced(entry, name) => place(ctx, entry, &OwnedStr::new(&name)),
            LeasePoll::Pending => {}
            LeasePoll::Idle => break,
        }
        if now >= end {
            break;
        }
    }
    arm(ctx);
}

fn lapse(ctx: &mut Ctx<'_>, db: Db, entry: EntryId, name: &OwnedStr) {
    let now = clock::now();
    let names = [name.as_str()];
    let Ok(mut locks) = OpenLocks::open(ctx, &names, Access::Write) else {
        // Something else lies there now, and the server has not told us that the lock went.
        with_manager(|manager| manager.drop_entry(db, entry));
        return;
    };
    let mut effects = with_manager(|manager| manager.lapse(&mut locks, KeyIndex(0), entry, now, ITEMS_PER_POLL));
    let names = locks.tidy(&effects.changes);
    finish(ctx, &names, &mut effects, now);
}

/// Looks in which database the lock of an entry lies: some servers do not tell when they load it.
fn place(ctx: &mut Ctx<'_>, entry: EntryId, name: &OwnedStr) {
    let selected = ctx.db();
    let mut db = 0;
    while ctx.select_db(db) && !place_in(ctx, Db(db), entry, name) {
        db += 1;
    }
    ctx.select_db(selected);
    with_manager(|manager| manager.drop_unplaced(entry));
}

/// Whether it lies in this one, which is selected.
fn place_in(ctx: &mut Ctx<'_>, db: Db, entry: EntryId, name: &OwnedStr) -> bool {
    let names = [name.as_str()];
    let Ok(mut keys) = Keys::open(ctx, &LOCK, &names, Access::Write) else { return false };
    let Some(lock) = keys.get_mut(0) else { return false };
    with_manager(|manager| manager.place(db, names[0].as_bytes(), lock, entry, clock::mono()))
}
