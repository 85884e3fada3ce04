//! Jobs: what is left to do for waiters after a step, and is done in the background. Ready wait queues, undelivered
//! grants, waits that may be deadlocks, and waits that end together.

use super::LockManager;
use super::wake::Attempt;
use crate::model::effect::{Cause, Ended};
use crate::model::hold::Hold;
use crate::model::key::{Db, KeyIndex, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::notify::Message;
use crate::model::owner::Owner;
use crate::model::request::{Cycle, PerKey, RedirectReason, Refusal, WaitEnd, WaiterId};
use crate::model::step::Step;
use crate::model::time::{Millis, Timestamp};
use crate::wait::deadlock::{self, Budgets, Found, TooMuch};
use crate::wait::jobs::Job;
use crate::wait::queue::WaitQueue;
use crate::wait::sweep::SweepKind;
use crate::wait::timers::WaitPoll;
use crate::wait::waiter::{CycleCause, GrantUndo, Undelivered, Waiter};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

impl LockManager {
    /// A request that has begun to wait is to be checked for a deadlock once more, after its step: in the step not all
    /// locks could be seen.
    pub(super) fn check_later(&mut self, id: WaiterId) {
        self.wait_table.mark_for_check(id, CycleCause::NewWait);
    }

    /// An owner that waits has a new hold. The waiters that it passed wait for it now, and it may wait for one of them.
    pub(crate) fn check_for_new_hold(&mut self, owner: &Owner) {
        if self.limits.deadlock_detection {
            self.mark_for_check(owner, CycleCause::NewHold);
        }
    }

    /// An owner is to be checked for deadlocks, if it waits.
    fn mark_for_check(&mut self, owner: &Owner, cause: CycleCause) {
        let first = self.wait_table.waiting_of(owner).map(|(id, _)| id).next();
        if let Some(id) = first {
            self.wait_table.mark_for_check(id, cause);
        }
    }

    /// Searches for a deadlock of the owner of this waiter, whose key is open, and ends one.
    pub fn check_waiter<K: Keyspace>(&mut self, step: &mut Step<'_, K>, id: WaiterId) {
        let Some(Waiter { owner, db, .. }) = self.wait_table.waiter(id) else { return };
        let (owner, db) = (owner.clone(), *db);
        let cause = self.wait_table.take_check(&owner).unwrap_or(CycleCause::NewWait);
        if self.limits.deadlock_detection {
            self.end_cycle(step, (&owner, db), cause);
        }
        self.follow(step);
    }

    /// If an owner is in a cycle, ends the wait by which it is: grants it before the others of the cycle, or refuses it
    /// if a hold blocks it. The owner is checked again after that: another of its waits may be in a cycle too.
    fn end_cycle<K: Keyspace>(&mut self, step: &mut Step<'_, K>, (owner, db): (&Owner, Db), cause: CycleCause) {
        let Some(Found { cycle, wait: id }) = self.find_cycle(step, (owner, cause)) else { return };
        if self.wait_table.waiter(id).is_some_and(|waiter| waiter.db != db) {
            // Its keys are opened in its own database.
            return self.wait_table.mark_for_check(id, cause);
        }
        let before = step.savepoint();
        let attempt = self.attempt(step, id, Some(&cycle));
        self.mark_ready_after(step, None, before);
        match attempt {
            // It waits for the end of the grace alone.
            Attempt::Grant(_) if self.is_in_grace(step.judged) => {
                step.close_unchanged(before);
                return self.note_cycle_in_grace(id);
            }
            Attempt::Grant(indices) => {
                self.note_passed(step, &indices);
                self.grant_to_waiter(step, &indices, id);
            }
            Attempt::Blocked(_) => {
                step.close_unchanged(before);
                self.end_wait(step, id, WaitEnd::Refused(Refusal::Deadlock(Box::new(cycle))));
            }
            // It ends for another reason: it has lost what it was to upgrade, say. The service of its queue would tell
            // it the same, and comes later.
            Attempt::Reject(answer) => {
                step.close_unchanged(before);
                self.end_wait(step, id, answer);
            }
        }
        self.mark_for_check(owner, cause);
    }

    /// Ends a wait before its time: its client is answered null. A place goes on without it. None when there was none.
    pub fn cancel(&mut self, id: WaiterId, now: Timestamp) -> Option<WaitEnd> {
        self.waits(id).then(|| self.wait_table.time_out(id, now))
    }

    /// A waiter's client has gone: it waits no more, or as a place without a client, or its grant is to be rolled back
    /// or offered. True in the last case. Where the connection of this client has closed, and the owner has asked over
    /// no other since, its process may be dead: the place does not wait for that one as long as QUEUE says.
    pub fn client_gone(&mut self, id: WaiterId, closed: Option<u64>, now: Timestamp) -> bool {
        if self.wait_table.waiter(id).and_then(Waiter::grant).is_some_and(|grant| grant.confirmed) {
            self.confirm_binding(id);
        }
        if closed.is_some_and(|client| self.wait_table.leave_closed(id, client)) && self.limits.away_max > Millis(0) {
            self.wait_table.keep_no_longer(id, self.limits.away_max);
        }
        self.wait_table.client_gone(id, now)
    }

    /// Confirms the bindings of a grant.
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

    /// The time of a place is up ([`WaitPoll::PlaceOver`]), and the node may grant now, or not.
    ///
    /// True if the place ended.
    pub fn end_place(&mut self, id: WaiterId, may_grant: bool, now: Timestamp) -> bool {
        self.wait_table.end_place(id, may_grant, now)
    }

    /// Finds a waiter whose time is up ([`WaitEnd::TimedOut`]); does a bounded piece of work on the way.
    pub fn poll_timeouts(&mut self, now: Timestamp) -> WaitPoll {
        self.wait_table.poll_timeouts(now)
    }

    /// True if there are jobs for the background.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        self.wait_table.has_jobs() || self.sessions.some_closed() || !self.ended.is_empty()
    }

    /// The next job for the background: to be done only while a client might write to those keys. It stays the next one
    /// until it is done by [`LockManager::serve_ready_queue`], [`LockManager::check_waiter`],
    /// [`LockManager::revoke_undelivered`], [`LockManager::end_session`], [`LockManager::announce_ends`],
    /// [`LockManager::mark_queues`], [`LockManager::shorten_places`] or [`LockManager::end_waits`].
    #[must_use]
    pub fn next_job(&mut self) -> Option<Job> {
        if let Some(undelivered) = self.wait_table.next_undelivered() {
            return Some(undelivered);
        }
        // Before queues are served: most clients that leave at once hold what others wait for.
        if let Some((connection, db, name)) = self.sessions.next_closed() {
            return Some(Job::EndSession(connection, db, name));
        }
        let announced_last = || self.ended.front().map(|(db, name, _)| Job::AnnounceEnds(*db, name.clone()));
        self.wait_table.next_job().or_else(announced_last)
    }

    /// Serves a wait queue whose key is open. If more than `most` holds are over on the key, it is served when the last
    /// of them has ended.
    pub fn serve_ready_queue<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, most: usize) {
        let (db, name) = self.place_of(step, key);
        let check = self.wait_table.take_pending(db, &name);
        step.settle(key, None, self.settling(most));
        if step.is_unsettled(key) {
            if check {
                self.wait_table.mark_ready_and_check(db, &name);
            }
            return self.follow(step);
        }
        if check {
            self.mark_ready_for_holders(step, key);
        }
        self.wake_ready_waiters(step, key);
        if check {
            self.check_queue(step, db, &name);
        }
        self.follow(step);
    }

    /// An owner that holds a key without having asked for it here may go now before waiters that it blocks.
    pub(crate) fn mark_ready_for_holders<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex) {
        let waiting = step.keys.lock(key).map(|lock| self.wait_table.waiting_holders(lock));
        for owner in waiting.into_iter().flatten() {
            self.wait_table.mark_ready_later(&owner);
        }
        self.wait_table.mark_for_owners(self.limits.step.queues_marked);
    }

    /// All queues of a database are to be served; None: of all databases.
    pub(super) fn sweep(&mut self, db: Option<Db>, kind: SweepKind) {
        self.wait_table.sweep(db, kind, self.limits.step.queues_marked);
    }

    /// All queues are to be served: more may be granted from now on.
    pub(super) fn serve_all_queues(&mut self) {
        self.sweep(None, SweepKind { checks: false, clears: false });
    }

    /// True if queues of owners that have got a hold are yet to be put on the ready list ([`Job::MarkQueues`]).
    #[must_use]
    pub fn has_owners_to_mark(&self) -> bool {
        !self.wait_table.marking.is_empty()
    }

    /// Does a piece of [`Job::ShortenPlaces`].
    pub fn shorten_places(&mut self) {
        self.wait_table.shorten_places(self.limits.step.queues_marked, self.limits.away_max);
    }

    /// Does a piece of [`Job::MarkQueues`].
    pub fn mark_queues(&mut self) {
        self.wait_table.mark_queues(self.limits.step.queues_marked);
    }

    /// Has the waiters of a queue checked if one of them is in a cycle since another lock lies there.
    fn check_queue<K: Keyspace>(&mut self, step: &mut Step<'_, K>, db: Db, name: &KeyName) {
        if !self.limits.deadlock_detection {
            return;
        }
        let mut budgets = self.searches.clone();
        match self.cycle_behind(step, (db, name), &mut budgets) {
            Ok(None) => {}
            Ok(Some(cycle)) => self.check_waiters(db, name, &cycle, budgets),
            Err(TooMuch) => self.searches_cut += 1,
        }
    }

    /// A cycle that one of the waiters of a key is in, or waits for.
    fn cycle_behind<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        at: (Db, &KeyName),
        budgets: &mut Budgets,
    ) -> Result<Option<Cycle>, TooMuch> {
        // What came here made its waiters wait for its holders. Most of those wait for nobody, and hardly ever is one
        // of them in a cycle: only then it is worth checking each waiter. What left a key may have made a waiter of
        // several keys wait, too: then a cycle may lead through others.
        let order = self.order(step);
        let holders = deadlock::waiting_holders(order, step.keys, at, budgets)?;
        for owner in &holders {
            if let Some(found) = deadlock::find_among_holds(order, step.keys, owner, budgets) {
                return Ok(Some(found.cycle));
            }
        }
        let is_plain = self.wait_table.queue(at.0, at.1).is_none_or(WaitQueue::is_plain);
        let suspects = if is_plain { holders } else { deadlock::suspects(order, step.keys, at, budgets)? };
        for owner in &suspects {
            if let Some(found) = deadlock::find(order, step.keys, (owner, CycleCause::NewHold), budgets)? {
                return Ok(Some(found.cycle));
            }
        }
        Ok(None)
    }

    /// Has the waiters of a key checked, as far as that can be noted in one step; the owners of the cycle in any case.
    fn check_waiters(&mut self, db: Db, name: &KeyName, cycle: &Cycle, mut budgets: Budgets) {
        let waiters = self.wait_table.queue(db, name).into_iter().flat_map(WaitQueue::iter).rev();
        let ids: Vec<WaiterId> = waiters.take_while(|_| budgets.pay_for_mark()).collect();
        if ids.len() < self.wait_table.queue_len(db, name) {
            self.searches_cut += 1;
            cycle.0.iter().for_each(|hop| self.mark_for_check(&hop.owner, CycleCause::NewHold));
        }
        // One job each, the last first: a thousand searches in one step would keep the server from its clients.
        ids.into_iter().rev().for_each(|id| self.wait_table.mark_for_check(id, CycleCause::NewHold));
    }

    /// Searches for a cycle through an owner.
    pub(crate) fn find_cycle<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        whose: (&Owner, CycleCause),
    ) -> Option<Found> {
        let found = deadlock::find(self.order(step), step.keys, whose, &mut self.searches.clone());
        found.unwrap_or_else(|TooMuch| {
            self.searches_cut += 1;
            None
        })
    }

    /// Rolls back an undelivered grant, as far as it lies in this database now, and hands it on. What a place was
    /// granted becomes an offer. Only what the grant changed is rolled back, and only while its hold stands and its
    /// owner has not shown that it knows of it.
    pub fn revoke_undelivered<K: Keyspace>(&mut self, step: &mut Step<'_, K>, id: WaiterId, db: Db) {
        let Some(mut undelivered) = self.wait_table.take_undelivered(id, db) else { return };
        let message = undelivered.message.take();
        let queue = undelivered.queue;
        for (connection, fence) in undelivered.given.iter().filter_map(|(_, given)| given.newly_bound(queue)) {
            self.sessions.confirm_binding(connection, fence);
        }
        if !undelivered.confirmed {
            step.effects.tell(message);
            let undelivered = self.offer_undelivered(step, undelivered);
            roll_back(step, undelivered);
        }
        // Not before all are rolled back. A connection that closed before it heard of a grant ends what is bound to it.
        // What this grant alone has bound to it must not end so.
        let is_last = !self.wait_table.has_undelivered();
        for key in step.keys.all() {
            if is_last {
                step.settle(key, None, self.settling(self.limits.step.holds_ended));
                self.wake_waiters(step, key, self.limits.step.answers);
            } else {
                let (db, name) = self.place_of(step, key);
                self.wait_table.mark_ready(db, &name);
            }
        }
        self.follow(step);
    }

    /// Leaves an undelivered grant as it is: its keys are not this node's any more to change. The message to its owner.
    pub fn abandon(&mut self, id: WaiterId) -> Option<Message> {
        self.confirm_binding(id);
        let message = self.wait_table.message_of_granted(id);
        self.wait_table.remove(id);
        message
    }

    /// Ends waits for a key with this answer, as many as one step answers. If there are more, the queue is on the ready
    /// list after that.
    pub fn end_waits(&mut self, db: Db, name: &[u8], answer: &WaitEnd) -> Ended {
        let name = self.name(name);
        let queue = self.wait_table.queue(db, &name).into_iter();
        let ids: Vec<WaiterId> = queue.flat_map(|queue| queue.iter()).take(self.limits.step.answers).collect();
        let messages = ids.iter().filter_map(|id| self.wait_table.message(*id)).collect();
        let waits = ids.into_iter().filter(|id| self.wait_table.remove(*id)).map(|id| (id, answer.clone())).collect();
        Ended { waits, messages }
    }

    /// The keys with holds that no client knows of. They are plain holds once the node is dismissed: see
    /// [`Lock::keep_offers`](crate::model::lock::Lock::keep_offers).
    #[must_use]
    pub fn offered_keys(&self) -> Vec<(Db, KeyName)> {
        // Each once, however many have places there.
        let keys: BTreeSet<(Db, &KeyName)> = self.offers.keys().collect();
        keys.into_iter().map(|(db, name)| (db, name.clone())).collect()
    }

    /// Ends all waits and all sessions, and leaves undelivered grants as they are: this node may not roll them back any
    /// more. All that wait on a channel are told together.
    pub fn dismiss(&mut self) -> Ended {
        self.sessions.dissolve();
        self.offers.clear();
        self.drop_ended(None);
        let waiting = self.wait_table.everybody().filter(|(_, waiter)| waiter.is_waiting());
        let waits = waiting.map(|(id, _)| (id, WaitEnd::Redirected(RedirectReason::Demoted))).collect();
        let messages = self.wait_table.messages_to_all();
        self.retired_waits.push(self.wait_table.retire());
        Ended { waits, messages }
    }
}

/// Rolls back what a grant gave.
fn roll_back<K: Keyspace>(step: &mut Step<'_, K>, undelivered: Undelivered) {
    let Undelivered { owner, mode, given, .. } = undelivered;
    // Where something else than a lock lies now, or another node serves it, there is nothing to roll back.
    let open = |(name, given): (KeyName, GrantUndo)| Some((step.open(&name).ok()?, given));
    let given: PerKey<(KeyIndex, GrantUndo)> = given.into_iter().filter_map(open).collect();
    let Step { keys, now, effects, .. } = step;
    for (key, given) in given {
        let Some(lock) = keys.lock(key) else { continue };
        let stands = |hold: &&Hold| given.is_of(hold) && hold.deadline > now.mono;
        let Some(held) = lock.holds.get(owner.as_bytes()).filter(stands) else { continue };
        let hold = given.undo(held, mode);
        if hold.total() == 0 || hold.deadline <= now.mono {
            effects.commit_end(lock, key, Cause::RevokeUndelivered, &owner);
        } else if hold != *held {
            effects.commit_hold(lock, key, Cause::RevokeUndelivered, &owner, hold);
        }
    }
}
