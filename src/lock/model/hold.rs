//! What one owner has on one key, and what binds that to a connection.

use super::fence::Fence;
use super::offers::OfferId;
use super::owner::Note;
use super::time::{Millis, Timestamp};
use crate::lock::collections::heap::allocated;
use alloc::boxed::Box;

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

/// What binds a hold to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Which.
    pub connection: Connection,
    /// How long the hold outlives it at most.
    pub grace: Millis,
}

/// What an owner has on one key: counts, one lease, one fence. Valid while now < deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// How often it is held for reading.
    pub reads: u32,
    /// How often it is held for writing.
    pub writes: u32,
    /// Given with the hold; rises with each new one on the key.
    pub fence: Fence,
    /// When the lease ends.
    pub deadline: Timestamp,
    granted: Granted,
    /// What few holds have.
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

/// What few holds have, outside of the hold itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    note: Option<Note>,
    binding: Option<Binding>,
    offer: Option<OfferId>,
}

/// That a hold ends with a connection.
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
        Hold { reads: 0, writes: 0, fence, deadline, granted: Granted::new(since, granted_in), extra: None }
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

    /// What the holder says about itself.
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

    /// What binds it to a connection.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        match self.extra.as_ref()?.binding {
            Some(Binding::Open(session)) => Some(session),
            Some(Binding::Closed) | None => None,
        }
    }

    /// Whether the connection that it was bound to has closed, and its owner has not been heard of since.
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

    /// The count in one mode.
    #[must_use]
    pub fn count(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Read => self.reads,
            Mode::Write => self.writes,
        }
    }

    /// Sets the count in one mode.
    pub fn set_count(&mut self, mode: Mode, count: u32) {
        match mode {
            Mode::Read => self.reads = count,
            Mode::Write => self.writes = count,
        }
    }

    /// Reads and writes together: what RELEASE answers.
    #[must_use]
    pub fn total(&self) -> u64 {
        u64::from(self.reads) + u64::from(self.writes)
    }

    /// The stronger of the modes held: a hold that writes and reads is a writer's.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.writes > 0 { Mode::Write } else { Mode::Read }
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
    fn no_term_of_a_node_is_that_of_carried_holds() {
        let last = Epoch((1 << EPOCH_BITS) - 1);
        assert_eq!(last.next(), Epoch::FIRST);
        assert_eq!(Epoch::FIRST.next(), Epoch(2));
    }
}
