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

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Tries,
    Subscribes,
    Listens,
    Gives,
}

struct Listener {
    step: Step,
    subscribed: bool,
    /// A message came while it tried: it tries once more. Redisson counts them and tries once for each.
    woken: bool,
}

/// Clients in the shape of Redisson's lock. A script says for how long the lock is still held, a channel says when it
/// was released, and all subscribers try again. Each client is a process of its own: of the threads of one process
/// Redisson wakes one. Client n has connections 2n, for commands, and 2n + 1, for the channel.
pub(crate) struct Listeners {
    requests: Vec<Requests>,
    subscribe: Vec<u8>,
    unsubscribe: Vec<u8>,
    listeners: Vec<Listener>,
    tally: Tally,
}

impl Listeners {
    pub(crate) fn new(requests: Vec<Requests>, subscribe: Vec<u8>, unsubscribe: Vec<u8>) -> Listeners {
        let clients = requests.len();
        let listener = |_| Listener { step: Step::Tries, subscribed: false, woken: false };
        let listeners = (0..clients).map(listener).collect();
        Listeners { requests, subscribe, unsubscribe, listeners, tally: Tally::new(clients) }
    }

    fn attempt(&mut self, client: usize, lines: &mut Lines) {
        self.listeners[client].step = Step::Tries;
        self.listeners[client].woken = false;
        lines.send(2 * client, &self.requests[client].take);
    }

    fn message(&mut self, client: usize, kind: &[u8], lines: &mut Lines) {
        let listener = &mut self.listeners[client];
        match (kind, listener.step) {
            (b"subscribe", Step::Subscribes) | (b"message", Step::Listens) => self.attempt(client, lines),
            (b"message", Step::Tries) => listener.woken = listener.subscribed,
            // Of a release before it unsubscribed.
            (b"message" | b"unsubscribe", _) => {}
            _ => panic!("nobody waits for this message"),
        }
    }
}

impl Workload for Listeners {
    fn start(&mut self, lines: &mut Lines) {
        for client in 0..self.requests.len() {
            self.tally.asks(client, Instant::now());
            self.attempt(client, lines);
        }
    }

    fn reply(&mut self, conn: usize, reply: &Reply<'_>, now: Instant, lines: &mut Lines) {
        let client = conn / 2;
        let listener = &mut self.listeners[client];
        match (listener.step, reply) {
            (_, Reply::Array(kind, _)) => self.message(client, kind, lines),
            (Step::Tries, Reply::Null) => {
                listener.step = Step::Gives;
                if std::mem::take(&mut listener.subscribed) {
                    lines.send(conn + 1, &self.unsubscribe);
                }
                self.tally.gets(client, now);
                lines.send(conn, &self.requests[client].give);
            }
            (Step::Tries, Reply::Int(_)) if !listener.subscribed => {
                listener.step = Step::Subscribes;
                listener.subscribed = true;
                lines.send(conn + 1, &self.subscribe);
            }
            (Step::Tries, Reply::Int(_)) if listener.woken => self.attempt(client, lines),
            (Step::Tries, Reply::Int(_)) => listener.step = Step::Listens,
            (Step::Gives, Reply::Int(given)) if *given == self.requests[client].given => {
                self.tally.asks(client, now);
                self.attempt(client, lines);
            }
            _ => panic!("nobody waits for the reply {reply:?}"),
        }
    }

    fn resume(&mut self, _: usize, _: &mut Lines) {}

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}
