//! Waiters as they are to be seen: in INFO, LOCK.INFO and LOCK.TOP.

use super::LockManager;
use crate::model::key::Db;
use crate::model::owner::Owner;
use crate::model::request::WaiterId;
use crate::model::time::{Millis, Timestamp};
use crate::wait::waiter::Waiter;

/// A waiter as it is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// Its name.
    pub id: WaiterId,
    /// The waiter itself.
    pub waiter: &'a Waiter,
    /// How long it has waited.
    pub waited: Millis,
    /// How long its client will wait at most; None without a limit, or without a client.
    pub left: Option<Millis>,
    /// For how long its place is kept as things are; None while a client waits there.
    pub queue_left: Option<Millis>,
}

impl<'a> Waiting<'a> {
    fn of(id: WaiterId, waiter: &'a Waiter, now: Timestamp) -> Waiting<'a> {
        let left = waiter.until.map(|until| until.left(now));
        let (left, queue_left) = if waiter.is_detached() { (None, left) } else { (left, None) };
        Waiting { id, waiter, waited: waiter.since.ago(now), left, queue_left }
    }
}

impl LockManager {
    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.wait_table.waiting()
    }

    /// For how many of those a client is parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.wait_table.parked()
    }

    /// How many requests with QUEUE wait, parked or not.
    #[must_use]
    pub fn places(&self) -> usize {
        self.wait_table.places()
    }

    /// How many channels these have.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.wait_table.channels()
    }

    /// How many bytes of memory these take, with their channels.
    #[must_use]
    pub fn place_bytes(&self) -> usize {
        self.wait_table.place_bytes()
    }

    /// How many bytes of memory all other requests that wait take.
    #[must_use]
    pub fn waiter_bytes(&self) -> usize {
        self.wait_table.waiter_bytes()
    }

    /// How many grants wait for their owners to collect them.
    #[must_use]
    pub fn offered(&self) -> usize {
        self.offers.len()
    }

    /// How many requests for shares wait.
    #[must_use]
    pub fn shares_waiting(&self) -> usize {
        self.wait_table.shares()
    }

    /// How many keys are waited for.
    #[must_use]
    pub fn contended(&self) -> usize {
        self.wait_table.contended()
    }

    /// How many queues are on the ready list.
    #[must_use]
    pub fn ready_len(&self) -> usize {
        self.wait_table.ready.len()
    }

    /// How many searches for deadlocks were given up, because they would have kept the server too long.
    #[must_use]
    pub fn searches_cut(&self) -> u64 {
        self.searches_cut
    }

    /// The waiters for a key, in order, without places that are over.
    pub fn queue(&self, db: Db, name: &[u8], now: Timestamp) -> impl Iterator<Item = Waiting<'_>> {
        let ids = self.wait_table.queue(db, &self.name(name)).into_iter().flat_map(|queue| queue.iter());
        let waiting = ids.filter_map(move |id| Some(Waiting::of(id, self.wait_table.waiter(id)?, now)));
        waiting.filter(|waiting| waiting.queue_left != Some(Millis(0)))
    }

    /// All waiters, in no order.
    pub(crate) fn everybody_waiting(&self, now: Timestamp) -> impl Iterator<Item = Waiting<'_>> {
        let all = self.wait_table.everybody();
        all.filter(|(_, waiter)| waiter.is_waiting()).map(move |(id, waiter)| Waiting::of(id, waiter, now))
    }

    /// Since when a request waits, or had waited when it was granted.
    #[must_use]
    pub fn waited_since(&self, id: WaiterId) -> Option<Timestamp> {
        Some(self.wait_table.waiter(id)?.since)
    }

    /// How many requests wait for a key, without places that are over.
    #[must_use]
    pub fn queue_len(&self, db: Db, name: &[u8], now: Timestamp) -> usize {
        if self.wait_table.next_deadline().is_some_and(|at| at <= now) {
            return self.queue(db, name, now).count();
        }
        self.wait_table.queue_len(db, &self.name(name))
    }

    /// The owner for which a free key is reserved.
    #[must_use]
    pub fn reserved_by(&self, db: Db, name: &[u8], now: Timestamp) -> Option<&Owner> {
        let queue = self.wait_table.queue(db, &self.name(name))?;
        let first = queue.iter().next().filter(|_| queue.is_reserved(now))?;
        Some(&self.wait_table.waiter(first)?.owner)
    }

    /// True if a request waits whose place outlives it.
    #[must_use]
    pub fn waits_at_place(&self, id: WaiterId) -> bool {
        self.wait_table.waiter(id).is_some_and(|waiter| waiter.is_waiting() && waiter.is_place())
    }

    /// True if a request waits still.
    pub(super) fn waits(&self, id: WaiterId) -> bool {
        self.wait_table.waiter(id).is_some_and(Waiter::is_waiting)
    }
}
