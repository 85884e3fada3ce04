//! Owners that wait without a connection of their own, and are told when to ask (NOTIFY). Beside them the same owners
//! wait each on a connection (BLOCK), or ask each 100 ms.

use crate::clients::{Requests, Ring, Then};
use crate::driver::{Lines, Workload};
use crate::rivals::{notified, polled_places};
use crate::sample::{Sample, measure, median, ratio};
use crate::tally::Tally;
use bench::reply::Reply;
use bench::server::Bench;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const OWNERS: usize = 64;
const PROCESSES: &[usize] = &[1, 4, 16, 32];
/// The requests of a lock: one that queues, one that collects, one that releases, and those that ask in vain.
const SENT_GOAL: f64 = 3.05;
const CPU_GOAL: f64 = 1.7;
/// How many locks of BLOCK, without a hold and with one of a millisecond.
const RATE_GOALS: [f64; 2] = [0.5, 0.75];
const POLLED_GOAL: f64 = 100.0;

/// Owners that ask, hold for a time, release and ask again. Those of a process share a connection for requests and one
/// for messages. Without a process each has a connection, and waits there.
pub(crate) struct Owners {
    requests: Vec<Requests>,
    /// One for each process.
    subscribe: Vec<Vec<u8>>,
    confirmed: usize,
    hold: Duration,
    /// The requests under way on each connection, in order.
    sent: Vec<VecDeque<Sent>>,
    states: Vec<State>,
    tally: Tally,
}

#[derive(Clone, Copy)]
enum Sent {
    Take(usize),
    Give(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Asks { told: bool },
    Waits,
    Holds,
}

impl Owners {
    pub(crate) fn new(requests: Vec<Requests>, subscribe: Vec<Vec<u8>>, hold: Duration) -> Owners {
        let count = requests.len();
        let (sent, states) = (vec![VecDeque::new(); 2 * count], vec![State::Waits; count]);
        Owners { requests, subscribe, confirmed: 0, hold, sent, states, tally: Tally::new(count) }
    }

    /// The connection for an owner's requests. Process n has connections 2n, for these, and 2n + 1, for messages.
    fn conn_of(&self, owner: usize) -> usize {
        match self.subscribe.len() {
            0 => owner,
            processes => 2 * (owner % processes),
        }
    }

    fn send(&mut self, sent: Sent, lines: &mut Lines) {
        let (Sent::Take(owner) | Sent::Give(owner)) = sent;
        let conn = self.conn_of(owner);
        let bytes = match sent {
            Sent::Take(_) => &self.requests[owner].take,
            Sent::Give(_) => &self.requests[owner].give,
        };
        lines.send(conn, bytes);
        self.sent[conn].push_back(sent);
    }

    fn take(&mut self, owner: usize, lines: &mut Lines) {
        self.states[owner] = State::Asks { told: false };
        self.send(Sent::Take(owner), lines);
    }

    fn take_all(&mut self, lines: &mut Lines) {
        for owner in 0..self.requests.len() {
            self.tally.asks(owner, Instant::now());
            self.take(owner, lines);
        }
    }

    /// A message names an owner. Redis 7.0 may send it before the reply of a request.
    fn told(&mut self, owner: usize, lines: &mut Lines) {
        match self.states[owner] {
            State::Asks { .. } => self.states[owner] = State::Asks { told: true },
            State::Waits => self.take(owner, lines),
            State::Holds => {}
        }
    }

    fn answered(&mut self, owner: usize, is_granted: bool, now: Instant, lines: &mut Lines) {
        if is_granted {
            self.tally.gets(owner, now);
            self.states[owner] = State::Holds;
            match self.hold.is_zero() {
                true => self.send(Sent::Give(owner), lines),
                false => lines.pause(owner, now + self.hold),
            }
        } else if self.states[owner] == (State::Asks { told: true }) {
            self.take(owner, lines);
        } else {
            self.states[owner] = State::Waits;
        }
    }
}

impl Workload for Owners {
    fn start(&mut self, lines: &mut Lines) {
        for process in 0..self.subscribe.len() {
            lines.send(2 * process + 1, &self.subscribe[process]);
        }
        if self.subscribe.is_empty() {
            self.take_all(lines);
        }
    }

    fn reply(&mut self, conn: usize, reply: &Reply<'_>, now: Instant, lines: &mut Lines) {
        if let Reply::Array(kind, name) = reply {
            if *kind == b"subscribe" {
                self.confirmed += 1;
                // A message to a channel that is not subscribed yet is lost.
                if self.confirmed == self.subscribe.len() {
                    self.take_all(lines);
                }
            } else if *kind == b"message" {
                let number = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix("client-")?.parse().ok());
                self.told(number.expect("the name of an owner"), lines);
            }
            return;
        }
        match self.sent[conn].pop_front().expect("a request was sent") {
            Sent::Take(owner) => match reply {
                Reply::Null | Reply::Int(_) => self.answered(owner, !matches!(reply, Reply::Null), now, lines),
                _ => panic!("answered {reply}"),
            },
            Sent::Give(owner) => {
                assert!(matches!(reply, Reply::Int(0)), "answered {reply}");
                self.tally.asks(owner, now);
                self.take(owner, lines);
            }
        }
    }

    fn resume(&mut self, owner: usize, lines: &mut Lines) {
        self.send(Sent::Give(owner), lines);
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

/// Measures it, and returns what was found for other programs.
pub(crate) fn table(server: &mut Bench, rounds: usize, time: Duration) -> Value {
    println!("\n{OWNERS} owners of one lock, medians of {rounds} rounds of {time:?}");
    println!("{:<42} {:>9} {:>8} {:>8} {:>8}   of BLOCK: locks/s, cpu", "", "locks/s", "sent", "cpu us", "max/min");
    let mut found = Vec::new();
    for (hold_ms, rate_goal) in [0, 1].into_iter().zip(RATE_GOALS) {
        let hold = Duration::from_millis(hold_ms);
        let (mut block, mut polled) = (Vec::new(), Vec::new());
        let mut told: Vec<Vec<Sample>> = PROCESSES.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            block.push(of(server, 0, hold, time));
            for (&processes, told) in PROCESSES.iter().zip(&mut told) {
                told.push(of(server, processes, hold, time));
            }
            if hold.is_zero() {
                let ring = Ring::new(polled_places(OWNERS), Then::AskAgain, Some(Duration::from_millis(100)));
                polled.push(measure(server, ring, OWNERS, time));
                await_no_places(server);
            }
        }
        row(&format!("BLOCK, hold {hold_ms} ms"), &block, "");
        for (processes, told) in PROCESSES.iter().zip(&told) {
            let rate = ratio(told, &block, |sample| sample.rate).median;
            let cpu = ratio(told, &block, |sample| sample.cpu_us).median;
            let sent = median(told, |sample| sample.sent);
            let of_polled = (!polled.is_empty()).then(|| ratio(told, &polled, |sample| sample.rate).median);
            let is_within = rate >= rate_goal
                && cpu <= CPU_GOAL
                && sent <= SENT_GOAL
                && of_polled.is_none_or(|ratio| ratio >= POLLED_GOAL);
            let verdict = if is_within { "within" } else { "NOT within" };
            let name = format!("NOTIFY, {processes} processes, hold {hold_ms} ms");
            row(&name, told, &format!("{rate:.2} {cpu:.2}   {verdict}"));
            found.push(json!({
                "processes": processes, "hold_ms": hold_ms, "sent": sent, "rate_of_block": rate, "cpu_of_block": cpu,
                "rate_of_polled": of_polled, "within": is_within,
            }));
        }
        if !polled.is_empty() {
            row("asking each 100 ms", &polled, "");
        }
    }
    println!(
        "bars: {SENT_GOAL} requests a lock, {RATE_GOALS:?} of BLOCK's locks, {CPU_GOAL} of its CPU, {POLLED_GOAL} times asking's"
    );
    json!({ "rounds": rounds, "rows": found })
}

/// Measures owners of so many processes; of none, those that block.
fn of(server: &mut Bench, processes: usize, hold: Duration, time: Duration) -> Sample {
    let conns = if processes == 0 { OWNERS } else { 2 * processes };
    let (requests, subscribe) = notified(OWNERS, processes);
    let sample = measure(server, Owners::new(requests, subscribe, hold), conns, time);
    await_no_places(server);
    sample
}

/// Places of connections that have closed end by themselves. Until then they would get the lock.
fn await_no_places(server: &mut Bench) {
    testbed::wait_for("places to end", || server.conn.info_number("lock", "lock_places") == 0);
    server.conn.ok(&["FLUSHALL"]);
}

fn row(name: &str, samples: &[Sample], more: &str) {
    println!(
        "{name:<42} {:>9.0} {:>8.3} {:>8.2} {:>8.3}   {more}",
        median(samples, |sample| sample.rate),
        median(samples, |sample| sample.sent),
        median(samples, |sample| sample.cpu_us),
        median(samples, |sample| sample.unfairness),
    );
}
