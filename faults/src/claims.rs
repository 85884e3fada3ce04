//! What clients of one lock service claim to hold, while its primaries come and go. All moments are microseconds of
//! `CLOCK_BOOTTIME`.
//!
//! A claim is one answer of a server on which a client relies: a grant or an extension. Failovers lose the last
//! answers of a primary. Which ones, the servers' own order says: a heart writes numbered beats to the primary all the
//! time. The beats that the successor has are a prefix: what was answered before the last of them was sent survived.
//! From there to the moment when the former primary surely granted nothing more, answers may be lost: a window.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Write,
    Read,
    /// So many shares of a limit.
    Share(u32, u32),
}

/// An answer on which a client relies.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub hold: usize,
    /// When the request was sent, at the earliest.
    pub asked: u64,
    /// When the answer was known, at the latest.
    pub told: u64,
    /// From here on the client was sure.
    pub from: u64,
    pub until: u64,
}

#[derive(Clone, Debug)]
pub struct Hold {
    /// Its client and number, for people.
    pub name: String,
    pub key: String,
    pub mode: Mode,
    pub fence: u64,
    /// When the lock was asked for, and when the client had it.
    pub granted: (u64, u64),
}

/// Answers of a primary that were given meanwhile may be lost, or not true any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// What was answered before this survived.
    pub start: u64,
    /// No former primary granted anything after this.
    pub end: u64,
}

impl Window {
    fn touches(&self, asked: u64, told: u64) -> bool {
        told >= self.start && asked <= self.end
    }
}

pub fn wrong(holds: &[Hold], claims: &[Claim], windows: &[Window]) -> Vec<String> {
    let sure = |asked, told| !windows.iter().any(|window| window.touches(asked, told));
    let mut by_key: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.from < claim.until) {
        by_key.entry(&holds[claim.hold].key).or_default().push(claim);
    }
    let mut found = Vec::new();
    for claims in by_key.values_mut() {
        claims.sort_by_key(|claim| claim.from);
        fences_back(holds, claims, &sure, &mut found);
        claims.retain(|claim| sure(claim.asked, claim.told));
        held_twice(holds, claims, &mut found);
        held_after_a_later_one(holds, claims, &sure, &mut found);
    }
    found
}

/// Holds that were gone before their leases were over, in words. Each is the last claim of a hold, `told` when its
/// release was refused, within its validity. Only a failover since then explains it.
pub fn gone(holds: &[Hold], refused: &[Claim], windows: &[Window]) -> Vec<String> {
    let since = |claim: &Claim| windows.iter().any(|window| window.touches(claim.asked, claim.told));
    let wrong = refused.iter().filter(|claim| claim.told < claim.until && !since(claim));
    wrong.map(|claim| format!("gone before its time: {}", at(&holds[claim.hold], claim))).collect()
}

/// Claims that no failover explains, and that exclude each other.
fn held_twice(holds: &[Hold], claims: &[&Claim], found: &mut Vec<String>) {
    let mut open: Vec<&Claim> = Vec::new();
    // One cause is told once for each pair of holds.
    let mut told = BTreeSet::new();
    for &claim in claims {
        open.retain(|other| other.until > claim.from);
        let hold = &holds[claim.hold];
        let mut shares: BTreeMap<usize, u32> = BTreeMap::new();
        for other in open.iter().filter(|other| other.hold != claim.hold) {
            let rival = &holds[other.hold];
            if let (Mode::Share(take, _), Mode::Share(..)) = (rival.mode, hold.mode) {
                shares.insert(other.hold, take);
            } else if (hold.mode == Mode::Write || rival.mode == Mode::Write) && told.insert((other.hold, claim.hold)) {
                found.push(format!("held twice: {} and {}", at(rival, other), at(hold, claim)));
            }
        }
        if let Mode::Share(take, limit) = hold.mode {
            let sum = take + shares.values().sum::<u32>();
            if sum > limit {
                let others: Vec<&str> = shares.keys().map(|number| holds[*number].name.as_str()).collect();
                found.push(format!("{sum} shares of {limit}: {} beside {others:?}", at(hold, claim)));
            }
        }
        open.push(claim);
    }
}

/// The holds with the highest fences so far: of all, and of those that write.
#[derive(Default)]
struct Highest<'h> {
    any: Option<&'h Hold>,
    writer: Option<&'h Hold>,
}

impl<'h> Highest<'h> {
    fn note(&mut self, hold: &'h Hold) {
        let is_higher = |than: Option<&Hold>| than.is_none_or(|than| hold.fence > than.fence);
        if is_higher(self.any) {
            self.any = Some(hold);
        }
        if hold.mode == Mode::Write && is_higher(self.writer) {
            self.writer = Some(hold);
        }
    }

    /// The highest of those that exclude this one.
    fn excluding(&self, hold: &Hold) -> Option<&'h Hold> {
        if hold.mode == Mode::Write { self.any } else { self.writer }
    }
}

/// Holds whose fences are not above those of all that exclude them and were held before. Only a deposed primary may
/// grant such a hold.
fn fences_back(holds: &[Hold], claims: &[&Claim], sure: &dyn Fn(u64, u64) -> bool, found: &mut Vec<String>) {
    let (mut highest, mut seen) = (Highest::default(), BTreeSet::new());
    for claim in claims {
        if !seen.insert(claim.hold) {
            continue;
        }
        let hold = &holds[claim.hold];
        let before = highest.excluding(hold).filter(|before| before.fence >= hold.fence);
        if let Some(before) = before.filter(|_| sure(hold.granted.0, hold.granted.1)) {
            found.push(format!("a fence not above a former one: {before:?}, then {hold:?}"));
        }
        highest.note(hold);
    }
}

/// Answers to holders that were asked for after a hold which excludes theirs was granted later, under a higher fence.
fn held_after_a_later_one(holds: &[Hold], claims: &[&Claim], sure: &dyn Fn(u64, u64) -> bool, found: &mut Vec<String>) {
    let mut granted: Vec<usize> = claims.iter().map(|claim| claim.hold).collect();
    granted.sort_by_key(|number| holds[*number].granted.1);
    granted.retain(|number| sure(holds[*number].granted.0, holds[*number].granted.1));
    let mut granted = granted.into_iter().map(|number| &holds[number]).peekable();
    let mut claims = claims.to_vec();
    claims.sort_by_key(|claim| claim.asked);
    let (mut highest, mut told) = (Highest::default(), BTreeSet::new());
    for claim in claims {
        while let Some(next) = granted.next_if(|next| next.granted.1 <= claim.asked) {
            highest.note(next);
        }
        let hold = &holds[claim.hold];
        if let Some(later) = highest.excluding(hold).filter(|later| later.fence > hold.fence)
            && told.insert(claim.hold)
        {
            found.push(format!("held after a later one: {}, and before it {later:?}", at(hold, claim)));
        }
    }
}

fn at(hold: &Hold, claim: &Claim) -> String {
    let Claim { asked, told, from, until, .. } = claim;
    format!("{hold:?} (answer asked {asked}, told {told}; relied on from {from} until {until})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(mode: Mode, fence: u64, granted: (u64, u64)) -> Hold {
        Hold { name: format!("c{fence}"), key: "k".to_owned(), mode, fence, granted }
    }

    fn claim(hold: usize, asked: u64, told: u64, until: u64) -> Claim {
        Claim { hold, asked, told, from: told, until }
    }

    fn two(mode: Mode, windows: &[Window]) -> usize {
        let holds = [hold(mode, 1, (10, 20)), hold(mode, 2, (30, 40))];
        wrong(&holds, &[claim(0, 10, 20, 90), claim(1, 30, 40, 80)], windows).len()
    }

    #[test]
    fn claims_that_exclude_each_other_are_seen() {
        assert_eq!((two(Mode::Write, &[]), two(Mode::Read, &[])), (1, 0));
        assert_eq!((two(Mode::Share(1, 2), &[]), two(Mode::Share(2, 3), &[])), (0, 1));
    }

    #[test]
    fn a_failover_explains_a_claim_that_was_answered_in_its_window_and_no_other() {
        let of = |start, end| two(Mode::Write, &[Window { start, end }]);
        assert_eq!((of(15, 25), of(35, 50), of(20, 20)), (0, 0, 0));
        assert_eq!((of(21, 29), of(41, 99)), (1, 1));
    }

    #[test]
    fn an_extension_after_the_window_counts_again() {
        let holds = [hold(Mode::Write, 1, (10, 20)), hold(Mode::Write, 2, (30, 40))];
        let claims = [claim(0, 10, 20, 50), claim(1, 30, 40, 80), claim(0, 60, 61, 90), claim(1, 62, 63, 95)];
        let window = Window { start: 15, end: 45 };
        assert_eq!(wrong(&holds, &claims, &[window]).len(), 1, "both were extended by the same server");
    }

    #[test]
    fn a_hold_that_goes_on_after_a_later_one_is_seen_though_they_never_overlap() {
        let after = |first, second, asked, windows: &[Window]| {
            let holds = [hold(first, 1, (10, 20)), hold(second, 2, (30, 40))];
            let claims = [claim(0, 10, 20, 25), claim(1, 30, 40, 50), claim(0, asked, 80, 90)];
            wrong(&holds, &claims, windows).len()
        };
        assert_eq!(after(Mode::Write, Mode::Write, 70, &[]), 1);
        assert_eq!((after(Mode::Read, Mode::Write, 70, &[]), after(Mode::Write, Mode::Read, 70, &[])), (1, 1));
        assert_eq!(
            (after(Mode::Read, Mode::Read, 70, &[]), after(Mode::Share(1, 2), Mode::Share(2, 2), 70, &[])),
            (0, 0)
        );
        assert_eq!(after(Mode::Write, Mode::Write, 35, &[]), 0, "the server may have answered before the other grant");
        let deposed = Window { start: 35, end: 45 };
        assert_eq!(after(Mode::Write, Mode::Write, 70, &[deposed]), 0, "a deposed primary granted the other one");
    }

    #[test]
    fn a_hold_that_is_gone_within_its_validity_is_seen_unless_a_failover_came_since() {
        let holds = [hold(Mode::Write, 1, (10, 20))];
        let gone = |told, windows: &[Window]| gone(&holds, &[claim(0, 10, told, 90)], windows).len();
        assert_eq!((gone(80, &[]), gone(90, &[])), (1, 0));
        let window = |start, end| gone(80, &[Window { start, end }]);
        assert_eq!((window(5, 9), window(5, 15), window(40, 50), window(81, 85)), (1, 0, 0, 1));
    }

    #[test]
    fn a_fence_that_is_not_above_those_of_former_holds_is_seen() {
        let back = |first, second, windows: &[Window]| {
            let holds = [hold(first, 7, (10, 20)), hold(second, 7, (50, 60))];
            wrong(&holds, &[claim(0, 10, 20, 30), claim(1, 50, 60, 80)], windows).len()
        };
        assert_eq!(back(Mode::Write, Mode::Write, &[]), 1);
        assert_eq!((back(Mode::Write, Mode::Read, &[]), back(Mode::Read, Mode::Write, &[])), (1, 1));
        assert_eq!(back(Mode::Read, Mode::Read, &[]), 0);
        let (deposed, before) = (Window { start: 40, end: 55 }, Window { start: 5, end: 25 });
        assert_eq!((back(Mode::Write, Mode::Write, &[deposed]), back(Mode::Write, Mode::Write, &[before])), (0, 1));
    }
}
