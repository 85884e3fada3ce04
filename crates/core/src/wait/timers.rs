//! The time limits of waits and of reservations, and the times to live of keys that are waited for.

use super::queue::Reservation;
use super::table::WaitTable;
use super::waiter::Timer;
use crate::collections::wheel::Poll;
use crate::model::key::{Db, KeyName};
use crate::model::owner::Owner;
use crate::model::request::{WaitEnd, WaiterId};
use crate::model::time::{Millis, Timestamp, WallTime};
use alloc::boxed::Box;

/// The result of a poll of the time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitPoll {
    /// This waiter's time is up: [`WaitEnd::TimedOut`], or [`WaitEnd::Detached`].
    Ended(WaiterId, WaitEnd),
    /// The time of this place is up. [`WaitTable::end_place`] says what becomes of it, and has to know whether the node
    /// may grant its first key now.
    PlaceOver(WaiterId, Db, KeyName),
    /// Work was done: poll again, after reading the clock.
    Pending,
    /// Nothing.
    Idle,
}

impl WaitTable {
    /// A free key is reserved for the first waiter of its queue from now on, at most so long.
    pub(crate) fn reserve(&mut self, db: Db, name: &KeyName, now: Timestamp, most: Millis) {
        let WaitTable { queues, wheel, generations, .. } = self;
        if let Some(queue) = queues.get_mut(db.0 as usize).and_then(|queues| queues.get_mut(name)) {
            queue.reservation.get_or_insert_with(|| {
                let until = now + most;
                let timer = wheel.arm(Timer::Reservation(Box::new((db, name.clone()))), until, generations);
                Reservation { until, timer, was_passed: false }
            });
        }
    }

    /// A key was granted: it is reserved no more.
    pub(crate) fn clear_reservation(&mut self, db: Db, name: &KeyName) {
        if let Some(Reservation { timer, .. }) = self.queue_mut(db, name).and_then(|queue| queue.reservation.take()) {
            self.wheel.disarm(timer);
        }
    }

    /// A free key is reserved no longer for this owner, or for any. Waiters behind that fit may pass, as if its time
    /// were up.
    pub(crate) fn expire_reservation(&mut self, db: Db, name: &KeyName, owner: Option<&Owner>, now: Timestamp) {
        let WaitTable { queues, waiters, .. } = self;
        let Some(queue) = queues.get_mut(db.0 as usize).and_then(|queues| queues.get_mut(name)) else { return };
        let first = queue.iter().next().and_then(|id| waiters.get(id));
        if let Some(reservation) = &mut queue.reservation
            && owner.is_none_or(|owner| first.is_some_and(|first| first.owner == *owner))
        {
            reservation.until = reservation.until.min(now);
            self.mark_ready(db, name);
        }
    }

    /// As [`WaitTable::next_deadline`], or earlier: it costs nothing to know.
    pub(crate) fn soonest(&self) -> Option<Timestamp> {
        self.wheel.soonest()
    }

    /// The next moment at which [`WaitTable::poll_timeouts`] is worth calling.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.wheel.next_deadline()
    }

    /// The time of a place is up ([`WaitPoll::PlaceOver`]). It ends, unless nothing could be granted then or since: its
    /// owner may have been kept from asking. Such a place is kept until the node grants again, and for its time from
    /// then on.
    ///
    /// True if it ended.
    pub fn end_place(&mut self, id: WaiterId, may_grant: bool, now: Timestamp) -> bool {
        // How often such a place is looked at.
        const AGAIN: Millis = Millis(1_000);
        let Some(waiter) = self.waiters.get(id) else { return false };
        match waiter.operation.queue.filter(|_| waiter.overdue) {
            _ if !may_grant => {
                self.keep_until(id, now + AGAIN);
                if let Some(waiter) = self.waiters.get_mut(id) {
                    waiter.overdue = true;
                }
                false
            }
            Some(queue) => {
                self.keep_until(id, now + queue);
                false
            }
            None => self.remove(id),
        }
    }

    /// Finds a waiter whose time is up, and forgets it; a place goes on without its client. Does a bounded piece of
    /// work on the way.
    pub fn poll_timeouts(&mut self, now: Timestamp) -> WaitPoll {
        match self.wheel.poll(now) {
            Poll::Due(entry, Timer::Reservation(reserved)) => {
                self.wheel.disarm(entry);
                self.mark_ready(reserved.0, &reserved.1);
                WaitPoll::Pending
            }
            Poll::Due(entry, Timer::Wait(id)) => match self.waiters.get(id) {
                Some(waiter) if waiter.is_waiting() && waiter.is_detached() => {
                    WaitPoll::PlaceOver(id, waiter.db, waiter.keys[0].name.clone())
                }
                Some(_) => {
                    self.wheel.disarm(entry);
                    WaitPoll::Ended(id, self.time_out(id, now))
                }
                None => {
                    self.wheel.disarm(entry);
                    WaitPoll::Pending
                }
            },
            Poll::Pending => WaitPoll::Pending,
            Poll::Idle => WaitPoll::Idle,
        }
    }

    /// Notes when a key expires, if requests wait for it; None: never. True if that is earlier than was noted.
    pub(crate) fn note_expiry(&mut self, db: Db, name: &KeyName, at: Option<WallTime>) -> bool {
        let at = at.filter(|_| self.queue(db, name).is_some());
        let is_earlier = at.is_some_and(|at| self.expiries.of(db, name).is_none_or(|was| at < was));
        self.expiries.set(db, name, at);
        is_earlier
    }

    /// Returns when a key that is waited for expires, as far as is noted.
    pub(crate) fn expiry_of(&self, db: Db, name: &KeyName) -> Option<WallTime> {
        self.expiries.of(db, name)
    }

    /// Returns the key that expires first of those that are waited for, and when.
    pub(crate) fn first_expiry(&self) -> Option<&(WallTime, Db, KeyName)> {
        self.expiries.first()
    }

    /// True if no key that is waited for is known to expire.
    pub(crate) fn none_expires(&self) -> bool {
        self.expiries.is_empty()
    }

    /// True if each key that is noted is waited for (W6).
    pub(super) fn expiries_are_sound(&self) -> bool {
        self.expiries.are_all(|db, name| self.queue(db, name).is_some())
    }
}
