//! The time limits of waits and of reservations.

use super::queue::Reservation;
use super::table::{Timer, WaitTable};
use crate::lock::collections::wheel::Poll;
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::owner::Owner;
use crate::lock::model::request::WaiterId;
use crate::lock::model::time::{Millis, Timestamp};

/// What a poll of the time limits found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitPoll {
    /// This waiter's time is up.
    TimedOut(WaiterId),
    /// Work was done: poll again, after reading the clock.
    Pending,
    /// Nothing.
    Idle,
}

impl WaitTable {
    /// A free key is reserved for the first waiter of its queue from now on, at most so long.
    pub(crate) fn reserve(&mut self, db: Db, name: &[u8], now: Timestamp, most: Millis) {
        let WaitTable { queues, wheel, generations, .. } = self;
        if let Some(queue) = queues.get_mut(db.0 as usize).and_then(|queues| queues.get_mut(name)) {
            queue.reservation.get_or_insert_with(|| {
                let until = now + most;
                Reservation {
                    until,
                    timer: wheel.arm(Timer::Reservation(db, KeyName::from_slice(name)), until, generations),
                }
            });
        }
    }

    /// A key was granted: it is reserved no more.
    pub(crate) fn clear_reservation(&mut self, db: Db, name: &[u8]) {
        if let Some(Reservation { timer, .. }) = self.queue_mut(db, name).and_then(|queue| queue.reservation.take()) {
            self.wheel.disarm(timer);
        }
    }

    /// A free key is reserved no longer for this owner, or for any. Waiters behind that fit may pass, as if its time
    /// were up.
    pub(crate) fn expire_reservation(&mut self, db: Db, name: &[u8], owner: Option<&Owner>, now: Timestamp) {
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

    /// The next moment at which [`WaitTable::poll_timeouts`] is worth calling.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.wheel.next_deadline()
    }

    /// Finds a waiter whose time is up, and forgets it; does a bounded piece of work on the way.
    pub fn poll_timeouts(&mut self, now: Timestamp) -> WaitPoll {
        match self.wheel.poll(now) {
            Poll::Due(entry, Timer::Reservation(db, name)) => {
                self.wheel.disarm(entry);
                self.mark_ready(db, &name);
                WaitPoll::Pending
            }
            Poll::Due(entry, Timer::Wait(id)) => {
                self.wheel.disarm(entry);
                match self.remove(id) {
                    Some(_) => WaitPoll::TimedOut(id),
                    None => WaitPoll::Pending,
                }
            }
            Poll::Pending => WaitPoll::Pending,
            Poll::Idle => WaitPoll::Idle,
        }
    }
}
