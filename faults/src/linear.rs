//! Is there an order of all events of one lock that explains every reply? The method is that of Wing, Gong and Lowe, as
//! porcupine has it, from the crate todc-utils. This file says what a lock may answer.
//!
//! Time comes in as an event of its own: a lease that began between two moments ends between two moments. A hold lasts
//! until then, and no longer. So an order also has to explain a request that is granted, or finds the lock free, before
//! a lease is over. The same goes for an owner that still holds after it.

use crate::history::Moment;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// What happened to one lock at some moment between two.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Not before this one: the request was sent.
    pub asked: Moment,
    /// Not after this one: its answer was read.
    pub told: Moment,
    /// The owner that gets the answer.
    pub owner: String,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Write,
    Read,
    /// So many read counts, if those of all holders are within the limit then.
    Shares {
        limit: u32,
        take: u32,
    },
}

impl Kind {
    pub fn writes(self) -> bool {
        self == Kind::Write
    }

    /// How many counts it asks for.
    pub fn take(self) -> u32 {
        if let Kind::Shares { take, .. } = self { take } else { 1 }
    }

    /// How many read counts there may be at its grant.
    pub fn limit(self) -> Option<u32> {
        if let Kind::Shares { limit, .. } = self { Some(limit) } else { None }
    }
}

/// What can happen to a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    /// Granted, for the first time or once more. The fence is missing where the answer was lost and a later one showed
    /// that the lock was granted. Every lease of an owner has a number.
    Locked {
        kind: Kind,
        /// RETRY: so many counts of its mode afterwards, instead of more.
        at_least: Option<u32>,
        fence: Option<i64>,
        /// From now on, or what is left of an older one if that is longer.
        lease: u32,
    },
    /// The reply says how many counts are left after a release; None for null.
    Released {
        /// How many read counts it was to leave at most; None to give back all counts of both modes.
        to: Option<u32>,
        /// The counts of both modes that are left.
        left: Option<u32>,
    },
    /// The reply is the fence of the hold that has this lease now; None for null.
    Extended {
        fence: Option<i64>,
        /// Instead of all leases before.
        lease: u32,
    },
    /// The reply is null to one more request, without waiting.
    Refused { kind: Kind, at_least: Option<u32> },
    /// A lease came to its end, which it can only after it began. So each lease that began has one end, even where no
    /// hold has it any more.
    Lapsed { lease: u32 },
    /// Holds nothing from now on; whether it did is not known.
    Gone,
    /// An operator ended so many holds: that of the owner, or all of them.
    Broken { all: bool, ended: u32 },
    /// A read of the lock showed these holders, each with its read count, write count and fence.
    Looked(BTreeMap<String, (u32, u32, i64)>),
}

/// A hold, as far as it can be known from outside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Hold {
    reads: u32,
    writes: u32,
    fence: Option<i64>,
    leases: BTreeSet<u32>,
}

/// A lock: its holders, by their numbers, and the last fence that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lock {
    holds: BTreeMap<usize, Hold>,
    /// Leases that began and whose end has not come, by owner and number. Without them, an owner that waits longer than
    /// its lease could be taken to lapse before its grant, and then to hold for ever.
    running: BTreeSet<(usize, u32)>,
    last: i64,
}

/// An event whose owner is a number.
#[derive(Clone, Debug)]
struct Step {
    owner: usize,
    what: What,
    /// Of a grant with a fence: the one before it among the known ones, which no grant between can have.
    before: i64,
    /// The holders that were seen, without those whose time of holding is uncertain.
    seen: BTreeMap<usize, (u32, u32, i64)>,
}

struct LockSpecification;

/// Owners whose time of holding is uncertain have the highest numbers, from here on.
const UNCERTAIN: usize = usize::MAX / 2;

impl Specification for LockSpecification {
    type State = Lock;
    type Operation = Step;

    fn init() -> Lock {
        Lock::default()
    }

    fn apply(step: &Step, lock: &Lock) -> (bool, Lock) {
        let mut next = lock.clone();
        let valid = next.take(step);
        (valid, if valid { next } else { lock.clone() })
    }
}

impl Lock {
    /// Whether this can happen now; changes what it changes.
    fn take(&mut self, step: &Step) -> bool {
        let owner = step.owner;
        match step.what {
            What::Locked { kind, at_least, fence, lease } => {
                let granted = self.lock(owner, kind, at_least, fence, step.before);
                if granted && let Some(hold) = self.holds.get_mut(&owner) {
                    hold.leases.insert(lease);
                    self.running.insert((owner, lease));
                }
                granted
            }
            What::Released { to, left } => self.release(owner, to) == left,
            What::Extended { fence, lease } => {
                let Some(hold) = self.holds.get_mut(&owner) else { return fence.is_none() };
                hold.leases = BTreeSet::from([lease]);
                self.running.insert((owner, lease));
                fence.is_some() && hold.fence.is_none_or(|known| Some(known) == fence)
            }
            // An owner that has what it requests is never refused. What other owners must give up first is uncertain.
            What::Refused { kind, at_least } => self.holds.get(&owner).is_none_or(|hold| match kind {
                Kind::Write => hold.writes == 0,
                Kind::Read => false,
                Kind::Shares { .. } => at_least.is_none_or(|least| hold.reads < least),
            }),
            What::Lapsed { lease } => {
                if !self.running.remove(&(owner, lease)) {
                    return false;
                }
                if let Some(hold) = self.holds.get_mut(&owner) {
                    let ran = hold.leases.remove(&lease);
                    if ran && hold.leases.is_empty() {
                        self.holds.remove(&owner);
                    }
                }
                true
            }
            What::Gone => {
                self.holds.remove(&owner);
                true
            }
            What::Broken { all, ended } => {
                let certain = |lock: &Lock| lock.holds.range(..UNCERTAIN).count();
                let before = certain(self);
                self.holds.retain(|other, _| !all && *other != owner);
                // Others of which it is not certain whether they held may be among them.
                before - certain(self) <= ended as usize
            }
            What::Looked(_) => {
                let certain = self.holds.range(..UNCERTAIN);
                let counts = |hold: &Hold| (hold.reads, hold.writes, hold.fence.unwrap_or_default());
                certain
                    .map(|(owner, hold)| (*owner, counts(hold)))
                    .eq(step.seen.iter().map(|(owner, counts)| (*owner, *counts)))
            }
        }
    }

    fn lock(&mut self, owner: usize, kind: Kind, at_least: Option<u32>, fence: Option<i64>, before: i64) -> bool {
        let others = |writer_only: bool| {
            self.holds.iter().any(|(other, hold)| *other != owner && (!writer_only || hold.writes > 0))
        };
        let writes = kind.writes();
        let held = self.holds.get(&owner);
        let has = held.map_or(0, |hold| if writes { hold.writes } else { hold.reads });
        let more = at_least.map_or(kind.take(), |least| least.saturating_sub(has));
        let is_within = |limit: u32| self.holds.values().map(|hold| hold.reads).sum::<u32>() + more <= limit;
        // Asked again in a mode that it has, or for reading while it writes: the fence stays. Else it is a new one,
        // the next of those that are known: the others before it are given already.
        let again = held.is_some_and(|hold| hold.writes > 0 || !writes);
        let fits = if again {
            held.is_some_and(|hold| fence.is_none() || hold.fence.is_none() || hold.fence == fence)
        } else {
            (fence.is_none() || self.last == before) && !others(!writes)
        };
        if !fits || (more > 0 && !kind.limit().is_none_or(is_within)) {
            return false;
        }
        let empty = Hold { reads: 0, writes: 0, fence: None, leases: BTreeSet::new() };
        let hold = self.holds.entry(owner).or_insert(empty);
        *(if writes { &mut hold.writes } else { &mut hold.reads }) += more;
        if !again {
            hold.fence = fence;
            self.last = fence.unwrap_or(self.last);
        }
        true
    }

    /// What is left.
    fn release(&mut self, owner: usize, to: Option<u32>) -> Option<u32> {
        let hold = self.holds.get_mut(&owner)?;
        match to {
            Some(most) => hold.reads = hold.reads.min(most),
            None => (hold.reads, hold.writes) = (0, 0),
        }
        let left = hold.reads + hold.writes;
        if left == 0 {
            self.holds.remove(&owner);
        }
        Some(left)
    }
}

/// Whether some order of all events of one lock, each between its two moments, is one that a lock can have gone
/// through. Of the owners in `uncertain` it is not known for certain when they held; what was seen of them is left out.
pub fn explained(events: &[Event], uncertain: &BTreeSet<String>) -> bool {
    if events.is_empty() {
        return true;
    }
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for event in events {
        let next = numbers.len();
        let base = if uncertain.contains(&event.owner) { UNCERTAIN } else { 0 };
        numbers.entry(&event.owner).or_insert(base + next);
    }
    let fence_of = |event: &Event| if let What::Locked { fence, .. } = event.what { fence } else { None };
    let fences: BTreeSet<i64> = events.iter().filter_map(fence_of).collect();
    // Calls before answers of the same moment: the two may have met.
    let mut moments: Vec<(Moment, bool, usize)> = Vec::new();
    for (number, event) in events.iter().enumerate() {
        moments.push((event.asked, false, number));
        moments.push((event.told, true, number));
    }
    moments.sort_unstable();
    let step = |event: &Event| {
        let mut seen = BTreeMap::new();
        if let What::Looked(holders) = &event.what {
            for (owner, counts) in holders.iter().filter(|(owner, _)| !uncertain.contains(*owner)) {
                // An owner that never got the reply of its grant has no number, nor any of a holder.
                seen.insert(numbers.get(owner.as_str()).copied().unwrap_or(UNCERTAIN - 1), *counts);
            }
        }
        let before = fence_of(event).and_then(|fence| fences.range(..fence).next_back().copied()).unwrap_or_default();
        Step { owner: numbers[event.owner.as_str()], what: event.what.clone(), before, seen }
    };
    let actions = moments.into_iter().map(|(_, answer, number)| {
        let step = step(&events[number]);
        (number, if answer { Action::Response(step) } else { Action::Call(step) })
    });
    WGLChecker::<LockSpecification>::is_linearizable(History::from_actions(actions.collect()))
}

#[cfg(test)]
mod tests;
