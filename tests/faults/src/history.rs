//! What clients saw, and what must be true of it whatever happened in between.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A moment of this machine's monotonic clock, in microseconds: the same for all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(pub u64);

impl Moment {
    /// This one.
    pub fn now() -> Moment {
        let time = clock_gettime(ClockId::Monotonic);
        Moment(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000)
    }

    /// So many milliseconds later.
    pub fn after_ms(self, ms: u64) -> Moment {
        Moment(self.0 + ms * 1_000)
    }
}

/// A hold that somebody was granted, as its owner saw it. Every owner asks once, so a hold is one grant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// What is held.
    pub key: String,
    /// By whom.
    pub owner: String,
    /// Alone, or with other readers.
    pub writes: bool,
    /// The number it was given.
    pub fence: i64,
    /// The port of the server that granted it.
    pub node: u16,
    /// When the request was sent.
    pub asked: Moment,
    /// When the grant was read: the hold is known from here on.
    pub told: Moment,
    /// The earliest moment at which the lease can have ended.
    pub lease_ends: Moment,
    /// The last word on it, if there was one.
    pub release: Option<Release>,
}

/// A release that was sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Release {
    /// When it was sent: from here on the hold may be over.
    pub asked: Moment,
    /// Its answer, and when that was read; None when the connection was lost before.
    pub answer: Option<(Moment, Freed)>,
}

/// What a release was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freed {
    /// It was held, and is held no more.
    Left,
    /// It was not held: null.
    NotHeld,
}

/// Who held a key at some moment, as the server that serves it said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sighting {
    /// What is held.
    pub key: String,
    /// By whom.
    pub owners: BTreeSet<String>,
    /// The port of the server that said so.
    pub node: u16,
    /// When it was asked.
    pub asked: Moment,
    /// When it had answered.
    pub told: Moment,
}

/// Whether somebody in line was answered null before the time was up that he had given it, in milliseconds. Servers that count
/// whole ones may be that much off.
pub fn is_early(asked: Moment, told: Moment, ms: u64) -> bool {
    told.after_ms(1) < asked.after_ms(ms)
}

impl Grant {
    /// The moment until which it was held for certain.
    pub fn held_until(&self) -> Moment {
        self.release.map_or(self.lease_ends, |release| release.asked.min(self.lease_ends))
    }
}

/// Pairs that held the same key at once though one of them was a writer.
pub fn held_twice(grants: &[Grant]) -> Vec<(&Grant, &Grant)> {
    let mut pairs = Vec::new();
    for of_key in by_key(grants).into_values() {
        let mut pieces: Vec<&Grant> = of_key.into_iter().filter(|grant| grant.told < grant.held_until()).collect();
        pieces.sort_by_key(|grant| grant.told);
        let mut active: Vec<&Grant> = Vec::new();
        for grant in pieces {
            active.retain(|other| other.held_until() > grant.told);
            pairs.extend(active.iter().filter(|other| other.writes || grant.writes).map(|other| (*other, grant)));
            active.push(grant);
        }
    }
    pairs
}

/// Pairs of grants on one key of which the second was asked for after the first was told, and has no higher fence.
pub fn fences_back(grants: &[Grant]) -> Vec<(&Grant, &Grant)> {
    let mut pairs = Vec::new();
    for mut asked in by_key(grants).into_values() {
        let mut told = asked.clone();
        told.sort_by_key(|grant| grant.told);
        asked.sort_by_key(|grant| grant.asked);
        let mut told = told.into_iter().peekable();
        let mut highest: Option<&Grant> = None;
        for later in asked {
            while let Some(earlier) = told.next_if(|earlier| earlier.told < later.asked) {
                if highest.is_none_or(|highest| highest.fence < earlier.fence) {
                    highest = Some(earlier);
                }
            }
            pairs.extend(highest.filter(|earlier| earlier.fence >= later.fence).map(|earlier| (earlier, later)));
        }
    }
    pairs
}

/// Pairs of grants on one key that were given the same fence.
pub fn fences_repeated(grants: &[Grant]) -> Vec<(&Grant, &Grant)> {
    let mut pairs = Vec::new();
    for of_key in by_key(grants).into_values() {
        let mut first = BTreeMap::new();
        for grant in of_key {
            let known = *first.entry(grant.fence).or_insert(grant);
            if known.owner != grant.owner {
                pairs.push((known, grant));
            }
        }
    }
    pairs
}

/// Grants whose owner was told, while the lease ran for certain, that it does not hold.
pub fn lost(grants: &[Grant]) -> Vec<&Grant> {
    let denied = |grant: &&Grant| {
        let answer = grant.release.and_then(|release| release.answer);
        answer.is_some_and(|(told, freed)| freed == Freed::NotHeld && told < grant.lease_ends)
    };
    grants.iter().filter(denied).collect()
}

/// Holds that were not there when somebody looked, though the lease ran for certain and no release had been sent.
pub fn missing<'h>(grants: &'h [Grant], sightings: &'h [Sighting]) -> Vec<(&'h Grant, &'h Sighting)> {
    let mut keys: BTreeMap<&str, Vec<&Sighting>> = BTreeMap::new();
    for look in sightings {
        keys.entry(&look.key).or_default().push(look);
    }
    keys.values_mut().for_each(|looks| looks.sort_by_key(|look| look.asked));
    let first = |grant: &'h Grant| {
        let looks = keys.get(grant.key.as_str())?;
        let meanwhile = &looks[looks.partition_point(|look| look.asked <= grant.told)..];
        let mut meanwhile = meanwhile.iter().take_while(|look| look.asked < grant.held_until());
        let gone = |look: &&&Sighting| look.told < grant.held_until() && !look.owners.contains(&grant.owner);
        Some((grant, *meanwhile.find(gone)?))
    };
    grants.iter().filter_map(first).collect()
}

/// Holds that were there again, or still, when somebody looked, though their release had been acknowledged.
pub fn returned<'h>(grants: &'h [Grant], sightings: &'h [Sighting]) -> Vec<(&'h Grant, &'h Sighting)> {
    seen(grants, sightings, |grant, look| {
        let answer = grant.release.and_then(|release| release.answer);
        answer.is_some_and(|(told, freed)| freed == Freed::Left && told < look.asked)
    })
}

/// Holds that were there when somebody looked, though their lease had ended for so long.
pub fn overdue<'h>(grants: &'h [Grant], sightings: &'h [Sighting], ms: u64) -> Vec<(&'h Grant, &'h Sighting)> {
    seen(grants, sightings, |grant, look| {
        // The lease began between the request and its answer.
        let latest_end = Moment(grant.lease_ends.0 + (grant.told.0 - grant.asked.0)).after_ms(ms);
        latest_end < look.asked
    })
}

/// Each grant with the first look that shows its hold, and this of it.
fn seen<'h>(
    grants: &'h [Grant],
    sightings: &'h [Sighting],
    shows: impl Fn(&Grant, &Sighting) -> bool,
) -> Vec<(&'h Grant, &'h Sighting)> {
    let mut looks: BTreeMap<&str, Vec<&Sighting>> = BTreeMap::new();
    for look in sightings {
        look.owners.iter().for_each(|owner| looks.entry(owner).or_default().push(look));
    }
    let first = |grant: &'h Grant| {
        let looks = looks.get(grant.owner.as_str())?;
        Some((grant, *looks.iter().find(|look| look.key == grant.key && shows(grant, look))?))
    };
    grants.iter().filter_map(first).collect()
}

/// For how long both of a pair held, in milliseconds.
pub fn overlap_ms((one, other): (&Grant, &Grant)) -> u64 {
    one.held_until().min(other.held_until()).0.saturating_sub(one.told.max(other.told).0) / 1_000
}

fn by_key(grants: &[Grant]) -> BTreeMap<&str, Vec<&Grant>> {
    let mut keys: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
    for grant in grants {
        keys.entry(&grant.key).or_default().push(grant);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(owner: &str, writes: bool, fence: i64, asked: u64, told: u64, lease_ends: u64) -> Grant {
        let (asked, told, lease_ends) = (Moment(asked), Moment(told), Moment(lease_ends));
        Grant {
            key: "k".to_owned(),
            owner: owner.to_owned(),
            writes,
            fence,
            node: 1,
            asked,
            told,
            lease_ends,
            release: None,
        }
    }

    fn released(mut grant: Grant, asked: u64, told: u64, freed: Freed) -> Grant {
        grant.release = Some(Release { asked: Moment(asked), answer: Some((Moment(told), freed)) });
        grant
    }

    #[test]
    fn a_writer_beside_another_is_seen_and_readers_together_are_not() {
        let held = |first: bool, second: bool| {
            held_twice(&[grant("a", first, 1, 0, 10, 100), grant("b", second, 2, 5, 50, 150)]).len()
        };
        assert_eq!((held(true, true), held(true, false), held(false, true), held(false, false)), (1, 1, 1, 0));
        let left = released(grant("a", true, 1, 0, 10, 100), 40, 45, Freed::Left);
        assert!(held_twice(&[left, grant("b", true, 2, 5, 50, 150)]).is_empty());
    }

    #[test]
    fn fences_are_compared_only_where_one_was_told_before_the_other_was_asked_for() {
        let first = grant("a", true, 9, 0, 10, 20);
        assert_eq!(fences_back(&[first.clone(), grant("b", true, 8, 11, 30, 40)]).len(), 1);
        assert_eq!(fences_back(&[first.clone(), grant("b", true, 8, 9, 30, 40)]).len(), 0);
        assert_eq!(fences_back(&[first.clone(), grant("b", true, 10, 11, 30, 40)]).len(), 0);
        assert_eq!(fences_repeated(&[first.clone(), grant("b", true, 9, 9, 30, 40)]).len(), 1);
    }

    #[test]
    fn a_hold_is_lost_when_its_owner_is_denied_before_its_lease_can_have_ended() {
        let denied = |told| lost(&[released(grant("a", true, 1, 0, 10, 100), 50, told, Freed::NotHeld)]).len();
        assert_eq!((denied(99), denied(100)), (1, 0));
        assert!(lost(&[released(grant("a", true, 1, 0, 10, 100), 50, 60, Freed::Left)]).is_empty());
    }

    #[test]
    fn a_null_is_early_before_the_time_in_line_is_up() {
        let early = |told, ms| is_early(Moment(500), Moment(told), ms);
        assert_eq!((early(9_499, 10), early(9_500, 10), early(10_500, 10), early(500, 0)), (true, false, false, false));
    }

    #[test]
    fn a_look_shows_what_is_missing_what_has_returned_and_what_is_overdue() {
        let look = |owners: &[&str], at| {
            let owners = owners.iter().map(|owner| (*owner).to_owned()).collect();
            [Sighting { key: "k".to_owned(), owners, node: 1, asked: Moment(at), told: Moment(at + 1) }]
        };
        let held = [grant("a", true, 1, 0, 10, 5000)];
        let missed = |owners: &[&str], at| missing(&held, &look(owners, at)).len();
        assert_eq!((missed(&[], 11), missed(&["a"], 11), missed(&[], 9), missed(&[], 4999)), (1, 0, 0, 0));
        let left = [released(grant("a", true, 1, 0, 10, 5000), 20, 30, Freed::Left)];
        let back = |owners: &[&str], at| returned(&left, &look(owners, at)).len();
        assert_eq!((back(&["a"], 31), back(&["b"], 31), back(&["a"], 29)), (1, 0, 0));
        let late = |at| overdue(&held, &look(&["a"], at), 1).len();
        assert_eq!((late(6010), late(6011)), (0, 1));
    }

    #[test]
    fn two_hold_together_from_the_later_grant_to_the_first_end() {
        let (one, other) = (grant("a", true, 1, 0, 10_000, 90_000), grant("b", true, 2, 0, 30_000, 99_000));
        assert_eq!(overlap_ms((&one, &other)), 60);
    }
}
