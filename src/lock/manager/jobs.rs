//! Jobs: what is left to do for waiters after a step, and is done in the background. Wait queues that became ready, grants that
//! reached nobody, waits that may be deadlocks, and waits that end together.

use super::LockManager;
use super::wake::Attempt;
use crate::lock::model::effect::{Cause, Effects, WaitEnds, commit_end, commit_hold, settle};
use crate::lock::model::hold::Hold;
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::keyspace::{Keyspace, Place};
use crate::lock::model::limits::GRANTS_PER_BATCH;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{PerKey, RedirectReason, Refusal, WaitEnd, WaiterId};
use crate::lock::model::time::{Now, Timestamp};
use crate::lock::wait::deadlock;
use crate::lock::wait::table::{Job, WaitPoll};
use crate::lock::wait::waiter::{CycleCause, GrantUndo, Undelivered, Waiter};
use alloc::boxed::Box;
use alloc::vec::Vec;

impl LockManager {
    /// A circle of waits is to be looked for once more, when the step of the one that began to wait is over: in the
    /// step not all locks could be seen.
    pub fn check_later(&mut self, id: WaiterId) {
        self.wait_table.mark_for_check(id, CycleCause::NewWait);
    }

    /// An owner has got something and waits still for something else. Whom it passed on the way waits for it now, and
    /// it may wait for one of those.
    pub(crate) fn check_for_new_hold(&mut self, owner: &Owner) {
        if self.limits.deadlock_detection {
            let waiting: Vec<WaiterId> = self.wait_table.waiting_of(owner).map(|(id, _)| id).collect();
            for id in waiting {
                self.wait_table.mark_for_check(id, CycleCause::NewHold);
            }
        }
    }

    /// Looks whether a waiter is in a deadlock, whose key is open.
    pub fn check_waiter<K: Keyspace>(&mut self, keys: &mut K, id: WaiterId, now: Now) -> Effects {
        let mut effects = Effects::new();
        let cause = self.wait_table.take_check(id).unwrap_or(CycleCause::NewWait);
        let Some(owner) = self.wait_table.waiter(id).map(|waiter| waiter.owner.clone()) else { return effects };
        if self.limits.deadlock_detection {
            self.end_circle(keys, (id, &owner), cause, now, &mut effects);
        }
        self.follow(keys, &mut effects, now.mono);
        effects
    }

    /// If a waiter is in a circle, lets it in before the others of the circle, or refuses it where it waits for a hold.
    fn end_circle<K: Keyspace>(
        &mut self,
        keys: &mut K,
        (id, owner): (WaiterId, &Owner),
        cause: CycleCause,
        now: Now,
        effects: &mut Effects,
    ) {
        let Some(cycle) = deadlock::find(self.order(now.mono), keys, owner, cause) else { return };
        let (changes, bindings, open) = (effects.changes.len(), effects.bindings.len(), keys.count());
        let attempt = self.attempt(keys, id, Some(&cycle), now.mono, effects);
        self.mark_ready_after(keys, None, &effects.changes[changes..]);
        if let Attempt::Grant(indices) = attempt {
            self.note_passed(keys, &indices);
            return self.grant_to_waiter(keys, &indices, id, now, effects);
        }
        if effects.changes.len() == changes && effects.bindings.len() == bindings {
            keys.close(open);
        }
        self.wait_table.remove(id);
        effects.wait_ends.push((id, WaitEnd::Refused(Refusal::Deadlock(Box::new(cycle)))));
    }

    /// Ends a wait without an answer: nobody is there any more to be told. False when there was none.
    pub fn cancel(&mut self, id: WaiterId) -> bool {
        self.waits(id) && self.wait_table.remove(id).is_some()
    }

    /// A waiter's client has gone: it waits no more, or what it was granted is to be taken back. True in the second
    /// case.
    pub fn client_gone(&mut self, id: WaiterId) -> bool {
        if self.wait_table.waiter(id).and_then(Waiter::grant).is_some_and(|grant| grant.confirmed) {
            self.confirm_binding(id);
        }
        self.wait_table.client_gone(id)
    }

    /// What a grant bound stands from now on.
    fn confirm_binding(&mut self, id: WaiterId) {
        for (connection, fence) in self.wait_table.waiter(id).into_iter().flat_map(Waiter::newly_bound) {
            self.sessions.confirm_binding(connection, fence);
        }
    }

    /// The reply of a granted waiter has reached its client's connection.
    pub fn delivered(&mut self, id: WaiterId) {
        self.confirm_binding(id);
        self.wait_table.delivered(id);
    }

    /// Finds who waits no more because its time is up ([`WaitEnd::TimedOut`]); does a bounded piece of work on the way.
    pub fn poll_timeouts(&mut self, now: Timestamp) -> WaitPoll {
        self.wait_table.poll_timeouts(now)
    }

    /// Whether there are jobs for the background.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        self.wait_table.has_jobs() || self.sessions.some_closed()
    }

    /// The next piece of work for the module's own hand: to be done only while a client might write to those keys. It
    /// stays the next one until it is done by [`LockManager::serve_ready_queue`], [`LockManager::revoke_undelivered`],
    /// [`LockManager::end_session`] or [`LockManager::end_waits`].
    #[must_use]
    pub fn next_job(&mut self) -> Option<Job> {
        if let Some(undelivered) = self.wait_table.next_undelivered() {
            return Some(undelivered);
        }
        // Before lines are looked at: most of those who leave at once hold what others wait for.
        if let Some((connection, db, name)) = self.sessions.next_closed() {
            return Some(Job::Close(connection, db, name));
        }
        self.wait_table.next_job()
    }

    /// Looks at a line, whose key is open.
    pub fn serve_ready_queue<K: Keyspace>(&mut self, keys: &mut K, key: KeyIndex, now: Now) -> Effects {
        let mut effects = Effects::new();
        let Place { db, name, .. } = keys.place(key);
        let name = KeyName::from_slice(name);
        let check = self.wait_table.take_pending(db, &name);
        settle(keys, key, &self.sessions, now.mono, &mut effects);
        if check {
            self.mark_ready_for_holders(keys, key);
        }
        self.wake_waiters(keys, key, now, GRANTS_PER_BATCH, &mut effects);
        if check {
            self.check(keys, db, &name, now, &mut effects);
        }
        self.follow(keys, &mut effects, now.mono);
        effects
    }

    /// Who holds a key without having asked for it here may go before somebody now whom it keeps waiting.
    pub(crate) fn mark_ready_for_holders<K: Keyspace>(&mut self, keys: &mut K, key: KeyIndex) {
        let waiting = keys.lock(key).map(|lock| self.wait_table.waiting_holders(lock));
        for owner in waiting.into_iter().flatten() {
            self.wait_table.mark_ready_for(&owner);
        }
    }

    /// Ends the circles that waiters of a queue are in since another lock lies there, the last first.
    fn check<K: Keyspace>(&mut self, keys: &mut K, db: Db, name: &[u8], now: Now, effects: &mut Effects) {
        if !self.limits.deadlock_detection {
            return;
        }
        // What came here made its waiters wait for its holders. Most of those wait for nobody, and hardly ever is one
        // of them in a circle: only then it is worth to see who is. Who waits for several keys may have been made to
        // wait by what left a key, too: then a circle may lead through others.
        let ids: Vec<WaiterId> =
            self.wait_table.queue(db, name).into_iter().flat_map(|queue| queue.iter().rev()).collect();
        let waiters = ids.iter().filter_map(|id| self.wait_table.waiter(*id));
        let suspects = if waiters.clone().any(Waiter::is_many) {
            let owners: Vec<Owner> = waiters.map(|waiter| waiter.owner.clone()).collect();
            deadlock::suspects(self.order(now.mono), keys, &owners)
        } else {
            keys.peek(db, name, |lock| self.wait_table.waiting_holders(lock)).unwrap_or_default()
        };
        let in_cycle = |owner| deadlock::find(self.order(now.mono), &mut *keys, owner, CycleCause::NewHold).is_some();
        if !suspects.iter().any(in_cycle) {
            return;
        }
        let in_this_step = ids.len() <= GRANTS_PER_BATCH;
        for id in ids {
            if !in_this_step {
                // One job each: a thousand searches in one step would keep the server from its clients.
                self.wait_table.mark_for_check(id, CycleCause::NewHold);
            } else if let Some(owner) = self.wait_table.waiter(id).map(|waiter| waiter.owner.clone()) {
                self.end_circle(keys, (id, &owner), CycleCause::NewHold, now, effects);
            }
        }
    }

    /// Takes back what a lost waiter was granted, as far as it lies in this database now, and hands it on: only what
    /// the grant changed, and only while its fence stands and its owner has not shown that it knows.
    pub fn revoke_undelivered<K: Keyspace>(&mut self, keys: &mut K, id: WaiterId, db: Db, now: Now) -> Effects {
        let mut effects = Effects::new();
        let Some(Undelivered { owner, mode, confirmed, given }) = self.wait_table.take_undelivered(id, db) else {
            return effects;
        };
        for (connection, fence) in given.iter().filter_map(|(_, given)| given.newly_bound()) {
            self.sessions.confirm_binding(connection, fence);
        }
        // Where something else than a lock lies now, or another node serves it, there is nothing to take back.
        let given: PerKey<(KeyIndex, GrantUndo)> = given
            .into_iter()
            .filter(|_| !confirmed)
            .filter_map(|(name, given)| Some((keys.open(&name).ok()?, given)))
            .collect();
        for (key, given) in &given {
            let Some(lock) = keys.lock(*key) else { continue };
            let stands = |hold: &&Hold| hold.fence == given.fence && hold.deadline > now.mono;
            let Some(held) = lock.holds.get(owner.as_bytes()).filter(stands) else { continue };
            let hold = given.undo(held, mode);
            if hold.total() == 0 || hold.deadline <= now.mono {
                commit_end(lock, *key, Cause::RevokeUndelivered, &owner, &mut effects);
            } else if hold != *held {
                commit_hold(lock, *key, Cause::RevokeUndelivered, &owner, hold, &mut effects);
            }
        }
        // Not before all are taken back: a connection that closed before it heard of a grant ends what is bound to it,
        // and what this grant alone has bound to it is not.
        let is_last = !self.wait_table.has_undelivered();
        for key in keys.all() {
            if is_last {
                settle(keys, key, &self.sessions, now.mono, &mut effects);
                self.wake_waiters(keys, key, now, GRANTS_PER_BATCH, &mut effects);
            } else {
                let Place { db, name, .. } = keys.place(key);
                self.wait_table.mark_ready(db, name);
            }
        }
        self.follow(keys, &mut effects, now.mono);
        effects
    }

    /// Leaves what a lost waiter was granted as it is: its keys are not this node's any more to change.
    pub fn abandon(&mut self, id: WaiterId) {
        self.confirm_binding(id);
        self.wait_table.remove(id);
    }

    /// Ends all waits for a key with this answer.
    pub fn end_waits(&mut self, db: Db, name: &[u8], answer: &WaitEnd) -> WaitEnds {
        let ids: Vec<WaiterId> = self.wait_table.queue(db, name).into_iter().flat_map(|queue| queue.iter()).collect();
        self.end_all(ids, answer)
    }

    /// Ends all waits and all sessions, and leaves grants that were lost as they are: this node is not the one any more
    /// to take them back.
    pub fn dismiss(&mut self) -> WaitEnds {
        self.sessions.dissolve();
        let ids: Vec<WaiterId> = self.wait_table.everybody().collect();
        self.end_all(ids, &WaitEnd::Redirected(RedirectReason::Demoted))
    }

    fn end_all(&mut self, ids: Vec<WaiterId>, answer: &WaitEnd) -> WaitEnds {
        let end =
            |id| Some((id, self.wait_table.remove(id).filter(Waiter::is_waiting)?)).map(|(id, _)| (id, answer.clone()));
        ids.into_iter().filter_map(end).collect()
    }
}
