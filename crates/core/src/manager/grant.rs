//! Granting: gives an owner all these keys, with new fences where it needs new ones.

use crate::model::effect::Cause;
use crate::model::fence::{Fence, FenceClock};
use crate::model::hold::{Epoch, Hold, Session};
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::offers::OfferId;
use crate::model::owner::Owner;
use crate::model::request::{Acquire, PerKey, Refusal, Terms};
use crate::model::step::{Step, per_key};
use crate::model::time::{Millis, Timestamp, WallTime};
use crate::wait::order::is_upgrade;
use crate::wait::waiter::{GrantUndo, PriorHold};

/// The parts of the manager that a grant needs.
pub(crate) struct GrantContext<'n> {
    pub(crate) fences: &'n mut FenceClock,
    pub(crate) epoch: Epoch,
    /// How far the fence clock jumps before a process's first fence.
    pub(crate) skew: Millis,
    /// The offer that new holds are part of; None if a client receives the grant.
    pub(crate) offer: Option<Offer>,
}

/// An offer that is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) id: OfferId,
    pub(crate) until: Timestamp,
    /// What binds it to the connection over which its owner waits.
    pub(crate) session: Option<Session>,
}

impl<'n> GrantContext<'n> {
    /// For a grant that a client receives.
    pub(crate) fn new(fences: &'n mut FenceClock, epoch: Epoch, skew: Millis) -> GrantContext<'n> {
        GrantContext { fences, epoch, skew, offer: None }
    }
}

/// The fence of a hold after a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A new one.
    New,
    /// The same.
    Same,
    /// This one at least, which is above its own.
    Raised(Fence),
}

/// Grants these keys to an owner. What is to be known of each grant.
pub(crate) fn grant<K: Keyspace, R>(
    step: &mut Step<'_, K>,
    indices: &[KeyIndex],
    (owner, operation): (&Owner, &Acquire),
    mut context: GrantContext<'_>,
    known: impl Fn(GrantUndo) -> R,
) -> Result<PerKey<R>, Refusal> {
    let wall = step.now.wall;
    // The fence of an offer rises when it is collected.
    let least = operation.terms.as_ref().and_then(|terms| terms.min_fence).filter(|_| context.offer.is_none());
    // Also of a waiter: the wall clock may have been set back since it came.
    if least.is_some_and(|least| !context.fences.admits(least, wall, context.skew)) {
        return Err(Refusal::MinFenceAhead);
    }
    let (epoch, is_offer) = (context.epoch, context.offer.is_some());
    let next = |hold: Option<&Hold>| {
        // What is there before an offer stays as it is: no client hears of the grant.
        let is_current = |hold: &Hold| hold.granted_in() == epoch || is_offer;
        match hold.filter(|hold| !is_upgrade(hold, operation.mode) && is_current(hold)) {
            None => Next::New,
            Some(hold) => least.filter(|least| *least > hold.fence()).map_or(Next::Same, Next::Raised),
        }
    };
    let mut needed = 0;
    for key in indices {
        needed += u64::from(next(hold_of(step.keys, *key, owner)) != Next::Same);
    }
    if needed > 0 {
        context.fences.begin(wall, context.skew);
    }
    if context.fences.left(wall) < needed {
        return Err(Refusal::FencesUsedUp);
    }
    per_key(indices, |key| {
        // Looked up again: to keep what was found for each key would cost more.
        let hold = hold_of(step.keys, key, owner).cloned();
        let fence = match (next(hold.as_ref()), &hold) {
            (Next::Same, Some(hold)) => Some(hold.fence()),
            (Next::Raised(least), Some(hold)) => {
                let highest = step.keys.lock(key).and_then(|lock| lock.fence());
                raised(hold, highest, least, &mut context, wall)
            }
            _ => context.fences.next_from(least, wall),
        };
        let fence = fence.expect("as many are left as are needed");
        Ok(known(grant_key(step, key, (owner, operation), hold, (fence, context.epoch, context.offer))))
    })
}

/// Returns an owner's hold on a key.
#[inline(always)]
fn hold_of<'k, K: Keyspace>(keys: &'k mut K, key: KeyIndex, owner: &Owner) -> Option<&'k Hold> {
    keys.lock(key)?.holds.get(owner.as_bytes())
}

/// The fence of a hold that is to rise to this one at least: just this one if it is above every fence given on the key,
/// else a new one. None if there is none left.
///
/// Of a hold that this node has granted on this key, the highest fence given on the lock is the highest given on the
/// key: those of earlier locks are below its own. Of a hold that came from elsewhere nothing is known but that all
/// fences given here are below the clock's.
#[cold]
pub(super) fn raised(
    hold: &Hold,
    highest: Option<Fence>,
    least: Fence,
    context: &mut GrantContext<'_>,
    wall: WallTime,
) -> Option<Fence> {
    context.fences.begin(wall, context.skew);
    let highest = if hold.granted_in() == context.epoch { highest } else { context.fences.last() };
    if highest.is_some_and(|highest| least <= highest) {
        return context.fences.next(wall);
    }
    context.fences.observe(least);
    Some(least)
}

/// Grants one key, of which the owner has this hold already or none.
// What the caller does not want to know of it is not written then.
#[inline(always)]
fn grant_key<K: Keyspace>(
    step: &mut Step<'_, K>,
    key: KeyIndex,
    (owner, operation): (&Owner, &Acquire),
    old: Option<Hold>,
    (fence, epoch, offer): (Fence, Epoch, Option<Offer>),
) -> GrantUndo {
    let deadline = offer.map_or(step.now.mono + operation.lease, |offer| offer.until);
    let is_collected = old.as_ref().is_some_and(|hold| hold.offer().is_some());
    let (count, added) = counted(old.as_ref(), operation, is_collected);
    let prior = old.as_ref().map(PriorHold::of);
    if let (Some(_), Some(hold)) = (offer, &old) {
        return GrantUndo {
            fence,
            latest: Some(fence),
            added: 0,
            deadline: hold.deadline,
            session: hold.session(),
            prior,
        };
    }
    let mut hold = old.unwrap_or_else(|| Hold::new(fence, deadline, step.now.mono, epoch));
    if is_collected && hold.count(operation.mode) == 0 {
        // A waiter of the owner is granted another mode. No client knows of the one that was offered.
        hold.set_counts(0, 0);
    }
    hold.set_count(operation.mode, count);
    hold.set_fence(fence);
    hold.set_granted_in(epoch);
    hold.deadline = if is_collected { deadline } else { hold.deadline.max(deadline) };
    if is_collected || offer.is_some() {
        hold.set_offer(offer.map(|offer| offer.id));
    }
    let terms = operation.terms.as_deref();
    if let Some(Terms { note: Some(note), .. }) = terms {
        hold.set_note(Some(note.clone()));
    }
    let session = offer.map_or_else(|| terms?.session, |offer| offer.session);
    if is_collected {
        // An offer may be bound to the connection over which its owner waited.
        hold.bind(session);
    } else {
        hold.rebind(session);
    }
    let undo = GrantUndo { fence, latest: Some(fence), added, deadline: hold.deadline, session: hold.session(), prior };
    let lock = step.keys.lock_or_create(key);
    let cause = if is_collected { Cause::Collect } else { Cause::Acquire };
    step.effects.commit_hold(lock, key, cause, owner, hold);
    undo
}

/// The count that an acquisition leads to, and how much it adds.
pub(crate) fn counted(hold: Option<&Hold>, operation: &Acquire, is_collected: bool) -> (u32, u32) {
    let before = hold.map_or(0, |hold| hold.count(operation.mode));
    // Collecting an offer takes nothing beside it.
    let after = if is_collected {
        before.max(operation.retry.unwrap_or(operation.take()))
    } else {
        operation.count_after(before)
    };
    (after, after - before)
}
