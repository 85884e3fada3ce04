//! One lock over five servers. Several processes of clients take it again and again, and write to a resource while they
//! hold it. Meanwhile nodes are killed, with or without what they had granted, stopped, and cut off, one at a time.
//! Half of the clients lose the way to a majority of the nodes. The nodes' wall clocks are apart by up to half of
//! `lock.promotion-skew-ms`. Clients are stopped beyond their leases, and killed.
//!
//! Two of the nodes have `appendfsync always`. The others save nothing, and observe a grace as long as the longest
//! lease; with `--grace 0` they do not.
//!
//! At no moment two clients are valid, as far as they know themselves. Fences rise from hold to hold. The resource
//! refuses each write of a former holder. Nothing stays behind on any node. While one node is away, an acquisition and
//! its release take at most two round trips more.
//!
//! Libraries of other makers run on the same servers, under the same faults. They know neither fences nor a grace: what
//! is found of them is counted, and is no violation.
//!
//! A round is so many seconds with clients of each library.

mod agent;
mod nodes;

use self::agent::{LEASE_MS, Library, Pace, QUEUE_MS, Stage, start};
use self::nodes::{BUSY, Fault, NODES, Nodes, dice};
use crate::agents::Process;
use crate::history::{Grant, fences_back, fences_repeated, held_twice};
use crate::options::{Options, Scene};
use crate::report::Report;
use clap::{Arg, ArgAction, value_parser};
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Signal, wait_for};

/// How many clients there are at each moment.
const CLIENTS: u64 = 5;
/// A holder that is stopped stays so until another has written, but no longer than this beyond its lease: the place of
/// a stopped client in the queue, and the lease of one that was killed with the lock.
const OVERTAKEN_MS: u64 = QUEUE_MS + 2 * LEASE_MS;
/// How many of them may be stopped at once.
const STOPPED_MAX: usize = 2;
/// How often one client alone takes the lock, where requests are counted.
const STEPS: u64 = 5;
/// So many pairs of holds are printed where they are no violation.
const SHOWN_MAX: usize = 5;
/// Round trips of a hold: to take, to raise the fences of nodes whose clocks are behind, to release. Where no clock is,
/// the second one is missing.
const PLAIN: u64 = 3;
/// So many more are allowed where a node is away.
const MORE_MAX: u64 = 2;

pub const SCENE: Scene = Scene {
    name: "quorum",
    about: "Takes one lock over five servers, breaks one server at a time, and looks for two that hold it",
    variants: ("library", "Whose clients", &Library::NAMES),
    usual: Library::OURS,
    more: arguments,
    attempts: 3,
    play,
    ..Scene::PLAIN
};

fn arguments() -> Vec<Arg> {
    let number = |name, help, default| {
        Arg::new(name).long(name).help(help).value_parser(value_parser!(u64)).default_value(default)
    };
    let faults = Fault::NAMES.map(|(name, _)| name).to_vec();
    vec![
        number("seconds", "How long the faults of a round go on, with each library", "8"),
        number("grace", "lock.grace-ms of the nodes that save nothing", "2000"),
        Arg::new("fault").long("fault").help("What happens to nodes").value_parser(faults).action(ArgAction::Append),
    ]
}

/// All rounds with clients of one library.
fn play(options: &Options, report: &mut Report) {
    let library = Library::named(options.variant);
    for round in 0..options.rounds {
        let mut nodes = Nodes::start(options.number("grace"), &mut dice(options, round, 0));
        let play = Play { options, round, library };
        play.disturbed(&mut nodes, report);
        play.counted(&mut nodes, report);
    }
    // With fewer holds than one in two seconds it has shown little.
    report.must_reach("holds", (options.rounds * options.number("seconds") / 2).max(1));
    if library.is_ours() {
        report.must_see(["clients stopped while they held", "old writers: writes refused"]);
    }
}

/// One round.
struct Play<'o> {
    options: &'o Options,
    round: u64,
    library: Library,
}

impl Play<'_> {
    fn dice(&self, party: u64) -> StdRng {
        dice(self.options, self.round, party)
    }

    /// Clients work while nodes and clients suffer.
    fn disturbed(&self, nodes: &mut Nodes, report: &mut Report) {
        let library = self.library;
        let scene = Stage::new(library, nodes.urls(), Pace::Work(Box::new(Mutex::new(self.dice(1)))));
        let mut crew = Crew { scene, processes: Vec::new(), started: 0, dice: self.dice(2) };
        (0..CLIENTS).for_each(|_| crew.start());
        wait_for("the first hold", || !crew.scene.record().holds.is_empty());
        let ends = Instant::now() + Duration::from_secs(self.options.number("seconds"));
        let named = self.options.all("fault");
        let is_hit = |name: &&str| named.is_empty() || named.contains(name);
        let faults: Vec<_> = Fault::NAMES.iter().filter(|(name, _)| is_hit(name)).map(|(_, fault)| *fault).collect();
        let calm = AtomicBool::new(false);
        let of_nodes = thread::scope(|scope| {
            let mut dice = self.dice(3);
            let (nodes, calm) = (&mut *nodes, &calm);
            let of_nodes = scope.spawn(move || nodes.disturb(&faults, ends, calm, &mut dice));
            crew.disturb(ends, calm, report);
            of_nodes.join().expect("does not panic")
        });
        of_nodes.iter().for_each(|fault| report.add(&format!("nodes: {fault}"), 1));
        crew.end(report);
        if library.is_ours() {
            report.violations(nodes.orphans());
        } else {
            thread::sleep(Duration::from_millis(LEASE_MS));
        }
        let record = crew.scene.record();
        let holds: Vec<Grant> = record.holds.values().cloned().collect();
        judge(library, &holds, report);
        report.add_all(&record.counts);
        report.violations(record.violations.iter().cloned());
    }

    /// One client alone, first with all nodes, then with all but one.
    fn counted(&self, nodes: &mut Nodes, report: &mut Report) {
        let mut dice = self.dice(4);
        nodes.await_graces();
        let scene = Stage::new(self.library, nodes.urls(), Pace::Step(Mutex::default()));
        let process = start(&scene, 0);
        let all = requests(nodes, &scene, None, "all nodes", report);
        let ways = [Fault::Kept, Fault::Stopped, Fault::CutOff];
        // Clients wait in line at the first node, so that is one of them.
        for (how, away) in ways.iter().flat_map(|how| [(*how, 0), (*how, dice.random_range(1..NODES))]) {
            let which = format!("{} node {}", if away == 0 { "first" } else { "another" }, how.away());
            nodes.take_away(away, how, true);
            let fewer = requests(nodes, &scene, Some(away), &which, report);
            nodes.take_away(away, how, false);
            nodes.await_graces();
            let most = all.map(|all| all.max(PLAIN) + MORE_MAX);
            if self.library.is_ours() && fewer.is_none_or(|fewer| Some(fewer) > most) {
                let text = format!("{fewer:?} requests to a node for a hold, and {all:?} with all nodes");
                report.violation(format!("{which}: {text}"));
            }
        }
        scene.goes_on.store(false, Ordering::Relaxed);
        drop(process);
    }
}

/// How many requests a node has for one hold: of the node with the most, in the middle one of several holds. A request
/// to all nodes at once is one round trip. None if there was no hold.
fn requests(nodes: &mut Nodes, scene: &Stage, away: Option<usize>, which: &str, report: &mut Report) -> Option<u64> {
    let mut counts = Vec::new();
    for _ in 0..STEPS {
        let (before, holds) = (nodes.requests(away), scene.record().holds.len());
        assert!(scene.step(BUSY), "an agent does not answer");
        // A release may still be on its way to some of them.
        let mut after = nodes.requests(away);
        loop {
            thread::sleep(Duration::from_millis(50));
            let now = nodes.requests(away);
            if now == after {
                break;
            }
            after = now;
        }
        if scene.record().holds.len() > holds {
            counts.extend(before.iter().zip(&after).map(|(before, after)| after - before).max());
        }
    }
    report.add(&format!("alone, {which}: holds of {STEPS} attempts"), counts.len() as u64);
    counts.sort_unstable();
    let middle = counts.get(counts.len() / 2).copied();
    report.most(&format!("alone, {which}: requests to a node for each"), middle.unwrap_or_default());
    middle
}

/// A client that is stopped.
struct Stopped {
    client: u64,
    /// It stays so until then at least.
    until: Instant,
    /// If no other client has written by then, it goes on nevertheless.
    at_most: Instant,
}

impl Stopped {
    fn is_over(&self, scene: &Stage) -> bool {
        let now = Instant::now();
        self.at_most <= now || self.until <= now && scene.record().is_overtaken(self.client)
    }
}

/// The processes of a round.
struct Crew {
    scene: std::sync::Arc<Stage>,
    processes: Vec<Process<Library>>,
    started: u64,
    dice: StdRng,
}

impl Crew {
    fn start(&mut self) {
        self.processes.push(start(&self.scene, self.started));
        self.started += 1;
    }

    /// Stops clients beyond their leases, up to two at once, and kills some.
    /// A holder stays stopped until another client has written: so its next write is a late one.
    fn disturb(&mut self, ends: Instant, calm: &AtomicBool, report: &mut Report) {
        let mut stopped: Vec<Stopped> = Vec::new();
        while Instant::now() < ends || !stopped.is_empty() {
            thread::sleep(Duration::from_millis(5));
            let (over, still): (Vec<_>, Vec<_>) = stopped.into_iter().partition(|one| one.is_over(&self.scene));
            over.iter().for_each(|one| self.process(one.client).signal(Signal::CONT));
            stopped = still;
            let rests = calm.load(Ordering::Relaxed) || stopped.len() == STOPPED_MAX || Instant::now() >= ends;
            if rests || !self.dice.random_bool(0.01) {
                continue;
            }
            let Some((client, holds)) = self.choose(&stopped) else { continue };
            let which = if holds { "while they held" } else { "while they waited" };
            if self.dice.random_bool(0.2) {
                // Dropped, and so killed.
                self.processes.retain(|process| process.client != client);
                self.start();
                report.add(&format!("clients killed {which}"), 1);
            } else {
                self.process(client).signal(Signal::STOP);
                let time = Duration::from_millis(LEASE_MS + self.dice.random_range(200..=1_200));
                let until = Instant::now() + time;
                let at_most = if holds { until + Duration::from_millis(OVERTAKEN_MS) } else { until };
                stopped.push(Stopped { client, until, at_most });
                report.add(&format!("clients stopped {which}"), 1);
            }
        }
    }

    fn process(&self, client: u64) -> &Process<Library> {
        self.processes.iter().find(|process| process.client == client).expect("it is not killed while it is stopped")
    }

    /// A client that is not stopped, and whether it has the lock: mostly one that has.
    fn choose(&mut self, stopped: &[Stopped]) -> Option<(u64, bool)> {
        let record = self.scene.record();
        let clients = self.processes.iter().map(|process| process.client);
        let running: Vec<u64> = clients.filter(|client| stopped.iter().all(|one| one.client != *client)).collect();
        let holder = running.iter().find(|client| record.is_holding(**client)).copied();
        if self.dice.random_bool(0.9) {
            return Some((holder?, true));
        }
        let any = *running.choose(&mut self.dice)?;
        Some((any, holder == Some(any)))
    }

    /// Lets them all end by themselves.
    fn end(&mut self, report: &mut Report) {
        self.scene.goes_on.store(false, Ordering::Relaxed);
        for process in &mut self.processes {
            if !process.ends_within(BUSY) {
                report.violation(format!("client {} does not end well", process.client));
            }
        }
        self.processes.clear();
    }
}

fn judge(library: Library, holds: &[Grant], report: &mut Report) {
    // A client may sleep right after the grant: then its hold was never valid, but has its fence.
    let fenced: Vec<Grant> = holds.iter().filter(|hold| hold.fence > 0).cloned().collect();
    let valid: Vec<Grant> = fenced.iter().filter(|hold| hold.told < hold.held_until()).cloned().collect();
    let found = [
        ("two valid at once", held_twice(holds)),
        ("fences back", fences_back(&valid)),
        ("fences repeated", fences_repeated(&fenced)),
    ];
    for (what, pairs) in found {
        report.add(what, pairs.len() as u64);
        let texts = pairs.iter().map(|(one, other)| format!("{what}: {one:?}; {other:?}"));
        if library.is_ours() {
            report.violations(texts);
        } else {
            texts.take(SHOWN_MAX).for_each(|text| println!("{text}"));
        }
    }
}
