//! Shares of locks: what their owners, an operator and the server saw, and what must be true of it.
//!
//! An owner surely holds from the answer that told it so until it asks for the end, or until the lease can have ended.
//! So a busy machine, or a process that is stopped, makes a judgement milder, and never wrong.

use crate::history::{Grant, Moment};
use crate::places::{Place, out_of_order};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A stretch in which an owner surely held so much.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Piece {
    /// What is held.
    pub key: String,
    /// Its owner.
    pub owner: String,
    /// The number of the hold.
    pub fence: i64,
    /// When the hold was asked for.
    pub since: Moment,
    /// Whether it is held for writing; then there are no counts.
    pub writes: bool,
    /// How many read counts it has at least.
    pub counts: u32,
    /// The request that raised the counts to this, or above it.
    pub raise: Raise,
    /// Whether the piece begins with that request.
    pub raised: bool,
    /// From when it is sure.
    pub from: Moment,
    /// When the lease can have ended first, or the session.
    pub until: Moment,
    /// Something that ends or changes it was asked for then, if it was.
    pub changed: Option<Moment>,
    /// Its owner was told then that it holds nothing.
    pub denied: Option<Moment>,
}

/// A granted request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Raise {
    /// It was granted at this moment or later.
    pub asked: Moment,
    /// It was granted by then.
    pub told: Moment,
    /// How many shares there might be at its grant; None if it named no limit.
    pub limit: Option<u32>,
}

/// An answer to a release.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Returned {
    /// What was held.
    pub key: String,
    /// By whom.
    pub owner: String,
    /// How many counts its owner knows to be left.
    pub expected: u32,
    /// How many the server says are left.
    pub left: i64,
    /// The counts were taken by a request that was repeated.
    pub repeated: bool,
}

/// An operator's LOCK.BREAK.
#[derive(Clone, Debug)]
pub struct Break {
    /// Of which key.
    pub key: String,
    /// Whose hold; None for all.
    pub owner: Option<String>,
    /// When it was sent.
    pub asked: Moment,
    /// When it was answered.
    pub told: Moment,
}

/// A lock as the server showed it.
#[derive(Clone, Debug)]
pub struct Look {
    /// Which.
    pub key: String,
    /// When the server was asked.
    pub asked: Moment,
    /// When it had answered.
    pub told: Moment,
    /// Each holder with its read counts, and whether it writes.
    pub holders: Vec<(String, u64, bool)>,
    /// Those that wait.
    pub waiters: BTreeSet<String>,
}

/// What a client tells of itself, line by line, so that what it saw outlives it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Line {
    /// It holds something from now on.
    Begins(Piece),
    /// It is about to ask for something that ends or changes what this owner holds.
    Changes(String, Moment),
    /// This owner was told that it holds nothing.
    Denied(String, Moment),
    /// A release was answered.
    Returned(Returned),
    /// How a request for a new hold went.
    Stood(Place),
    /// A request had no answer in time.
    Forgotten(String),
    /// It panicked, as over an error that no request of its kind may get.
    Failed(String),
    /// Something happened.
    Count(String),
}

/// What clients told.
#[derive(Debug, Default)]
pub struct Saw {
    /// What they held.
    pub pieces: Vec<Piece>,
    /// What they gave back.
    pub returned: Vec<Returned>,
    /// How they came to hold.
    pub places: Vec<Place>,
    /// Requests that had no answer in time.
    pub forgotten: Vec<String>,
    /// Why clients panicked.
    pub failed: Vec<String>,
    /// How often something happened.
    pub counts: BTreeMap<String, u64>,
    /// The last piece of each owner.
    last: BTreeMap<String, usize>,
}

impl Saw {
    /// Adds what a client told next.
    pub fn add(&mut self, line: Line) {
        match line {
            Line::Begins(piece) => {
                self.last.insert(piece.owner.clone(), self.pieces.len());
                self.pieces.push(piece);
            }
            Line::Changes(owner, at) => self.pieces[self.last[&owner]].changed = Some(at),
            Line::Denied(owner, at) => self.pieces[self.last[&owner]].denied = Some(at),
            Line::Returned(returned) => self.returned.push(returned),
            Line::Stood(place) => self.places.push(place),
            Line::Forgotten(request) => self.forgotten.push(request),
            Line::Failed(what) => self.failed.push(what),
            Line::Count(what) => *self.counts.entry(what).or_default() += 1,
        }
    }
}

impl Piece {
    /// The moment until which it is sure.
    pub fn sure_until(&self) -> Moment {
        self.changed.map_or(self.until, |changed| changed.min(self.until))
    }

    fn is_sure_at(&self, at: Moment) -> bool {
        self.from <= at && at < self.sure_until()
    }
}

/// The pieces, as far as they are sure though an operator ended holds.
pub fn but_for_breaks(mut pieces: Vec<Piece>, breaks: &[Break]) -> Vec<Piece> {
    for piece in &mut pieces {
        let concerns = |broken: &&Break| {
            broken.key == piece.key
                && broken.owner.as_ref().is_none_or(|owner| *owner == piece.owner)
                && piece.since < broken.told
        };
        let first = breaks.iter().filter(concerns).map(|broken| broken.asked).min();
        piece.until = first.map_or(piece.until, |asked| asked.min(piece.until));
    }
    pieces
}

/// Grants by which there were more shares than their request allows. At each moment in which the grant can lie, others
/// surely have too many. Also says how many grants just filled the lock: a limit that is one too high shows in these.
pub fn granted_above(pieces: &[Piece]) -> (u64, Vec<(&Piece, u32)>) {
    let (mut full, mut found) = (0, Vec::new());
    for of_key in by_key(pieces).into_values() {
        for piece in of_key.iter().filter(|piece| piece.raised) {
            let Some(limit) = piece.raise.limit else { continue };
            let sum = piece.counts + least_beside(piece, &of_key);
            full += u64::from(sum == limit && sum > piece.counts);
            if sum > limit {
                found.push((*piece, sum));
            }
        }
    }
    (full, found)
}

/// The fewest counts that others surely had at any moment at which the piece's request can have been granted.
fn least_beside(piece: &Piece, of_key: &[&Piece]) -> u32 {
    let Raise { asked, told, .. } = piece.raise;
    let beside = |other: &&&Piece| other.owner != piece.owner && other.from <= told && other.sure_until() > asked;
    let others: Vec<&Piece> = of_key.iter().filter(beside).copied().collect();
    let sum = |at: Moment| others.iter().filter(|other| other.is_sure_at(at)).map(|other| other.counts).sum();
    // The sum falls only where a piece ends.
    let ends = others.iter().map(|other| other.sure_until()).filter(|end| *end <= told);
    ends.chain([asked]).map(sum).min().unwrap_or_default()
}

/// Moments at which owners surely have more shares together than any request allows that can have been the last to be
/// granted among theirs. This judges also what was granted after a wait. Also says how often the sum was as high as it
/// may be.
pub fn above_limit(pieces: &[Piece]) -> (u64, Vec<(&Piece, u32)>) {
    let (mut full, mut found) = (0, Vec::new());
    for of_key in by_key(pieces).into_values() {
        for piece in &of_key {
            if piece.from >= piece.sure_until() {
                continue;
            }
            let held: Vec<&&Piece> = of_key.iter().filter(|other| other.is_sure_at(piece.from)).collect();
            let sum: u32 = held.iter().map(|other| other.counts).sum();
            let last_asked = held.iter().map(|other| other.raise.asked).max();
            let may_be_last = held.iter().filter(|other| Some(other.raise.told) >= last_asked);
            let limits: Option<Vec<u32>> = may_be_last.map(|other| other.raise.limit).collect();
            let Some(limit) = limits.and_then(|limits| limits.into_iter().max()) else { continue };
            full += u64::from(sum == limit && held.len() > 1);
            if sum > limit {
                found.push((*piece, sum));
            }
        }
    }
    (full, found)
}

/// Pairs that held the same key at once though one of them was a writer.
pub fn beside_writers(pieces: &[Piece]) -> Vec<(&Piece, &Piece)> {
    let mut pairs = Vec::new();
    for of_key in by_key(pieces).into_values() {
        for writer in of_key.iter().filter(|piece| piece.writes) {
            let beside = |other: &&&Piece| {
                other.owner != writer.owner && other.from.max(writer.from) < other.sure_until().min(writer.sure_until())
            };
            pairs.extend(of_key.iter().filter(beside).map(|other| (*writer, *other)));
        }
    }
    pairs
}

/// Holds whose owner was told, while they were sure, that it holds nothing.
pub fn lost(pieces: &[Piece]) -> Vec<&Piece> {
    pieces.iter().filter(|piece| piece.denied.is_some_and(|told| told < piece.until)).collect()
}

/// Releases that left another count than there should be.
pub fn miscounted(returned: &[Returned]) -> Vec<&Returned> {
    returned.iter().filter(|returned| returned.left != i64::from(returned.expected)).collect()
}

/// Looks that show more shares than any request for their key allows, or a writer beside another holder. Also says how
/// many showed as many shares as there may be.
pub fn crowded<'h>(looks: &'h [Look], limits: &BTreeMap<String, u64>) -> (u64, Vec<&'h Look>) {
    let sum = |look: &Look| look.holders.iter().map(|(_, reads, _)| reads).sum::<u64>();
    let full = looks.iter().filter(|look| limits.get(&look.key) == Some(&sum(look))).count() as u64;
    let is_crowded = |look: &&Look| {
        let above = limits.get(&look.key).is_some_and(|limit| sum(look) > *limit);
        above || (look.holders.len() > 1 && look.holders.iter().any(|(_, _, writes)| *writes))
    };
    (full, looks.iter().filter(is_crowded).collect())
}

/// The requests for new holds, each with the moment at which the server first showed that it waits.
pub fn shown(mut places: Vec<Place>, looks: &[Look]) -> Vec<Place> {
    /// A look that took longer says little of when.
    const QUICK_MS: u64 = 50;
    let mut first: BTreeMap<(&str, &str), Moment> = BTreeMap::new();
    for look in looks.iter().filter(|look| look.told < look.asked.after_ms(QUICK_MS)) {
        for owner in &look.waiters {
            first.entry((&look.key, owner)).and_modify(|told| *told = look.told.min(*told)).or_insert(look.told);
        }
    }
    for place in &mut places {
        place.shown = first.get(&(place.key.as_str(), place.owner.as_str())).copied();
    }
    places
}

/// Pairs on one key of which the second was asked for when the first was known to wait, and was granted before it. A
/// request counts as the first only if nothing was broken on its key meanwhile: it may have lost an offer. Also says
/// how many pairs there were to compare.
pub fn passed<'h>(places: &'h [Place], breaks: &[Break]) -> (u64, Vec<(&'h Place, &'h Place)>) {
    let (compared, pairs) = out_of_order(places);
    let undisturbed = |place: &Place| {
        let until = place.granted().map_or(Moment(u64::MAX), |(ask, _)| ask.told);
        let meanwhile =
            |broken: &Break| broken.key == place.key && broken.told >= place.first_asked() && broken.asked <= until;
        !breaks.iter().any(meanwhile)
    };
    (compared, pairs.into_iter().filter(|(first, _)| undisturbed(first)).collect())
}

/// One grant for each hold, for what is to be true of fences.
pub fn holds(pieces: &[Piece]) -> Vec<Grant> {
    let mut first: BTreeMap<(&str, &str, i64), Grant> = BTreeMap::new();
    for piece in pieces {
        first.entry((&piece.key, &piece.owner, piece.fence)).or_insert_with(|| Grant {
            key: piece.key.clone(),
            owner: piece.owner.clone(),
            writes: piece.writes,
            fence: piece.fence,
            node: 0,
            asked: piece.since,
            told: piece.from,
            lease_ends: piece.until,
            release: None,
        });
    }
    first.into_values().collect()
}

fn by_key(pieces: &[Piece]) -> BTreeMap<&str, Vec<&Piece>> {
    let mut keys: BTreeMap<&str, Vec<&Piece>> = BTreeMap::new();
    for piece in pieces {
        keys.entry(&piece.key).or_default().push(piece);
    }
    keys
}

#[cfg(test)]
mod tests;
