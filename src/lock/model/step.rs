//! A step: the keys that it works on, its time, and what it has done.

use super::effect::{Cause, Effects, IndexChange};
use super::hold::Hold;
use super::key::KeyIndex;
use super::keyspace::Keyspace;
use super::limits::Budget;
use super::owner::Owner;
use super::session::Sessions;
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
    /// What it has done so far. Lent, since to move it costs more than to fill it.
    pub effects: &'k mut Effects,
    /// What it may still do for waiters.
    pub(crate) budget: Budget,
}

/// What a step had done at some point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Savepoint {
    pub(crate) changes: usize,
    index_changes: usize,
    keys: u16,
}

impl<'k, K: Keyspace> Step<'k, K> {
    /// A step that has done nothing, and adds what it does to these effects.
    pub fn new(keys: &'k mut K, now: Now, effects: &'k mut Effects) -> Step<'k, K> {
        Step { keys, now, judged: now.mono, memory_full: false, effects, budget: Budget::new() }
    }

    /// What it has done until now.
    pub(crate) fn savepoint(&self) -> Savepoint {
        let Effects { changes, index_changes, .. } = &*self.effects;
        Savepoint { changes: changes.len(), index_changes: index_changes.len(), keys: self.keys.count() }
    }

    /// Closes the keys that were opened since then, if nothing was changed since.
    pub(crate) fn close_unchanged(&mut self, since: Savepoint) {
        if self.effects.changes.len() == since.changes && self.effects.index_changes.len() == since.index_changes {
            self.keys.close(since.keys);
        }
    }

    /// Whether a hold on this key that was offered excludes fewer others than it did then.
    pub(crate) fn is_weaker_since(&self, since: Savepoint, key: KeyIndex) -> bool {
        let mut changes = self.effects.index_changes[since.index_changes..].iter();
        changes.any(|change| matches!(change, IndexChange::LeftOffer { key: at, is_weaker: true, .. } if *at == key))
    }

    /// Whether this key has no hold.
    pub(crate) fn is_free(&mut self, key: KeyIndex) -> bool {
        self.keys.lock(key).is_none_or(|lock| lock.is_free())
    }

    /// Ends what is over on a key, all of it. Keeps I5.
    #[inline(always)]
    pub(crate) fn settle(&mut self, key: KeyIndex, sessions: &Sessions) {
        if sessions.some_closed() {
            self.close_orphans(key, sessions);
        }
        self.lapse(key, usize::MAX);
    }

    /// Ends the holds on a key whose connections have closed, or cuts their leases.
    #[inline(never)]
    fn close_orphans(&mut self, key: KeyIndex, sessions: &Sessions) {
        let Some(lock) = self.keys.lock(key) else { return };
        let orphan = |(owner, hold): (&Owner, &Hold)| sessions.end_of_grace(hold).is_some().then(|| owner.clone());
        let orphans: Vec<Owner> = lock.holds.iter().filter_map(orphan).collect();
        for owner in orphans {
            self.effects.close(lock, key, sessions, &owner, self.judged);
        }
    }

    /// Ends at most `most` leases that are over on a key, the earliest first. An offer that was not collected is taken
    /// back: its owner has lost nothing that it knew of.
    #[inline]
    pub(crate) fn lapse(&mut self, key: KeyIndex, most: usize) {
        let Some(lock) = self.keys.lock(key) else { return };
        for _ in 0..most {
            let Some((owner, hold)) = lock.holds.take_over(self.judged) else { return };
            let cause = if hold.offer().is_some() { Cause::RevokeUndelivered } else { Cause::Lapse };
            self.effects.ended(key, cause, owner, hold);
        }
    }
}
