//! What is left to do in the background: wait queues to be served, owners to be checked for deadlocks, and grants to be
//! rolled back.

use super::checks::Check;
use super::queue::{Pending, WaitQueue};
use super::table::WaitTable;
use super::waiter::CycleCause;
use crate::lock::model::hold::Connection;
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{PerKey, WaiterId};

/// Work that is left to the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Serve the waiters for this key that can be served.
    ServeQueue(Db, KeyName),
    /// Roll back what was granted to this waiter and lies on these keys now. If some of it lies in another database,
    /// that is another job.
    RevokeUndelivered(WaiterId, Db, PerKey<KeyName>),
    /// See whether the owner of this waiter, which waits for this key, is in a deadlock.
    Check(WaiterId, Db, KeyName),
    /// End the holds on this key that are bound to this connection, which has closed.
    EndSession(Connection, Db, KeyName),
    /// Announce holds on this key that have ended together.
    AnnounceEnds(Db, KeyName),
}

impl WaitTable {
    /// A queue is to be served, because of something that was not done by a step on its key.
    pub fn mark_ready(&mut self, db: Db, name: &KeyName) {
        self.mark(db, name, Pending::Wake);
    }

    /// The scan of a queue ended before the queue did.
    pub(crate) fn mark_unfinished(&mut self, db: Db, name: &KeyName) {
        self.mark(db, name, Pending::GoOn);
    }

    /// As [`WaitTable::mark_ready`], and the lock is another one, so that there may be a deadlock.
    pub fn mark_ready_and_check(&mut self, db: Db, name: &KeyName) {
        self.mark(db, name, Pending::WakeAndCheck);
    }

    fn mark(&mut self, db: Db, name: &KeyName, pending: Pending) {
        let Some(queue) = self.queue_mut(db, name) else { return };
        if queue.mark(pending) {
            self.ready.push_back((db, name.clone()));
        }
    }

    /// As [`WaitTable::mark_ready_and_check`], of all queues of a database; None: of all databases.
    pub(crate) fn mark_all_ready_and_check(&mut self, db: Option<Db>) {
        self.mark_all(db, Pending::WakeAndCheck);
    }

    /// As [`WaitTable::mark_ready`], of all queues.
    pub(crate) fn mark_all_ready(&mut self) {
        self.mark_all(None, Pending::Wake);
    }

    fn mark_all(&mut self, db: Option<Db>, pending: Pending) {
        let WaitTable { queues, ready, .. } = self;
        for (number, queues) in (0..).zip(queues) {
            if db.is_none_or(|db| db.0 == number) {
                for (name, queue) in queues {
                    if queue.mark(pending) {
                        ready.push_back((Db(number), name.clone()));
                    }
                }
            }
        }
    }

    /// An owner has a new hold: all queues that it stands in are to be served, as far as to its position.
    pub(crate) fn mark_ready_for(&mut self, owner: &Owner) {
        let WaitTable { waiters, queues, owners, ready, wakes_begun, .. } = self;
        for id in owners.of(owner) {
            let Some(waiter) = waiters.get_mut(id) else { continue };
            // An owner may get very many holds while it waits in very many queues: they are on the list already.
            if !waiter.is_waiting() || waiter.marked_at == *wakes_begun || waiter.owner != *owner {
                continue;
            }
            waiter.marked_at = *wakes_begun;
            let Some(queues) = queues.get_mut(waiter.db.0 as usize) else { continue };
            for key in &waiter.keys {
                let Some(queue) = queues.get_mut(&key.name) else { continue };
                queue.allow_bypass(waiter.position_at(key));
                if queue.mark(Pending::Wake) {
                    ready.push_back((waiter.db, key.name.clone()));
                }
            }
        }
    }

    /// A queue is being served now. True when its waiters are to be checked for deadlocks as well.
    pub(crate) fn take_pending(&mut self, db: Db, name: &KeyName) -> bool {
        self.wakes_begun += 1;
        self.queue_mut(db, name).and_then(WaitQueue::take_pending) == Some(Pending::WakeAndCheck)
    }

    /// Whether there are jobs for the background.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        !self.ready.is_empty() || !self.checks.is_empty() || !self.undelivered.is_empty()
    }

    /// The next job of another kind. It stays the next one until it is done.
    #[must_use]
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        if let Some(check) = self.next_check() {
            return Some(check);
        }
        while let Some((db, name)) = self.ready.front() {
            if self.queue(*db, name).is_some_and(WaitQueue::is_pending) {
                return Some(Job::ServeQueue(*db, name.clone()));
            }
            self.ready.pop_front();
        }
        None
    }

    /// The owner to be checked next.
    fn next_check(&mut self) -> Option<Job> {
        while let Some(Check { owner, at, .. }) = self.checks.last() {
            let marked = self.waiters.get(*at).filter(|waiter| waiter.is_waiting()).map(|waiter| (*at, waiter));
            if let Some((id, waiter)) = marked.or_else(|| self.waiting_of(owner).next()) {
                return Some(Job::Check(id, waiter.db, waiter.keys[0].name.clone()));
            }
            // It waits no more.
            let owner = owner.clone();
            self.checks.take(&owner);
        }
        None
    }

    /// The owner of this waiter is to be checked for deadlocks once more, with this waiter's keys at hand.
    pub(crate) fn mark_for_check(&mut self, id: WaiterId, cause: CycleCause) {
        if let Some(waiter) = self.waiters.get(id).filter(|waiter| waiter.is_waiting()) {
            self.checks.mark(&waiter.owner, id, cause);
        }
    }

    /// An owner is being checked now. What may have closed a cycle through it; None if it was not to be checked.
    pub(crate) fn take_check(&mut self, owner: &Owner) -> Option<CycleCause> {
        Some(self.checks.take(owner)?.cause)
    }
}
