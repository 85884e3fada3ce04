//! Ends leases by the module's own hand, at the millisecond, on the primary alone.
//!
//! One server timer for the earliest lease, and a look at every tick, since the server's timers follow the wall clock
//! and may be late by as much as that was set back.

use super::keyspace::{LOCK, OpenLocks};
use super::{clock, publish, replication, state};
use crate::ffi::timer::Timer;
use crate::ffi::{Access, Ctx, Flags, OwnedStr};
use crate::lock::lease::LeaseId;
use crate::lock::node::Due;
use crate::lock::request::{Db, Slot};
use crate::lock::time::{Millis, Timestamp};

/// How long one slice of work may last. Between slices the server serves its clients.
const SLICE: Millis = Millis(1);
/// How many readers of one key may lapse between two looks at the clock.
const BITE: usize = 64;

/// The timer, if it is set, and what it is set for.
#[derive(Debug)]
pub struct Alarm(Option<(Timestamp, Timer)>);

impl Alarm {
    /// Not set.
    pub(super) const fn new() -> Alarm {
        Alarm(None)
    }
}

/// Sees to it that the timer rings for the earliest lease.
pub(crate) fn arm(ctx: &mut Ctx<'_>) {
    let late = state::with(|state| {
        let next = if state.restored.is_empty() { state.node.next_look()? } else { Timestamp(0) };
        let set = state.alarm.0.as_ref().map(|(at, _)| *at);
        set.is_none_or(|at| next < at).then_some(next)
    });
    if let Some(next) = late
        && ctx.flags().contains(Flags::PRIMARY)
    {
        disarm(ctx);
        let timer = ctx.set_timer(next.left(clock::mono()).0, ring);
        state::with(|state| state.alarm.0 = Some((next, timer)));
    }
}

/// Sets the timer off: leases are the primary's to end.
pub(crate) fn disarm(ctx: &mut Ctx<'_>) {
    if let Some((_, timer)) = state::with(|state| state.alarm.0.take()) {
        ctx.stop_timer(timer);
    }
}

/// The server's tick: looks for itself, and sets the timer anew in case the wall clock was set meanwhile.
pub(crate) fn tick(ctx: &mut Ctx<'_>) {
    disarm(ctx);
    let end = clock::mono() + SLICE;
    while state::with(|state| state.node.shed()) && clock::mono() < end {}
    work(ctx);
}

fn ring(ctx: &mut Ctx<'_>) {
    // It has rung and must not be stopped any more.
    state::with(|state| state.alarm.0 = None);
    work(ctx);
}

/// Ends what is over, for one slice. While writes may not flow nothing ends here; the next tick looks again.
fn work(ctx: &mut Ctx<'_>) {
    if !ctx.flags().contains(Flags::PRIMARY) || ctx.flags().contains(Flags::LOADING) {
        state::with(|state| state.restored.clear());
        return;
    }
    let end = clock::mono() + SLICE;
    let mut may_write = None;
    while let Some((db, name)) = state::with(|state| state.restored.pop()) {
        ctx.select_db(db.0);
        restate(ctx, &OwnedStr::new(&name));
    }
    loop {
        let now = clock::mono();
        match state::with(|state| state.node.due(now)) {
            Due::Key(db, entry, name) => {
                let name = OwnedStr::new(&name);
                ctx.select_db(db.0);
                if !*may_write.get_or_insert_with(|| ctx.takes_writes(name.as_str())) {
                    return;
                }
                lapse(ctx, db, entry, &name);
            }
            Due::Again => {}
            Due::Nothing => break,
        }
        if now >= end {
            break;
        }
    }
    arm(ctx);
}

/// Sends the facts of a lock that came by RESTORE. The payload that the AOF has of it counts its leases from when it was
/// made, by the clock of who made it: replayed after a restart, it alone would end them early.
fn restate(ctx: &mut Ctx<'_>, name: &OwnedStr) {
    let now = clock::now();
    let facts = match ctx.open(&LOCK, &[name.as_str()], Access::Read) {
        Ok(keys) => keys.get(0).map(|lock| lock.facts(Slot(0))).unwrap_or_default(),
        Err(_) => return,
    };
    for fact in &facts {
        replication::send(ctx, name.as_str(), fact, now);
    }
}

fn lapse(ctx: &mut Ctx<'_>, db: Db, entry: LeaseId, name: &OwnedStr) {
    let now = clock::now();
    let names = [name.as_str()];
    let Ok(mut locks) = OpenLocks::open(ctx, &names, Access::Write) else {
        // Something else lies there now, and the server has not told us that the lock went.
        state::with(|state| state.node.drop_entry(db, entry));
        return;
    };
    let effects = state::with(|state| state.node.lapse(&mut locks, Slot(0), entry, now.mono, BITE));
    locks.tidy(&effects);
    drop(locks);
    publish(ctx, &names, &effects, now);
}
