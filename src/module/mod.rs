//! What Redis must do for us. Settles and decides nothing itself: it opens keys, asks the core, and publishes what came
//! of it.
//!
//! The way of a request: `command/` *parses* it; [`serve`] opens its keys and the core *settles*, *decides* and
//! *commits*; then it *publishes*: replicate, notify, wake, arm, in that order; `command/` *answers*, or the client
//! waits ([`waiting`]).

pub mod alarm;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod data_type;
pub mod keyspace;
pub mod lost_holds;
pub mod metrics;
pub mod replication;
pub mod resync;
pub mod role;
pub mod server_events;
pub mod shell;
pub mod turns;
pub mod waiting;

use crate::ffi::{Access, Ctx, Flags, Keys, Name, Str, WrongType};
use crate::lock::manager::LockManager;
use crate::lock::manager::records::{HoldRecord, Origin};
use crate::lock::manager::view::{View, ViewContext};
use crate::lock::model::effect::{Change, Effects};
use crate::lock::model::hold::Connection;
use crate::lock::model::key::{Db, KeyIndex};
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{Operation, Outcome, Refusal, Request, WaitEnd, WaiterId};
use crate::lock::model::time::{Now, Timestamp};
use keyspace::{LOCK, OpenLocks};
use shell::with_manager;
use waiting::Reply;

/// Why a request that is well-formed was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServeError {
    /// A key has a value of another type.
    WrongType,
    /// This node is a replica: only its primary grants.
    Replica,
    /// The core refused it.
    Refused(Refusal),
}

impl From<WrongType> for ServeError {
    fn from(_: WrongType) -> ServeError {
        ServeError::WrongType
    }
}

/// Serves a request on these keys. One that may wait says how it is to be answered then.
///
/// # Errors
/// With nothing changed but what settling ended.
pub fn serve(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    request: &Request,
    reply: Option<Reply>,
) -> Result<Outcome, ServeError> {
    // The server keeps clients from writing to a replica, unless it is configured not to.
    if !role::is_primary(ctx) {
        return Err(ServeError::Replica);
    }
    let now = clock::now();
    let mut locks = OpenLocks::open(ctx, names, Access::Write)?;
    let mut effects = Effects::new();
    let outcome = with_manager(|manager| manager.serve(&mut locks, request, now, &mut effects));
    if effects.is_empty() {
        drop(locks);
    } else {
        let opened = locks.tidy(&effects.changes);
        finish(ctx, &opened, &mut effects, now);
    }
    let outcome = match (outcome, &request.operation) {
        (Ok(Outcome::Queued(waiter)), _) => {
            let parked = reply.and_then(|reply| waiting::park(ctx, names, reply, request, || waiter));
            if parked.is_none() {
                with_manager(|manager| manager.cancel(waiter));
            }
            Ok(queued(ctx, parked))
        }
        (Ok(Outcome::Repeats(old)), Operation::Acquire(operation)) => {
            // A client that cannot wait leaves the place to the one that can. What was published above may have made
            // others end that wait.
            let there = reply.filter(|_| with_manager(|manager| manager.waits(old)));
            let take_over =
                || with_manager(|manager| manager.take_over(old, operation, now.mono)).expect("it waits, seen above");
            let parked = there.and_then(|reply| waiting::park(ctx, names, reply, request, take_over));
            if parked.is_some() {
                waiting::wake([(old, WaitEnd::Replaced)], now.mono);
            }
            Ok(queued(ctx, parked))
        }
        (outcome, _) => outcome,
    };
    metrics::count_outcome(&outcome);
    if effects.needs_rearm {
        alarm::arm(ctx);
    }
    outcome.map_err(ServeError::Refused)
}

/// What has become of a request whose client is parked now. One that the server does not let wait has tried once.
fn queued(ctx: &Ctx<'_>, parked: Option<WaiterId>) -> Outcome {
    let Some(waiter) = parked else { return Outcome::Unavailable };
    // Within a command the servers see keys of its own slot alone.
    if ctx.flags().contains(Flags::CLUSTER) && with_manager(|manager| manager.contended() > 1) {
        with_manager(|manager| manager.check_later(waiter));
    }
    Outcome::Queued(waiter)
}

/// Does what a LOCK.HOLD says.
///
/// # Errors
/// With nothing changed but what settling ended.
pub fn apply(ctx: &mut Ctx<'_>, name: Str<'_>, record: &HoldRecord, origin: Origin) -> Result<(), ServeError> {
    let now = clock::now();
    let mut locks = OpenLocks::open(ctx, &[name], Access::Write)?;
    let (applied, mut effects) = with_manager(|manager| manager.apply(&mut locks, KeyIndex(0), record, origin, now));
    let names = locks.tidy(&effects.changes);
    if origin != Origin::Disk {
        finish(ctx, &names, &mut effects, now);
        alarm::arm(ctx);
    }
    applied.map_err(ServeError::Refused)
}

/// Ends an owner's hold on a key, or all there are. How many were ended.
///
/// # Errors
/// With nothing changed.
pub fn break_holds(ctx: &mut Ctx<'_>, name: Str<'_>, owner: Option<&Owner>) -> Result<usize, ServeError> {
    if !role::is_primary(ctx) {
        return Err(ServeError::Replica);
    }
    let now = clock::now();
    let mut locks = OpenLocks::open(ctx, &[name], Access::Write)?;
    let (broken, mut effects) = with_manager(|manager| manager.break_holds(&mut locks, KeyIndex(0), owner, now));
    let names = locks.tidy(&effects.changes);
    finish(ctx, &names, &mut effects, now);
    alarm::arm(ctx);
    Ok(broken)
}

/// The connection that a command came over, if it came over one.
#[must_use]
pub fn connection_of(ctx: &Ctx<'_>) -> Option<Connection> {
    ctx.connection().map(|client| with_manager(|manager| manager.sessions().connection(client)))
}

/// Shows a key's lock, if there is one, and who waits for it.
///
/// # Errors
/// When the key has a value of another type.
pub fn view<R>(ctx: &mut Ctx<'_>, name: Str<'_>, show: impl FnOnce(KeyView<'_>) -> R) -> Result<R, ServeError> {
    let keys = Keys::open(ctx, &LOCK, &[name], Access::Read)?;
    let seen = |manager: &mut LockManager| {
        let (db, name, now) = (Db(keys.db()), name.as_bytes(), clock::mono());
        let at = ViewContext { db, name, sessions: manager.sessions(), now };
        show(KeyView { lock: keys.get(0).and_then(|lock| View::of(lock, at)), manager, db, name, now })
    };
    Ok(with_manager(seen))
}

/// Looks at what the node knows of all keys.
pub fn read_manager<R>(read: impl FnOnce(&LockManager, Timestamp) -> R) -> R {
    with_manager(|manager| read(manager, clock::mono()))
}

/// A key as it is to be shown.
#[derive(Debug)]
pub struct KeyView<'a> {
    /// Its lock, if somebody holds it.
    pub lock: Option<View<'a>>,
    /// Who knows who waits.
    pub manager: &'a LockManager,
    /// Its database.
    pub db: Db,
    /// Its name.
    pub name: &'a [u8],
    /// When.
    pub now: Timestamp,
}

/// Does what a step has left to do, whose keys are closed: replicate, notify, wake.
pub(crate) fn finish(ctx: &mut Ctx<'_>, names: &[Name<'_>], effects: &mut Effects, now: Now) {
    publish(ctx, names, &effects.changes, now);
    waiting::wake(effects.wait_ends.drain(..), now.mono);
}

/// Tells all who must know: replicas and the AOF first, then watchers and subscribers.
fn publish(ctx: &mut Ctx<'_>, names: &[Name<'_>], changes: &[Change], now: Now) {
    replication::publish(ctx, names, changes, now);
    for change in changes {
        let name = names[usize::from(change.key.0)].as_str();
        metrics::count_change(change);
        lost_holds::note(ctx, name.as_bytes(), change, now);
        ctx.signal_modified(name);
        if let Some(event) = server_events::name_of(change.cause, change.ended) {
            ctx.notify(event, name);
        }
    }
}
