//! Grants whose delivery is not known yet: where they lie, whether the owner has confirmed them, and which are to be
//! rolled back.

use super::jobs::Job;
use super::table::WaitTable;
use super::waiter::{Grant, GrantUndo, State, Undelivered, Waiter};
use crate::model::fence::Fence;
use crate::model::hold::Connection;
use crate::model::key::{Db, KeyName, NameSet};
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::request::{PerKey, WaiterId};
use crate::model::time::{Millis, Timestamp};
use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;

impl WaitTable {
    /// A waiter was granted what it waited for. Its keys are reserved no more.
    pub(crate) fn granted(&mut self, id: WaiterId, given: PerKey<GrantUndo>) {
        self.leave_queues(id, true);
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.state = State::Granted(Box::new(Grant { given, confirmed: false, locations: Vec::new() }));
        }
        self.note_prior_bindings(id);
    }

    /// A grant has given a hold another fence. Grants of the same owner that are not known to be delivered, and that
    /// the hold was given by, are of the hold with that fence too.
    pub(crate) fn note_new_fence(&mut self, (db, name): (Db, &KeyName), owner: &Owner, old: Fence, new: Fence) {
        for id in self.owners.of(owner) {
            let granted = self.waiters.get_mut(id).filter(|waiter| !waiter.is_waiting() && waiter.owner == *owner);
            let Some(waiter) = granted else { continue };
            for at in 0..waiter.keys.len() {
                let (lies_in, key) = waiter.location(at);
                // A lock that another was renamed over has left its place to that one.
                if (lies_in, key) == (db, name)
                    && let State::Granted(grant) = &mut waiter.state
                    && let Some(given) = grant.given.get_mut(at).filter(|given| given.has_had(old))
                {
                    given.latest = Some(new);
                }
            }
        }
    }

    /// Notes that a waiter's grant has taken holds over from other connections.
    pub(super) fn note_prior_bindings(&mut self, id: WaiterId) {
        for connection in self.waiters.get(id).map(Waiter::prior_connections).unwrap_or_default() {
            self.prior_bindings.entry(connection).or_default().insert(id);
        }
    }

    /// Forgets that: the waiter's grant stands, or is being rolled back.
    pub(super) fn forget_prior_bindings(&mut self, id: WaiterId, connections: &[Connection]) {
        for connection in connections {
            if let Entry::Occupied(mut ids) = self.prior_bindings.entry(*connection) {
                ids.get_mut().remove(&id);
                if ids.get().is_empty() {
                    ids.remove();
                }
            }
        }
    }

    /// The reply of a granted waiter has reached its client's connection.
    pub fn delivered(&mut self, id: WaiterId) {
        if self.waiters.get(id).is_some_and(|waiter| !waiter.is_waiting()) {
            self.remove(id);
        }
    }

    /// Keeps a place, or what it was granted, for no longer than this once its client has gone, unless its owner asks
    /// again.
    pub(crate) fn keep_no_longer(&mut self, id: WaiterId, most: Millis) {
        if let Some(waiter) = self.waiters.get_mut(id) {
            waiter.operation.queue = waiter.operation.queue.map(|queue| queue.min(most));
        }
    }

    /// A waiter's client has gone. A place goes on without it. True when it had been granted and that is to be taken
    /// back, or to be offered.
    pub fn client_gone(&mut self, id: WaiterId, now: Timestamp) -> bool {
        match self.waiters.get(id).map(Waiter::grant) {
            Some(Some(grant)) if !grant.confirmed => {
                self.undelivered.push(id);
                true
            }
            _ => {
                if self.detach(id, now).is_none() {
                    self.remove(id);
                }
                false
            }
        }
    }

    /// True if an owner was granted something whose delivery is not known.
    pub(crate) fn has_granted(&self, owner: &Owner) -> bool {
        self.waiters.len() > self.waiting && self.of(owner).any(|(_, waiter)| !waiter.is_waiting())
    }

    /// An owner has shown that it knows what it holds on these keys.
    pub(crate) fn confirm(&mut self, db: Db, names: &NameSet, owner: &Owner) {
        for id in self.owners.of(owner) {
            if let Some(waiter) = self.waiters.get_mut(id)
                && waiter.owner == *owner
                && waiter.lies_at_any(db, names)
                && let State::Granted(grant) = &mut waiter.state
            {
                grant.confirmed = true;
            }
        }
    }

    /// A lock was renamed or moved: grants on it whose delivery is not known lie there now.
    pub(crate) fn carried(&mut self, from: (Db, &KeyName), to: (Db, &KeyName), lock: &Lock) {
        if self.waiters.len() == self.waiting {
            return;
        }
        let WaitTable { waiters, owners, .. } = self;
        let fewer_holders = lock.holds.len() <= waiters.len();
        let mut carry = |ids: &mut dyn Iterator<Item = WaiterId>, owner: Option<&Owner>| {
            for id in ids {
                // Other owners may have the same hash. Each waiter is carried once.
                let is_meant = |waiter: &&mut Waiter| owner.is_none_or(|owner| waiter.owner == *owner);
                let Some(waiter) = waiters.get_mut(id).filter(is_meant) else { continue };
                waiter.forget_given_at(to);
                if !waiter.lies_at(from.0, from.1) {
                    continue;
                }
                if lock.holds.get(waiter.owner.as_bytes()).is_some() {
                    waiter.relocate(|place| {
                        if (place.0, &place.1) == from {
                            *place = (to.0, to.1.clone());
                        }
                    });
                }
            }
        };
        // Whichever are fewer.
        if fewer_holders {
            lock.holds.iter().for_each(|(owner, _)| carry(&mut owners.of(owner), Some(owner)));
        } else {
            carry(&mut owners.all(), None);
        }
    }

    /// Two databases changed places, and with them what was granted there.
    pub(crate) fn swapped(&mut self, one: Db, other: Db) {
        if self.waiters.len() == self.waiting {
            return;
        }
        for waiter in self.waiters.values_mut() {
            waiter.relocate(|(db, _)| {
                if *db == one {
                    *db = other;
                } else if *db == other {
                    *db = one;
                }
            });
        }
    }

    /// A connection has closed. Holds that were bound to it may have been granted anew by another connection since.
    /// When such a grant is rolled back, the hold is to be as its closing would have left it. (What was granted by this
    /// connection is rolled back before anything ends that is bound.)
    ///
    /// How many grants were changed for that.
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

    /// The next grant to take back. It stays the next one until that is done.
    #[must_use]
    pub(crate) fn next_undelivered(&mut self) -> Option<Job> {
        while let Some(id) = self.undelivered.last() {
            match self.waiters.get(*id) {
                Some(waiter) => {
                    let (db, _) = waiter.location(0);
                    let locations = (0..waiter.keys.len()).map(|at| waiter.location(at));
                    let names = locations.filter(|(at, _)| *at == db).map(|(_, name)| name.clone()).collect();
                    return Some(Job::RevokeUndelivered(*id, db, names));
                }
                None => self.undelivered.pop(),
            };
        }
        None
    }

    /// Takes an undelivered grant out of the wait table, as far as it lies in this database now. The waiter is
    /// forgotten when nothing is left of it. None when there is nothing.
    pub(crate) fn take_undelivered(&mut self, id: WaiterId, db: Db) -> Option<Undelivered> {
        let waiter = self.waiters.get(id)?;
        let prior_connections = waiter.prior_connections();
        let client = self.connection_of(waiter).filter(|(_, closed_at)| closed_at.is_none()).map(|(client, _)| client);
        let mut message = self.message_to(waiter);
        self.forget_prior_bindings(id, &prior_connections);
        let waiter = self.waiters.get_mut(id)?;
        let (owner, mode, queue) = (waiter.owner.clone(), waiter.operation.mode, waiter.operation.queue);
        let (offered, limit) = (waiter.offered(), waiter.operation.share.map(|share| share.limit));
        let State::Granted(grant) = &mut waiter.state else { return None };
        let confirmed = grant.confirmed;
        let (mut keys, mut given) = (PerKey::new(), PerKey::new());
        let mut locations = grant.locations.drain(..);
        let (mut undelivered, mut left) = (PerKey::new(), Vec::new());
        for (key, one) in waiter.keys.drain(..).zip(grant.given.drain(..)) {
            match locations.next() {
                Some((at, name)) if at != db => {
                    keys.push(key);
                    given.push(one);
                    left.push((at, name));
                }
                Some((_, name)) => undelivered.push((name, one)),
                None => undelivered.push((key.name, one)),
            }
        }
        drop(locations);
        (grant.given, grant.locations, waiter.keys) = (given, left, keys);
        if waiter.keys.is_empty() {
            self.remove(id);
        } else {
            message = None;
        }
        self.note_prior_bindings(id);
        Some(Undelivered { owner, mode, confirmed, queue, client, message, offered, limit, given: undelivered })
    }

    /// True if there are more grants to take back.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.undelivered.iter().any(|id| self.waiters.get(*id).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::hold::{Epoch, Hold, Mode, Session};
    use crate::model::request::{Acquire, Terms, Wait};
    use crate::model::session::Sessions;
    use crate::wait::waiter::{PriorHold, Wanted};
    use alloc::format;

    #[test]
    fn a_connection_that_closes_is_told_to_grants_that_took_its_holds_over_and_to_no_other() {
        // What could go wrong: a thousand connections close at once while a thousand grants are under way, and each is
        // told to each.
        let (mut wait_table, sessions) = (WaitTable::new(|_| 0), Sessions::new(|_| 0));
        let session = |client| Session { connection: sessions.connection(client), grace: Millis(5) };
        let operation = |client| Acquire {
            mode: Mode::Write,
            lease: Millis(1_000),
            wait: Wait::Forever,
            retry: None,
            queue: None,
            share: None,
            terms: Terms::of(None, Some(session(client)), None),
        };
        let waiters: Vec<WaiterId> = (0..1_000)
            .map(|n| {
                let owner = Owner::new(format!("owner{n}").as_bytes());
                let key = Wanted { name: KeyName::new(format!("key{n}").as_bytes(), |_| 0), upgrade: false };
                let id = wait_table.admit((&owner, &operation(n)), Db(0), PerKey::from([key]), Timestamp(0));
                let mut hold = Hold::new(Fence::new(1).expect("above 0"), Timestamp(9), Timestamp(0), Epoch::FIRST);
                // Half of them were bound to another connection before.
                hold.bind((n % 2 == 0).then(|| session(10_000 + n)));
                let given = GrantUndo {
                    fence: hold.fence(),
                    latest: Some(hold.fence()),
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
        let (mut wait_table, sessions) = (WaitTable::new(|_| 0), Sessions::new(|_| 0));
        let session = |client| Session { connection: sessions.connection(client), grace: Millis(5) };
        let (mode, wait, lease) = (Mode::Write, Wait::Forever, Millis(1_000));
        let (retry, queue, share, terms) = (None, None, None, Terms::of(None, Some(session(1)), None));
        let operation = Acquire { mode, lease, wait, retry, queue, share, terms };
        let key = Wanted { name: KeyName::new(b"key", |_| 0), upgrade: false };
        let id = wait_table.admit((&Owner::new(b"o"), &operation), Db(0), PerKey::from([key]), Timestamp(0));
        let mut hold = Hold::new(Fence::new(1).expect("above 0"), Timestamp(9), Timestamp(0), Epoch::FIRST);
        hold.bind(Some(session(2)));
        let (fence, deadline, prior) = (hold.fence(), hold.deadline, Some(PriorHold::of(&hold)));
        wait_table.granted(
            id,
            PerKey::from([GrantUndo {
                fence,
                latest: Some(fence),
                added: 1,
                deadline,
                session: Some(session(1)),
                prior,
            }]),
        );
        wait_table.delivered(id);
        assert!(wait_table.prior_bindings.is_empty());
    }
}
