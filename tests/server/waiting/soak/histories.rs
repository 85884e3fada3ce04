//! What the clients of the soak saw, and what of it cannot be.

use std::collections::BTreeMap;
use std::time::Instant;

pub(super) const KEYS: u64 = 20;

/// A stretch of time in which an owner certainly holds a key; it begins when its client is told.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) key: u64,
    pub(super) owner: String,
    pub(super) writes: bool,
    pub(super) fence: i64,
    /// When the request that created it was sent.
    pub(super) asked: Instant,
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// What one client saw.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) pieces: Vec<Piece>,
    /// Each grant, as it was told.
    pub(super) given: Vec<Piece>,
    /// Keys that were deleted or broken, and between which moments.
    pub(super) deleted: Vec<(u64, Instant, Instant)>,
    /// Owners that got the reply that they do not hold a key, though they may have: the last of their pieces, and when.
    pub(super) denied: Vec<(Piece, Instant)>,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl History {
    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

/// All faults that the histories show.
pub(super) fn faults(histories: &[History]) -> Vec<String> {
    let mut faults = Vec::new();
    let deleted: Vec<_> = histories.iter().flat_map(|history| &history.deleted).collect();
    for key in 0..KEYS {
        let deleted: Vec<_> = deleted.iter().filter(|(of, ..)| *of == key).collect();
        // With a DEL, all holds that may have been there are over.
        let cut = |piece: &Piece| {
            let ends = deleted.iter().filter(|(_, _, told)| *told >= piece.asked).map(|(_, asked, _)| *asked);
            Piece { to: ends.chain([piece.to]).min().expect("one at least"), ..piece.clone() }
        };
        let all = || histories.iter().flat_map(|history| &history.pieces).filter(|piece| piece.key == key);
        let mut pieces: Vec<Piece> = all().map(cut).filter(|piece| piece.from < piece.to).collect();
        pieces.sort_by_key(|piece| piece.from);
        let mut active: Vec<&Piece> = Vec::new();
        for piece in &pieces {
            active.retain(|other| other.to > piece.from);
            for other in &active {
                if other.owner != piece.owner && (other.writes || piece.writes) {
                    faults.push(format!("both hold at once: {other:?} and {piece:?}"));
                }
            }
            active.push(piece);
        }

        for (piece, told) in histories.iter().flat_map(|history| &history.denied).filter(|(piece, _)| piece.key == key)
        {
            if *told < cut(piece).to {
                faults.push(format!("denied at {told:?}: {piece:?}"));
            }
        }

        let mut given: Vec<&Piece> =
            histories.iter().flat_map(|history| &history.given).filter(|given| given.key == key).collect();
        let mut owners = BTreeMap::new();
        for given in &given {
            let owner = owners.entry(given.fence).or_insert(&given.owner);
            if **owner != given.owner {
                faults.push(format!("the same fence for {owner} and {}: {given:?}", given.owner));
            }
        }
        // Of the grants that were answered before another was requested, the highest fence.
        let mut told = given.clone();
        told.sort_by_key(|given| given.from);
        given.sort_by_key(|given| given.asked);
        let (mut at, mut highest): (usize, Option<&Piece>) = (0, None);
        for later in given {
            while told.get(at).is_some_and(|earlier| earlier.from < later.asked) {
                if highest.is_none_or(|highest| highest.fence < told[at].fence) {
                    highest = Some(told[at]);
                }
                at += 1;
            }
            if let Some(earlier) = highest
                && earlier.fence >= later.fence
                && earlier.owner != later.owner
                && !joins(&told, later)
            {
                faults.push(format!("a fence went back: {earlier:?}, then {later:?}"));
            }
        }
    }
    faults
}

/// Whether an owner asks for what it was given before: then the fence is the old one.
fn joins(given: &[&Piece], later: &Piece) -> bool {
    given.iter().any(|other| other.owner == later.owner && other.fence == later.fence && other.from < later.asked)
}
