//! What is compared after each step.

use super::{World, name};
use crate::naive::Naive;
use crate::words::Waiter;
use lock_core::manager::view;
use lock_core::model::fence::Fence;
use lock_core::model::hold::{Hold, Mode};
use lock_core::model::key::Db;
use lock_core::model::owner::Owner;
use lock_core::model::request::Check;
use lock_core::model::time::Millis;
use std::collections::BTreeSet;

impl World {
    /// Compares all three, and checks the invariants.
    pub fn check(&mut self) {
        let now = self.now.mono;
        let mut settled = self.naive.clone();
        settled.settle(now.0);
        let mut expected = settled.rows.clone();
        expected.iter_mut().for_each(|row| row.carried = false);
        expected.sort();
        assert_eq!(self.primary.seen((now, self.judged())), expected, "primary and model");
        self.check_checks(&settled);
        if self.late {
            return;
        }
        self.naive.settle(now.0);
        self.check_sessions();
        self.naive.refresh_offers();
        assert_eq!(self.primary.manager.offered(), self.naive.offers.len(), "offers: {:?}", self.naive.offers);
        assert!(self.naive.left.is_empty(), "places that were given back: {:?}", self.naive.left);
        self.check_tops();
        assert_eq!(self.primary.raw(), self.replica.raw(), "primary and replica");
        assert_eq!(self.primary.manager.last_fence().map_or(0, Fence::get), self.naive.last_fence, "fence clocks");
        self.check_lines();
        self.check_expiries();
        for side in [&self.primary, &self.replica] {
            assert_eq!(side.manager.leases_len(), side.locks.len(), "one entry per lock, none left over");
            for (&(db, _), lock) in &side.locks {
                assert_eq!(lock.broken_invariant(), None);
                let (earliest, _) = lock.holds.earliest().expect("I6");
                assert!(side.manager.covers(Db(db), lock, earliest), "I4");
            }
        }
    }

    /// LOCK.CHECK by anybody, of anything, before and after what is over was ended.
    pub(super) fn check_checks(&self, settled: &Naive) {
        let fences = settled.rows.iter().map(|row| Some(row.fence)).chain([None, Some(1)]);
        let fences: Vec<Option<u64>> = fences.collect();
        for (&(db, key), lock) in &self.primary.locks {
            let at = self.primary.sight(db, name(key), (self.now.mono, self.judged()));
            for owner in b'a'..=b'e' {
                for mode in [None, Some(Mode::Read), Some(Mode::Write)] {
                    for &fence in &fences {
                        let wanted = Check { mode, fence: fence.and_then(Fence::new) };
                        let found = view::check(lock, at, &[owner], wanted).map(Fence::get);
                        let expected = settled.check((db, key), owner, mode, fence);
                        assert_eq!(found, expected, "a check of {key} by {owner}: {wanted:?}");
                    }
                }
            }
        }
    }

    /// S1.
    pub(super) fn check_sessions(&self) {
        let mut bound: BTreeSet<(u32, u8, u8, u64)> = BTreeSet::new();
        for (to, db, name, count) in self.primary.manager.sessions().iter() {
            let lock = self.primary.locks.get(&(db.0, name[0]));
            let owners = lock.into_iter().flat_map(|lock| lock.holds.owners_bound_to(to));
            let before = bound.len();
            bound.extend(owners.map(|owner| (db.0, name[0], owner.as_bytes()[0], to.client())));
            assert_eq!(bound.len() - before, count, "S1: what {to:?} has on {name:?}");
        }
        assert_eq!(self.primary.manager.sessions().len(), bound.len());
        // The index of leases goes by whole milliseconds: some may be over that were not ended.
        let is_over = |(db, key, owner, _): &(u32, u8, u8, u64)| {
            let hold = self.primary.locks.get(&(*db, *key)).and_then(|lock| lock.holds.get(&[*owner]));
            hold.is_some_and(|hold| hold.deadline <= self.now.mono)
        };
        let bound: BTreeSet<_> = bound.into_iter().filter(|bound| !is_over(bound)).collect();
        let rows = self.naive.rows.iter();
        let expected = rows.filter_map(|row| Some((row.db, row.key, row.owner, row.session?.0))).collect();
        assert_eq!(bound, expected, "S1");
        assert!(!self.primary.manager.sessions().some_closed(), "everything was ended that was bound");
        assert!(self.replica.manager.sessions().is_empty(), "no hold ends with a connection to another node");
    }

    /// What operators see.
    pub(super) fn check_tops(&self) {
        let (manager, naive, now) = (&self.primary.manager, &self.naive, self.now.mono);
        let of = |waiter: &Waiter| (waiter.since_us, waiter.id);
        let mut waits: Vec<(u64, u64)> = naive.waiters.iter().map(of).collect();
        waits.sort_unstable();
        let mut crowds: Vec<(usize, u32, u8, u64)> = Vec::new();
        for (db, key) in naive.contended() {
            let queue = naive.queue(db, key);
            let since = queue.iter().map(|waiter| waiter.since_us).min().expect("contended");
            crowds.push((queue.len(), db, key, (now.0 - since) / 1000));
        }
        crowds.sort_by_key(|(waiting, db, key, _)| (usize::MAX - waiting, *db, *key));
        for most in [0, 2, 99] {
            let longest = manager.longest_waits(most, now).into_iter();
            let longest: Vec<(u64, u64)> =
                longest.map(|waiting| (waiting.waiter.since.0, waiting.id.to_number())).collect();
            // Waiters that came in the same moment stand in any order.
            let since = |waits: &[(u64, u64)]| waits.iter().take(most).map(|wait| wait.0).collect::<Vec<_>>();
            assert_eq!(since(&longest), since(&waits), "who has waited longest");
            assert!(longest.iter().all(|wait| waits.contains(wait)));
            assert_eq!(longest.iter().collect::<BTreeSet<_>>().len(), most.min(waits.len()));
            let crowded = manager.most_contended(most, now).into_iter();
            let crowded: Vec<_> =
                crowded.map(|crowd| (crowd.waiting, crowd.db.0, crowd.name[0], crowd.waited.0)).collect();
            assert_eq!(crowded, crowds[..most.min(crowds.len())], "where most wait");
        }
    }

    pub(super) fn check_lines(&self) {
        let (manager, naive, now) = (&self.primary.manager, &self.naive, self.now.mono);
        assert_eq!(manager.broken_invariant(), None);
        assert_eq!(manager.waiting(), naive.waiters.len());
        let count = |is: fn(&Waiter) -> bool| naive.waiters.iter().filter(|waiter| is(waiter)).count();
        assert_eq!(manager.places(), count(Waiter::is_place));
        assert_eq!(manager.parked(), count(|waiter| !waiter.is_detached()));
        let contended = naive.contended();
        assert_eq!(manager.contended(), contended.len());
        for (db, key) in contended {
            let queue: Vec<u64> = manager.queue(Db(db), name(key), now).map(|waiting| waiting.id.to_number()).collect();
            let expected: Vec<u64> = naive.queue(db, key).into_iter().map(|waiter| waiter.id).collect();
            assert_eq!(queue, expected, "the line of {key}");
        }
        assert_eq!(naive.overlooked(now.0).map(|waiter| waiter.id), None, "W2: {naive:?}");
        assert_eq!(manager.grace_left(now), naive.grace_left(now.0));
        // A cycle of places alone ends when the grace does.
        if naive.rules.detects && naive.grace_left(now.0).is_none() {
            assert_eq!(naive.short_cycle_of_holds(now.0), None, "in a deadlock: {naive:?}");
            let mut waiters = naive.waiters.iter().filter(|_| !naive.may_overlook);
            let stuck = waiters.find(|waiter| naive.is_in_lasting_cycle(waiter.ask.owner, now.0));
            assert_eq!(stuck.map(|waiter| waiter.id), None, "in a deadlock: {naive:?}");
        }
    }

    /// I5: what is over on a key after a step for an owner is another owner's, more than a step may end, and not all
    /// there is; and the background comes to it.
    pub(super) fn check_settled(&mut self, (db, key): (u32, u8), owner: &Owner) {
        if !self.has_over((db, &[key])) {
            return;
        }
        let (lock, sessions) = (&self.primary.locks[&(db, key)], self.primary.manager.sessions());
        let is_over = |hold: &Hold| sessions.end_of(hold) <= self.judged();
        assert!(lock.holds.get(owner.as_bytes()).is_none_or(|hold| !is_over(hold)), "I5: its own on {key}");
        assert!(self.naive.rules.ended_max < lock.holds.len() + 3, "I5 on {key}");
        assert!(lock.holds.iter().any(|(holder, hold)| holder != owner && !is_over(hold)), "I5: all on {key}");
        assert!(lock.holds.iter().all(|(_, hold)| hold.writes() == 0), "I5: a writer on {key}");
        // The index goes by whole milliseconds: at most one late.
        let is_due = self.primary.manager.next_deadline().is_some_and(|at| at <= self.now.mono + Millis(1));
        assert!(is_due || sessions.some_closed(), "I5: {key} is forgotten");
    }
}
