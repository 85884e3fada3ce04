//! Serving a request: settle, decide, commit.
//!
//! A command is settled first (what is over ends), then judged as a whole, then committed. Judging changes nothing and
//! committing cannot fail, so a refused request leaves no trace. How each command is decided:
//! [`acquire`](super::acquire), [`release`](super::release), [`extend`](super::extend), [`guard`](super::guard).

use super::LockManager;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::request::{Operation, Outcome, PerKey, Refusal, Request, WaitEnd};
use crate::model::step::Step;
use crate::wait::timers::WaitPoll;

impl LockManager {
    /// Settles the request's keys, then serves it: all of it or nothing. What settling ended is among the effects also
    /// when it is refused.
    ///
    /// # Errors
    /// When it cannot be served.
    pub fn serve<K: Keyspace>(&mut self, step: &mut Step<'_, K>, request: &Request) -> Result<Outcome, Refusal> {
        // Serving waiters may open more keys than the request names.
        let count = step.keys.count();
        let in_grace = self.grace.is_some() && self.goes_on_with_grace(step.judged);
        let soonest = self.wait_table.soonest();
        if !self.wait_table.is_empty() {
            self.end_waits_that_are_over(step);
        }
        let owner = &request.owner;
        self.settle_named(step, count, owner);
        let several: PerKey<KeyIndex>;
        let named = match count {
            1 => &[KeyIndex(0)][..],
            _ => {
                several = (0..count).map(KeyIndex).collect();
                &several
            }
        };
        let outcome = match &request.operation {
            operation if !self.admits(operation.min_fence(), step.now.wall) => Err(Refusal::MinFenceAhead),
            Operation::Acquire(operation) if in_grace => self.acquire_in_grace(step, named, (owner, operation)),
            Operation::Acquire(operation) => self.acquire(step, named, (owner, operation)),
            Operation::Release(operation) => self.release(step, named, (owner, operation)),
            Operation::Extend(operation) => self.extend(step, named, (owner, operation)),
            Operation::Guard(operation) => Ok(self.guard(step, (owner, *operation))),
        };
        // What changed nothing has left every index as it is to be.
        if step.effects.is_empty() {
            self.clean_up_unlinked(step.keys);
        } else {
            self.follow(step);
        }
        // Waits and reservations end as well.
        step.effects.needs_rearm |= self.wait_table.soonest() != soonest;
        outcome
    }

    /// Ends waits whose time is up, some of them at least: the timer may ring after this step only. What is over is to
    /// delay nobody, and counts for no limit.
    #[inline(never)]
    fn end_waits_that_are_over<K: Keyspace>(&mut self, step: &mut Step<'_, K>) {
        // The timer does the rest, in slices.
        const AT_ONCE: usize = 16;
        let now = step.now.mono;
        if self.wait_table.soonest().is_none_or(|at| at > now) {
            return;
        }
        for _ in 0..AT_ONCE {
            match self.wait_table.poll_timeouts(now) {
                WaitPoll::Ended(id, answer) => step.effects.wait_ends.push((id, answer)),
                // A request is served, so the node may grant.
                WaitPoll::PlaceOver(id, ..) => {
                    if self.wait_table.end_place(id, true, now) {
                        step.effects.wait_ends.push((id, WaitEnd::TimedOut));
                    }
                }
                WaitPoll::Pending => {}
                WaitPoll::Idle => return,
            }
        }
    }

    /// Settles the first keys of the step, which the request names.
    fn settle_named<K: Keyspace>(&mut self, step: &mut Step<'_, K>, count: usize, owner: &Owner) {
        if count == 1 {
            return self.settle(step, KeyIndex(0), owner);
        }
        for _ in 0..count {
            let before = step.effects.wait_ends.len();
            for key in (0..count).map(KeyIndex) {
                self.settle(step, key, owner);
            }
            // A waiter that left the queue of one key for nothing may have delayed others in another's, which was
            // served before.
            let may_go_on = step.budget.allows(&self.limits.step, 0, self.limits.step.answers);
            if !may_go_on || step.effects.wait_ends[before..].iter().all(|(_, answer)| answer.is_grant()) {
                break;
            }
        }
    }

    /// Ends what is over on a key for the owner that asks, and serves its queue.
    #[inline(always)]
    fn settle<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, owner: &Owner) {
        let before = step.effects.changes.len();
        step.settle(key, Some(owner), self.settling(self.limits.step.holds_ended));
        // Nobody waits for any key.
        if self.wait_table.contended() == 0 {
            return;
        }
        // Else no waiter can be served (W2).
        let is_unsettled = |step: &mut Step<'_, K>| {
            let (db, name) = self.place_of(step, key);
            self.wait_table.is_unsettled(db, &name)
        };
        if step.is_free(key) || step.effects.changes.len() > before || is_unsettled(step) {
            self.wake_waiters_in_step(step, key);
        }
    }

    /// Serves a queue in a client's step. While a run is being granted bit by bit, each such step grants to one waiter
    /// more: there may be many of them before the server turns to other clients.
    pub(super) fn wake_waiters_in_step<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex) {
        let (db, name) = self.place_of(step, key);
        let Some(queue) = self.wait_table.queue(db, &name) else { return };
        let most = if queue.unfinished.is_some() { 1 } else { self.limits.step.answers };
        self.wake_waiters(step, key, most);
    }
}
