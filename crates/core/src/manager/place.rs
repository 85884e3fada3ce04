//! Places: what QUEUE asks for. The owner's place in the queue, and a grant that no client has received, outlive the
//! request. The owner asks again and keeps the place, or collects the grant.
//!
//! An owner has at most one place or offer on a key. So a request may come twice, late, or over another connection.

use super::LockManager;
use super::grant::{GrantContext, grant};
use crate::model::effect::Cause;
use crate::model::ended_holds::Over;
use crate::model::hold::{Hold, Mode};
use crate::model::key::{Db, KeyIndex, KeyName};
use crate::model::keyspace::{KeyEntry, Keyspace};
use crate::model::lock::Lock;
use crate::model::notify::Notify;
use crate::model::offers::{Claim, OfferId};
use crate::model::owner::Owner;
use crate::model::request::{Acquire, Amount, Begun, Kind, Outcome, PerKey, Refusal, Release, Wait, WaitEnd, WaiterId};
use crate::model::step::Step;
use crate::model::time::{Millis, Timestamp};
use crate::wait::order::{Verdict, is_upgrade, judge};
use crate::wait::waiter::{GrantUndo, Undelivered, Waiter};
use alloc::vec::Vec;

impl LockManager {
    /// Answers a request whose owner has a place there. None if it has none, or QUEUE is not about it.
    #[inline(never)]
    pub(super) fn ask_again<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
    ) -> Result<Option<Outcome>, Refusal> {
        // Most owners wait for nothing: then no name need be read.
        if self.wait_table.waiting_of(owner).next().is_none() {
            return Ok(None);
        }
        let (db, names) = self.names_of(step, named.iter().copied());
        let (mut place, mut has_other_keys, mut has_other_take) = (None, false, false);
        for (id, waiter) in self.wait_table.waiting_for(owner, db, &names) {
            if !waiter.is_place() && operation.queue.is_none() {
                continue;
            }
            // Its owner has come to hold the key in another way: it is a holder, and the place ends in the background.
            // During a grace a holder asks for its key as any other owner does.
            if let [key] = named
                && !waiter.is_many()
                && !self.is_in_grace(step.judged)
                && step.keys.lock(*key).is_some_and(|lock| lock.holds.get(owner.as_bytes()).is_some())
            {
                continue;
            }
            if waiter.operation.kind() != operation.kind() {
                return Err(Refusal::OtherMode);
            }
            has_other_take |= waiter.operation.take() != operation.take();
            let are_same = waiter.keys.len() == named.len()
                && waiter.keys.iter().zip(named).all(|(wanted, key)| wanted.name == step.name(*key, self.hash));
            has_other_keys |= !are_same;
            place = Some((id, waiter.is_detached()));
        }
        if has_other_keys {
            return Err(Refusal::OtherKeys);
        }
        if has_other_take {
            return Err(Refusal::OtherTake);
        }
        let Some((id, detached)) = place else { return Ok(None) };
        let more = if operation.queue.is_some() { self.wait_table.channel_bytes(step.notify) } else { 0 };
        if more > 0 && self.wait_table.place_bytes() + more > self.limits.place_bytes_max {
            return Err(Refusal::TooManyPlaceBytes);
        }
        match (operation.wait, operation.queue) {
            (Wait::Never, None) => Ok(Some(Outcome::Unavailable)),
            (Wait::Never, Some(_)) => Ok(Some(self.renew(id, operation, step.notify, step.now.mono))),
            (_, None) if operation.retry.is_none() => Err(Refusal::AlreadyWaits),
            // One more client than may be parked: it is answered as one that does not wait.
            _ if detached && (step.memory_full || self.wait_table.parked() >= self.limits.waiters_max) => {
                Ok(Some(self.renew(id, operation, step.notify, step.now.mono)))
            }
            _ => Ok(Some(Outcome::Begun(Begun::Repeat(id)))),
        }
    }

    /// A place's owner has asked again, and is answered that it has to wait. Without QUEUE it has tried once, and the
    /// place stays as it was.
    pub(super) fn renew(&mut self, id: WaiterId, operation: &Acquire, notify: Notify, now: Timestamp) -> Outcome {
        let before = self.most_beside(id);
        self.wait_table.renew(id, operation, now);
        if operation.queue.is_some() {
            self.wait_table.tell(id, notify);
        }
        self.note_new_limit(id, before);
        Outcome::Unavailable
    }

    /// Beside how many reads of a holder this waiter's shares could be had: [`Acquire::most_beside`].
    pub(super) fn most_beside(&self, id: WaiterId) -> Option<u32> {
        self.wait_table.waiter(id).and_then(|waiter| waiter.operation.most_beside())
    }

    /// The shares that a waiter asks for may be other ones since then: by these its key is served from now on.
    pub(super) fn note_new_limit(&mut self, id: WaiterId, before: Option<u32>) {
        if self.most_beside(id) == before {
            return;
        }
        let place = self.wait_table.waiter(id).and_then(|waiter| Some((waiter.db, waiter.keys.first()?.name.clone())));
        if let Some((db, name)) = place {
            self.wait_table.mark_ready(db, &name);
        }
        if self.limits.deadlock_detection {
            self.check_later(id);
        }
    }

    /// Grants the owner what it was offered. None if it was offered nothing there.
    #[inline(never)]
    pub(super) fn collect<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
    ) -> Result<Option<Outcome>, Refusal> {
        if self.offers.is_empty() {
            return Ok(None);
        }
        let Some(id) = named.iter().find_map(|key| offer_on(step, *key, owner)) else { return Ok(None) };
        let db = named.first().map_or(Db(0), |key| step.keys.entry(*key).db);
        let names: PerKey<KeyName> = named.iter().map(|key| step.name(*key, self.hash)).collect();
        let claim = self.offers.claim(id, db, &names);
        if claim == Claim::Other {
            return Err(Refusal::OtherKeys);
        }
        let in_other_mode = |key: &KeyIndex| {
            let hold = step.keys.lock(*key).and_then(|lock| lock.holds.get(owner.as_bytes()));
            // Of shares there may be more than the one of a reader.
            let is_other = |hold: &Hold| match operation.kind() {
                Kind::Read => hold.reads() != 1,
                Kind::Share => hold.reads() == 0,
                Kind::Write => hold.writes() == 0,
            };
            hold.is_some_and(|hold| hold.offer().is_some() && is_other(hold))
        };
        if named.iter().any(in_other_mode) {
            return Err(Refusal::OtherMode);
        }
        // Shares are of one key.
        let of_shares = named.first().filter(|_| operation.share.is_some()).and_then(|key| step.keys.lock(*key));
        let offered = of_shares.as_ref().and_then(|lock| lock.holds.get(owner.as_bytes())).map(Hold::reads);
        if offered.is_some_and(|reads| !(operation.take()..=operation.count_after(0)).contains(&reads)) {
            return Err(Refusal::OtherTake);
        }
        // What the owner held before may be gone, or others may read it where it asked to write. More shares than were
        // offered, or a lower limit, may not fit.
        let granted_up_to = self.offers.limit_of(id);
        let has_all = named.iter().all(|key| {
            let (is_unsettled, judged) = (step.is_unsettled(*key), step.judged);
            let Some(lock) = step.keys.lock(*key) else { return false };
            let over =
                |lock: &Lock| if is_unsettled { Over::on(lock, &self.sessions, judged) } else { Over::default() };
            match operation.share {
                Some(share) => {
                    let more = operation.count_after(0) - offered.unwrap_or(0);
                    (more == 0 && granted_up_to.is_some_and(|limit| limit <= share.limit))
                        || lock.holds.reads() - over(lock).reads + u64::from(more) <= u64::from(share.limit.get())
                }
                None => judge(Some(lock), owner, operation, &self.limits, over) == Ok(Verdict::Reentrant),
            }
        });
        if claim == Claim::Broken || !has_all {
            if step.memory_full {
                return Err(Refusal::OutOfMemory);
            }
            self.take_back(step, id, db, Cause::RevokeUndelivered, owner);
            return Ok(None);
        }
        let context = GrantContext::new(&mut self.fences, self.epoch, self.limits.promotion_skew);
        let fences = grant(step, named, (owner, operation), context, |given| given.fence)?;
        Ok(Some(Outcome::Granted(fences)))
    }

    /// Ends the holds of an offer that lie in this database, and serves their queues soon.
    fn take_back<K: Keyspace>(&mut self, step: &mut Step<'_, K>, id: OfferId, db: Db, cause: Cause, owner: &Owner) {
        for name in self.offers.keys_of(id, db) {
            // Something else than a lock lies there, or another node serves the key: there is nothing to end.
            let Ok(key) = step.open(&name) else { continue };
            let Step { keys, effects, .. } = step;
            let Some(lock) = keys.lock(key) else { continue };
            if lock.holds.get(owner.as_bytes()).is_some_and(|hold| hold.offer() == Some(id)) {
                effects.commit_end(lock, key, cause, owner);
                self.wait_table.mark_ready(db, &name);
            }
        }
    }

    /// The owner's places on these keys end, at most one on each, in this mode or in any. A client that waits there is
    /// answered. The owner of a place without a client is told, unless it is the owner that ends it.
    pub(super) fn leave_places<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        keys: &[KeyIndex],
        owner: &Owner,
        (mode, tells): (Option<Mode>, bool),
    ) {
        if self.wait_table.places() == 0 || self.wait_table.waiting_of(owner).next().is_none() {
            return;
        }
        let (db, names) = self.names_of(step, keys.iter().copied());
        let is_meant = |waiter: &Waiter| waiter.is_place() && mode.is_none_or(|mode| mode == waiter.operation.mode);
        let all = self.wait_table.waiting_for(owner, db, &names).filter(|(_, waiter)| is_meant(waiter));
        let left: Vec<WaiterId> = all.map(|(id, _)| id).collect();
        for id in left {
            if !tells {
                self.wait_table.tell(id, Notify::Never);
            }
            self.end_wait(step, id, WaitEnd::Left);
        }
    }

    /// The offers of which an owner gives back a part: all that belongs to them is given back.
    #[inline(never)]
    pub(super) fn offers_left<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Release),
    ) -> Vec<(OfferId, Db)> {
        if !ends_place(operation) {
            return Vec::new();
        }
        let is_meant = |hold: &&Hold| operation.mode.is_none_or(|mode| hold.count(mode) > 0);
        let offer_on = |key| {
            let KeyEntry { db, lock, .. } = step.keys.entry(key);
            let offer = lock?.holds.get(owner.as_bytes()).filter(is_meant)?.offer()?;
            Some((offer, db))
        };
        named.iter().copied().filter_map(offer_on).collect()
    }

    /// An owner has given these keys back: ends its places there, and what is left of offers of which it gave a part.
    #[inline(never)]
    pub(super) fn leave<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Release),
        offers: Vec<(OfferId, Db)>,
    ) {
        for (id, db) in offers {
            self.take_back(step, id, db, Cause::Release, owner);
        }
        if !ends_place(operation) {
            return;
        }
        self.leave_places(step, named, owner, (operation.mode, false));
    }

    /// Returns the end of a place whose owner has come to hold the key by another request; None if it has not.
    pub(super) fn end_of_place(waiter: &Waiter, lock: Option<&Lock>) -> Option<WaitEnd> {
        if !waiter.is_place() || waiter.is_many() {
            return None;
        }
        let lock = lock?;
        let hold = lock.holds.get(waiter.owner.as_bytes())?;
        if waiter.is_detached() {
            return Some(WaitEnd::Left);
        }
        let is_alone = lock.holds.len() == 1;
        (is_upgrade(hold, waiter.operation.mode) && !is_alone).then_some(WaitEnd::Refused(Refusal::QueuedUpgrade))
    }

    /// Makes an offer of what a place was granted and its client did not receive, as far as that may be: of a hold that
    /// the grant has made, and that is as the grant left it.
    ///
    /// Returns the rest, which is to be rolled back.
    pub(super) fn offer_undelivered<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        mut undelivered: Undelivered,
    ) -> Undelivered {
        let Some(queue) = undelivered.queue else { return undelivered };
        let (id, owner, mode) = (self.offers.next_id(), undelivered.owner.clone(), undelivered.mode);
        let client = undelivered.client.filter(|_| self.limits.away_max > Millis(0));
        let session = client.map(|client| self.session_of(client));
        let mut db = Db(0);
        let mut offer = |step: &mut Step<'_, K>, name: &KeyName, given: &GrantUndo| {
            let Ok(key) = step.open(name) else { return false };
            let Step { keys, now, effects, .. } = step;
            db = keys.entry(key).db;
            let Some(lock) = keys.lock(key) else { return false };
            let made = |hold: &&Hold| {
                given.prior_fence().is_none()
                    && hold.fence() == given.fence
                    && hold.total() == u64::from(given.added)
                    && hold.deadline > now.mono
            };
            let Some(hold) = lock.holds.get(owner.as_bytes()).filter(made) else { return false };
            let mut hold = hold.clone();
            hold.set_count(mode, undelivered.offered);
            hold.deadline = now.mono + queue;
            hold.bind(session);
            hold.set_note(None);
            hold.set_offer(Some(id));
            effects.commit_hold(lock, key, Cause::Offer, &owner, hold);
            true
        };
        let mut keys = Vec::new();
        undelivered.given.retain(|(name, given)| {
            let is_offered = offer(step, name, given);
            keys.push((name.clone(), !is_offered));
            !is_offered
        });
        self.offers.made(id, db, undelivered.limit, keys.into_iter());
        undelivered
    }
}

/// True if a release ends a place, and an offer as a whole: it names no hold, and leaves nothing.
pub(super) fn ends_place(operation: &Release) -> bool {
    operation.fence.is_none() && !matches!(operation.amount, Amount::To(1..))
}

/// The offer that an owner has on a key.
fn offer_on<K: Keyspace>(step: &mut Step<'_, K>, key: KeyIndex, owner: &Owner) -> Option<OfferId> {
    step.keys.lock(key)?.holds.get(owner.as_bytes())?.offer()
}
