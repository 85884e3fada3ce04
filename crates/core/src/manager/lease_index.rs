//! The index of the leases of a whole data set: one wheel for each of its databases. Ends nothing, and reads no clock.
//!
//! A second one is made while a replica loads a data set beside the one that it serves. The new index takes the place
//! of the old one at the same moment as the new data. Some servers do not tell which database a key is loaded into. The
//! entries of such keys are *of unknown database* until the module has found their locks.

use crate::collections::wheel::{EntryId, Generations, Poll};
use crate::model::key::{Db, PlainName};
use crate::model::lock::Leases;
use crate::model::time::Timestamp;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// The leases of a data set.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By the number of the database.
    by_db: Vec<Option<Box<Database>>>,
    wakeups: Wakeups,
    /// The leases whose database is not known; None when there are none.
    db_unknown: Option<Box<Leases>>,
}

/// When each database is to be polled, the earliest first: a command must not go through all databases.
#[derive(Debug, Default)]
struct Wakeups {
    all: BTreeSet<(Timestamp, u32)>,
    /// The first of them: each change to a lock asks for it twice.
    first: Option<(Timestamp, u32)>,
}

impl Wakeups {
    const fn new() -> Wakeups {
        Wakeups { all: BTreeSet::new(), first: None }
    }

    fn insert(&mut self, wakeup: (Timestamp, u32)) {
        self.all.insert(wakeup);
        self.first = self.all.first().copied();
    }

    fn remove(&mut self, wakeup: (Timestamp, u32)) {
        self.all.remove(&wakeup);
        self.first = self.all.first().copied();
    }
}

/// The leases of a database.
#[derive(Debug, Default)]
struct Database {
    leases: Leases,
    /// Its wake-up. It may come for nothing, since disarming an entry leaves it as it is.
    wakeup: Option<Timestamp>,
}

/// The result of a poll for due leases.
#[derive(Debug, PartialEq, Eq)]
pub enum LeasePoll {
    /// A lease on this key may be over: open the key and call
    /// [`LockManager::lapse`](super::LockManager::lapse).
    Key(Db, EntryId, PlainName),
    /// A lease may be over on a key of this name, in a database that is not known yet. Search all databases, and call
    /// [`LockManager::resolve_db`](super::LockManager::resolve_db) with the lock that lies there. If it is in none of
    /// them, call [`LockManager::drop_db_unknown`](super::LockManager::drop_db_unknown).
    DbUnknown(EntryId, PlainName),
    /// Work was done: poll again, after reading the clock.
    Pending,
    /// Nothing is due.
    Idle,
}

impl Index {
    /// Without a lease.
    pub(crate) const fn new() -> Index {
        Index { by_db: Vec::new(), wakeups: Wakeups::new(), db_unknown: None }
    }

    /// How many keys have a running lease.
    pub(crate) fn len(&self) -> usize {
        self.all().map(|leases| leases.len()).sum()
    }

    /// The next moment at which [`Index::poll_leases`] is worth calling; None when there is no lease.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let db_unknown = self.db_unknown.as_ref().and_then(|leases| leases.next_deadline());
        self.first_wakeup().into_iter().chain(db_unknown).min()
    }

    /// When the databases are to be polled next. The timer may have to ring earlier when that has changed.
    pub(crate) fn first_wakeup(&self) -> Option<Timestamp> {
        self.wakeups.first.map(|(at, _)| at)
    }

    fn all(&self) -> impl Iterator<Item = &Leases> {
        self.by_db.iter().flatten().map(|database| &database.leases).chain(self.db_unknown.as_deref())
    }

    /// Finds a lease that is over; does a bounded piece of work on the way.
    pub(crate) fn poll_leases(&mut self, now: Timestamp) -> LeasePoll {
        if let Some((at, number)) = self.wakeups.first.filter(|(at, _)| *at <= now) {
            let Some(Some(database)) = self.by_db.get_mut(number as usize) else {
                self.wakeups.remove((at, number));
                return LeasePoll::Pending;
            };
            return match database.leases.poll(now) {
                Poll::Due(id, key) => LeasePoll::Key(Db(number), id, key),
                Poll::Pending => LeasePoll::Pending,
                Poll::Idle => {
                    database.set_wakeup(Db(number), database.leases.soonest(), &mut self.wakeups);
                    LeasePoll::Pending
                }
            };
        }
        match self.db_unknown.as_mut().map_or(Poll::Idle, |leases| leases.poll(now)) {
            Poll::Due(id, key) => LeasePoll::DbUnknown(id, key),
            Poll::Pending => LeasePoll::Pending,
            Poll::Idle => LeasePoll::Idle,
        }
    }

    /// The entry of unknown database that is due first, whenever that is; None when there is none.
    pub(crate) fn next_db_unknown(&mut self) -> Option<(EntryId, PlainName)> {
        loop {
            match self.db_unknown.as_mut()?.poll(Timestamp(u64::MAX)) {
                Poll::Due(id, key) => return Some((id, key)),
                Poll::Pending => {}
                Poll::Idle => self.db_unknown = None,
            }
        }
    }

    fn of(&self, db: Db) -> Option<&Leases> {
        self.by_db.get(db.0 as usize)?.as_ref().map(|database| &database.leases)
    }

    /// Adds an entry for a key of this database; None when that is not known.
    pub(crate) fn arm(
        &mut self,
        db: Option<Db>,
        name: &[u8],
        deadline: Timestamp,
        generations: &mut Generations,
    ) -> EntryId {
        let Some(db) = db else {
            return self.db_unknown.get_or_insert_default().arm(PlainName::from_slice(name), deadline, generations);
        };
        self.reach(db);
        let database = self.by_db[db.0 as usize].get_or_insert_default();
        let id = database.leases.arm(PlainName::from_slice(name), deadline, generations);
        database.wake_in_time(db, &mut self.wakeups);
        id
    }

    /// Moves the entry of a key of this database; false if it is not there.
    pub(crate) fn rearm(&mut self, db: Db, id: EntryId, deadline: Timestamp) -> bool {
        let Some(Some(database)) = self.by_db.get_mut(db.0 as usize) else { return false };
        let moved = database.leases.rearm(id, deadline);
        database.wake_in_time(db, &mut self.wakeups);
        moved
    }

    /// True if there is this entry for a key of this database, and may stay where it is.
    pub(crate) fn keeps(&self, db: Db, id: EntryId, deadline: Timestamp, now: Timestamp) -> bool {
        self.of(db).is_some_and(|leases| leases.covers(id, deadline, now))
    }

    /// Removes the entry of a key of this database.
    pub(crate) fn disarm(&mut self, db: Db, id: EntryId) {
        let placed = self.by_db.get_mut(db.0 as usize).and_then(Option::as_mut);
        if !placed.is_some_and(|database| database.leases.disarm(id)) {
            self.disarm_db_unknown(id);
        }
    }

    /// Removes an entry of unknown database, if this is one.
    pub(crate) fn disarm_db_unknown(&mut self, id: EntryId) {
        if let Some(leases) = &mut self.db_unknown {
            leases.disarm(id);
        }
    }

    /// True if there is this entry for a key of this database, and stands no later than `deadline` nor is it due.
    pub(crate) fn covers(&self, db: Db, id: EntryId, deadline: Timestamp, now: Timestamp) -> bool {
        self.of(db).into_iter().chain(self.db_unknown.as_deref()).any(|leases| leases.covers(id, deadline, now))
    }

    /// Two databases changed places.
    pub(crate) fn swap(&mut self, one: Db, other: Db) {
        self.reach(one.max(other));
        let mut wakeups = [one, other].map(|db| {
            let database = self.by_db[db.0 as usize].as_mut()?;
            let wakeup = database.wakeup;
            database.set_wakeup(db, None, &mut self.wakeups);
            wakeup
        });
        self.by_db.swap(one.0 as usize, other.0 as usize);
        wakeups.swap(0, 1);
        for (db, wakeup) in [one, other].into_iter().zip(wakeups) {
            if let Some(database) = &mut self.by_db[db.0 as usize] {
                database.set_wakeup(db, wakeup, &mut self.wakeups);
            }
        }
    }

    /// Takes out the leases of one database, or of all.
    pub(crate) fn take(&mut self, db: Option<Db>) -> impl Iterator<Item = Leases> {
        let (first, count, db_unknown) = match db {
            None => (0, self.by_db.len(), self.db_unknown.take()),
            // Entries of unknown database find no lock any more when they are resolved.
            Some(Db(number)) => (number as usize, 1, None),
        };
        let Index { by_db, wakeups, .. } = self;
        let placed = (0..).map(Db).zip(by_db).skip(first).take(count).filter_map(|(db, database)| {
            let mut database = database.take()?;
            database.set_wakeup(db, None, wakeups);
            Some(database.leases)
        });
        placed.chain(db_unknown.map(|leases| *leases))
    }

    /// Makes a place for the leases of a database.
    fn reach(&mut self, Db(number): Db) {
        let needed = number as usize + 1;
        if self.by_db.len() < needed {
            self.by_db.resize_with(needed, || None);
        }
    }
}

impl Database {
    /// Moves the wake-up so that it is early enough for what was armed.
    #[inline]
    fn wake_in_time(&mut self, db: Db, wakeups: &mut Wakeups) {
        let soonest = self.leases.soonest();
        if self.wakeup.is_none_or(|wakeup| soonest.is_some_and(|soonest| soonest < wakeup)) {
            self.set_wakeup(db, soonest, wakeups);
        }
    }

    #[inline(never)]
    fn set_wakeup(&mut self, Db(number): Db, wakeup: Option<Timestamp>, wakeups: &mut Wakeups) {
        if let Some(was) = self.wakeup {
            wakeups.remove((was, number));
        }
        if let Some(is) = wakeup {
            wakeups.insert((is, number));
        }
        self.wakeup = wakeup;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Millis;

    #[test]
    fn a_poll_visits_only_the_databases_whose_leases_are_due() {
        // What could go wrong: each command asks each of ten thousand databases when it is due.
        let (mut index, mut count) = (Index::new(), Generations::new());
        let at = |ms: u64| Timestamp(0) + Millis(ms);
        let ids: Vec<EntryId> =
            (0..10_000).map(|db| index.arm(Some(Db(db)), b"k", at(1_000 + u64::from(db)), &mut count)).collect();
        assert_eq!((index.len(), index.wakeups.all.len()), (10_000, 10_000));
        let (mut visits, mut found, mut now) = (0, Vec::new(), at(0));
        while found.len() < 10 {
            now = index.next_deadline().expect("there are more").max(now);
            loop {
                visits += 1;
                match index.poll_leases(now) {
                    LeasePoll::Key(db, id, _) => {
                        assert_eq!((id, now), (ids[db.0 as usize], at(1_000 + u64::from(db.0))));
                        index.disarm(db, id);
                        found.push(db.0);
                    }
                    LeasePoll::Pending => {}
                    LeasePoll::Idle => break,
                    LeasePoll::DbUnknown(..) => panic!("the database of each is known"),
                }
            }
        }
        assert_eq!(found, (0..10).collect::<Vec<u32>>());
        // Databases that were not due yet were not visited, but for some whose entries move to a lower level of their
        // wheel.
        assert!(visits < 1_000, "{visits} visits");
        assert_eq!((index.len(), index.wakeups.all.len()), (9_990, 9_990));
        index.swap(Db(11), Db(9_999));
        assert_eq!(index.take(Some(Db(10))).count(), 1);
        assert_eq!((index.len(), index.wakeups.all.len()), (9_989, 9_989));
        assert_eq!(index.take(None).count(), 9_999);
        assert_eq!((index.len(), index.next_deadline()), (0, None));
    }
}
