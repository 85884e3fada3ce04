//! What there is to see: a lock as if it were settled, though nothing is changed, and all that waits.

use super::LockManager;
use crate::model::ended_holds::Over;
use crate::model::fence::Fence;
use crate::model::hold::{Hold, Mode, Session};
use crate::model::key::{Db, KeyName};
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::request::{Check, WaiterId};
use crate::model::session::Sessions;
use crate::model::time::{Millis, Timestamp};
use crate::wait::waiter::Waiter;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// A lock as it is to be seen: settled, though nothing was changed.
#[derive(Clone, Debug)]
pub struct View<'a> {
    lock: &'a Lock,
    at: ViewContext<'a>,
    name: KeyName,
    /// The holds of it that are over and have not left it.
    over: Over,
}

/// Where and when a lock is viewed.
#[derive(Clone, Copy, Debug)]
pub struct ViewContext<'a> {
    /// In which database.
    pub db: Db,
    /// Under which name.
    pub name: &'a [u8],
    /// The holds that are bound to connections.
    pub sessions: &'a Sessions,
    /// When: what is left counts from here.
    pub now: Timestamp,
    /// By which time it is judged what is over.
    pub judged: Timestamp,
}

impl ViewContext<'_> {
    fn is_over(self, hold: &Hold) -> bool {
        self.sessions.end_of(hold) <= self.judged
    }
}

/// The fence of an owner's hold if it is what is asked for; None if not, or if it is over. It looks at no other hold.
#[must_use]
pub fn check(lock: &Lock, at: ViewContext<'_>, owner: &[u8], check: Check) -> Option<Fence> {
    let hold = lock.holds.get(owner).filter(|hold| !at.is_over(hold))?;
    check.admits(hold).then_some(hold.fence())
}

/// One holder as it is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The holder.
    pub owner: &'a [u8],
    /// The stronger of the modes held.
    pub mode: Mode,
    /// How often for reading.
    pub reads: u32,
    /// How often for writing.
    pub writes: u32,
    /// The hold's fence.
    pub fence: Fence,
    /// The rest of the lease.
    pub left: Millis,
    /// How long it has been held, since the grant or since it was carried here.
    pub held: Millis,
    /// The connection that it is bound to.
    pub session: Option<Session>,
    /// True if its owner has not collected it yet.
    pub offered: bool,
    /// The holder's note about itself.
    pub note: Option<&'a [u8]>,
}

impl<'a> View<'a> {
    /// The lock as it is then; None when it has no hold. O(N) where holds may be over, and N is their number.
    #[must_use]
    pub fn of(lock: &'a Lock, at: ViewContext<'a>) -> Option<View<'a>> {
        let over = Over::on(lock, at.sessions, at.judged);
        let view = View { lock, at, name: at.sessions.name(at.name), over };
        (view.holding() > 0).then_some(view)
    }

    /// How many hold it.
    #[must_use]
    pub fn holding(&self) -> usize {
        self.lock.holds.len() - self.over.holds
    }

    /// The read counts of all holders.
    #[must_use]
    pub fn shares(&self) -> u64 {
        self.lock.holds.reads() - self.over.reads
    }

    /// The mode it is held in.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.lock.holds.iter().find(|(_, hold)| !self.at.is_over(hold)).map(|(_, hold)| hold.mode())
    }

    /// The highest fence given on it.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.lock.fence()
    }

    /// The holders, in order of owner.
    pub fn holders(&self) -> impl Iterator<Item = Holder<'a>> {
        self.lock.holds.iter().filter_map(|(owner, hold)| self.holder_of(owner, hold))
    }

    /// One owner's hold.
    #[must_use]
    pub fn holder(&self, owner: &[u8]) -> Option<Holder<'a>> {
        let (owner, hold) = self.lock.holds.entry(owner)?;
        self.holder_of(owner, hold)
    }

    /// None when the hold is over.
    fn holder_of(&self, owner: &'a Owner, hold: &'a Hold) -> Option<Holder<'a>> {
        let at = self.at;
        (!at.is_over(hold)).then(|| Holder {
            owner: owner.as_bytes(),
            mode: hold.mode(),
            reads: hold.reads(),
            writes: hold.writes(),
            fence: hold.fence(),
            left: at.sessions.end_of(hold).left(at.now),
            held: hold.since().ago(at.now),
            // The connection that an offer is bound to is the one over which its owner waited.
            session: at.sessions.of(at.db, &self.name, hold).filter(|_| hold.offer().is_none()),
            offered: hold.offer().is_some(),
            note: hold.note().map(|note| &*note.0),
        })
    }
}

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

/// A key that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContendedKey {
    /// In which database.
    pub db: Db,
    /// Its name.
    pub name: KeyName,
    /// How many wait for it.
    pub waiting: usize,
    /// How long its first waiter has waited.
    pub waited: Millis,
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

    /// The longest waits, at most so many, the longest first.
    #[must_use]
    pub fn longest_waits(&self, most: usize, now: Timestamp) -> Vec<Waiting<'_>> {
        top(self.everybody_waiting(now), most, |waiting| (waiting.waiter.since, waiting.id))
    }

    /// The most contended keys, at most so many, the most contended first.
    #[must_use]
    pub fn most_contended(&self, most: usize, now: Timestamp) -> Vec<ContendedKey> {
        // In the order of their names, as far as these are short: long ones may be alike but for their ends.
        const COMPARED: usize = 64;
        let queues = top(self.wait_table.queues(), most, |(db, name, queue)| {
            let name: &KeyName = name;
            (Reverse(queue.len()), *db, &name[..name.len().min(COMPARED)], name)
        });
        // Only the queues that are shown are read.
        let contended = queues.into_iter().map(|(db, name, queue)| {
            let since = queue.iter().filter_map(|id| self.wait_table.waiter(id)).map(|waiter| waiter.since).min();
            let waited = since.map_or(Millis(0), |since| since.ago(now));
            ContendedKey { db, name: name.clone(), waiting: queue.len(), waited }
        });
        contended.collect()
    }
}

/// The least of these by a key, at most so many, in order. One that is no less than those that are kept costs one
/// comparison.
fn top<T, O: Ord>(all: impl Iterator<Item = T>, most: usize, by: impl Fn(&T) -> O) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    let mut last = None;
    for item in all {
        if last.as_ref().is_some_and(|last| by(&item) >= *last) {
            continue;
        }
        kept.push(item);
        // Now and then, so that it costs no more memory than twice what is asked for.
        if kept.len() >= most.saturating_mul(2).max(64) {
            kept.sort_by_key(&by);
            kept.truncate(most);
            last = kept.last().map(&by);
        }
    }
    kept.sort_by_key(by);
    kept.truncate(most);
    kept
}

#[cfg(test)]
mod tests {
    use super::top;
    use alloc::vec::Vec;
    use core::cell::Cell;

    #[test]
    fn the_first_of_many_are_found_without_sorting_the_others() {
        // LOCK.TOP beside 100,000 places sorted all of them, 64 at a time, with names that were copied for that.
        const COUNT: u64 = 100_000;
        let scrambled = || (0..COUNT).map(|number| number * 7_919 % COUNT);
        let looked_at = Cell::new(0);
        let first = top(scrambled(), 10, |number| {
            looked_at.set(looked_at.get() + 1);
            *number
        });
        assert_eq!(first, (0..10).collect::<Vec<_>>());
        assert!(looked_at.get() < 2 * COUNT, "{} keys of {COUNT} items", looked_at.get());
    }
}
