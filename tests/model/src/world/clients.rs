//! Clients that close or wait no more.

use super::{World, id_of, name};
use crate::words::Ask as Wish;
use lock_core::manager::view::Waiting;
use lock_core::model::key::Db;

impl World {
    /// What was granted to a connection that may not have received the reply, and whether its owner has shown that it
    /// knows.
    pub(super) fn granted_to(&self, connection: u64) -> Vec<(u64, bool)> {
        let granted = self.naive.granted.iter();
        let to = granted.filter(|granted| granted.ask.session.is_some_and(|(whose, _)| whose == connection));
        to.map(|granted| (granted.id, granted.confirmed)).collect()
    }

    /// A connection closes: its waiters are gone, its grants without a delivered reply are taken back, and what is
    /// bound to it ends.
    pub(super) fn close(&mut self, client: u8) {
        let (connection, now) = (self.connection(client), self.now.mono);
        self.connections[usize::from(client)] += 1;
        let asked = |ask: &Wish| ask.session.is_some_and(|(whose, _)| whose == connection);
        let lost = self.granted_to(connection);
        let manager = &mut self.primary.manager;
        // The server says so before or after it reports the waiters that are gone.
        let first = self.naive.tickets.is_multiple_of(2);
        if first {
            manager.disconnect(connection, now);
        }
        let gone: Vec<u64> =
            self.naive.waiters.iter().filter(|waiter| asked(&waiter.ask)).map(|waiter| waiter.id).collect();
        for id in gone {
            assert!(!self.primary.manager.client_gone(id_of(id), Some(0), now), "nothing to take back");
            self.leave_client(id, true);
        }
        self.naive.end_keeping();
        let away_us = self.naive.rules.away_us;
        for granted in self.naive.granted.iter_mut().filter(|granted| asked(&granted.ask)) {
            granted.ask.keep_no_longer(away_us);
        }
        let manager = &mut self.primary.manager;
        for (id, confirmed) in &lost {
            assert_eq!(manager.client_gone(id_of(*id), Some(0), now), !confirmed);
        }
        if !first {
            manager.disconnect(connection, now);
        }
        // The last first: what one gave may have changed what an earlier one did.
        for (id, _) in lost.iter().rev() {
            self.naive.revoke_undelivered(*id, now.0);
        }
        self.naive.closed.insert(connection, now.0);
        if !lost.is_empty() {
            // Before the timer or a command comes to those keys, which would end what is bound before it is taken back.
            self.naive.settle(now.0);
            self.work();
        }
    }

    pub(super) fn client_gone(&mut self, nth: usize) {
        let waiting = self.naive.waiters.len();
        let Some(at) = nth.checked_rem(waiting + self.naive.granted.len()) else { return };
        let now = self.now.mono;
        if at < waiting {
            let id = self.naive.waiters[at].id;
            if !self.naive.waiters[at].is_detached() {
                assert!(!self.primary.manager.client_gone(id_of(id), Some(0), now), "nothing to take back");
                self.leave_client(id, true);
            }
            self.naive.end_keeping();
        } else {
            let away_us = self.naive.rules.away_us;
            let granted = &mut self.naive.granted[at - waiting];
            granted.ask.keep_no_longer(away_us);
            let (id, confirmed) = (granted.id, granted.confirmed);
            assert_eq!(self.primary.manager.client_gone(id_of(id), Some(0), now), !confirmed);
            if confirmed {
                self.naive.granted.remove(at - waiting);
            }
        }
    }

    /// The client of a waiter waits no more, and may have closed its connection. A place goes on, under another name.
    pub(super) fn leave_client(&mut self, id: u64, has_closed: bool) {
        let now = self.now.mono;
        let at = self.naive.waiters.iter().position(|waiter| waiter.id == id).expect("waits");
        if has_closed {
            let away_us = self.naive.rules.away_us;
            self.naive.waiters[at].ask.keep_no_longer(away_us);
        }
        if !self.naive.waiters[at].detach(now.0) {
            self.naive.waiters.remove(at);
            self.told.left(id, None);
            return;
        }
        let Wish { db, ref keys, owner, .. } = self.naive.waiters[at].ask;
        let mut queue = self.primary.manager.queue(Db(db), name(keys[0]), now);
        let is_it = |waiting: &Waiting<'_>| waiting.waiter.owner.as_bytes() == [owner] && waiting.waiter.is_place();
        let place = queue.find(is_it).expect("stands there").id.to_number();
        drop(queue);
        self.told.left(id, Some(place));
        self.naive.waiters[at].id = place;
    }
}
