//! An owner that asks for a lock with QUEUE, again and again, over connections that it loses.

use crate::caller::{Answer, Numbered};
use crate::history::{Moment, is_early};
use crate::places::{Ask, End, Place, Told};
use redis::Value;
use std::thread;
use std::time::Duration;

pub struct Requester<'c> {
    /// The connection that it asks over; another one after it was lost.
    line: &'c mut Numbered,
    /// Of connections that it makes.
    patience: Duration,
    /// The command up to PX.
    request: String,
    /// Connections that it has lost. A request may still be on its way on them.
    lost: Vec<Lost>,
    pub place: Place,
    /// Requests that had no answer in time, though their connection was open.
    pub forgotten: Vec<String>,
    /// Requests that were answered null before their timeout.
    pub too_early: Vec<String>,
}

/// A connection, and the request that was on it.
struct Lost {
    connection: i64,
    ask: usize,
}

impl<'c> Requester<'c> {
    /// The request is the command up to the lease, as `LOCK.ACQUIRE key owner`. The place has no requests yet.
    pub fn new(line: &'c mut Numbered, patience: Duration, request: &str, place: Place) -> Requester<'c> {
        let (lost, forgotten, too_early) = (Vec::new(), Vec::new(), Vec::new());
        let mut requester = Requester { line, patience, request: String::new(), lost, place, forgotten, too_early };
        requester.turn_to(request);
        requester
    }

    /// Asks for the place in other words from now on.
    pub fn turn_to(&mut self, request: &str) {
        let Place { lease_ms, queue_ms, .. } = self.place;
        self.request = format!("{request} PX {lease_ms} QUEUE {queue_ms}");
    }

    /// Asks once; waits for a grant if there is a time for it.
    pub fn ask(&mut self, block_ms: u64) -> Told {
        let request = self.with_block(block_ms);
        let heard = self.line.caller.ask_long(&request, Duration::from_millis(block_ms));
        let told = self.note(&request, block_ms, self.line.number, heard);
        self.reconnect();
        told
    }

    /// Asks over this connection and another one at the same time.
    pub fn ask_twice(&mut self, block_ms: u64) -> Told {
        let request = self.with_block(block_ms);
        let wait = Duration::from_millis(block_ms);
        let mut second = Numbered::new(self.line.caller.port(), self.patience);
        let (first_heard, second_heard) = thread::scope(|scope| {
            let second = scope.spawn(|| second.caller.ask_long(&request, wait));
            (self.line.caller.ask_long(&request, wait), second.join().expect("does not panic"))
        });
        let first = self.note(&request, block_ms, self.line.number, first_heard);
        let also = self.note(&request, block_ms, second.number, second_heard);
        self.reconnect();
        if matches!(also, Told::Fence(_)) { also } else { first }
    }

    /// Begins to wait, and gives the connection up after a while: a read timeout. It may have been granted before.
    pub fn ask_impatiently(&mut self, block_ms: u64, patience: Duration) -> Told {
        let request = self.with_block(block_ms);
        let (asked, answer, told) = self.line.caller.ask_within(&request, patience);
        let answer = if answer == Answer::Silence { Answer::Lost } else { answer };
        let told = self.note(&request, block_ms, self.line.number, (asked, answer, told));
        self.reconnect();
        told
    }

    /// How many connections it has lost, and may still be served on.
    pub fn lost(&self) -> usize {
        self.lost.len()
    }

    /// Makes sure that nothing that was sent on a lost connection happens from now on; when that was known.
    pub fn settle(&mut self) -> Moment {
        for Lost { connection, ask } in std::mem::take(&mut self.lost) {
            // An error when it is gone already.
            self.line.until_answered(&format!("CLIENT KILL ID {connection}"));
            // The server may close it only after it has answered: it has when it answers the next request.
            self.line.until_answered("PING");
            self.place.asks[ask].told = Moment::now();
        }
        Moment::now()
    }

    /// Gives the place up, and whatever it may have come to.
    pub fn leave(&mut self, release: &str) {
        self.settle();
        self.place.end = End::Left(self.give_back(release));
    }

    pub fn give_back(&mut self, release: &str) -> Moment {
        self.line.until_answered(release).2
    }

    pub fn die(&mut self) {
        self.place.end = End::Died(self.settle());
    }

    /// Comes back over another connection, if it has lost its own.
    fn reconnect(&mut self) {
        if self.lost.iter().any(|lost| lost.connection == self.line.number) {
            self.line.connect();
        }
    }

    fn with_block(&self, block_ms: u64) -> String {
        if block_ms > 0 { format!("{} BLOCK {block_ms}", self.request) } else { self.request.clone() }
    }

    fn note(
        &mut self,
        request: &str,
        block_ms: u64,
        connection: i64,
        (asked, answer, told): (Moment, Answer, Moment),
    ) -> Told {
        let is_lost = matches!(answer, Answer::Lost | Answer::Silence);
        let answer = match answer {
            Answer::Value(Value::Int(fence)) => Told::Fence(fence),
            Answer::Value(Value::Array(fences)) => match fences.first() {
                Some(Value::Int(fence)) => Told::Fence(*fence),
                _ => panic!("{request}: {fences:?}"),
            },
            Answer::Null => Told::Waits,
            // A later request of the owner took the place over.
            Answer::Error(text) if text.starts_with("UNBLOCKED") => Told::Unknown,
            Answer::Silence => {
                self.forgotten.push(request.to_owned());
                Told::Unknown
            }
            Answer::Lost => Told::Unknown,
            answer => panic!("{request}: {answer:?}"),
        };
        if answer == Told::Waits && block_ms > 0 && is_early(asked, told, block_ms) {
            self.too_early.push(format!("{request}: asked {asked:?}, told {told:?}"));
        }
        if is_lost {
            self.lost.push(Lost { connection, ask: self.place.asks.len() });
        }
        // Without an answer: until it is settled.
        let told = if is_lost { Moment(u64::MAX) } else { told };
        self.place.asks.push(Ask { asked, told, block_ms, answer });
        answer
    }
}
