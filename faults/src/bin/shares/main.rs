//! Clients take shares of a few locks, one or several at a time, ask for more, give some back, and drain a lock now and
//! then. Meanwhile their connections are cut, they and the server are stopped, clients are killed, and an operator
//! breaks holds. From what clients told until their end, the run checks that no request was granted above its limit,
//! that no writer held beside a share, and that fences rise. RETRY and QUEUE count once, though replies were lost. No
//! hold is lost before its lease or session can have ended. No request is granted before another one that the server
//! showed waiting when it was asked for, however much that one asks for.
//!
//! A round is four seconds of that on fresh locks. The clients are four processes of six. A process that is killed has
//! a successor. Five locks have a limit each, from 3 to 8. Each request for the sixth has a limit of its own. Readers
//! count there, too, without a limit.

mod client;
mod held;

use crate::client::{Client, LIMITS, key};
use crate::held::tell;
use faults::audit;
use faults::caller::{Answer, Caller};
use faults::history::{Moment, fences_back, fences_repeated};
use faults::options::Options;
use faults::report::Report;
use faults::shares::{
    Break, Line, Look, Piece, Saw, above_limit, beside_writers, but_for_breaks, crowded, granted_above, holds, lost,
    miscounted, passed, shown,
};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testbed::{Proxy, Server, wait_for};

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 6;
const LOAD_MS: u64 = 4_000;

/// How long an answer may be late: a request without one by then is forgotten.
const PATIENCE: Duration = Duration::from_secs(30);

/// What must be above zero: without these a run could not have shown a violation.
const EVIDENCE: [&str; 27] = [
    "shares granted, one",
    "shares granted, several",
    "readers granted",
    "writers granted",
    "more granted",
    "more refused",
    "gave some back",
    "gave all back",
    "extended",
    "null",
    "grants that filled a lock",
    "moments at which owners filled a lock",
    "looks at a full lock",
    "counts compared after RETRY",
    "requests compared in their order",
    "a lost grant repeated with RETRY",
    "a lost request for more repeated with RETRY",
    "granted to a place",
    "came back over another connection",
    "left to the end of its lease",
    "left to the end of its session",
    "released about when the lease ends",
    "held by clients that were killed",
    "holds broken",
    "clients stopped",
    "server stopped",
    "connections cut",
];

/// A run that could not have shown a violation is repeated, so often at most: what is under way when a request is lost
/// depends on the machine.
const ATTEMPTS: u64 = 3;

/// All locks of a round.
fn keys(round: u64) -> Vec<String> {
    (0..=LIMITS.len()).map(|number| key(round, number)).collect()
}

/// One process of clients; each says on standard output what it sees.
fn clients(words: &[String]) {
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let (port, process, round, seed, end) = (number(0) as u16, number(1), number(2), number(3), Moment(number(4)));
    let options = Options { seed, rounds: 0 };
    // The process may be killed before its status tells that one of them failed.
    std::panic::set_hook(Box::new(|what| tell(&Line::Failed(what.to_string()))));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let dice = options.dice((round << 32) + process * CLIENTS + client);
            let name = format!("{}{client}", prefix(round, process));
            scope.spawn(move || Client::new(port, name, round, dice).live(end));
        }
    });
}

/// What the names of a process's owners begin with.
fn prefix(round: u64, process: u64) -> String {
    format!("r{round}.c{process}.")
}

/// A process of clients, and what it says.
struct Process {
    number: u64,
    child: Child,
    lines: JoinHandle<Vec<String>>,
}

impl Process {
    fn start(proxy: &Proxy, number: u64, round: u64, seed: u64, end: Moment) -> Process {
        let words = [proxy.port().into(), number, round, seed, end.0];
        let mut child = Command::new(std::env::current_exe().expect("runs"))
            .arg("clients")
            .args(words.map(|word: u64| word.to_string()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is this program");
        let output = child.stdout.take().expect("piped");
        // Read as they write, or they would wait for it.
        let lines =
            thread::spawn(move || BufReader::new(output).lines().map(|line| line.expect("ours are text")).collect());
        Process { number, child, lines }
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// What it said. The last line of a process that was killed may be cut off.
    fn said(mut self, killed: bool, saw: &mut Saw) {
        self.child.wait().expect("a child");
        let lines = self.lines.join().expect("reading does not panic");
        for (number, line) in (1..).zip(&lines) {
            match serde_json::from_str::<Line>(line) {
                Ok(line) => saw.add(line),
                Err(error) => assert!(killed && number == lines.len(), "{line}: {error}"),
            }
        }
    }
}

/// What was done to the clients of a round.
#[derive(Default)]
struct Done {
    breaks: Vec<Break>,
    /// The processes that were killed, and when.
    killed: Vec<(u64, Moment)>,
}

/// Disturbs the clients of a round.
struct Disturber<'d> {
    server: &'d Server,
    proxies: &'d [Proxy],
    /// A connection that nobody cuts.
    operator: Caller,
    dice: &'d mut StdRng,
    round: u64,
    seed: u64,
    end: Moment,
    done: Done,
}

impl Disturber<'_> {
    /// Goes on until all clients have ended; what they and their predecessors saw.
    fn live(mut self, processes: &mut [Process], report: &mut Report) -> (Saw, Done) {
        let mut saw = Saw::default();
        while processes.iter_mut().any(Process::runs) {
            thread::sleep(Duration::from_millis(self.dice.random_range(1..=60)));
            let nth = self.dice.random_range(0..processes.len());
            match self.dice.random_range(0..100) {
                0..80 => self.proxies[nth].cut_after(self.dice.random_range(0..400)),
                80..86 if processes[nth].runs() => {
                    let pid = Pid::from_child(&processes[nth].child);
                    kill_process(pid, Signal::STOP).expect("it runs");
                    thread::sleep(Duration::from_millis(self.dice.random_range(20..=600)));
                    kill_process(pid, Signal::CONT).expect("it was stopped");
                    report.add("clients stopped", CLIENTS);
                }
                86..90 => {
                    self.server.signal(Signal::STOP);
                    thread::sleep(Duration::from_millis(self.dice.random_range(10..=200)));
                    self.server.signal(Signal::CONT);
                    report.add("server stopped", 1);
                }
                90..95 => self.break_holds(report),
                _ if processes[nth].runs() && Moment::now() < self.end => {
                    let number = self.done.killed.len() as u64 + PROCESSES;
                    let next = Process::start(&self.proxies[nth], number, self.round, self.seed, self.end);
                    let mut old = std::mem::replace(&mut processes[nth], next);
                    let at = Moment::now();
                    old.child.kill().expect("it runs");
                    self.done.killed.push((old.number, at));
                    old.said(true, &mut saw);
                    report.add("clients killed", CLIENTS);
                }
                _ => {}
            }
        }
        (saw, self.done)
    }

    /// Breaks all holds of a lock, or the one of an owner that holds it.
    fn break_holds(&mut self, report: &mut Report) {
        let key = keys(self.round).choose(self.dice).expect("there are keys").clone();
        let look = audit::counts(&mut self.operator, &key);
        let owners: Vec<String> =
            look.map_or_else(Vec::new, |look| look.holders.into_iter().map(|one| one.0).collect());
        let owner = owners.choose(self.dice).filter(|_| self.dice.random_bool(0.5)).cloned();
        let whose = owner.as_ref().map_or(String::new(), |owner| format!(" {owner}"));
        let (asked, answer, told) = self.operator.ask(&format!("LOCK.BREAK {key}{whose}"));
        // Without an answer it may have happened, and happens no more when the connection is closed.
        report.add("holds broken", answer.int().unwrap_or_default().unsigned_abs());
        assert!(matches!(answer, Answer::Value(_)), "LOCK.BREAK: {answer:?}");
        self.done.breaks.push(Break { key, owner, asked, told });
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, words)) = words.split_first()
        && first == "clients"
    {
        clients(words);
        return ExitCode::SUCCESS;
    }
    let options = Options::read("shares", "Checks the shares of 24 clients on six locks; a round is 4 s", "4");
    let mut dice = options.dice(u64::MAX);
    let mut report = Report::default();
    let server = Server::new();
    for attempt in 0..ATTEMPTS {
        for round in 0..options.rounds {
            play(attempt * options.rounds + round, &server, &options, &mut dice, &mut report);
        }
        if EVIDENCE.iter().all(|figure| report.figure(figure) > 0) {
            break;
        }
    }
    EVIDENCE.iter().for_each(|figure| report.must_see(figure));
    report.finish()
}

/// One round, and the judgement on it.
fn play(round: u64, server: &Server, options: &Options, dice: &mut StdRng, report: &mut Report) {
    let mut conn = server.connect();
    let end = Moment::now().after_ms(LOAD_MS);
    let proxies: Vec<Proxy> = (0..PROCESSES).map(|_| Proxy::to(server.port())).collect();
    let mut processes: Vec<Process> =
        (0..).zip(&proxies).map(|(number, proxy)| Process::start(proxy, number, round, options.seed, end)).collect();
    let disturber = Disturber {
        server,
        proxies: &proxies,
        operator: Caller::new(server.port(), PATIENCE),
        dice,
        round,
        seed: options.seed,
        end,
        done: Done::default(),
    };
    let ((mut saw, done), looks) =
        audit::counts_during(&keys(round), server.port(), || disturber.live(&mut processes, report));
    processes.into_iter().for_each(|process| process.said(false, &mut saw));
    report.add("connections cut", proxies.iter().map(Proxy::cuts).sum());
    judge(round, saw, &done, &looks, report);
    wait_for("all leases to be over", || conn.get::<u64>(&["DBSIZE"]) == 0);
    wait_for("all places to be over", || conn.info("lock", "lock_places") == "0");
    for field in ["lock_waiters", "lock_leases"] {
        assert_eq!(conn.info("lock", field), "0", "{field}");
    }
    report.add("rounds", 1);
}

fn judge(round: u64, saw: Saw, done: &Done, looks: &[Look], report: &mut Report) {
    saw.counts.iter().for_each(|(what, count)| report.add(what, *count));
    report.violations(saw.forgotten.iter().map(|request| format!("forgotten: {request}")));
    report.violations(saw.failed.iter().map(|what| format!("a client failed: {what}")));
    let pieces = but_for_breaks(saw.pieces, &done.breaks);
    for (process, at) in &done.killed {
        let prefix = prefix(round, *process);
        let outlived =
            |piece: &&Piece| piece.owner.starts_with(&prefix) && piece.from < *at && piece.sure_until() > *at;
        report.add("held by clients that were killed", pieces.iter().filter(outlived).count() as u64);
    }
    report.add("stretches judged", pieces.len() as u64);
    let (filled, above) = granted_above(&pieces);
    report.add("grants that filled a lock", filled);
    report.violations(above.iter().map(|(piece, sum)| format!("granted above its limit, {sum} shares: {piece:?}")));
    let (filled, above) = above_limit(&pieces);
    report.add("moments at which owners filled a lock", filled);
    report.violations(above.iter().map(|(piece, sum)| format!("{sum} shares, above each limit: {piece:?}")));
    report.violations(beside_writers(&pieces).iter().map(|pair| format!("beside a writer: {pair:?}")));
    report.violations(lost(&pieces).iter().map(|piece| format!("lost: {piece:?}")));
    report.violations(miscounted(&saw.returned).iter().map(|returned| format!("counted wrong: {returned:?}")));
    let limits = (0..).zip(LIMITS).map(|(number, limit)| (key(round, number), u64::from(limit))).collect();
    let (full, crowd) = crowded(looks, &limits);
    report.add("looks at a full lock", full);
    report.violations(crowd.iter().map(|look| format!("too many beside each other: {look:?}")));
    let places = shown(saw.places, looks);
    let (compared, early) = passed(&places, &done.breaks);
    report.add("requests compared in their order", compared);
    report.violations(early.iter().map(|(first, later)| format!("passed in its place: {first:?} by {later:?}")));
    let holds = holds(&pieces);
    report.violations(fences_back(&holds).iter().map(|pair| format!("a fence went back: {pair:?}")));
    report.violations(fences_repeated(&holds).iter().map(|pair| format!("a fence twice: {pair:?}")));
}
