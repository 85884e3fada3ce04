//! Waking waiters: scan the wait queue of a key, and grant to each waiter that can be served.
//!
//! A queue is scanned in every step on its key, and in the background ([`super::jobs`]) after anything else that may
//! have made room. A scan goes in order. Behind a blocked waiter for this key alone, only those are tried that may
//! bypass it: their owners got something since they came, or wait elsewhere too. Where a grant replaces an offer that
//! excluded more, the scan begins anew: else those behind would take the room before the waiters that were blocked.

use super::LockManager;
use super::grant::{GrantContext, grant};
use crate::lock::model::hold::Mode;
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::offers::OfferId;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{Cycle, PerKey, Refusal, WaitEnd, WaiterId};
use crate::lock::model::settle::Over;
use crate::lock::model::step::{Savepoint, Step};
use crate::lock::wait::order::{Order, Passed, Requester, Verdict, judge};
use crate::lock::wait::queue::Position;
use crate::lock::wait::waiter::{GrantUndo, Waiter};
use alloc::vec::Vec;

/// What can be done for a waiter.
pub(super) enum Attempt {
    /// Grant it these keys.
    Grant(PerKey<KeyIndex>),
    /// It has to wait, for this one of its keys or for more.
    Blocked(usize),
    /// Answer it so, and forget it.
    Reject(WaitEnd),
}

/// A scan of the wait queue of a key.
struct Scan {
    key: KeyIndex,
    db: Db,
    name: KeyName,
    /// The position of the last waiter that was blocked.
    behind: Option<Position>,
    /// Whether only waiters that may bypass are tried from now on.
    bypassing_only: bool,
    /// Blocked waiters for several keys, before the first blocked waiter for this key alone.
    many: Vec<WaiterId>,
    /// Whether a waiter was granted its keys: then this one is settled, and may be held to write.
    granted: bool,
    /// Whether the scan ended before the queue did.
    unfinished: bool,
}

impl Scan {
    fn new(key: KeyIndex, db: Db, name: KeyName) -> Scan {
        Scan { key, db, name, behind: None, bypassing_only: false, many: Vec::new(), granted: false, unfinished: false }
    }

    /// Begins anew at the head: waiters that were blocked may be served now.
    fn restart(&mut self) {
        (self.behind, self.bypassing_only) = (None, false);
        self.many.clear();
    }
}

impl LockManager {
    /// The order of service in a step.
    pub(crate) fn order<K>(&self, step: &Step<'_, K>) -> Order<'_> {
        let LockManager { wait_table, sessions, .. } = self;
        Order { wait_table, sessions, now: step.now.mono, judged: step.judged }
    }

    /// Serves the wait queue of a key, as far as it can be served and the budget of the step allows: at most so many
    /// waiters. During a grace none: at its end all queues are served.
    pub(crate) fn wake_waiters<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, most: usize) {
        if self.wait_table.contended() == 0 || self.is_in_grace(step.judged) {
            return;
        }
        let (db, name) = self.place_of(step, key);
        let mut scan = Scan::new(key, db, name);
        let Some(is_quiet) = self.begin_scan(step, &scan) else { return };
        let is_first = step.budget.is_whole();
        while let Some((position, id)) = self.next_in(&scan) {
            if step.budget.is_spent(is_first) {
                // A quiet queue needs no further scan: a waiter whose time is up is answered by its timer.
                scan.unfinished = !is_quiet;
                break;
            }
            if scan.granted && self.meets_writer(step, &scan, id) {
                self.pass_by(step, &mut scan, (position, id), 0);
                continue;
            }
            let before = step.savepoint();
            let attempt = self.attempt(step, id, None);
            self.mark_ready_after(step, Some(key), before);
            if let Attempt::Blocked(at) = attempt {
                step.close_unchanged(before);
                self.pass_by(step, &mut scan, (position, id), at);
                continue;
            }
            let granted = if let Attempt::Grant(indices) = &attempt { indices.len() } else { 0 };
            if !step.budget.allows(granted, most) {
                step.close_unchanged(before);
                scan.unfinished = true;
                break;
            }
            step.budget.answer(granted);
            match attempt {
                Attempt::Grant(indices) => {
                    self.grant_to_waiter(step, &indices, id);
                    scan.granted = true;
                }
                Attempt::Reject(answer) => self.end_wait(step, id, answer),
                Attempt::Blocked(_) => {}
            }
            if step.is_weaker_since(before, key) {
                scan.restart();
            }
        }
        self.update_reservation(step, &scan);
    }

    /// Prepares a queue for a scan; None if there is none. Whether it is quiet: nothing has changed since it was
    /// scanned last, unless a waiter's time is up.
    fn begin_scan<K: Keyspace>(&mut self, step: &mut Step<'_, K>, scan: &Scan) -> Option<bool> {
        let queue = self.wait_table.queue_mut(scan.db, &scan.name)?;
        let is_quiet = queue.is_quiet(step.now.mono);
        // A scan goes by the order, so no waiter is passed by those behind it.
        queue.batch_unfinished = false;
        if queue.reservation.is_none() || step.is_free(scan.key) {
            return Some(is_quiet);
        }
        // Taken also by a lock that came from elsewhere, of which the queue was not told.
        self.wait_table.clear_reservation(scan.db, &scan.name);
        Some(false)
    }

    /// Whether another owner has been granted the scanned key to write, and the waiter waits for this key alone. Most
    /// scans end so, and it is quicker to see than an [`Attempt`].
    fn meets_writer<K: Keyspace>(&self, step: &mut Step<'_, K>, scan: &Scan, id: WaiterId) -> bool {
        let (Some(waiter), Some(lock)) = (self.wait_table.waiter(id), step.keys.lock(scan.key)) else { return false };
        lock.mode() == Some(Mode::Write)
            && matches!(&waiter.keys[..], [key] if !key.upgrade)
            && waiter.until.is_none_or(|until| until > step.now.mono)
            && lock.holds.get(waiter.owner.as_bytes()).is_none()
    }

    /// The next waiter to be tried.
    fn next_in(&self, scan: &Scan) -> Option<(Position, WaiterId)> {
        let queue = self.wait_table.queue(scan.db, &scan.name)?;
        match scan.behind {
            Some(position) if scan.bypassing_only => queue.next_bypassing(position),
            behind => queue.next(behind),
        }
    }

    /// Goes on behind a waiter that is blocked by this one of its keys.
    fn pass_by<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        scan: &mut Scan,
        (position, id): (Position, WaiterId),
        at: usize,
    ) {
        scan.behind = Some(position);
        self.wait_table.note_blocked_on(id, at);
        let Some(waiter) = self.wait_table.waiter(id) else { return };
        if waiter.is_many() {
            scan.many.push(id);
        } else if !scan.bypassing_only {
            scan.bypassing_only = true;
            let reads = waiter.operation.mode == Mode::Read;
            if reads && step.keys.lock(scan.key).is_none_or(|lock| lock.mode() != Some(Mode::Write)) {
                self.allow_holders_to_bypass(step, &core::mem::take(&mut scan.many));
            }
        }
    }

    /// A reader is delayed by one of these waiters for several keys, and by nothing else. Readers behind it whose
    /// owners hold one of those keys are not delayed.
    fn allow_holders_to_bypass<K: Keyspace>(&mut self, step: &mut Step<'_, K>, many: &[WaiterId]) {
        let mut holders = Vec::new();
        for waiter in many.iter().filter_map(|id| self.wait_table.waiter(*id)) {
            for wanted in &waiter.keys {
                step.keys.peek(waiter.db, &wanted.name, |lock| holders.extend(self.wait_table.waiting_holders(lock)));
            }
        }
        for owner in holders {
            self.wait_table.allow_bypass(&owner);
        }
    }

    /// Marks the queues of keys other than the scanned one as ready where holds have changed since then.
    pub(super) fn mark_ready_after<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        scanned: Option<KeyIndex>,
        since: Savepoint,
    ) {
        let changed = step.effects.changes[since.changes..].iter().map(|change| change.key);
        let changed: PerKey<KeyIndex> = changed.filter(|key| Some(*key) != scanned).collect();
        for key in &changed {
            let (db, name) = self.place_of(step, *key);
            self.wait_table.mark_ready(db, &name);
        }
    }

    /// After a scan: a free key is reserved for the first waiter that is left, which waits for other keys too.
    fn update_reservation<K: Keyspace>(&mut self, step: &mut Step<'_, K>, scan: &Scan) {
        let free = step.is_free(scan.key);
        let Some(queue) = self.wait_table.queue_mut(scan.db, &scan.name) else { return };
        queue.batch_unfinished = scan.unfinished;
        let is_reserved = queue.reservation.is_some();
        if scan.unfinished {
            self.wait_table.mark_ready(scan.db, &scan.name);
        } else if free {
            self.wait_table.reserve(scan.db, &scan.name, step.now.mono, self.limits.reserve_max);
        } else if is_reserved {
            self.wait_table.clear_reservation(scan.db, &scan.name);
        }
    }

    /// What can be done for a waiter now, also before the waiters of this cycle, if one is given.
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

    /// Whether a waiter holds still what it upgrades. That comes before any key is judged: a waiter that lost a hold is
    /// told so, though another key blocks it as well.
    fn check_upgrades<K: Keyspace>(&self, step: &mut Step<'_, K>, waiter: &Waiter) -> Result<(), WaitEnd> {
        for wanted in waiter.keys.iter().filter(|wanted| wanted.upgrade) {
            let key = step.open(&wanted.name)?;
            step.settle(key, Some(&waiter.owner), self.settling(self.limits.holds_ended_per_step));
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
            step.settle(key, Some(&waiter.owner), self.settling(self.limits.holds_ended_per_step));
            step.budget.judge(&waiter.keys[at].name);
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
        (0..verdicts.len()).find(|at| {
            let wanted = &waiter.keys[*at];
            let (place, position) = ((waiter.db, &wanted.name), waiter.position_at(wanted));
            let verdict = verdicts[*at].1;
            if !matches!(verdict, Verdict::NewHold | Verdict::More) {
                return false;
            }
            let queue = self.wait_table.queue(place.0, place.1);
            if queue.and_then(|queue| queue.next(None)).is_none_or(|(first, _)| first >= position) {
                return false;
            }
            let passed = passed.get_or_insert_default();
            // A holder gets more only where nobody waits before it.
            verdict == Verdict::More || order.is_delayed(step.keys, place, Requester::of(waiter), position, passed)
        })
    }

    pub(super) fn grant_to_waiter<K: Keyspace>(&mut self, step: &mut Step<'_, K>, indices: &[KeyIndex], id: WaiterId) {
        let Some(waiter) = self.wait_table.waiter(id) else { return };
        let owner = waiter.owner.clone();
        // No client is there to receive it: the owner collects it when it asks again.
        let until = waiter.offered_until(step.now.mono);
        let offer = until.map(|until| (self.offers.next_id(), until));
        let detached = offer.and_then(|_| waiter.detached());
        let operation = detached.as_ref().unwrap_or(&waiter.operation);
        let context =
            GrantContext { offer, ..GrantContext::new(&mut self.fences, self.epoch, self.limits.promotion_skew) };
        match (grant(step, indices, (&owner, operation), context, |given| given), offer) {
            (Ok(given), Some((offer, _))) => self.note_offer(step, id, (offer, indices, &given)),
            (Ok(given), None) => self.note_grant(step, id, indices, given),
            (Err(refusal), _) => self.end_wait(step, id, WaitEnd::Refused(refusal)),
        }
        self.note_new_hold(&owner);
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
    fn note_offer<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        id: WaiterId,
        (offer, indices, given): (OfferId, &[KeyIndex], &[GrantUndo]),
    ) {
        self.clear_reservations(step, indices);
        let Some(waiter) = self.wait_table.waiter(id) else { return };
        let keys = waiter.keys.iter().map(|key| key.name.clone());
        let keys = keys.zip(given).map(|(name, given)| (name, given.prior_fence().is_some()));
        let limit = waiter.operation.share.map(|share| share.limit);
        let is_made = self.offers.made(offer, waiter.db, limit, keys);
        let end = if is_made { WaitEnd::Offered { since: waiter.since } } else { WaitEnd::Left };
        self.wait_table.remove(id);
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

    /// Ends a wait with this answer. A place goes on without its client when that has waited long enough.
    pub(super) fn end_wait<K>(&mut self, step: &mut Step<'_, K>, id: WaiterId, answer: WaitEnd) {
        let answer = match answer {
            WaitEnd::TimedOut => self.wait_table.time_out(id, step.now.mono),
            answer => {
                self.wait_table.remove(id);
                answer
            }
        };
        step.effects.wait_ends.push((id, answer));
    }

    /// An owner has a new hold. Where it waits, it may go now before waiters that it blocks; and it may be in a cycle.
    pub(super) fn note_new_hold(&mut self, owner: &Owner) {
        if self.wait_table.waiting_of(owner).next().is_some() {
            self.wait_table.mark_ready_for(owner, self.limits.queues_marked_per_step);
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
