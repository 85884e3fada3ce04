//! Waking waiters: scan the wait queue of a key, and grant to each waiter that can be served.
//!
//! A queue is scanned in every step on its key, and in the background ([`super::jobs`]) after anything else that may
//! have made room. A scan goes in order. Behind a blocked waiter for this key alone, only those are tried that may
//! bypass it: their owners got something since they came, or wait elsewhere too. Where a grant replaces an offer that
//! excluded more, the scan begins anew: else those behind would take the room before the waiters that were blocked.
//!
//! A step does a bounded piece of it ([`StepLimits`](crate::model::limits::StepLimits)). The queue keeps where
//! the scan stopped (`Cursor`), and the background goes on from there. A step that changes the lock scans from the
//! head: that is where it hands off. If it answers no waiter, it moves no cursor. So no owner can keep the background
//! from the end of a queue.

use super::LockManager;
use super::wake::Attempt;
use crate::model::hold::Mode;
use crate::model::key::{Db, KeyIndex, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::request::{PerKey, WaiterId};
use crate::model::step::{Savepoint, Step};
use crate::wait::queue::{Cursor, Position};
use crate::wait::waiter::Waiter;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A scan of the wait queue of a key.
struct Scan {
    key: KeyIndex,
    db: Db,
    name: KeyName,
    /// How far it has come.
    at: Cursor,
    /// How far an earlier one has come, if this one is from the head because the lock has changed.
    earlier: Option<Box<Cursor>>,
    /// True if it goes on where an earlier one ended.
    goes_on: bool,
    /// True if nothing has changed since the last scan, unless a waiter's time is up.
    is_quiet: bool,
    /// True if a waiter was granted its keys: then this one is settled, and may be held to write.
    granted: bool,
    /// True if a waiter was answered.
    answered: bool,
    /// True if the scan ended before the queue did.
    unfinished: bool,
}

impl Scan {
    /// Begins anew at the head: waiters that were blocked may be served now.
    fn restart(&mut self) {
        (self.at.behind, self.at.bypassing_only, self.at.tries_readers) = (None, false, false);
    }

    /// Where the next one is to go on.
    fn cursor(&mut self) -> Box<Cursor> {
        match self.earlier.take() {
            // This one has seen waiters that the earlier one was past, and some of them only.
            Some(earlier) if !self.answered && earlier.behind > self.at.behind => {
                Box::new(Cursor { again: true, ..*earlier })
            }
            _ => Box::new(self.at),
        }
    }
}

impl LockManager {
    /// Serves the wait queue of a key, as far as it can be served and the budget of the step allows: at most so many
    /// waiters. During a grace none: at its end all queues are served.
    pub(crate) fn wake_waiters<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex, most: usize) {
        if self.wait_table.contended() > 0
            && !self.is_in_grace(step.judged)
            && let Some(scan) = self.begin_scan(step, key)
        {
            self.scan(step, scan, most);
        }
    }

    /// The same of a queue that was on the ready list: it is not quiet, whatever it looks like now.
    pub(super) fn wake_ready_waiters<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex) {
        if !self.is_in_grace(step.judged)
            && let Some(scan) = self.begin_scan(step, key)
        {
            self.scan(step, Scan { is_quiet: false, ..scan }, self.limits.step.answers);
        }
    }

    fn scan<K: Keyspace>(&mut self, step: &mut Step<'_, K>, mut scan: Scan, most: usize) {
        let (key, limits) = (scan.key, self.limits.step);
        let is_first = step.budget.is_whole() && !scan.goes_on;
        while let Some((position, id)) = self.next_in(&mut scan) {
            if step.budget.is_spent(&limits, is_first) || step.opened() >= limits.keys_open {
                // A quiet queue needs no further scan: a waiter whose time is up is answered by its timer.
                scan.unfinished = scan.answered || !scan.is_quiet;
                break;
            }
            if scan.granted && self.meets_writer(step, &scan, id) {
                step.budget.judge(1);
                self.pass_by(step, &mut scan, (position, id), 0);
                continue;
            }
            let before = step.savepoint();
            let attempt = self.attempt(step, id, None);
            self.mark_ready_after(step, Some(key), before);
            let granted = match &attempt {
                Attempt::Grant(_) if self.takes_last_room(step, &scan) => {
                    step.close_unchanged(before);
                    self.pass_by(step, &mut scan, (position, id), 0);
                    continue;
                }
                Attempt::Blocked(at) => {
                    step.close_unchanged(before);
                    self.pass_by(step, &mut scan, (position, id), *at);
                    continue;
                }
                Attempt::Grant(indices) => indices.len(),
                Attempt::Reject(_) => 0,
            };
            if !step.budget.allows(&limits, granted, most) {
                step.close_unchanged(before);
                scan.unfinished = true;
                break;
            }
            step.budget.answer(granted);
            scan.answered = true;
            match attempt {
                Attempt::Grant(indices) => {
                    self.grant_to_waiter(step, &indices, id);
                    scan.granted = true;
                }
                Attempt::Reject(answer) => {
                    step.close_unchanged(before);
                    self.end_wait(step, id, answer);
                }
                Attempt::Blocked(_) => {}
            }
            if step.is_weaker_since(before, key) {
                scan.restart();
            }
        }
        self.end_scan(step, scan);
    }

    /// Prepares a queue for a scan; None if there is none. It goes on where an earlier one ended, unless the step has
    /// changed the lock.
    fn begin_scan<K: Keyspace>(&mut self, step: &mut Step<'_, K>, key: KeyIndex) -> Option<Scan> {
        let (db, name) = self.place_of(step, key);
        let queue = self.wait_table.queue_mut(db, &name)?;
        let mut is_quiet = queue.is_quiet(step.now.mono);
        // A scan goes by the order, so no waiter is passed by those behind it.
        let earlier = queue.unfinished.take();
        let is_marked = queue.is_marked();
        if queue.reservation.is_some() && !step.is_free(key) {
            // Taken also by a lock that came from elsewhere, of which the queue was not told.
            self.wait_table.clear_reservation(db, &name);
            is_quiet = false;
        }
        let goes_on = earlier.is_some() && !step.has_changed(key);
        let (at, earlier) = match earlier {
            Some(earlier) if goes_on => (Cursor { again: earlier.again || is_marked, ..*earlier }, None),
            earlier => (Cursor::new(), earlier),
        };
        let (granted, answered, unfinished) = (false, false, false);
        Some(Scan { key, db, name, at, earlier, goes_on, is_quiet, granted, answered, unfinished })
    }

    /// True if another owner has been granted the scanned key to write, and the waiter waits for this key alone. Most
    /// scans end so, and it is quicker to see than an [`Attempt`].
    fn meets_writer<K: Keyspace>(&self, step: &mut Step<'_, K>, scan: &Scan, id: WaiterId) -> bool {
        let (Some(waiter), Some(lock)) = (self.wait_table.waiter(id), step.keys.lock(scan.key)) else { return false };
        lock.mode() == Some(Mode::Write)
            && matches!(&waiter.keys[..], [key] if !key.upgrade)
            && waiter.until.is_none_or(|until| until > step.now.mono)
            && lock.holds.get(waiter.owner.as_bytes()).is_none()
    }

    /// True if a waiter that was granted the scanned key now could keep one from it that stands before it, and is to be
    /// tried once more.
    fn takes_last_room<K: Keyspace>(&self, step: &mut Step<'_, K>, scan: &Scan) -> bool {
        scan.at.again && {
            let holders = step.keys.lock(scan.key).map_or(0, |lock| lock.holds.len());
            holders + self.wait_table.queue_len(scan.db, &scan.name) > self.limits.holders_per_key_max
        }
    }

    /// The next waiter to be tried.
    fn next_in(&self, scan: &mut Scan) -> Option<(Position, WaiterId)> {
        let queue = self.wait_table.queue(scan.db, &scan.name)?;
        let next = match scan.at.behind {
            Some(position) if scan.at.bypassing_only => queue.next_bypassing(position),
            behind => queue.next(behind),
        };
        if scan.at.begins_anew(next.map(|(position, _)| position)) {
            scan.at = Cursor::new();
            return queue.next(None);
        }
        next
    }

    /// Goes on behind a waiter that is blocked by this one of its keys.
    fn pass_by<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        scan: &mut Scan,
        (position, id): (Position, WaiterId),
        at: usize,
    ) {
        scan.at.behind = Some(position);
        self.wait_table.note_blocked_on(id, at);
        let Some(waiter) = self.wait_table.waiter(id).filter(|waiter| !waiter.is_many()) else { return };
        let delays_readers = waiter.operation.kind().delays_readers();
        if delays_readers || step.keys.lock(scan.key).is_some_and(|lock| lock.mode() == Some(Mode::Write)) {
            scan.at.bypassing_only = true;
        } else if !scan.at.bypassing_only && !scan.at.tries_readers {
            match self.holders_behind(step, scan, position) {
                Some(positions) => {
                    scan.at.bypassing_only = true;
                    self.wait_table.allow_bypass_at((scan.db, &scan.name), &positions);
                }
                None => scan.at.tries_readers = true,
            }
        }
    }

    /// A reader at this position is delayed by waiters for several keys before it, and by nothing else. Readers behind
    /// it whose owners hold one of those keys are not delayed: their positions. None if it takes too long to tell.
    fn holders_behind<K: Keyspace>(
        &self,
        step: &mut Step<'_, K>,
        scan: &Scan,
        reader: Position,
    ) -> Option<Vec<Position>> {
        let queue = self.wait_table.queue(scan.db, &scan.name)?;
        let (mut positions, mut left) = (Vec::new(), self.limits.step.keys_judged);
        let mut take = |count: usize| {
            step.budget.judge(count);
            left = left.checked_sub(count)?;
            Some(())
        };
        let before = queue.waits_elsewhere_from(None).take_while(|(position, _)| *position < reader);
        for (_, id) in before {
            take(1)?;
            let Some(waiter) = self.wait_table.waiter(id).filter(|waiter| waiter.is_many()) else { continue };
            for wanted in &waiter.keys {
                take(1)?;
                let found = step.keys.peek(scan.db, &wanted.name, |lock| {
                    if lock.holds.len() > queue.len() {
                        for (position, id) in queue.from(reader) {
                            take(1)?;
                            let holds = |waiter: &Waiter| lock.holds.get(waiter.owner.as_bytes()).is_some();
                            positions.extend(self.wait_table.waiter(id).filter(|it| holds(it)).map(|_| position));
                        }
                        return Some(());
                    }
                    for (owner, _) in lock.holds.iter() {
                        take(1)?;
                        for (_, other) in self.wait_table.waiting_of(owner) {
                            take(1)?;
                            let mut keys = other.keys.iter().filter(|key| other.db == scan.db && key.name == scan.name);
                            positions.extend(keys.next().map(|key| other.position_at(key)));
                        }
                    }
                    Some(())
                });
                if found == Some(None) {
                    return None;
                }
            }
        }
        Some(positions)
    }

    /// Marks the queues of keys other than the scanned one as ready where holds have changed since then.
    pub(super) fn mark_ready_after<K: Keyspace>(
        &mut self,
        step: &mut Step<'_, K>,
        scanned: Option<KeyIndex>,
        since: Savepoint,
    ) {
        let changed = step.effects.changes[since.changes..].iter().map(|change| change.key);
        let changed: PerKey<KeyIndex> = changed.filter(|key| Some(*key) != scanned).collect();
        for key in &changed {
            let (db, name) = self.place_of(step, *key);
            self.wait_table.mark_ready(db, &name);
        }
    }

    /// After a scan: a free key is reserved for the first waiter that is left, which waits for other keys too.
    fn end_scan<K: Keyspace>(&mut self, step: &mut Step<'_, K>, mut scan: Scan) {
        self.follow_expiry(step, scan.key);
        let free = step.is_free(scan.key);
        let Some(queue) = self.wait_table.queue_mut(scan.db, &scan.name) else { return };
        let is_reserved = queue.reservation.is_some();
        if scan.unfinished {
            queue.put_aside(scan.cursor());
            self.wait_table.mark_unfinished(scan.db, &scan.name);
        } else {
            queue.note_scanned(step.now.mono);
        }
        if free {
            self.wait_table.reserve(scan.db, &scan.name, step.now.mono, self.limits.reserve_max);
        } else if is_reserved {
            self.wait_table.clear_reservation(scan.db, &scan.name);
        }
    }
}
