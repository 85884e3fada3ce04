//! What one owner has on one key, and what binds that to a connection.

use super::fence::Fence;
use super::offers::OfferId;
use super::owner::Note;
use super::time::{Millis, Timestamp};
use crate::collections::heap::allocated;
use alloc::boxed::Box;
use core::ops::RangeInclusive;

/// How a lock is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Shared: any number of owners together.
    Read,
    /// Exclusive: one owner alone.
    Write,
}

/// The period in which this node granted: it changes at promotion and when databases swap.
///
/// A hold of another epoch is *carried*: it came here by load, promotion, RESTORE, RENAME or MOVE. It gets a new fence
/// at its owner's next ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u32);

/// An epoch takes so many bits where it is kept with a moment.
const EPOCH_BITS: u32 = 24;

impl Epoch {
    /// The epoch of holds that this node did not grant on this key.
    pub const CARRIED: Epoch = Epoch(0);
    /// The epoch of a node that has just started.
    pub const FIRST: Epoch = Epoch(1);

    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Epoch {
        // Skips CARRIED after 2^24 promotions.
        Epoch(((self.0 + 1) % (1 << EPOCH_BITS)).max(1))
    }
}

/// A connection to this node as it is now. When the node becomes a replica it forgets all bindings, though the holds
/// themselves go on. A client that is connected still is another connection after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// The number that its client has at the server.
    pub(crate) client: u64,
    pub(crate) epoch: u32,
}

impl Connection {
    /// The number that its client has at the server.
    #[must_use]
    pub fn client(self) -> u64 {
        self.client
    }
}

/// The binding of a hold to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// Which.
    pub connection: Connection,
    /// How long the hold outlives it at most.
    pub grace: Millis,
}

impl Session {
    /// All sessions that one connection can have.
    pub(super) fn all_of(connection: Connection) -> RangeInclusive<Session> {
        Session { connection, grace: Millis(0) }..=Session { connection, grace: Millis(u64::MAX) }
    }
}

/// An owner's hold of one key: counts, one lease, one fence. Valid while now < deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    counted: Counted,
    /// When the lease ends.
    pub deadline: Timestamp,
    granted: Granted,
    /// The rare parts.
    extra: Option<Box<Extra>>,
}

/// When a hold was granted, to the millisecond, and in which epoch: both in eight bytes, which reach for 34 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Granted(u64);

impl Granted {
    fn new(at: Timestamp, epoch: Epoch) -> Granted {
        Granted(((at.0 / 1000) << EPOCH_BITS) | u64::from(epoch.0))
    }

    fn since(self) -> Timestamp {
        Timestamp((self.0 >> EPOCH_BITS) * 1000)
    }

    fn epoch(self) -> Epoch {
        Epoch((self.0 % (1 << EPOCH_BITS)) as u32)
    }
}

/// A fence, and how often the hold is held if that is in one mode and not often: both in eight bytes.
///
/// From the low end: the fence in 53 bits, the count in 10, and whether it is for writing. The count is 0 where it is
/// kept in [`Extra`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted(u64);

impl Counted {
    const FENCE_BITS: u32 = 53;
    const MAX: u32 = (1 << 10) - 1;
    const WRITE: u64 = 1 << 63;

    fn new(fence: Fence) -> Counted {
        Counted(fence.get())
    }

    fn fence(self) -> Fence {
        // It always is one: nothing else is ever put there.
        Fence::new(self.0 & Fence::MAX.get()).unwrap_or(Fence::MAX)
    }

    fn set_fence(&mut self, fence: Fence) {
        self.0 = self.0 & !Fence::MAX.get() | fence.get();
    }

    fn count(self) -> u32 {
        (self.0 >> Self::FENCE_BITS) as u32 & Self::MAX
    }

    /// Reads and writes.
    fn counts(self) -> (u32, u32) {
        let count = self.count();
        if self.0 & Self::WRITE == 0 { (count, 0) } else { (0, count) }
    }

    /// Keeps them; false, and nothing kept, if there is no room.
    fn keep(&mut self, reads: u32, writes: u32) -> bool {
        let fits = (reads == 0 || writes == 0) && reads <= Self::MAX && writes <= Self::MAX;
        let count = if fits { u64::from(reads | writes) << Self::FENCE_BITS } else { 0 };
        let mode = if fits && writes > 0 { Self::WRITE } else { 0 };
        self.0 = self.0 & Fence::MAX.get() | count | mode;
        fits
    }
}

/// The parts that few holds have, outside of the hold itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    /// Reads and writes that have no room in the hold; else both are 0.
    counts: (u32, u32),
    note: Option<Note>,
    binding: Option<Binding>,
    offer: Option<OfferId>,
}

/// The binding of a hold to a connection: it ends when that closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    /// It will.
    Open(Session),
    /// The connection has closed: what is left of the lease is the grace that was asked for.
    Closed,
}

impl Hold {
    /// A hold that counts nothing yet.
    #[must_use]
    pub fn new(fence: Fence, deadline: Timestamp, since: Timestamp, granted_in: Epoch) -> Hold {
        Hold { counted: Counted::new(fence), deadline, granted: Granted::new(since, granted_in), extra: None }
    }

    /// Given with the hold; rises with each new one on the key.
    #[must_use]
    #[inline]
    pub fn fence(&self) -> Fence {
        self.counted.fence()
    }

    /// It has this fence from now on.
    #[inline]
    pub fn set_fence(&mut self, fence: Fence) {
        self.counted.set_fence(fence);
    }

    /// When it was granted, or carried here, to the millisecond.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.granted.since()
    }

    /// When this node granted it, in terms; [`Epoch::CARRIED`] if it did not.
    #[must_use]
    pub fn granted_in(&self) -> Epoch {
        self.granted.epoch()
    }

    /// It was granted in this epoch, and held before.
    pub(crate) fn set_granted_in(&mut self, epoch: Epoch) {
        self.granted = Granted::new(self.since(), epoch);
    }

    /// It is another's view of a hold that is known here since then.
    pub(crate) fn set_since(&mut self, since: Timestamp) {
        self.granted = Granted::new(since, self.granted_in());
    }

    /// It has come here now.
    pub(crate) fn carry(&mut self, now: Timestamp) {
        self.granted = Granted::new(now, Epoch::CARRIED);
    }

    /// Returns the holder's note about itself.
    #[must_use]
    pub fn note(&self) -> Option<&Note> {
        self.extra.as_ref()?.note.as_ref()
    }

    /// Sets what the holder says about itself.
    pub fn set_note(&mut self, note: Option<Note>) {
        if note.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().note = note;
            self.drop_empty_extra();
        }
    }

    /// The offer that it is part of; None if a client knows of it.
    #[must_use]
    pub fn offer(&self) -> Option<OfferId> {
        self.extra.as_ref()?.offer
    }

    /// Makes it part of an offer, or of none.
    pub(crate) fn set_offer(&mut self, offer: Option<OfferId>) {
        if offer.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().offer = offer;
            self.drop_empty_extra();
        }
    }

    /// Returns the connection that it is bound to.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        match self.extra.as_ref()?.binding {
            Some(Binding::Open(session)) => Some(session),
            Some(Binding::Closed) | None => None,
        }
    }

    /// True if the connection that it was bound to has closed, and its owner has not been heard of since.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.binding == Some(Binding::Closed))
    }

    /// Binds it to a connection, or to none.
    pub fn bind(&mut self, session: Option<Session>) {
        self.set_binding(session.map(Binding::Open));
    }

    /// Its owner was heard of: binds it anew if that is asked for, else only what has been closed is over.
    pub(crate) fn rebind(&mut self, session: Option<Session>) {
        if session.is_some() || self.is_orphaned() {
            self.bind(session);
        }
    }

    /// The connection that it was bound to has closed.
    pub(crate) fn orphan(&mut self) {
        self.set_binding(Some(Binding::Closed));
    }

    fn set_binding(&mut self, binding: Option<Binding>) {
        if binding.is_some() || self.extra.is_some() {
            self.extra.get_or_insert_default().binding = binding;
            self.drop_empty_extra();
        }
    }

    fn drop_empty_extra(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| **extra == Extra::default()) {
            self.extra = None;
        }
    }

    /// Bytes allocated outside of the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| {
            allocated(size_of::<Extra>()) + extra.note.as_ref().map_or(0, |note| allocated(note.0.len()))
        })
    }

    /// How often it is held for reading, and how often for writing.
    #[inline]
    fn counts(&self) -> (u32, u32) {
        match &self.extra {
            Some(extra) if self.counted.count() == 0 => extra.counts,
            _ => self.counted.counts(),
        }
    }

    /// How often it is held for reading.
    #[must_use]
    #[inline]
    pub fn reads(&self) -> u32 {
        self.counts().0
    }

    /// How often it is held for writing.
    #[must_use]
    #[inline]
    pub fn writes(&self) -> u32 {
        self.counts().1
    }

    /// The count in one mode.
    #[must_use]
    #[inline]
    pub fn count(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Read => self.reads(),
            Mode::Write => self.writes(),
        }
    }

    /// Sets the count in one mode.
    #[inline(always)]
    pub fn set_count(&mut self, mode: Mode, count: u32) {
        let (reads, writes) = self.counts();
        match mode {
            Mode::Read => self.set_counts(count, writes),
            Mode::Write => self.set_counts(reads, count),
        }
    }

    /// Sets the counts in both modes.
    #[inline]
    pub fn set_counts(&mut self, reads: u32, writes: u32) {
        let fits = self.counted.keep(reads, writes);
        if !fits || self.extra.is_some() {
            self.keep_aside(if fits { (0, 0) } else { (reads, writes) });
        }
    }

    #[inline(never)]
    fn keep_aside(&mut self, counts: (u32, u32)) {
        self.extra.get_or_insert_default().counts = counts;
        self.drop_empty_extra();
    }

    /// Reads and writes together: what RELEASE answers.
    #[must_use]
    pub fn total(&self) -> u64 {
        let (reads, writes) = self.counts();
        u64::from(reads) + u64::from(writes)
    }

    /// The stronger of the modes held: a hold that writes and reads is a writer's.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.writes() > 0 { Mode::Write } else { Mode::Read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_and_term_of_a_grant_do_not_touch_each_other() {
        let last = Epoch((1 << EPOCH_BITS) - 1);
        // 34 years, and a moment within a millisecond.
        for ms in [0, 1, (1 << 40) - 1] {
            for epoch in [Epoch::CARRIED, Epoch::FIRST, last] {
                let granted = Granted::new(Timestamp(ms * 1000 + 999), epoch);
                assert_eq!((granted.since(), granted.epoch()), (Timestamp(ms * 1000), epoch));
            }
        }
    }

    #[test]
    fn counts_and_fence_are_what_was_set_in_every_order_of_setting() {
        let most = Counted::MAX;
        let counts = [0, 1, 2, most - 1, most, most + 1, u32::MAX];
        let fences = [1, 1 << 52, Fence::MAX.get()].map(|fence| Fence::new(fence).unwrap());
        let new = |fence| Hold::new(fence, Timestamp(5), Timestamp(3), Epoch::FIRST);
        let mut hold = new(fences[0]);
        for before in counts.iter().flat_map(|reads| counts.map(|writes| (*reads, writes))) {
            for (reads, writes) in counts.iter().flat_map(|reads| counts.map(|writes| (*reads, writes))) {
                for fence in fences {
                    hold.set_counts(before.0, before.1);
                    hold.set_count(Mode::Write, writes);
                    hold.set_fence(fence);
                    hold.set_count(Mode::Read, reads);
                    assert_eq!((hold.reads(), hold.writes(), hold.fence()), (reads, writes, fence));
                    assert_eq!(hold.total(), u64::from(reads) + u64::from(writes));
                    // Equal holds are kept in one way.
                    let mut other = new(fence);
                    other.set_counts(reads, writes);
                    assert_eq!(hold, other);
                    let fits = (reads == 0 || writes == 0) && reads.max(writes) <= most;
                    assert_eq!(hold.extra.is_none(), fits, "{reads} {writes}");
                    hold.set_note(Some(Note::new(b"a note")));
                    assert_eq!((hold.reads(), hold.writes(), hold.fence()), (reads, writes, fence));
                    hold.set_note(None);
                    assert_eq!(hold, other);
                }
            }
        }
    }

    #[test]
    fn no_term_of_a_node_is_that_of_carried_holds() {
        let last = Epoch((1 << EPOCH_BITS) - 1);
        assert_eq!(last.next(), Epoch::FIRST);
        assert_eq!(Epoch::FIRST.next(), Epoch(2));
    }
}
