//! The naive model's graph of who waits for whom, built by definition.

use crate::naive::Naive;
use crate::queue::conflicts;
use crate::words::{Ask, Row, Waiter};
use lock_core::model::hold::Mode;
use std::collections::BTreeSet;

impl Naive {
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

    pub(crate) fn note_passed(&mut self, ask: &Ask) {
        let passed = |waiter: &&mut Waiter| ask.keys.iter().any(|key| waiter.wants(ask.db, *key));
        self.waiters.iter_mut().filter(passed).for_each(|waiter| waiter.passed = true);
    }

    /// A waiter passes others only if all of them wait for it, directly or through others, and none was passed before.
    pub(crate) fn check_passing(&self, waiter: &Waiter, now_us: u64) {
        let owner = waiter.ask.owner;
        assert!(self.rules.detects && self.is_in_cycle(owner, now_us), "{waiter:?} passes without a cycle");
        let hindrance =
            self.hindrance(waiter, now_us, |other, _| !other.passed && self.leads_to(other.ask.owner, owner, now_us));
        assert_eq!(hindrance, None, "{waiter:?} passes one that does not wait for it");
    }

    /// Whether an owner waits for another, directly or through others.
    pub(crate) fn leads_to(&self, from: u8, to: u8, now_us: u64) -> bool {
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
}
