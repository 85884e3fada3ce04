//! What can be done for a waiter, and doing it: judge all its keys, grant it what it may have, or end its wait.
//!
//! Which waiters are tried, and in which order, is a matter of [`super::scan`].

use super::LockManager;
use super::grant::{GrantContext, Offer, grant};
use crate::model::ended_holds::Over;
use crate::model::hold::Session;
use crate::model::key::KeyIndex;
use crate::model::keyspace::Keyspace;
use crate::model::offers::OfferId;
use crate::model::owner::Owner;
use crate::model::request::{Cycle, PerKey, Refusal, WaitEnd, WaiterId};
use crate::model::step::Step;
use crate::model::time::{Millis, Timestamp};
use crate::wait::order::{Order, Passed, Requester, Verdict, judge};
use crate::wait::waiter::{GrantUndo, Waiter};

/// The result of judging a waiter.
pub(super) enum Attempt {
    /// Grant it these keys.
    Grant(PerKey<KeyIndex>),
    /// It has to wait, for this one of its keys or for more.
    Blocked(usize),
    /// Answer it so, and forget it.
    Reject(WaitEnd),
}

impl LockManager {
    /// The order of service in a step.
    pub(crate) fn order<K>(&self, step: &Step<'_, K>) -> Order<'_> {
        let LockManager { wait_table, sessions, .. } = self;
        Order { wait_table, sessions, now: step.now.mono, judged: step.judged }
    }

    /// Judges a waiter. Given a cycle, it may pass the waiters of that cycle.
    pub(super) fn attempt<K: Keyspace>(&self, step: &mut Step<'_, K>, id: WaiterId, cycle: Option<&Cycle>) -> Attempt {
        let Some(waiter) = self.wait_table.waiter(id) else { return Attempt::Blocked(0) };
        if waiter.until.is_some_and(|until| until <= step.now.mono) {
            return Attempt::Reject(WaitEnd::TimedOut);
        }
        if let Err(answer) = self.check_upgrades(step, waiter) {
            return Attempt::Reject(answer);
        }
        match self.judge_keys(step, waiter) {
            Err(attempt) => attempt,
            Ok(verdicts) => match self.delayed_at(step, waiter, &verdicts, cycle) {
                Some(at) if verdicts[at].1 == Verdict::More => Attempt::Reject(WaitEnd::Refused(Refusal::HoldsShares)),
                Some(at) => Attempt::Blocked(at),
                // The owner has come to read what it asked to write: that cannot be offered.
                None if waiter.is_detached() && verdicts.iter().any(|(_, found)| *found == Verdict::Upgrade) => {
                    Attempt::Reject(WaitEnd::Left)
                }
                None => Attempt::Grant(verdicts.into_iter().map(|(key, _)| key).collect()),
            },
        }
    }

    /// Checks that a waiter still holds what it upgrades. That comes before any key is judged: a waiter that lost a
    /// hold is told so, though another key blocks it as well.
    fn check_upgrades<K: Keyspace>(&self, step: &mut Step<'_, K>, waiter: &Waiter) -> Result<(), WaitEnd> {
        for wanted in waiter.keys.iter().filter(|wanted| wanted.upgrade) {
            let key = step.open(&wanted.name)?;
            step.settle(key, Some(&waiter.owner), self.settling(self.limits.step.holds_ended));
            step.budget.judge(wanted.name.cost());
            if step.keys.lock(key).is_none_or(|lock| lock.holds.get(waiter.owner.as_bytes()).is_none()) {
                return Err(WaitEnd::HoldLost);
            }
        }
        Ok(())
    }

    /// Opens the keys of a waiter, and judges it by their holds.
    fn judge_keys<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        waiter: &Waiter,
    ) -> Result<PerKey<(KeyIndex, Verdict)>, Attempt> {
        // The key that blocked it last time blocks it again more often than not: then no other need be opened.
        let blocked_on = waiter.is_many().then(|| waiter.blocked_on());
        let mut verdicts: PerKey<(KeyIndex, Verdict)> = PerKey::new();
        for (nth, at) in blocked_on.into_iter().chain(0..waiter.keys.len()).enumerate() {
            let key = step.open(&waiter.keys[at].name).map_err(Attempt::Reject)?;
            step.settle(key, Some(&waiter.owner), self.settling(self.limits.step.holds_ended));
            step.budget.judge(waiter.keys[at].name.cost());
            let lock = step.keys.lock(key);
            if let Some(end) = LockManager::end_of_place(waiter, lock.as_deref()) {
                return Err(Attempt::Reject(end));
            }
            // What is left on an unsettled key counts: its queue is served again when that has ended.
            match judge(lock.as_deref(), &waiter.owner, &waiter.operation, &self.limits, |_| Over::default()) {
                // It has come to hold the key in another way, and is answered as any holder is.
                Ok(Verdict::Full) => return Err(Attempt::Reject(WaitEnd::Refused(Refusal::HoldsShares))),
                // Too many holders: one of them will leave.
                Ok(Verdict::Conflict) | Err(_) => return Err(Attempt::Blocked(at)),
                Ok(_) if nth == 0 && blocked_on.is_some() => {}
                Ok(verdict) => verdicts.push((key, verdict)),
            }
        }
        Ok(verdicts)
    }

    /// The first of a waiter's keys where a waiter before it delays it.
    fn delayed_at<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        waiter: &Waiter,
        verdicts: &[(KeyIndex, Verdict)],
        cycle: Option<&Cycle>,
    ) -> Option<usize> {
        let order = self.order(step);
        let mut passed = cycle.map(Passed::cycle);
        let delayed_at = (0..verdicts.len()).find(|at| {
            let wanted = &waiter.keys[*at];
            let (key, position) = ((waiter.db, &wanted.name), waiter.position_at(wanted));
            let verdict = verdicts[*at].1;
            if !matches!(verdict, Verdict::NewHold | Verdict::More) {
                return false;
            }
            let queue = self.wait_table.queue(key.0, key.1);
            if queue.and_then(|queue| queue.next(None)).is_none_or(|(first, _)| first >= position) {
                return false;
            }
            let passed = passed.get_or_insert_default();
            // A holder gets more only where nobody waits before it.
            verdict == Verdict::More || order.is_delayed(step.keys, key, Requester::of(waiter), position, passed)
        });
        step.budget.judge(passed.map_or(0, |passed| passed.cost()));
        delayed_at
    }

    pub(super) fn grant_to_waiter<K: Keyspace>(&mut self, step: &mut Step<'_, K>, indices: &[KeyIndex], id: WaiterId) {
        let Some(waiter) = self.wait_table.waiter(id) else { return };
        let owner = waiter.owner.clone();
        // No client is there to receive it: the owner collects it when it asks again.
        let (until, session) = self.offered_until(waiter, step.now.mono);
        let offer = until.map(|until| Offer { id: self.offers.next_id(), until, session });
        let context =
            GrantContext { offer, ..GrantContext::new(&mut self.fences, self.epoch, self.limits.promotion_skew) };
        match (grant(step, indices, (&owner, &waiter.operation), context, |given| given), offer) {
            (Ok(given), Some(offer)) => self.note_offer(step, id, (offer.id, &given)),
            (Ok(given), None) => self.note_grant(step, id, indices, given),
            (Err(refusal), _) => self.end_wait(step, id, WaitEnd::Refused(refusal)),
        }
        self.note_new_hold(&owner);
    }

    /// Until when the owner of a waiter may collect a grant that is made now, and the session that binds it to the
    /// connection over which the owner waits. None if its client receives the grant.
    fn offered_until(&self, waiter: &Waiter, now: Timestamp) -> (Option<Timestamp>, Option<Session>) {
        let (until, away_max) = (waiter.offered_until(now), self.limits.away_max);
        match self.wait_table.connection_of(waiter).filter(|_| away_max > Millis(0)) {
            None => (until, None),
            Some((client, None)) => (until, Some(self.session_of(client))),
            Some((_, Some(closed_at))) => (until.map(|until| until.min(closed_at + away_max)), None),
        }
    }

    /// The session by which an offer ends with the connection of this client.
    pub(super) fn session_of(&self, client: u64) -> Session {
        Session { connection: self.sessions.connection(client), grace: self.limits.away_max }
    }

    /// A waiter was granted these keys, and its client is to be told.
    fn note_grant<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        id: WaiterId,
        indices: &[KeyIndex],
        given: PerKey<GrantUndo>,
    ) {
        let fences = given.iter().map(|given| given.fence).collect();
        if given.iter().any(|given| given.prior.is_some())
            && let Some(owner) = self.wait_table.waiter(id).map(|waiter| waiter.owner.clone())
        {
            self.note_new_fences(step, indices, &owner, &given);
        }
        self.wait_table.granted(id, given);
        for (connection, fence) in self.wait_table.waiter(id).into_iter().flat_map(Waiter::newly_bound) {
            self.sessions.bind_tentatively(connection, fence);
        }
        step.effects.wait_ends.push((id, WaitEnd::Granted(fences)));
    }

    /// A place was granted these keys, and no client waits there: it is an offer.
    fn note_offer<K>(&mut self, step: &mut Step<'_, K>, id: WaiterId, (offer, given): (OfferId, &[GrantUndo])) {
        let Some(waiter) = self.wait_table.waiter(id) else { return };
        let keys = waiter.keys.iter().map(|key| key.name.clone());
        let keys = keys.zip(given).map(|(name, given)| (name, given.prior_fence().is_some()));
        let limit = waiter.operation.share.map(|share| share.limit);
        let is_made = self.offers.made(offer, waiter.db, limit, keys);
        step.effects.tell(self.wait_table.message(id));
        let end = if is_made { WaitEnd::Offered { since: waiter.since } } else { WaitEnd::Left };
        // What its owner held before keeps nobody waiting who was not waiting already.
        self.wait_table.forget(id, is_made);
        step.effects.wait_ends.push((id, end));
    }

    /// Tells earlier grants of this owner, which may be rolled back still, of the fences that their holds have now.
    fn note_new_fences<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        indices: &[KeyIndex],
        owner: &Owner,
        given: &[GrantUndo],
    ) {
        for (key, given) in indices.iter().zip(given) {
            if let Some(old) = given.prior_fence().filter(|old| *old != given.fence) {
                let (db, name) = self.place_of(step, *key);
                self.wait_table.note_new_fence((db, &name), owner, old, given.fence);
            }
        }
    }

    /// Ends a wait with this answer. A place goes on without its client when that has waited long enough. The owner of
    /// a place that has no client and ends before its time is told.
    pub(super) fn end_wait<K>(&mut self, step: &mut Step<'_, K>, id: WaiterId, answer: WaitEnd) {
        let answer = match answer {
            WaitEnd::TimedOut => self.wait_table.time_out(id, step.now.mono),
            answer => {
                step.effects.tell(self.wait_table.message(id));
                self.wait_table.remove(id);
                answer
            }
        };
        step.effects.wait_ends.push((id, answer));
    }

    /// An owner has a new hold. Where it waits, it may go now before waiters that it blocks; and it may be in a cycle.
    pub(super) fn note_new_hold(&mut self, owner: &Owner) {
        if self.wait_table.waiting_of(owner).next().is_some() {
            self.wait_table.mark_ready_for(owner, self.limits.step.queues_marked);
            self.check_for_new_hold(owner);
        }
    }

    /// Keys were granted: they are reserved no more.
    pub(crate) fn clear_reservations<K: Keyspace>(&mut self, step: &mut Step<'_, K>, indices: &[KeyIndex]) {
        for key in indices {
            let (db, name) = self.place_of(step, *key);
            self.wait_table.clear_reservation(db, &name);
        }
    }

    /// An owner took or extended what it holds on these keys: it knows what it was granted before.
    pub(crate) fn confirm_grants<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        indices: impl Iterator<Item = KeyIndex>,
        owner: &Owner,
    ) {
        if self.wait_table.has_granted(owner) {
            let (db, names) = self.names_of(step, indices);
            self.wait_table.confirm(db, &names, owner);
        }
    }
}
