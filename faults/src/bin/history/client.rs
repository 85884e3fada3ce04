//! A client of the program: what it does, and what it remembers of it.

use crate::PATIENCE;
use faults::caller::{Answer, Numbered};
use faults::history::{Grant, Maybe, Moment, Release, Stay, is_early};
use faults::linear::{Event, What};
use faults::places::{Ask, End, Place, Told};
use rand::RngExt;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;
use testbed::LockInfo;

/// How many locks all clients share.
pub const KEYS: u64 = 4;

/// What one client saw.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Saw {
    /// The events of each key.
    pub events: BTreeMap<String, Vec<Event>>,
    /// Stretches for which a hold was certain: one for each lease and mode.
    pub pieces: Vec<Grant>,
    /// New holds, with their fences.
    pub grants: Vec<Grant>,
    /// Owners of which it is not certain when they held: a connection was lost during a request, or they were offered
    /// the lock before they knew.
    pub uncertain: BTreeSet<String>,
    /// How often something happened.
    pub counts: BTreeMap<String, u64>,
    /// Requests that had no answer in time.
    pub forgotten: Vec<String>,
    /// Requests that were answered null before their time-out.
    pub too_early: Vec<String>,
    /// Waits that were answered.
    pub stays: Vec<Stay>,
    /// When owners may have held.
    pub maybes: Vec<Maybe>,
    /// All owners that asked for a new hold, with QUEUE or without.
    pub places: Vec<Place>,
}

impl Saw {
    pub fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Adds what another client saw.
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
        self.stays.extend(other.stays);
        self.maybes.extend(other.maybes);
        self.places.extend(other.places);
    }
}

/// A hold, as its owner knows it.
pub struct Held {
    pub key: String,
    pub owner: String,
    leases: u32,
    /// It lasts as long as no reply changes it.
    piece: Grant,
}

/// The connection was lost in the middle of a request; the outcome has been found out.
pub struct Cut;

/// One client, which does one thing after the other.
pub struct Client {
    pub line: Numbered,
    /// What its owners' names begin with.
    name: String,
    round: u64,
    /// The only lock that it requests, with pauses.
    quiet: Option<String>,
    owners: u64,
    pub dice: StdRng,
    pub saw: Saw,
}

impl Client {
    pub fn new(port: u16, name: String, round: u64, quiet: Option<String>, dice: StdRng) -> Client {
        let line = Numbered::new(port, PATIENCE);
        Client { line, name, round, quiet, owners: 0, dice, saw: Saw::default() }
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.dice.random_range(0..100) < percent
    }

    /// Lives until then; what it saw.
    pub fn live(mut self, end: Moment) -> Saw {
        while Moment::now() < end {
            if self.chance(20) {
                self.look();
            } else if self.session().is_err() {
                self.saw.count("connections lost in a request");
            }
            if self.quiet.is_some() {
                thread::sleep(Duration::from_millis(self.dice.random_range(0..=1_500)));
            }
        }
        self.saw
    }

    fn key(&mut self) -> String {
        if let Some(key) = &self.quiet {
            return key.clone();
        }
        format!("r{}.k{}", self.round, self.dice.random_range(0..KEYS))
    }

    /// Reads a lock.
    fn look(&mut self) {
        let key = self.key();
        let (asked, answer, told) = self.line.caller.ask(&format!("LOCK.INFO {key} COUNT 1000"));
        let holders = match answer {
            Answer::Null => BTreeMap::new(),
            Answer::Value(value) => LockInfo::from(value)
                .holders
                .into_iter()
                .map(|holder| {
                    let owner = String::from_utf8(holder.owner).expect("ours are text");
                    (owner, (holder.reads as u32, holder.writes as u32, holder.fence))
                })
                .collect(),
            Answer::Lost | Answer::Silence => return self.line.connect(),
            Answer::Error(text) => panic!("LOCK.INFO: {text}"),
        };
        self.saw.count("looks");
        self.note(&key, asked, told, "", What::Looked(holders));
    }

    pub fn note(&mut self, key: &str, asked: Moment, told: Moment, owner: &str, what: What) {
        let event = Event { asked, told, owner: owner.to_owned(), what };
        self.saw.events.entry(key.to_owned()).or_default().push(event);
    }

    /// A hold from its beginning to its end.
    fn session(&mut self) -> Result<(), Cut> {
        self.owners += 1;
        let (key, owner) = (self.key(), format!("{}.{}", self.name, self.owners));
        let writes = self.chance(40);
        // Requests that come again serve a queue again: where it is quiet there are few of them.
        let stands = if self.quiet.is_some() { 10 } else { 40 };
        let granted =
            if self.chance(stands) { self.stand(&key, &owner, writes) } else { self.first(&key, &owner, writes)? };
        let Some(mut held) = granted else { return Ok(()) };
        let steps = self.dice.random_range(0..3);
        for _ in 0..steps {
            self.hold(&held, 20);
            match self.dice.random_range(0..3) {
                0 => self.extend(&mut held)?,
                1 => self.again(&mut held, writes)?,
                // Up to writing, or down to reading.
                _ => self.again(&mut held, !writes)?,
            }
        }
        // A waiter that only the timer can serve shows where it is quiet.
        let sure = if self.quiet.is_some() { 30 } else { 100 };
        match self.dice.random_range(0..sure) {
            // Longer than the lease.
            0..5 => self.hold(&held, 2_500),
            // Until about the moment at which it ends.
            5..15 => {
                let left = held.piece.lease_ends.0.saturating_sub(Moment::now().0);
                thread::sleep(Duration::from_micros(left + self.dice.random_range(0..20_000)));
                self.saw.count("released about when the lease ends");
            }
            _ => self.hold(&held, 30),
        }
        self.release(held)
    }

    fn hold(&mut self, held: &Held, most_ms: u64) {
        let ms = self.dice.random_range(0..=most_ms);
        if Moment::now().after_ms(ms) > held.piece.lease_ends {
            self.saw.count("held beyond the lease");
        }
        thread::sleep(Duration::from_millis(ms));
    }

    pub fn lease_ms(&mut self) -> u64 {
        self.dice.random_range(300..=2_000)
    }

    /// Requests a new hold.
    fn first(&mut self, key: &str, owner: &str, writes: bool) -> Result<Option<Held>, Cut> {
        let lease = self.lease_ms();
        let block = if self.chance(80) { self.dice.random_range(1..=3_000) } else { 0 };
        let plain = format!("LOCK.RW {key} {owner} {} PX {lease}", mode(writes));
        let request = if block > 0 { format!("{plain} BLOCK {block}") } else { plain.clone() };
        let (asked, answer, told) = self.line.caller.ask_long(&request, Duration::from_millis(block));
        let (lease_from, answer, told) = match answer {
            Answer::Lost | Answer::Silence => {
                self.cut_off(&request, owner, &answer);
                if self.chance(50) {
                    // It had no visible effect, or it is given up.
                    return self.give_up(key, owner, writes, lease, asked).map(|()| None);
                }
                // The older connection is closed, so the older request is over. The repetition finds what it left.
                let (again, answer, told) = self.line.until_answered(&format!("{plain} RETRY 1"));
                self.saw.count("repeated");
                // Whenever the first of the two was granted.
                self.may_hold(key, owner, asked, asked, told);
                (again, answer, told)
            }
            _ => {
                if answer == Answer::Null && is_early(asked, told, block) {
                    self.saw.too_early.push(format!("{request}: asked {asked:?}, told {told:?}"));
                }
                if block > 0 && !matches!(answer, Answer::Error(_)) {
                    self.saw.stays.push(Stay { key: key.to_owned(), owner: owner.to_owned(), asked, told });
                }
                (asked, answer, told)
            }
        };
        let Some(fence) = answer.int() else {
            self.saw.count(match &answer {
                Answer::Error(text) => text.split(' ').next().unwrap_or_default(),
                _ => "null",
            });
            return Ok(None);
        };
        let ask = Ask { asked, told, block_ms: block, answer: Told::Fence(fence) };
        let (queue_ms, shown, end, asks) = (0, None, End::Open, vec![ask]);
        let place = Place { key: key.to_owned(), owner: owner.to_owned(), queue_ms, lease_ms: lease, shown, asks, end };
        self.saw.places.push(place.clone());
        Ok(Some(self.granted(&place, writes, fence, lease_from, told)))
    }

    /// It holds now: since some moment after it first asked, and for a lease that began at some moment from then on.
    pub fn granted(&mut self, place: &Place, writes: bool, fence: i64, lease_from: Moment, told: Moment) -> Held {
        self.saw.count("granted");
        let (key, owner, lease, asked) = (place.key.clone(), place.owner.clone(), place.lease_ms, place.first_asked());
        let lease_ends = lease_from.after_ms(lease);
        let (node, release) = (self.line.caller.port(), None);
        let piece =
            Grant { key: key.clone(), owner: owner.clone(), writes, fence, node, asked, told, lease_ends, release };
        self.saw.grants.push(piece.clone());
        self.note(&key, asked, told, &owner, What::Locked { writes, fence: Some(fence), lease: 0 });
        self.lapse(&key, &owner, 0, lease_from, told, lease);
        self.may_hold(&key, &owner, lease_from, told, told.after_ms(lease));
        Held { key, owner, leases: 1, piece }
    }

    /// A lease that began between two moments ends between two. Where the moments of two events are the same
    /// millisecond, their order is not known.
    pub fn lapse(&mut self, key: &str, owner: &str, lease: u32, asked: Moment, told: Moment, ms: u64) {
        self.note(key, asked.after_ms(ms - 1), told.after_ms(ms + 1), owner, What::Lapsed { lease });
    }

    /// Whatever else is not known: until then at the latest.
    pub fn may_hold(&mut self, key: &str, owner: &str, asked: Moment, told: Moment, until: Moment) {
        self.saw.maybes.push(Maybe { key: key.to_owned(), owner: owner.to_owned(), asked, told, until });
    }

    /// Holds nothing any more.
    fn is_over(&mut self, owner: &str, at: Moment) {
        for maybe in self.saw.maybes.iter_mut().rev().take_while(|maybe| maybe.owner == owner) {
            maybe.until = maybe.until.min(at);
        }
    }

    /// Asks once more, without waiting.
    fn again(&mut self, held: &mut Held, writes: bool) -> Result<(), Cut> {
        let ms = self.lease_ms();
        let request = format!("LOCK.RW {} {} {} PX {ms}", held.key, held.owner, mode(writes));
        let (asked, answer, told) = self.ask_as(held, &request)?;
        let Some(fence) = answer.int() else {
            self.saw.count("again refused");
            self.note(&held.key, asked, told, &held.owner, What::Refused { writes });
            return Ok(());
        };
        self.saw.count(if held.piece.fence == fence { "held again" } else { "upgraded or anew" });
        let lease = held.leases;
        held.leases += 1;
        self.note(&held.key, asked, told, &held.owner, What::Locked { writes, fence: Some(fence), lease });
        self.lapse(&held.key, &held.owner, lease, asked, told, ms);
        self.may_hold(&held.key, &held.owner, asked, told, told.after_ms(ms));
        let anew = held.piece.fence != fence;
        let before = held.piece.clone();
        self.end_piece(&before, asked);
        let lease_ends = asked.after_ms(ms);
        held.piece = Grant {
            writes: if anew { writes } else { writes || before.writes },
            fence,
            asked,
            told,
            lease_ends,
            ..before
        };
        if anew {
            self.saw.grants.push(held.piece.clone());
        } else {
            // Never shorter than it was.
            held.piece.lease_ends = lease_ends.max(before.lease_ends);
        }
        Ok(())
    }

    fn extend(&mut self, held: &mut Held) -> Result<(), Cut> {
        let ms = self.lease_ms();
        let (asked, answer, told) = self.ask_as(held, &format!("LOCK.EXTEND {} {} PX {ms}", held.key, held.owner))?;
        let fence = answer.int();
        let lease = held.leases;
        held.leases += 1;
        self.note(&held.key, asked, told, &held.owner, What::Extended { fence, lease });
        let before = held.piece.clone();
        self.end_piece(&before, asked);
        if fence.is_some() {
            self.saw.count("extended");
            self.lapse(&held.key, &held.owner, lease, asked, told, ms);
            self.may_hold(&held.key, &held.owner, asked, told, told.after_ms(ms));
            held.piece = Grant { asked, told, lease_ends: asked.after_ms(ms), ..before };
        } else {
            held.piece = Grant { told: asked, lease_ends: asked, ..before };
        }
        Ok(())
    }

    fn release(&mut self, held: Held) -> Result<(), Cut> {
        let (asked, answer, told) = self.ask_as(&held, &format!("LOCK.RELEASE {} {} ALL", held.key, held.owner))?;
        let left = answer.int().map(|left| u32::try_from(left).expect("a count"));
        self.saw.count(if left.is_some() { "released" } else { "lapsed before the release" });
        self.end_piece(&held.piece, asked);
        self.is_over(&held.owner, told);
        self.note(&held.key, asked, told, &held.owner, What::Released { writes: None, left });
        Ok(())
    }

    /// A request by the holder. If the connection is lost the hold is given up.
    fn ask_as(&mut self, held: &Held, request: &str) -> Result<(Moment, Answer, Moment), Cut> {
        let (asked, answer, told) = self.line.caller.ask(request);
        if let Answer::Error(text) = &answer {
            panic!("{request}: {text}");
        }
        if matches!(answer, Answer::Lost | Answer::Silence) {
            self.cut_off(request, &held.owner, &answer);
            self.end_piece(&held.piece, asked);
            let (_, _, told) = self.line.until_answered(&format!("LOCK.RELEASE {} {} ALL", held.key, held.owner));
            self.note(&held.key, asked, told, &held.owner, What::Gone);
            self.is_over(&held.owner, told);
            // The last request may have been granted.
            self.may_hold(&held.key, &held.owner, asked, asked, told);
            return Err(Cut);
        }
        Ok((asked, answer, told))
    }

    /// A piece ends when something else is requested.
    fn end_piece(&mut self, piece: &Grant, at: Moment) {
        self.saw.pieces.push(Grant { release: Some(Release { asked: at, answer: None }), ..piece.clone() });
    }

    /// Makes sure that nothing that was sent on the lost connection happens from now on.
    fn cut_off(&mut self, request: &str, owner: &str, answer: &Answer) {
        if *answer == Answer::Silence {
            self.saw.forgotten.push(request.to_owned());
        }
        self.saw.uncertain.insert(owner.to_owned());
        let lost = self.line.number;
        self.line.connect();
        // An error when it is gone already.
        self.line.until_answered(&format!("CLIENT KILL ID {lost}"));
    }

    /// Gives up what a request, whose answer was lost, may have been granted.
    fn give_up(&mut self, key: &str, owner: &str, writes: bool, lease: u64, asked: Moment) -> Result<(), Cut> {
        let cut = Moment::now();
        let (_, answer, told) = self.line.until_answered(&format!("LOCK.RELEASE {key} {owner} ALL"));
        self.may_hold(key, owner, asked, asked, told);
        if answer.int().is_some() {
            self.note(key, asked, cut, owner, What::Locked { writes, fence: None, lease: 0 });
            self.note(key, asked.after_ms(lease - 1), told.after_ms(lease + 1), owner, What::Lapsed { lease: 0 });
            self.note(key, cut, told, owner, What::Gone);
        }
        Err(Cut)
    }
}

pub fn mode(writes: bool) -> &'static str {
    if writes { "WRITE" } else { "READ" }
}
