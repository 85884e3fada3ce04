//! A client of the program: what it does, and what it tells of it.

use super::ears::Ears;
use super::saw::{Bound, Open, Saw};
use super::wish::{Lock, PATIENCE, Wish};
use crate::caller::{Answer, Numbered};
use crate::history::{Grant, Maybe, Moment, Release, Stay, is_early};
use crate::linear::{Kind, What};
use crate::places::{Ask, Place, Told};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;
use testbed::LockInfo;

pub struct Held {
    pub key: String,
    pub owner: String,
    kind: Kind,
    /// About how many read counts it has: a reply may have been lost.
    reads: u32,
    leases: u32,
    bound: Option<Bound>,
    /// It lasts as long as no reply changes it.
    piece: Grant,
}

/// The connection was lost in the middle of a request; the outcome has been found out.
pub struct Cut;

/// One client, which does one thing after the other.
pub struct Client {
    pub line: Numbered,
    /// What its owners' names begin with.
    pub name: String,
    /// Once it has waited by NOTIFY.
    pub ears: Option<Ears>,
    round: u64,
    /// The only lock that it requests, with pauses.
    quiet: Option<String>,
    owners: u64,
    pub dice: StdRng,
    /// What it has not told yet.
    pub saw: Saw,
}

impl Client {
    pub fn new(port: u16, name: String, round: u64, quiet: Option<String>, dice: StdRng) -> Client {
        let line = Numbered::new(port, PATIENCE);
        Client { line, name, ears: None, round, quiet, owners: 0, dice, saw: Saw::default() }
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.dice.random_range(0..100) < percent
    }

    pub fn live(mut self, end: Moment) {
        while Moment::now() < end {
            if self.chance(20) {
                self.look();
            } else if self.session().is_err() {
                self.saw.count("connections lost in a request");
            }
            self.tell();
            if self.quiet.is_some() {
                thread::sleep(Duration::from_millis(self.dice.random_range(0..=1_500)));
            }
        }
    }

    /// Says on standard output what it saw since it last did.
    fn tell(&mut self) {
        println!("{}", serde_json::to_string(&std::mem::take(&mut self.saw)).expect("plain data"));
    }

    /// Tells that this owner is about to ask, or that it was answered.
    fn is_open(&mut self, key: &str, owner: &str, asks: Option<Moment>, bound: Option<Bound>) {
        self.saw.open.insert(owner.to_owned(), Open { key: key.to_owned(), asks, bound });
        self.tell();
    }

    fn lock(&mut self) -> Lock {
        match &self.quiet {
            Some(key) => Lock::quiet(key.clone()),
            None => Lock::busy(self.round, &mut self.dice),
        }
    }

    fn look(&mut self) {
        let key = self.lock().key;
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
        self.saw.note(&key, asked, told, "", What::Looked(holders));
    }

    /// A hold from its beginning to its end.
    fn session(&mut self) -> Result<(), Cut> {
        self.owners += 1;
        let (lock, owner) = (self.lock(), format!("{}.{}", self.name, self.owners));
        self.is_open(&lock.key, &owner, Some(Moment::now()), None);
        let lived = self.life(&lock, &owner);
        self.saw.over.push(owner);
        lived
    }

    fn life(&mut self, lock: &Lock, owner: &str) -> Result<(), Cut> {
        let kind = lock.kind(&mut self.dice);
        let wish = Wish { key: lock.key.clone(), owner: owner.to_owned(), kind, at_least: None };
        // Requests that come again serve a queue again: where it is quiet there are few of them.
        let stands = if self.quiet.is_some() { 10 } else { 40 };
        let granted = match (self.chance(stands), self.chance(40)) {
            (true, true) => self.stand_notified(&wish),
            (true, false) => self.stand(lock, &wish),
            (false, _) => self.first(&wish)?,
        };
        let Some(mut held) = granted else { return Ok(()) };
        let steps = self.dice.random_range(0..4);
        for _ in 0..steps {
            self.is_open(&held.key, &held.owner, None, held.bound);
            self.hold(&held, 20);
            match self.dice.random_range(0..4) {
                0 => self.extend(&mut held)?,
                1 if held.reads > 1 => self.give_some_back(&mut held)?,
                // The same in another number, or to another limit.
                1 | 2 => self.again(&mut held, lock, kind.writes())?,
                // Up to writing, or down to reading or shares.
                _ => self.again(&mut held, lock, !kind.writes())?,
            }
        }
        self.is_open(&held.key, &held.owner, None, held.bound);
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
            15..25 if held.bound.is_some_and(|bound| bound.sure) => self.end_with_session(&mut held),
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

    fn first(&mut self, wish: &Wish) -> Result<Option<Held>, Cut> {
        let Wish { key, owner, kind, .. } = wish;
        let lease = self.lease_ms();
        let block = if self.chance(80) { self.dice.random_range(1..=3_000) } else { 0 };
        let session_ms = if self.chance(25) { Some(self.dice.random_range(100..=500)) } else { None };
        let session = session_ms.map_or(String::new(), |ms: u64| format!(" SESSION {ms}"));
        let plain = format!("{wish} PX {lease}{session}");
        let request = if block > 0 { format!("{plain} BLOCK {block}") } else { plain.clone() };
        let (asked, answer, told) = self.line.caller.ask_long(&request, Duration::from_millis(block));
        let mut asks = Vec::new();
        let (lease_from, answer, told) = match answer {
            Answer::Lost | Answer::Silence => {
                self.cut_off(&request, owner, &answer);
                if self.chance(50) {
                    // It had no visible effect, or it is given up.
                    return self.give_up(wish, lease, asked).map(|()| None);
                }
                // The older connection is closed, so the older request is over. The repetition finds what it left.
                let (again, answer, told) = self.line.until_answered(&format!("{plain} RETRY {}", kind.take()));
                self.saw.count("repeated");
                // Whenever the first of the two was granted.
                self.may_hold(key, owner, asked, asked, told);
                asks.push(Ask { asked, told: again, block_ms: block, answer: Told::Unknown });
                (again, answer, told)
            }
            _ => {
                if answer == Answer::Null && is_early(asked, told, block) {
                    self.saw.too_early.push(format!("{request}: asked {asked:?}, told {told:?}"));
                }
                if block > 0 && !matches!(answer, Answer::Error(_)) {
                    self.saw.stays.push(Stay { key: key.clone(), owner: owner.clone(), asked, told });
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
        let block_ms = if asks.is_empty() { block } else { 0 };
        asks.push(Ask { asked: lease_from, told, block_ms, answer: Told::Fence(fence) });
        let place = Place { asks, ..wish.place(0, lease) };
        self.saw.places.push(place.clone());
        let bound = session_ms.map(|ms| Bound { ms, alive: lease_from, sure: true });
        Ok(Some(Held { bound, ..self.granted(&place, *kind, fence, lease_from, told) }))
    }

    /// It holds now: since some moment after it first asked, and for a lease that began at some moment from then on.
    pub fn granted(&mut self, place: &Place, kind: Kind, fence: i64, lease_from: Moment, told: Moment) -> Held {
        self.saw.count("granted");
        if let Kind::Shares { take, .. } = kind {
            self.saw.count(if take == 1 { "shares granted, one" } else { "shares granted, several" });
        }
        let (key, owner, lease, asked) = (place.key.clone(), place.owner.clone(), place.lease_ms, place.first_asked());
        let lease_ends = lease_from.after_ms(lease);
        let (node, release, writes) = (self.line.caller.port(), None, kind.writes());
        let piece =
            Grant { key: key.clone(), owner: owner.clone(), writes, fence, node, asked, told, lease_ends, release };
        self.saw.grants.push(piece.clone());
        let locked = What::Locked { kind, at_least: None, fence: Some(fence), lease: 0 };
        self.saw.note(&key, asked, told, &owner, locked);
        self.lapse(&key, &owner, 0, lease_from, told, lease);
        self.may_hold(&key, &owner, lease_from, told, told.after_ms(lease));
        let reads = if writes { 0 } else { kind.take() };
        Held { key, owner, kind, reads, leases: 1, bound: None, piece }
    }

    /// A lease that began between two moments ends between two. Where the moments of two events are the same
    /// millisecond, their order is not known.
    pub fn lapse(&mut self, key: &str, owner: &str, lease: u32, asked: Moment, told: Moment, ms: u64) {
        self.saw.note(key, asked.after_ms(ms - 1), told.after_ms(ms + 1), owner, What::Lapsed { lease });
    }

    /// Whatever else is not known: until then at the latest.
    pub fn may_hold(&mut self, key: &str, owner: &str, asked: Moment, told: Moment, until: Moment) {
        self.saw.maybes.push(Maybe { key: key.to_owned(), owner: owner.to_owned(), asked, told, until });
    }

    fn is_over(&mut self, owner: &str, at: Moment) {
        self.saw.ends.insert(owner.to_owned(), at);
    }

    /// Asks once more, without waiting: for writing, or for reading or shares.
    fn again(&mut self, held: &mut Held, lock: &Lock, writes: bool) -> Result<(), Cut> {
        let ms = self.lease_ms();
        let kind = if writes { Kind::Write } else { lock.kind_beside(&mut self.dice) };
        let at_least = match kind {
            Kind::Shares { limit, take } if self.chance(40) => Some(self.dice.random_range(take..=limit)),
            _ => None,
        };
        let wish = Wish { key: held.key.clone(), owner: held.owner.clone(), kind, at_least };
        let (asked, answer, told) = self.ask_as(held, &format!("{wish} PX {ms}"))?;
        let shares = matches!(kind, Kind::Shares { .. });
        let Some(fence) = answer.int() else {
            self.saw.count(if shares { "more shares refused" } else { "again refused" });
            self.saw.note(&held.key, asked, told, &held.owner, What::Refused { kind, at_least });
            return Ok(());
        };
        let anew = held.piece.fence != fence;
        self.saw.count(match (anew, shares) {
            (true, _) => "upgraded or anew",
            (false, true) if at_least.is_some() => "more shares by RETRY",
            (false, true) if held.kind.writes() => "shares beside writing",
            (false, true) => "more shares",
            (false, false) => "held again",
        });
        let lease = held.leases;
        held.leases += 1;
        let locked = What::Locked { kind, at_least, fence: Some(fence), lease };
        self.saw.note(&held.key, asked, told, &held.owner, locked);
        self.lapse(&held.key, &held.owner, lease, asked, told, ms);
        self.may_hold(&held.key, &held.owner, asked, told, told.after_ms(ms));
        if !writes {
            held.reads = at_least.map_or(held.reads + kind.take(), |least| least.max(held.reads));
        }
        let before = held.piece.clone();
        self.end_piece(held, asked);
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
            held.bound = held.bound.map(|bound| Bound { sure: false, ..bound });
        } else {
            // Never shorter than it was.
            held.piece.lease_ends = lease_ends.max(before.lease_ends);
        }
        Ok(())
    }

    /// Gives back all read counts but some.
    fn give_some_back(&mut self, held: &mut Held) -> Result<(), Cut> {
        let to = self.dice.random_range(1..held.reads);
        let request = format!("LOCK.RELEASE {} {} READ TO {to}", held.key, held.owner);
        let (asked, answer, told) = self.ask_as(held, &request)?;
        let left = left_of(&answer);
        self.saw.note(&held.key, asked, told, &held.owner, What::Released { to: Some(to), left });
        self.saw.count(if left.is_some() { "gave some back" } else { "lapsed before some were given back" });
        held.reads = to;
        if left.is_none() {
            self.holds_nothing(held, asked);
        }
        Ok(())
    }

    /// Closes the connection that the hold is bound to. When the server has closed it too, the lease is cut.
    fn end_with_session(&mut self, held: &mut Held) {
        let Some(bound) = held.bound else { return };
        self.holds_nothing(held, Moment::now());
        let lost = self.line.number;
        self.line.connect();
        // An error when it is gone already. The server has closed it when it answers the next request.
        self.line.until_answered(&format!("CLIENT KILL ID {lost}"));
        self.line.until_answered("PING");
        let closed = Moment::now();
        self.saw.note(&held.key, bound.earliest(), bound.latest(closed), &held.owner, What::Gone);
        self.is_over(&held.owner, bound.latest(closed));
        self.saw.count("left to the end of its session");
        held.bound = None;
        self.is_open(&held.key, &held.owner, None, None);
        thread::sleep(Duration::from_millis(self.dice.random_range(0..=bound.ms + 100)));
    }

    fn extend(&mut self, held: &mut Held) -> Result<(), Cut> {
        let ms = self.lease_ms();
        let (asked, answer, told) = self.ask_as(held, &format!("LOCK.EXTEND {} {} PX {ms}", held.key, held.owner))?;
        let fence = answer.int();
        let lease = held.leases;
        held.leases += 1;
        self.saw.note(&held.key, asked, told, &held.owner, What::Extended { fence, lease });
        let before = held.piece.clone();
        if fence.is_some() {
            self.end_piece(held, asked);
            self.saw.count("extended");
            self.lapse(&held.key, &held.owner, lease, asked, told, ms);
            self.may_hold(&held.key, &held.owner, asked, told, told.after_ms(ms));
            held.piece = Grant { asked, told, lease_ends: asked.after_ms(ms), ..before };
        } else {
            self.holds_nothing(held, asked);
        }
        Ok(())
    }

    fn release(&mut self, mut held: Held) -> Result<(), Cut> {
        let request = format!("LOCK.RELEASE {} {} ALL", held.key, held.owner);
        let (asked, answer, told) = self.ask_as(&mut held, &request)?;
        let left = left_of(&answer);
        self.saw.count(if left.is_some() { "released" } else { "lapsed before the release" });
        self.end_piece(&held, asked);
        self.is_over(&held.owner, told);
        self.saw.note(&held.key, asked, told, &held.owner, What::Released { to: None, left });
        Ok(())
    }

    /// A request by the holder. If the connection is lost the hold is given up.
    fn ask_as(&mut self, held: &mut Held, request: &str) -> Result<(Moment, Answer, Moment), Cut> {
        self.is_open(&held.key, &held.owner, Some(Moment::now()), held.bound);
        let (asked, answer, told) = self.line.caller.ask(request);
        if let Answer::Error(text) = &answer {
            panic!("{request}: {text}");
        }
        if matches!(answer, Answer::Lost | Answer::Silence) {
            self.cut_off(request, &held.owner, &answer);
            self.end_piece(held, asked);
            let (_, _, told) = self.line.until_answered(&format!("LOCK.RELEASE {} {} ALL", held.key, held.owner));
            // With its session it may have ended before it asked.
            let first = held.bound.map_or(asked, |bound| bound.earliest().min(asked));
            self.saw.note(&held.key, first, told, &held.owner, What::Gone);
            self.is_over(&held.owner, told);
            // The last request may have been granted.
            self.may_hold(&held.key, &held.owner, asked, asked, told);
            return Err(Cut);
        }
        if let Some(bound) = &mut held.bound {
            bound.alive = asked;
        }
        Ok((asked, answer, told))
    }

    /// A piece ends when something else is requested. It is certain for as long as its session cannot have ended.
    fn end_piece(&mut self, held: &Held, at: Moment) {
        let until = held.bound.map_or(held.piece.lease_ends, |bound| bound.earliest());
        let lease_ends = held.piece.lease_ends.min(until);
        let release = Some(Release { asked: at, answer: None });
        self.saw.pieces.push(Grant { release, lease_ends, ..held.piece.clone() });
    }

    /// What it held is not certain from now on.
    fn holds_nothing(&mut self, held: &mut Held, from: Moment) {
        self.end_piece(held, from);
        (held.piece.told, held.piece.lease_ends) = (from, from);
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
    fn give_up(&mut self, wish: &Wish, lease: u64, asked: Moment) -> Result<(), Cut> {
        let Wish { key, owner, kind, .. } = wish;
        let cut = Moment::now();
        let (_, answer, told) = self.line.until_answered(&format!("LOCK.RELEASE {key} {owner} ALL"));
        self.may_hold(key, owner, asked, asked, told);
        if answer.int().is_some() {
            let locked = What::Locked { kind: *kind, at_least: None, fence: None, lease: 0 };
            self.saw.note(key, asked, cut, owner, locked);
            self.saw.note(key, asked.after_ms(lease - 1), told.after_ms(lease + 1), owner, What::Lapsed { lease: 0 });
            self.saw.note(key, cut, told, owner, What::Gone);
        }
        Err(Cut)
    }
}

/// The counts that are left after a release.
fn left_of(answer: &Answer) -> Option<u32> {
    answer.int().map(|left| u32::try_from(left).expect("a count"))
}
