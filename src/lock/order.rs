//! The order of service: who may be served now, and who goes before whom. Changes nothing.
//!
//! First come, first served, for readers and writers alike: whoever stands before somebody in line delays him, though
//! his mode would fit, so that neither readers nor writers starve. The exceptions, each where it is made:
//!
//! - a holder that asks again never waits, and an upgrade goes to the head ([`super::room::Rank`]);
//! - a reader passes readers that only other keys delay;
//! - an asker goes before who waits for several keys, one of them held by the asker;
//! - a free key is kept for who waits for other keys as well for a limited time only.

use super::hold::{Hold, Mode};
use super::key::Db;
use super::keyspace::Keyspace;
use super::limits::Limits;
use super::owner::Owner;
use super::request::Refusal;
use super::room::{Line, Rank, Room, Waiter};
use super::session::Sessions;
use super::time::Timestamp;
use super::value::Lock;

/// What judging a request by the holds on a key found, by the table in serve.rs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may have a new hold, if nobody in line delays it.
    Anew,
    /// It is the only holder and may write now.
    Upgrade,
    /// It holds it in that mode already, or for writing.
    Again,
    /// Others hold it.
    Held,
}

/// Judges by the holds on a key alone, which must be settled.
pub(super) fn judge(lock: Option<&Lock>, owner: &Owner, mode: Mode, limits: &Limits) -> Result<Verdict, Refusal> {
    let Some(lock) = lock else { return Ok(Verdict::Anew) };
    let hold = lock.holds.get(owner.as_bytes());
    let alone = lock.holds.len() == usize::from(hold.is_some());
    match hold {
        None if alone => Ok(Verdict::Anew),
        None if mode == Mode::Write || lock.mode() == Some(Mode::Write) => Ok(Verdict::Held),
        None if lock.holds.len() >= limits.holders_per_key_max => Err(Refusal::TooManyHolders),
        None => Ok(Verdict::Anew),
        Some(hold) if is_upgrade(hold, mode) => Ok(if alone { Verdict::Upgrade } else { Verdict::Held }),
        Some(_) => Ok(Verdict::Again),
    }
}

/// Whether a holder asks for more than it has.
pub(super) fn is_upgrade(hold: &Hold, mode: Mode) -> bool {
    mode == Mode::Write && hold.writes == 0
}

/// Whether a hold keeps others from having the key in this mode.
pub(super) fn conflicts(hold: &Hold, mode: Mode) -> bool {
    mode == Mode::Write || hold.writes > 0
}

/// The order of service at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order<'r> {
    pub(super) room: &'r Room,
    pub(super) sessions: &'r Sessions,
    pub(super) now: Timestamp,
}

impl Order<'_> {
    /// Whether a hold is not over.
    pub(super) fn stands(self, hold: &Hold) -> bool {
        self.sessions.end_of(hold) > self.now
    }

    /// Whether somebody in the line of a key delays a request of this owner in this mode, which stands there.
    pub(super) fn is_delayed<K: Keyspace>(
        self,
        keys: &mut K,
        (db, name): (Db, &[u8]),
        (owner, mode): (&Owner, Mode),
        place: Rank,
    ) -> bool {
        let Some(line) = self.room.line(db, name) else { return false };
        let mut after = None;
        while let Some((rank, id)) = line.next(after).filter(|(rank, _)| *rank < place) {
            let waiter = self.room.waiter(id);
            if waiter.is_some_and(|waiter| self.delays(keys, waiter, line, (owner, mode))) {
                return true;
            }
            if waiter.is_some_and(|waiter| !waiter.is_many()) && line.writers(place).next().is_some() {
                // A reader that does not delay this one; a writer behind it does.
                return true;
            }
            after = Some(rank);
        }
        false
    }

    /// Whether a waiter delays a request that stands behind it in a line.
    pub(super) fn delays<K: Keyspace>(
        self,
        keys: &mut K,
        waiter: &Waiter,
        line: &Line,
        (owner, mode): (&Owner, Mode),
    ) -> bool {
        if mode == Mode::Read && waiter.ask.mode == Mode::Read {
            // Only something else delays a reader that waits: another key, or a writer, which delays this one as well. Unless
            // it is one of a run that is being let in bit by bit: nobody passes the rest of the run.
            return line.cut;
        }
        if !waiter.is_many() {
            return true;
        }
        if line.was_kept(self.now) {
            // The key has been kept for it long enough.
            return false;
        }
        // It could not be served before the asker gives back what it holds: to wait for it would be a deadlock.
        let asker_keeps_it_waiting = waiter.keys.iter().any(|key| {
            let held = |lock: &Lock| {
                let hold = lock.holds.get(owner.as_bytes());
                hold.is_some_and(|hold| self.stands(hold) && conflicts(hold, waiter.ask.mode))
            };
            waiter.owner != *owner && keys.peek(waiter.db, &key.name, held).unwrap_or(false)
        });
        !asker_keeps_it_waiting
    }
}
