//! Clients that want one lock, as state machines: ask, hold, give back. What they send is not said here.

use crate::driver::{Lines, Workload};
use crate::tally::Tally;
use bench::reply::Reply;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Idle,
    Asks,
    Gives,
}

/// What a client does once it was granted.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Then {
    AskAgain,
    GiveBack,
}

/// What one client sends.
pub(crate) struct Requests {
    pub(crate) take: Vec<u8>,
    pub(crate) give: Vec<u8>,
    /// The reply to `give`.
    pub(crate) given: i64,
}

/// Clients of one connection and two requests each: they wait in the server, or ask again after a pause.
pub(crate) struct Ring {
    pub(crate) then: Then,
    /// How many have done what is to be done.
    pub(crate) done: usize,
    requests: Vec<Requests>,
    retry: Option<Duration>,
    phases: Vec<Phase>,
    tally: Tally,
}

impl Ring {
    /// With `retry` a client that is answered null asks again after that time; without it none may be.
    pub(crate) fn new(requests: Vec<Requests>, then: Then, retry: Option<Duration>) -> Ring {
        let clients = requests.len();
        Ring { then, done: 0, requests, retry, phases: vec![Phase::Idle; clients], tally: Tally::new(clients) }
    }

    pub(crate) fn clients(&self) -> usize {
        self.requests.len()
    }

    /// How often a client was granted what it asked for, since the tally was cleared.
    pub(crate) fn granted(&self) -> u64 {
        self.tally.grants.iter().sum()
    }

    fn ask(&mut self, client: usize, now: Instant, lines: &mut Lines) {
        self.phases[client] = Phase::Asks;
        self.tally.asks(client, now);
        lines.send(client, &self.requests[client].take);
    }

    fn got(&mut self, client: usize, now: Instant, lines: &mut Lines) {
        self.tally.gets(client, now);
        self.phases[client] = Phase::Gives;
        lines.send(client, &self.requests[client].give);
    }
}

impl Workload for Ring {
    fn start(&mut self, lines: &mut Lines) {
        for client in 0..self.requests.len() {
            self.ask(client, Instant::now(), lines);
        }
    }

    fn reply(&mut self, client: usize, reply: &Reply<'_>, now: Instant, lines: &mut Lines) {
        match (self.phases[client], reply) {
            (Phase::Asks, Reply::Null) => {
                let retry = self.retry.expect("a wait without end is not answered null");
                lines.pause(client, now + retry);
            }
            (Phase::Asks, _) => self.got(client, now, lines),
            (Phase::Gives, Reply::Int(given)) if *given == self.requests[client].given => match self.then {
                Then::AskAgain => self.ask(client, now, lines),
                Then::GiveBack => {
                    self.phases[client] = Phase::Idle;
                    self.done += 1;
                }
            },
            _ => panic!("nobody waits for the reply {reply:?}"),
        }
    }

    fn resume(&mut self, client: usize, lines: &mut Lines) {
        lines.send(client, &self.requests[client].take);
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}
