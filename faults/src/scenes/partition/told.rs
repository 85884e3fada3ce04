//! Owners that wait with QUEUE and NOTIFY: processes with one connection for all requests, and one subscription.
//!
//! First messages alone wake them, over whole wires. Then they also ask again at a third of QUEUE, and meanwhile
//! subscriptions are cut and held back, and another client sends messages twice, and sends some of its own.

use super::wires::{PATIENCE, Stage};
use crate::caller::{Answer, Caller};
use crate::crowd::Stop;
use crate::history::{Grant, Moment, Release};
use crate::judge::{fences, holds, tell};
use crate::news::{News, subscribe};
use crate::witness::Witness;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::{SeedableRng, seq::IndexedRandom};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use testbed::Proxy;

const PROCESSES: u64 = 3;
const KEYS: u64 = 3;
/// Of each process, for each key.
const OWNERS: u64 = 8;
/// An owner that messages wake is told so soon.
const TOLD_MS: u64 = 30_000;
/// So long a place lasts where messages alone wake its owner: nothing else ends the wait in time.
const LONG_QUEUE_MS: u64 = 60_000;
const QUEUE_MS: u64 = 3_000;
const LEASE_MS: u64 = 120_000;

/// What a process saw.
#[derive(Default)]
struct Saw {
    grants: Vec<Grant>,
    requests: u64,
    /// Requests after a message, that were answered null.
    woken_in_vain: u64,
    subscribed: u64,
    /// Owners that were not granted in time.
    left: Vec<String>,
}

/// A process: all its owners wait over one connection and one subscription.
struct Process {
    line: Caller,
    news: Receiver<News>,
    channel: String,
    queue_ms: u64,
    /// Whether owners ask again by themselves.
    polls: bool,
    dice: StdRng,
    /// Owners that wait: their keys, when they first asked, and when they last did.
    waiting: BTreeMap<String, (String, Moment, Moment)>,
    /// Holds, and when to release them.
    holding: Vec<(Moment, Grant)>,
    saw: Saw,
}

impl Process {
    fn live(mut self, keys: &[String]) -> Saw {
        let ends = Moment::now().after_ms(2 * TOLD_MS);
        let is_subscribed = matches!(self.news.recv_timeout(PATIENCE), Ok(News::Subscribed));
        assert!(is_subscribed, "the subscription is confirmed");
        for (key, number) in keys.iter().flat_map(|key| (0..OWNERS).map(move |number| (key, number))) {
            let owner = format!("{}.{key}.{number}", self.channel);
            let now = Moment::now();
            self.waiting.insert(owner.clone(), (key.clone(), now, now));
            self.ask(&owner, false);
        }
        while !(self.waiting.is_empty() && self.holding.is_empty()) && Moment::now() < ends {
            match self.news.recv_timeout(Duration::from_millis(5)) {
                Ok(News::Subscribed) => {
                    self.saw.subscribed += 1;
                    self.ask_all();
                }
                Ok(News::Message(name)) if name == "*" => self.ask_all(),
                Ok(News::Message(name)) => self.ask(&name, true),
                Err(_) => {}
            }
            let due = |last: &Moment| *last < Moment(Moment::now().0 - self.queue_ms * 1_000 / 3);
            let late: Vec<String> =
                self.waiting.iter().filter(|(_, at)| due(&at.2)).map(|(owner, _)| owner.clone()).collect();
            if self.polls {
                late.iter().for_each(|owner| self.ask(owner, false));
            }
            self.give_back();
        }
        self.saw.left =
            self.waiting.into_iter().map(|(owner, (_, since, _))| format!("{owner}, since {since:?}")).collect();
        self.saw
    }

    fn ask_all(&mut self) {
        let owners: Vec<String> = self.waiting.keys().cloned().collect();
        owners.iter().for_each(|owner| self.ask(owner, false));
    }

    /// Asks again for an owner, if it waits here.
    fn ask(&mut self, owner: &str, is_woken: bool) {
        let Some((key, since, last)) = self.waiting.get_mut(owner) else { return };
        let (channel, queue) = (&self.channel, self.queue_ms);
        let request = format!("LOCK.ACQUIRE {key} {owner} PX {LEASE_MS} QUEUE {queue} NOTIFY {channel}");
        let (asked, answer, told) = self.line.ask_within(&request, Duration::from_millis(TOLD_MS));
        self.saw.requests += 1;
        *last = told;
        match answer {
            Answer::Null => self.saw.woken_in_vain += u64::from(is_woken),
            answer => {
                let fence = answer.int().unwrap_or_else(|| panic!("{request}: {answer:?}"));
                let (key, owner, node, since) = (key.clone(), owner.to_owned(), self.line.port(), *since);
                self.waiting.remove(&owner);
                let lease_ends = asked.after_ms(LEASE_MS);
                let grant =
                    Grant { key, owner, writes: true, fence, node, asked: since, told, lease_ends, release: None };
                self.holding.push((told.after_ms(self.dice.random_range(0..40)), grant));
            }
        }
    }

    fn give_back(&mut self) {
        let (over, on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.holding).into_iter().partition(|(until, _)| *until <= Moment::now());
        self.holding = on;
        for (_, mut grant) in over {
            let request = format!("LOCK.RELEASE {} {}", grant.key, grant.owner);
            let (asked, answer, told) = self.line.ask_within(&request, Duration::from_millis(TOLD_MS));
            assert!(answer.int().is_some(), "{request}: {answer:?}");
            grant.release = Some(Release { asked, answer: Some((told, crate::history::Freed::Left)) });
            self.saw.grants.push(grant);
        }
    }
}

impl Stage<'_> {
    /// Owners of several processes wait for some locks, until each has had its own.
    pub fn told(&mut self, name: &str, is_disturbed: bool) {
        let keys: Vec<String> = (0..KEYS).map(|number| format!("{name}.k{number}")).collect();
        let channels: Vec<String> = (0..PROCESSES).map(|number| format!("lock:notify:{name}.p{number}")).collect();
        let wires: Vec<Proxy> = channels.iter().map(|_| Proxy::to(self.primary.port())).collect();
        let (port, subscribes, disturbs) = (self.primary.port(), AtomicBool::new(true), AtomicBool::new(is_disturbed));
        let queue_ms = if is_disturbed { QUEUE_MS } else { LONG_QUEUE_MS };
        let saw: Vec<Saw> = thread::scope(|scope| {
            let _subscribes = Stop(&subscribes);
            let owners: Vec<_> = (channels.iter().zip(&wires))
                .map(|(channel_name, wire)| {
                    let (to, news) = channel();
                    let goes_on = &subscribes;
                    scope.spawn(move || subscribe(wire.port(), channel_name, goes_on, &to));
                    let (line, dice) = (Caller::new(port, PATIENCE), StdRng::seed_from_u64(self.dice.random()));
                    let (waiting, holding, saw) = (BTreeMap::new(), Vec::new(), Saw::default());
                    let channel = channel_name.clone();
                    let polls = is_disturbed;
                    let process = Process { line, news, channel, queue_ms, polls, dice, waiting, holding, saw };
                    let keys = &keys;
                    scope.spawn(move || process.live(keys))
                })
                .collect();
            let forger = {
                let (dice, disturbs) = (StdRng::seed_from_u64(self.dice.random()), &disturbs);
                let (channels, wires, keys) = (&channels, &wires, &keys);
                scope.spawn(move || disturb(port, (channels, wires, keys), dice, disturbs))
            };
            let saw = owners.into_iter().map(|owner| owner.join()).collect::<Vec<_>>();
            disturbs.store(false, Ordering::Relaxed);
            let [cut, frozen, forged] = forger.join().expect("does not panic");
            self.report.add("told: subscriptions cut", cut);
            self.report.add("told: subscriptions held back", frozen);
            self.report.add("told: messages forged", forged);
            subscribes.store(false, Ordering::Relaxed);
            wires.iter().for_each(Proxy::cut_all);
            saw.into_iter().map(|saw| saw.expect("processes do not panic")).collect()
        });
        self.judge_told(is_disturbed, saw);
    }

    fn judge_told(&mut self, is_disturbed: bool, all: Vec<Saw>) {
        let mut grants = Vec::new();
        for saw in all {
            self.report.violations(saw.left.iter().map(|owner| format!("told: never granted: {owner}")));
            self.report.add("told: requests", saw.requests);
            let which = if is_disturbed { "told: woken in vain" } else { "told: woken in vain, undisturbed" };
            self.report.add(which, saw.woken_in_vain);
            self.report.add("told: subscribed again", saw.subscribed);
            grants.extend(saw.grants);
        }
        self.report
            .add(if is_disturbed { "told: granted" } else { "told: granted by messages alone" }, grants.len() as u64);
        tell(self.report, [holds(&grants, &[]), fences(&grants)].concat(), |_| None);
        let most_ms = if is_disturbed { QUEUE_MS / 3 } else { 0 } + TOLD_MS;
        let late = idle_for(&grants, &self.witness).into_iter().filter(|(us, _)| *us > most_ms * 1_000);
        let late: Vec<String> = late.map(|(us, next)| format!("told: free for {us} us before {next:?}")).collect();
        self.report.violations(late);
    }
}

/// How long each lock was free though an owner waited for it, stalls of the machine apart; and that owner's grant.
fn idle_for(grants: &[Grant], witness: &Witness) -> Vec<(u64, Grant)> {
    let mut by_fence: Vec<&Grant> = grants.iter().collect();
    by_fence.sort_by_key(|grant| (&grant.key, grant.fence));
    let idle = by_fence.windows(2).filter(|two| two[0].key == two[1].key).filter_map(|two| {
        let freed = two[0].release?.answer?.0.max(two[1].asked);
        let us = two[1].told.0.saturating_sub(freed.0);
        // Asking the witness takes some time: only where it matters.
        let stalled = if us > TOLD_MS * 1_000 { witness.stalled_us(freed, two[1].told) } else { 0 };
        Some((us.saturating_sub(stalled), two[1].clone()))
    });
    idle.collect()
}

/// Cuts subscriptions, holds them back, and sends messages: names of owners that wait, of none, and `*`. How often.
fn disturb(
    port: u16,
    (channels, wires, keys): (&[String], &[Proxy], &[String]),
    mut dice: StdRng,
    goes_on: &AtomicBool,
) -> [u64; 3] {
    let (mut forger, mut counts) = (Caller::new(port, PATIENCE), [0; 3]);
    for step in 0.. {
        if !goes_on.load(Ordering::Relaxed) {
            break;
        }
        let nth = dice.random_range(0..wires.len());
        match step % 12 {
            3 => {
                wires[nth].cut_all();
                counts[0] += 1;
            }
            9 => {
                wires[nth].freeze(true);
                thread::sleep(Duration::from_millis(dice.random_range(50..300)));
                wires[nth].freeze(false);
                counts[1] += 1;
            }
            _ => {
                let (channel, key) = (&channels[nth], keys.choose(&mut dice).expect("some"));
                let owner = match dice.random_range(0..12) {
                    0 => "*".to_owned(),
                    1 => "nobody".to_owned(),
                    _ => format!("{channel}.{key}.{}", dice.random_range(0..OWNERS)),
                };
                forger.ask(&format!("PUBLISH {channel} {owner}"));
                counts[2] += 1;
            }
        }
        thread::sleep(Duration::from_millis(dice.random_range(1..10)));
    }
    counts
}
