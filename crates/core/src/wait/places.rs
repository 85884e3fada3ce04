//! Places: waiters whose requests may end while they wait on (QUEUE). A later request of the owner takes one over, or
//! has it kept.

use super::queue::Position;
use super::table::WaitTable;
use super::waiter::{Waiter, Wanted, queue_bytes, seat_bytes};
use crate::model::key::Db;
use crate::model::owner::Owner;
use crate::model::request::{Acquire, Kind, WaitEnd, WaiterId};
use crate::model::time::Timestamp;

impl WaitTable {
    /// For how many waiters a client is parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.waiting - self.detached
    }

    /// How many waiters have QUEUE, with a parked client or without.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places
    }

    /// How many waiters ask for shares.
    #[must_use]
    pub fn shares(&self) -> usize {
        self.shares
    }

    /// How many bytes count for all places together, with their channels.
    #[must_use]
    pub fn place_bytes(&self) -> usize {
        self.place_bytes + self.channels.bytes()
    }

    /// How many bytes count for all waiters that are no places.
    #[must_use]
    pub fn waiter_bytes(&self) -> usize {
        self.waiter_bytes
    }

    /// How many bytes a waiter takes that joins the queues of these keys: its own, and those of queues that are new.
    pub(crate) fn bytes_of(&self, owner: &Owner, db: Db, keys: &[Wanted]) -> usize {
        let new = keys.iter().filter(|key| self.queue(db, &key.name).is_none());
        seat_bytes(owner, keys.len()) + new.map(|key| queue_bytes(&key.name)).sum::<usize>()
    }

    /// A waiter stands in a queue whose memory counted for another one until now.
    pub(super) fn charge(&mut self, id: WaiterId, bytes: usize) {
        let Some(waiter) = self.waiters.get_mut(id) else { return };
        waiter.bytes += bytes;
        *(if waiter.is_place() { &mut self.place_bytes } else { &mut self.waiter_bytes }) += bytes;
    }

    /// Lets a later request of the same owner have the place of an earlier one, which is forgotten.
    pub fn take_over(&mut self, old: WaiterId, operation: &Acquire, now: Timestamp) -> Option<WaiterId> {
        let waiter = self.waiters.get(old)?.clone();
        let (db, ticket, owner, keys) = (waiter.db, waiter.ticket, waiter.owner.clone(), waiter.keys.clone());
        self.disarm_timer(old);
        self.uncount(old);
        self.waiters.discard(old);
        let until = operation.ends(now);
        let heir = Waiter { operation: operation.clone(), until, entry: None, overdue: false, ..waiter };
        let id = self.waiters.insert(heir, &mut self.generations);
        self.rename(id);
        if operation.queue.is_none() {
            self.untell(id);
        }
        self.count(id);
        self.arm_timer(id, until);
        for key in keys {
            if let Some(queue) = self.queue_mut(db, &key.name) {
                queue.hand_over(Position::new(key.upgrade, ticket), id);
            }
        }
        self.owners.insert(&owner, ticket, id);
        Some(id)
    }

    /// The request of a place is over: from now on it waits without a client, under another name. None if it is no
    /// place, or has no client already.
    pub(crate) fn detach(&mut self, id: WaiterId, now: Timestamp) -> Option<WaiterId> {
        let waiting = self.waiters.get(id).filter(|waiter| waiter.is_waiting() && !waiter.is_detached());
        let detached = waiting.and_then(Waiter::detached)?;
        self.take_over(id, &detached, now)
    }

    /// A waiter's time is up: it is forgotten, or goes on as a place. The answer to its client.
    pub(crate) fn time_out(&mut self, id: WaiterId, now: Timestamp) -> WaitEnd {
        let waiter = self.waiters.get(id);
        let has_client = waiter.is_some_and(|waiter| !waiter.is_detached());
        let ended = waiter.and_then(|waiter| waiter.until).map_or(now, |until| until.min(now));
        let place = self.detach(id, now);
        if place.is_none() {
            self.remove(id);
        }
        match place {
            // It ends late: since the grace no queue was served for it.
            place if has_client && ended <= self.grace_end => {
                WaitEnd::InGrace { left: self.grace_end.left(now), place }
            }
            Some(place) => WaitEnd::Detached(place),
            None => WaitEnd::TimedOut,
        }
    }

    /// The owner has asked again, and this request is answered: the place is kept for so long from now on, or from the
    /// end of the request that waits there. For shares, it is judged by this request from now on. Nothing is changed
    /// without QUEUE.
    pub(crate) fn renew(&mut self, id: WaiterId, operation: &Acquire, now: Timestamp) {
        let Some(queue) = operation.queue else { return };
        self.uncount(id);
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.operation.queue = Some(queue);
            if operation.share.is_some() {
                (waiter.operation.share, waiter.operation.retry) = (operation.share, operation.retry);
            }
        }
        self.count(id);
        if self.waiters.get(id).is_some_and(Waiter::is_detached) {
            self.keep_until(id, now + queue);
        }
    }

    /// A waiter's time is up at this moment, and at no other.
    pub(super) fn keep_until(&mut self, id: WaiterId, until: Timestamp) {
        self.disarm_timer(id);
        if let Some(waiter) = self.waiters.get_mut(id) {
            (waiter.until, waiter.overdue) = (Some(until), false);
        }
        self.arm_timer(id, Some(until));
    }

    pub(super) fn disarm_timer(&mut self, id: WaiterId) {
        if let Some(entry) = self.waiters.get_mut(id).and_then(|waiter| waiter.entry.take()) {
            self.wheel.disarm(entry);
        }
    }

    /// A waiter stands in its queues.
    pub(super) fn count(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(id) else { return };
        self.waiting += 1;
        self.shares += usize::from(waiter.operation.kind() == Kind::Share);
        if waiter.is_place() {
            self.places += 1;
            self.detached += usize::from(waiter.is_detached());
            self.place_bytes += waiter.bytes;
        } else {
            self.waiter_bytes += waiter.bytes;
        }
    }

    /// It stands there no more.
    pub(super) fn uncount(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get(id) else { return };
        self.waiting -= 1;
        self.shares -= usize::from(waiter.operation.kind() == Kind::Share);
        if waiter.is_place() {
            self.places -= 1;
            self.detached -= usize::from(waiter.is_detached());
            self.place_bytes -= waiter.bytes;
        } else {
            self.waiter_bytes -= waiter.bytes;
        }
    }
}
