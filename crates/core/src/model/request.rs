//! What is asked, and what came of it.

use super::fence::Fence;
use super::hold::{Hold, Mode, Session};
use super::key::{Db, KeyName};
use super::owner::{Note, Owner};
use super::time::{Millis, Timestamp};
use crate::collections::arena::Id;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use smallvec::SmallVec;

/// One value per key, in the order of the keys; in place for the usual single key.
pub type PerKey<T> = SmallVec<[T; 1]>;

/// A well-formed request: what it asks of all the step's keys, for one owner.
#[derive(Clone, Debug)]
pub struct Request {
    /// The owner that asks.
    pub owner: Owner,
    /// The operation.
    pub operation: Operation,
}

impl Request {
    /// Returns the request of an owner of these bytes.
    #[must_use]
    #[inline(always)]
    pub fn new(owner: &[u8], operation: Operation) -> Request {
        let mut request = Request { owner: Owner::unnamed(), operation };
        request.owner.set(owner);
        request
    }
}

/// The operation of a request.
#[derive(Clone, Debug)]
pub enum Operation {
    /// To hold.
    Acquire(Acquire),
    /// To give back.
    Release(Release),
    /// To move the end of the lease.
    Extend(Extend),
    /// To run a command while holding.
    Guard(Guard),
}

impl Operation {
    /// The fence that the hold is to have at least, if the request says so.
    #[must_use]
    pub fn min_fence(&self) -> Option<Fence> {
        match self {
            Operation::Acquire(operation) => operation.terms.as_ref()?.min_fence,
            Operation::Extend(operation) => operation.min_fence,
            Operation::Release(_) | Operation::Guard(_) => None,
        }
    }
}

/// To hold.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Shared or exclusive.
    pub mode: Mode,
    /// How long the lease is to run at least.
    pub lease: Millis,
    /// How long to wait when it cannot be had now.
    pub wait: Wait,
    /// This repeats a request whose reply was lost: let the count be at least so many, rather than one more.
    pub retry: Option<u32>,
    /// For how long the owner's place in the queue, and a grant that no client has received, outlive this request;
    /// None if not at all.
    pub queue: Option<Millis>,
    /// How many shares it takes, and of how many; None if it takes the whole lock, or reads without a limit.
    pub share: Option<Share>,
    /// What few requests say of the hold. Apart: waiters are kept in great numbers.
    pub terms: Option<Box<Terms>>,
}

/// The rare terms of an acquisition: they say how the hold is kept, and not whether it can be had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The note to keep with the hold; None leaves the one that is there.
    pub note: Option<Note>,
    /// The connection to bind the hold to; None leaves the binding as it is.
    pub session: Option<Session>,
    /// The fence of the hold is to be this one at least. Of a request for one key alone.
    pub min_fence: Option<Fence>,
}

impl Terms {
    /// Returns these terms; None if there are none.
    #[must_use]
    pub fn of(note: Option<Note>, session: Option<Session>, min_fence: Option<Fence>) -> Option<Box<Terms>> {
        let are_given = note.is_some() || session.is_some() || min_fence.is_some();
        are_given.then(|| Box::new(Terms { note, session, min_fence }))
    }
}

/// Shares of a lock. A share is a read count: it is taken only while all holders together have few enough of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How many all holders may have together once it is granted, from 1.
    pub limit: NonZeroU32,
    /// How many it takes, from 1 to the limit.
    pub take: NonZeroU32,
}

/// The kind of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// To read, whatever others read.
    Read,
    /// Shares.
    Share,
    /// To write.
    Write,
}

impl Kind {
    /// True if a waiter for this keeps readers behind it waiting: it waits for holders, be they readers or not.
    #[must_use]
    pub fn delays_readers(self) -> bool {
        self != Kind::Read
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: try once.
    Never,
    /// At most so long.
    For(Millis),
    /// As long as it takes.
    Forever,
}

impl Acquire {
    /// When the time of a request is up that begins to wait, or to stand in the queue, now; None without a limit.
    #[must_use]
    pub fn ends(&self, now: Timestamp) -> Option<Timestamp> {
        match self.wait {
            Wait::For(limit) => Some(now + limit),
            Wait::Forever => None,
            Wait::Never => self.queue.map(|queue| now + queue),
        }
    }

    /// Returns the count that the hold is to have.
    #[must_use]
    pub fn count_after(&self, count: u32) -> u32 {
        match self.retry {
            None => count.saturating_add(self.take()),
            Some(least) => count.max(least),
        }
    }

    /// How much it adds to what this owner has, or to nothing.
    #[must_use]
    pub fn needs(&self, hold: Option<&Hold>) -> u32 {
        match self.retry {
            None => self.take(),
            Some(least) => least.saturating_sub(hold.map_or(0, |hold| hold.count(self.mode))),
        }
    }

    /// True if there is room for what it asks for beside so many reads of all holders. Only shares are limited.
    #[must_use]
    pub fn fits(&self, reads: u64, hold: Option<&Hold>) -> bool {
        let room = |limit: NonZeroU32| reads + u64::from(self.needs(hold)) <= u64::from(limit.get());
        self.share.is_none_or(|share| room(share.limit))
    }

    /// A holder that has more reads than this has to give some back before these shares can be had by an owner without
    /// any; None if no number of reads keeps it waiting.
    #[must_use]
    pub fn most_beside(&self) -> Option<u32> {
        Some(self.share?.limit.get().saturating_sub(self.count_after(0)))
    }

    /// Returns its kind: no owner waits twice for one kind at one key.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match (self.mode, self.share) {
            (Mode::Write, _) => Kind::Write,
            (Mode::Read, None) => Kind::Read,
            (Mode::Read, Some(_)) => Kind::Share,
        }
    }

    /// How much it adds to the count when it is no repetition.
    #[must_use]
    pub fn take(&self) -> u32 {
        self.share.map_or(1, |share| share.take.get())
    }
}

/// To give back.
#[derive(Clone, Debug)]
pub struct Release {
    /// In which mode; None means the one mode held.
    pub mode: Option<Mode>,
    /// How much of it.
    pub amount: Amount,
    /// Only the hold with this fence.
    pub fence: Option<Fence>,
}

/// To move the end of the lease.
#[derive(Clone, Debug)]
pub struct Extend {
    /// How long it is to run from now.
    pub lease: Millis,
    /// The connection to bind the hold to; None leaves the binding as it is.
    pub session: Option<Session>,
    /// Only the hold with this fence.
    pub fence: Option<Fence>,
    /// The note to keep with the hold; None leaves the one that is there, and an empty one takes it away.
    pub note: Option<Note>,
    /// The fence of the hold is to be this one at least. Of a request for one key alone.
    pub min_fence: Option<Fence>,
}

/// To run a command, which the caller does if it is granted, in the same step of the server: hold for writing.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// Only the hold with this fence.
    pub fence: Fence,
}

/// The conditions of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check {
    /// In which mode it must count; None means any.
    pub mode: Option<Mode>,
    /// Only the hold with this fence.
    pub fence: Option<Fence>,
}

impl From<Guard> for Check {
    fn from(guard: Guard) -> Check {
        Check { mode: Some(Mode::Write), fence: Some(guard.fence) }
    }
}

impl Check {
    /// True if this hold is what is asked for. An offer is not: its owner does not know of it.
    #[must_use]
    pub fn admits(self, hold: &Hold) -> bool {
        self.mode.is_none_or(|mode| hold.count(mode) > 0)
            && self.fence.is_none_or(|fence| fence == hold.fence())
            && hold.offer().is_none()
    }
}

/// How much to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// One count.
    One,
    /// Every count.
    All,
    /// As many that at most this count is left.
    To(u32),
}

impl Release {
    /// True if it would leave open which mode is meant, if both are held.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.mode.is_none() && self.amount != Amount::All
    }
}

impl Amount {
    /// Returns the rest of a count.
    #[must_use]
    pub fn left_of(self, count: u32) -> u32 {
        match self {
            Amount::One => count.saturating_sub(1),
            Amount::All => 0,
            Amount::To(most) => count.min(most),
        }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every key is held, with these fences.
    Granted(PerKey<Fence>),
    /// Others hold or wait, nothing was changed.
    Unavailable,
    /// Others hold or wait, and the request begins to wait. Its outcome follows once the server has parked its client,
    /// or has not: one of the next two, or `Unavailable`.
    Begun(Begun),
    /// The request waits: it is answered later, once.
    Queued(WaiterId),
    /// The owner has a place in the queue now, and this request is answered.
    Placed(WaiterId),
    /// Per key the counts left to the owner; None where it held nothing or another fence was named.
    Released(PerKey<Option<u64>>),
    /// Per key the fence of the extended hold; None as above.
    Extended(PerKey<Option<Fence>>),
    /// The fence of the hold under which the command may run; None if it must not.
    Guarded(Option<Fence>),
}

/// How a request begins to wait: see [`manager::begun`](crate::manager::begun).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It stands in the queues, and its client is to be parked.
    New(WaiterId),
    /// It stands in the queues as a place, and its client does not wait.
    Place(WaiterId),
    /// The owner waits for the same already, and this request repeats that. Nothing was changed.
    Repeat(WaiterId),
}

/// The reason why a request cannot be served. Each has one text, in command/error.rs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A release without a mode, of an owner that holds both.
    AmbiguousRelease,
    /// A new hold, place or parked client needs memory, and the server has none left.
    OutOfMemory,
    /// The key has as many holders as it may have.
    TooManyHolders,
    /// The owner's count can rise no further.
    TooManyCounts,
    /// The fence clock can rise no further.
    FencesUsedUp,
    /// A client's fence lies more than a year ahead.
    FenceFarAhead,
    /// The fence that the hold is to have at least is further ahead than a client may carry the fence clock.
    MinFenceAhead,
    /// A client's hold would stand beside another that excludes it, or share its fence.
    BreaksLock,
    /// The owner waits for one of these keys in this mode already, and this is no RETRY.
    AlreadyWaits,
    /// As many requests wait as may wait.
    TooManyWaiters,
    /// As many requests wait for the key as may.
    TooManyWaitersOfKey,
    /// As many requests have places as may.
    TooManyPlaces,
    /// The owner has as many places as one may have.
    TooManyPlacesOfOwner,
    /// Places take as much memory as they may.
    TooManyPlaceBytes,
    /// Requests that wait and are no places take as much memory as they may.
    TooManyWaiterBytes,
    /// The owner has a place or an offer there in another mode.
    OtherMode,
    /// The owner has a place or an offer there, together with other keys or without some of these.
    OtherKeys,
    /// The owner has a place or an offer there for another number of shares.
    OtherTake,
    /// The owner holds the key already, and more shares are not to be had now. It never waits for them: so no owner
    /// holds and waits on one key.
    HoldsShares,
    /// A reader that asks to write cannot have a place.
    QueuedUpgrade,
    /// An owner that it waits for waits for it.
    Deadlock(Box<Cycle>),
    /// This node may have forgotten what was granted before, and grants nothing for so long.
    Grace(Millis),
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Every key is held, with these fences.
    Granted(PerKey<Fence>),
    /// Its time was up.
    TimedOut,
    /// Its time was up. Its place goes on without a client, under this name.
    Detached(WaiterId),
    /// Its time was up during a grace: no queue was served meanwhile.
    InGrace {
        /// How much of the grace was left.
        left: Millis,
        /// The name of its place, which goes on without a client; None if it has none.
        place: Option<WaiterId>,
    },
    /// A RETRY took over its place.
    Replaced,
    /// A later request of the owner waits there now, and one of the two has QUEUE.
    TakenOver,
    /// The owner gave its place back, or an operator ended it, or the owner came to hold the key in another way.
    Left,
    /// The hold lies there for its owner to collect: no request of it waited.
    Offered {
        /// When the owner asked first.
        since: Timestamp,
    },
    /// It was to become a writer, and what it held for reading is gone.
    HoldLost,
    /// It cannot be served any more.
    Refused(Refusal),
    /// Something else than a lock lies there now.
    WrongType,
    /// This node does not serve it any more.
    Redirected(RedirectReason),
}

impl WaitEnd {
    /// True if it has got what it waited for.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(self, WaitEnd::Granted(_) | WaitEnd::Offered { .. })
    }
}

/// Why this node does not serve a waiter any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectReason {
    /// It has become a replica.
    Demoted,
    /// The key belongs to another node.
    SlotGone,
    /// The module could not tell others of what the step has done.
    Failed,
}

/// A cycle: each owner waits at its key for the next one, and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle(pub Vec<Hop>);

/// One hop of a cycle: an owner, and the key that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its name.
    pub owner: Owner,
    /// The database of the key. A cycle may lead through several.
    pub db: Db,
    /// The key.
    pub key: KeyName,
}

/// Names one waiter. An old one finds nothing.
pub type WaiterId = Id;
