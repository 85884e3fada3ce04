//! The naive model's waiting: one list of the waiters, scanned from end to end, and a graph built by definition.
//! Written from the specification, without reading the core.

use crate::naive::Naive;
use crate::words::{Answer, Ask, Granted, Kind, Offer, Part, Row, Waiter};
use lock_core::model::hold::Mode;
use lock_core::model::request::Wait;
use std::collections::BTreeSet;

/// Whether an owner's hold keeps another owner from having the key.
fn conflicts(row: &Row, mode: Mode) -> bool {
    mode == Mode::Write || row.writes > 0
}

impl Naive {
    fn row(&self, db: u32, key: u8, owner: u8) -> Option<&Row> {
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
    fn delayers(&self, waiter: &Waiter, key: u8, now_us: u64) -> Vec<&Waiter> {
        let queue = self.queue(waiter.ask.db, key).into_iter();
        queue.filter(|ahead| ahead.rank(key) < waiter.rank(key) && self.delays(ahead, waiter, key, now_us)).collect()
    }

    /// The answer to it on a key if it were checked now; None if it can have the key.
    fn blocked_on(&self, waiter: &Waiter, key: u8, now_us: u64) -> Option<Answer> {
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
    fn fits(&self, ask: &Ask, key: u8) -> bool {
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

    /// A place is served, and no client waits there: its owner may collect that until the place would be over.
    fn offer(&mut self, waiter: &Waiter, now_us: u64, wall_us: u64) -> Vec<u64> {
        let Ask { db, owner, ref keys, .. } = waiter.ask;
        let held: Vec<u8> = keys.iter().copied().filter(|key| self.row(db, *key, owner).is_some()).collect();
        let new = keys.iter().copied().filter(|key| !held.contains(key)).collect();
        let until_us = match waiter.overdue {
            false => waiter.until_us.expect("a place ends"),
            true => now_us + waiter.ask.queue_us.expect("a place"),
        };
        let lease_us = until_us - now_us;
        let retry = Some(waiter.ask.offered_count());
        let (note, session, min_fence) = (None, None, None);
        let ask = Ask { keys: new, lease_us, note, session, retry, min_fence, ..waiter.ask.clone() };
        let given = self.take(&ask, now_us, wall_us);
        self.mark_offered(&waiter.ask, keys, &held);
        given.iter().map(|given| given.fence).collect()
    }

    fn mark_offered(&mut self, ask: &Ask, keys: &[u8], held: &[u8]) {
        let Ask { db, owner, share, .. } = *ask;
        // Before these rows are offered: an older offer of the same key may be gone.
        self.refresh_offers();
        let part = |key: &u8| Part { asked: *key, db, key: *key, held: held.contains(key), gone: false };
        let parts: Vec<Part> = keys.iter().map(part).collect();
        for row in self.rows.iter_mut().filter(|row| row.db == db && row.owner == owner) {
            row.offered |= parts.iter().any(|part| part.key == row.key && !part.held);
        }
        self.offers.push(Offer { owner, parts, limit: share.map(|(limit, _)| limit) });
    }

    /// Forgets of the offers what is not there any more.
    pub fn refresh_offers(&mut self) {
        let rows = &self.rows;
        for Offer { owner, parts, .. } in &mut self.offers {
            for part in parts.iter_mut().filter(|part| !part.held) {
                part.gone |= !rows
                    .iter()
                    .any(|row| (row.db, row.key, row.owner, row.offered) == (part.db, part.key, *owner, true));
            }
        }
        self.offers.retain(|offer| offer.parts.iter().any(Part::stands));
    }

    /// Which offer an owner has on a key.
    fn offer_at(&self, db: u32, key: u8, owner: u8) -> Option<usize> {
        let is_there = |part: &Part| part.stands() && (part.db, part.key) == (db, key);
        self.offers.iter().position(|offer| offer.owner == owner && offer.parts.iter().any(is_there))
    }

    /// An owner asks for what it was offered. None if that is nothing, or is gone in part.
    fn collect(&mut self, ask: &Ask, now_us: u64, wall_us: u64) -> Option<Answer> {
        self.refresh_offers();
        if self.offers.is_empty() {
            return None;
        }
        let Ask { db, owner, mode, ref keys, .. } = *ask;
        let is_offered = |key: &&u8| self.row(db, **key, owner).is_some_and(|row| row.offered);
        let first = *keys.iter().find(is_offered)?;
        let offer = self.offer_at(db, first, owner);
        let parts = match offer {
            Some(at) => self.offers[at].parts.clone(),
            None => vec![Part { asked: first, db, key: first, held: false, gone: false }],
        };
        let names_lie = parts.iter().map(|part| part.key).eq(keys.iter().copied());
        if !names_lie && parts.iter().map(|part| part.asked).ne(keys.iter().copied()) {
            return Some(Answer::OtherKeys);
        }
        let count = |row: &Row| if mode == Mode::Read { row.reads } else { row.writes };
        // A reader has one count, so that more of them are shares.
        let is_other = |row: &Row| count(row) == 0 || (mode == Mode::Read && ask.share.is_none() && row.reads != 1);
        if keys.iter().any(|key| self.row(db, *key, owner).is_some_and(|row| row.offered && is_other(row))) {
            return Some(Answer::OtherMode);
        }
        let take = ask.share.map_or(1, |(_, take)| take);
        let has_other_count = |row: &Row| row.offered && (row.reads < take || row.reads > ask.count_after(0));
        if ask.share.is_some() && self.row(db, keys[0], owner).is_some_and(has_other_count) {
            return Some(Answer::OtherTake);
        }
        let has = |key: &u8| self.row(db, *key, owner).is_some_and(|row| mode == Mode::Read || row.writes > 0);
        // What was granted is judged again for a lower limit, and for more.
        let is_too_many = ask.share.is_some_and(|(limit, _)| {
            let own = self.row(db, keys[0], owner).map_or(0, |row| row.reads);
            let others: u64 = self.others(db, keys[0], owner).iter().map(|row| u64::from(row.reads)).sum();
            let after = own.max(ask.count_after(0));
            let granted_up_to = offer.and_then(|at| self.offers[at].limit);
            let is_granted = after == own && granted_up_to.is_some_and(|granted| granted <= limit);
            !is_granted && others + u64::from(after) > u64::from(limit)
        });
        if is_too_many || !names_lie || parts.iter().any(|part| part.gone || part.db != db) || !keys.iter().all(has) {
            if self.memory_full {
                return Some(Answer::OutOfMemory);
            }
            let is_part = |row: &Row| parts.iter().any(|part| part.stands() && part.key == row.key && part.db == db);
            let taken = |row: &Row| row.offered && row.db == db && row.owner == owner && is_part(row);
            self.rows.retain(|row| !taken(row));
            return None;
        }
        let given = self.take(ask, now_us, wall_us);
        self.hear_of((db, keys), owner);
        Some(Answer::Granted(given.iter().map(|given| given.fence).collect()))
    }

    /// An owner asks again where it has a place. None if it has none.
    fn ask_again(&mut self, ask: &Ask, now_us: u64) -> Option<Answer> {
        let in_grace = self.is_in_grace(now_us);
        let there = |waiter: &&mut Waiter| {
            let holds = |key| self.rows.iter().any(|row| (row.db, row.key, row.owner) == (ask.db, key, ask.owner));
            let is_holder = waiter.ask.keys.len() == 1 && ask.keys.len() == 1 && holds(ask.keys[0]);
            let shares = ask.keys.iter().any(|key| waiter.wants(ask.db, *key));
            waiter.ask.owner == ask.owner
                && shares
                && (!is_holder || in_grace)
                && (waiter.is_place() || ask.queue_us.is_some())
        };
        let (waiters_max, parked) = (self.rules.waiters_max, self.parked());
        let mut places: Vec<&mut Waiter> = self.waiters.iter_mut().filter(there).collect();
        if places.is_empty() {
            return None;
        }
        if places.iter().any(|place| place.ask.kind() != ask.kind()) {
            return Some(Answer::OtherMode);
        }
        if places.iter().any(|place| place.ask.keys != ask.keys) {
            return Some(Answer::OtherKeys);
        }
        if places.iter().any(|place| place.ask.take() != ask.take()) {
            return Some(Answer::OtherTake);
        }
        let place = places.pop().expect("there is one");
        if ask.wait != Wait::Never && ask.retry.is_none() {
            return Some(Answer::AlreadyWaits);
        }
        let cannot_park = self.memory_full || parked >= waiters_max;
        let cannot_wait = self.cannot_wait || (place.is_detached() && cannot_park);
        if ask.wait == Wait::Never || cannot_wait {
            if let Some(queue_us) = ask.queue_us {
                place.ask.queue_us = Some(queue_us);
                if ask.share.is_some() {
                    (place.ask.share, place.ask.retry) = (ask.share, ask.retry);
                }
                if place.is_detached() {
                    place.keep_until(now_us + queue_us);
                }
            }
            return Some(Answer::Unavailable);
        }
        let until_us = match ask.wait {
            Wait::For(limit) => Some(now_us + limit.0 * 1000),
            _ => None,
        };
        let Waiter { ticket, since_us, passed, ref upgraded, .. } = *place;
        let upgraded = upgraded.clone();
        self.replaced = Some(place.id);
        let place = Waiter { id: 0, ask: ask.clone(), upgraded, passed, since_us, until_us, overdue: false, ticket };
        self.waiters.retain(|waiter| Some(waiter.id) != self.replaced);
        self.waiters.push(place);
        Some(Answer::Queued)
    }

    fn parked(&self) -> usize {
        self.waiters.iter().filter(|waiter| !waiter.is_detached()).count()
    }

    /// An owner gives back its place on these keys, in this mode or in any.
    pub fn leave_place(&mut self, (db, keys): (u32, &[u8]), owner: u8, mode: Option<Mode>) {
        let leaves = |waiter: &mut Waiter| {
            let is_meant = waiter.is_place() && mode.is_none_or(|mode| mode == waiter.ask.mode);
            is_meant && waiter.ask.owner == owner && keys.iter().any(|key| waiter.wants(db, *key))
        };
        self.left.extend(self.waiters.extract_if(.., leaves).map(|waiter| waiter.id));
        self.end_keeping();
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

    /// The owners that an owner waits for, and at which key.
    fn edges(&self, owner: u8, now_us: u64) -> BTreeSet<(u8, u8)> {
        self.edges_to(owner, now_us, |_| true)
    }

    /// As [`Naive::edges`]; of the waiters that delay it in the queue, only to these.
    fn edges_to(&self, owner: u8, now_us: u64, to: impl Fn(&Waiter) -> bool) -> BTreeSet<(u8, u8)> {
        let mut edges = BTreeSet::new();
        for waiter in self.waiters.iter().filter(|waiter| waiter.ask.owner == owner) {
            let db = waiter.ask.db;
            for &key in &waiter.ask.keys {
                let own = self.row(db, key, owner);
                if own.is_some_and(|own| own.writes > 0 || waiter.ask.mode == Mode::Read) {
                    continue;
                }
                // Any of several holders of shares may let it in, but for those with too many for any sum.
                let most = waiter.ask.share.map(|(limit, _)| limit.saturating_sub(waiter.ask.need(own)));
                let keeps_out =
                    |row: &&Row| conflicts(row, waiter.ask.mode) || most.is_some_and(|most| row.reads > most);
                let conflicting = self.others(db, key, owner).into_iter().filter(keeps_out);
                edges.extend(conflicting.map(|row| (key, row.owner)));
                if own.is_none() {
                    // A holder that asks for more shares, as one may in a grace, waits for nobody: it is told when its
                    // turn comes.
                    let is_told =
                        |other: &Waiter| other.ask.share.is_some() && self.row(db, key, other.ask.owner).is_some();
                    let delayers = self.delayers(waiter, key, now_us).into_iter();
                    let delayers = delayers.filter(|other| to(other) && !is_told(other));
                    edges.extend(delayers.map(|other| (key, other.ask.owner)));
                }
            }
        }
        edges.retain(|(_, other)| *other != owner);
        edges
    }

    /// What keeps a request waiting, beside the places in the queue of the waiters that are in a cycle with it.
    pub fn hindrance(&self, waiter: &Waiter, now_us: u64, is_in: impl Fn(&Waiter, u8) -> bool) -> Option<String> {
        for &key in &waiter.ask.keys {
            let Ask { db, owner, mode, .. } = waiter.ask;
            let others = self.others(db, key, owner);
            if let Some(row) = others.iter().find(|row| conflicts(row, mode)) {
                return Some(format!("{row:?}"));
            }
            if self.row(db, key, owner).is_some() {
                // In a grace, a holder may ask for more.
                match self.blocked_on(waiter, key, now_us) {
                    Some(_) => return Some(format!("holds {key} already, and more is not to be had")),
                    None => continue,
                }
            }
            if !self.fits(&waiter.ask, key) {
                return Some(format!("{} reads of {key}", self.reads(db, key)));
            }
            if !others.is_empty() && others.len() >= self.rules.holders_max {
                return Some(format!("too many hold {key}"));
            }
            if let Some(other) = self.delayers(waiter, key, now_us).into_iter().find(|other| !is_in(other, key)) {
                return Some(format!("{other:?}"));
            }
        }
        None
    }

    fn note_passed(&mut self, ask: &Ask) {
        let passed = |waiter: &&mut Waiter| ask.keys.iter().any(|key| waiter.wants(ask.db, *key));
        self.waiters.iter_mut().filter(passed).for_each(|waiter| waiter.passed = true);
    }

    /// A waiter passes others only if all of them wait for it, directly or through others, and none was passed before.
    fn check_passing(&self, waiter: &Waiter, now_us: u64) {
        let owner = waiter.ask.owner;
        assert!(self.rules.detects && self.is_in_cycle(owner, now_us), "{waiter:?} passes without a cycle");
        let hindrance =
            self.hindrance(waiter, now_us, |other, _| !other.passed && self.leads_to(other.ask.owner, owner, now_us));
        assert_eq!(hindrance, None, "{waiter:?} passes one that does not wait for it");
    }

    /// Whether an owner waits for another, directly or through others.
    fn leads_to(&self, from: u8, to: u8, now_us: u64) -> bool {
        from == to || self.leads(from, to, |at| self.edges(at, now_us))
    }

    /// Whether a path leads from an owner back to it.
    pub fn is_in_cycle(&self, owner: u8, now_us: u64) -> bool {
        self.leads(owner, owner, |at| self.edges(at, now_us))
    }

    /// Whether a path leads from an owner back to it, and does not vanish by itself. A key is kept only so long for a
    /// waiter of several keys, and then that waiter is passed. A waiter behind one of an owner's two waits does not
    /// wait for the other.
    pub fn is_in_lasting_cycle(&self, owner: u8, now_us: u64) -> bool {
        let waits_once = |owner| self.waiters.iter().filter(|waiter| waiter.ask.owner == owner).count() == 1;
        self.leads(owner, owner, |at| match waits_once(at) {
            true => self.edges_to(at, now_us, |other| !other.is_many()),
            false => BTreeSet::new(),
        })
    }

    fn leads(&self, from: u8, to: u8, edges: impl Fn(u8) -> BTreeSet<(u8, u8)>) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while !seen.contains(&to)
            && let Some(at) = next.pop()
        {
            next.extend(edges(at).into_iter().map(|(_, other)| other).filter(|other| seen.insert(*other)));
        }
        seen.contains(&to)
    }

    /// A cycle of two or three owners, each of which waits for a hold of the next.
    pub fn short_cycle_of_holds(&self, now_us: u64) -> Option<Vec<u8>> {
        let owners: BTreeSet<u8> = self.waiters.iter().map(|waiter| waiter.ask.owner).collect();
        let next = |at: u8| self.edges_to(at, now_us, |_| false).into_iter().map(|(_, holder)| holder);
        for &a in &owners {
            for b in next(a) {
                for c in next(b) {
                    if c == a {
                        return Some(vec![a, b]);
                    }
                    if next(c).any(|back| back == a) {
                        return Some(vec![a, b, c]);
                    }
                }
            }
        }
        None
    }

    /// Whether a requester might be in a cycle: another owner waits for a key that it holds, or stands behind it. A key
    /// that it upgrades counts as held until its queue is served, though another command of the step took the hold.
    pub fn may_be_waited_for(&self, owner: u8) -> bool {
        self.contended().into_iter().any(|(db, key)| {
            let queue = self.queue(db, key);
            let stands = queue.iter().position(|waiter| waiter.ask.owner == owner);
            let upgrades = queue.iter().any(|waiter| waiter.ask.owner == owner && waiter.upgraded.contains(&key));
            upgrades || self.row(db, key, owner).is_some() || stands.is_some_and(|at| at + 1 < queue.len())
        })
    }

    /// The first hop of a false cycle: its owner does not wait there for the next.
    pub fn false_hop(&self, cycle: &[(u8, u8)], now_us: u64) -> Option<(u8, u8)> {
        let next = cycle.iter().cycle().skip(1);
        let hops = cycle.iter().zip(next);
        hops.map(|(hop, (next, _))| (*hop, *next))
            .find(|((owner, key), next)| !self.edges(*owner, now_us).contains(&(*key, *next)))
            .map(|(hop, _)| hop)
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

    /// An owner acquired or extended what it holds on these keys.
    pub fn hear_of(&mut self, (db, keys): (u32, &[u8]), owner: u8) {
        for granted in self.granted.iter_mut().filter(|granted| granted.ask.owner == owner) {
            granted.confirmed |= granted.given.iter().any(|given| given.place.0 == db && keys.contains(&given.place.1));
        }
    }

    /// A lock went from one key to another. A grant there whose reply may not have arrived goes along, if it is still
    /// there.
    pub fn follow(&mut self, from: (u32, u8), to: (u32, u8)) {
        self.refresh_offers();
        // What lies there will be gone.
        let there = self.offers.iter_mut().flat_map(|offer| &mut offer.parts).filter(|part| (part.db, part.key) == to);
        there.for_each(|part| part.gone = true);
        for Offer { parts, .. } in &mut self.offers {
            if let Some(at) = parts.iter().position(|part| part.stands() && (part.db, part.key) == from) {
                (parts[at].db, parts[at].key) = to;
            }
        }
        for granted in &mut self.granted {
            let goes = self.rows.iter().any(|row| (row.db, row.key) == from && row.owner == granted.ask.owner);
            for given in granted.given.iter_mut().filter(|given| goes && given.place == from) {
                given.place = to;
            }
        }
    }

    /// Takes back what could not be delivered: what was there before is as if the request had not been made.
    pub fn revoke_undelivered(&mut self, id: u64, now_us: u64) {
        let at = self.granted.iter().position(|granted| granted.id == id).expect("was granted");
        let Granted { ask, given, confirmed, .. } = self.granted.remove(at);
        let mut places: Vec<(u32, u8)> = Vec::new();
        let mut offered: Vec<(u32, u8)> = Vec::new();
        for given in given {
            places.push(given.place);
            let at = (given.place.0, given.place.1, ask.owner);
            let row = self.rows.iter_mut().find(|row| (row.db, row.key, row.owner) == at);
            // What is over does not come back, though the lease that it had before may have been longer: a grant that
            // collects an offer sets another one.
            let row = row.filter(|row| given.fences.contains(&row.fence) && row.deadline_us > now_us);
            let Some(row) = row.filter(|_| !confirmed) else { continue };
            if let Some(queue_us) = ask.queue_us
                && given.before.is_none()
                && row.fence == given.fence
                && row.reads + row.writes == given.added
            {
                // The owner may collect it: only the time of the place is over.
                let count = ask.offered_count();
                (row.reads, row.writes) = if ask.mode == Mode::Read { (count, 0) } else { (0, count) };
                (row.note, row.session) = (None, None);
                row.deadline_us = now_us + queue_us;
                offered.push(given.place);
                continue;
            }
            match ask.mode {
                Mode::Read => row.reads = row.reads.saturating_sub(given.added),
                Mode::Write => row.writes = row.writes.saturating_sub(given.added),
            }
            // What else it has is of a later grant.
            let Some(before) = given.before.filter(|_| row.fence == given.fence) else { continue };
            row.carried |= before.carried;
            row.fence = before.fence;
            if row.deadline_us == given.deadline_us {
                row.deadline_us = before.deadline_us;
            }
            if row.session == given.session {
                row.session = before.session;
            }
        }
        // Together, as far as they lie in one database.
        for db in offered.iter().map(|place| place.0).collect::<BTreeSet<_>>() {
            let there: Vec<(u32, u8)> = places.iter().copied().filter(|place| place.0 == db).collect();
            let (is_old, keys): (Vec<bool>, Vec<u8>) =
                there.iter().map(|place| (!offered.contains(place), place.1)).unzip();
            let held: Vec<u8> = keys.iter().zip(is_old).filter(|(_, is_old)| *is_old).map(|(key, _)| *key).collect();
            self.mark_offered(&Ask { db, ..ask.clone() }, &keys, &held);
        }
        self.settle(now_us);
        self.rows.retain(|row| row.reads + row.writes > 0);
    }
}
