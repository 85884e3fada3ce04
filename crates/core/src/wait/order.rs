//! The order of service: which waiters may be served now, and which go before which. Changes nothing.
//!
//! First come, first served, for readers, writers and shares alike. A waiter delays those behind it in a queue, though
//! they would fit, so that neither readers nor writers nor requests for many shares starve. The exceptions, each where
//! it is made:
//!
//! - a holder that asks again never waits; an upgrade goes to the head of the queue of the key that it upgrades, and of
//!   no other ([`super::queue::Position`]);
//! - a reader passes readers that only other keys delay;
//! - a requester goes before a waiter for several keys, if it holds one of them in conflict, or upgrades one by this
//!   request;
//! - a free key is reserved for a waiter for several keys for a limited time only;
//! - a request that would close a cycle, and that no hold keeps waiting, goes before the waiters of that cycle. It also
//!   goes before writers that wait for a holder in it. Each of them waits for the request already, directly or through
//!   others. A waiter is passed so once: two owners that close cycles in turn would starve it. If any other waiter
//!   delays the request, it is refused ([`super::deadlock`]). PostgreSQL rearranges its queues for the same reason, and
//!   calls what it turns soft edges.
//!
//! Can two waiters for several keys keep each other waiting by their places alone? By tickets they cannot: the earlier
//! one stands first wherever they meet. By an upgrade they could. W holds `a` for reading and asks to write `a` and
//! `b`; V came earlier and waits for both. W stands before V at `a`, and V before W at `b`.
//!
//! - V writes: it waits for W's hold on `a`. W goes before it at `b`, by the third exception.
//! - V reads: W's hold does not conflict, but V cannot be served at `a` before W is, or gives up. W goes before it at
//!   `b` by the same exception: V could not be served earlier anyway.
//! - W upgrades `a` and V upgrades `b`: each waits for the hold of the other. That is a deadlock whatever the order is,
//!   and the later request is refused. Two upgrades of one key are, too.
//! - More than two: U waits for `b` alone between V and W. W waits for U, U for V, V for W. No exception opens this
//!   cycle, and the search finds it when the last of them asks ([`super::deadlock`]). With detection off it ends by
//!   itself: a member of such a cycle waits for a free key that is reserved for another, and that reservation ends.
//!
//! So a request for a key is served after at most these: the waiters that stood there when it came, upgrades of that
//! very key, and one request that opens a cycle. It also waits for owners that it waits for in any case: one that holds
//! another key of its request may take this one meanwhile.

use super::queue::{Position, WaitQueue};
use super::table::WaitTable;
use super::waiter::{Waiter, Wanted};
use crate::model::ended_holds::Over;
use crate::model::hold::{Hold, Mode};
use crate::model::key::{Db, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::limits::Limits;
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::model::request::{Acquire, Cycle, Refusal, WaiterId};
use crate::model::session::Sessions;
use crate::model::time::Timestamp;
use alloc::collections::BTreeSet;

/// The verdict on a request by the holds on a key, by the table in manager/acquire.rs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may have a new hold, if no waiter delays it.
    NewHold,
    /// It is the only holder and may write now.
    Upgrade,
    /// It holds it in that mode already, or for writing.
    Reentrant,
    /// It holds shares, and may have more if nobody waits for the key.
    More,
    /// It holds shares, or writes, and there is no room for those that it asks for. It may not wait for them.
    Full,
    /// Others hold it.
    Conflict,
}

/// Judges by the holds on a key alone, which must be settled for the owner. The last argument counts what is over of
/// them and left on an unsettled key: that is asked only where it matters.
pub(crate) fn judge(
    lock: Option<&Lock>,
    owner: &Owner,
    operation: &Acquire,
    limits: &Limits,
    over: impl Fn(&Lock) -> Over,
) -> Result<Verdict, Refusal> {
    let Some(lock) = lock else { return Ok(Verdict::NewHold) };
    let (hold, mode) = (lock.holds.get(owner.as_bytes()), operation.mode);
    let alone = lock.holds.len() == usize::from(hold.is_some());
    let reads = lock.holds.reads();
    let fits = |hold| operation.fits(reads, hold) || operation.fits(reads - over(lock).reads, hold);
    let is_full = |holds: usize| holds >= limits.holders_per_key_max;
    match hold {
        None if alone => Ok(Verdict::NewHold),
        None if mode == Mode::Write || lock.mode() == Some(Mode::Write) => Ok(Verdict::Conflict),
        None if !fits(None) => Ok(Verdict::Conflict),
        None if is_full(lock.holds.len()) && is_full(lock.holds.len() - over(lock).holds) => {
            Err(Refusal::TooManyHolders)
        }
        None => Ok(Verdict::NewHold),
        Some(hold) if is_upgrade(hold, mode) => Ok(if alone { Verdict::Upgrade } else { Verdict::Conflict }),
        Some(hold) if operation.share.is_some() && operation.needs(Some(hold)) > 0 => {
            Ok(match (fits(Some(hold)), hold.mode()) {
                (false, _) => Verdict::Full,
                (true, Mode::Read) => Verdict::More,
                (true, Mode::Write) => Verdict::Reentrant,
            })
        }
        Some(_) => Ok(Verdict::Reentrant),
    }
}

/// True if a holder asks for more than it has.
pub(crate) fn is_upgrade(hold: &Hold, mode: Mode) -> bool {
    mode == Mode::Write && hold.writes() == 0
}

/// True if a requester keeps a waiter for several keys from having one of them in this mode: by its own hold there,
/// which writes or is to be upgraded together with the key that is asked for.
pub(crate) fn keeps_waiting(writes: bool, mode: Mode, upgrades: bool) -> bool {
    mode == Mode::Write || writes || upgrades
}

/// A request, as far as the waiters before it matter to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) mode: Mode,
    /// Its keys, at least those that it upgrades.
    pub(crate) wanted: &'a [Wanted],
}

impl<'a> Requester<'a> {
    /// One that waits.
    pub(crate) fn of(waiter: &'a Waiter) -> Requester<'a> {
        Requester { owner: &waiter.owner, mode: waiter.operation.mode, wanted: &waiter.keys }
    }

    /// True if it asks to write a key that its owner holds for reading.
    pub(crate) fn upgrades(self, name: &KeyName) -> bool {
        self.wanted.iter().any(|key| key.upgrade && key.name == *name)
    }
}

/// The waiters that a request passes, though they stand before it: its owner keeps them waiting. Found out once for a
/// request.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Keys whose locks were read for it.
    seen: BTreeSet<KeyName>,
    /// The cost of that.
    spent: usize,
    waiters: BTreeSet<WaiterId>,
    /// How many waiters before it were looked at.
    looked_at: usize,
    /// The owners of the cycle that the request would close otherwise.
    cycle: BTreeSet<Owner>,
}

impl Passed {
    /// How much may be read for one request, by the cost of the names ([`KeyName::cost`]). Beyond that it passes no
    /// waiter: it waits, or is refused where that closes a cycle.
    const MOST: usize = 4_096;

    /// Passes the waiters of this cycle, whatever they wait for.
    pub(crate) fn cycle(cycle: &Cycle) -> Passed {
        let cycle = cycle.0.iter().map(|hop| hop.owner.clone()).collect();
        Passed { cycle, ..Passed::default() }
    }

    /// Returns the cost of finding them, in keys judged.
    pub(crate) fn cost(&self) -> usize {
        // A lock that is read costs as much, a waiter that is looked at much less.
        self.seen.len() + self.looked_at / 8
    }
}

/// The order of service at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order<'r> {
    pub(crate) wait_table: &'r WaitTable,
    pub(crate) sessions: &'r Sessions,
    /// The present: reservations end.
    pub(crate) now: Timestamp,
    /// By which time it is judged which holds are over.
    pub(crate) judged: Timestamp,
}

impl Order<'_> {
    /// True if a hold is not over.
    pub(crate) fn stands(self, hold: &Hold) -> bool {
        self.sessions.end_of(hold) > self.judged
    }

    /// True if a waiter in the queue of a key delays a request, which stands there.
    pub(crate) fn is_delayed<K: Keyspace>(
        self,
        keys: &mut K,
        (db, name): (Db, &KeyName),
        requester: Requester<'_>,
        position: Position,
        passed: &mut Passed,
    ) -> bool {
        let Some(queue) = self.wait_table.queue(db, name) else { return false };
        // No newcomer passes the rest of a run that is being granted bit by bit, unless it would be refused otherwise.
        let is_newcomer = passed.cycle.is_empty() && position == self.wait_table.next_position();
        let is_behind_run = is_newcomer && queue.unfinished.is_some();
        let cycle_holds = !passed.cycle.is_empty() && self.is_held_by(keys, (db, name), &passed.cycle);
        for id in queue.before(position) {
            let Some(waiter) = self.wait_table.waiter(id) else { continue };
            passed.looked_at += 1;
            let is_in_cycle =
                (cycle_holds && waiter.operation.mode == Mode::Write) || passed.cycle.contains(&waiter.owner);
            if is_in_cycle && !self.wait_table.was_passed(waiter) {
                continue;
            }
            let kind = (waiter.operation.kind().delays_readers(), waiter.is_many());
            let is_in_run = is_behind_run && requester.mode == Mode::Read && !kind.0;
            if is_in_run
                || self.delays(kind, queue, requester.mode, || self.passes(keys, (id, waiter), requester, passed))
            {
                return true;
            }
            if !waiter.is_many() && passed.cycle.is_empty() && queue.delays_readers(position) {
                // A waiting reader delays no reader. Another waiter behind it delays this request.
                return true;
            }
        }
        false
    }

    /// True if one of these owners holds a key.
    fn is_held_by<K: Keyspace>(self, keys: &mut K, (db, name): (Db, &KeyName), owners: &BTreeSet<Owner>) -> bool {
        let holds = |lock: &Lock| {
            let mut holds = owners.iter().filter_map(|owner| lock.holds.get(owner.as_bytes()));
            holds.any(|hold| self.stands(hold))
        };
        keys.peek(db, name, holds).unwrap_or(false)
    }

    /// True if a waiter delays a request that stands behind it in a queue. It says whether it delays readers, and
    /// whether it waits for several keys. The last argument tells whether the requester keeps it waiting itself.
    pub(crate) fn delays(
        self,
        (delays_readers, many): (bool, bool),
        queue: &WaitQueue,
        requester: Mode,
        is_kept_waiting: impl FnOnce() -> bool,
    ) -> bool {
        if requester == Mode::Read && !delays_readers {
            // A waiting reader delays no reader. What blocks it is another key, or a waiter that blocks this one too.
            return false;
        }
        // A key is reserved for a waiter of several keys for a limited time only.
        !many || (!queue.reservation_expired(self.now) && !is_kept_waiting())
    }

    /// True if a requester keeps a waiter waiting that stands before it. The waiter could not be served before the
    /// requester gives back what it holds, or has what it upgrades: to wait for it would be a deadlock. What the
    /// requester holds on a key tells it of all waiters for that key, so that no lock is read twice.
    fn passes<K: Keyspace>(
        self,
        keys: &mut K,
        (id, waiter): (WaiterId, &Waiter),
        requester: Requester<'_>,
        passed: &mut Passed,
    ) -> bool {
        for key in &waiter.keys {
            if passed.waiters.contains(&id) {
                return true;
            }
            if !passed.seen.insert(key.name.clone()) {
                continue;
            }
            passed.spent += key.name.cost();
            if passed.spent > Passed::MOST {
                return false;
            }
            let Some(queue) = self.wait_table.queue(waiter.db, &key.name) else { continue };
            let writes = |lock: &Lock| {
                let hold = lock.holds.get(requester.owner.as_bytes()).filter(|hold| self.stands(hold));
                hold.map(|hold| hold.writes() > 0)
            };
            let Some(writes) = keys.peek(waiter.db, &key.name, writes).flatten() else { continue };
            let upgrades = requester.upgrades(&key.name);
            passed.waiters.extend(queue.iter().filter(|id| {
                let other = self.wait_table.waiter(*id).filter(|other| other.owner != *requester.owner);
                other.is_some_and(|other| keeps_waiting(writes, other.operation.mode, upgrades))
            }));
        }
        passed.waiters.contains(&id)
    }
}
