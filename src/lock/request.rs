//! What is asked, what came of it, and what must now be done about it.

use super::fence::Fence;
use super::hold::{Hold, Mode};
use super::owner::{Note, Owner};
use super::time::{Millis, WallTime};
use super::value::Lock;
use smallvec::SmallVec;

/// One value per key, in the order of the keys; in place for the usual single key.
pub type PerKey<T> = SmallVec<[T; 1]>;

/// A key of the current step, by its place among the step's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub u16);

/// The number of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Db(pub u32);

/// Where the locks of one step lie: over Redis in the module, over a map in the tests.
pub trait Keyspace {
    /// The key in this slot.
    fn at(&mut self, slot: Slot) -> Place<'_>;
    /// Puts a fresh lock under a key that has no value.
    fn create(&mut self, slot: Slot) -> &mut Lock;

    /// The key's lock, if there is one.
    fn lock(&mut self, slot: Slot) -> Option<&mut Lock> {
        self.at(slot).lock
    }
}

/// A key: where it is and what lies there.
#[derive(Debug)]
pub struct Place<'a> {
    /// Its database.
    pub db: Db,
    /// Its name.
    pub name: &'a [u8],
    /// Its lock; None when it has none.
    pub lock: Option<&'a mut Lock>,
}

/// A well-formed request: what it asks of all its keys (slots 0 to `keys`), for one owner.
#[derive(Clone, Debug)]
pub struct Request {
    /// How many keys it names.
    pub keys: u16,
    /// Who asks.
    pub owner: Owner,
    /// What for.
    pub ask: Ask,
}

/// What a request asks for.
#[derive(Clone, Debug)]
pub enum Ask {
    /// To hold.
    Acquire(Acquire),
    /// To give back.
    Release(Release),
    /// To move the end of the lease.
    Extend(Extend),
}

/// To hold.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Shared or exclusive.
    pub mode: Mode,
    /// How long the lease is to run at least.
    pub lease: Millis,
    /// What to keep with the hold; None leaves what is there.
    pub note: Option<Note>,
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
    /// Only the hold with this fence.
    pub fence: Option<Fence>,
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

impl Request {
    /// The slots of its keys.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.keys).map(Slot)
    }
}

impl Release {
    /// Whether it would leave open which mode is meant, if both are held.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.mode.is_none() && self.amount != Amount::All
    }
}

impl Amount {
    /// What is left of a count.
    #[must_use]
    pub fn left_of(self, count: u32) -> u32 {
        match self {
            Amount::One => count.saturating_sub(1),
            Amount::All => 0,
            Amount::To(most) => count.min(most),
        }
    }
}

/// What a step came to and what it leaves to do.
#[derive(Clone, Debug)]
pub struct Step {
    /// The answer.
    pub outcome: Result<Outcome, Refusal>,
    /// What happened to holds, in order. Settling leaves effects also when the request is refused.
    pub effects: Effects,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every key is held, with these fences.
    Granted(PerKey<Fence>),
    /// Others hold, nothing was changed.
    Held,
    /// Per key the counts left to the owner; None where it held nothing or another fence was named.
    Released(PerKey<Option<u64>>),
    /// Per key the fence of the extended hold; None as above.
    Extended(PerKey<Option<Fence>>),
}

/// Why a request cannot be served. Each has one text, in command/reply.rs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A release without a mode, of an owner that holds both.
    AmbiguousRelease,
    /// The key has as many holders as it may have.
    TooManyHolders,
    /// The owner's count can rise no further.
    TooManyCounts,
    /// The fence clock can rise no further.
    FencesUsedUp,
    /// A client's fence lies more than a year ahead.
    FenceFarAhead,
    /// A client's hold would stand beside another that excludes it, or share its fence.
    BreaksLock,
}

/// What happened to holds in one step.
pub type Effects = SmallVec<[Change; 1]>;

/// One hold changed: what replicas, the AOF, subscribers and counters must learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// On which key.
    pub slot: Slot,
    /// By what.
    pub cause: Cause,
    /// Whose hold.
    pub owner: Owner,
    /// The fence it has or had.
    pub fence: Fence,
    /// The hold as it is now; None when it is gone.
    pub hold: Option<Hold>,
}

/// What changed a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its owner took it or took it again.
    Acquire,
    /// Its owner gave some or all of it back.
    Release,
    /// Its owner moved the end of its lease.
    Extend,
    /// Its lease ended.
    Lapse,
    /// A LOCK.HOLD said so.
    Told,
}

/// The absolute state of one hold, as LOCK.HOLD and the saved form carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Whose hold.
    pub owner: Owner,
    /// How often for reading; 0 with 0 writes removes the hold.
    pub reads: u32,
    /// How often for writing.
    pub writes: u32,
    /// Its fence; only a removal may lack it.
    pub fence: Option<Fence>,
    /// When the lease ends by the wall clock of who wrote this.
    pub wall_deadline: WallTime,
    /// What was left of the lease when this was written.
    pub left: Millis,
    /// What the holder says about itself.
    pub note: Option<Note>,
}

/// Where a fact comes from, which decides how its deadline is read and how far it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This node's own disk: the time that passed while it was down counts, so the earlier of both deadlines stands.
    Disk,
    /// Another node, whose wall clock may be off: what was left counts from its arrival, so no copy ends before the
    /// original.
    Peer,
    /// A client that replays (`lock.allow-hold`): as a peer's, but checked.
    Client,
}
