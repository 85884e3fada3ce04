//! What Redis must do for us. Settles and decides nothing itself: it opens keys, asks the core, and publishes what came
//! of it.
//!
//! The way of a request: `command/` *parses* it; [`serve`] opens its keys and the core *settles*, *decides* and
//! *commits*; then it *publishes*: replicate, notify, arm, in that order; `command/` *answers*.

pub mod alarm;
pub mod clock;
pub mod config;
pub mod events;
pub mod metrics;
pub mod open_locks;
pub mod persistence;
pub mod replication;
pub mod state;

use crate::ffi::{Access, Ctx, Flags, Keys, Str, WrongType};
use crate::lock::change::Change;
use crate::lock::fact::{Fact, Origin};
use crate::lock::keyspace::KeyIndex;
use crate::lock::request::{Outcome, Refusal, Request};
use crate::lock::time::Now;
use crate::lock::value::Lock;
use open_locks::{LOCK, OpenLocks};
use state::with_node;

/// Why a request that is well-formed was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// A key has a value of another type.
    WrongType,
    /// This node is a replica: only its primary grants.
    Replica,
    /// The core refused it.
    Refused(Refusal),
}

impl From<WrongType> for Unserved {
    fn from(_: WrongType) -> Unserved {
        Unserved::WrongType
    }
}

/// Serves a request on these keys.
///
/// # Errors
/// With nothing changed but what settling ended.
pub fn serve(ctx: &mut Ctx<'_>, names: &[Str<'_>], request: &Request) -> Result<Outcome, Unserved> {
    // The server keeps clients from writing to a replica, unless it is configured not to.
    if !ctx.flags().contains(Flags::PRIMARY) {
        return Err(Unserved::Replica);
    }
    let now = clock::now();
    let mut locks = OpenLocks::open(ctx, names, Access::Write)?;
    let step = with_node(|node| node.serve(&mut locks, request, now));
    locks.tidy(&step.effects);
    drop(locks);
    metrics::count_outcome(&step.outcome);
    publish(ctx, names, &step.effects, now);
    alarm::arm(ctx);
    step.outcome.map_err(Unserved::Refused)
}

/// Does what a LOCK.HOLD says.
///
/// # Errors
/// With nothing changed but what settling ended.
pub fn apply(ctx: &mut Ctx<'_>, name: Str<'_>, fact: &Fact, origin: Origin) -> Result<(), Unserved> {
    let now = clock::now();
    let mut locks = OpenLocks::open(ctx, &[name], Access::Write)?;
    let (applied, effects) = with_node(|node| node.apply(&mut locks, KeyIndex(0), fact, origin, now));
    locks.tidy(&effects);
    drop(locks);
    if origin != Origin::Disk {
        publish(ctx, &[name], &effects, now);
        alarm::arm(ctx);
    }
    applied.map_err(Unserved::Refused)
}

/// Shows a key's lock, if there is one.
///
/// # Errors
/// When the key has a value of another type.
pub fn view<R>(ctx: &mut Ctx<'_>, name: Str<'_>, show: impl FnOnce(&Lock, Now) -> R) -> Result<Option<R>, Unserved> {
    let keys = Keys::open(ctx, &LOCK, &[name], Access::Read)?;
    Ok(keys.get(0).map(|lock| show(lock, clock::now())))
}

/// Tells all who must know: replicas and the AOF first, then watchers and subscribers.
pub(crate) fn publish(ctx: &mut Ctx<'_>, names: &[Str<'_>], effects: &[Change], now: Now) {
    for change in effects {
        replication::send(ctx, names[usize::from(change.key.0)], change, now);
    }
    for change in effects {
        let name = names[usize::from(change.key.0)];
        metrics::count_change(change);
        ctx.signal_modified(name);
        if let Some(event) = events::name_of(change.cause) {
            ctx.notify(event, name);
        }
    }
}
