//! Serving a request: settle, decide, commit.
//!
//! A command is settled first (what is over ends), then judged as a whole, then committed; judging changes nothing and
//! committing cannot fail, so a refused request leaves no trace. What an asker gets, by what is there:
//!
//! | asker's hold | other holders | asks READ | asks WRITE |
//! | --- | --- | --- | --- |
//! | none | none | new hold\* | new hold\* |
//! | none | readers | new hold\* | held |
//! | none | a writer | held | held |
//! | reads | none | again | upgrade |
//! | reads | readers | again | held |
//! | writes, perhaps reads | none (I2) | again (a downgrade begins so) | again |
//!
//! *New hold* and *upgrade* get a new fence; *again* keeps its fence unless the hold was carried here. \* Only if
//! nobody in line delays it ([`crate::lock::wait::order`]); whoever cannot be served waits, if it asked for that.

use super::LockManager;
use super::grant::{GrantContext, grant};
use super::wake::wanted_at;
use crate::lock::model::effect::{Cause, Effects, commit_end, commit_hold, settle};
use crate::lock::model::fence::Fence;
use crate::lock::model::hold::{Hold, Mode};
use crate::lock::model::key::{KeyIndex, KeyName};
use crate::lock::model::keyspace::{Keyspace, Place};
use crate::lock::model::limits::GRANTS_PER_BATCH;
use crate::lock::model::lock::Lock;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{
    Acquire, Cycle, Extend, Operation, Outcome, PerKey, Refusal, Release, Request, Wait,
};
use crate::lock::model::time::{Now, Timestamp};
use crate::lock::wait::order::{Passed, Requester, Verdict, is_upgrade, judge};
use crate::lock::wait::queue::WaitQueue;

impl LockManager {
    /// Settles the request's keys, then serves it: all of it or nothing. What settling ended is among the effects also
    /// when it is refused.
    ///
    /// # Errors
    /// When it cannot be served.
    pub fn serve<K: Keyspace>(
        &mut self,
        keys: &mut K,
        request: &Request,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Outcome, Refusal> {
        // Serving those who wait may open more keys than the request names.
        let count = keys.count();
        let named = || (0..count).map(KeyIndex);
        for _ in named() {
            let before = effects.wait_ends.len();
            for key in named() {
                self.settle(keys, key, now, effects);
            }
            // Who left the line of one key for nothing may have delayed others in another's, which was looked at
            // before.
            if count == 1 || effects.wait_ends[before..].iter().all(|(_, answer)| answer.is_grant()) {
                break;
            }
        }
        let outcome = match &request.operation {
            Operation::Acquire(operation) => {
                let named: PerKey<KeyIndex> = named().collect();
                self.acquire(keys, &named, (&request.owner, operation), now, effects)
            }
            Operation::Release(operation) => {
                let before = effects.changes.len();
                let released = release(keys, named(), request, operation, effects);
                // What was given back goes to the next in line, in the same step.
                if effects.changes.len() > before {
                    for key in named() {
                        self.wake_waiters_in_step(keys, key, now, effects);
                    }
                }
                released
            }
            Operation::Extend(operation) => {
                let extended = named().map(|key| extend(keys, key, &request.owner, operation, now.mono, effects));
                let extended: PerKey<Option<Fence>> = extended.collect();
                // Who names a fence that it does not have, or a key that it does not hold, has not learnt of a grant.
                let done = named().zip(&extended).filter(|(_, fence)| fence.is_some()).map(|(key, _)| key);
                self.confirm_grants(keys, done, &request.owner);
                Ok(Outcome::Extended(extended))
            }
        };
        // What changed nothing has left every index as it is to be.
        if effects.is_empty() {
            self.clean_up_unlinked(keys);
        } else {
            self.follow(keys, effects, now.mono);
        }
        // While somebody waits, much else has its time: the ends of waits, of what is kept for one.
        effects.needs_rearm |= !self.wait_table.is_empty();
        outcome
    }

    /// Ends what is over on a key, and serves its line.
    fn settle<K: Keyspace>(&mut self, keys: &mut K, key: KeyIndex, now: Now, effects: &mut Effects) {
        let before = effects.changes.len();
        settle(keys, key, &self.sessions, now.mono, effects);
        let Place { db, name, lock } = keys.place(key);
        let free = lock.is_none_or(|lock| lock.is_free());
        // Else nobody in it can be served (W2).
        if free
            || effects.changes.len() > before
            || self.wait_table.queue(db, name).is_some_and(WaitQueue::is_unsettled)
        {
            self.wake_waiters_in_step(keys, key, now, effects);
        }
    }

    /// Looks at a line in a client's step. While a run is being let in, each such step lets in one more, no more: there
    /// may be many of them before the server turns to other clients.
    fn wake_waiters_in_step<K: Keyspace>(&mut self, keys: &mut K, key: KeyIndex, now: Now, effects: &mut Effects) {
        let Place { db, name, .. } = keys.place(key);
        let Some(queue) = self.wait_table.queue(db, name) else { return };
        let most = if queue.batch_unfinished { 1 } else { GRANTS_PER_BATCH };
        self.wake_waiters(keys, key, now, most, effects);
    }

    fn acquire<K: Keyspace>(
        &mut self,
        keys: &mut K,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
        now: Now,
        effects: &mut Effects,
    ) -> Result<Outcome, Refusal> {
        if !self.may_have(keys, named, (owner, operation), now.mono)? {
            if operation.wait == Wait::Never {
                return Ok(Outcome::Unavailable);
            }
            if let Some(queued) = self.queue_or_pass(keys, named, (owner, operation), now.mono)? {
                return Ok(queued);
            }
        }
        let mut is_new = false;
        if !self.wait_table.is_empty() {
            is_new = named.iter().any(|key| {
                let hold = keys.lock(*key).and_then(|lock| lock.holds.get(owner.as_bytes()));
                hold.is_none_or(|hold| is_upgrade(hold, operation.mode))
            });
        }
        let context = GrantContext { fences: &mut self.fences, epoch: self.epoch, skew: self.limits.promotion_skew };
        let given = grant(keys, named, (owner, operation), context, now, effects)?;
        self.clear_reservations(keys, named);
        self.confirm_grants(keys, named.iter().copied(), owner);
        if is_new {
            // What else it waits for, it may have before somebody now whom it keeps waiting.
            self.wait_table.mark_ready_for(owner);
            self.check_for_new_hold(owner);
        }
        Ok(Outcome::Granted(given.into_iter().map(|given| given.fence).collect()))
    }

    /// Lets a request wait that cannot be served now. None if it is to be let in after all, before the waiters of the
    /// circle that it would close.
    #[inline(never)]
    fn queue_or_pass<K: Keyspace>(
        &mut self,
        keys: &mut K,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
        now: Timestamp,
    ) -> Result<Option<Outcome>, Refusal> {
        match self.enqueue(keys, named, (owner, operation), now) {
            Err(Refusal::Deadlock(cycle))
                if self.may_go_before(keys, named, (owner, operation), Some(&cycle), now) == Ok(true) =>
            {
                self.note_passed(keys, named);
                Ok(None)
            }
            queued => queued.map(Some),
        }
    }

    /// A request goes before the waiters of these keys to open a circle.
    pub(super) fn note_passed<K: Keyspace>(&mut self, keys: &mut K, indices: &[KeyIndex]) {
        for key in indices {
            let Place { db, name, .. } = keys.place(*key);
            self.wait_table.note_passed(db, name);
        }
    }

    /// Whether a request can be served at once, on all keys that it names.
    fn may_have<K: Keyspace>(
        &self,
        keys: &mut K,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
        now: Timestamp,
    ) -> Result<bool, Refusal> {
        if self.wait_table.contended() > 0 {
            return self.may_go_before(keys, named, (owner, operation), None, now);
        }
        for &key in named {
            if self.judge_newcomer(keys, key, (owner, operation))? == Verdict::Conflict {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The same where somebody waits; before the waiters of this circle, if one is given.
    #[inline(never)]
    fn may_go_before<K: Keyspace>(
        &self,
        keys: &mut K,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
        cycle: Option<&Cycle>,
        now: Timestamp,
    ) -> Result<bool, Refusal> {
        // Which of them it upgrades decides whom it passes; a single key has nothing else to decide.
        let mut wanted = PerKey::new();
        // Made when it is first needed: most requests pass nobody.
        let mut passed = cycle.map(Passed::cycle);
        for &key in named {
            let verdict = self.judge_newcomer(keys, key, (owner, operation))?;
            let Place { db, name, .. } = keys.place(key);
            match verdict {
                Verdict::Conflict => return Ok(false),
                Verdict::NewHold if self.wait_table.queue(db, name).is_some() => {
                    let name = KeyName::from_slice(name);
                    if wanted.is_empty() && named.len() > 1 {
                        wanted.extend(named.iter().map(|key| wanted_at(keys, *key, (owner, operation))));
                    }
                    let requester = Requester { owner, mode: operation.mode, wanted: &wanted };
                    let (order, place) = (self.order(now), self.wait_table.next_position());
                    if order.is_delayed(keys, (db, &name), requester, place, passed.get_or_insert_default()) {
                        return Ok(false);
                    }
                }
                Verdict::NewHold | Verdict::Upgrade | Verdict::Reentrant => {}
            }
        }
        Ok(true)
    }

    /// Judges a request by the holds on one of its keys, its own included.
    fn judge_newcomer<K: Keyspace>(
        &self,
        keys: &mut K,
        key: KeyIndex,
        (owner, operation): (&Owner, &Acquire),
    ) -> Result<Verdict, Refusal> {
        let lock = keys.lock(key).map(|lock| &*lock);
        let verdict = judge(lock, owner, operation.mode, &self.limits)?;
        if verdict == Verdict::Reentrant && operation.retry.is_none() {
            let hold = lock.and_then(|lock| lock.holds.get(owner.as_bytes()));
            if hold.is_some_and(|hold| hold.count(operation.mode) == u32::MAX) {
                return Err(Refusal::TooManyCounts);
            }
        }
        Ok(verdict)
    }
}

fn release<K: Keyspace>(
    keys: &mut K,
    named: impl Iterator<Item = KeyIndex> + Clone,
    request: &Request,
    operation: &Release,
    effects: &mut Effects,
) -> Result<Outcome, Refusal> {
    let owner = &request.owner;
    let mut holds: PerKey<Option<Hold>> = PerKey::new();
    for key in named.clone() {
        let hold = keys.lock(key).and_then(|lock| held(lock, owner, operation.fence)).cloned();
        if operation.is_ambiguous() && hold.as_ref().is_some_and(|hold| hold.reads > 0 && hold.writes > 0) {
            return Err(Refusal::AmbiguousRelease);
        }
        holds.push(hold);
    }
    let left = named.zip(holds).map(|(key, hold)| {
        let (mut hold, lock) = (hold?, keys.lock(key)?);
        let before = hold.total();
        for mode in [Mode::Read, Mode::Write] {
            if operation.mode.is_none_or(|named| named == mode) {
                hold.set_count(mode, operation.amount.left_of(hold.count(mode)));
            }
        }
        let total = hold.total();
        if total == 0 {
            commit_end(lock, key, Cause::Release, owner, effects);
        } else if total < before {
            commit_hold(lock, key, Cause::Release, owner, hold, effects);
        }
        Some(total)
    });
    Ok(Outcome::Released(left.collect()))
}

fn extend<K: Keyspace>(
    keys: &mut K,
    key: KeyIndex,
    owner: &Owner,
    operation: &Extend,
    now: Timestamp,
    effects: &mut Effects,
) -> Option<Fence> {
    let lock = keys.lock(key)?;
    let mut hold = held(lock, owner, operation.fence)?.clone();
    hold.deadline = now + operation.lease;
    hold.rebind(operation.session);
    let fence = hold.fence;
    commit_hold(lock, key, Cause::Extend, owner, hold, effects);
    Some(fence)
}

/// The owner's hold, if it has the fence that was named.
fn held<'a>(lock: &'a Lock, owner: &Owner, fence: Option<Fence>) -> Option<&'a Hold> {
    lock.holds.get(owner.as_bytes()).filter(|hold| fence.is_none_or(|fence| fence == hold.fence))
}
