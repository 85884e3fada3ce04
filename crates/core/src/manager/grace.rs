//! Grace: for a while after a start or a promotion this node grants nothing, since it may have forgotten what was
//! granted before.
//!
//! It grants nothing to an owner that seems to hold, either: its release and a grant to another owner may be among what
//! was forgotten. All else goes on. Requests that wait are served when the grace is over.

use super::LockManager;
use super::enqueue::Search;
use crate::model::grace::Grace;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::request::{Acquire, Begun, Outcome, Refusal, Wait, WaiterId};
use crate::model::step::Step;
use crate::model::time::{Millis, Timestamp};
use crate::wait::sweep::SweepKind;
use alloc::vec::Vec;

impl LockManager {
    /// A grace begins, also where one runs: this node has started, or has become the primary. How long it is; None if
    /// it is configured to have none.
    pub fn begin_grace(&mut self, now: Timestamp) -> Option<Millis> {
        let length = Some(self.limits.grace).filter(|length| *length > Millis(0))?;
        let in_cycles = self.grace.take().map_or_else(Vec::new, |grace| grace.in_cycles);
        self.grace = Some(Grace { begun: now, in_cycles });
        self.wait_table.grace_end = now + length;
        Some(length)
    }

    /// A grace is so long from now on, also the one that runs. One that is over does not begin again.
    pub fn set_grace(&mut self, length: Millis, now: Timestamp) {
        self.end_grace(now);
        self.limits.grace = length;
        if let Some(grace) = &self.grace {
            self.wait_table.grace_end = (grace.begun + length).max(now);
            self.end_grace(now);
        }
    }

    /// For how long nothing is granted; None if no grace runs.
    #[must_use]
    pub fn grace_left(&self, now: Timestamp) -> Option<Millis> {
        self.is_in_grace(now).then(|| self.wait_table.grace_end.left(now))
    }

    /// True if nothing is granted now.
    pub(super) fn is_in_grace(&self, now: Timestamp) -> bool {
        self.grace.is_some() && now < self.wait_table.grace_end
    }

    /// When the grace that runs is over.
    pub(super) fn grace_deadline(&self) -> Option<Timestamp> {
        self.grace.as_ref().map(|_| self.wait_table.grace_end)
    }

    /// Ends a grace whose time is over: all queues are to be served.
    pub fn end_grace(&mut self, now: Timestamp) {
        if self.is_in_grace(now) {
            return;
        }
        let Some(grace) = self.grace.take() else { return };
        for id in grace.in_cycles {
            self.check_later(id);
        }
        self.sweep(None, SweepKind { checks: true, clears: false });
    }

    /// True if a grace that has begun goes on. If it does not, it ends here.
    #[cold]
    pub(super) fn goes_on_with_grace(&mut self, now: Timestamp) -> bool {
        self.end_grace(now);
        self.is_in_grace(now)
    }

    /// Returns the answer to a request that does not get the lock now: this outcome, which its client sees as null. In
    /// a grace it is refused instead: a client takes null for the word that another owner holds the lock. The rest of
    /// the grace counts from the present, and may be nothing.
    ///
    /// # Errors
    /// During a grace, by the time by which the request is judged.
    pub fn unless_grace(&self, outcome: Outcome, now: Timestamp, judged: Timestamp) -> Result<Outcome, Refusal> {
        match self.is_in_grace(judged) {
            true => Err(Refusal::Grace(self.wait_table.grace_end.left(now))),
            false => Ok(outcome),
        }
    }

    /// Lets a request wait for the end of the grace, or refuses it.
    #[cold]
    pub(super) fn acquire_in_grace<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
    ) -> Result<Outcome, Refusal> {
        // A reader that asks to write can have no place.
        if operation.queue.is_some() && named.iter().any(|key| self.wanted_at(step, *key, (owner, operation)).upgrade) {
            return self.unless_grace(Outcome::Unavailable, step.now.mono, step.judged);
        }
        match self.ask_again(step, named, (owner, operation))? {
            Some(Outcome::Unavailable) => return self.unless_grace(Outcome::Unavailable, step.now.mono, step.judged),
            Some(outcome) => return Ok(outcome),
            None => {}
        }
        if operation.wait == Wait::Never && operation.queue.is_none() {
            return self.unless_grace(Outcome::Unavailable, step.now.mono, step.judged);
        }
        match self.enqueue(step, named, (owner, operation), Search::Yes) {
            Err(Refusal::Deadlock(cycle))
                if self.may_go_before(step, named, (owner, operation), Some(&cycle)) == Ok(true) =>
            {
                let queued = self.enqueue(step, named, (owner, operation), Search::No)?;
                if let Outcome::Begun(Begun::New(id) | Begun::Place(id)) = queued {
                    self.note_cycle_in_grace(id);
                }
                Ok(queued)
            }
            queued => queued,
        }
    }

    /// A waiter is in a cycle that ends when the grace does.
    pub(super) fn note_cycle_in_grace(&mut self, id: WaiterId) {
        if let Some(grace) = &mut self.grace {
            grace.in_cycles.push(id);
        }
    }
}
