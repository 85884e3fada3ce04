//! Sessions: holds that end with the connection that they are bound to. Saves nothing, and decides nothing about locks.
//!
//! That a hold is bound lies in the hold itself, so that it goes where the hold goes. Here is the way back, from a
//! connection to the keys of its holds ([`Holds::owners_bound_to`](super::holds::Holds::owners_bound_to) goes on from
//! there), and which connections have closed while holds were bound to them. Between that moment and the piece of work
//! that ends a hold, it counts as over all the same ([`Sessions::end_of`]).
//!
//! - S1: every hold that is bound to an open connection is found here, and whatever is found here is such a hold.

use super::fence::Fence;
use super::hashing::KeyedHash;
use super::hold::{Connection, Hold, Session};
use super::key::{Db, KeyName};
use super::lock::Lock;
use super::offers::OfferId;
use super::time::Timestamp;
use crate::collections::arena::Id;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// How many holds on which keys are bound to which connections. A lock that comes or leaves is one entry for each
/// connection that holds it, of which the server allows so many, however many holds are theirs.
type Bound = BTreeMap<(Connection, KeyName), usize>;

/// The way from connections to their holds.
#[derive(Debug)]
pub struct Sessions {
    /// By database.
    bound: Vec<Bound>,
    /// Connections that have closed, and when, as long as holds are bound to them.
    closed: BTreeMap<Connection, Timestamp>,
    /// Bindings that no client may know of, by the fences of their holds: the grants that made them are not delivered
    /// yet.
    tentative: BTreeSet<(Connection, Fence)>,
    /// The indexes of flushed databases, whose memory is given back little by little.
    retired: Vec<Bound>,
    /// How often all was forgotten.
    epoch: u32,
    /// How many holds are bound, in all databases.
    len: usize,
    /// The databases in which some are.
    peopled: BTreeSet<u32>,
    hash: KeyedHash,
}

/// What the manager must clean up after a lock was unlinked.
#[derive(Clone, Debug, Default)]
pub struct UnlinkedLock {
    pub(crate) lease: Option<Id>,
    /// True if it was held.
    pub(crate) held: bool,
    /// To which connections its holds were bound, and how many each.
    bound: Vec<(Connection, usize)>,
    /// The offers that its holds are part of.
    pub(crate) offers: Vec<OfferId>,
}

impl UnlinkedLock {
    /// Of this lock.
    #[must_use]
    pub fn of(lock: &Lock) -> UnlinkedLock {
        UnlinkedLock {
            lease: lock.lease,
            held: !lock.is_free(),
            bound: lock.holds.connections(),
            offers: lock.holds.offers().collect(),
        }
    }
}

impl UnlinkedLock {
    /// True if no hold on it was bound to a connection, or offered.
    pub(crate) fn is_plain(&self) -> bool {
        self.bound.is_empty() && self.offers.is_empty()
    }
}

impl Sessions {
    /// No connection has any.
    pub(crate) const fn new(hash: KeyedHash) -> Sessions {
        Sessions {
            bound: Vec::new(),
            closed: BTreeMap::new(),
            tentative: BTreeSet::new(),
            retired: Vec::new(),
            epoch: 0,
            len: 0,
            peopled: BTreeSet::new(),
            hash,
        }
    }

    /// Makes a name of these bytes, to be looked up.
    #[must_use]
    pub(crate) fn name(&self, bytes: &[u8]) -> KeyName {
        KeyName::new(bytes, self.hash)
    }

    /// The connection of a client that is connected now.
    #[must_use]
    pub fn connection(&self, client: u64) -> Connection {
        Connection { client, epoch: self.epoch }
    }

    /// How many holds are bound to a connection.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All keys on which holds are bound to a connection: the connection, the key and how many.
    pub fn iter(&self) -> impl Iterator<Item = (Connection, Db, &KeyName, usize)> {
        let of = |(db, bound)| {
            let bound: &Bound = bound;
            bound.iter().map(move |((connection, name), count)| (*connection, Db(db as u32), name, *count))
        };
        self.bound.iter().enumerate().flat_map(of)
    }

    /// The session that a hold is bound by; None when it is not, or not on this node any more, or its connection has
    /// closed.
    #[must_use]
    pub fn of(&self, db: Db, name: &KeyName, hold: &Hold) -> Option<Session> {
        let session = hold.session().filter(|session| !self.closed.contains_key(&session.connection))?;
        self.bound.get(db.0 as usize)?.contains_key(&(session.connection, name.clone())).then_some(session)
    }

    /// When a hold ends as things are: with its lease, or with what its closed connection has left it.
    #[must_use]
    pub fn end_of(&self, hold: &Hold) -> Timestamp {
        if self.closed.is_empty() {
            return hold.deadline;
        }
        self.end_of_grace(hold).map_or(hold.deadline, |end| end.min(hold.deadline))
    }

    /// Until when its closed connection leaves a hold to its owner; None when it is bound to none, or to an open one.
    pub(crate) fn end_of_grace(&self, hold: &Hold) -> Option<Timestamp> {
        let session = hold.session().filter(|session| !self.tentative.contains(&(session.connection, hold.fence())))?;
        self.closed.get(&session.connection).map(|at| *at + session.grace)
    }

    /// True if what a session binds is over at this time, all of it: its connection has closed, and its grace is over.
    /// Where a grant is not delivered yet that has bound a hold to the same connection, that is not known.
    pub(crate) fn has_ended(&self, session: Session, now: Timestamp) -> bool {
        let Session { connection, grace } = session;
        let is_tentative = || {
            let last = self.tentative.range(..=(connection, Fence::MAX)).next_back();
            last.is_some_and(|(whose, _)| *whose == connection)
        };
        self.closed.get(&connection).is_some_and(|at| *at + grace <= now) && !is_tentative()
    }

    /// True if a connection has closed to which holds are bound.
    pub(crate) fn is_closed(&self, connection: Connection) -> bool {
        self.closed.contains_key(&connection)
    }

    /// The connections that have closed, as long as holds are bound to them.
    pub(crate) fn closed(&self) -> impl ExactSizeIterator<Item = Connection> {
        self.closed.keys().copied()
    }

    /// True if there are closed connections whose holds may not have been ended yet.
    #[must_use]
    pub fn some_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// So many holds on a key were bound to a connection.
    pub(crate) fn bind(&mut self, db: Db, name: &KeyName, connection: Connection, count: usize) {
        // What was bound before all was forgotten stays unbound, wherever it goes.
        if connection.epoch != self.epoch {
            return;
        }
        let at = db.0 as usize;
        if self.bound.len() <= at {
            self.bound.resize_with(at + 1, Bound::new);
        }
        if self.bound[at].is_empty() {
            self.peopled.insert(db.0);
        }
        *self.bound[at].entry((connection, name.clone())).or_default() += count;
        self.len += count;
    }

    /// So many of them are bound to it no more.
    pub(crate) fn unbind(&mut self, db: Db, name: &KeyName, connection: Connection, count: usize) {
        let Some(bound) = self.bound.get_mut(db.0 as usize) else { return };
        let Entry::Occupied(mut of) = bound.entry((connection, name.clone())) else { return };
        let count = count.min(*of.get());
        *of.get_mut() -= count;
        self.len -= count;
        if *of.get() == 0 {
            of.remove();
            if bound.is_empty() {
                self.peopled.remove(&db.0);
            }
        }
    }

    /// None of them is.
    pub(crate) fn unbind_all(&mut self, db: Db, name: &KeyName, connection: Connection) {
        self.unbind(db, name, connection, usize::MAX);
    }

    /// A hold was bound by a grant that is yet to be delivered.
    pub(crate) fn bind_tentatively(&mut self, connection: Connection, fence: Fence) {
        self.tentative.insert((connection, fence));
    }

    /// The grant was delivered, or is being taken back.
    pub(crate) fn confirm_binding(&mut self, connection: Connection, fence: Fence) {
        self.tentative.remove(&(connection, fence));
    }

    /// A lock left its key.
    pub(crate) fn on_unlinked(&mut self, db: Db, name: &KeyName, unlinked: &UnlinkedLock) {
        for (connection, count) in &unlinked.bound {
            self.unbind(db, name, *connection, *count);
        }
    }

    /// A connection has closed. True when holds are bound to it: there is work to do.
    pub(crate) fn close(&mut self, connection: Connection, now: Timestamp) -> bool {
        let has_some = self.peopled.iter().any(|db| self.first_of(Db(*db), connection).is_some());
        if has_some {
            self.closed.insert(connection, now);
        }
        has_some
    }

    /// The next key on which holds are bound to a connection that has closed.
    pub(crate) fn next_closed(&mut self) -> Option<(Connection, Db, KeyName)> {
        while let Some((connection, _)) = self.closed.first_key_value() {
            let connection = *connection;
            for db in self.peopled.iter().copied().map(Db) {
                if let Some(name) = self.first_of(db, connection) {
                    return Some((connection, db, name.clone()));
                }
            }
            self.closed.remove(&connection);
        }
        None
    }

    fn first_of(&self, db: Db, connection: Connection) -> Option<&KeyName> {
        let ((whose, name), _) = self.bound.get(db.0 as usize)?.range((connection, KeyName::EMPTY)..).next()?;
        (*whose == connection).then_some(name)
    }

    /// A database, or all of them, was emptied.
    pub(crate) fn flush(&mut self, db: Option<Db>) {
        for (number, bound) in self.bound.iter_mut().enumerate() {
            if db.is_none_or(|db| db.0 as usize == number) && !bound.is_empty() {
                self.len -= bound.values().sum::<usize>();
                self.peopled.remove(&(number as u32));
                self.retired.push(core::mem::take(bound));
            }
        }
    }

    /// Two databases changed places.
    pub(crate) fn swap(&mut self, one: Db, other: Db) {
        let needed = one.max(other).0 as usize + 1;
        if self.bound.len() < needed {
            self.bound.resize_with(needed, Bound::new);
        }
        self.bound.swap(one.0 as usize, other.0 as usize);
        for db in [one, other] {
            match self.bound[db.0 as usize].is_empty() {
                true => self.peopled.remove(&db.0),
                false => self.peopled.insert(db.0),
            };
        }
    }

    /// Nothing is bound any more: this node has become a replica, where the primary ends all holds.
    pub(crate) fn dissolve(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.flush(None);
        self.closed.clear();
        self.tentative.clear();
    }

    /// Gives back a bounded piece of the memory of what was flushed; false when there is none left.
    pub(crate) fn shed(&mut self) -> bool {
        const ITEMS_PER_POLL: usize = 64;
        let Some(bound) = self.retired.last_mut() else { return false };
        for _ in 0..ITEMS_PER_POLL {
            if bound.pop_first().is_none() {
                self.retired.pop();
                return true;
            }
        }
        true
    }
}
