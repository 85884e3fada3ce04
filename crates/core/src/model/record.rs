//! The absolute state of holds, as LOCK.HOLD and the saved form carry it. Idempotent, and decides nothing.

use super::fence::Fence;
use super::hold::{Epoch, Hold};
use super::limits::LEASE_CEILING;
use super::owner::{Note, Owner};
use super::state::State;
use super::time::Now;
use alloc::vec::Vec;

/// The absolute state of one hold, as LOCK.HOLD and the saved form carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRecord {
    /// The holder.
    pub owner: Owner,
    /// What it says of the hold.
    pub state: State,
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
    /// The record of a hold as it stands now.
    #[must_use]
    pub fn of(owner: &Owner, hold: &Hold, now: Now) -> HoldRecord {
        HoldRecord { owner: owner.clone(), state: State::of(hold, now), note: hold.note().cloned() }
    }

    /// The hold that this record describes, carried here now; None for an end.
    pub(crate) fn hold(&self, origin: Origin, now: Now) -> Option<Hold> {
        let state = self.state;
        if state.is_end() {
            return None;
        }
        let left = match origin {
            Origin::Disk => state.left.min(now.left_until(state.wall_deadline)),
            Origin::Peer | Origin::Client => state.left,
        };
        let mut hold = Hold::new(state.fence?, now.mono + left.min(LEASE_CEILING), now.mono, Epoch::CARRIED);
        hold.set_counts(state.reads, state.writes);
        hold.set_note(self.note.clone());
        Some(hold)
    }
}

impl Update {
    /// The fence that it names.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        match self {
            Update::State(record) => record.state.fence,
            Update::End(fence) => Some(*fence),
        }
    }
}
