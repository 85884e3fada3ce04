//! Requests: what clients, operators and other nodes want to be done with keys.

use super::clients::Reply;
use super::notify::{self, Channel, Mute};
use super::shell::{shell, with_manager};
use super::step::{self, Publish};
use super::waits;
use lock_core::model::hold::Connection;
use lock_core::model::key::KeyIndex;
use lock_core::model::notify::Notify;
use lock_core::model::owner::Owner;
use lock_core::model::record::{Origin, Update};
use lock_core::model::request::{Begun, Operation, Outcome, Refusal, Request};
use server_api::{Ctx, Str, WrongType};

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

/// Serves a request on these keys. An acquisition says how it is to be answered if it waits, and what is to be done to
/// tell its owner if that has a place.
///
/// # Errors
/// With nothing changed but what settling ended.
#[inline(always)]
pub fn run(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    request: &Request,
    acquires: Option<(Reply, Channel<'_>)>,
) -> Result<Outcome, ServeError> {
    let Some((reply, channel)) = acquires else { return serve(ctx, names, request, None, Notify::AsBefore) };
    let notify = notify::admit(ctx, channel).map_err(ServeError::Mute)?;
    let outcome = serve(ctx, names, request, Some(reply), notify);
    notify::forget(notify);
    outcome
}

#[inline(never)]
fn serve(
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
    let mut counts = true;
    let mut needs_rearm = step.needs_rearm;
    if let Ok(Outcome::Begun(begun)) = outcome {
        let ended;
        (ended, counts) = waits::park_or_settle(ctx, names, request, reply, (begun, notify, now));
        // A place may have been taken over or have lost its client, with another end.
        needs_rearm |= !matches!((begun, &ended), (Begun::New(_), Outcome::Queued(_)));
        outcome = Ok(ended);
    }
    if counts {
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
