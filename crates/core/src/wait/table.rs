//! The wait table: all waiters of the node, and the wait queues of their keys. Holds no lock state, decides nothing,
//! and forgets everything on restart.
//!
//! Each key that is waited for has a queue. A waiter stands in the queues of all its keys by one ticket, given when it
//! came. So any two waiters stand in the same order wherever they meet. An upgrade alone stands at the head, of the
//! queue of the key that it upgrades and of no other: [`super::order`] says why that is safe. [`super::waiter`] has the
//! states of a waiter.
//!
//! Invariants, checked after every step by the model test ([`WaitTable::broken_invariant`] and the model's world):
//!
//! - W1: a waiter stands in the queue of each of its keys, at its position there. Nothing else stands in a queue, and
//!   no queue is empty.
//! - W2: a waiter that could be served does not wait, unless its queue is on the ready list, or a job will put it there
//!   ([`super::jobs`]).
//! - W3: a waiter with a time limit has an entry in the wheel.
//! - W4: no owner waits twice for the same of a key: to read, to write, or for shares.
//! - W5: the bytes of each waiter, of each queue and of each channel count once, those of a queue for one of its
//!   waiters.
//! - W7: a place is found from the open connection that it belongs to, and has its channel; nothing else is or has.

use super::channels::Channels;
use super::checks::Checks;
use super::connections::Connections;
use super::expiries::Expiries;
use super::owners::Owners;
use super::queue::{Pending, Position, Reservation, WaitQueue};
use super::sweep::Sweep;
use super::waiter::{State, Timer, Waiter, Wanted, queue_bytes, seat_bytes};
use crate::collections::arena::{Arena, Generations};
use crate::collections::wheel::Wheel;
use crate::model::hashing::KeyedHash;
use crate::model::hold::Connection;
use crate::model::key::{Db, KeyName, NameSet};
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::request::{Acquire, PerKey, WaiterId};
use crate::model::time::Timestamp;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// All waiters of this node.
#[derive(Debug)]
pub struct WaitTable {
    pub(super) waiters: Arena<Waiter>,
    pub(super) queues: Vec<BTreeMap<KeyName, WaitQueue>>,
    /// The sweeps of these, each by its database.
    pub(super) sweeps: Vec<Sweep>,
    pub(super) sweeps_begun: u64,
    /// How many databases have a sweep that goes on.
    pub(super) sweeping: usize,
    /// The count of scans when a sweep went on last: they go in turns.
    pub(super) swept_at: u64,
    pub(super) owners: Owners,
    pub(super) wheel: Wheel<Timer>,
    pub(super) expiries: Expiries,
    pub(super) generations: Generations,
    pub(super) waiting: usize,
    /// How many of them are places.
    pub(super) places: usize,
    /// How many of these have no client.
    pub(super) detached: usize,
    /// How many of all ask for shares.
    pub(super) shares: usize,
    /// How many bytes count for all places together.
    pub(super) place_bytes: usize,
    /// How many count for all other waiters.
    pub(super) waiter_bytes: usize,
    pub(super) channels: Channels,
    pub(super) connections: Connections,
    pub(super) tickets: u64,
    /// Queues to be served: the ready list.
    pub(crate) ready: VecDeque<(Db, KeyName)>,
    /// How many queues have been taken from the ready list. While it stands still, each queue that was put there is
    /// still there.
    pub(super) wakes_begun: u64,
    /// Owners whose queues are to be put there, with the ticket of the waiter to go on with, and the count of scans
    /// when the first was put there.
    pub(crate) marking: BTreeMap<Owner, (u64, u64)>,
    /// Owners to be checked for deadlocks.
    pub(super) checks: Checks,
    pub(super) undelivered: Vec<WaiterId>,
    /// Grants whose delivery is not known, by the connections that their holds were bound to before.
    pub(super) prior_bindings: BTreeMap<Connection, BTreeSet<WaiterId>>,
    /// How many queues there are.
    contended: usize,
    /// Until when the last grace lasts: until then no queue is served. Zero if there was none.
    pub(crate) grace_end: Timestamp,
}

impl WaitTable {
    /// An empty table, whose owners are hashed so.
    #[must_use]
    pub const fn new(hash: KeyedHash) -> WaitTable {
        WaitTable {
            waiters: Arena::new(),
            queues: Vec::new(),
            sweeps: Vec::new(),
            sweeps_begun: 0,
            sweeping: 0,
            swept_at: 0,
            owners: Owners::new(hash),
            wheel: Wheel::new(),
            expiries: Expiries::new(),
            generations: Generations::new(),
            waiting: 0,
            places: 0,
            detached: 0,
            shares: 0,
            place_bytes: 0,
            waiter_bytes: 0,
            channels: Channels::new(),
            connections: Connections::new(),
            tickets: 0,
            ready: VecDeque::new(),
            wakes_begun: 1,
            marking: BTreeMap::new(),
            checks: Checks::new(),
            undelivered: Vec::new(),
            prior_bindings: BTreeMap::new(),
            contended: 0,
            grace_end: Timestamp(0),
        }
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many keys are waited for.
    #[must_use]
    pub fn contended(&self) -> usize {
        self.contended
    }

    /// True if there is no waiter, waiting or granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The queue of a key, if a request waits for it.
    #[must_use]
    pub fn queue(&self, db: Db, name: &KeyName) -> Option<&WaitQueue> {
        self.queues.get(db.0 as usize)?.get(name)
    }

    /// How many waiters the queue of a key has.
    pub(crate) fn queue_len(&self, db: Db, name: &KeyName) -> usize {
        self.queue(db, name).map_or(0, WaitQueue::len)
    }

    /// All queues.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (Db, &KeyName, &WaitQueue)> {
        let of = |(number, queues)| {
            let queues: &BTreeMap<KeyName, WaitQueue> = queues;
            queues.iter().map(move |(name, queue)| (Db(number as u32), name, queue))
        };
        self.queues.iter().enumerate().flat_map(of)
    }

    /// The queue of a key, to change.
    pub(crate) fn queue_mut(&mut self, db: Db, name: &KeyName) -> Option<&mut WaitQueue> {
        let WaitTable { queues, sweeps, ready, wheel, .. } = self;
        let queue = queues.get_mut(db.0 as usize)?.get_mut(name)?;
        sweeps.get(db.0 as usize)?.reach((db, name, queue), ready, wheel);
        Some(queue)
    }

    /// A waiter, waiting or granted.
    #[must_use]
    pub fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(id)
    }

    /// The waiters of an owner that were not granted.
    pub fn waiting_of<'r, 'o: 'r>(
        &'r self,
        owner: &'o Owner,
    ) -> impl DoubleEndedIterator<Item = (WaiterId, &'r Waiter)> + use<'r, 'o> {
        self.of(owner).filter(|(_, waiter)| waiter.is_waiting())
    }

    /// The waiters of an owner for one of these keys of a database: at most three for each key (W4). Each key of its
    /// waiters is compared once, whatever the number of names.
    pub(crate) fn waiting_for<'r, 'o: 'r>(
        &'r self,
        owner: &'o Owner,
        db: Db,
        names: &'o NameSet,
    ) -> impl Iterator<Item = (WaiterId, &'r Waiter)> + use<'r, 'o> {
        self.waiting_of(owner).filter(move |(_, waiter)| waiter.wants_any(db, names))
    }

    pub(super) fn of<'r, 'o: 'r>(
        &'r self,
        owner: &'o Owner,
    ) -> impl DoubleEndedIterator<Item = (WaiterId, &'r Waiter)> + use<'r, 'o> {
        let ids = self.owners.of(owner);
        ids.filter_map(|id| Some((id, self.waiters.get(id)?))).filter(move |(_, waiter)| waiter.owner == *owner)
    }

    /// All waiters that were not granted.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().map(|(_, waiter)| waiter).filter(|waiter| waiter.is_waiting())
    }

    /// The position that the next request would have in a queue whose key it does not upgrade.
    pub(crate) fn next_position(&self) -> Position {
        Position::new(false, self.tickets + 1)
    }

    /// Lets a request wait: behind all other waiters, and before all but other upgrades where it upgrades a key.
    pub fn admit(
        &mut self,
        (owner, operation): (&Owner, &Acquire),
        db: Db,
        keys: PerKey<Wanted>,
        now: Timestamp,
    ) -> WaiterId {
        self.tickets += 1;
        let mut waiter = Waiter {
            owner: owner.clone(),
            operation: operation.clone(),
            db,
            keys,
            since: now,
            until: operation.ends(now),
            ticket: self.tickets,
            state: State::Waiting,
            entry: None,
            overdue: false,
            blocked_on: 0,
            bytes: 0,
            marked_at: 0,
            channel: None,
            client: None,
            at: 0,
        };
        if waiter.is_detached()
            && let Some(detached) = waiter.detached()
        {
            waiter.operation = detached;
        }
        self.seat(waiter)
    }

    /// A request has gone before the waiters of a queue to open a cycle.
    pub(crate) fn note_passed(&mut self, db: Db, name: &KeyName) {
        let last = self.tickets;
        if let Some(queue) = self.queue_mut(db, name) {
            queue.passed_until = last;
        }
    }

    /// True if a request has gone before a waiter to open a cycle. No other may.
    pub(crate) fn was_passed(&self, waiter: &Waiter) -> bool {
        let mut queues = waiter.keys.iter().filter_map(|key| self.queue(waiter.db, &key.name));
        queues.any(|queue| waiter.ticket <= queue.passed_until)
    }

    fn seat(&mut self, mut waiter: Waiter) -> WaiterId {
        let Waiter { db, ticket, until, .. } = waiter;
        let (many, kind) = (waiter.is_many(), waiter.operation.kind());
        if self.queues.len() <= db.0 as usize {
            self.queues.resize_with(db.0 as usize + 1, BTreeMap::new);
            self.sweeps.resize_with(db.0 as usize + 1, Sweep::default);
        }
        // All waiters of a queue share its name.
        for key in waiter.keys.iter_mut().filter(|key| key.name.is_long()) {
            if let Some((name, _)) = self.queues[db.0 as usize].get_key_value(&key.name) {
                key.name = name.clone();
            }
        }
        let mut bytes = seat_bytes(&waiter.owner, waiter.keys.len());
        let keys = waiter.keys.clone();
        let id = self.waiters.insert(waiter, &mut self.generations);
        for key in keys {
            let position = Position::new(key.upgrade, ticket);
            let queue_bytes = queue_bytes(&key.name);
            let queue = self.queues[db.0 as usize].entry(key.name).or_default();
            if queue.is_empty() {
                self.contended += 1;
                queue.charge(position);
                // A sweep that goes on counts queues, and may meet this one before others.
                let sweep = &mut self.sweeps[db.0 as usize];
                queue.swept = sweep.number;
                sweep.left += usize::from(sweep.left > 0);
                bytes += queue_bytes;
            }
            queue.join(position, id, kind, many);
        }
        self.arm_timer(id, until);
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.bytes = bytes;
        }
        self.count(id);
        let WaitTable { waiters, queues, owners, .. } = self;
        let Some(waiter) = waiters.get(id) else { return id };
        // If there are more, they are marked already.
        let other = {
            let mut others = owners.of(&waiter.owner).filter_map(|other| waiters.get(other));
            others.find(|other| other.is_waiting() && other.owner == waiter.owner)
        };
        if let Some(other) = other {
            for waiter in [waiter, other] {
                mark_waits_elsewhere(queues, waiter);
            }
        }
        owners.insert(&waiter.owner, ticket, id);
        id
    }

    pub(super) fn arm_timer(&mut self, id: WaiterId, until: Option<Timestamp>) {
        let entry = until.map(|until| self.wheel.arm(Timer::Wait(id), until, &mut self.generations));
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.entry = entry;
        }
    }

    /// Forgets a waiter, in whatever state. If it waited, its queues are to be served.
    ///
    /// True if there was one.
    pub fn remove(&mut self, id: WaiterId) -> bool {
        self.forget(id, false)
    }

    /// As [`WaitTable::remove`]. If it was granted its keys, its queues need not be served.
    pub(crate) fn forget(&mut self, id: WaiterId, granted: bool) -> bool {
        self.leave_queues(id, granted);
        self.untell(id);
        let Some(waiter) = self.waiters.get(id) else { return false };
        self.owners.remove(&waiter.owner, waiter.ticket);
        if !waiter.is_waiting() {
            let prior_connections = waiter.prior_connections();
            self.forget_prior_bindings(id, &prior_connections);
        }
        self.waiters.discard(id)
    }

    /// Notes which of its keys keeps a waiter waiting.
    pub(crate) fn note_blocked_on(&mut self, id: WaiterId, at: usize) {
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.blocked_on = at;
        }
    }

    /// A waiter waits no more. If it was granted its keys, they are not reserved either; else its queues are to be
    /// served.
    pub(super) fn leave_queues(&mut self, id: WaiterId, granted: bool) {
        if !self.waiters.get(id).is_some_and(Waiter::is_waiting) {
            return;
        }
        self.uncount(id);
        self.disarm_timer(id);
        let mut left: SmallVec<[(WaiterId, usize); 1]> = SmallVec::new();
        let Some(waiter) = self.waiters.get(id) else { return };
        let Some(queues) = self.queues.get_mut(waiter.db.0 as usize) else { return };
        for key in &waiter.keys {
            let Entry::Occupied(mut entry) = queues.entry(key.name.clone()) else { continue };
            let queue = entry.get_mut();
            let position = Position::new(key.upgrade, waiter.ticket);
            queue.leave(position);
            if queue.is_paid_by(position)
                && let Some((heir, other)) = queue.next(None)
            {
                queue.charge(heir);
                left.push((other, queue_bytes(&key.name)));
            }
            if (granted || queue.is_empty())
                && let Some(Reservation { timer, .. }) = queue.reservation.take()
            {
                self.wheel.disarm(timer);
            }
            if queue.is_empty() {
                entry.remove();
                self.contended -= 1;
                self.expiries.set(waiter.db, &key.name, None);
            } else if !granted && queue.mark(Pending::Wake) {
                self.ready.push_back((waiter.db, key.name.clone()));
            }
        }
        for (other, bytes) in left {
            self.charge(other, bytes);
        }
    }

    /// Lets this owner's waiters bypass blocked ones from now on.
    pub(crate) fn allow_bypass(&mut self, owner: &Owner) {
        let WaitTable { waiters, queues, owners, .. } = self;
        for id in owners.of(owner) {
            let Some(waiter) = waiters.get(id) else { continue };
            let Some(queues) = queues.get_mut(waiter.db.0 as usize) else { continue };
            if !waiter.is_waiting() || waiter.owner != *owner {
                continue;
            }
            for key in &waiter.keys {
                if let Some(queue) = queues.get_mut(&key.name) {
                    queue.allow_bypass(waiter.position_at(key));
                }
            }
        }
    }

    /// The waiters at these positions of a queue may be exceptions from now on.
    pub(crate) fn allow_bypass_at(&mut self, (db, name): (Db, &KeyName), positions: &[Position]) {
        let Some(queue) = self.queue_mut(db, name) else { return };
        for position in positions {
            queue.allow_bypass(*position);
        }
    }

    /// The holders of a lock that wait for something.
    pub(crate) fn waiting_holders(&self, lock: &Lock) -> Vec<Owner> {
        if lock.holds.len() <= self.waiters.len() {
            lock.holds
                .iter()
                .map(|(holder, _)| holder)
                .filter(|holder| self.of(holder).next().is_some())
                .cloned()
                .collect()
        } else {
            let waiting = self.all_waiting().map(|waiter| &waiter.owner);
            waiting.filter(|holder| lock.holds.get(holder.as_bytes()).is_some()).cloned().collect()
        }
    }

    /// All waiters, waiting or granted, in no order.
    pub(crate) fn everybody(&self) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        self.waiters.iter()
    }
}

/// Notes of a waiter that its owner waits elsewhere as well.
fn mark_waits_elsewhere(queues: &mut [BTreeMap<KeyName, WaitQueue>], waiter: &Waiter) {
    let Some(queues) = queues.get_mut(waiter.db.0 as usize) else { return };
    for key in &waiter.keys {
        if let Some(queue) = queues.get_mut(&key.name) {
            queue.note_waits_elsewhere(waiter.position_at(key));
        }
    }
}
