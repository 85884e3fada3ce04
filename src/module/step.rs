//! One step: open the keys, let the lock manager decide, tidy the keys, replicate, notify, wake, schedule.
//!
//! The order matters. Replicas and the AOF get a change before watchers and subscribers hear of it, and both before a
//! client that waited for it is answered.
//!
//! A panic in a step undoes nothing that the manager has committed. So it is all made known before the panic goes on to
//! the boundary of the call. If that panics too, the waits that the step has ended get an error.

use super::open_locks::OpenLocks;
use super::shell::{Shell, shell};
use super::{blocked_clients, notify};
use lock_core::manager::LockManager;
use lock_core::model::effect::{Cause, Change, Effects, Record, WaitEnds};
use lock_core::model::request::{RedirectReason, WaitEnd};
use lock_core::model::step::Step;
use lock_core::model::time::{Now, Timestamp};
use server_api::guard::{Caught, catch};
use server_api::{Ctx, Names, Str, WrongType};
use std::ffi::CStr;

/// How far a step makes its effects known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Replicas, the AOF, watchers, subscribers and the waiters.
    All,
    /// Nobody: the server loads what it has saved.
    Nothing,
}

/// The result of a step. The manager's answer is not here: the closure writes it in place, which is cheaper than to
/// move it.
#[derive(Debug)]
pub(crate) struct Done {
    /// When it was run.
    pub now: Timestamp,
    /// By which time it was judged.
    pub judged: Timestamp,
    /// How many waits it ended.
    pub ended: usize,
    /// True if the module must see to the timer: [`Shell::schedule`](super::shell::Shell::schedule).
    pub needs_rearm: bool,
}

/// Runs a step of a client's request: [`run`], judged by the time of the unit that the command is a part of.
pub(crate) fn run_request<'n>(
    shell: &'static Shell,
    ctx: &mut Ctx<'_>,
    names: &'n [Str<'n>],
    decide: impl FnOnce(&mut LockManager, &mut Step<'_, OpenLocks<'_, 'n>>),
) -> Result<Done, WrongType> {
    let now = shell.clock.now();
    let judged = shell.judged(ctx, now.mono);
    run_at((shell, now), ctx, names, (Publish::All, true), |manager, step| {
        step.judged = judged;
        decide(manager, step)
    })
}

/// Runs a step on the keys of these names, which must differ.
///
/// The caller schedules. It may have more to do before, and the background does so once for many steps.
///
/// # Errors
/// When a key has a value of another type. Then nothing was done.
pub(crate) fn run<'n>(
    ctx: &mut Ctx<'_>,
    names: &'n [Str<'n>],
    publish_to: Publish,
    decide: impl FnOnce(&mut LockManager, &mut Step<'_, OpenLocks<'_, 'n>>),
) -> Result<Done, WrongType> {
    let shell = shell();
    run_at((shell, shell.clock.now()), ctx, names, (publish_to, false), decide)
}

fn run_at<'n>(
    (shell, now): (&'static Shell, Now),
    ctx: &mut Ctx<'_>,
    names: &'n [Str<'n>],
    (publish_to, is_request): (Publish, bool),
    decide: impl FnOnce(&mut LockManager, &mut Step<'_, OpenLocks<'_, 'n>>),
) -> Result<Done, WrongType> {
    let mut names = Names::of(names);
    let mut effects = Effects::new();
    let mut judged = now.mono;
    let decided = {
        let mut locks = OpenLocks::closed(shell, ctx, &mut names);
        locks.open_named()?;
        let decided = catch(|| {
            let mut step = Step::new(&mut locks, now, &mut effects);
            shell.with_manager(|manager| decide(manager, &mut step));
            judged = step.judged;
            locks.tidy(&effects.changes);
        });
        if decided.is_err() {
            recover(shell, &mut locks, &mut effects, now, is_request);
        }
        decided
    };
    let done = Done { now: now.mono, judged, ended: effects.wait_ends.len(), needs_rearm: effects.needs_rearm };
    let mut published = Ok(());
    if !effects.is_empty() && publish_to == Publish::All {
        published = catch(|| publish(shell, ctx, &names, &effects.changes, now));
        if !effects.messages().is_empty() {
            let messages = effects.take_messages();
            published = published.and(catch(|| notify::send_in(shell, ctx, messages)));
        }
        if !effects.wait_ends.is_empty() {
            published = answer(std::mem::take(&mut effects.wait_ends), published, now);
        }
    }
    if let Err(panic) = decided.and(published) {
        if is_request {
            // The caller does not come to it.
            shell.schedule(ctx);
        }
        panic.go_on();
    }
    Ok(done)
}

/// The step has panicked: lets the indexes follow what it has changed, and leaves the keys as a step should.
///
/// A queue that the background was serving is not put on the ready list again: the panic would come back with it, as
/// fast as the event loop turns.
#[cold]
fn recover(shell: &Shell, locks: &mut OpenLocks<'_, '_>, effects: &mut Effects, now: Now, is_request: bool) {
    // What panics here has been logged. What was changed is to be made known all the same.
    let _ = catch(|| {
        let mut step = Step::new(locks, now, effects);
        shell.with_manager(|manager| manager.recover(&mut step, is_request));
    });
    let _ = catch(|| locks.tidy(&effects.changes));
}

/// Answers the clients whose waits have ended. If replicas may not know of what they were granted, they get an error.
#[inline(never)]
fn answer(ends: WaitEnds, published: Result<(), Caught>, now: Now) -> Result<(), Caught> {
    let mut ends = ends.into_iter();
    let answered = published.and_then(|()| catch(|| blocked_clients::wake(ends.by_ref(), now.mono)));
    for (waiter, _) in ends {
        let end = WaitEnd::Redirected(RedirectReason::Failed);
        let _ = catch(|| blocked_clients::wake([(waiter, end)], now.mono));
    }
    answered
}

/// Replicates the changes, then notifies watchers and subscribers.
#[inline(always)]
fn publish(shell: &Shell, ctx: &mut Ctx<'_>, names: &Names<'_>, changes: &[Change], now: Now) {
    #[cfg(debug_assertions)]
    for change in changes {
        assert!(!names.get(change.key.0).as_bytes().ends_with(super::open_locks::on_purpose::WHEN_TOLD), "on purpose");
    }
    shell.stream.publish(ctx, names, changes, now);
    for change in changes {
        let name = names.get(change.key.0);
        shell.metrics.count_change(change);
        shell.lost_holds.note(ctx, name.as_bytes(), change, now);
        // What was announced late has changed nothing now.
        if change.record != Record::Sent {
            ctx.signal_modified(name);
        }
        if let Some(event) = event_of(change.cause, change.ended) {
            ctx.notify(event, name);
        }
    }
}

/// The keyspace event of a request that begins to wait.
pub const WAIT: &CStr = c"lock.wait";

/// Tells subscribers that a request begins to wait for these keys. Nothing of the keyspace has changed.
pub(crate) fn announce_wait(ctx: &mut Ctx<'_>, names: &[Str<'_>]) {
    for name in names {
        ctx.notify(WAIT, *name);
    }
}

/// The keyspace event of a change. None for records, which the primary has announced already.
#[must_use]
pub fn event_of(cause: Cause, ended: bool) -> Option<&'static CStr> {
    match cause {
        Cause::Acquire => Some(c"lock.acquire"),
        Cause::Release | Cause::RevokeUndelivered => Some(c"lock.release"),
        // A closed connection gives its holds back, or moves the end of their leases.
        Cause::Close if ended => Some(c"lock.release"),
        // The request that collects an offer sets its lease.
        Cause::Extend | Cause::Close | Cause::Offer | Cause::Collect => Some(c"lock.extend"),
        Cause::Lapse => Some(c"lock.lapse"),
        Cause::Break => Some(c"lock.break"),
        Cause::Replicated => None,
    }
}
