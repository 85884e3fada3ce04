//! The wait queue of a key: its waiters in order. Knows their positions alone, and decides nothing.

use crate::collections::inline_map::{InlineMap, InlineSet};
use crate::collections::wheel::EntryId;
use crate::model::request::{Kind, WaiterId};
use crate::model::time::Timestamp;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;

/// A position in a queue: upgrades of this key first, then by arrival. A reader that asks to write holds the key: no
/// request that it excludes can be served before it anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

impl Position {
    /// Behind all waiters.
    const END: Position = Position(u64::MAX);

    /// Set in the positions of all but upgrades, above the number of the arrival.
    const NEWCOMER: u64 = 1 << 63;

    pub(crate) fn new(upgrade: bool, ticket: u64) -> Position {
        Position(if upgrade { ticket } else { Position::NEWCOMER | ticket })
    }

    fn is_upgrade(self) -> bool {
        self < Position(Position::NEWCOMER)
    }

    /// The next place behind this one.
    pub(crate) fn following(self) -> Position {
        Position(self.0 + 1)
    }
}

/// The waiters for one key, in order.
#[derive(Debug, Default)]
pub struct WaitQueue {
    order: InlineMap<Position, WaiterId>,
    /// The writers among the waiters for this key alone.
    writers: InlineSet<Position>,
    /// The waiters for shares. Most queues have none.
    #[expect(clippy::box_collection, reason = "a tree is larger than a pointer")]
    shares: Option<Box<BTreeSet<Position>>>,
    /// The waiters for other keys too, and those whose owners wait elsewhere too.
    waits_elsewhere: InlineMap<Position, WaiterId>,
    /// The waiters that may be served though one before them is blocked: their owners wait elsewhere too, or have got
    /// something since they came.
    may_bypass: InlineSet<Position>,
    /// The last ticket that was given when a request went before the waiters to open a cycle; 0 if none did.
    pub(crate) passed_until: u64,
    /// How far a scan has come that ended before the queue did. The background goes on from there.
    pub(crate) unfinished: Option<Box<Cursor>>,
    /// The reservation of the key, if it is free and reserved for the first waiter, which waits for other keys too.
    pub(crate) reservation: Option<Reservation>,
    pending: Option<Pending>,
    /// The number of the last sweep that has come to it ([`super::sweep`]).
    pub(super) swept: u64,
    /// The position of the waiter for which the memory of this queue counts.
    payer: Position,
}

/// The reservation of a free key for the first waiter in its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    /// Until when. After that, waiters behind that fit may pass.
    pub(crate) until: Timestamp,
    /// The timer of that moment.
    pub(crate) timer: EntryId,
    /// True if the queue was scanned to its end after that.
    pub(crate) was_passed: bool,
}

/// How far a scan of a queue has come.
///
/// What happens meanwhile may let waiters be served that it was past already. Then it goes on to its end all the same,
/// and begins anew there: else each change would keep it from the waiters at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The position of the last waiter that was blocked.
    pub(crate) behind: Option<Position>,
    /// True if only waiters that may bypass are tried from now on.
    pub(crate) bypassing_only: bool,
    /// True if all readers are tried, though a reader is blocked: too many may bypass it to look for them.
    pub(crate) tries_readers: bool,
    /// The position of the last waiter when it stopped first. If it is to begin anew, it does so there: else newcomers
    /// would put that off.
    pub(crate) end: Position,
    /// True if it is to begin anew: something may have changed for the waiters that it was past. Until then, no waiter
    /// takes the last room on the key: that is for those before.
    pub(crate) again: bool,
}

impl Cursor {
    /// One that has not begun.
    pub(crate) fn new() -> Cursor {
        Cursor { behind: None, bypassing_only: false, tries_readers: false, end: Position::END, again: false }
    }

    /// True if the scan is to begin anew, and the next waiter that it would try is not one of those for which it began.
    pub(crate) fn begins_anew(&self, next: Option<Position>) -> bool {
        self.again && next.is_none_or(|next| next > self.end)
    }
}

/// The pending work of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pending {
    /// Go on with the scan that ended before the queue did.
    GoOn,
    /// Serve the waiters that can be served.
    Wake,
    /// Also see whether the others are in a deadlock: the lock is another one.
    WakeAndCheck,
}

impl WaitQueue {
    /// Adds a waiter, which waits for this key alone or for others as well.
    pub(crate) fn join(&mut self, position: Position, id: WaiterId, kind: Kind, many: bool) {
        self.order.insert(position, id);
        if self.unfinished.is_some() {
            // The scan that goes on may be all that keeps it waiting.
            self.allow_bypass(position);
        }
        match kind {
            _ if many => self.waits_elsewhere.insert(position, id),
            Kind::Write => self.writers.insert(position, ()),
            Kind::Share => drop(self.shares.get_or_insert_default().insert(position)),
            Kind::Read => {}
        }
    }

    /// Counts for the waiter at this position from now on.
    pub(super) fn charge(&mut self, position: Position) {
        self.payer = position;
    }

    /// True if it counts for the waiter at this position.
    pub(super) fn is_paid_by(&self, position: Position) -> bool {
        self.payer == position
    }

    /// True if it counts for a waiter that stands in it (W5).
    pub(super) fn has_payer(&self) -> bool {
        self.at(self.payer).is_some()
    }

    /// Gives a place to another waiter.
    pub(crate) fn hand_over(&mut self, position: Position, id: WaiterId) {
        self.order.insert(position, id);
        if self.waits_elsewhere.get(position).is_some() {
            self.waits_elsewhere.insert(position, id);
        }
    }

    /// Removes the waiter at this position.
    pub(crate) fn leave(&mut self, position: Position) {
        for waiters in [&mut self.order, &mut self.waits_elsewhere] {
            waiters.remove(position);
        }
        for positions in [&mut self.writers, &mut self.may_bypass] {
            positions.remove(position);
        }
        if let Some(shares) = &mut self.shares {
            shares.remove(&position);
            if shares.is_empty() {
                self.shares = None;
            }
        }
    }

    /// Notes that the waiter at this position waits elsewhere as well, or its owner does.
    pub(crate) fn note_waits_elsewhere(&mut self, position: Position) {
        if let Some(id) = self.at(position) {
            self.waits_elsewhere.insert(position, id);
        }
        self.allow_bypass(position);
    }

    /// Notes that the waiter at this position may be served though one before it is blocked.
    pub(crate) fn allow_bypass(&mut self, position: Position) {
        self.may_bypass.insert(position, ());
    }

    /// The waiter at a position.
    #[must_use]
    pub fn at(&self, position: Position) -> Option<WaiterId> {
        self.order.get(position)
    }

    /// Something is to be done about it. True when nothing was to be done before.
    pub(crate) fn mark(&mut self, pending: Pending) -> bool {
        let first = self.pending.is_none();
        self.pending = self.pending.max(Some(pending));
        first
    }

    /// Keeps how far a scan has come.
    pub(crate) fn put_aside(&mut self, mut cursor: Box<Cursor>) {
        let last = self.order.iter().next_back().map_or(Position::END, |(position, _)| position);
        cursor.end = cursor.end.min(last);
        self.unfinished = Some(cursor);
    }

    /// True if something may have changed for any of its waiters.
    pub(crate) fn is_marked(&self) -> bool {
        self.pending > Some(Pending::GoOn)
    }

    /// Takes its pending work, which counts as done from now on.
    pub(crate) fn take_pending(&mut self) -> Option<Pending> {
        if self.is_marked()
            && let Some(cursor) = &mut self.unfinished
        {
            cursor.again = true;
        }
        self.pending.take()
    }

    /// True if something is to be done about it.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// True if there is a waiter, and each part has none that is not in the whole (W1).
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut parts = [&self.writers, &self.may_bypass].into_iter().flat_map(InlineSet::iter);
        let mut waits_elsewhere = self.waits_elsewhere.iter();
        !self.order.is_empty()
            && self.shares.iter().flat_map(|shares| shares.iter()).all(|position| self.at(*position).is_some())
            && parts.all(|(position, ())| self.order.get(position).is_some())
            && waits_elsewhere.all(|(position, id)| self.order.get(position) == Some(id))
    }

    /// True if the key is reserved for the first waiter at this moment.
    pub(crate) fn is_reserved(&self, now: Timestamp) -> bool {
        self.reservation.is_some_and(|reservation| reservation.until > now)
    }

    /// True if its reservation is over.
    pub(crate) fn reservation_expired(&self, now: Timestamp) -> bool {
        self.reservation.is_some_and(|reservation| reservation.until <= now)
    }

    /// How many waiters it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True if it has none: such a queue does not exist.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Its waiters, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = WaiterId> {
        self.order.iter().map(|(_, id)| id)
    }

    /// The waiters from a position on, in order.
    pub(crate) fn from(&self, position: Position) -> impl Iterator<Item = (Position, WaiterId)> {
        self.order.range(position..)
    }

    /// The waiters before a position, in order.
    pub(crate) fn before(&self, position: Position) -> impl Iterator<Item = WaiterId> {
        self.order.range(..position).map(|(_, id)| id)
    }

    /// The first waiter behind a position, or of all.
    pub(crate) fn next(&self, after: Option<Position>) -> Option<(Position, WaiterId)> {
        use core::ops::Bound::{Excluded, Unbounded};
        match after {
            None => self.order.first(),
            Some(after) => self.order.range((Excluded(after), Unbounded)).next(),
        }
    }

    /// The writers before a position that wait for this key alone.
    pub(crate) fn writers(&self, before: Position) -> impl DoubleEndedIterator<Item = (Position, WaiterId)> {
        self.writers.range(..before).filter_map(|(position, ())| Some((position, self.at(position)?)))
    }

    /// The waiters for shares, in order.
    pub(crate) fn shares(&self) -> impl ExactSizeIterator<Item = (Position, WaiterId)> {
        const NONE: &BTreeSet<Position> = &BTreeSet::new();
        let shares = self.shares.as_deref().unwrap_or(NONE).iter();
        shares.map(|position| (*position, self.at(*position).expect("each part has none that is not in the whole")))
    }

    /// The waiters for shares before a position, the last first.
    pub(crate) fn shares_before(&self, before: Position) -> impl Iterator<Item = (Position, WaiterId)> {
        let shares = self.shares.iter().flat_map(move |shares| shares.range(..before).rev());
        shares.filter_map(|position| Some((*position, self.at(*position)?)))
    }

    /// True if a waiter for this key alone delays readers at this position.
    pub(crate) fn delays_readers(&self, before: Position) -> bool {
        let first_share = self.shares.as_ref().and_then(|shares| shares.first());
        first_share.is_some_and(|first| *first < before) || self.writers(before).next().is_some()
    }

    /// The waiters for other keys too, and those whose owners wait elsewhere too; not before a position, if one is
    /// named.
    pub(crate) fn waits_elsewhere_from(&self, from: Option<Position>) -> impl Iterator<Item = (Position, WaiterId)> {
        use core::ops::Bound::{Included, Unbounded};
        let from = from.map_or(Unbounded, Included);
        self.waits_elsewhere.range((from, Unbounded))
    }

    /// How many wait for other keys too, or their owners wait elsewhere.
    pub(crate) fn count_waits_elsewhere(&self) -> usize {
        self.waits_elsewhere.len()
    }

    /// The waiters from one position, or from the first, to before another, the last first.
    pub(crate) fn backwards(
        &self,
        from: Option<Position>,
        before: Position,
    ) -> impl Iterator<Item = (Position, WaiterId)> {
        stretch(&self.order, from, before).rev()
    }

    /// True if a waiter in it may be served without a change of the lock.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unfinished.is_some() || self.pending.is_some() || self.reservation.is_some()
    }

    /// True if it was served when its reservation began, or after that was over. Since then nothing can have changed
    /// but that a waiter's time is up.
    pub(crate) fn is_quiet(&self, now: Timestamp) -> bool {
        let is_served = self.reservation.is_some_and(|reservation| reservation.until > now || reservation.was_passed);
        self.unfinished.is_none() && self.pending.is_none() && is_served
    }

    /// It was scanned to its end.
    pub(crate) fn note_scanned(&mut self, now: Timestamp) {
        if let Some(reservation) = &mut self.reservation {
            reservation.was_passed = reservation.until <= now;
        }
    }

    /// True if no waiter in it waits for other keys too, nor does its owner.
    pub(crate) fn is_plain(&self) -> bool {
        self.waits_elsewhere.is_empty()
    }

    /// The waiters that hold the key for reading and wait to write.
    pub(crate) fn upgrades(&self) -> impl Iterator<Item = WaiterId> {
        self.order.iter().take_while(|(position, _)| position.is_upgrade()).map(|(_, id)| id)
    }

    /// The first behind a position of the waiters that may bypass.
    pub(crate) fn next_bypassing(&self, after: Position) -> Option<(Position, WaiterId)> {
        use core::ops::Bound::{Excluded, Unbounded};
        let (position, ()) = self.may_bypass.range((Excluded(after), Unbounded)).next()?;
        Some((position, self.order.get(position)?))
    }
}

/// The waiters from one position, or from the first, to before another, in order.
fn stretch(
    of: &InlineMap<Position, WaiterId>,
    from: Option<Position>,
    before: Position,
) -> impl DoubleEndedIterator<Item = (Position, WaiterId)> {
    use core::ops::Bound::{Excluded, Included, Unbounded};
    // A range of a tree must not be asked for whose end is before its beginning.
    let range = from.is_none_or(|from| from <= before).then(|| {
        let from = from.map_or(Unbounded, Included);
        of.range((from, Excluded(before)))
    });
    range.into_iter().flatten()
}
