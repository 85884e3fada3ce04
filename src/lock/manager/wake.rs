//! Waking waiters: scan the wait queue of a key, and grant to each waiter that can be served.
//!
//! A queue is scanned in every step on its key, and in the background ([`super::jobs`]) after anything else that may have
//! made room. A scan goes in order. Behind a waiter that is blocked, and that waits for this key alone, only those are
//! tried that may bypass: whose owners have got something since they came, or may have.

use super::LockManager;
use super::grant::{GrantContext, grant};
use crate::lock::model::effect::{Change, Effects, Spent, settle};
use crate::lock::model::hold::Mode;
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::keyspace::{Keyspace, Place};
use crate::lock::model::limits::KEYS_PER_BATCH;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{Acquire, Cycle, Outcome, PerKey, Refusal, Wait, WaitEnd, WaiterId};
use crate::lock::model::time::{Millis, Now, Timestamp};
use crate::lock::wait::deadlock;
use crate::lock::wait::order::{Order, Passed, Requester, Verdict, is_upgrade, judge};
use crate::lock::wait::waiter::{CycleCause, Waiter, Wanted};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// How many keys of waiters one step judges. Its first look may judge more, as long as it answers nobody: it would
/// never come to the end of a long line.
const KEYS_JUDGED_PER_BATCH: usize = 256;

/// What can be done for a waiter.
pub(super) enum Attempt {
    /// Let it in, on these keys.
    Grant(PerKey<KeyIndex>),
    /// It has to wait, for this one of its keys or for more.
    Blocked(usize),
    /// Answer it so, and forget it.
    Reject(WaitEnd),
}

/// A waiter as it is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// Which.
    pub id: WaiterId,
    /// Itself.
    pub waiter: &'a Waiter,
    /// How long it has waited.
    pub waited: Millis,
    /// How long it will wait at most; None without a limit.
    pub left: Option<Millis>,
}

impl<'a> Waiting<'a> {
    fn of(id: WaiterId, waiter: &'a Waiter, now: Timestamp) -> Waiting<'a> {
        let left = waiter.until.map(|until| until.left(now));
        Waiting { id, waiter, waited: waiter.since.ago(now), left }
    }
}

impl LockManager {
    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.wait_table.waiting()
    }

    /// How many keys are waited for.
    #[must_use]
    pub fn contended(&self) -> usize {
        self.wait_table.contended()
    }

    /// Those who wait for a key, in order.
    pub fn queue(&self, db: Db, name: &[u8], now: Timestamp) -> impl Iterator<Item = Waiting<'_>> {
        let ids = self.wait_table.queue(db, name).into_iter().flat_map(|queue| queue.iter());
        ids.filter_map(move |id| Some(Waiting::of(id, self.wait_table.waiter(id)?, now)))
    }

    /// All who wait, in no order.
    pub(crate) fn everybody_waiting(&self, now: Timestamp) -> impl Iterator<Item = Waiting<'_>> {
        let all = self.wait_table.everybody().filter_map(|id| Some((id, self.wait_table.waiter(id)?)));
        all.filter(|(_, waiter)| waiter.is_waiting()).map(move |(id, waiter)| Waiting::of(id, waiter, now))
    }

    /// Since when a request waits, or had waited when it was granted.
    #[must_use]
    pub fn waited_since(&self, id: WaiterId) -> Option<Timestamp> {
        Some(self.wait_table.waiter(id)?.since)
    }

    /// How many wait for a key.
    #[must_use]
    pub fn queue_len(&self, db: Db, name: &[u8]) -> usize {
        self.wait_table.queue(db, name).map_or(0, |queue| queue.len())
    }

    /// For whom a free key is kept.
    #[must_use]
    pub fn reserved_by(&self, db: Db, name: &[u8], now: Timestamp) -> Option<&Owner> {
        let queue = self.wait_table.queue(db, name)?;
        let first = queue.iter().next().filter(|_| queue.is_reserved(now))?;
        Some(&self.wait_table.waiter(first)?.owner)
    }

    pub(crate) fn order(&self, now: Timestamp) -> Order<'_> {
        Order { wait_table: &self.wait_table, sessions: &self.sessions, now }
    }

    /// Lets a request wait that cannot be served now.
    pub(crate) fn enqueue<K: Keyspace>(
        &mut self,
        keys: &mut K,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let mut db = Db(0);
        let mut wanted = PerKey::new();
        let mut contested = false;
        for &key in named {
            let Wanted { name, upgrade } = wanted_at(keys, key, (owner, operation));
            db = keys.place(key).db;
            // Two readers that both want to write wait for each other, whatever else there is.
            contested |= upgrade
                && self.wait_table.queue(db, &name).is_some_and(|queue| {
                    let mut others = queue.upgrades().filter_map(|id| self.wait_table.waiter(id));
                    others.any(|other| other.owner != *owner)
                });
            wanted.push(Wanted { name, upgrade });
        }

        let waits = |waiter: &Waiter| {
            waiter.db == db
                && waiter.operation.mode == operation.mode
                && wanted.iter().any(|key| waiter.wants(db, &key.name))
        };
        let twin = self.wait_table.waiting_of(owner).find(|(_, waiter)| waits(waiter));
        if let Some((old, waiter)) = twin {
            let same = waiter.keys.iter().map(|key| &key.name).eq(wanted.iter().map(|key| &key.name));
            if operation.retry.is_none() || !same {
                return Err(Refusal::AlreadyWaits);
            }
            // Only the server knows whether the asker can wait. Until then the place is the old request's.
            return Ok(Outcome::Repeats(old));
        }
        if self.wait_table.waiting() >= self.limits.waiters_max {
            return Err(Refusal::TooManyWaiters);
        }
        if wanted.iter().any(|key| self.queue_len(db, &key.name) >= self.limits.waiters_per_key_max) {
            return Err(Refusal::TooManyWaitersOfKey);
        }

        let id = self.wait_table.admit((owner, operation), db, wanted, now, until(operation, now));
        if (contested || self.limits.deadlock_detection)
            && let Some(cycle) = deadlock::find(self.order(now), keys, owner, CycleCause::NewWait)
        {
            self.wait_table.remove(id);
            return Err(Refusal::Deadlock(Box::new(cycle)));
        }
        // Those of its keys that are free are kept from now on, not only when the next one asks for them: who comes
        // late must not find the whole time still to go.
        for &key in named {
            let Place { db, name, lock } = keys.place(key);
            if lock.is_none_or(|lock| lock.is_free()) {
                self.wait_table.reserve(db, name, now, self.limits.reserve_max);
            }
        }
        Ok(Outcome::Queued(id))
    }

    /// Whether a request waits still.
    #[must_use]
    pub fn waits(&self, id: WaiterId) -> bool {
        self.wait_table.waiter(id).is_some_and(Waiter::is_waiting)
    }

    /// Lets a repeated request ([`Outcome::Repeats`]) take over the place of the one that it repeats, which is
    /// forgotten and to be answered [`WaitEnd::Replaced`]. None when that waits no more.
    pub fn take_over(&mut self, old: WaiterId, operation: &Acquire, now: Timestamp) -> Option<WaiterId> {
        if !self.waits(old) {
            return None;
        }
        self.wait_table.take_over(old, operation, until(operation, now))
    }

    /// Serves the line of a key, as far as it can be served, at most a slice of it.
    pub(crate) fn wake_waiters<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        now: Now,
        most: usize,
        effects: &mut Effects,
    ) {
        let Place { db, name, .. } = keys.place(key);
        if self.wait_table.queue(db, name).is_none() {
            return;
        }
        let name = KeyName::from_slice(name);
        if keys.lock(key).is_some_and(|lock| !lock.is_free()) {
            // Also by a lock that came from elsewhere, of which the line was not told.
            self.wait_table.clear_reservation(db, &name);
        }
        // If so, and there is much else to do in this step, whoever's time is up hears it from the wheel.
        let is_quiet = self.wait_table.queue(db, &name).is_some_and(|queue| queue.is_quiet(now.mono));
        // Nobody is passed by those behind it in this look: it goes by the order.
        if let Some(queue) = self.wait_table.queue_mut(db, &name) {
            queue.batch_unfinished = false;
        }
        let (is_first, before) = (effects.spent == Spent::default(), effects.spent.wait_ends);
        let mut behind = None;
        let mut batch_unfinished = false;
        // Those before who wait for other keys as well.
        let mut many = Vec::new();
        // Whether only those are looked at who may be exceptions.
        let mut stopped = false;
        while let Some(queue) = self.wait_table.queue(db, &name) {
            let next = match behind {
                Some(position) if stopped => queue.next_bypassing(position),
                _ => queue.next(behind),
            };
            let Some((position, id)) = next else { break };
            let must_go_on = is_first && effects.spent.wait_ends == before;
            if effects.spent.keys >= KEYS_PER_BATCH || (effects.spent.judged >= KEYS_JUDGED_PER_BATCH && !must_go_on) {
                batch_unfinished = !is_quiet;
                break;
            }
            let (changes, bindings, open) = (effects.changes.len(), effects.bindings.len(), keys.count());
            let attempt = self.attempt(keys, id, None, now.mono, effects);
            self.mark_ready_after(keys, Some(key), &effects.changes[changes..]);
            let granted = match &attempt {
                Attempt::Grant(indices) => indices.len(),
                Attempt::Reject(_) | Attempt::Blocked(_) => 0,
            };
            match attempt {
                Attempt::Grant(_) | Attempt::Reject(_) if !effects.spent.leaves_room(granted, most) => {
                    if effects.changes.len() == changes && effects.bindings.len() == bindings {
                        keys.close(open);
                    }
                    batch_unfinished = true;
                    break;
                }
                Attempt::Grant(indices) => {
                    effects.spent.wait_ends += 1;
                    effects.spent.keys += granted;
                    self.grant_to_waiter(keys, &indices, id, now, effects);
                }
                Attempt::Reject(answer) => {
                    effects.spent.wait_ends += 1;
                    self.wait_table.remove(id);
                    effects.wait_ends.push((id, answer));
                }
                Attempt::Blocked(at) => {
                    behind = Some(position);
                    self.wait_table.note_blocked_on(id, at);
                    if effects.changes.len() == changes && effects.bindings.len() == bindings {
                        keys.close(open);
                    }
                    match self.wait_table.waiter(id) {
                        Some(waiter) if waiter.is_many() => many.push(id),
                        Some(waiter) if !stopped => {
                            stopped = true;
                            if waiter.operation.mode == Mode::Read
                                && keys.lock(key).is_none_or(|lock| lock.mode() != Some(Mode::Write))
                            {
                                self.allow_holders_to_bypass(keys, &core::mem::take(&mut many));
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        let free = keys.lock(key).is_none_or(|lock| lock.is_free());
        self.finish_wake(db, &name, batch_unfinished, free, now.mono);
    }

    /// A reader is delayed by one of these, who wait for several keys, and for nothing else. The readers behind it
    /// whose owners hold one of those keys are not.
    fn allow_holders_to_bypass<K: Keyspace>(&mut self, keys: &mut K, many: &[WaiterId]) {
        let mut holders = Vec::new();
        for waiter in many.iter().filter_map(|id| self.wait_table.waiter(*id)) {
            for wanted in &waiter.keys {
                keys.peek(waiter.db, &wanted.name, |lock| holders.extend(self.wait_table.waiting_holders(lock)));
            }
        }
        for owner in holders {
            self.wait_table.allow_bypass(&owner);
        }
    }

    /// What ended on other keys than the one that is looked at: their lines are to be looked at as well.
    pub(super) fn mark_ready_after<K: Keyspace>(&mut self, keys: &mut K, woken: Option<KeyIndex>, changes: &[Change]) {
        for change in changes.iter().filter(|change| Some(change.key) != woken) {
            let Place { db, name, .. } = keys.place(change.key);
            self.wait_table.mark_ready(db, name);
        }
    }

    fn finish_wake(&mut self, db: Db, name: &[u8], batch_unfinished: bool, free: bool, now: Timestamp) {
        let reserve_max = self.limits.reserve_max;
        let Some(queue) = self.wait_table.queue_mut(db, name) else { return };
        queue.batch_unfinished = batch_unfinished;
        if batch_unfinished {
            self.wait_table.mark_ready(db, name);
            return;
        }
        if free {
            // Who is left waits for other keys.
            self.wait_table.reserve(db, name, now, reserve_max);
        } else {
            self.wait_table.clear_reservation(db, name);
        }
    }

    /// What can be done for a waiter now, also before the waiters of this circle, if one is given.
    pub(super) fn attempt<K: Keyspace>(
        &self,
        keys: &mut K,
        id: WaiterId,
        cycle: Option<&Cycle>,
        now: Timestamp,
        effects: &mut Effects,
    ) -> Attempt {
        let Some(waiter) = self.wait_table.waiter(id) else { return Attempt::Blocked(0) };
        let (owner, mode) = (&waiter.owner, waiter.operation.mode);
        if waiter.until.is_some_and(|until| until <= now) {
            return Attempt::Reject(WaitEnd::TimedOut);
        }
        // Before any is judged: who has lost one hold is told so, though another key keeps it waiting as well.
        for wanted in waiter.keys.iter().filter(|wanted| wanted.upgrade) {
            let key = match keys.open(&wanted.name) {
                Ok(key) => key,
                Err(answer) => return Attempt::Reject(answer),
            };
            settle(keys, key, &self.sessions, now, effects);
            if keys.lock(key).is_none_or(|lock| lock.holds.get(owner.as_bytes()).is_none()) {
                return Attempt::Reject(WaitEnd::HoldLost);
            }
        }
        // What kept it waiting last time will do so again more often than not: then nothing else need be opened.
        let blocked_on = waiter.is_many().then(|| waiter.blocked_on());
        let mut passed = cycle.map(Passed::cycle);
        let mut verdicts: PerKey<(KeyIndex, Verdict)> = PerKey::new();
        for at in blocked_on.into_iter().chain(0..waiter.keys.len()) {
            let key = match keys.open(&waiter.keys[at].name) {
                Ok(key) => key,
                Err(answer) => return Attempt::Reject(answer),
            };
            settle(keys, key, &self.sessions, now, effects);
            effects.spent.judged += 1;
            match judge(keys.lock(key).as_deref(), owner, mode, &self.limits) {
                // Too many holders: one of them will leave.
                Ok(Verdict::Conflict) | Err(_) => return Attempt::Blocked(at),
                Ok(verdict) => verdicts.push((key, verdict)),
            }
        }
        let verdicts = &verdicts[usize::from(blocked_on.is_some())..];
        for (at, (_, verdict)) in verdicts.iter().enumerate() {
            let wanted = &waiter.keys[at];
            let (place, position) = ((waiter.db, &wanted.name[..]), waiter.position_at(wanted));
            if *verdict == Verdict::NewHold
                && self.order(now).is_delayed(
                    keys,
                    place,
                    Requester::of(waiter),
                    position,
                    passed.get_or_insert_default(),
                )
            {
                return Attempt::Blocked(at);
            }
        }
        Attempt::Grant(verdicts.iter().map(|(key, _)| *key).collect())
    }

    pub(super) fn grant_to_waiter<K: Keyspace>(
        &mut self,
        keys: &mut K,
        indices: &[KeyIndex],
        id: WaiterId,
        now: Now,
        effects: &mut Effects,
    ) {
        let context = GrantContext { fences: &mut self.fences, epoch: self.epoch, skew: self.limits.promotion_skew };
        let Some(Waiter { owner, operation, .. }) = self.wait_table.waiter(id) else { return };
        let owner = owner.clone();
        let answer = match grant(keys, indices, (&owner, operation), context, now, effects) {
            Ok(given) => {
                self.clear_reservations(keys, indices);
                let fences = given.iter().map(|given| given.fence).collect();
                self.wait_table.granted(id, given);
                for (connection, fence) in self.wait_table.waiter(id).into_iter().flat_map(Waiter::newly_bound) {
                    self.sessions.bind_tentatively(connection, fence);
                }
                WaitEnd::Granted(fences)
            }
            Err(refusal) => {
                self.wait_table.remove(id);
                WaitEnd::Refused(refusal)
            }
        };
        effects.wait_ends.push((id, answer));
        // What else it waits for, it may have before somebody now whom it keeps waiting.
        self.wait_table.mark_ready_for(&owner);
        self.check_for_new_hold(&owner);
    }

    /// Keys were taken: they are not kept for anybody any more.
    pub(crate) fn clear_reservations<K: Keyspace>(&mut self, keys: &mut K, indices: &[KeyIndex]) {
        for key in indices {
            let Place { db, name, .. } = keys.place(*key);
            self.wait_table.clear_reservation(db, name);
        }
    }

    /// An owner took or extended what it holds on these keys: it knows what it was granted before.
    pub(crate) fn confirm_grants<K: Keyspace>(
        &mut self,
        keys: &mut K,
        indices: impl Iterator<Item = KeyIndex>,
        owner: &Owner,
    ) {
        if self.wait_table.is_empty() {
            return;
        }
        for key in indices {
            let Place { db, name, .. } = keys.place(key);
            self.wait_table.confirm(db, name, owner);
        }
    }
}

/// Until when a request waits; None without a limit.
fn until(operation: &Acquire, now: Timestamp) -> Option<Timestamp> {
    match operation.wait {
        Wait::For(limit) => Some(now + limit),
        Wait::Never | Wait::Forever => None,
    }
}

/// A key as a request wants it.
pub(crate) fn wanted_at<K: Keyspace>(keys: &mut K, key: KeyIndex, (owner, operation): (&Owner, &Acquire)) -> Wanted {
    let Place { name, lock, .. } = keys.place(key);
    let hold = lock.as_deref().and_then(|lock| lock.holds.get(owner.as_bytes()));
    Wanted { name: KeyName::from_slice(name), upgrade: hold.is_some_and(|hold| is_upgrade(hold, operation.mode)) }
}
