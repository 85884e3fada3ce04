//! What is left to do in the background: wait queues to be served, owners to be checked for deadlocks, and grants to be
//! rolled back.

use super::checks::Check;
use super::queue::{Pending, WaitQueue};
use super::sweep::SweepKind;
use super::table::WaitTable;
use super::waiter::{CycleCause, Waiter};
use crate::model::hold::Connection;
use crate::model::key::{Db, KeyName};
use crate::model::owner::Owner;
use crate::model::request::{PerKey, WaiterId};
use core::ops::Bound::{Excluded, Unbounded};

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
    /// Go on putting queues on the ready list. No key is opened for it.
    MarkQueues,
    /// Go on with the places of connections that have closed. No key is opened for it.
    ShortenPlaces,
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

    /// An owner has a new hold: all queues that it stands in are to be served, as far as to its position. About `most`
    /// are put on the ready list now, the others by the background.
    pub(crate) fn mark_ready_for(&mut self, owner: &Owner, most: usize) {
        if self.mark_ready_later(owner) {
            self.mark_some_of(owner, most);
        }
    }

    /// As [`WaitTable::mark_ready_for`], all by the background. False if they are on the list, or will be.
    pub(crate) fn mark_ready_later(&mut self, owner: &Owner) -> bool {
        let now = self.wakes_begun;
        let begun = self.marking.get(owner).map(|(_, begun)| *begun);
        // An owner may get very many holds while it waits in very many queues: they are on the list, or will be.
        let is_marked = |(_, waiter): (WaiterId, &Waiter)| waiter.marked_at == now;
        let mut waiting = self.waiting_of(owner);
        let is_done = waiting.next().is_none_or(is_marked) && waiting.next_back().is_none_or(is_marked);
        drop(waiting);
        if is_done || begun == Some(now) {
            return false;
        }
        self.marking.insert(owner.clone(), (0, now));
        true
    }

    /// Puts queues of an owner on the ready list, of so many keys and waiters, and at least those of one waiter. How
    /// many these were.
    fn mark_some_of(&mut self, owner: &Owner, most: usize) -> usize {
        let Some((from, begun)) = self.marking.remove(owner) else { return 0 };
        let WaitTable { waiters, queues, sweeps, owners, ready, wheel, wakes_begun, .. } = self;
        let mut spent = 0;
        for id in owners.of_from(owner, from) {
            let Some(waiter) = waiters.get_mut(id) else { continue };
            if spent >= most {
                self.marking.insert(owner.clone(), (waiter.ticket, begun));
                break;
            }
            spent += 1;
            if !waiter.is_waiting() || waiter.marked_at == *wakes_begun || waiter.owner != *owner {
                continue;
            }
            waiter.marked_at = *wakes_begun;
            spent += waiter.keys.len() - 1;
            let at = waiter.db.0 as usize;
            let (Some(queues), Some(sweep)) = (queues.get_mut(at), sweeps.get(at)) else { continue };
            for key in &waiter.keys {
                let Some(queue) = queues.get_mut(&key.name) else { continue };
                sweep.reach((waiter.db, &key.name, queue), ready, wheel);
                queue.allow_bypass(waiter.position_at(key));
                if queue.mark(Pending::Wake) {
                    ready.push_back((waiter.db, key.name.clone()));
                }
            }
        }
        spent
    }

    /// Puts about so many queues of the owners on the ready list that are noted for that.
    pub(crate) fn mark_for_owners(&mut self, most: usize) {
        let mut spent = 0;
        while spent < most
            && let Some(owner) = self.marking.first_key_value().map(|(owner, _)| owner.clone())
        {
            spent += self.mark_some_of(&owner, most - spent).max(1);
        }
    }

    /// Does a piece of [`Job::MarkQueues`]: puts about so many queues on the ready list.
    pub(crate) fn mark_queues(&mut self, most: usize) {
        if self.marking.is_empty() {
            self.sweep_on(most);
        } else {
            self.mark_for_owners(most);
        }
    }

    /// All queues of a database are to be served; None: of all databases. At most `most` are put on the ready list now,
    /// the others by the background.
    pub(crate) fn sweep(&mut self, db: Option<Db>, kind: SweepKind, most: usize) {
        self.sweeps_begun += 1;
        let number = self.sweeps_begun;
        for (at, (sweep, queues)) in (0..).zip(self.sweeps.iter_mut().zip(&self.queues)) {
            if db.is_none_or(|db| db.0 == at) && !queues.is_empty() {
                self.sweeping += usize::from(sweep.left == 0);
                (sweep.number, sweep.left) = (number, queues.len());
                sweep.checks = if kind.checks { number } else { sweep.checks };
                sweep.clears = if kind.clears { number } else { sweep.clears };
            }
        }
        self.sweep_on(most);
    }

    /// Goes on with the sweeps: comes to at most so many queues.
    pub(super) fn sweep_on(&mut self, mut most: usize) {
        let WaitTable { sweeps, queues, ready, wheel, sweeping, swept_at, wakes_begun, .. } = self;
        *swept_at = *wakes_begun;
        for (at, (sweep, queues)) in (0..).zip(sweeps.iter_mut().zip(queues)) {
            if sweep.left == 0 {
                continue;
            }
            let count = most.min(sweep.left);
            most -= count;
            sweep.left = if queues.is_empty() { 0 } else { sweep.left - count };
            let mut left = count;
            while left > 0 && !queues.is_empty() {
                let from = sweep.behind.take().map_or(Unbounded, Excluded);
                let mut last = None;
                for (name, queue) in queues.range_mut((from, Unbounded)).take(left) {
                    sweep.reach((Db(at), name, queue), ready, wheel);
                    left -= 1;
                    last = Some(name);
                }
                // Behind the last one it begins with the first.
                sweep.behind = last.filter(|_| left == 0).cloned();
            }
            if sweep.left == 0 {
                *sweeping -= 1;
                sweep.behind = None;
            }
            if most == 0 {
                return;
            }
        }
    }

    /// True if a waiter for a key may be served without a change of the lock.
    pub(crate) fn is_unsettled(&self, db: Db, name: &KeyName) -> bool {
        self.queue(db, name).is_some_and(|queue| queue.is_unsettled() || !self.is_swept(db, queue))
    }

    /// True if the last sweep of a database has come to a queue.
    pub(super) fn is_swept(&self, db: Db, queue: &WaitQueue) -> bool {
        self.sweeps.get(db.0 as usize).is_none_or(|sweep| queue.swept >= sweep.number)
    }

    /// A queue is being served now. True when its waiters are to be checked for deadlocks as well.
    pub(crate) fn take_pending(&mut self, db: Db, name: &KeyName) -> bool {
        self.wakes_begun += 1;
        self.queue_mut(db, name).and_then(WaitQueue::take_pending) == Some(Pending::WakeAndCheck)
    }

    /// True if there are jobs for the background.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        let some_to_mark = self.sweeping > 0 || !self.marking.is_empty();
        some_to_mark
            || self.has_away()
            || !self.ready.is_empty()
            || !self.checks.is_empty()
            || !self.undelivered.is_empty()
    }

    /// The next job of another kind. It stays the next one until it is done.
    #[must_use]
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        if self.has_away() {
            return Some(Job::ShortenPlaces);
        }
        if let Some(check) = self.next_check() {
            return Some(check);
        }
        // A sweep may begin anew again and again: it goes on after each queue that was served.
        if !self.marking.is_empty() || (self.sweeping > 0 && self.swept_at != self.wakes_begun) {
            return Some(Job::MarkQueues);
        }
        while let Some((db, name)) = self.ready.front() {
            if self.queue(*db, name).is_some_and(WaitQueue::is_pending) {
                return Some(Job::ServeQueue(*db, name.clone()));
            }
            self.ready.pop_front();
        }
        (self.sweeping > 0).then_some(Job::MarkQueues)
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
