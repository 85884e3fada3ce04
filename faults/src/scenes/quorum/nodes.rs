//! Five servers, each behind a proxy, and what is done to one of them at a time.

use super::agent::{KEY, LEASE_MS, QUEUE_MS};
use crate::options::Options;
use rand::rngs::StdRng;
use rand::{RngExt, seq::IndexedRandom};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{PATIENCE, Proxy, Server, Setup, Signal, wait_for};

pub const NODES: usize = 5;
/// Those that forget all when they are killed. A client waits in line at the first node, so these come first.
const FORGETTING: Range<usize> = 0..3;
/// Those that keep what they have granted.
const KEEPING: Range<usize> = 3..NODES;
/// How far their wall clocks may be apart, in milliseconds: half of lock.promotion-skew-ms.
const APART_MS: i64 = 500;
/// A hold must not be there so long after its lease.
const OVERDUE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node is killed that has saved all, and starts again.
    Kept,
    /// A node is killed that saves nothing, and starts again.
    Wiped,
    /// All nodes that save nothing are killed and started again, one after the other.
    Rolling,
    Stopped,
    /// Nothing gets through to a node or from it. What was sent arrives later, or never.
    CutOff,
    /// The same for half of the clients and a majority of the nodes, for longer than a lease.
    Split,
}

impl Fault {
    pub const NAMES: [(&str, Fault); 6] = [
        ("kept", Fault::Kept),
        ("wiped", Fault::Wiped),
        ("rolling", Fault::Rolling),
        ("stopped", Fault::Stopped),
        ("cut-off", Fault::CutOff),
        ("split", Fault::Split),
    ];

    /// What it makes of a node that stays away.
    pub fn away(self) -> &'static str {
        match self {
            Fault::Kept | Fault::Wiped | Fault::Rolling => "killed",
            Fault::Stopped => "stopped",
            Fault::CutOff | Fault::Split => "cut off",
        }
    }

    pub fn name(self) -> &'static str {
        Fault::NAMES.iter().find(|(_, fault)| *fault == self).expect("all have one").0
    }
}

/// A server, and the proxies through which alone its clients reach it: one for each half of them.
pub struct Node {
    server: Server,
    doors: [Proxy; 2],
    /// In front of the module's counters while requests are counted.
    counter: Option<testbed::Client>,
}

pub struct Nodes {
    nodes: Vec<Node>,
}

impl Nodes {
    /// Starts them. Their wall clocks differ.
    pub fn start(grace_ms: u64, dice: &mut StdRng) -> Nodes {
        let mut node = |number: usize| {
            let offset_ms = dice.random_range(-APART_MS / 2..=APART_MS / 2);
            let setup = Server::setup().wall_offset(&format!("{:+.3}", offset_ms as f64 / 1000.0));
            // The allocator's own thread reads the wall clock, and would sleep too long.
            let setup = setup.option("jemalloc-bg-thread", "no");
            let setup = setup.lock_option("promotion-skew-ms", &(2 * APART_MS).to_string());
            let server = keeping(setup, KEEPING.contains(&number), grace_ms).start();
            let doors = [0, 1].map(|_| Proxy::to(server.port()));
            Node { server, doors, counter: None }
        };
        let nodes = Nodes { nodes: (0..NODES).map(&mut node).collect() };
        // A start begins one.
        nodes.await_graces();
        nodes
    }

    /// Where each half of the clients finds them.
    pub fn urls(&self) -> [Vec<String>; 2] {
        let url = |door: &Proxy| format!("redis://127.0.0.1:{}", door.port());
        [0, 1].map(|half: usize| self.nodes.iter().map(|node| url(&node.doors[half])).collect())
    }

    /// Does one of these things to one of them after the other for so long. During those that last longer than a lease
    /// no client is to be stopped: one that runs shows until when it believes that it holds the lock.
    pub fn disturb(
        &mut self,
        faults: &[Fault],
        ends: Instant,
        calm: &AtomicBool,
        dice: &mut StdRng,
    ) -> Vec<&'static str> {
        let mut done = Vec::new();
        while Instant::now() < ends {
            thread::sleep(Duration::from_millis(dice.random_range(50..=400)));
            let Some(fault) = faults.choose(dice) else { continue };
            // Where nodes observe a grace, nobody gets the lock for some time after that.
            if *fault == Fault::Rolling && faults.len() > 1 && dice.random_bool(0.7) {
                continue;
            }
            calm.store(matches!(fault, Fault::Split | Fault::Rolling), Ordering::Relaxed);
            self.suffer(*fault, dice);
            done.push(fault.name());
            // Else the next fault finds nodes that grant nothing yet.
            let quiet_ms = match fault {
                Fault::Rolling => LEASE_MS..=2 * LEASE_MS,
                Fault::Wiped => 0..=LEASE_MS,
                Fault::Kept | Fault::Stopped | Fault::CutOff | Fault::Split => 0..=0,
            };
            thread::sleep(Duration::from_millis(dice.random_range(quiet_ms)));
            calm.store(false, Ordering::Relaxed);
        }
        done
    }

    fn suffer(&mut self, fault: Fault, dice: &mut StdRng) {
        let number = match fault {
            Fault::Kept => dice.random_range(KEEPING),
            Fault::Wiped => dice.random_range(FORGETTING),
            Fault::Rolling | Fault::Stopped | Fault::CutOff | Fault::Split => dice.random_range(0..NODES),
        };
        let pause = Duration::from_millis(dice.random_range(50..=LEASE_MS + 500));
        let node = &mut self.nodes[number];
        match fault {
            Fault::Kept | Fault::Wiped => node.kill(Duration::from_millis(dice.random_range(0..=200))),
            Fault::Rolling => {
                for node in &mut self.nodes[FORGETTING] {
                    node.kill(Duration::ZERO);
                    thread::sleep(Duration::from_millis(dice.random_range(0..=200)));
                }
            }
            Fault::Stopped => {
                node.server.signal(Signal::STOP);
                thread::sleep(pause);
                node.server.signal(Signal::CONT);
            }
            Fault::CutOff => {
                let doors: Vec<&Proxy> = node.doors.iter().collect();
                cut_off(&doors, pause, dice.random());
            }
            Fault::Split => {
                let half = dice.random_range(0..2);
                let from = (0..NODES / 2 + 1).map(|next| &self.nodes[(number + next) % NODES].doors[half]);
                cut_off(&from.collect::<Vec<&Proxy>>(), pause + Duration::from_millis(LEASE_MS), dice.random());
            }
        }
    }

    /// What is still held or waited for when all clients have ended, and all leases and places with them.
    pub fn orphans(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_millis(LEASE_MS.max(QUEUE_MS)) + OVERDUE;
        let orphan = |(number, node): (usize, &Node)| {
            let info = node.server.connect().lock_info(KEY)?;
            Some(format!("node {number} still has {} holders and {} waiters", info.holding, info.waiting))
        };
        loop {
            let orphans: Vec<String> = self.nodes.iter().enumerate().filter_map(orphan).collect();
            if orphans.is_empty() || Instant::now() > deadline {
                return orphans;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn await_graces(&self) {
        for node in &self.nodes {
            let mut conn = node.server.connect();
            wait_for("the end of a grace", || conn.info_number("lock", "lock_grace_left_ms") == 0);
        }
    }

    /// Takes a node away in one of these ways, or brings it back.
    pub fn take_away(&mut self, number: usize, how: Fault, away: bool) {
        let node = &mut self.nodes[number];
        match (how, away) {
            (Fault::Stopped, true) => node.server.signal(Signal::STOP),
            (Fault::Stopped, false) => node.server.signal(Signal::CONT),
            (Fault::CutOff, away) => node.doors.iter().for_each(|door| door.freeze(away)),
            (_, true) => {
                node.counter = None;
                node.server.stop(true);
            }
            (_, false) => node.server.start(),
        }
    }

    /// How many requests of clients each of them has had, but for one that is away.
    pub fn requests(&mut self, away: Option<usize>) -> Vec<u64> {
        let here = self.nodes.iter_mut().enumerate().filter(|(number, _)| Some(*number) != away);
        here.map(|(_, node)| node.requests()).collect()
    }
}

/// Lets nothing through for so long. What was sent meanwhile is lost, or arrives then.
fn cut_off(doors: &[&Proxy], time: Duration, is_lost: bool) {
    doors.iter().for_each(|door| door.freeze(true));
    thread::sleep(time);
    for door in doors {
        if is_lost {
            door.cut_all();
        }
        door.freeze(false);
    }
}

/// The configuration of a node, as docs/guide/quorum.md has it for each kind.
fn keeping(setup: Setup, keeps: bool, grace_ms: u64) -> Setup {
    if keeps {
        setup.option("appendonly", "yes").option("appendfsync", "always")
    } else {
        setup.lock_option("grace-ms", &grace_ms.to_string())
    }
}

impl Node {
    fn kill(&mut self, pause: Duration) {
        self.server.stop(true);
        self.doors.iter().for_each(Proxy::cut_all);
        thread::sleep(pause);
        self.server.start();
    }

    /// Commands that take, keep and release locks; those that a script calls do not count.
    fn requests(&mut self) -> u64 {
        let server = &self.server;
        let conn = self.counter.get_or_insert_with(|| server.connect());
        ["lock.", "set:", "eval"].map(|command| conn.calls(command)).into_iter().sum()
    }
}

/// How long the machine may take for what is over in a moment when it is not busy.
pub const BUSY: Duration = PATIENCE;

/// The dice of one party of a round.
pub fn dice(options: &Options, round: u64, party: u64) -> StdRng {
    options.dice((round << 32) + party)
}
