//! The naive model's places and offers: owners that ask again, what lies there for them, and what is taken back.

use crate::naive::Naive;
use crate::words::{Answer, Ask, Granted, Offer, Part, Row, Waiter};
use lock_core::model::hold::Mode;
use lock_core::model::request::Wait;
use std::collections::BTreeSet;

impl Naive {
    /// A place is served, and no client waits there: its owner may collect that until the place would be over.
    pub(crate) fn offer(&mut self, waiter: &Waiter, now_us: u64, wall_us: u64) -> Vec<u64> {
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
    pub(crate) fn collect(&mut self, ask: &Ask, now_us: u64, wall_us: u64) -> Option<Answer> {
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
    pub(crate) fn ask_again(&mut self, ask: &Ask, now_us: u64) -> Option<Answer> {
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

    pub(crate) fn parked(&self) -> usize {
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
