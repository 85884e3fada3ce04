//! A step: the keys that it works on, its time, and what it has done.

use super::effect::{Effects, IndexChange};
use super::hashing::KeyedHash;
use super::key::{KeyIndex, KeyName};
use super::keyspace::Keyspace;
use super::limits::Budget;
use super::notify::Notify;
use super::request::{PerKey, WaitEnd};
use super::time::{Now, Timestamp};
use alloc::vec::Vec;

/// One step of the lock manager. The server serves no other client meanwhile.
#[derive(Debug)]
pub struct Step<'k, K> {
    /// Where its locks lie.
    pub keys: &'k mut K,
    /// When it happens: leases and waits begin.
    pub now: Now,
    /// By which time it is judged what is over. Before `now` where a transaction or a script has been judged already.
    pub judged: Timestamp,
    /// True if the server has no memory left: what needs some is refused.
    pub memory_full: bool,
    /// What its request says of the channel of its place.
    pub notify: Notify,
    /// The effects so far. Lent, since to move them costs more than to fill them.
    pub effects: &'k mut Effects,
    /// The work done for waiters.
    pub(crate) budget: Budget,
    /// How many keys it had at the beginning.
    named: usize,
    /// The long ones of the names of its keys that were asked for, by the indices of the keys.
    names: Vec<Option<KeyName>>,
    /// How many holds settling has ended.
    pub(super) ended: usize,
    /// How much it has looked at to find out whether a hold stands.
    pub(super) looks: usize,
    /// The keys on which it has left holds that are over.
    pub(crate) unsettled: Vec<KeyIndex>,
}

/// The effects of a step at some point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Savepoint {
    pub(crate) changes: usize,
    index_changes: usize,
    keys: usize,
}

impl<'k, K: Keyspace> Step<'k, K> {
    /// A step that has done nothing, and adds what it does to these effects.
    pub fn new(keys: &'k mut K, now: Now, effects: &'k mut Effects) -> Step<'k, K> {
        let (named, budget, names) = (keys.count(), Budget::new(), Vec::new());
        let (ended, looks, unsettled, memory_full) = (0, 0, Vec::new(), false);
        let notify = Notify::AsBefore;
        Step {
            keys,
            now,
            judged: now.mono,
            memory_full,
            notify,
            effects,
            budget,
            named,
            names,
            ended,
            looks,
            unsettled,
        }
    }

    /// Returns the effects until now.
    pub(crate) fn savepoint(&self) -> Savepoint {
        let Effects { changes, index_changes, .. } = &*self.effects;
        Savepoint { changes: changes.len(), index_changes: index_changes.len(), keys: self.keys.count() }
    }

    /// How many keys it has beside those of the beginning.
    pub(crate) fn opened(&self) -> usize {
        self.keys.count() - self.named
    }

    /// Closes the keys that were opened since then and of which nothing was changed since.
    pub(crate) fn close_unchanged(&mut self, since: Savepoint) {
        for key in (since.keys..self.keys.count()).rev().map(KeyIndex) {
            if self.keeps_open(key, since) {
                continue;
            }
            self.keys.close(key);
            // The last key has its index now. All behind it were changed.
            let moved = KeyIndex(self.keys.count());
            self.forget_name(key, moved);
            let Effects { changes, index_changes, ended_together, .. } = &mut *self.effects;
            let changes = changes[since.changes..].iter_mut().map(|change| &mut change.key);
            let index_changes = index_changes[since.index_changes..].iter_mut().map(IndexChange::key_mut);
            let ended_together = ended_together.iter_mut().map(|(at, _)| at);
            let all = changes.chain(index_changes).chain(ended_together).chain(&mut self.unsettled);
            all.filter(|at| **at == moved).for_each(|at| *at = key);
        }
    }

    /// True if something was changed of a key that was opened since then, or is left to do there.
    fn keeps_open(&self, key: KeyIndex, since: Savepoint) -> bool {
        let Effects { changes, index_changes, .. } = &*self.effects;
        changes[since.changes..].iter().any(|change| change.key == key)
            || index_changes[since.index_changes..].iter().any(|change| change.key() == key)
            || self.is_unsettled(key)
    }

    /// True if a hold on this key has changed.
    pub(crate) fn has_changed(&self, key: KeyIndex) -> bool {
        self.effects.changes.iter().any(|change| change.key == key)
    }

    /// Returns the name of a key. A long one is copied and hashed once.
    pub(crate) fn name(&mut self, key: KeyIndex, hash: KeyedHash) -> KeyName {
        if let Some(Some(name)) = self.names.get(key.0) {
            return name.clone();
        }
        let name = KeyName::new(self.keys.entry(key).name, hash);
        self.keep_name(key, &name);
        name
    }

    /// Opens a key that a waiter wants or that was granted: one of the step's from now on, by this name.
    ///
    /// # Errors
    /// The answer to the waiter, where something else than a lock lies there, or another node serves the key.
    pub(crate) fn open(&mut self, name: &KeyName) -> Result<KeyIndex, WaitEnd> {
        let key = self.keys.open(name)?;
        self.keep_name(key, name);
        Ok(key)
    }

    fn keep_name(&mut self, KeyIndex(at): KeyIndex, name: &KeyName) {
        if !name.is_long() || matches!(self.names.get(at), Some(Some(_))) {
            return;
        }
        if self.names.len() <= at {
            self.names.resize(at + 1, None);
        }
        self.names[at] = Some(name.clone());
    }

    /// Forgets the name of a closed key, whose index the last key has now.
    fn forget_name(&mut self, KeyIndex(closed): KeyIndex, KeyIndex(last): KeyIndex) {
        let moved = self.names.get_mut(last).and_then(Option::take);
        if let Some(name) = self.names.get_mut(closed) {
            *name = moved;
        }
        self.names.truncate(last);
    }

    /// True if a hold on this key that was offered excludes fewer others than it did then.
    pub(crate) fn is_weaker_since(&self, since: Savepoint, key: KeyIndex) -> bool {
        let mut changes = self.effects.index_changes[since.index_changes..].iter();
        changes.any(|change| matches!(change, IndexChange::LeftOffer { key: at, is_weaker: true, .. } if *at == key))
    }

    /// True if this key has no hold.
    pub(crate) fn is_free(&mut self, key: KeyIndex) -> bool {
        self.keys.lock(key).is_none_or(|lock| lock.is_free())
    }
}

/// Returns what is found for each of these keys.
///
/// # Errors
/// The first that is found.
#[inline(always)]
pub(crate) fn per_key<T, E>(keys: &[KeyIndex], mut find: impl FnMut(KeyIndex) -> Result<T, E>) -> Result<PerKey<T>, E> {
    match keys {
        // To move what was just pushed stalls a processor.
        [key] => Ok(PerKey::from_buf([find(*key)?])),
        _ => keys.iter().map(|key| find(*key)).collect(),
    }
}
