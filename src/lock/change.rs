//! What happened to holds: all that a step leaves to do for the rest of the module.

use super::fence::Fence;
use super::hold::Hold;
use super::keyspace::{KeyIndex, Keyspace};
use super::owner::Owner;
use super::time::Timestamp;
use super::value::Lock;
use smallvec::SmallVec;

/// What happened to holds in one step.
pub type Effects = SmallVec<[Change; 1]>;

/// One hold changed: what replicas, the AOF, subscribers and counters must learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// On which key.
    pub key: KeyIndex,
    /// By what.
    pub cause: Cause,
    /// Whose hold.
    pub owner: Owner,
    /// The fence it has or had.
    pub fence: Fence,
    /// The hold as it is now; None when it is gone.
    pub hold: Option<Hold>,
}

/// What changed a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its owner took it or took it again.
    Acquire,
    /// Its owner gave some or all of it back.
    Release,
    /// Its owner moved the end of its lease.
    Extend,
    /// Its lease ended.
    Lapse,
    /// A LOCK.HOLD said so.
    Told,
}

/// Ends what is over on a key, the earliest first, at most `most` holds. Keeps I5 when `most` is not reached.
pub(super) fn settle<K: Keyspace>(keys: &mut K, key: KeyIndex, now: Timestamp, most: usize, effects: &mut Effects) {
    let Some(lock) = keys.lock(key) else { return };
    for _ in 0..most {
        let Some((owner, hold)) = lock.holds.take_over(now) else { return };
        effects.push(Change { key, cause: Cause::Lapse, owner, fence: hold.fence, hold: None });
    }
}

/// Commits a hold as it is to be from now on. Cannot fail.
pub(super) fn change(lock: &mut Lock, key: KeyIndex, cause: Cause, owner: &Owner, hold: Hold, effects: &mut Effects) {
    let fence = hold.fence;
    lock.holds.put(owner, hold.clone());
    effects.push(Change { key, cause, owner: owner.clone(), fence, hold: Some(hold) });
}

/// Commits that a hold is gone. Cannot fail.
pub(super) fn remove(lock: &mut Lock, key: KeyIndex, cause: Cause, owner: &Owner, effects: &mut Effects) {
    if let Some(Hold { fence, .. }) = lock.holds.take(owner.as_bytes()) {
        effects.push(Change { key, cause, owner: owner.clone(), fence, hold: None });
    }
}

/// The changes that would make a lock what it is: for a lock that came without any.
#[must_use]
pub fn all_of(lock: &Lock, key: KeyIndex) -> Effects {
    let told = |(owner, hold): (&Owner, &Hold)| Change {
        key,
        cause: Cause::Told,
        owner: owner.clone(),
        fence: hold.fence,
        hold: Some(hold.clone()),
    };
    lock.holds.iter().map(told).collect()
}
