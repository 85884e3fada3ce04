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
    /// What.
    pub what: What,
}

/// What can happen to a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    /// Granted, for the first time or once more. The fence is missing where the answer was lost and a later one showed
    /// that the lock was granted. Every lease of an owner has a number.
    Locked {
        /// Alone.
        writes: bool,
        /// The fence in the reply.
        fence: Option<i64>,
        /// From now on, or what is left of an older one if that is longer.
        lease: u32,
    },
    /// The reply says how many counts are left after a release; None for null.
    Released {
        /// Of which mode; None for all there are.
        writes: Option<bool>,
        /// The counts of both modes that are left.
        left: Option<u32>,
    },
    /// The reply is the fence of the hold that has this lease now; None for null.
    Extended {
        /// That fence.
        fence: Option<i64>,
        /// Instead of all leases before.
        lease: u32,
    },
    /// The reply is null to one more request, without waiting.
    Refused {
        /// For writing.
        writes: bool,
    },
    /// A lease came to its end, which it can only after it began. So each lease that began has one end, even where no
    /// hold has it any more.
    Lapsed {
        /// This one.
        lease: u32,
    },
    /// Holds nothing from now on; whether it did is not known.
    Gone,
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
            What::Locked { writes, fence, lease } => self.lock(owner, writes, fence, lease),
            What::Released { writes, left } => self.release(owner, writes) == left,
            What::Extended { fence, lease } => {
                let Some(hold) = self.holds.get_mut(&owner) else { return fence.is_none() };
                hold.leases = BTreeSet::from([lease]);
                self.running.insert((owner, lease));
                fence.is_some() && hold.fence.is_none_or(|known| Some(known) == fence)
            }
            // An owner that has what it requests is never refused. What other owners must give up first is uncertain.
            What::Refused { writes } => self.holds.get(&owner).is_none_or(|hold| writes && hold.writes == 0),
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
            What::Looked(_) => {
                let certain = self.holds.range(..UNCERTAIN);
                let counts = |hold: &Hold| (hold.reads, hold.writes, hold.fence.unwrap_or_default());
                certain
                    .map(|(owner, hold)| (*owner, counts(hold)))
                    .eq(step.seen.iter().map(|(owner, counts)| (*owner, *counts)))
            }
        }
    }

    fn lock(&mut self, owner: usize, writes: bool, fence: Option<i64>, lease: u32) -> bool {
        let others = |writer_only: bool| {
            self.holds.iter().any(|(other, hold)| *other != owner && (!writer_only || hold.writes > 0))
        };
        let rises = fence.is_none_or(|fence| fence > self.last);
        let held = self.holds.get(&owner);
        // Asked again in a mode that it has, or for reading while it writes: the fence stays. Else it is a new one.
        let again = held.is_some_and(|hold| hold.writes > 0 || !writes);
        let fits = if again {
            held.is_some_and(|hold| fence.is_none() || hold.fence.is_none() || hold.fence == fence)
        } else {
            rises && !others(!writes)
        };
        if !fits {
            return false;
        }
        let empty = Hold { reads: 0, writes: 0, fence: None, leases: BTreeSet::new() };
        let hold = self.holds.entry(owner).or_insert(empty);
        hold.leases.insert(lease);
        self.running.insert((owner, lease));
        *(if writes { &mut hold.writes } else { &mut hold.reads }) += 1;
        if !again {
            hold.fence = fence;
            self.last = fence.unwrap_or(self.last);
        }
        true
    }

    /// What is left.
    fn release(&mut self, owner: usize, writes: Option<bool>) -> Option<u32> {
        let hold = self.holds.get_mut(&owner)?;
        match writes {
            Some(true) => hold.writes = hold.writes.saturating_sub(1),
            Some(false) => hold.reads = hold.reads.saturating_sub(1),
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
        Step { owner: numbers[event.owner.as_str()], what: event.what.clone(), seen }
    };
    let actions = moments.into_iter().map(|(_, answer, number)| {
        let step = step(&events[number]);
        (number, if answer { Action::Response(step) } else { Action::Call(step) })
    });
    WGLChecker::<LockSpecification>::is_linearizable(History::from_actions(actions.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(asked: u64, told: u64, owner: &str, what: What) -> Event {
        Event { asked: Moment(asked), told: Moment(told), owner: owner.to_owned(), what }
    }

    fn locked(fence: i64) -> What {
        What::Locked { writes: true, fence: Some(fence), lease: 0 }
    }

    fn read(fence: i64) -> What {
        What::Locked { writes: false, fence: Some(fence), lease: 0 }
    }

    const RELEASED: What = What::Released { writes: None, left: Some(0) };
    const LAPSED: What = What::Lapsed { lease: 0 };

    fn fits(events: &[Event]) -> bool {
        explained(events, &BTreeSet::new())
    }

    #[test]
    fn the_next_comes_in_after_a_release_or_a_lapse_and_not_before() {
        let first = event(0, 10, "a", locked(1));
        assert!(fits(&[first.clone(), event(20, 30, "a", RELEASED), event(5, 40, "b", locked(2))]));
        assert!(!fits(&[first.clone(), event(20, 30, "a", RELEASED), event(5, 15, "b", locked(2))]));
        assert!(fits(&[first.clone(), event(50, 60, "a", LAPSED), event(5, 55, "b", locked(2))]));
        assert!(!fits(&[first.clone(), event(50, 60, "a", LAPSED), event(5, 45, "b", locked(2))]));
    }

    #[test]
    fn who_has_lapsed_is_not_told_that_he_still_holds() {
        let (first, lapsed) = (event(0, 10, "a", locked(1)), event(50, 60, "a", LAPSED));
        assert!(!fits(&[first.clone(), lapsed.clone(), event(61, 70, "a", RELEASED)]));
        assert!(fits(&[first.clone(), lapsed.clone(), event(55, 70, "a", RELEASED)]));
        // Unless an extension has given it longer.
        let extended = event(20, 30, "a", What::Extended { fence: Some(1), lease: 1 });
        assert!(fits(&[first, lapsed, extended, event(61, 70, "a", RELEASED)]));
    }

    #[test]
    fn a_lease_ends_after_it_began_even_for_one_who_waited_longer_than_it_lasts() {
        // Asked at 0, with a lease of 50: for all that is known from outside it may have ended from 50 on.
        let (waited, lapsed) = (event(0, 100, "a", locked(1)), event(50, 150, "a", LAPSED));
        assert!(fits(&[waited.clone(), lapsed.clone(), event(90, 160, "b", locked(2))]));
        assert!(!fits(&[waited, lapsed.clone(), event(151, 160, "a", RELEASED)]), "it had lapsed by then");
        // The end of a lease that was replaced, or that nothing is held by any more, changes nothing.
        let (early, extended) = (event(0, 10, "a", locked(1)), What::Extended { fence: Some(1), lease: 1 });
        let second = event(200, 210, "a", What::Lapsed { lease: 1 });
        let both = [early.clone(), event(20, 30, "a", extended), lapsed.clone(), second];
        assert!(fits(&[&both[..], &[event(160, 170, "a", RELEASED)]].concat()));
        assert!(fits(&[early, event(20, 30, "a", RELEASED), event(31, 35, "b", locked(2)), lapsed]));
    }

    #[test]
    fn who_has_what_he_asks_for_is_not_refused() {
        let refused = |writes| event(20, 30, "a", What::Refused { writes });
        let [reads, writes] = [event(0, 10, "a", read(1)), event(0, 10, "a", locked(1))];
        assert!(!fits(&[reads.clone(), refused(false)]));
        assert!(!fits(&[writes.clone(), refused(true)]));
        assert!(!fits(&[writes.clone(), refused(false)]), "down to reading");
        assert!(fits(&[reads, refused(true)]), "up to writing, beside others");
        assert!(fits(&[writes, event(25, 40, "a", LAPSED), refused(true)]));
        assert!(fits(&[refused(true)]));
    }

    #[test]
    fn readers_come_in_together_and_a_fence_never_goes_back() {
        assert!(fits(&[event(0, 10, "a", read(1)), event(11, 20, "b", read(2))]));
        assert!(!fits(&[event(0, 10, "a", read(2)), event(11, 20, "b", read(1))]));
        assert!(!fits(&[event(0, 10, "a", read(1)), event(11, 20, "b", locked(2))]));
        let upgraded = event(11, 20, "a", locked(2));
        assert!(fits(&[event(0, 10, "a", read(1)), upgraded.clone()]));
        assert!(!fits(&[event(0, 10, "a", read(1)), event(0, 10, "b", read(3)), upgraded]));
    }

    #[test]
    fn what_is_seen_is_what_is_held() {
        let look = |holders: &[(&str, (u32, u32, i64))]| {
            What::Looked(holders.iter().map(|(owner, counts)| ((*owner).to_owned(), *counts)).collect())
        };
        let first = event(0, 10, "a", locked(1));
        assert!(fits(&[first.clone(), event(20, 30, "", look(&[("a", (0, 1, 1))]))]));
        assert!(!fits(&[first.clone(), event(20, 30, "", look(&[]))]));
        assert!(!fits(&[first.clone(), event(20, 30, "", look(&[("a", (0, 2, 1))]))]));
        assert!(!fits(&[event(20, 30, "", look(&[("a", (0, 1, 1))]))]), "nobody was let in");
        // A release that was acknowledged and did not free.
        let released = event(12, 15, "a", RELEASED);
        assert!(!fits(&[first.clone(), released, event(20, 30, "", look(&[("a", (0, 1, 1))]))]));
        let uncertain = BTreeSet::from(["a".to_owned()]);
        assert!(explained(&[first, event(20, 30, "", look(&[]))], &uncertain));
    }
}
