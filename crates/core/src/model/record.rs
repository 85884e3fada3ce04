//! The absolute state of holds, as LOCK.HOLD and the saved form carry it. Idempotent, and decides nothing.

use super::fence::Fence;
use super::hold::{Epoch, Hold};
use super::limits::LEASE_CEILING;
use super::owner::{Note, Owner};
use super::state::State;
use super::time::{Millis, Now, WallTime};
use alloc::vec::Vec;

/// The absolute state of one hold, as LOCK.HOLD and the saved form carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRecord {
    /// The holder.
    pub owner: Owner,
    /// How often for reading; 0 with 0 writes removes the hold.
    pub reads: u32,
    /// How often for writing.
    pub writes: u32,
    /// Its fence; only a removal may lack it.
    pub fence: Option<Fence>,
    /// When the lease ends, by the wall clock of the node that wrote this.
    pub wall_deadline: WallTime,
    /// The rest of the lease when this was written.
    pub left: Millis,
    /// The holder's note about itself.
    pub note: Option<Note>,
}

/// The content of one LOCK.HOLD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// An owner's hold is in this state.
    State(HoldRecord),
    /// The hold with this fence has ended. Two holds of a key never have the same (I3).
    End(Fence),
}

/// A lock as it was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedLock {
    /// The highest fence given on it.
    pub fence: Option<Fence>,
    /// Its holds, in order of owner.
    pub holds: Vec<HoldRecord>,
}

/// Where a record comes from, which decides how its deadline is read and how far it is believed.
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

impl HoldRecord {
    /// True if it says that the hold is gone.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        self.reads == 0 && self.writes == 0
    }

    /// The record of a hold as it stands now.
    #[must_use]
    pub fn of(owner: &Owner, hold: &Hold, now: Now) -> HoldRecord {
        HoldRecord::new(owner.clone(), State::of(hold, now), hold.note().cloned())
    }

    /// The record of a hold in this state.
    #[must_use]
    pub fn new(owner: Owner, state: State, note: Option<Note>) -> HoldRecord {
        let State { reads, writes, fence, wall_deadline, left } = state;
        HoldRecord { owner, reads, writes, fence, wall_deadline, left, note }
    }

    /// The state that the hold is in.
    #[must_use]
    pub fn state(&self) -> State {
        let HoldRecord { reads, writes, fence, wall_deadline, left, .. } = *self;
        State { reads, writes, fence, wall_deadline, left }
    }

    /// The hold that this record describes, carried here now; None for a removal.
    pub(crate) fn hold(&self, origin: Origin, now: Now) -> Option<Hold> {
        if self.is_removal() {
            return None;
        }
        let left = match origin {
            Origin::Disk => self.left.min(now.left_until(self.wall_deadline)),
            Origin::Peer | Origin::Client => self.left,
        };
        let mut hold = Hold::new(self.fence?, now.mono + left.min(LEASE_CEILING), now.mono, Epoch::CARRIED);
        hold.set_counts(self.reads, self.writes);
        hold.set_note(self.note.clone());
        Some(hold)
    }
}

impl Update {
    /// The fence that it names.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        match self {
            Update::State(record) => record.fence,
            Update::End(fence) => Some(*fence),
        }
    }
}
