//! What the server must do for the locks. It decides nothing: it opens keys, asks the lock manager, and publishes what
//! came of it.
//!
//! The way of a request: `command/` parses it; [`serve`] runs a [`step`]; `command/` writes the reply, or the client
//! waits ([`blocked_clients`]). What happens without a command comes from [`server_events`] and runs in `background`.

pub(crate) mod background;
pub mod blocked_clients;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod data_type;
pub mod eviction;
pub mod grace;
pub mod guarded;
pub mod info;
pub mod keyspace;
pub mod lost_holds;
pub mod metrics;
pub mod notify;
pub(crate) mod outbox;
pub mod replication;
pub mod resync;
pub mod role;
pub mod scheduler;
pub mod server_events;
pub mod shell;
pub mod step;

use clients::Reply;
use data_type::Stored;
use keyspace::LOCK;
use lock_core::manager::LockManager;
use lock_core::manager::view::{self, View, ViewContext};
use lock_core::model::fence::Fence;
use lock_core::model::hold::Connection;
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::notify::Notify;
use lock_core::model::owner::Owner;
use lock_core::model::record::{Origin, Update};
use lock_core::model::request::{Check, Operation, Outcome, Refusal, Request, WaitEnd, WaiterId};
use lock_core::model::time::Timestamp;
use notify::{Channel, Mute};
use server_api::{Access, Ctx, Flags, Keys, Names, Str, WrongType};
use shell::{shell, with_manager};
use step::Publish;

/// Why a request that is well-formed was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServeError {
    /// A key has a value of another type.
    WrongType,
    /// This node is a replica: only its primary grants.
    Replica,
    /// This node is a replica: only its primary knows what is held.
    CheckedElsewhere,
    /// A guarded command asks for another one.
    Nested,
    /// Its owner cannot be told on the channel of NOTIFY.
    Mute(Mute),
    /// The core refused it.
    Refused(Refusal),
}

impl From<WrongType> for ServeError {
    fn from(_: WrongType) -> ServeError {
        ServeError::WrongType
    }
}

/// Serves a request on these keys that is not an acquisition.
///
/// # Errors
/// With nothing changed but what settling ended.
pub fn serve(ctx: &mut Ctx<'_>, names: &[Str<'_>], request: &Request) -> Result<Outcome, ServeError> {
    serve_told(ctx, names, request, None, Notify::AsBefore)
}

/// Serves an acquisition of these keys, which says how it is to be answered if it waits, and what is to be done to tell
/// its owner if that has a place.
///
/// # Errors
/// With nothing changed but what settling ended.
pub fn acquire(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    request: &Request,
    reply: Reply,
    channel: Channel<'_>,
) -> Result<Outcome, ServeError> {
    let notify = notify::admit(ctx, channel).map_err(ServeError::Mute)?;
    let outcome = serve_told(ctx, names, request, Some(reply), notify);
    notify::forget(notify);
    outcome
}

fn serve_told(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    request: &Request,
    reply: Option<Reply>,
    notify: Notify,
) -> Result<Outcome, ServeError> {
    let shell = shell();
    // The server keeps clients from writing to a replica, unless it is configured not to.
    if !shell.role.is_primary(ctx) {
        return Err(ServeError::Replica);
    }
    let may_need_memory = matches!(request.operation, Operation::Acquire(_));
    let memory_full = may_need_memory && names.first().is_some_and(|name| ctx.is_out_of_memory(*name));
    // What a request gets that has not been served.
    let mut outcome = Ok(Outcome::Unavailable);
    let step = step::run_request(shell, ctx, names, |manager, step| {
        step.memory_full = memory_full;
        step.notify = notify;
        outcome = manager.serve(step, request);
    })?;
    let (now, judged) = (step.now, step.judged);
    // Whether this is a wait that was counted when it began.
    let mut goes_on = false;
    let mut needs_rearm = step.needs_rearm;
    if let Ok(began @ (Outcome::Queued(_) | Outcome::Placed(_) | Outcome::Repeats(_))) = outcome {
        let is_new = matches!(began, Outcome::Queued(_));
        let waits;
        (waits, goes_on) = begin_wait(ctx, names, request, (reply, notify), (began, now));
        outcome = Ok(waits);
        // A place may have been taken over or have lost its client, with another end.
        needs_rearm |= !is_new || !matches!(outcome, Ok(Outcome::Queued(_)));
    }
    if !goes_on {
        shell.metrics.count_outcome(&request.operation, &outcome);
    }
    // Null would be the answer to these.
    if let Ok(null @ (Outcome::Unavailable | Outcome::Placed(_))) = outcome {
        outcome = shell.with_manager(|manager| manager.unless_grace(null, now, judged));
    }
    if needs_rearm || !shell.scheduler.is_set() || shell.has_jobs() {
        shell.schedule(ctx);
    }
    outcome.map_err(ServeError::Refused)
}

/// Parks the client of a queued or repeated request. Returns the outcome, and whether it continues a wait that was
/// counted already.
#[cold]
fn begin_wait(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    request: &Request,
    (reply, notify): (Option<Reply>, Notify),
    (outcome, now): (Outcome, Timestamp),
) -> (Outcome, bool) {
    match (outcome, &request.operation) {
        (Outcome::Queued(waiter), _) => {
            let parked = reply.and_then(|reply| blocked_clients::park(ctx, names, reply, request, || waiter));
            // A place goes on without a client.
            let place = parked.is_none().then(|| with_manager(|manager| manager.cancel(waiter, now))).flatten();
            let place = place.and_then(|end| match end {
                WaitEnd::Detached(place) => Some(place),
                WaitEnd::InGrace { place, .. } => place,
                _ => None,
            });
            if parked.is_some() || place.is_some() {
                step::announce_wait(ctx, names);
            }
            (place.map_or_else(|| queued(ctx, parked), Outcome::Placed), false)
        }
        (Outcome::Placed(place), _) => {
            step::announce_wait(ctx, names);
            check_in_cluster(ctx, place);
            (Outcome::Placed(place), false)
        }
        (Outcome::Repeats(old), Operation::Acquire(operation)) => {
            // A client that cannot wait leaves the place to the one that can. What was published above may have made
            // others end that wait.
            let there = reply.filter(|_| with_manager(|manager| manager.waits(old)));
            let mut answer = None;
            let take_over = || {
                let taken_over = with_manager(|manager| manager.take_over(old, operation, notify, now));
                let (waiter, end) = taken_over.expect("it waits, seen above");
                answer = Some(end);
                waiter
            };
            let parked = there.and_then(|reply| blocked_clients::park(ctx, names, reply, request, take_over));
            let goes_on = answer == Some(WaitEnd::TakenOver);
            match answer {
                Some(end) => blocked_clients::wake([(old, end)], now),
                None => drop(with_manager(|manager| manager.renew(old, operation, notify, now))),
            }
            (queued(ctx, parked), goes_on)
        }
        (outcome, _) => (outcome, false),
    }
}

/// Returns `Queued` if the client was parked; else `Unavailable`: it has tried once.
fn queued(ctx: &Ctx<'_>, parked: Option<WaiterId>) -> Outcome {
    let Some(waiter) = parked else { return Outcome::Unavailable };
    check_in_cluster(ctx, waiter);
    Outcome::Queued(waiter)
}

/// Has a waiter checked for deadlocks after its step, in a cluster: within a command the servers see keys of its own
/// slot alone.
fn check_in_cluster(ctx: &Ctx<'_>, waiter: WaiterId) {
    if ctx.flags().contains(Flags::CLUSTER) && with_manager(|manager| manager.contended() > 1) {
        with_manager(|manager| manager.check_later(waiter));
    }
}

/// Does what a LOCK.HOLD says.
///
/// # Errors
/// With nothing changed but what settling ended.
pub fn apply(ctx: &mut Ctx<'_>, name: Str<'_>, update: &Update, origin: Origin) -> Result<(), ServeError> {
    let publish = if origin == Origin::Disk { Publish::Nothing } else { Publish::All };
    let mut applied = Ok(());
    step::run(ctx, &[name], publish, |manager, step| applied = manager.apply(step, KeyIndex(0), update, origin))?;
    if origin != Origin::Disk {
        shell().schedule(ctx);
    }
    applied.map_err(ServeError::Refused)
}

/// Ends an owner's hold on a key, or all there are. How many were ended.
///
/// # Errors
/// With nothing changed.
pub fn break_holds(ctx: &mut Ctx<'_>, name: Str<'_>, owner: Option<&Owner>) -> Result<usize, ServeError> {
    let shell = shell();
    if !shell.role.is_primary(ctx) {
        return Err(ServeError::Replica);
    }
    let mut broken = 0;
    step::run_request(shell, ctx, &[name], |manager, step| broken = manager.break_holds(step, KeyIndex(0), owner))?;
    shell.schedule(ctx);
    Ok(broken)
}

/// The connection that a command came over, if it came over one.
#[must_use]
pub fn connection_of(ctx: &Ctx<'_>) -> Option<Connection> {
    ctx.connection().map(|client| with_manager(|manager| manager.sessions().connection(client)))
}

/// Shows a key's lock, if there is one, and its waiters.
///
/// # Errors
/// When the key has a value of another type.
pub fn view<R>(ctx: &mut Ctx<'_>, name: Str<'_>, show: impl FnOnce(KeyView<'_>) -> R) -> Result<R, ServeError> {
    let now = shell().clock.mono();
    let judged = shell().judged(ctx, now);
    let names = [name];
    let mut names = Names::of(&names);
    let keys = Keys::open(ctx, &LOCK, &mut names, Access::Read)?;
    let read = |manager: &mut LockManager| {
        let (db, name) = (Db(keys.db()), name.as_bytes());
        let at = ViewContext { db, name, sessions: manager.sessions(), now, judged };
        show(KeyView { lock: keys.get(0).and_then(|stored| View::of(&stored.0, at)), manager, db, name, now })
    };
    Ok(with_manager(read))
}

/// The fence of an owner's hold, if it is what is asked for. Nothing is changed.
///
/// # Errors
/// On a replica, and when the key has a value of another type.
pub fn check(ctx: &mut Ctx<'_>, name: Str<'_>, owner: &[u8], check: Check) -> Result<Option<Fence>, ServeError> {
    // A replica may not have heard yet of a release, a break or another's grant.
    if !shell().role.is_primary(ctx) {
        return Err(ServeError::CheckedElsewhere);
    }
    let now = shell().clock.mono();
    let judged = shell().judged(ctx, now);
    let names = [name];
    let mut names = Names::of(&names);
    let keys = Keys::open(ctx, &LOCK, &mut names, Access::Read)?;
    let Some(Stored(lock)) = keys.get(0) else { return Ok(None) };
    let (db, name) = (Db(keys.db()), name.as_bytes());
    let judge = |manager: &mut LockManager| {
        let at = ViewContext { db, name, sessions: manager.sessions(), now, judged };
        view::check(lock, at, owner, check)
    };
    Ok(with_manager(judge))
}

/// Reads what the manager knows of all keys.
pub fn read_manager<R>(read: impl FnOnce(&LockManager, Timestamp) -> R) -> R {
    with_manager(|manager| read(manager, shell().clock.mono()))
}

/// A key as it is to be shown.
#[derive(Debug)]
pub struct KeyView<'a> {
    /// Its lock, if it has a holder.
    pub lock: Option<View<'a>>,
    /// The manager, which knows the waiters.
    pub manager: &'a LockManager,
    /// Its database.
    pub db: Db,
    /// Its name.
    pub name: &'a [u8],
    /// When.
    pub now: Timestamp,
}
