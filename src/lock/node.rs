//! What a node knows beside its locks: the fence clock, the index of leases, the term. Requests are served in serve.rs,
//! facts are taken in in fact.rs; here is what happens to keys and to the node without either.

use super::change::{self, Effects, close, settle};
use super::fence::{Fence, FenceClock};
use super::hold::{Connection, Term};
use super::key::{Db, KeyIndex, KeyName};
use super::keyspace::{Keyspace, Place};
use super::limits::Limits;
use super::room::Room;
use super::session::{Sessions, Trace};
use super::time::{Now, Timestamp, WallTime};
use super::value::Lock;
use super::wait::RUN;
use super::wheel::{EntryId, Generations, Leases, Look};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What a node knows beside the locks themselves.
#[derive(Debug)]
pub struct Node {
    /// What is allowed.
    pub limits: Limits,
    pub(super) fences: FenceClock,
    pub(super) term: Term,
    /// Who waits.
    pub(super) room: Room,
    /// Which holds end with which connection.
    pub(super) sessions: Sessions,
    /// The index of leases of each database, by its number.
    leases: Vec<Option<Box<Leases>>>,
    /// One count for all of them, so that an entry's id means nothing in another database.
    generations: Generations,
    /// Indexes of flushed databases, whose memory is given back little by little.
    retired: Vec<Leases>,
}

/// What a look for due leases found.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// A lease on this key may be over: open the key and call [`Node::lapse`].
    Key(Db, EntryId, KeyName),
    /// Work was done; look again, after a look at the clock.
    Again,
    /// Nothing is due.
    Nothing,
}

impl Node {
    /// A node that has given no fence and knows no lock.
    #[must_use]
    pub const fn new(limits: Limits) -> Node {
        Node {
            limits,
            fences: FenceClock::new(),
            term: Term::FIRST,
            room: Room::new(),
            sessions: Sessions::new(),
            leases: Vec::new(),
            generations: Generations::new(),
            retired: Vec::new(),
        }
    }

    /// A lock came to another name or database: it goes on there, carried.
    pub fn carry(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) {
        lock.holds.carry(now);
        for (owner, hold) in lock.holds.iter() {
            if let Some(session) = hold.session() {
                self.sessions.bind(db, name, owner, session.connection);
            }
        }
        self.room.want_check(db, name);
        self.follow_lock(db, name, lock, now);
    }

    /// A lock left its key, to go elsewhere or away: its lease is no longer looked after here, and who waited for it may
    /// have the key.
    pub fn forget(&mut self, db: Db, name: &[u8], trace: &Trace) {
        if let Some(id) = trace.lease {
            index_of(&mut self.leases, db).disarm(id);
        }
        self.sessions.forget(db, name, trace);
        if trace.held {
            // Whose hold has left may wait for the key with others, behind somebody from now on.
            self.room.want_check(db, name);
        } else {
            self.room.want_look(db, name);
        }
    }

    /// A database, or all of them, was emptied.
    pub fn flush(&mut self, db: Option<Db>) {
        // Above this, an index is given back little by little: to free a million entries takes a while.
        const AT_ONCE: usize = 4_096;
        let flushed = match db {
            None => 0..self.leases.len(),
            Some(Db(number)) => number as usize..self.leases.len().min(number as usize + 1),
        };
        let large = |leases: Option<Box<Leases>>| leases.filter(|leases| leases.len() > AT_ONCE).map(|leases| *leases);
        self.retired.extend(self.leases[flushed].iter_mut().filter_map(|leases| large(leases.take())));
        self.sessions.flush(db);
        self.room.want_checks(db);
    }

    /// Two databases changed places. What lay under a key of one lies under the same key of the other now, so every
    /// hold counts as carried.
    pub fn swap(&mut self, one: Db, other: Db) {
        if one == other {
            return;
        }
        reach(&mut self.leases, one.max(other));
        self.leases.swap(one.0 as usize, other.0 as usize);
        self.sessions.swap(one, other);
        self.term = self.term.next();
        // Who waits stays with the number of its database.
        for db in [one, other] {
            self.room.want_checks(Some(db));
        }
    }

    /// This node has become the primary: all its holds are carried, and its fences pass by those that the old primary
    /// may have given unseen.
    pub fn promote(&mut self, wall: WallTime) {
        self.term = self.term.next();
        self.fences.jump(wall, self.limits.promotion_skew);
    }

    /// This node serves slots that another one served until now.
    pub fn gain_slots(&mut self, wall: WallTime) {
        self.fences.lead(wall, self.limits.promotion_skew);
    }

    /// A fence was given elsewhere or before.
    pub fn observe_fence(&mut self, fence: Fence) {
        self.fences.observe(fence);
    }

    /// The last fence given or seen.
    #[must_use]
    pub fn last_fence(&self) -> Option<Fence> {
        self.fences.last()
    }

    /// How many keys have a running lease.
    #[must_use]
    pub fn leases_len(&self) -> usize {
        self.leases.iter().flatten().map(|leases| leases.len()).sum()
    }

    /// The next moment at which [`Node::due`] or [`Node::expired`] is worth calling; None when there is nothing to wait
    /// for.
    #[must_use]
    pub fn next_look(&self) -> Option<Timestamp> {
        let leases = self.leases.iter().flatten().filter_map(|leases| leases.next_look());
        leases.chain(self.room.next_look()).min()
    }

    /// Looks for a lease that is over, and does a bounded piece of work on the way.
    pub fn due(&mut self, now: Timestamp) -> Due {
        for (number, leases) in self.leases.iter_mut().enumerate() {
            match leases.as_mut().map_or(Look::Nothing, |leases| leases.look(now)) {
                Look::Due(id, key) => return Due::Key(Db(number as u32), id, key),
                Look::Again => return Due::Again,
                Look::Nothing => {}
            }
        }
        Due::Nothing
    }

    /// Gives back a bounded piece of the memory of flushed databases' indexes; false when there is none left.
    pub fn shed(&mut self) -> bool {
        let Some(leases) = self.retired.last_mut() else { return self.sessions.shed() };
        if !leases.shed() {
            self.retired.pop();
        }
        true
    }

    /// Drops an entry whose key has something else now.
    pub fn drop_entry(&mut self, db: Db, entry: EntryId) {
        index_of(&mut self.leases, db).disarm(entry);
    }

    /// Ends at most `most` holds that are over on the key of a due entry, and lets in who waited for that.
    ///
    /// An entry whose lock is not there any more (its value was lost without a word from the server) is dropped.
    pub fn lapse<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        entry: EntryId,
        now: Now,
        most: usize,
    ) -> Effects {
        let mut effects = Effects::new();
        let Place { db, lock, .. } = keys.place(key);
        if lock.is_none_or(|lock| lock.lease != Some(entry)) {
            index_of(&mut self.leases, db).disarm(entry);
            return effects;
        }
        change::lapse(keys, key, now.mono, most, &mut effects);
        let more =
            keys.lock(key).and_then(|lock| lock.holds.earliest()).is_some_and(|(deadline, _)| deadline <= now.mono);
        if !more {
            self.settle_and_look(keys, key, now, most, &mut effects);
        }
        self.follow(keys, &mut effects, now.mono);
        effects
    }

    /// The connection of a client has closed. True when holds are bound to it, which is work for the module's own hand now
    /// ([`Work::Close`](super::room::Work::Close)).
    pub fn close(&mut self, client: u64, now: Timestamp) -> bool {
        let connection = self.sessions.connection(client);
        self.room.closed(connection, now);
        self.sessions.close(connection, now)
    }

    /// Ends at most `most` of the holds on a key that are bound to a connection which has closed, or cuts their leases, and
    /// lets in who waited for that.
    pub fn end_session<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        connection: Connection,
        now: Now,
        most: usize,
    ) -> Effects {
        let mut effects = Effects::new();
        let Place { db, name, .. } = keys.place(key);
        let name = KeyName::from_slice(name);
        for owner in self.sessions.owners_on(db, &name, connection, most) {
            if let Some(lock) = keys.lock(key) {
                close(lock, key, &self.sessions, &owner, now.mono, &mut effects);
            }
            self.sessions.unbind(db, &name, &owner, connection);
        }
        self.settle_and_look(keys, key, now, most, &mut effects);
        self.follow(keys, &mut effects, now.mono);
        effects
    }

    /// Settles a key, all of it, and looks at its line; or puts both off, where connections have closed and it may take long:
    /// until the holds that are bound to them have been ended bit by bit.
    fn settle_and_look<K: Keyspace>(
        &mut self,
        keys: &mut K,
        key: KeyIndex,
        now: Now,
        most: usize,
        effects: &mut Effects,
    ) {
        if self.sessions.some_closed() {
            let Place { db, name, lock } = keys.place(key);
            if lock.is_some_and(|lock| lock.holds.len() > most) {
                return self.room.want_look(db, name);
            }
            settle(keys, key, &self.sessions, now.mono, effects);
        }
        self.look(keys, key, now, RUN, effects);
    }

    /// Leaves the holds on a key as they are that are bound to a connection which has closed: the key is not this node's any
    /// more to change, or it is no lock.
    pub fn forgo_session(&mut self, db: Db, name: &[u8], connection: Connection) {
        for owner in self.sessions.owners_on(db, name, connection, usize::MAX) {
            self.sessions.unbind(db, name, &owner, connection);
        }
    }

    /// Who knows which holds are bound to a connection.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Whether the index has an entry for this lock that stands no later than `deadline` (I4).
    #[must_use]
    pub fn covers(&self, db: Db, lock: &Lock, deadline: Timestamp) -> bool {
        let leases = self.leases.get(db.0 as usize).and_then(Option::as_ref);
        leases.zip(lock.lease).is_some_and(|(leases, id)| leases.covers(id, deadline, Timestamp(0)))
    }

    /// The first of the waiting room's invariants that does not hold, by its number.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        self.room.broken_invariant()
    }

    /// Lets the indexes follow what a step did.
    pub(super) fn follow<K: Keyspace>(&mut self, keys: &mut K, effects: &mut Effects, now: Timestamp) {
        // Before what the step put in their places: it may be bound just as they were.
        self.forget_gone(keys);
        for key in keys.all() {
            if let Place { db, name, lock: Some(lock) } = keys.place(key) {
                effects.alarming |= self.follow_lock(db, name, lock, now);
            }
        }
        effects.alarming |= !effects.bonds.is_empty();
        if self.room.waiting() > 0 {
            for change in effects.changes.iter().filter(|change| change.ended) {
                let Place { db, name, .. } = keys.place(change.key);
                // Who holds a key and asks for it with others waits for nobody there; from now on it does.
                if self.room.waiting_of(&change.owner).any(|(_, waiter)| waiter.wants(db, name)) {
                    self.check_for_latecomer(&change.owner);
                }
            }
        }
        for bond in effects.bonds.drain(..) {
            let Place { db, name, .. } = keys.place(bond.key);
            if let Some(was) = bond.was {
                self.sessions.unbind(db, name, &bond.owner, was.connection);
            }
            if let Some(is) = bond.is {
                self.sessions.bind(db, name, &bond.owner, is.connection);
            }
        }
    }

    /// Forgets locks that left their keys because the step looked there.
    pub(super) fn forget_gone<K: Keyspace>(&mut self, keys: &mut K) {
        for (db, name, trace) in keys.gone() {
            self.forget(db, &name, &trace);
        }
    }

    /// Keeps I4. An entry that stands early enough stays: moving it at every re-entry would cost more than one look too
    /// many.
    ///
    /// Whether an entry stands where none stood.
    pub(super) fn follow_lock(&mut self, db: Db, name: &[u8], lock: &mut Lock, now: Timestamp) -> bool {
        let earliest = lock.holds.earliest().map(|(deadline, _)| deadline);
        let leases = index_of(&mut self.leases, db);
        match (lock.lease, earliest) {
            (Some(id), Some(deadline)) if leases.covers(id, deadline, now) => false,
            (Some(id), Some(deadline)) if leases.rearm(id, deadline) => true,
            (_, Some(deadline)) => {
                lock.lease = Some(leases.arm(KeyName::from_slice(name), deadline, &mut self.generations));
                true
            }
            (Some(id), None) => {
                leases.disarm(id);
                lock.lease = None;
                false
            }
            (None, None) => false,
        }
    }
}

/// The index of leases of a database, made when it is first needed.
fn index_of(leases: &mut Vec<Option<Box<Leases>>>, db: Db) -> &mut Leases {
    reach(leases, db);
    leases[db.0 as usize].get_or_insert_default()
}

/// Makes a place for the index of a database.
fn reach(leases: &mut Vec<Option<Box<Leases>>>, Db(number): Db) {
    let needed = number as usize + 1;
    if leases.len() < needed {
        leases.resize_with(needed, || None);
    }
}
