//! Granting: gives an owner these keys, all of them, with new fences where it needs new ones.

use crate::lock::model::effect::{Cause, Effects, commit_hold};
use crate::lock::model::fence::FenceClock;
use crate::lock::model::hold::{Epoch, Hold};
use crate::lock::model::key::KeyIndex;
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{Acquire, PerKey, Refusal};
use crate::lock::model::time::{Millis, Now};
use crate::lock::wait::order::is_upgrade;
use crate::lock::wait::waiter::{GrantUndo, PriorHold};

/// What a grant takes from the node.
pub(crate) struct GrantContext<'n> {
    pub(crate) fences: &'n mut FenceClock,
    pub(crate) epoch: Epoch,
    /// How far the fence clock jumps before a process's first fence.
    pub(crate) skew: Millis,
}

/// Lets an owner have these keys. What each gave.
pub(crate) fn grant<K: Keyspace>(
    keys: &mut K,
    indices: &[KeyIndex],
    (owner, operation): (&Owner, &Acquire),
    context: GrantContext<'_>,
    now: Now,
    effects: &mut Effects,
) -> Result<PerKey<GrantUndo>, Refusal> {
    // What it has on each key, and whether that is to have a new fence.
    let mut held: PerKey<(Option<Hold>, bool)> = PerKey::new();
    for key in indices {
        let old = keys.lock(*key).and_then(|lock| lock.holds.get(owner.as_bytes())).cloned();
        let new_fence =
            old.as_ref().is_none_or(|old| is_upgrade(old, operation.mode) || old.granted_in() != context.epoch);
        held.push((old, new_fence));
    }
    let fences_new = held.iter().filter(|(_, new_fence)| *new_fence).count() as u64;
    if fences_new > 0 {
        context.fences.begin(now.wall, context.skew);
    }
    if context.fences.left(now.wall) < fences_new {
        return Err(Refusal::FencesUsedUp);
    }

    let deadline = now.mono + operation.lease;
    let mut given = PerKey::new();
    for (key, (old, new_fence)) in indices.iter().zip(held) {
        let (count, added) = counted(old.as_ref(), operation);
        let prior = old.as_ref().map(PriorHold::of);
        let fence = match &old {
            Some(old) if !new_fence => old.fence,
            _ => context.fences.next(now.wall).expect("as many are left as are needed"),
        };
        let mut hold = old.unwrap_or_else(|| Hold::new(fence, deadline, now.mono, context.epoch));
        hold.set_count(operation.mode, count);
        hold.fence = fence;
        hold.set_granted_in(context.epoch);
        hold.deadline = hold.deadline.max(deadline);
        if operation.note.is_some() {
            hold.set_note(operation.note.clone());
        }
        hold.rebind(operation.session);
        given.push(GrantUndo { fence, added, deadline: hold.deadline, session: hold.session(), prior });
        let lock = keys.lock_or_create(*key);
        lock.raise_fence(fence);
        commit_hold(lock, *key, Cause::Acquire, owner, hold, effects);
    }
    Ok(given)
}

/// The count that an acquisition leads to, and how much it adds.
pub(crate) fn counted(hold: Option<&Hold>, operation: &Acquire) -> (u32, u32) {
    let before = hold.map_or(0, |hold| hold.count(operation.mode));
    let after = operation.count_after(before);
    (after, after - before)
}
