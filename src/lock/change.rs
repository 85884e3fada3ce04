//! What a step did: to holds, which replicas must learn, and to those who waited, who must be answered.

use super::fence::Fence;
use super::hold::Hold;
use super::keyspace::{KeyIndex, Keyspace};
use super::owner::Owner;
use super::request::Answer;
use super::room::WaiterId;
use super::time::Timestamp;
use super::value::Lock;
use smallvec::SmallVec;

/// Who waits no more, and why.
pub type Answers = SmallVec<[(WaiterId, Answer); 1]>;

/// All that a step leaves to do for the rest of the module.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// What happened to holds, in order: in place for the usual hand-off.
    pub changes: SmallVec<[Change; 2]>,
    /// Who waits no more, and why.
    pub answers: Answers,
}

impl Effects {
    /// Nothing was done.
    #[must_use]
    pub fn new() -> Effects {
        Effects::default()
    }

    /// Whether nothing was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.answers.is_empty()
    }
}

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
    /// The grant could not be delivered.
    TakeBack,
    /// A LOCK.HOLD said so.
    Told,
}

/// Ends what is over on a key, the earliest first, at most `most` holds. Keeps I5 when `most` is not reached.
pub(super) fn settle<K: Keyspace>(keys: &mut K, key: KeyIndex, now: Timestamp, most: usize, effects: &mut Effects) {
    let Some(lock) = keys.lock(key) else { return };
    for _ in 0..most {
        let Some((owner, hold)) = lock.holds.take_over(now) else { return };
        effects.changes.push(Change { key, cause: Cause::Lapse, owner, fence: hold.fence, hold: None });
    }
}

/// Commits a hold as it is to be from now on. Cannot fail.
pub(super) fn change(lock: &mut Lock, key: KeyIndex, cause: Cause, owner: &Owner, hold: Hold, effects: &mut Effects) {
    let fence = hold.fence;
    lock.holds.put(owner, hold.clone());
    effects.changes.push(Change { key, cause, owner: owner.clone(), fence, hold: Some(hold) });
}

/// Commits that a hold is gone. Cannot fail.
pub(super) fn remove(lock: &mut Lock, key: KeyIndex, cause: Cause, owner: &Owner, effects: &mut Effects) {
    if let Some(Hold { fence, .. }) = lock.holds.take(owner.as_bytes()) {
        effects.changes.push(Change { key, cause, owner: owner.clone(), fence, hold: None });
    }
}

/// The changes that would make a lock what it is: for a lock that came without any.
#[must_use]
pub fn all_of(lock: &Lock, key: KeyIndex) -> SmallVec<[Change; 2]> {
    let told = |(owner, hold): (&Owner, &Hold)| Change {
        key,
        cause: Cause::Told,
        owner: owner.clone(),
        fence: hold.fence,
        hold: Some(hold.clone()),
    };
    lock.holds.iter().map(told).collect()
}
