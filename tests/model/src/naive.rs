//! The naive model: one list of holds, scanned from end to end. It is slow and obvious, and was written without reading
//! the core: it shares no code with it but the words of a request.

use crate::words::{Answer, Ask, Given, Granted, Offer, Part, Row, Rules, Waiter};
use lock_core::model::hold::Mode;
use lock_core::model::request::Amount;
use lock_core::model::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// All there is.
#[derive(Clone, Debug, Default)]
pub struct Naive {
    pub rows: Vec<Row>,
    pub last_fence: u64,
    /// The highest fence ever given on each key, whatever became of the key since.
    given: BTreeMap<(u32, u8), u64>,
    pub rules: Rules,
    skew_us: u64,
    begun: bool,
    pub waiters: Vec<Waiter>,
    pub granted: Vec<Granted>,
    pub offers: Vec<Offer>,
    /// Places that were given back, until the core says so too.
    pub left: Vec<u64>,
    pub tickets: u64,
    /// Since when a free key has been kept for its waiter.
    pub kept: BTreeMap<(u32, u8), u64>,
    /// Keys with something else than a lock.
    pub foreign: BTreeSet<(u32, u8)>,
    /// When connections closed.
    pub closed: BTreeMap<u64, u64>,
    /// Whether the server does not let the next requester wait.
    pub cannot_wait: bool,
    /// Whether the server has no memory left for the next request.
    pub memory_full: bool,
    /// Whether the core grants the next request: before the waiters of a cycle, it may where it must not refuse it.
    pub lets_in: bool,
    /// Whether the core lets the next request wait: in a cycle, it may during a grace where it must not refuse it.
    pub lets_wait: bool,
    /// Whether searches for deadlocks may be given up: then only short cycles of holds are surely found.
    pub may_overlook: bool,
    /// When the grace that runs has begun.
    grace_begun_us: Option<u64>,
    /// When the last grace ends.
    grace_end_us: u64,
    /// When the transaction or script that runs has begun: all in it is judged by that time.
    pub unit_us: Option<u64>,
    /// Whose place was taken over by the last request.
    pub replaced: Option<u64>,
    /// The last refused request, as it would have waited.
    pub refused: Option<Waiter>,
}

impl Naive {
    pub fn new(rules: Rules, skew_us: u64) -> Naive {
        Naive { rules, skew_us, ..Naive::default() }
    }

    /// Nothing is granted for so long.
    pub fn begin_grace(&mut self, length_us: u64, now_us: u64) {
        if length_us > 0 {
            (self.grace_begun_us, self.grace_end_us) = (Some(now_us), now_us + length_us);
        }
    }

    /// A grace is so long, also one that runs; not one that is over.
    pub fn set_grace(&mut self, length_us: u64, now_us: u64) {
        if let (Some(begun_us), Some(_)) = (self.grace_begun_us, self.grace_left(now_us)) {
            self.grace_end_us = now_us.max(begun_us + length_us);
        }
    }

    pub fn grace_left(&self, now_us: u64) -> Option<Millis> {
        (now_us < self.grace_end_us).then(|| Millis((self.grace_end_us - now_us).div_ceil(1000)))
    }

    /// Whether nothing is granted: as it was when the transaction or script that runs has begun.
    pub fn is_in_grace(&self, now_us: u64) -> bool {
        self.judged_us(now_us) < self.grace_end_us
    }

    /// By which time it is judged what is over.
    fn judged_us(&self, now_us: u64) -> u64 {
        self.unit_us.unwrap_or(now_us)
    }

    /// Whether a waiter's time was, or is now, up before it could be served after a grace.
    pub fn ended_in_grace(&self, waiter: &Waiter, now_us: u64) -> bool {
        waiter.until_us.unwrap_or(now_us).min(now_us) <= self.grace_end_us
    }

    fn find(&self, db: u32, key: u8, owner: u8) -> Option<usize> {
        self.rows.iter().position(|row| (row.db, row.key, row.owner) == (db, key, owner))
    }

    pub fn others(&self, db: u32, key: u8, owner: u8) -> Vec<&Row> {
        self.rows.iter().filter(|row| (row.db, row.key) == (db, key) && row.owner != owner).collect()
    }

    /// How often a key is held for reading, by all its holders together.
    pub fn reads(&self, db: u32, key: u8) -> u64 {
        self.rows.iter().filter(|row| (row.db, row.key) == (db, key)).map(|row| u64::from(row.reads)).sum()
    }

    /// The fence of a new hold on a key.
    fn next_fence(&mut self, at: (u32, u8), least: Option<u64>, wall_us: u64) -> u64 {
        if !self.begun {
            self.jump(wall_us);
        }
        let fence = wall_us.max(self.last_fence + 1).max(least.unwrap_or(0));
        self.give(at, fence)
    }

    fn give(&mut self, at: (u32, u8), fence: u64) -> u64 {
        let highest = self.given.insert(at, fence);
        assert!(highest.is_none_or(|highest| highest < fence), "{fence} after {highest:?} on {at:?}");
        self.last_fence = self.last_fence.max(fence);
        fence
    }

    /// Raises the fence of a hold to this one at least.
    fn raise(&mut self, row: usize, least: Option<u64>, wall_us: u64) {
        let Row { db, key, fence, carried, .. } = self.rows[row];
        let Some(least) = least.filter(|least| *least > fence) else { return };
        if !self.begun {
            self.jump(wall_us);
        }
        // Of a hold that came from elsewhere it is not known what was given on its key.
        let highest = if carried { self.last_fence } else { self.given[&(db, key)] };
        let fence =
            if least > highest { self.give((db, key), least) } else { self.next_fence((db, key), None, wall_us) };
        (self.rows[row].fence, self.rows[row].carried) = (fence, false);
    }

    /// Whether a client may ask for this fence, if it does.
    pub fn admits(&self, least: Option<u64>, wall_us: u64) -> bool {
        least.is_none_or(|least| least <= self.last_fence || least <= wall_us + self.skew_us / 2)
    }

    /// Time passes: what is over is gone. What was bound to a connection that has closed ends with it.
    pub fn settle(&mut self, now_us: u64) {
        let judged_us = self.judged_us(now_us);
        for row in &mut self.rows {
            if let Some((connection, grace_us)) = row.session
                && let Some(at_us) = self.closed.get(&connection)
            {
                row.deadline_us = row.deadline_us.min(at_us + grace_us);
                row.session = None;
            }
        }
        self.rows.retain(|row| row.deadline_us > judged_us);
    }

    /// Grants an owner its request. What that is, by key.
    pub fn take(&mut self, ask: &Ask, now_us: u64, wall_us: u64) -> Vec<Given> {
        let Ask { db, owner, mode, .. } = *ask;
        let deadline_us = now_us + ask.lease_us;
        let mut given = Vec::new();
        for &key in &ask.keys {
            let held = self.find(db, key, owner).map(|at| self.rows[at].clone());
            let at = match self.find(db, key, owner) {
                Some(at) => {
                    let row = &self.rows[at];
                    let upgrade = mode == Mode::Write && row.writes == 0;
                    let old = row.fence;
                    if upgrade || row.carried {
                        let fence = self.next_fence((db, key), ask.min_fence, wall_us);
                        (self.rows[at].fence, self.rows[at].carried) = (fence, false);
                    } else {
                        self.raise(at, ask.min_fence, wall_us);
                    }
                    let fence = self.rows[at].fence;
                    if fence != old {
                        // Whatever was given on this hold is of the one with the new fence now.
                        let given = self.granted.iter_mut().flat_map(|granted| &mut granted.given);
                        let given = given.filter(|given| given.place == (db, key) && given.fences.contains(&old));
                        given.for_each(|given| given.fences.push(fence));
                    }
                    at
                }
                None => {
                    let fence = self.next_fence((db, key), ask.min_fence, wall_us);
                    self.rows.push(Row {
                        db,
                        key,
                        owner,
                        reads: 0,
                        writes: 0,
                        fence,
                        deadline_us,
                        note: None,
                        session: None,
                        offered: false,
                        carried: false,
                    });
                    self.rows.len() - 1
                }
            };
            let row = &mut self.rows[at];
            if row.offered && (if mode == Mode::Read { row.reads } else { row.writes }) == 0 {
                // No client knows of the count in the other mode.
                (row.reads, row.writes) = (0, 0);
            }
            let count = match mode {
                Mode::Read => &mut row.reads,
                Mode::Write => &mut row.writes,
            };
            let before = *count;
            // What was offered is collected, and nothing is added.
            *count = if row.offered { before.max(ask.count_after(0)) } else { ask.count_after(before) };
            let added = *count - before;
            row.deadline_us = if row.offered { deadline_us } else { row.deadline_us.max(deadline_us) };
            row.offered = false;
            row.note = ask.note.or(row.note);
            row.session = ask.session.or(row.session);
            let (fence, deadline_us, session) = (row.fence, row.deadline_us, row.session);
            if let Some((limit, _)) = ask.share.filter(|_| added > 0) {
                let sum = self.reads(db, key);
                assert!(sum <= u64::from(limit), "{sum} reads of {key} at a grant within {limit}");
            }
            given.push(Given {
                fence,
                fences: vec![fence],
                added,
                deadline_us,
                session,
                place: (db, key),
                before: held,
            });
        }
        self.end_keeping();
        given
    }

    pub fn release(
        &mut self,
        (db, keys): (u32, &[u8]),
        owner: u8,
        mode: Option<Mode>,
        amount: Amount,
        fence: Option<u64>,
    ) -> Answer {
        let counted = |count: u32| match amount {
            Amount::One => count.max(1) - 1,
            Amount::All => 0,
            Amount::To(n) => count.min(n),
        };
        let mut ends: Vec<(u32, u8)> = Vec::new();
        let wanted = |row: &Row| fence.is_none() || fence == Some(row.fence);
        for &key in keys {
            let both = self
                .find(db, key, owner)
                .is_some_and(|at| self.rows[at].reads > 0 && self.rows[at].writes > 0 && wanted(&self.rows[at]));
            if both && mode.is_none() && amount != Amount::All {
                return Answer::Ambiguous;
            }
        }
        self.refresh_offers();
        if fence.is_none() && !matches!(amount, Amount::To(1..)) {
            for &key in keys {
                let is_meant = |row: &Row| match mode {
                    Some(Mode::Read) => row.reads > 0,
                    Some(Mode::Write) => row.writes > 0,
                    None => true,
                };
                let offered = |at: &usize| self.rows[*at].offered && is_meant(&self.rows[*at]);
                let Some(at) = self.find(db, key, owner).filter(offered) else { continue };
                ends.extend(self.offer_with((db, self.rows[at].key), owner));
            }
        }
        let mut left = Vec::new();
        for &key in keys {
            let Some(at) = self.find(db, key, owner).filter(|at| wanted(&self.rows[*at])) else {
                left.push(None);
                continue;
            };
            let row = &mut self.rows[at];
            if mode != Some(Mode::Write) {
                row.reads = counted(row.reads);
            }
            if mode != Some(Mode::Read) {
                row.writes = counted(row.writes);
            }
            // Of an offer nothing is left, however many shares it had.
            let ended = row.offered && ends.contains(&(db, key));
            left.push(Some(if ended { 0 } else { u64::from(row.reads + row.writes) }));
            if row.reads + row.writes == 0 {
                self.rows.remove(at);
            }
        }
        self.rows.retain(|row| !(row.offered && row.owner == owner && ends.contains(&(row.db, row.key))));
        if fence.is_none() && !matches!(amount, Amount::To(1..)) {
            self.leave_place((db, keys), owner, mode);
        }
        Answer::Released(left)
    }

    /// All keys of this database that were offered with this one.
    fn offer_with(&self, at: (u32, u8), owner: u8) -> Vec<(u32, u8)> {
        let is_there = |part: &Part| part.stands() && (part.db, part.key) == at;
        let offer = self.offers.iter().find(|offer| offer.owner == owner && offer.parts.iter().any(is_there));
        let parts = offer.into_iter().flat_map(|offer| &offer.parts);
        parts.filter(|part| part.stands() && part.db == at.0).map(|part| (part.db, part.key)).collect()
    }

    pub fn extend(
        &mut self,
        (db, keys): (u32, &[u8]),
        owner: u8,
        (deadline_us, session, note): (u64, Option<(u64, u64)>, Option<Option<u8>>),
        (fence, min_fence): (Option<u64>, Option<u64>),
        wall_us: u64,
    ) -> Answer {
        if !self.admits(min_fence, wall_us) {
            return Answer::MinFenceAhead;
        }
        let extended = keys.iter().map(|&key| {
            let at = self.find(db, key, owner).filter(|at| !self.rows[*at].offered)?;
            if fence.is_some_and(|fence| fence != self.rows[at].fence) {
                return None;
            }
            self.raise(at, min_fence, wall_us);
            let row = &mut self.rows[at];
            row.deadline_us = deadline_us;
            row.session = session.or(row.session);
            row.note = note.unwrap_or(row.note);
            Some(row.fence)
        });
        let extended: Vec<Option<u64>> = extended.collect();
        let done: Vec<u8> = keys.iter().zip(&extended).filter_map(|(key, done)| done.map(|_| *key)).collect();
        self.hear_of((db, &done), owner);
        Answer::Extended(extended)
    }

    /// Whether an owner holds a key in a mode, or any, under a fence, or any.
    pub fn check(&self, (db, key): (u32, u8), owner: u8, mode: Option<Mode>, fence: Option<u64>) -> Option<u64> {
        let row = &self.rows[self.find(db, key, owner)?];
        let in_mode = match mode {
            Some(Mode::Read) => row.reads > 0,
            Some(Mode::Write) => row.writes > 0,
            None => true,
        };
        (in_mode && !row.offered && fence.is_none_or(|fence| fence == row.fence)).then_some(row.fence)
    }

    pub fn guard(&mut self, (db, key): (u32, u8), owner: u8, fence: u64) -> Answer {
        let held = self.check((db, key), owner, Some(Mode::Write), Some(fence));
        if held.is_some() {
            self.hear_of((db, &[key]), owner);
        }
        Answer::Guarded(held)
    }

    /// An operator ends holds, and for how long the key was kept. How many there were.
    pub fn break_holds(&mut self, (db, key): (u32, u8), owner: Option<u8>, now_us: u64) -> usize {
        let before = self.rows.len();
        self.rows.retain(|row| (row.db, row.key) != (db, key) || owner.is_some_and(|owner| owner != row.owner));
        let first = self.queue(db, key).first().map(|first| first.ask.owner);
        if owner.is_none_or(|owner| first == Some(owner))
            && let Some(since) = self.kept.get_mut(&(db, key))
        {
            *since = (*since).min(now_us - self.rules.reserve_us);
        }
        let broken = before - self.rows.len();
        if let Some(owner) = owner {
            self.leave_place((db, &[key]), owner, None);
        }
        broken
    }

    /// Nothing on this key, or on any, is bound to a connection any more.
    pub fn unbind(&mut self, at: Option<(u32, u8)>) {
        for row in self.rows.iter_mut().filter(|row| at.is_none_or(|at| at == (row.db, row.key))) {
            row.session = None;
        }
    }

    pub fn delete(&mut self, db: u32, key: u8) {
        self.rows.retain(|row| (row.db, row.key) != (db, key));
    }

    pub fn rename(&mut self, db: u32, from: u8, to: u8) {
        if from == to || !self.rows.iter().any(|row| (row.db, row.key) == (db, from)) {
            return;
        }
        self.follow((db, from), (db, to));
        self.delete(db, to);
        for row in self.rows.iter_mut().filter(|row| (row.db, row.key) == (db, from)) {
            row.key = to;
            row.carried = true;
        }
    }

    pub fn move_to_1(&mut self, key: u8) {
        self.follow((0, key), (1, key));
        for row in self.rows.iter_mut().filter(|row| (row.db, row.key) == (0, key)) {
            row.db = 1;
            row.carried = true;
        }
    }

    /// Saved and loaded: leases go on with what was left, in whole milliseconds.
    pub fn reload(&mut self, db: u32, key: u8, now_us: u64) {
        for row in self.rows.iter_mut().filter(|row| (row.db, row.key) == (db, key)) {
            row.deadline_us = now_us + row.deadline_us.saturating_sub(now_us).div_ceil(1000) * 1000;
            row.offered = false;
            row.carried = true;
        }
    }

    pub fn swap(&mut self) {
        self.kept.clear();
        for row in &mut self.rows {
            row.db = 1 - row.db;
            row.carried = true;
        }
        for given in self.granted.iter_mut().flat_map(|granted| &mut granted.given) {
            given.place.0 = 1 - given.place.0;
        }
        for part in self.offers.iter_mut().flat_map(|offer| &mut offer.parts) {
            part.db = 1 - part.db;
        }
        self.foreign = self.foreign.iter().map(|(db, key)| (1 - db, *key)).collect();
    }

    pub fn flush(&mut self, db: Option<u32>) {
        self.rows.retain(|row| db.is_some_and(|db| db != row.db));
        self.foreign.retain(|(at, _)| db.is_some_and(|db| db != *at));
    }

    fn jump(&mut self, wall_us: u64) {
        self.last_fence = self.last_fence.max(wall_us) + self.skew_us;
        self.begun = true;
    }

    pub fn promote(&mut self, wall_us: u64) {
        self.jump(wall_us);
        self.rows.iter_mut().for_each(|row| row.carried = true);
    }
}
