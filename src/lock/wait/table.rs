//! The waiting room: who waits for which keys, and in which order. Holds no lock state, decides nothing, and forgets
//! everything on restart.
//!
//! Each key that is waited for has a line. A waiter stands in the lines of all its keys by one ticket, given when it
//! came, so that any two waiters stand in the same order wherever they meet. An upgrade alone stands at the head, of
//! the line of the key that it upgrades and of no other ([`super::order`] says why that is safe). [`super::waiter`] has the states of a waiter.
//!
//! Invariants, checked after every step by the model test ([`WaitTable::broken_invariant`] and the model's world):
//!
//! - W1: who waits stands in the line of each of its keys, at its rank there; nobody else stands in a line; no line is
//!   empty.
//! - W2: who could be served does not wait, unless its line is on the list of those to be looked at.
//! - W3: who waits for a limited time has an entry in the wheel.
//! - W4: no owner waits twice for a key in the same mode.

use super::queue::{Pending, Position, Reservation, WaitQueue};

use super::waiter::{CycleCause, Grant, GrantUndo, State, Undelivered, Waiter, Wanted};
use crate::lock::collections::arena::{Arena, Generations};
use crate::lock::collections::wheel::{Poll, Wheel};
use crate::lock::model::hold::{Connection, Mode};
use crate::lock::model::key::{Db, KeyName};
use crate::lock::model::lock::Lock;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{Acquire, PerKey, WaiterId};
use crate::lock::model::time::{Millis, Timestamp};
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Work that is left to the module's own hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Look who of this key's line can be served.
    ServeQueue(Db, KeyName),
    /// Take back what was granted to this waiter and lies on these keys now. If some of it lies in another database,
    /// that is another piece.
    RevokeUndelivered(WaiterId, Db, PerKey<KeyName>),
    /// See whether this waiter, which waits for this key, is in a deadlock.
    Check(WaiterId, Db, KeyName),
    /// End the holds on this key that are bound to this connection, which has closed.
    Close(Connection, Db, KeyName),
}

/// What the wheel of waits has for a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitPoll {
    /// This one's time is up.
    TimedOut(WaiterId),
    /// Work was done; look again, after a look at the clock.
    Pending,
    /// Nothing.
    Idle,
}

/// What the wheel rings for.
#[derive(Clone, Debug)]
enum Timer {
    Wait(WaiterId),
    Reservation(Db, KeyName),
}

/// All who wait on this node.
#[derive(Debug)]
pub struct WaitTable {
    waiters: Arena<Waiter>,
    queues: Vec<BTreeMap<KeyName, WaitQueue>>,
    /// Those of each owner, by its digest, which few others share.
    by_owner: BTreeMap<u64, SmallVec<[WaiterId; 1]>>,
    wheel: Wheel<Timer>,
    generations: Generations,
    waiting: usize,
    tickets: u64,
    /// Lines to be looked at.
    ready: VecDeque<(Db, KeyName)>,
    /// How many looks at lines have begun. While it stands still, each line that was put on the list is still there.
    wakes_begun: u64,
    /// Waiters to be checked for deadlocks, each once, by the number of its entry.
    checks: BTreeMap<u64, WaiterId>,
    checks_marked: u64,
    undelivered: Vec<WaiterId>,
    /// Grants that nobody knows to be delivered, by the connections that their holds were bound to before.
    prior_bindings: BTreeMap<Connection, BTreeSet<WaiterId>>,
    /// How many lines there are.
    contended: usize,
}

impl Default for WaitTable {
    fn default() -> WaitTable {
        WaitTable::new()
    }
}

impl WaitTable {
    /// An empty room.
    #[must_use]
    pub const fn new() -> WaitTable {
        WaitTable {
            waiters: Arena::new(),
            queues: Vec::new(),
            by_owner: BTreeMap::new(),
            wheel: Wheel::new(),
            generations: Generations::new(),
            waiting: 0,
            tickets: 0,
            ready: VecDeque::new(),
            wakes_begun: 1,
            checks: BTreeMap::new(),
            checks_marked: 0,
            undelivered: Vec::new(),
            prior_bindings: BTreeMap::new(),
            contended: 0,
        }
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many keys are waited for.
    #[must_use]
    pub fn contended(&self) -> usize {
        self.contended
    }

    /// Whether there is nobody, waiting or granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The line of a key, if somebody waits for it.
    #[must_use]
    pub fn queue(&self, db: Db, name: &[u8]) -> Option<&WaitQueue> {
        self.queues.get(db.0 as usize)?.get(name)
    }

    /// All lines.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (Db, &KeyName, &WaitQueue)> {
        let of = |(number, queues)| {
            let queues: &BTreeMap<KeyName, WaitQueue> = queues;
            queues.iter().map(move |(name, queue)| (Db(number as u32), name, queue))
        };
        self.queues.iter().enumerate().flat_map(of)
    }

    pub(crate) fn queue_mut(&mut self, db: Db, name: &[u8]) -> Option<&mut WaitQueue> {
        self.queues.get_mut(db.0 as usize)?.get_mut(name)
    }

    /// A waiter, waiting or granted.
    #[must_use]
    pub fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.waiters.get(id)
    }

    /// Those of an owner's who wait.
    pub fn waiting_of<'r, 'o: 'r>(
        &'r self,
        owner: &'o Owner,
    ) -> impl Iterator<Item = (WaiterId, &'r Waiter)> + use<'r, 'o> {
        self.of(owner).filter(|(_, waiter)| waiter.is_waiting())
    }

    fn of<'r, 'o: 'r>(&'r self, owner: &'o Owner) -> impl Iterator<Item = (WaiterId, &'r Waiter)> + use<'r, 'o> {
        let ids = self.by_owner.get(&owner.digest()).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.waiters.get(*id)?))).filter(move |(_, waiter)| waiter.owner == *owner)
    }

    /// All who wait.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.everybody().filter_map(|id| self.waiters.get(id)).filter(|waiter| waiter.is_waiting())
    }

    /// The place that the next request would have in a line whose key it does not upgrade.
    pub(crate) fn next_position(&self) -> Position {
        Position::new(false, self.tickets + 1)
    }

    /// Lets a request wait: behind all who wait already, and before all but other upgrades where it upgrades a key.
    pub fn admit(
        &mut self,
        (owner, operation): (&Owner, &Acquire),
        db: Db,
        keys: PerKey<Wanted>,
        now: Timestamp,
        until: Option<Timestamp>,
    ) -> WaiterId {
        self.tickets += 1;
        self.seat(Waiter {
            owner: owner.clone(),
            operation: operation.clone(),
            db,
            keys,
            since: now,
            until,
            ticket: self.tickets,
            state: State::Waiting,
            entry: None,
            was_passed: false,
            blocked_on: 0,
            check: None,
            marked_at: 0,
        })
    }

    /// A request has gone before the waiters of a queue to open a circle.
    pub(crate) fn note_passed(&mut self, db: Db, name: &[u8]) {
        let ids: Vec<WaiterId> = self.queue(db, name).into_iter().flat_map(WaitQueue::iter).collect();
        for id in ids {
            if let Some(waiter) = self.waiters.get_mut(id) {
                waiter.was_passed = true;
            }
        }
    }

    /// Lets a repeated request take over the place of the one that it repeats, which is forgotten.
    pub fn take_over(&mut self, old: WaiterId, operation: &Acquire, until: Option<Timestamp>) -> Option<WaiterId> {
        let waiter = self.waiters.get(old)?.clone();
        let (db, ticket, digest, keys) = (waiter.db, waiter.ticket, waiter.owner.digest(), waiter.keys.clone());
        if let Some(entry) = waiter.entry {
            self.wheel.disarm(entry);
        }
        self.waiters.remove(old);
        let check = waiter.check;
        let id = self
            .waiters
            .insert(Waiter { operation: operation.clone(), until, entry: None, ..waiter }, &mut self.generations);
        if let Some((number, _)) = check {
            self.checks.insert(number, id);
        }
        self.arm_timer(id, until);
        for key in keys {
            if let Some(queue) = self.queue_mut(db, &key.name) {
                queue.hand_over(Position::new(key.upgrade, ticket), id);
            }
        }
        for there in self.by_owner.entry(digest).or_default().iter_mut().filter(|there| **there == old) {
            *there = id;
        }
        Some(id)
    }

    fn seat(&mut self, waiter: Waiter) -> WaiterId {
        let Waiter { db, ticket, until, .. } = waiter;
        let (many, mode) = (waiter.is_many(), waiter.operation.mode);
        let (digest, keys) = (waiter.owner.digest(), waiter.keys.clone());
        let id = self.waiters.insert(waiter, &mut self.generations);
        if self.queues.len() <= db.0 as usize {
            self.queues.resize_with(db.0 as usize + 1, BTreeMap::new);
        }
        for key in keys {
            let position = Position::new(key.upgrade, ticket);
            let queue = self.queues[db.0 as usize].entry(key.name).or_default();
            self.contended += usize::from(queue.is_empty());
            queue.join(position, id, mode, many);
        }
        self.arm_timer(id, until);
        self.waiting += 1;
        let others = self.by_owner.entry(digest).or_default();
        // If there are more, they are marked already.
        let other = others
            .iter()
            .filter_map(|other| self.waiters.get(*other))
            .find(|other| other.is_waiting() && self.waiters.get(id).is_some_and(|waiter| waiter.owner == other.owner));
        others.push(id);
        if let (Some(other), Some(waiter)) = (other, self.waiters.get(id)) {
            for waiter in [waiter, other] {
                mark_waits_elsewhere(&mut self.queues, waiter);
            }
        }
        id
    }

    fn arm_timer(&mut self, id: WaiterId, until: Option<Timestamp>) {
        let entry = until.map(|until| self.wheel.arm(Timer::Wait(id), until, &mut self.generations));
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.entry = entry;
        }
    }

    /// Forgets a waiter, in whatever state; those behind it are to be looked at.
    pub fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        self.leave_queues(id);
        let waiter = self.waiters.remove(id)?;
        self.forget_prior_bindings(id, &waiter.prior_connections());
        if let Entry::Occupied(mut ids) = self.by_owner.entry(waiter.owner.digest()) {
            ids.get_mut().retain(|other| *other != id);
            if ids.get().is_empty() {
                ids.remove();
            }
        }
        if waiter.is_waiting() {
            for key in &waiter.keys {
                self.mark_ready(waiter.db, &key.name);
            }
        }
        Some(waiter)
    }

    /// A waiter was granted what it waited for.
    pub(crate) fn granted(&mut self, id: WaiterId, given: PerKey<GrantUndo>) {
        self.leave_queues(id);
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.state = State::Granted(Grant { given, confirmed: false, places: Vec::new() });
        }
        self.note_prior_bindings(id);
    }

    /// What was granted to a waiter has taken holds over from other connections.
    fn note_prior_bindings(&mut self, id: WaiterId) {
        for connection in self.waiters.get(id).map(Waiter::prior_connections).unwrap_or_default() {
            self.prior_bindings.entry(connection).or_default().insert(id);
        }
    }

    /// What was granted to a waiter is not to be taken back any more, or is being taken back.
    fn forget_prior_bindings(&mut self, id: WaiterId, connections: &[Connection]) {
        for connection in connections {
            if let Entry::Occupied(mut ids) = self.prior_bindings.entry(*connection) {
                ids.get_mut().remove(&id);
                if ids.get().is_empty() {
                    ids.remove();
                }
            }
        }
    }

    /// Which of its keys keeps a waiter waiting.
    pub(crate) fn note_blocked_on(&mut self, id: WaiterId, at: usize) {
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.blocked_on = at;
        }
    }

    fn leave_queues(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.get_mut(id).filter(|waiter| waiter.is_waiting()) else { return };
        self.waiting -= 1;
        if let Some(entry) = waiter.entry.take() {
            self.wheel.disarm(entry);
        }
        if let Some((number, _)) = waiter.check.take() {
            self.checks.remove(&number);
        }
        let Some(queues) = self.queues.get_mut(waiter.db.0 as usize) else { return };
        for key in &waiter.keys {
            let Some(queue) = queues.get_mut(&key.name) else { continue };
            queue.leave(Position::new(key.upgrade, waiter.ticket));
            if queue.is_empty() {
                if let Some(Reservation { timer, .. }) = queue.reservation {
                    self.wheel.disarm(timer);
                }
                queues.remove(&key.name);
                self.contended -= 1;
            }
        }
    }

    /// The reply of a granted waiter has reached its client's connection.
    pub fn delivered(&mut self, id: WaiterId) {
        if self.waiters.get(id).is_some_and(|waiter| !waiter.is_waiting()) {
            self.remove(id);
        }
    }

    /// A waiter's client has gone. True when it had been granted and that is to be taken back.
    pub fn client_gone(&mut self, id: WaiterId) -> bool {
        match self.waiters.get(id).map(Waiter::grant) {
            Some(Some(grant)) if !grant.confirmed => {
                self.undelivered.push(id);
                true
            }
            _ => {
                self.remove(id);
                false
            }
        }
    }

    /// An owner has shown that it knows what it holds on a key.
    pub(crate) fn confirm(&mut self, db: Db, name: &[u8], owner: &Owner) {
        for id in self.by_owner.get(&owner.digest()).into_iter().flatten() {
            if let Some(waiter) = self.waiters.get_mut(*id)
                && waiter.owner == *owner
                && waiter.lies_at(db, name)
                && let State::Granted(grant) = &mut waiter.state
            {
                grant.confirmed = true;
            }
        }
    }

    /// A lock was renamed or moved: what was granted on it, and nobody may have learnt of, lies there now.
    pub(crate) fn carried(&mut self, from: (Db, &[u8]), to: (Db, &[u8]), lock: &Lock) {
        if self.waiters.len() == self.waiting {
            return;
        }
        let WaitTable { waiters, by_owner, .. } = self;
        let mut carry = |ids: &[WaiterId]| {
            for id in ids {
                let Some(waiter) = waiters.get_mut(*id).filter(|waiter| waiter.lies_at(from.0, from.1)) else {
                    continue;
                };
                if lock.holds.get(waiter.owner.as_bytes()).is_some() {
                    waiter.relocate(|place| {
                        if place.0 == from.0 && *place.1 == *from.1 {
                            *place = (to.0, KeyName::from_slice(to.1));
                        }
                    });
                }
            }
        };
        // Whichever are fewer.
        if lock.holds.len() <= by_owner.len() {
            lock.holds.iter().filter_map(|(owner, _)| by_owner.get(&owner.digest())).for_each(|ids| carry(ids));
        } else {
            by_owner.values().for_each(|ids| carry(ids));
        }
    }

    /// Two databases changed places, and with them what was granted there.
    pub(crate) fn swapped(&mut self, one: Db, other: Db) {
        if self.waiters.len() == self.waiting {
            return;
        }
        for id in self.by_owner.values().flatten() {
            let Some(waiter) = self.waiters.get_mut(*id) else { continue };
            waiter.relocate(|(db, _)| {
                if *db == one {
                    *db = other;
                } else if *db == other {
                    *db = one;
                }
            });
        }
    }

    /// A connection has closed: what was bound to it before it was granted anew by another is to be, when that is taken
    /// back, as its closing would have left it. (What was granted by this one is taken back before anything ends that
    /// is bound.)
    ///
    /// How many grants were looked at for that.
    pub(crate) fn closed(&mut self, connection: Connection, now: Timestamp) -> usize {
        let Some(ids) = self.prior_bindings.remove(&connection) else { return 0 };
        for id in &ids {
            let Some(Waiter { state: State::Granted(grant), .. }) = self.waiters.get_mut(*id) else { continue };
            for prior in grant.given.iter_mut().filter_map(|given| given.prior.as_mut()) {
                if let Some(session) = prior.session.take_if(|session| session.connection == connection) {
                    prior.closed_until = Some(now + session.grace);
                }
            }
        }
        ids.len()
    }

    /// A line is to be looked at, because of something that was not done by a step on its key.
    pub fn mark_ready(&mut self, db: Db, name: &[u8]) {
        self.mark(db, name, Pending::Wake);
    }

    /// As [`WaitTable::mark_ready`], and the lock is another one, so that there may be a deadlock.
    pub fn mark_ready_and_check(&mut self, db: Db, name: &[u8]) {
        self.mark(db, name, Pending::WakeAndCheck);
    }

    fn mark(&mut self, db: Db, name: &[u8], pending: Pending) {
        let Some(queue) = self.queue_mut(db, name) else { return };
        if queue.mark(pending) {
            self.ready.push_back((db, KeyName::from_slice(name)));
        }
    }

    /// As [`WaitTable::mark_ready_and_check`], of all lines of a database; None: of all databases.
    pub(crate) fn mark_all_ready_and_check(&mut self, db: Option<Db>) {
        self.mark_all(db, Pending::WakeAndCheck);
    }

    /// As [`WaitTable::mark_ready`], of all lines.
    pub(crate) fn mark_all_ready(&mut self) {
        self.mark_all(None, Pending::Wake);
    }

    fn mark_all(&mut self, db: Option<Db>, pending: Pending) {
        let WaitTable { queues, ready, .. } = self;
        for (number, queues) in (0..).zip(queues) {
            if db.is_none_or(|db| db.0 == number) {
                for (name, queue) in queues {
                    if queue.mark(pending) {
                        ready.push_back((Db(number), name.clone()));
                    }
                }
            }
        }
    }

    /// An owner has got something: all lines that it stands in are to be looked at, as far as to where it stands.
    pub(crate) fn mark_ready_for(&mut self, owner: &Owner) {
        let WaitTable { waiters, queues, by_owner, ready, wakes_begun, .. } = self;
        for id in by_owner.get(&owner.digest()).into_iter().flatten() {
            let Some(waiter) = waiters.get_mut(*id) else { continue };
            // An owner may get very much while it waits in very many lines: they are on the list already.
            if !waiter.is_waiting() || waiter.marked_at == *wakes_begun || waiter.owner != *owner {
                continue;
            }
            waiter.marked_at = *wakes_begun;
            let Some(queues) = queues.get_mut(waiter.db.0 as usize) else { continue };
            for key in &waiter.keys {
                let Some(queue) = queues.get_mut(&key.name) else { continue };
                queue.allow_bypass(waiter.position_at(key));
                if queue.mark(Pending::Wake) {
                    ready.push_back((waiter.db, key.name.clone()));
                }
            }
        }
    }

    /// An owner's waiters may be exceptions from now on.
    pub(crate) fn allow_bypass(&mut self, owner: &Owner) {
        let WaitTable { waiters, queues, by_owner, .. } = self;
        for id in by_owner.get(&owner.digest()).into_iter().flatten() {
            let Some(waiter) = waiters.get(*id) else { continue };
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

    /// The holders of a lock who wait for something.
    pub(crate) fn waiting_holders(&self, lock: &Lock) -> Vec<Owner> {
        if lock.holds.len() <= self.by_owner.len() {
            lock.holds.iter().map(|(who, _)| who).filter(|who| self.of(who).next().is_some()).cloned().collect()
        } else {
            let waiting = self.all_waiting().map(|waiter| &waiter.owner);
            waiting.filter(|who| lock.holds.get(who.as_bytes()).is_some()).cloned().collect()
        }
    }

    /// Whether there is work for the module's own hand.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        !self.ready.is_empty() || !self.checks.is_empty() || !self.undelivered.is_empty()
    }

    /// The next grant to take back. It stays the next one until that is done.
    #[must_use]
    pub(crate) fn next_undelivered(&mut self) -> Option<Job> {
        while let Some(id) = self.undelivered.last() {
            match self.waiters.get(*id) {
                Some(waiter) => {
                    let (db, _) = waiter.place(0);
                    let places = (0..waiter.keys.len()).map(|at| waiter.place(at));
                    let names = places.filter(|(at, _)| *at == db).map(|(_, name)| name.clone()).collect();
                    return Some(Job::RevokeUndelivered(*id, db, names));
                }
                None => self.undelivered.pop(),
            };
        }
        None
    }

    /// Takes what a lost waiter was granted out of the room, as far as it lies in this database now; the waiter is
    /// forgotten when nothing is left of it. None when there is nothing.
    pub(crate) fn take_undelivered(&mut self, id: WaiterId, db: Db) -> Option<Undelivered> {
        let prior_connections = self.waiters.get(id)?.prior_connections();
        self.forget_prior_bindings(id, &prior_connections);
        let waiter = self.waiters.get_mut(id)?;
        let (owner, mode) = (waiter.owner.clone(), waiter.operation.mode);
        let State::Granted(grant) = &mut waiter.state else { return None };
        let confirmed = grant.confirmed;
        let (mut keys, mut given) = (PerKey::new(), PerKey::new());
        let mut places = grant.places.drain(..);
        let (mut undelivered, mut left) = (PerKey::new(), Vec::new());
        for (key, one) in waiter.keys.drain(..).zip(grant.given.drain(..)) {
            match places.next() {
                Some((at, name)) if at != db => {
                    keys.push(key);
                    given.push(one);
                    left.push((at, name));
                }
                Some((_, name)) => undelivered.push((name, one)),
                None => undelivered.push((key.name, one)),
            }
        }
        drop(places);
        (grant.given, grant.places, waiter.keys) = (given, left, keys);
        if waiter.keys.is_empty() {
            self.remove(id);
        }
        self.note_prior_bindings(id);
        Some(Undelivered { owner, mode, confirmed, given: undelivered })
    }

    /// Whether there are more grants to take back.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.undelivered.iter().any(|id| self.waiters.get(*id).is_some())
    }

    /// The next piece of other work for the module's own hand. It stays the next one until it is done.
    #[must_use]
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        // Who waits no more has left the list.
        if let Some((_, id)) = self.checks.last_key_value()
            && let Some(waiter) = self.waiters.get(*id)
        {
            return Some(Job::Check(*id, waiter.db, waiter.keys[0].name.clone()));
        }
        while let Some((db, name)) = self.ready.front() {
            if self.queue(*db, name).is_some_and(WaitQueue::is_pending) {
                return Some(Job::ServeQueue(*db, name.clone()));
            }
            self.ready.pop_front();
        }
        None
    }

    /// A waiter is to be checked for deadlocks once more.
    pub(crate) fn mark_for_check(&mut self, id: WaiterId, cause: CycleCause) {
        let Some(waiter) = self.waiters.get_mut(id).filter(|waiter| waiter.is_waiting()) else { return };
        match &mut waiter.check {
            Some((_, wanted)) => *wanted = cause.max(*wanted),
            None => {
                self.checks_marked += 1;
                waiter.check = Some((self.checks_marked, cause));
                self.checks.insert(self.checks_marked, id);
            }
        }
    }

    /// A waiter is being checked now. What may have closed a circle with it.
    pub(crate) fn take_check(&mut self, id: WaiterId) -> Option<CycleCause> {
        let (number, cause) = self.waiters.get_mut(id)?.check.take()?;
        self.checks.remove(&number);
        Some(cause)
    }

    /// A line is being looked at now. True when it is to be checked for deadlocks as well.
    pub(crate) fn take_pending(&mut self, db: Db, name: &[u8]) -> bool {
        self.wakes_begun += 1;
        self.queue_mut(db, name).and_then(WaitQueue::take_pending) == Some(Pending::WakeAndCheck)
    }

    /// A free key is kept for the first in its line from now on, at most so long.
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

    /// A key was taken: it is not kept any more.
    pub(crate) fn clear_reservation(&mut self, db: Db, name: &[u8]) {
        if let Some(Reservation { timer, .. }) = self.queue_mut(db, name).and_then(|queue| queue.reservation.take()) {
            self.wheel.disarm(timer);
        }
    }

    /// A free key is kept no longer for this owner, or whoever it is kept for: those behind who fit pass, as if its
    /// time were up.
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

    /// Finds who waits no more because its time is up, and forgets it; does a bounded piece of work on the way.
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

    /// Everybody, waiting or granted.
    pub(crate) fn everybody(&self) -> impl Iterator<Item = WaiterId> {
        self.by_owner.values().flatten().copied()
    }

    /// The first of the invariants W1, W3 and W4 that does not hold, by its number.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let mut seats = 0;
        let mut asked = BTreeSet::new();
        for (id, waiter) in self.everybody().filter_map(|id| Some((id, self.waiters.get(id)?))) {
            if !waiter.is_waiting() {
                continue;
            }
            seats += waiter.keys.len();
            if !waiter.keys.iter().all(|key| {
                self.queue(waiter.db, &key.name).is_some_and(|queue| queue.at(waiter.position_at(key)) == Some(id))
            }) {
                return Some("W1");
            }
            if waiter
                .until
                .is_some_and(|until| !waiter.entry.is_some_and(|at| self.wheel.covers(at, until, Timestamp(0))))
            {
                return Some("W3");
            }
            let writes = waiter.operation.mode == Mode::Write;
            if !waiter.keys.iter().all(|key| asked.insert((waiter.db, key.name.clone(), waiter.owner.clone(), writes)))
            {
                return Some("W4");
            }
        }
        let queues = self.queues.iter().flat_map(BTreeMap::values);
        let stand: usize = queues.clone().map(WaitQueue::len).sum();
        (stand != seats || !queues.clone().all(WaitQueue::is_sound)).then_some("W1")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::model::fence::Fence;
    use crate::lock::model::hold::{Epoch, Hold, Session};
    use crate::lock::model::request::Wait;
    use crate::lock::model::session::Sessions;
    use crate::lock::wait::waiter::PriorHold;
    use alloc::format;

    #[test]
    fn a_connection_that_closes_is_told_to_grants_that_took_its_holds_over_and_to_no_other() {
        // What could go wrong: a thousand connections close at once while a thousand grants are under way, and each is
        // told to each.
        let (mut wait_table, sessions) = (WaitTable::new(), Sessions::new());
        let session = |client| Session { connection: sessions.connection(client), grace: Millis(5) };
        let operation = |client| Acquire {
            mode: Mode::Write,
            lease: Millis(1_000),
            note: None,
            wait: Wait::Forever,
            retry: None,
            session: Some(session(client)),
        };
        let waiters: Vec<WaiterId> = (0..1_000)
            .map(|n| {
                let owner = Owner::new(format!("owner{n}").as_bytes());
                let key = Wanted { name: KeyName::from_slice(format!("key{n}").as_bytes()), upgrade: false };
                let id = wait_table.admit((&owner, &operation(n)), Db(0), PerKey::from([key]), Timestamp(0), None);
                let mut hold = Hold::new(Fence::new(1).expect("above 0"), Timestamp(9), Timestamp(0), Epoch::FIRST);
                // Half of them were bound to another connection before.
                hold.bind((n % 2 == 0).then(|| session(10_000 + n)));
                let given = GrantUndo {
                    fence: hold.fence,
                    added: 1,
                    deadline: hold.deadline,
                    session: Some(session(n)),
                    prior: Some(PriorHold::of(&hold)),
                };
                wait_table.granted(id, PerKey::from([given]));
                id
            })
            .collect();
        let told = (0..20_000).map(|client| wait_table.closed(sessions.connection(client), Timestamp(7)));
        assert_eq!(told.sum::<usize>(), 500);
        for (n, id) in waiters.iter().enumerate() {
            let prior = wait_table.waiter(*id).and_then(Waiter::grant).and_then(|grant| grant.given[0].prior);
            let closed_until = (n % 2 == 0).then_some(Timestamp(7) + Millis(5));
            assert_eq!(prior.map(|prior| (prior.session, prior.closed_until)), Some((None, closed_until)));
            wait_table.delivered(*id);
        }
        assert!(wait_table.is_empty() && wait_table.prior_bindings.is_empty());
    }

    #[test]
    fn of_a_grant_that_was_delivered_nothing_is_kept() {
        let (mut wait_table, sessions) = (WaitTable::new(), Sessions::new());
        let session = |client| Session { connection: sessions.connection(client), grace: Millis(5) };
        let (mode, wait, lease) = (Mode::Write, Wait::Forever, Millis(1_000));
        let operation = Acquire { mode, lease, note: None, wait, retry: None, session: Some(session(1)) };
        let key = Wanted { name: KeyName::from_slice(b"key"), upgrade: false };
        let id = wait_table.admit((&Owner::new(b"o"), &operation), Db(0), PerKey::from([key]), Timestamp(0), None);
        let mut hold = Hold::new(Fence::new(1).expect("above 0"), Timestamp(9), Timestamp(0), Epoch::FIRST);
        hold.bind(Some(session(2)));
        let (fence, deadline, prior) = (hold.fence, hold.deadline, Some(PriorHold::of(&hold)));
        wait_table
            .granted(id, PerKey::from([GrantUndo { fence, added: 1, deadline, session: Some(session(1)), prior }]));
        wait_table.delivered(id);
        assert!(wait_table.prior_bindings.is_empty());
    }
}
