//! Queueing a request that cannot be served now.

use super::LockManager;
use crate::model::key::{Db, KeyIndex, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::limits::PLACES_PER_OWNER;
use crate::model::owner::Owner;
use crate::model::request::{Acquire, Begun, Outcome, PerKey, Refusal, Wait, WaiterId};
use crate::model::step::Step;
use crate::wait::order::is_upgrade;
use crate::wait::waiter::{CycleCause, Waiter, Wanted};
use alloc::boxed::Box;

/// The search for a deadlock that a wait would close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// If it is configured so.
    Yes,
    /// The cycle is known, and this step will break it.
    No,
}

impl LockManager {
    /// Lets a request wait that cannot be served now.
    pub(crate) fn enqueue<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        named: &[KeyIndex],
        (owner, operation): (&Owner, &Acquire),
        search: Search,
    ) -> Result<Outcome, Refusal> {
        let now = step.now.mono;
        let in_grace = self.is_in_grace(step.judged);
        let db = named.first().map_or(Db(0), |key| step.keys.entry(*key).db);
        let wanted: PerKey<Wanted> = named.iter().map(|key| self.wanted_at(step, *key, (owner, operation))).collect();
        if operation.queue.is_some() && wanted.iter().any(|key| key.upgrade) {
            return Err(Refusal::QueuedUpgrade);
        }
        // Two readers that both want to write wait for each other, whatever else there is.
        let contested = wanted.iter().any(|key| key.upgrade && self.is_upgraded_by_other(db, &key.name, owner));
        if let Some((old, waiter)) = self.twin_of((owner, operation), db, &wanted) {
            if operation.retry.is_none() || !waiter.has_keys(&wanted) {
                return Err(Refusal::AlreadyWaits);
            }
            // Only the server knows whether the client can wait. Until then the place is the old request's.
            return Ok(Outcome::Begun(Begun::Repeat(old)));
        }
        if step.memory_full {
            return Err(Refusal::OutOfMemory);
        }
        let channel_bytes = self.wait_table.channel_bytes(step.notify);
        self.check_limits((owner, operation), db, &wanted, channel_bytes)?;
        let id = self.wait_table.admit((owner, operation), db, wanted, now);
        if operation.queue.is_some() {
            self.wait_table.tell(id, step.notify);
        }
        if in_grace {
            // An owner that holds may go before waiters that it keeps waiting.
            self.wait_table.allow_bypass(owner);
        }
        // During a grace an owner may wait for a key that it holds: its waiters came after it.
        let cause = if in_grace { CycleCause::NewHold } else { CycleCause::NewWait };
        if (contested || self.limits.deadlock_detection)
            && search == Search::Yes
            && let Some(found) = self.find_cycle(step, (owner, cause))
        {
            self.wait_table.remove(id);
            return Err(Refusal::Deadlock(Box::new(found.cycle)));
        }
        for key in named {
            self.follow_expiry(step, *key);
        }
        // A key is reserved for a waiter that may have it.
        if !in_grace {
            self.reserve_free_keys(step, named);
        }
        Ok(Outcome::Begun(if operation.wait == Wait::Never { Begun::Place(id) } else { Begun::New(id) }))
    }

    /// True if another owner waits to upgrade this key.
    fn is_upgraded_by_other(&self, db: Db, name: &KeyName, owner: &Owner) -> bool {
        self.wait_table.queue(db, name).is_some_and(|queue| {
            let mut others = queue.upgrades().filter_map(|id| self.wait_table.waiter(id));
            others.any(|other| other.owner != *owner)
        })
    }

    /// The owner's waiter for the same of one of these keys.
    fn twin_of(
        &self,
        (owner, operation): (&Owner, &Acquire),
        db: Db,
        wanted: &[Wanted],
    ) -> Option<(WaiterId, &Waiter)> {
        self.wait_table.waiting_of(owner).next()?;
        let names = wanted.iter().map(|key| key.name.clone()).collect();
        let mut waiting = self.wait_table.waiting_for(owner, db, &names);
        let (id, _) = waiting.find(|(_, waiter)| waiter.operation.kind() == operation.kind())?;
        Some((id, self.wait_table.waiter(id)?))
    }

    fn check_limits(
        &self,
        (owner, operation): (&Owner, &Acquire),
        db: Db,
        wanted: &[Wanted],
        channel_bytes: usize,
    ) -> Result<(), Refusal> {
        if operation.wait != Wait::Never && self.wait_table.parked() >= self.limits.waiters_max {
            return Err(Refusal::TooManyWaiters);
        }
        let bytes = self.wait_table.bytes_of(owner, db, wanted);
        if operation.queue.is_some() {
            if self.wait_table.places() >= self.limits.places_max {
                return Err(Refusal::TooManyPlaces);
            }
            if self.wait_table.waiting_of(owner).filter(|(_, waiter)| waiter.is_place()).count() >= PLACES_PER_OWNER {
                return Err(Refusal::TooManyPlacesOfOwner);
            }
            if self.wait_table.place_bytes() + bytes + channel_bytes > self.limits.place_bytes_max {
                return Err(Refusal::TooManyPlaceBytes);
            }
        } else if self.wait_table.waiter_bytes() + bytes > self.limits.waiter_bytes_max {
            return Err(Refusal::TooManyWaiterBytes);
        }
        if wanted.iter().any(|key| self.wait_table.queue_len(db, &key.name) >= self.limits.waiters_per_key_max) {
            return Err(Refusal::TooManyWaitersOfKey);
        }
        Ok(())
    }

    /// Free keys are reserved from now on, not only when the next request comes: a late client must not find the whole
    /// time still to go.
    fn reserve_free_keys<K: Keyspace>(&mut self, step: &mut Step<'_, K>, named: &[KeyIndex]) {
        for &key in named {
            if step.is_free(key) {
                let (db, name) = self.place_of(step, key);
                self.wait_table.reserve(db, &name, step.now.mono, self.limits.reserve_max);
            }
        }
    }

    /// A key as a request wants it.
    pub(super) fn wanted_at<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        key: KeyIndex,
        (owner, operation): (&Owner, &Acquire),
    ) -> Wanted {
        let hold = step.keys.lock(key).and_then(|lock| lock.holds.get(owner.as_bytes()));
        let upgrade = hold.is_some_and(|hold| is_upgrade(hold, operation.mode));
        Wanted { name: step.name(key, self.hash), upgrade }
    }
}
