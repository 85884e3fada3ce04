//! The naive model's waiting: one list of the waiters, scanned from end to end.
//! Written from the specification, without reading the core.

use crate::naive::Naive;
use crate::words::{Answer, Ask, Granted, Kind, Row, Waiter};
use lock_core::model::hold::Mode;
use lock_core::model::request::Wait;
use std::collections::BTreeSet;

/// Whether an owner's hold keeps another owner from having the key.
pub(crate) fn conflicts(row: &Row, mode: Mode) -> bool {
    mode == Mode::Write || row.writes > 0
}

impl Naive {
    pub(crate) fn row(&self, db: u32, key: u8, owner: u8) -> Option<&Row> {
        self.rows.iter().find(|row| (row.db, row.key, row.owner) == (db, key, owner))
    }

    /// The waiters of a key, in order.
    pub fn queue(&self, db: u32, key: u8) -> Vec<&Waiter> {
        let mut queue: Vec<&Waiter> = self.waiters.iter().filter(|waiter| waiter.wants(db, key)).collect();
        queue.sort_by_key(|waiter| waiter.rank(key));
        queue
    }

    pub fn waiter(&self, id: u64) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.id == id)
    }

    pub fn contended(&self) -> BTreeSet<(u32, u8)> {
        self.waiters.iter().flat_map(|waiter| waiter.ask.keys.iter().map(|key| (waiter.ask.db, *key))).collect()
    }

    /// Whether a waiter delays another, or a newcomer, which stands behind it in the queue of this key.
    fn delays(&self, ahead: &Waiter, behind: &Waiter, key: u8, now_us: u64) -> bool {
        let (db, owner) = (ahead.ask.db, behind.ask.owner);
        // A waiting share delays readers too: otherwise those that take many would starve.
        if ahead.ask.kind() == Kind::Read && behind.ask.mode == Mode::Read {
            return false;
        }
        if !ahead.is_many() {
            return true;
        }
        if self.kept.get(&(db, key)).is_some_and(|since| since + self.rules.reserve_us <= now_us) {
            return false;
        }
        let keeps_it_waiting = |key: &u8| {
            let row = self.row(db, *key, owner);
            row.is_some_and(|row| conflicts(row, ahead.ask.mode) || behind.upgraded.contains(key))
        };
        owner == ahead.ask.owner || !ahead.ask.keys.iter().any(keeps_it_waiting)
    }

    /// The waiters that delay it on a key.
    pub(crate) fn delayers(&self, waiter: &Waiter, key: u8, now_us: u64) -> Vec<&Waiter> {
        let queue = self.queue(waiter.ask.db, key).into_iter();
        queue.filter(|ahead| ahead.rank(key) < waiter.rank(key) && self.delays(ahead, waiter, key, now_us)).collect()
    }

    /// The answer to it on a key if it were checked now; None if it can have the key.
    pub(crate) fn blocked_on(&self, waiter: &Waiter, key: u8, now_us: u64) -> Option<Answer> {
        let Waiter { ask: Ask { db, owner, mode, .. }, .. } = *waiter;
        let others = self.others(db, key, owner);
        if others.iter().any(|row| conflicts(row, mode)) {
            return Some(Answer::Unavailable);
        }
        let own = self.row(db, key, owner);
        let fits = self.fits(&waiter.ask, key);
        if let Some(own) = own {
            let is_first = || self.queue(db, key).iter().all(|other| other.rank(key) >= waiter.rank(key));
            let may_have = match waiter.ask.kind() {
                Kind::Read | Kind::Write => true,
                // As a reader that asks again.
                Kind::Share if waiter.ask.need(Some(own)) == 0 => true,
                Kind::Share if own.writes > 0 => fits,
                Kind::Share => fits && is_first(),
            };
            return (!may_have).then_some(Answer::Unavailable);
        }
        if !fits {
            return Some(Answer::Unavailable);
        }
        if !others.is_empty() && others.len() >= self.rules.holders_max {
            return Some(Answer::TooManyHolders);
        }
        (!self.delayers(waiter, key, now_us).is_empty()).then_some(Answer::Unavailable)
    }

    /// Whether all holders together have few enough shares once it is granted. Only shares have a limit.
    pub(crate) fn fits(&self, ask: &Ask, key: u8) -> bool {
        let need = ask.need(self.row(ask.db, key, ask.owner));
        ask.share.is_none_or(|(limit, _)| self.reads(ask.db, key) + u64::from(need) <= u64::from(limit))
    }

    pub fn has_lost_its_hold(&self, waiter: &Waiter) -> bool {
        waiter.upgraded.iter().any(|key| self.row(waiter.ask.db, *key, waiter.ask.owner).is_none())
    }

    /// Whether a place or a share has nothing to wait for: its owner came to hold in another way what it asks for.
    pub fn is_settled_otherwise(&self, waiter: &Waiter, now_us: u64) -> bool {
        let Ask { db, owner, mode, ref keys, .. } = waiter.ask;
        let row = |key: &u8| self.row(db, *key, owner);
        if let (Kind::Share, Some(_)) = (waiter.ask.kind(), row(&keys[0])) {
            // A holder never waits for more.
            return waiter.is_detached() || self.blocked_on(waiter, keys[0], now_us).is_some();
        }
        if !waiter.is_place() {
            return false;
        }
        if let ([key], Some(row)) = (&keys[..], keys.first().and_then(row)) {
            let upgrades = mode == Mode::Write && row.writes == 0;
            return waiter.is_detached() || (upgrades && !self.others(db, *key, owner).is_empty());
        }
        // Of several keys, there is nothing to offer, or one cannot be offered.
        let is_free = keys.iter().all(|key| self.blocked_on(waiter, *key, now_us).is_none());
        let upgrades = |key: &u8| mode == Mode::Write && row(key).is_some_and(|row| row.writes == 0);
        waiter.is_detached() && is_free && (keys.iter().all(|key| row(key).is_some()) || keys.iter().any(upgrades))
    }

    /// Whether a place would go before the others of a cycle, but cannot be offered: its owner has come to read what it
    /// asks to write.
    pub fn is_left_in_cycle(&self, waiter: &Waiter, now_us: u64) -> bool {
        let Ask { db, owner, mode, ref keys, .. } = waiter.ask;
        let reads = |key: &u8| self.row(db, *key, owner).is_some_and(|row| row.writes == 0);
        let waits_for_it = |other: &Waiter, _| !other.passed && self.leads_to(other.ask.owner, owner, now_us);
        waiter.is_detached()
            && mode == Mode::Write
            && keys.iter().any(reads)
            && self.is_in_cycle(owner, now_us)
            && self.hindrance(waiter, now_us, waits_for_it).is_none()
    }

    /// Whether a waiter cannot be served any more, though all it waits for is free: the wall clock was set back since
    /// it came, and the fence that it asks for is further ahead than a client may carry the clock.
    pub fn is_too_far_ahead(&self, waiter: &Waiter, now_us: u64, wall_us: u64) -> bool {
        let may_be_served = self.is_servable(waiter, now_us) || self.is_in_cycle(waiter.ask.owner, now_us);
        !waiter.is_detached() && may_be_served && !self.admits(waiter.ask.min_fence, wall_us)
    }

    /// Whether a waiter can be served now.
    pub fn is_servable(&self, waiter: &Waiter, now_us: u64) -> bool {
        !waiter.is_over(now_us)
            && !self.is_in_grace(now_us)
            && !self.is_settled_otherwise(waiter, now_us)
            && !self.has_lost_its_hold(waiter)
            && waiter.ask.keys.iter().all(|key| self.blocked_on(waiter, *key, now_us).is_none())
    }

    /// A waiter for none but these keys that can be served or has lost its hold: the timer ends what is over on others.
    /// Without these owners.
    pub fn overlooked_at(&self, (db, keys): (u32, &[u8]), without: &BTreeSet<u8>, now_us: u64) -> Option<&Waiter> {
        let mut waiters = self.waiters.iter().filter(|waiter| {
            let Ask { owner, keys: wanted, .. } = &waiter.ask;
            waiter.ask.db == db && wanted.iter().all(|key| keys.contains(key)) && !without.contains(owner)
        });
        waiters.find(|waiter| !waiter.is_over(now_us) && self.is_overlooked(waiter, now_us))
    }

    /// A waiter that can be served, has lost its hold, or has waited long enough.
    pub fn overlooked(&self, now_us: u64) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.is_over(now_us) || self.is_overlooked(waiter, now_us))
    }

    fn is_overlooked(&self, waiter: &Waiter, now_us: u64) -> bool {
        let ends = self.has_lost_its_hold(waiter) || self.is_settled_otherwise(waiter, now_us);
        !self.is_in_grace(now_us) && (ends || self.is_servable(waiter, now_us))
    }

    /// How many keys a waiter is granted anew: what a place's owner holds already is no part of an offer.
    pub fn grants_of(&self, waiter: &Waiter) -> usize {
        let Ask { db, owner, ref keys, .. } = waiter.ask;
        keys.iter().filter(|key| !waiter.is_detached() || self.row(db, **key, owner).is_none()).count()
    }

    /// Serves a waiter, if that is right now. What it gets.
    pub fn serve_waiter(&mut self, id: u64, now_us: u64, wall_us: u64) -> Vec<u64> {
        let waiter = self.waiter(id).expect("waits").clone();
        if !self.is_servable(&waiter, now_us) {
            self.check_passing(&waiter, now_us);
            self.waiters.retain(|waiter| waiter.id != id);
            self.note_passed(&waiter.ask);
            return self.grant(waiter, now_us, wall_us);
        }
        // Of the waiters that also wait elsewhere, one may take the last holder's place on a key while another key is
        // visited.
        let before = |other: &&Waiter| {
            let alike = other.ask.db == waiter.ask.db && other.ask.keys == waiter.ask.keys;
            alike && !waiter.is_many() && other.rank(waiter.ask.keys[0]) < waiter.rank(waiter.ask.keys[0])
        };
        let could: Vec<Waiter> = self.waiters.iter().filter(before).cloned().collect();
        let could: Vec<Waiter> = could.into_iter().filter(|other| self.is_servable(other, now_us)).collect();
        self.waiters.retain(|waiter| waiter.id != id);
        self.check_turn(&waiter, now_us);
        let fences = self.grant(waiter.clone(), now_us, wall_us);
        for other in could {
            assert!(self.is_servable(&other, now_us), "{waiter:?} goes before {other:?}");
        }
        fences
    }

    fn grant(&mut self, waiter: Waiter, now_us: u64, wall_us: u64) -> Vec<u64> {
        if waiter.is_detached() {
            return self.offer(&waiter, now_us, wall_us);
        }
        let given = self.take(&waiter.ask, now_us, wall_us);
        let fences = given.iter().map(|given| given.fence).collect();
        self.granted.push(Granted { id: waiter.id, ask: waiter.ask, given, confirmed: false });
        fences
    }

    /// No waiter starves: a request that gets a key passes no earlier waiter there, but by these exceptions. By arrival
    /// alone: places in the queue, which the order of service is made of, are not read.
    fn check_turn(&self, served: &Waiter, now_us: u64) {
        let Waiter { ask: Ask { db, owner, mode, .. }, .. } = *served;
        for &key in &served.ask.keys {
            // A holder has it again, or upgrades this very key. More shares it has before nobody.
            if let Some(own) = self.row(db, key, owner) {
                let asks_for_more = served.ask.share.is_some() && own.writes == 0 && served.ask.need(Some(own)) > 0;
                let mut queue = self.queue(db, key).into_iter();
                let first = queue.find(|other| asks_for_more && other.rank(key) < served.rank(key));
                assert!(first.is_none(), "{served:?} takes more of {key} before {first:?}");
                continue;
            }
            let waiters = self.waiters.iter().filter(|other| other.wants(db, key) && other.ask.owner != owner);
            for passed in waiters.filter(|other| other.ticket < served.ticket) {
                let both_read = mode == Mode::Read && passed.ask.kind() == Kind::Read;
                let was_kept = self.kept.get(&(db, key)).is_some_and(|since| since + self.rules.reserve_us <= now_us);
                // It waits for what the one that passes it holds, or upgrades with this key.
                let waits_for_it = passed.ask.keys.iter().any(|wanted| {
                    let row = self.row(db, *wanted, owner);
                    let upgrades = mode == Mode::Write && served.ask.keys.contains(wanted);
                    row.is_some_and(|row| conflicts(row, passed.ask.mode) || upgrades)
                });
                let may_pass = both_read || (passed.is_many() && (was_kept || waits_for_it));
                assert!(may_pass, "{served:?} takes {key} before {passed:?}");
            }
        }
    }

    /// A request to hold: served, refused, or queued under the id that [`Naive::call_last`] gives.
    pub fn acquire(&mut self, ask: &Ask, now_us: u64, wall_us: u64) -> Answer {
        if !self.admits(ask.min_fence, wall_us) {
            return Answer::MinFenceAhead;
        }
        match self.decide(ask, now_us, wall_us) {
            Answer::Unavailable if self.is_in_grace(now_us) => Answer::Grace,
            answer => answer,
        }
    }

    fn decide(&mut self, ask: &Ask, now_us: u64, wall_us: u64) -> Answer {
        self.tickets += 1;
        let upgraded: Vec<u8> = ask
            .keys
            .iter()
            .copied()
            .filter(|key| {
                ask.mode == Mode::Write && self.row(ask.db, *key, ask.owner).is_some_and(|row| row.writes == 0)
            })
            .collect();
        let until_us = match ask.wait {
            Wait::For(limit) => Some(now_us + limit.0 * 1000),
            Wait::Forever => None,
            Wait::Never => ask.queue_us.map(|queue_us| now_us + queue_us),
        };
        let (ticket, since_us) = (self.tickets, now_us);
        let newcomer =
            Waiter { id: 0, ask: ask.clone(), upgraded, passed: false, since_us, until_us, overdue: false, ticket };
        if self.is_in_grace(now_us) {
            return self.refuse_in_grace(newcomer, now_us, wall_us);
        }
        if let Some(answer) = self.collect(ask, now_us, wall_us).or_else(|| self.ask_again(ask, now_us)) {
            return answer;
        }
        match ask.keys.iter().find_map(|key| self.blocked_on(&newcomer, *key, now_us)) {
            None if self.memory_full && ask.keys.iter().any(|key| self.row(ask.db, *key, ask.owner).is_none()) => {
                Answer::OutOfMemory
            }
            None => {
                self.check_turn(&newcomer, now_us);
                let given = self.take(ask, now_us, wall_us);
                self.hear_of((ask.db, &ask.keys), ask.owner);
                Answer::Granted(given.iter().map(|given| given.fence).collect())
            }
            Some(Answer::Unavailable) if ask.wait != Wait::Never || ask.queue_us.is_some() => {
                self.enqueue(newcomer, now_us, wall_us)
            }
            Some(blocked_on) => blocked_on,
        }
    }

    /// During a grace no request is served, whoever asks; those that may wait do.
    fn refuse_in_grace(&mut self, newcomer: Waiter, now_us: u64, wall_us: u64) -> Answer {
        let ask = newcomer.ask.clone();
        if ask.queue_us.is_some() && !newcomer.upgraded.is_empty() {
            return Answer::Unavailable;
        }
        if let Some(answer) = self.ask_again(&ask, now_us) {
            return answer;
        }
        if ask.wait == Wait::Never && ask.queue_us.is_none() {
            return Answer::Unavailable;
        }
        self.enqueue(newcomer, now_us, wall_us)
    }

    fn enqueue(&mut self, newcomer: Waiter, now_us: u64, wall_us: u64) -> Answer {
        let ask = newcomer.ask.clone();
        let holds = self.row(ask.db, ask.keys[0], ask.owner).is_some();
        if ask.share.is_some() && holds && self.grace_left(now_us).is_none() {
            return Answer::HoldsShares;
        }
        if ask.queue_us.is_some() && !newcomer.upgraded.is_empty() {
            return Answer::QueuedUpgrade;
        }
        let twin = self.waiters.iter_mut().find(|waiter| {
            let shared = ask.keys.iter().any(|key| waiter.wants(ask.db, *key));
            waiter.ask.owner == ask.owner && waiter.ask.kind() == ask.kind() && shared
        });
        if let Some(twin) = twin {
            if ask.retry.is_none() || twin.ask.keys != ask.keys {
                return Answer::AlreadyWaits;
            }
            if self.cannot_wait {
                return Answer::Unavailable;
            }
            let Waiter { ticket, since_us, passed, ref upgraded, .. } = *twin;
            let place = Waiter { ticket, since_us, passed, upgraded: upgraded.clone(), ..newcomer };
            self.replaced = Some(twin.id);
            self.waiters.retain(|waiter| Some(waiter.id) != self.replaced);
            self.waiters.push(place);
            return Answer::Queued;
        }
        if self.memory_full {
            return Answer::OutOfMemory;
        }
        if ask.wait != Wait::Never && self.parked() >= self.rules.waiters_max {
            return Answer::TooManyWaiters;
        }
        let places = self.waiters.iter().filter(|waiter| waiter.is_place()).count();
        if ask.queue_us.is_some() && places >= self.rules.places_max {
            return Answer::TooManyPlaces;
        }
        if ask.keys.iter().any(|key| self.queue(ask.db, *key).len() >= self.rules.waiters_per_key_max) {
            return Answer::TooManyWaitersOfKey;
        }
        let contested = newcomer.upgraded.iter().any(|key| {
            let mut queue = self.queue(ask.db, *key).into_iter();
            queue.any(|other| other.ask.owner != ask.owner && other.upgraded.contains(key))
        });
        let mut newcomer = newcomer;
        if ask.wait == Wait::Never {
            newcomer.detach(now_us);
        }
        self.waiters.push(newcomer);
        if (contested || self.rules.detects) && self.is_in_cycle(ask.owner, now_us) {
            let newcomer = self.waiters.pop().expect("pushed above");
            if (self.is_in_grace(now_us) || self.may_overlook) && self.lets_wait {
                self.waiters.push(newcomer.clone());
                if !self.may_overlook {
                    self.check_passing(&newcomer, now_us);
                }
                ask.keys.iter().for_each(|key| self.looked(ask.db, *key, now_us));
                return if ask.wait == Wait::Never { Answer::Placed } else { Answer::Queued };
            }
            if self.lets_in {
                self.waiters.push(newcomer.clone());
                self.check_passing(&newcomer, now_us);
                self.waiters.pop();
                self.note_passed(&ask);
                let given = self.take(&ask, now_us, wall_us);
                self.hear_of((ask.db, &ask.keys), ask.owner);
                return Answer::Granted(given.iter().map(|given| given.fence).collect());
            }
            self.refused = Some(newcomer);
            return Answer::Deadlock;
        }
        ask.keys.iter().for_each(|key| self.looked(ask.db, *key, now_us));
        if ask.wait == Wait::Never { Answer::Placed } else { Answer::Queued }
    }

    /// Gives the one that was queued last its name.
    pub fn call_last(&mut self, id: u64) {
        self.waiters.last_mut().expect("somebody was queued").id = id;
    }

    /// A queue was scanned: if the key is free and a waiter is left, it is kept from now on.
    pub fn looked(&mut self, db: u32, key: u8, now_us: u64) {
        if !self.queue(db, key).is_empty() && !self.is_in_grace(now_us) {
            self.kept.entry((db, key)).or_insert(now_us);
        }
        self.end_keeping();
    }

    /// A key is kept no more when it is taken or has no waiter.
    pub fn end_keeping(&mut self) {
        let (rows, contended) = (&self.rows, self.contended());
        self.kept.retain(|at, _| contended.contains(at) && !rows.iter().any(|row| (row.db, row.key) == *at));
    }

    /// Of these keys, those that are taken are kept no more.
    pub fn end_keeping_of(&mut self, db: u32, keys: &[u8]) {
        let rows = &self.rows;
        let is_taken = |at: &(u32, u8)| rows.iter().any(|row| (row.db, row.key) == *at);
        self.kept.retain(|at, _| at.0 != db || !keys.contains(&at.1) || !is_taken(at));
    }
}
