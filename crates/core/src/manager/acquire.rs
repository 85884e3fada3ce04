//! Deciding an acquisition. What a requester gets, by what is there:
//!
//! | its own hold | other holders | it asks READ | it asks WRITE |
//! | --- | --- | --- | --- |
//! | none | none | new hold\* | new hold\* |
//! | none | readers | new hold\* | conflict |
//! | none | a writer | conflict | conflict |
//! | reads | none | re-entrant | upgrade |
//! | reads | readers | re-entrant | conflict |
//! | writes, perhaps reads | none (I2) | re-entrant (a downgrade begins so) | re-entrant |
//!
//! SHARE is READ with a limit: the read counts of all holders, with what it takes, must stay within it. Else it is a
//! conflict for an owner that has no hold. A holder is told so, and may not wait for more: no owner holds and waits on
//! one key. A reader gets more shares only while nobody waits.
//!
//! *New hold* and *upgrade* get a new fence; *re-entrant* keeps its fence unless the hold was carried here. \* Only if
//! no waiter delays it ([`crate::wait::order`]). A request that cannot be served waits, if it asked for that.

use super::LockManager;
use super::enqueue::Search;
use super::grant::{GrantContext, grant};
use crate::model::ended_holds::Over;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::request::{Acquire, Cycle, Outcome, PerKey, Refusal, Wait};
use crate::model::step::Step;
use crate::wait::order::{Passed, Requester, Verdict, is_upgrade, judge};

impl LockManager {
    /// Takes all the keys of a request, or lets it wait for them, or takes none.
    pub(super) fn acquire<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
    ) -> Result<Outcome, Refusal> {
        let may_have_place = self.wait_table.places() > 0 || !self.offers.is_empty() || operation.queue.is_some();
        if may_have_place {
            if let Some(outcome) = self.collect(step, named, (owner, operation))? {
                self.confirm_grants(step, named.iter().copied(), owner);
                if named.iter().any(|key| self.shares_wait(step, *key)) {
                    self.note_new_hold(owner);
                }
                return Ok(outcome);
            }
            if let Some(outcome) = self.ask_again(step, named, (owner, operation))? {
                return Ok(outcome);
            }
        }
        if !self.may_have(step, named, (owner, operation))? {
            if operation.wait == Wait::Never && operation.queue.is_none() {
                return Ok(Outcome::Unavailable);
            }
            if operation.share.is_some() && named.iter().any(|key| holds(step, *key, owner)) {
                return Err(Refusal::HoldsShares);
            }
            if let Some(queued) = self.queue_or_pass(step, named, (owner, operation))? {
                return Ok(queued);
            }
        }
        if step.memory_full && !named.iter().all(|key| holds(step, *key, owner)) {
            return Err(Refusal::OutOfMemory);
        }
        let is_contended = !self.wait_table.is_empty();
        let is_new = is_contended
            && named.iter().any(|key| {
                let hold = step.keys.lock(*key).and_then(|lock| lock.holds.get(owner.as_bytes()));
                hold.is_none_or(|hold| is_upgrade(hold, operation.mode)) || self.shares_wait(step, *key)
            });
        let context = GrantContext::new(&mut self.fences, self.epoch, self.limits.promotion_skew);
        let fences = grant(step, named, (owner, operation), context, |given| given.fence)?;
        if is_contended {
            self.clear_reservations(step, named);
            self.confirm_grants(step, named.iter().copied(), owner);
            if is_new {
                self.note_new_hold(owner);
            }
        }
        Ok(Outcome::Granted(fences))
    }

    /// Lets a request wait that cannot be served now. None if it is to be granted after all, before the waiters of the
    /// cycle that it would close.
    #[inline(never)]
    fn queue_or_pass<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        request: (&Owner, &Acquire),
    ) -> Result<Option<Outcome>, Refusal> {
        match self.enqueue(step, named, request, Search::Yes) {
            Err(Refusal::Deadlock(cycle)) if self.may_go_before(step, named, request, Some(&cycle)) == Ok(true) => {
                self.note_passed(step, named);
                Ok(None)
            }
            queued => queued.map(Some),
        }
    }

    /// True if shares of a key are waited for: then a higher count of a holder may keep a waiter waiting.
    fn shares_wait<K: Keyspace>(&self, step: &mut Step<'_, K>, key: KeyIndex) -> bool {
        let (db, name) = self.place_of(step, key);
        self.wait_table.queue(db, &name).is_some_and(|queue| queue.shares().len() > 0)
    }

    /// A request goes before the waiters of these keys to open a cycle.
    pub(super) fn note_passed<K: Keyspace>(&mut self, step: &mut Step<'_, K>, indices: &[KeyIndex]) {
        for key in indices {
            let (db, name) = self.place_of(step, *key);
            self.wait_table.note_passed(db, &name);
        }
    }

    /// Judges if a request can be served at once, on all keys that it names.
    fn may_have<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
    ) -> Result<bool, Refusal> {
        if self.wait_table.contended() > 0 {
            return self.may_go_before(step, named, (owner, operation), None);
        }
        for &key in named {
            if matches!(self.judge_newcomer(step, key, (owner, operation))?, Verdict::Conflict | Verdict::Full) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The same where requests wait; before the waiters of this cycle, if one is given.
    #[inline(never)]
    pub(super) fn may_go_before<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
        cycle: Option<&Cycle>,
    ) -> Result<bool, Refusal> {
        let order = self.order(step);
        // Which of them it upgrades decides which waiters it passes; for a single key that is decided already.
        let mut wanted = PerKey::new();
        // Made when it is first needed: most requests pass no waiter.
        let mut passed = cycle.map(Passed::cycle);
        for &key in named {
            let verdict = self.judge_newcomer(step, key, (owner, operation))?;
            if matches!(verdict, Verdict::Conflict | Verdict::Full) {
                return Ok(false);
            }
            if !matches!(verdict, Verdict::NewHold | Verdict::More) {
                continue;
            }
            let (db, name) = self.place_of(step, key);
            let is_waited_for = self.wait_table.queue(db, &name).is_some();
            if verdict == Verdict::More {
                return Ok(!is_waited_for);
            }
            if is_waited_for {
                if wanted.is_empty() && named.len() > 1 {
                    wanted.extend(named.iter().map(|key| self.wanted_at(step, *key, (owner, operation))));
                }
                let requester = Requester { owner, mode: operation.mode, wanted: &wanted };
                let place = self.wait_table.next_position();
                if order.is_delayed(step.keys, (db, &name), requester, place, passed.get_or_insert_default()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Judges a request by the holds on one of its keys, its own included.
    #[inline(always)]
    fn judge_newcomer<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        (owner, operation): (&Owner, &Acquire),
    ) -> Result<Verdict, Refusal> {
        let (is_unsettled, judged) = (step.is_unsettled(key), step.judged);
        let lock = step.keys.lock(key).map(|lock| &*lock);
        let over = |lock: &Lock| if is_unsettled { Over::on(lock, &self.sessions, judged) } else { Over::default() };
        let verdict = judge(lock, owner, operation, &self.limits, over)?;
        if verdict == Verdict::Reentrant && operation.retry.is_none() && operation.share.is_none() {
            let hold = lock.and_then(|lock| lock.holds.get(owner.as_bytes()));
            if hold.is_some_and(|hold| hold.count(operation.mode) == u32::MAX) {
                return Err(Refusal::TooManyCounts);
            }
        }
        Ok(verdict)
    }
}

/// True if an owner holds this key.
fn holds<K: Keyspace>(step: &mut Step<'_, K>, key: KeyIndex, owner: &Owner) -> bool {
    step.keys.lock(key).is_some_and(|lock| lock.holds.get(owner.as_bytes()).is_some())
}
