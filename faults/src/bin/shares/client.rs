//! A client of the program: what it does, and what it tells of it. It says that it is about to give something back
//! before it asks for that, so that what it told is right also when it is killed at any moment.

use crate::PATIENCE;
use crate::held::{Bound, Heard, Held, Kind, Wish, count, tell};
use faults::asker::Asker;
use faults::caller::{Answer, Numbered};
use faults::history::Moment;
use faults::places::{Ask, Place, Told};
use faults::shares::{Line, Piece, Raise, Returned};
use rand::RngExt;
use rand::rngs::StdRng;
use std::cmp::Reverse;
use std::thread;
use std::time::Duration;

/// The limits of the locks of which all shares have one.
pub const LIMITS: [u32; 5] = [3, 4, 5, 6, 8];

/// One client, which does one thing after the other.
pub struct Client {
    line: Numbered,
    /// What its owners' names begin with.
    name: String,
    round: u64,
    owners: u64,
    dice: StdRng,
}

/// The lock with this number in this round.
pub fn key(round: u64, number: usize) -> String {
    format!("r{round}.k{number}")
}

impl Client {
    pub fn new(port: u16, name: String, round: u64, dice: StdRng) -> Client {
        Client { line: Numbered::new(port, PATIENCE), name, round, owners: 0, dice }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.dice.random_range(0..100) < percent
    }

    fn nap(&mut self, most_ms: u64) {
        thread::sleep(Duration::from_millis(self.dice.random_range(0..=most_ms)));
    }

    /// Lives until then.
    pub fn live(mut self, end: Moment) {
        while Moment::now() < end {
            let wish = self.wish();
            let held = if self.chance(40) { self.stand(&wish) } else { self.first(&wish) };
            if let Some(held) = held {
                self.hold(held);
            }
        }
    }

    /// What to ask for next. The last lock has a limit for each request, and readers without one.
    fn wish(&mut self) -> Wish {
        self.owners += 1;
        let number = self.dice.random_range(0..=LIMITS.len());
        let limit = LIMITS.get(number).copied();
        let kind = match self.dice.random_range(0..100) {
            0..4 => Kind::Write,
            4..14 if limit.is_none() => Kind::Read,
            _ => {
                let limit = limit.unwrap_or_else(|| self.dice.random_range(3..=8));
                let take = if self.chance(50) { 1 } else { self.dice.random_range(1..=limit) };
                Kind::Shares { limit, take }
            }
        };
        let lease_ms =
            if self.chance(20) { self.dice.random_range(200..=600) } else { self.dice.random_range(1_000..=2_000) };
        Wish { key: key(self.round, number), owner: format!("{}.{}", self.name, self.owners), kind, lease_ms }
    }

    /// Asks for a new hold without QUEUE. If the reply is lost, RETRY finds out what came of it.
    fn first(&mut self, wish: &Wish) -> Option<Held> {
        let block_ms = if self.chance(80) { self.dice.random_range(1..=1_200) } else { 0 };
        let session_ms = if self.chance(30) { Some(self.dice.random_range(100..=500)) } else { None };
        let session = session_ms.map_or(String::new(), |ms: u64| format!(" SESSION {ms}"));
        let request = format!("{}{session} PX {}", wish.request(), wish.lease_ms);
        let block = if block_ms > 0 { format!(" BLOCK {block_ms}") } else { String::new() };
        let again = format!("{request} RETRY {}", wish.kind.take());
        let heard = self.ask_surely(&format!("{request}{block}"), &again, Duration::from_millis(block_ms));
        let Heard { first_asked, asked, told, repeated, .. } = heard;
        let fence = heard.answer.int();
        let answer = fence.map_or(Told::Waits, Told::Fence);
        let unknown = Ask { asked: first_asked, told: asked, block_ms, answer: Told::Unknown };
        let block_ms = if repeated { 0 } else { block_ms };
        let answered = Ask { asked, told, block_ms, answer };
        let place = Place { asks: if repeated { vec![unknown, answered] } else { vec![answered] }, ..wish.place(0) };
        tell(&Line::Stood(place));
        let Some(fence) = fence else {
            count("null");
            return None;
        };
        if repeated {
            count("a lost grant repeated with RETRY");
        }
        let bound = session_ms.map(|ms| Bound { connection: self.line.number, ms, alive: asked });
        let raise = Raise { asked: first_asked, told, limit: wish.kind.limit() };
        // The lease began when the first of the requests was served, or later.
        Some(Held::begin(wish, fence, raise, first_asked, bound, repeated))
    }

    /// Asks for a new hold with QUEUE, until it is granted or has had enough; comes back over other connections.
    fn stand(&mut self, wish: &Wish) -> Option<Held> {
        let queue_ms = self.dice.random_range(900..=1_500);
        let pause_ms = queue_ms / 8;
        let enough = Moment::now().after_ms(self.dice.random_range(300..=2_500));
        let release = format!("LOCK.RELEASE {} {} ALL", wish.key, wish.owner);
        let Client { line, dice, .. } = self;
        let mut asker = Asker::new(line, PATIENCE, wish.request(), wish.place(queue_ms));
        loop {
            let block_ms = dice.random_range(1..=pause_ms);
            let lost = asker.lost();
            let told = match dice.random_range(0..100) {
                0..30 => asker.ask(0),
                30..70 => asker.ask(block_ms),
                70..85 => {
                    let patience = Duration::from_millis(dice.random_range(1..=block_ms));
                    asker.ask_impatiently(block_ms, patience)
                }
                _ => asker.ask_twice(block_ms),
            };
            if told != Told::Unknown && lost > 0 {
                count("came back over another connection");
            }
            if matches!(told, Told::Fence(_)) {
                break;
            }
            match dice.random_range(0..100) {
                0..2 => {
                    count("never came back");
                    asker.die();
                    break;
                }
                2..4 => {
                    count("came back too late");
                    thread::sleep(Duration::from_millis(queue_ms + dice.random_range(0..200)));
                }
                _ if Moment::now() > enough => {
                    count("gave its place up");
                    asker.leave(&release);
                    break;
                }
                // At once, after a connection was lost.
                _ if told == Told::Unknown => {}
                _ => thread::sleep(Duration::from_millis(dice.random_range(0..=pause_ms))),
            }
        }
        // What comes late would count as a new request once this hold is given back.
        asker.settle();
        let Asker { place, forgotten, .. } = asker;
        forgotten.into_iter().for_each(|request| tell(&Line::Forgotten(request)));
        tell(&Line::Stood(place.clone()));
        // Of two requests at once the later may have been granted anew.
        let fences = place.asks.iter().filter_map(|ask| match ask.answer {
            Told::Fence(fence) => Some((ask, fence)),
            Told::Waits | Told::Unknown => None,
        });
        let (ask, fence) = fences.max_by_key(|(ask, fence)| (*fence, Reverse(ask.told)))?;
        count("granted to a place");
        // It was not granted yet when it was answered null.
        let waits = place.asks.iter().filter(|other| other.answer == Told::Waits && other.told <= ask.asked);
        let asked = waits.map(|other| other.asked).max().unwrap_or(place.first_asked());
        let raise = Raise { asked, told: ask.told, limit: wish.kind.limit() };
        Some(Held::begin(wish, fence, raise, ask.asked, None, place.asks.len() > 1))
    }

    /// Holds, asks for more, gives some back, extends, and comes to an end in one way or another.
    fn hold(&mut self, mut held: Held) {
        for _ in 0..self.dice.random_range(0..4) {
            self.nap(60);
            let counts = held.piece.counts;
            let goes_on = match self.dice.random_range(0..100) {
                0..40 => self.more(&mut held),
                40..70 if counts > 1 => {
                    let left = if self.chance(50) { counts - 1 } else { self.dice.random_range(1..counts) };
                    self.give_back(&mut held, left)
                }
                70..90 => self.extend(&mut held),
                _ => true,
            };
            if !goes_on {
                return;
            }
        }
        self.nap(60);
        match self.dice.random_range(0..100) {
            0..3 => count("left to the end of its lease"),
            3..13 if held.bound.is_some() => {
                count("left to the end of its session");
                self.line.connect();
            }
            3..6 => {
                let left = held.lease_ends.0.saturating_sub(Moment::now().0);
                thread::sleep(Duration::from_micros(left + self.dice.random_range(0..20_000)));
                count("released about when the lease ends");
                self.give_back(&mut held, 0);
            }
            end => {
                // What is left tells how many there were.
                if held.piece.counts > 1 && (held.repeated || end < 50) {
                    let left = held.piece.counts - 1;
                    if !self.give_back(&mut held, left) {
                        return;
                    }
                }
                self.give_back(&mut held, 0);
            }
        }
    }

    /// Asks for more shares, which never waits. False when the hold is known to be over.
    fn more(&mut self, held: &mut Held) -> bool {
        let Kind::Shares { limit, .. } = held.kind else { return true };
        let counts = held.piece.counts;
        if counts >= limit {
            return true;
        }
        let take = self.dice.random_range(1..=limit - counts);
        let lease_ms = self.dice.random_range(1_000..=2_500);
        let (key, owner) = (&held.piece.key, &held.piece.owner);
        let request = format!("LOCK.SHARE {key} {owner} {limit} TAKE {take} PX {lease_ms}");
        let again = format!("{request} RETRY {}", counts + take);
        let heard = self.ask_surely(&request, &again, Duration::ZERO);
        let Some(fence) = heard.answer.int() else {
            count("more refused");
            return true;
        };
        count("more granted");
        held.repeated |= heard.repeated;
        if heard.repeated {
            count("a lost request for more repeated with RETRY");
        }
        let is_anew = fence != held.piece.fence;
        let ends = heard.first_asked.after_ms(lease_ms);
        // A hold that ended meanwhile gave its counts back. A repetition asked for all of them.
        held.piece.counts = if is_anew && !heard.repeated { take } else { counts + take };
        held.lease_ends = if is_anew { ends } else { ends.max(held.lease_ends) };
        if is_anew {
            tell(&Line::Denied(held.piece.owner.clone(), heard.told));
            (held.piece.fence, held.piece.since, held.bound) = (fence, heard.first_asked, None);
        }
        held.piece.raise = Raise { asked: heard.first_asked, told: heard.told, limit: Some(limit) };
        // It had what it had until now.
        tell(&Line::Changes(held.piece.owner.clone(), heard.told));
        held.goes_on(&heard, self.line.number, true);
        true
    }

    /// Moves the end of the lease, and binds what is bound to this connection. False when the hold is over.
    fn extend(&mut self, held: &mut Held) -> bool {
        // Never earlier than it was.
        let left_ms = held.lease_ends.0.saturating_sub(Moment::now().0) / 1_000 + 1;
        let ms = left_ms + self.dice.random_range(1..=500);
        let Piece { key, owner, fence, .. } = &held.piece;
        let session = held.bound.map_or(String::new(), |bound| format!(" SESSION {}", bound.ms));
        let request = format!("LOCK.EXTEND {key} {owner} PX {ms}{session} FENCE {fence}");
        let heard = self.ask_surely(&request, &request, Duration::ZERO);
        if heard.answer == Answer::Null {
            tell(&Line::Denied(held.piece.owner.clone(), heard.told));
            count("not held when it was to be extended");
            return false;
        }
        count("extended");
        held.lease_ends = heard.first_asked.after_ms(ms).max(held.lease_ends);
        let connection = self.line.number;
        held.bound = held.bound.map(|bound| Bound { connection, alive: heard.asked, ..bound });
        tell(&Line::Changes(held.piece.owner.clone(), heard.told));
        held.goes_on(&heard, connection, false);
        true
    }

    /// Gives back all counts but so many. False when the hold is over.
    fn give_back(&mut self, held: &mut Held, left: u32) -> bool {
        let Piece { key, owner, fence, counts, .. } = held.piece.clone();
        let release = |amount: &str| format!("LOCK.RELEASE {key} {owner}{amount} FENCE {fence}");
        let to = if left == 0 { release(" ALL") } else { release(&format!(" TO {left}")) };
        let request = if left > 0 && left + 1 == counts { release("") } else { to.clone() };
        // It is on its way from now on.
        tell(&Line::Changes(owner.clone(), Moment::now()));
        let heard = self.ask_surely(&request, &to, Duration::ZERO);
        let Some(found) = heard.answer.int() else {
            // The first of two requests may have given back all.
            if left > 0 || !heard.repeated {
                tell(&Line::Denied(owner, heard.told));
                count("not held when it was to be given back");
            }
            return false;
        };
        count(if left > 0 { "gave some back" } else { "gave all back" });
        if held.repeated {
            count("counts compared after RETRY");
        }
        tell(&Line::Returned(Returned { key, owner, expected: left, left: found, repeated: held.repeated }));
        held.piece.counts = left;
        if left > 0 {
            held.goes_on(&heard, self.line.number, false);
        }
        left > 0
    }

    /// Asks once, and if the reply is lost asks for the same in other words until it is answered. Nothing that was
    /// sent on a lost connection happens after that.
    fn ask_surely(&mut self, request: &str, again: &str, wait: Duration) -> Heard {
        let (first_asked, mut answer, mut told) = if self.chance(15) {
            self.line.caller.ask_unheard(request)
        } else {
            self.line.caller.ask_long(request, wait)
        };
        let (mut asked, mut repeated) = (first_asked, false);
        while matches!(answer, Answer::Lost | Answer::Silence) {
            if answer == Answer::Silence {
                tell(&Line::Forgotten(request.to_owned()));
            }
            repeated = true;
            count("connections lost in a request");
            let lost = self.line.number;
            self.line.connect();
            // An error when it is gone already. The server has closed it when it answers the next request.
            self.line.until_answered(&format!("CLIENT KILL ID {lost}"));
            self.line.until_answered("PING");
            (asked, answer, told) = self.line.caller.ask(again);
        }
        if let Answer::Error(text) = &answer {
            panic!("{request}, then {again}: {text}");
        }
        Heard { first_asked, asked, answer, told, repeated }
    }
}
