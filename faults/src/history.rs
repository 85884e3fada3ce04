//! What clients saw, and what must be true of it whatever happened in between.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A moment of this machine's monotonic clock, in microseconds: the same for all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(pub u64);

impl Moment {
    pub fn now() -> Moment {
        let time = clock_gettime(ClockId::Monotonic);
        Moment(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000)
    }

    pub fn after_ms(self, ms: u64) -> Moment {
        Moment(self.0 + ms * 1_000)
    }
}

/// A hold that was granted, as its owner saw it. Every owner requests once, so a hold is one grant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub key: String,
    pub owner: String,
    /// Alone, or with other readers.
    pub writes: bool,
    pub fence: i64,
    /// The port of the server that granted it.
    pub node: u16,
    pub asked: Moment,
    /// When the grant was read: the hold is known from here on.
    pub told: Moment,
    /// The earliest moment at which the lease can have ended.
    pub lease_ends: Moment,
    pub release: Option<Release>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Release {
    /// When it was sent: from here on the hold may be over.
    pub asked: Moment,
    /// Its answer, and when that was read; None when the connection was lost before.
    pub answer: Option<(Moment, Freed)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freed {
    /// It was held, and is held no more.
    Left,
    /// It was not held: null.
    NotHeld,
}

/// A request with a timeout, and with an answer: a grant, or null.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stay {
    pub key: String,
    pub owner: String,
    pub asked: Moment,
    pub told: Moment,
}

/// A stretch in which an owner may have held a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Maybe {
    pub key: String,
    pub owner: String,
    pub asked: Moment,
    /// When the grant was read. Where it is not known whether there was one, or when: the moment of its request.
    pub told: Moment,
    /// The latest moment at which it can have ended, if the server does what it must.
    pub until: Moment,
}

/// A stretch in which a process that takes part in it did not run. No two of them overlap.
#[derive(Clone, Debug)]
pub struct Stop {
    /// The prefix of the names of the owners that it concerns; empty if it concerns all, and the server.
    pub whose: String,
    pub from: Moment,
    pub to: Moment,
}

/// The holders of a key at some moment, as the server that serves it said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sighting {
    pub key: String,
    pub owners: BTreeSet<String>,
    /// The port of the server that said so.
    pub node: u16,
    pub asked: Moment,
    pub told: Moment,
}

/// Whether a waiter was answered null before its timeout, in milliseconds. Servers that count whole ones may be that
/// much off.
pub fn is_early(asked: Moment, told: Moment, ms: u64) -> bool {
    told.after_ms(1) < asked.after_ms(ms)
}

impl Grant {
    /// The moment until which it was held for certain.
    pub fn held_until(&self) -> Moment {
        self.release.map_or(self.lease_ends, |release| release.asked.min(self.lease_ends))
    }
}

/// Waiters that stay in the queue while no owner can have held the key. The first waiter is granted at once, so there
/// must be a holder at every moment. What happens at once is known outside within `prompt_ms` milliseconds in which the
/// processes concerned run.
pub fn passed_over<'h>(stays: &'h [Stay], maybes: &[Maybe], stops: &[Stop], prompt_ms: u64) -> Vec<&'h Stay> {
    let mut stops = stops.to_vec();
    stops.sort_by_key(|stop| stop.from);
    let mut held: BTreeMap<&str, Vec<(Moment, Moment)>> = BTreeMap::new();
    for maybe in maybes {
        let from = maybe.asked.max(running_before(&stops, &maybe.owner, maybe.told, prompt_ms));
        held.entry(&maybe.key).or_default().push((from, running_after(&stops, "", maybe.until, prompt_ms)));
    }
    held.values_mut().for_each(|spans| spans.sort_unstable());
    let alone = |stay: &&Stay| {
        // In the queue for certain from here to there.
        let mut from = running_after(&stops, &stay.owner, stay.asked, prompt_ms);
        let to = running_before(&stops, &stay.owner, stay.told, prompt_ms);
        for (begin, end) in held.get(stay.key.as_str()).into_iter().flatten() {
            if *begin <= from {
                from = from.max(*end);
            }
        }
        from < to
    };
    stays.iter().filter(alone).collect()
}

/// When this owner will have run for so many milliseconds; the empty name is the server's.
fn running_after(stops: &[Stop], owner: &str, at: Moment, ms: u64) -> Moment {
    let ends = |end: Moment, stop: &Stop| {
        if stop.from < end && stop.to > at { Moment(end.0 + stop.to.0 - stop.from.max(at).0) } else { end }
    };
    stops.iter().filter(|stop| owner.starts_with(&stop.whose)).fold(at.after_ms(ms), ends)
}

/// Since when it has run for so many milliseconds.
fn running_before(stops: &[Stop], owner: &str, at: Moment, ms: u64) -> Moment {
    let begins = |begin: Moment, stop: &Stop| {
        let stopped = stop.to.min(at).0.saturating_sub(stop.from.0);
        if stop.to > begin && stop.from < at { Moment(begin.0.saturating_sub(stopped)) } else { begin }
    };
    let begin = Moment(at.0.saturating_sub(ms * 1_000));
    stops.iter().rev().filter(|stop| owner.starts_with(&stop.whose)).fold(begin, begins)
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

/// Pairs of grants on one key where the second is requested after the first one's reply, and has no higher fence.
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

/// Grants whose owner was answered, while the lease ran for certain, that it does not hold.
pub fn lost(grants: &[Grant]) -> Vec<&Grant> {
    let denied = |grant: &&Grant| {
        let answer = grant.release.and_then(|release| release.answer);
        answer.is_some_and(|(told, freed)| freed == Freed::NotHeld && told < grant.lease_ends)
    };
    grants.iter().filter(denied).collect()
}

/// Holds that a read of the lock did not show, though the lease ran for certain and no release had been sent.
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

/// Holds that a read of the lock showed again, or still, though their release had been acknowledged.
pub fn returned<'h>(grants: &'h [Grant], sightings: &'h [Sighting]) -> Vec<(&'h Grant, &'h Sighting)> {
    seen(grants, sightings, |grant, look| {
        let answer = grant.release.and_then(|release| release.answer);
        answer.is_some_and(|(told, freed)| freed == Freed::Left && told < look.asked)
    })
}

/// Holds that a read of the lock showed, though their lease had ended for so long. A read itself leaves out what is
/// over. So this finds leases that end too late, by a wrong clock or a wrong deadline. It does not find a timer that
/// does not ring: the waiters show that ([`passed_over`]).
pub fn overdue<'h>(grants: &'h [Grant], sightings: &'h [Sighting], ms: u64) -> Vec<(&'h Grant, &'h Sighting)> {
    seen(grants, sightings, |grant, look| {
        // The lease began between the request and its answer.
        let latest_end = Moment(grant.lease_ends.0 + (grant.told.0 - grant.asked.0)).after_ms(ms);
        latest_end < look.asked
    })
}

/// Each grant with the first read that shows its hold, and that shows this of it.
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
    fn somebody_in_line_is_passed_over_where_nobody_can_hold() {
        let (key, owner) = ("k".to_owned(), "a".to_owned());
        let maybe = |asked: u64, told: u64, until: u64| {
            let [asked, told, until] = [asked, told, until].map(|ms| Moment(ms * 1_000));
            Maybe { key: key.clone(), owner: owner.clone(), asked, told, until }
        };
        let stay = Stay { key: key.clone(), owner: owner.clone(), asked: Moment(0), told: Moment(1_000_000) };
        let alone =
            |maybes: &[Maybe], stops: &[Stop]| !passed_over(std::slice::from_ref(&stay), maybes, stops, 100).is_empty();
        assert!(alone(&[], &[]));
        assert!(!alone(&[maybe(0, 0, 800)], &[]), "what follows a hold takes its time");
        assert!(alone(&[maybe(0, 0, 799)], &[]));
        assert!(!alone(&[maybe(0, 0, 300), maybe(0, 500, 900)], &[]), "one after the other");
        assert!(
            alone(&[maybe(0, 0, 300), maybe(0, 501, 900)], &[]),
            "too long between them, whenever it was asked for"
        );
        assert!(!alone(&[maybe(0, 0, 300), maybe(350, 350, 900)], &[]));
        assert!(alone(&[Maybe { key: "other".to_owned(), ..maybe(0, 0, 900) }], &[]));
        // The hold ends at 300, which is known at 400; the waiter gets its reply at 1000, and may have been granted
        // from 900 on.
        let stopped = |whose: &str, from: u64, to: u64| {
            [Stop { whose: whose.to_owned(), from: Moment(from * 1_000), to: Moment(to * 1_000) }]
        };
        let held = [maybe(0, 0, 300)];
        assert!(!alone(&held, &stopped("", 350, 850)));
        assert!(alone(&held, &stopped("", 350, 849)));
        assert!(alone(&held, &stopped("b", 350, 850)), "somebody else");
        assert!(!alone(&held, &stopped("a", 350, 960)), "answered at 290 at the earliest");
        assert!(alone(&held, &stopped("a", 480, 960)), "answered at 420 at the earliest");
        let other = |told| Maybe { owner: "b".to_owned(), ..maybe(0, told, 1_900) };
        assert!(alone(&[maybe(0, 0, 300), other(800)], &[]));
        assert!(!alone(&[maybe(0, 0, 300), other(800)], &stopped("b", 450, 790)), "let in before, and told later");
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
