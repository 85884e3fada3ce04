//! Clients lock, lock again, upgrade, extend, hold too long and release. Meanwhile they and the server are stopped, and
//! their connections are cut in the middle of a request or a reply. From the replies, the run checks that some order of
//! events explains everything. At every moment there is one writer or only readers. Fences rise, and every acknowledged
//! release has freed its lock. No waiter is forgotten: none is answered null before its time-out, and none waits while
//! its lock cannot be held.
//!
//! A round is five seconds of that on fresh locks. The clients are four processes of eight, so that they can be
//! stopped. Most of them share four locks, which receive requests all the time. The others are quiet, two to a lock of
//! another four. A waiter that is forgotten in such a queue stays forgotten, because no other request makes the module
//! serve that queue again.

use faults::caller::{Answer, Caller};
use faults::history::{
    Grant, Maybe, Moment, Release, Stay, Stop, fences_back, fences_repeated, held_twice, is_early, passed_over,
};
use faults::linear::{Event, What, explained};
use faults::options::Options;
use faults::proxy::Proxy;
use faults::report::Report;
use rand::RngExt;
use rand::rngs::StdRng;
use redis::Value;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;
use testbed::{LockInfo, Server, wait_for};

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 8;
const KEYS: u64 = 4;
const LOAD_MS: u64 = 5_000;

/// How long an answer may be late, all stops taken together: a waiter without one by then is forgotten.
const PATIENCE: Duration = Duration::from_secs(15);

/// What happens at once is known outside after so long, stops apart.
const PROMPT_MS: u64 = 300;

/// What one client saw.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Saw {
    /// The events of each key.
    events: BTreeMap<String, Vec<Event>>,
    /// Stretches for which a hold was certain: one for each lease and mode.
    pieces: Vec<Grant>,
    /// New holds, with their fences.
    grants: Vec<Grant>,
    /// Owners whose connection was lost during a request.
    uncertain: BTreeSet<String>,
    counts: BTreeMap<String, u64>,
    forgotten: Vec<String>,
    too_early: Vec<String>,
    stays: Vec<Stay>,
    maybes: Vec<Maybe>,
}

impl Saw {
    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn add(&mut self, other: Saw) {
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
    }
}

/// A hold, as its owner knows it.
struct Held {
    key: String,
    owner: String,
    leases: u32,
    /// It lasts as long as no reply changes it.
    piece: Grant,
}

/// The connection was lost in the middle of a request; the outcome has been found out.
struct Cut;

/// One client, which does one thing after the other.
struct Client {
    caller: Caller,
    /// Its connection's number at the server.
    connection: i64,
    /// What its owners' names begin with.
    name: String,
    round: u64,
    /// The only lock that it requests, with pauses.
    quiet: Option<String>,
    owners: u64,
    dice: StdRng,
    saw: Saw,
}

impl Client {
    fn new(port: u16, name: String, round: u64, quiet: Option<String>, dice: StdRng) -> Client {
        let caller = Caller::new(port, PATIENCE);
        let mut client = Client { caller, connection: 0, name, round, quiet, owners: 0, dice, saw: Saw::default() };
        client.connect();
        client
    }

    /// A new connection. It may be cut before it knows its number.
    fn connect(&mut self) {
        self.caller.hang_up();
        loop {
            if let (_, Answer::Value(Value::Int(number)), _) = self.caller.ask("CLIENT ID") {
                self.connection = number;
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.dice.random_range(0..100) < percent
    }

    fn live(mut self, end: Moment) -> Saw {
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
        let (asked, answer, told) = self.caller.ask(&format!("LOCK.INFO {key} COUNT 1000"));
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
            Answer::Lost | Answer::Silence => return self.connect(),
            Answer::Error(text) => panic!("LOCK.INFO: {text}"),
        };
        self.saw.count("looks");
        self.note(&key, asked, told, "", What::Looked(holders));
    }

    fn note(&mut self, key: &str, asked: Moment, told: Moment, owner: &str, what: What) {
        let event = Event { asked, told, owner: owner.to_owned(), what };
        self.saw.events.entry(key.to_owned()).or_default().push(event);
    }

    /// A hold from its beginning to its end.
    fn session(&mut self) -> Result<(), Cut> {
        self.owners += 1;
        let (key, owner) = (self.key(), format!("{}.{}", self.name, self.owners));
        let writes = self.chance(40);
        let Some(mut held) = self.first(&key, &owner, writes)? else { return Ok(()) };
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

    fn lease_ms(&mut self) -> u64 {
        self.dice.random_range(300..=2_000)
    }

    /// Requests a new hold.
    fn first(&mut self, key: &str, owner: &str, writes: bool) -> Result<Option<Held>, Cut> {
        let lease = self.lease_ms();
        let block = if self.chance(80) { self.dice.random_range(1..=3_000) } else { 0 };
        let plain = format!("LOCK.RW {key} {owner} {} PX {lease}", mode(writes));
        let request = if block > 0 { format!("{plain} BLOCK {block}") } else { plain.clone() };
        let (asked, answer, told) = self.caller.ask_long(&request, Duration::from_millis(block));
        let (lease_from, answer, told) = match answer {
            Answer::Lost | Answer::Silence => {
                self.cut_off(&request, owner, &answer);
                if self.chance(50) {
                    // It had no visible effect, or it is given up.
                    return self.give_up(key, owner, writes, lease, asked).map(|()| None);
                }
                // The older connection is closed, so the older request is over. The repetition finds what it left.
                let (again, answer, told) = self.until_answered(&format!("{plain} RETRY 1"));
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
        self.saw.count("granted");
        let (key, owner) = (key.to_owned(), owner.to_owned());
        let lease_ends = lease_from.after_ms(lease);
        let (node, release) = (self.caller.port(), None);
        let piece =
            Grant { key: key.clone(), owner: owner.clone(), writes, fence, node, asked, told, lease_ends, release };
        self.saw.grants.push(piece.clone());
        self.note(&key, asked, told, &owner, What::Locked { writes, fence: Some(fence), lease: 0 });
        self.lapse(&key, &owner, 0, lease_from, told, lease);
        self.may_hold(&key, &owner, lease_from, told, told.after_ms(lease));
        Ok(Some(Held { key, owner, leases: 1, piece }))
    }

    /// A lease that began between two moments ends between two. Where the moments of two events are the same
    /// millisecond, their order is not known.
    fn lapse(&mut self, key: &str, owner: &str, lease: u32, asked: Moment, told: Moment, ms: u64) {
        self.note(key, asked.after_ms(ms - 1), told.after_ms(ms + 1), owner, What::Lapsed { lease });
    }

    /// Whatever else is not known: until then at the latest.
    fn may_hold(&mut self, key: &str, owner: &str, asked: Moment, told: Moment, until: Moment) {
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
        let (asked, answer, told) = self.caller.ask(request);
        if let Answer::Error(text) = &answer {
            panic!("{request}: {text}");
        }
        if matches!(answer, Answer::Lost | Answer::Silence) {
            self.cut_off(request, &held.owner, &answer);
            self.end_piece(&held.piece, asked);
            let (_, _, told) = self.until_answered(&format!("LOCK.RELEASE {} {} ALL", held.key, held.owner));
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
        let lost = self.connection;
        self.connect();
        // An error when it is gone already.
        self.until_answered(&format!("CLIENT KILL ID {lost}"));
    }

    /// Gives up what a request, whose answer was lost, may have been granted.
    fn give_up(&mut self, key: &str, owner: &str, writes: bool, lease: u64, asked: Moment) -> Result<(), Cut> {
        let cut = Moment::now();
        let (_, answer, told) = self.until_answered(&format!("LOCK.RELEASE {key} {owner} ALL"));
        self.may_hold(key, owner, asked, asked, told);
        if answer.int().is_some() {
            self.note(key, asked, cut, owner, What::Locked { writes, fence: None, lease: 0 });
            self.note(key, asked.after_ms(lease - 1), told.after_ms(lease + 1), owner, What::Lapsed { lease: 0 });
            self.note(key, cut, told, owner, What::Gone);
        }
        Err(Cut)
    }

    /// Asks what may be asked more than once, until there is an answer.
    fn until_answered(&mut self, request: &str) -> (Moment, Answer, Moment) {
        let (first, mut answer, mut told) = self.caller.ask(request);
        while matches!(answer, Answer::Lost | Answer::Silence) {
            self.connect();
            (_, answer, told) = self.caller.ask(request);
        }
        (first, answer, told)
    }
}

fn mode(writes: bool) -> &'static str {
    if writes { "WRITE" } else { "READ" }
}

/// One process of clients; says on standard output what they saw.
fn clients(words: &[String]) {
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let (port, process, round, seed) = (number(0) as u16, number(1), number(2), number(3));
    let options = Options { seed, rounds: 0 };
    let end = Moment::now().after_ms(LOAD_MS);
    let mut all = Saw::default();
    thread::scope(|scope| {
        let living: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let dice = options.dice((round * PROCESSES + process) * CLIENTS + client);
                // One of them is in this process, the other in the one beside.
                let quiet = (client % 4 == 1).then(|| format!("r{round}.quiet{}.{client}", process / 2));
                let name = format!("r{round}.c{process}.{client}");
                scope.spawn(move || Client::new(port, name, round, quiet, dice).live(end))
            })
            .collect();
        living.into_iter().for_each(|client| all.add(client.join().expect("see above")));
    });
    println!("{}", serde_json::to_string(&all).expect("plain data"));
}

/// Stops clients and the server, and cuts connections, until the clients have ended. Returns the stretches in which a
/// process did not run, because it was stopped or because the machine was busy.
fn disturb(
    server: &Server,
    proxies: &[Proxy],
    children: &mut [Child],
    dice: &mut StdRng,
    round: u64,
    report: &mut Report,
) -> Vec<Stop> {
    let running = |child: &mut Child| child.try_wait().expect("a child").is_none();
    let mut stops = Vec::new();
    while children.iter_mut().any(running) {
        let ms = dice.random_range(1..=60);
        let awake = Moment::now().after_ms(ms);
        thread::sleep(Duration::from_millis(ms));
        let from = Moment::now();
        stops.push(Stop { whose: String::new(), from: awake, to: from });
        let mut whose = String::new();
        let nth = dice.random_range(0..children.len());
        match dice.random_range(0..100) {
            0..90 => proxies[nth].cut_after(dice.random_range(0..200)),
            90..97 if running(&mut children[nth]) => {
                let pid = Pid::from_child(&children[nth]);
                kill_process(pid, Signal::STOP).expect("it runs");
                thread::sleep(Duration::from_millis(dice.random_range(50..=1_500)));
                kill_process(pid, Signal::CONT).expect("it was stopped");
                whose = format!("r{round}.c{nth}.");
                report.add("clients stopped", CLIENTS);
            }
            _ => {
                server.signal(Signal::STOP);
                thread::sleep(Duration::from_millis(dice.random_range(10..=500)));
                server.signal(Signal::CONT);
                report.add("server stopped", 1);
            }
        }
        stops.push(Stop { whose, from, to: Moment::now() });
    }
    stops
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, words)) = words.split_first()
        && first == "clients"
    {
        clients(words);
        return ExitCode::SUCCESS;
    }
    let options = Options::read("history", "Checks the histories of 32 clients on 12 locks; a round is 5 s", "4");
    let mut dice = options.dice(u64::MAX);
    let mut report = Report::default();
    let server = Server::new();
    let mut conn = server.connect();
    for round in 0..options.rounds {
        let proxies: Vec<Proxy> = (0..PROCESSES).map(|_| Proxy::to(server.port())).collect();
        let start = |process: u64| {
            let words = [proxies[process as usize].port().into(), process, round, options.seed];
            Command::new(std::env::current_exe().expect("runs"))
                .arg("clients")
                .args(words.map(|word: u64| word.to_string()))
                .stdout(Stdio::piped())
                .spawn()
                .expect("it is this program")
        };
        let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
        // Read as they write, or they would wait for it.
        let outputs: Vec<_> = children
            .iter_mut()
            .map(|child| {
                let output = child.stdout.take().expect("piped");
                thread::spawn(move || serde_json::from_reader::<_, Saw>(output))
            })
            .collect();
        let stops = disturb(&server, &proxies, &mut children, &mut dice, round, &mut report);
        let mut all = Saw::default();
        outputs.into_iter().for_each(|output| all.add(output.join().expect("no panic").expect("whole")));
        report.add("connections cut", proxies.iter().map(Proxy::cuts).sum());
        judge(&all, &stops, &mut report);
        wait_for("all leases to be over", || conn.get::<u64>(&["DBSIZE"]) == 0);
        for field in ["lock_waiters", "lock_leases"] {
            assert_eq!(conn.info("lock", field), "0", "{field}");
        }
        report.add("rounds", 1);
    }
    let seen = [
        "granted",
        "null",
        "released",
        "lapsed before the release",
        "released about when the lease ends",
        "extended",
        "held again",
        "upgraded or anew",
        "stood in line for long",
    ];
    let done =
        ["repeated", "looks", "connections cut", "connections lost in a request", "clients stopped", "server stopped"];
    seen.iter().chain(&done).for_each(|figure| report.must_see(figure));
    report.finish()
}

fn judge(all: &Saw, stops: &[Stop], report: &mut Report) {
    all.counts.iter().for_each(|(what, count)| report.add(what, *count));
    report.violations(all.forgotten.iter().map(|request| format!("forgotten: {request}")));
    report.violations(all.too_early.iter().map(|request| format!("null before its time: {request}")));
    let alone = passed_over(&all.stays, &all.maybes, stops, PROMPT_MS);
    report.violations(alone.iter().map(|stay| format!("in line while nobody held: {stay:?}")));
    // Against no holds at all, these count as passed over: they are the waiters that could show the fault.
    report.add("stood in line for long", passed_over(&all.stays, &[], stops, PROMPT_MS).len() as u64);
    report.violations(held_twice(&all.pieces).iter().map(|pair| format!("held twice: {pair:?}")));
    report.violations(fences_back(&all.grants).iter().map(|pair| format!("a fence went back: {pair:?}")));
    report.violations(fences_repeated(&all.grants).iter().map(|pair| format!("a fence twice: {pair:?}")));
    for (key, events) in &all.events {
        report.add("events explained", events.len() as u64);
        if !explained(events, &all.uncertain) {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/faults");
            std::fs::create_dir_all(&directory).expect("a place for it");
            let file = directory.join(format!("history-{key}.json"));
            std::fs::write(&file, serde_json::to_string(events).expect("plain data")).expect("a place for it");
            report.violation(format!("no order explains what happened to {key}: see {}", file.display()));
        }
    }
}
