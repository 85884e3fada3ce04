//! What happens without a request: the background's part, and what a replica is told.

use super::{Step, World, name, update_of};
use lock_core::manager::LeasePoll;
use lock_core::model::effect::{Change, Effects, Record};
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::record::Origin;
use lock_core::model::request::{self, WaiterId};
use lock_core::model::time::Timestamp;
use lock_core::wait::jobs::Job;
use lock_core::wait::timers::WaitPoll;

impl World {
    /// The replica learns what the effects say, and nothing else.
    pub(super) fn tell(&mut self, changes: &[Change]) {
        let now = self.now;
        for change in changes {
            let fence = change.hold.fence();
            let update = update_of(change, now);
            let (db, key) = self.primary.step[change.key.0];
            if !change.ended {
                // As the shell does with a new or changed hold.
                self.primary.expires.remove(&(db, key));
            }
            match change.record {
                Record::State => {}
                Record::Emptied => {
                    self.replica.delete(db, key);
                    continue;
                }
                Record::Sent => continue,
            }
            let Step { outcome: told, effects } = self
                .replica
                .in_step(db, &[key], now, |manager, step| manager.apply(step, KeyIndex(0), &update, Origin::Peer));
            assert_eq!(told, Ok(()));
            assert!(effects.wait_ends.is_empty());
            assert!(self.replica.manager.last_fence() >= Some(fence), "a fence that the replica may give again");
        }
    }

    /// A scan of these keys was made in the background.
    pub(super) fn after_look(&mut self, db: u32, keys: &[u8], effects: Effects) {
        self.told.follow(&effects.wait_ends, effects.messages(), (None, None));
        self.after_look_told(db, keys, effects);
    }

    pub(super) fn after_look_told(&mut self, db: u32, keys: &[u8], effects: Effects) {
        self.tell(&effects.changes);
        // A lock may have come from elsewhere. The queue learns of it by the scan alone, before any waiter is answered.
        self.naive.end_keeping_of(db, keys);
        for (id, answer) in effects.wait_ends {
            self.hear(id, answer);
        }
        for key in keys {
            self.naive.looked(db, *key, self.now.mono.0);
        }
    }

    /// Does all that is left to the background.
    pub(super) fn drain(&mut self) {
        self.primary.manager.end_grace(self.now.mono);
        for _ in 0..1_000 {
            self.expire();
            self.open_due();
            self.alarm(usize::MAX);
            if !self.work() {
                return;
            }
        }
        panic!("the work does not come to an end");
    }

    pub(super) fn expire(&mut self) {
        loop {
            match self.primary.manager.poll_timeouts(self.now.mono) {
                WaitPoll::Ended(id, answer) => {
                    self.told.follow(&[(id, answer.clone())], &[], (None, None));
                    self.hear(id, answer);
                }
                WaitPoll::PlaceOver(id, ..) => self.end_place(id),
                WaitPoll::Pending => {}
                WaitPoll::Idle => return,
            }
        }
    }

    /// A request was served, so that the node grants again: a place whose time was up meanwhile has it again.
    pub(super) fn renew_overdue(&mut self) {
        let now = self.now.mono;
        for waiter in self.naive.waiters.iter_mut().filter(|waiter| waiter.overdue && waiter.is_over(now.0)) {
            let renewed = now.0 + waiter.ask.queue_us.expect("a place");
            let mut queue = self.primary.manager.queue(Db(waiter.ask.db), name(waiter.ask.keys[0]), now);
            let there = queue.find(|waiting| waiting.id.to_number() == waiter.id);
            if there.is_some_and(|waiting| waiting.waiter.until == Some(Timestamp(renewed))) {
                waiter.keep_until(renewed);
            }
        }
    }

    /// The time of a place is up, now and then while nothing can be granted.
    pub(super) fn end_place(&mut self, id: WaiterId) {
        let (number, now) = (id.to_number(), self.now.mono);
        let at = self.naive.waiters.iter().position(|waiter| waiter.id == number).expect("waits");
        let waiter = &mut self.naive.waiters[at];
        assert!(waiter.is_detached() && waiter.is_over(now.0), "{waiter:?}");
        let may_grant = !self.some_places_are_overdue || !(waiter.ticket + now.0 / 1000).is_multiple_of(4);
        match (may_grant, waiter.overdue) {
            (false, _) => {
                waiter.keep_until(now.0 + 1_000_000);
                waiter.overdue = true;
            }
            (true, true) => waiter.keep_until(now.0 + waiter.ask.queue_us.expect("a place")),
            (true, false) => {
                self.told.left(number, None);
                drop(self.naive.waiters.remove(at));
            }
        }
        self.primary.manager.end_place(id, may_grant, now);
        self.naive.end_keeping();
    }

    /// Whether there was any.
    pub(super) fn work(&mut self) -> bool {
        let (now, mut worked) = (self.now, false);
        while let Some(work) = self.primary.manager.next_job() {
            worked = true;
            match work {
                Job::ServeQueue(Db(db), name) => {
                    let key = name[0];
                    if self.is_foreign(db, &[key]) {
                        self.end_waits(db, key);
                        continue;
                    }
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db, &[key], now, |manager, step| manager.serve_ready_queue(step, KeyIndex(0), 1));
                    self.after_look(db, &[key], effects);
                }
                Job::MarkQueues => self.primary.manager.mark_queues(),
                Job::ShortenPlaces => self.primary.manager.shorten_places(),
                Job::Check(id, Db(db), name) => {
                    let Step { effects, .. } =
                        self.primary.in_step(db, &[name[0]], now, |manager, step| manager.check_waiter(step, id));
                    self.tell(&effects.changes);
                    self.told.follow(&effects.wait_ends, effects.messages(), (None, None));
                    // Its own step saw all locks: what closed a cycle came after it.
                    for (id, answer) in effects.wait_ends {
                        self.hear(id, answer);
                    }
                }
                Job::EndSession(connection, Db(db), name) => {
                    let key = name[0];
                    if self.is_foreign(db, &[key]) {
                        self.primary.manager.abandon_session(Db(db), &name, connection);
                        continue;
                    }
                    // Pieces of several sizes.
                    let most = 1 + self.naive.tickets as usize % 3;
                    let Step { effects, .. } = self.primary.in_step(db, &[key], now, |manager, step| {
                        manager.end_session(step, KeyIndex(0), connection, most);
                    });
                    self.after_look(db, &[key], effects);
                }
                Job::AnnounceEnds(Db(db), name) => {
                    let key = name[0];
                    if self.is_foreign(db, &[key]) {
                        self.primary.manager.abandon_ends(Db(db), &name, 1);
                        continue;
                    }
                    let most = 1 + self.naive.tickets as usize % 3;
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db, &[key], now, |manager, step| manager.announce_ends(step, KeyIndex(0), most));
                    assert!(effects.wait_ends.is_empty() && effects.changes.iter().all(|change| change.ended));
                    self.tell(&effects.changes);
                }
                Job::RevokeUndelivered(id, Db(db), names) => {
                    let keys: Vec<u8> = names.iter().map(|name| name[0]).collect();
                    // The core opens them: one of them may be no lock any more, which must not keep the others taken.
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db, &[], now, |manager, step| manager.revoke_undelivered(step, id, Db(db)));
                    let known = self.naive.granted.iter().find(|granted| granted.id == id.to_number());
                    let is_last = self.primary.manager.waited_since(id).is_none();
                    let tells = is_last && known.is_none_or(|granted| !granted.confirmed);
                    let undelivered = Some(id.to_number()).filter(|_| tells);
                    self.told.follow(&effects.wait_ends, effects.messages(), (None, undelivered));
                    // Else it was when its connection closed.
                    if self.naive.granted.iter().any(|granted| granted.id == id.to_number()) {
                        self.naive.revoke_undelivered(id.to_number(), now.mono.0);
                    }
                    let keys: Vec<u8> = keys.into_iter().filter(|key| !self.is_foreign(db, &[*key])).collect();
                    self.after_look_told(db, &keys, effects);
                }
            }
        }
        assert!(!self.primary.manager.has_jobs());
        worked
    }

    pub(super) fn end_waits(&mut self, db: u32, key: u8) {
        while !self.naive.queue(db, key).is_empty() {
            let ended = self.primary.manager.end_waits(Db(db), name(key), &request::WaitEnd::WrongType);
            assert!((1..=self.primary.manager.limits.step.answers).contains(&ended.waits.len()));
            self.told.follow(&ended.waits, &ended.messages, (None, None));
            for (id, answer) in ended.waits {
                assert_eq!(answer, request::WaitEnd::WrongType);
                self.naive.waiters.retain(|waiter| waiter.id != id.to_number());
            }
        }
        assert!(self.naive.queue(db, key).is_empty());
        self.naive.end_keeping();
    }

    /// Works off all that is due, at most so many holds at a time.
    pub(super) fn alarm(&mut self, most: usize) {
        let now = self.now;
        for _ in 0..100_000 {
            match self.primary.manager.poll_leases(now.mono) {
                LeasePoll::Key(db, entry, name) => {
                    let keys = [name[0]];
                    let Step { effects, .. } = self
                        .primary
                        .in_step(db.0, &keys, now, |manager, step| manager.lapse(step, KeyIndex(0), entry, most));
                    self.after_look(db.0, &keys, effects);
                }
                LeasePoll::DbUnknown(..) => panic!("nothing was loaded beside what is served"),
                LeasePoll::Pending => {}
                LeasePoll::Idle => {
                    let next = self.primary.manager.next_deadline();
                    assert!(self.late || next.is_none_or(|at| at > now.mono), "the alarm would spin");
                    for lock in self.primary.locks.values() {
                        // The index goes by whole milliseconds: at most one late.
                        assert_eq!(lock.holds.over(Timestamp(now.mono.0 - 1_000)), 0, "the alarm forgot a lease");
                    }
                    return;
                }
            }
        }
        panic!("the alarm does not come to an end");
    }
}
