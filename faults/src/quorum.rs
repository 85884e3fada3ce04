//! What clients of a lock over several servers believed, and what must be true of it.
//!
//! A hold is judged by its validity alone: from the moment when its client knew of it, to the release, or to the end
//! that the client itself reckoned. So a client that sleeps is not valid beyond that end.

use std::collections::BTreeMap;
use std::fmt;

/// A hold as its client saw it. All moments are microseconds of `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, Default)]
pub struct Hold {
    /// Its client.
    pub client: u64,
    /// Which of that client's holds.
    pub number: u64,
    /// None where locks have none.
    pub fence: Option<u64>,
    /// When the client knew that it had the lock.
    pub start: u64,
    /// The end of validity that the client reckoned last.
    pub until: u64,
    /// When it sent the release, or learnt of the loss.
    pub gave_up: Option<u64>,
}

impl Hold {
    /// From here on its client relies on it no more.
    pub fn end(&self) -> u64 {
        self.gave_up.map_or(self.until, |moment| moment.min(self.until))
    }

    /// Whether it was ever valid: a client may sleep right after the grant.
    pub fn was_valid(&self) -> bool {
        self.start < self.end()
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let Hold { client, number, start, .. } = self;
        let fence = self.fence.map_or("none".to_owned(), |fence| fence.to_string());
        write!(to, "client {client}, hold {number}, fence {fence}, valid from {start} to {}", self.end())
    }
}

/// Pairs of holds that were valid at one moment.
pub fn valid_at_once(holds: &[Hold]) -> Vec<(&Hold, &Hold)> {
    let mut pairs = Vec::new();
    let mut open: Vec<&Hold> = Vec::new();
    for hold in by_start(holds) {
        open.retain(|other| other.end() > hold.start);
        pairs.extend(open.iter().map(|other| (*other, hold)));
        open.push(hold);
    }
    pairs
}

/// Pairs of holds, the second valid after the first, whose fence is not the higher one. For each hold only the highest
/// of the fences before it counts.
pub fn fences_back(holds: &[Hold]) -> Vec<(&Hold, &Hold)> {
    let mut ended = by_start(holds);
    ended.sort_by_key(|hold| hold.end());
    let mut ended = ended.into_iter().peekable();
    let mut highest: Option<&Hold> = None;
    let mut pairs = Vec::new();
    for hold in by_start(holds).into_iter().filter(|hold| hold.fence.is_some()) {
        while let Some(before) = ended.next_if(|before| before.end() <= hold.start) {
            highest = [highest, Some(before)].into_iter().flatten().max_by_key(|hold| hold.fence);
        }
        pairs.extend(highest.filter(|before| before.fence >= hold.fence).map(|before| (before, hold)));
    }
    pairs
}

/// Pairs of holds with one fence.
pub fn fences_repeated(holds: &[Hold]) -> Vec<(&Hold, &Hold)> {
    let mut first = BTreeMap::new();
    let with_fence = holds.iter().filter_map(|hold| Some((hold.fence?, hold)));
    with_fence.filter_map(|(fence, hold)| Some((first.insert(fence, hold)?, hold))).collect()
}

fn by_start(holds: &[Hold]) -> Vec<&Hold> {
    let mut sorted: Vec<&Hold> = holds.iter().filter(|hold| hold.was_valid()).collect();
    sorted.sort_by_key(|hold| hold.start);
    sorted
}

/// Something that holders write to. It knows fences where there are any, and refuses a lower one than it has seen.
#[derive(Debug, Default)]
pub struct Resource {
    highest: u64,
    /// The begin of the newest hold that has written.
    newest: u64,
}

/// What the resource made of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whether it was accepted.
    pub accepted: bool,
    /// Whether a hold that began later has written already.
    pub is_old: bool,
}

impl Resource {
    /// The holder writes now.
    pub fn write(&mut self, hold: &Hold) -> Written {
        let is_old = self.has_newer(hold);
        let accepted = hold.fence.is_none_or(|fence| fence >= self.highest);
        if accepted {
            self.highest = self.highest.max(hold.fence.unwrap_or_default());
            self.newest = self.newest.max(hold.start);
        }
        Written { accepted, is_old }
    }

    /// Whether a hold that began later has written.
    pub fn has_newer(&self, hold: &Hold) -> bool {
        hold.start < self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(fence: u64, start: u64, until: u64) -> Hold {
        Hold { fence: Some(fence), start, until, ..Hold::default() }
    }

    #[test]
    fn a_hold_lasts_to_its_release_and_never_beyond_the_end_that_its_client_reckoned() {
        let released = |moment| Hold { gave_up: Some(moment), ..hold(1, 10, 20) };
        assert_eq!([hold(1, 10, 20).end(), released(15).end(), released(90).end()], [20, 15, 20]);
        assert!(hold(1, 10, 20).was_valid() && !hold(1, 20, 20).was_valid() && !hold(1, 30, 20).was_valid());
    }

    #[test]
    fn holds_that_touch_are_not_valid_at_once_and_those_that_overlap_are() {
        assert!(valid_at_once(&[hold(1, 0, 10), hold(2, 10, 20)]).is_empty());
        assert_eq!(valid_at_once(&[hold(1, 0, 11), hold(2, 10, 20)]).len(), 1);
        // Also with one that began long before, and not with one that was never valid.
        assert_eq!(valid_at_once(&[hold(3, 50, 60), hold(1, 0, 100), hold(2, 10, 20), hold(4, 70, 70)]).len(), 2);
    }

    #[test]
    fn a_fence_must_be_above_all_of_holds_that_had_ended_and_no_others() {
        assert!(fences_back(&[hold(1, 0, 10), hold(2, 10, 20), hold(3, 20, 30)]).is_empty());
        assert_eq!(fences_back(&[hold(3, 0, 10), hold(1, 10, 20), hold(2, 20, 30)]).len(), 2);
        assert_eq!(fences_back(&[hold(1, 0, 10), hold(1, 10, 20)]).len(), 1);
        // Not compared: they were valid at once, or one of them never.
        assert!(fences_back(&[hold(2, 0, 11), hold(1, 10, 20), hold(0, 30, 30)]).is_empty());
    }

    #[test]
    fn a_fence_that_was_given_twice_is_found_even_if_one_of_the_holds_was_never_valid() {
        assert_eq!(fences_repeated(&[hold(1, 0, 10), hold(2, 10, 20), hold(1, 30, 30)]).len(), 1);
        assert!(fences_repeated(&[hold(1, 0, 10), hold(2, 10, 20)]).is_empty());
        assert!(fences_repeated(&[Hold::default(), Hold::default()]).is_empty());
    }

    #[test]
    fn a_resource_refuses_an_old_writer_by_its_fence_alone() {
        let (old, new) = (hold(1, 0, 10), hold(2, 10, 20));
        let mut resource = Resource::default();
        let fine = Written { accepted: true, is_old: false };
        assert_eq!([&old, &new, &new].map(|hold| resource.write(hold)), [fine; 3]);
        assert_eq!(resource.write(&old), Written { accepted: false, is_old: true });
        let without = |hold: &Hold| Hold { fence: None, ..hold.clone() };
        let mut resource = Resource::default();
        assert_eq!([&old, &new].map(|hold| resource.write(&without(hold))), [fine; 2]);
        assert_eq!(resource.write(&without(&old)), Written { accepted: true, is_old: true });
    }
}
