//! What clients saw. They tell it bit by bit, and say what they are about to ask for before they ask, so that what they
//! told is right also when they are killed at any moment.

use crate::breaks::Break;
use crate::history::{Grant, Maybe, Moment, Stay};
use crate::linear::{Event, What};
use crate::places::Place;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What one client saw, or all of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Saw {
    pub events: BTreeMap<String, Vec<Event>>,
    /// Stretches for which a hold was certain: one for each lease and mode.
    pub pieces: Vec<Grant>,
    /// New holds, with their fences.
    pub grants: Vec<Grant>,
    /// Owners of which it is not certain when they held: a connection was lost during a request, or they were offered
    /// the lock before they knew.
    pub uncertain: BTreeSet<String>,
    pub counts: BTreeMap<String, u64>,
    /// Requests that had no answer in time.
    pub forgotten: Vec<String>,
    /// Requests that were answered null before their timeout.
    pub too_early: Vec<String>,
    /// Owners that were offered a lock, and were not told.
    pub untold: Vec<String>,
    /// Waits that were answered.
    pub stays: Vec<Stay>,
    /// When owners may have held.
    pub maybes: Vec<Maybe>,
    /// Owners that hold nothing any more from then on.
    pub ends: BTreeMap<String, Moment>,
    /// All owners that asked for a new hold, with QUEUE or without.
    pub places: Vec<Place>,
    pub open: BTreeMap<String, Open>,
    /// Owners that will never ask again.
    pub over: Vec<String>,
    pub failed: Vec<String>,
}

/// An owner that holds, or asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Open {
    pub key: String,
    /// A request is under way since then.
    pub asks: Option<Moment>,
    pub bound: Option<Bound>,
}

/// What SESSION binds a hold to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Bound {
    /// The time that is left when the connection closes.
    pub ms: u64,
    /// The connection was open at this moment.
    pub alive: Moment,
    /// The hold is the one that was bound: it did not end meanwhile and begin anew.
    pub sure: bool,
}

impl Bound {
    /// When the hold can have ended first. The server counts whole milliseconds.
    pub fn earliest(&self) -> Moment {
        self.alive.after_ms(self.ms - 1)
    }

    /// When it has ended, if the server knew then that the connection was closed.
    pub fn latest(&self, closed: Moment) -> Moment {
        closed.after_ms(self.ms + 1)
    }
}

impl Saw {
    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    pub fn note(&mut self, key: &str, asked: Moment, told: Moment, owner: &str, what: What) {
        let event = Event { asked, told, owner: owner.to_owned(), what };
        self.events.entry(key.to_owned()).or_default().push(event);
    }

    /// Adds what another client saw, or what this one saw next.
    pub fn add(&mut self, other: Saw) {
        for (key, events) in other.events {
            self.events.entry(key).or_default().extend(events);
        }
        self.pieces.extend(other.pieces);
        self.grants.extend(other.grants);
        self.uncertain.extend(other.uncertain);
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.forgotten.extend(other.forgotten);
        self.too_early.extend(other.too_early);
        self.untold.extend(other.untold);
        self.stays.extend(other.stays);
        self.maybes.extend(other.maybes);
        self.ends.extend(other.ends);
        self.places.extend(other.places);
        self.open.extend(other.open);
        for owner in other.over {
            self.open.remove(&owner);
        }
        self.failed.extend(other.failed);
    }

    /// The process of the owners with this prefix was killed. Nothing that it sent happens after `closed`, when the
    /// server had closed all its connections. A request that was under way then may have been granted, for a time of
    /// `most_ms` milliseconds at most. Returns how many owners held.
    pub fn killed(&mut self, prefix: &str, closed: Moment, most_ms: u64) -> u64 {
        let of_process: Vec<String> = self.open.keys().filter(|owner| owner.starts_with(prefix)).cloned().collect();
        let mut held = 0;
        for owner in of_process {
            let Some(Open { key, asks, bound }) = self.open.remove(&owner) else { continue };
            held += u64::from(asks.is_none());
            if bound.is_some_and(|bound| !bound.sure) {
                // If it is a new hold it outlives the connection.
                self.uncertain.insert(owner.clone());
            }
            if let Some(asked) = asks {
                self.uncertain.insert(owner.clone());
                let until = closed.after_ms(most_ms);
                let maybe = Maybe { key: key.clone(), owner: owner.clone(), asked, told: asked, until };
                self.maybes.push(maybe);
            }
            // Whatever it held may be over since then, or is, with its session.
            let told = if asks.is_some() { closed } else { bound.map_or(closed, |bound| bound.latest(closed)) };
            if let Some(first) = asks.into_iter().chain(bound.map(|bound| bound.earliest())).min() {
                self.note(&key, first, told.max(first), &owner, What::Gone);
            }
        }
        held
    }

    /// An operator ended so many holds.
    pub fn broken(&mut self, broken: &Break, ended: u32) {
        let Break { key, owner, asked, told } = broken;
        let all = owner.is_none();
        self.note(key, *asked, *told, owner.as_deref().unwrap_or_default(), What::Broken { all, ended });
    }

    /// When owners may have held, as far as they did not say that it was over before.
    pub fn maybes(&self) -> Vec<Maybe> {
        let end = |maybe: &Maybe| self.ends.get(&maybe.owner).map_or(maybe.until, |end| maybe.until.min(*end));
        self.maybes.iter().map(|maybe| Maybe { until: end(maybe), ..maybe.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_owner_holds_on_unless_it_was_asking_or_its_session_ends() {
        let ms = |ms: u64| Moment(ms * 1_000);
        let after = |asks: Option<u64>, bound: Option<(u64, bool)>| {
            let bound = bound.map(|(alive, sure)| Bound { ms: 100, alive: ms(alive), sure });
            let open = Open { key: "k".to_owned(), asks: asks.map(ms), bound };
            let mut saw = Saw { open: BTreeMap::from([("c1.a".to_owned(), open)]), ..Saw::default() };
            assert_eq!((saw.killed("c2.", ms(50), 1_000), saw.events.len()), (0, 0), "those of another process");
            let held = saw.killed("c1.", ms(50), 1_000);
            let windows = saw.events.values().flatten().map(|event| (event.asked.0 / 1_000, event.told.0 / 1_000));
            (held, windows.collect::<Vec<_>>(), saw.uncertain.len(), saw.maybes.len())
        };
        assert_eq!(after(None, None), (1, vec![], 0, 0), "for as long as its lease");
        assert_eq!(after(Some(40), None), (0, vec![(40, 50)], 1, 1));
        assert_eq!(after(None, Some((20, true))), (1, vec![(119, 151)], 0, 0));
        assert_eq!(after(None, Some((20, false))), (1, vec![(119, 151)], 1, 0), "or it is a new hold");
        assert_eq!(after(Some(40), Some((20, true))), (0, vec![(40, 50)], 1, 1));
    }
}
