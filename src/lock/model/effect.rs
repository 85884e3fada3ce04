//! What a step did: to holds, which replicas must learn, and to those who waited, who must be answered.

use super::hold::{Hold, Session};
use super::key::KeyIndex;
use super::keyspace::Keyspace;
use super::limits::KEYS_PER_BATCH;
use super::lock::Lock;
use super::owner::Owner;
use super::request::{WaitEnd, WaiterId};
use super::session::Sessions;
use super::time::Timestamp;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Who waits no more, and why.
pub type WaitEnds = SmallVec<[(WaiterId, WaitEnd); 1]>;

/// All that a step leaves to do for the rest of the module.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// What happened to holds, in order: in place for the usual hand-off.
    pub changes: SmallVec<[Change; 2]>,
    /// Who waits no more, and why.
    pub wait_ends: WaitEnds,
    /// Whether the alarm may have to ring for something that it did not have to ring for before.
    pub needs_rearm: bool,
    /// What was bound to connections, for the node's own index.
    pub(crate) bindings: Vec<BindingChange>,
    /// How much of what one step may do for waiters it has done.
    pub(crate) spent: Spent,
}

/// How much a step has done for waiters, on all its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// How many it has answered.
    pub(crate) wait_ends: usize,
    /// How many keys it has granted to them.
    pub(crate) keys: usize,
    /// How many of their keys it has judged.
    pub(crate) judged: usize,
}

impl Spent {
    /// Whether it may answer one more of at most so many, with a grant of this many keys.
    pub(crate) fn leaves_room(self, granted: usize, most: usize) -> bool {
        self.wait_ends < most && (self.keys == 0 || self.keys + granted <= KEYS_PER_BATCH)
    }
}

/// A hold was bound to another connection than before, or to one where there was none, or the other way round.
#[derive(Clone, Debug)]
pub(crate) struct BindingChange {
    pub(crate) key: KeyIndex,
    pub(crate) owner: Owner,
    pub(crate) was: Option<Session>,
    pub(crate) is: Option<Session>,
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
        self.changes.is_empty() && self.wait_ends.is_empty() && self.bindings.is_empty()
    }

    fn ended(&mut self, key: KeyIndex, cause: Cause, owner: Owner, hold: Hold) {
        self.note_binding(key, &owner, hold.session(), None);
        self.changes.push(Change { key, cause, owner, hold, ended: true });
    }

    fn note_binding(&mut self, key: KeyIndex, owner: &Owner, was: Option<Session>, is: Option<Session>) {
        if was != is {
            self.bindings.push(BindingChange { key, owner: owner.clone(), was, is });
        }
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
    /// The hold as it is now, or as it was when it ended.
    pub hold: Hold,
    /// Whether it is gone.
    pub ended: bool,
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
    RevokeUndelivered,
    /// The connection that it was bound to has closed.
    Close,
    /// An operator ended it.
    Break,
    /// A LOCK.HOLD said so.
    Replicated,
}

/// Ends what is over on a key, all of it. Keeps I5.
pub(crate) fn settle<K: Keyspace>(
    keys: &mut K,
    key: KeyIndex,
    sessions: &Sessions,
    now: Timestamp,
    effects: &mut Effects,
) {
    if sessions.some_closed()
        && let Some(lock) = keys.lock(key)
    {
        let orphan = |(owner, hold): (&Owner, &Hold)| sessions.end_of_grace(hold).is_some().then(|| owner.clone());
        let orphans: Vec<Owner> = lock.holds.iter().filter_map(orphan).collect();
        for owner in orphans {
            close(lock, key, sessions, &owner, now, effects);
        }
    }
    lapse(keys, key, now, usize::MAX, effects);
}

/// Ends at most `most` leases that are over on a key, the earliest first.
pub(crate) fn lapse<K: Keyspace>(keys: &mut K, key: KeyIndex, now: Timestamp, most: usize, effects: &mut Effects) {
    let Some(lock) = keys.lock(key) else { return };
    for _ in 0..most {
        let Some((owner, hold)) = lock.holds.take_over(now) else { return };
        effects.ended(key, Cause::Lapse, owner, hold);
    }
}

/// Cuts a lease to what the closed connection of its hold has left of it. Does nothing when it is bound to none. Cannot
/// fail.
pub(crate) fn close(
    lock: &mut Lock,
    key: KeyIndex,
    sessions: &Sessions,
    owner: &Owner,
    now: Timestamp,
    effects: &mut Effects,
) {
    let Some(hold) = lock.holds.get(owner.as_bytes()) else { return };
    let Some(end) = sessions.end_of_grace(hold) else { return };
    let mut hold = hold.clone();
    if hold.deadline <= end {
        // Nothing is cut, and nobody needs to know: it goes on to the end of its lease, or lapses if that is over.
        effects.note_binding(key, owner, hold.session(), None);
        hold.bind(None);
        lock.holds.put(owner, hold);
        return;
    }
    if end <= now {
        return commit_end(lock, key, Cause::Close, owner, effects);
    }
    hold.deadline = end;
    hold.orphan();
    commit_hold(lock, key, Cause::Close, owner, hold, effects);
}

/// Commits a hold as it is to be from now on. Cannot fail.
pub(crate) fn commit_hold(
    lock: &mut Lock,
    key: KeyIndex,
    cause: Cause,
    owner: &Owner,
    hold: Hold,
    effects: &mut Effects,
) {
    let old = lock.holds.put(owner, hold.clone());
    effects.note_binding(key, owner, old.as_ref().and_then(Hold::session), hold.session());
    effects.changes.push(Change { key, cause, owner: owner.clone(), hold, ended: false });
}

/// Commits that a hold is gone. Cannot fail.
pub(crate) fn commit_end(lock: &mut Lock, key: KeyIndex, cause: Cause, owner: &Owner, effects: &mut Effects) {
    if let Some(hold) = lock.holds.take(owner.as_bytes()) {
        effects.ended(key, cause, owner.clone(), hold);
    }
}

/// The changes that would make a lock what it is: for a lock that came without any.
#[must_use]
pub fn all_of(lock: &Lock, key: KeyIndex) -> SmallVec<[Change; 2]> {
    let replicated = |(owner, hold): (&Owner, &Hold)| Change {
        key,
        cause: Cause::Replicated,
        owner: owner.clone(),
        hold: hold.clone(),
        ended: false,
    };
    lock.holds.iter().map(replicated).collect()
}
