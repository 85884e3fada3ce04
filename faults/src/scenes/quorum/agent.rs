//! Processes of clients. Each takes the lock over and over with the library of its language, and says by lines what it
//! sees. The resource is here: it answers each write.

use crate::agents::{Line, Listener, Process, Task, boot_us};
use crate::client::QUORUM;
use crate::history::{Grant, Moment, Release};
use crate::resource::{Resource, Used};
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::json;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use testbed::file_from;

/// The lock.
pub const KEY: &str = "quorum";
/// Of each hold, in milliseconds.
pub const LEASE_MS: u64 = 2_000;
const WAIT_MS: u64 = 2 * LEASE_MS;
/// How long a place in the queue is kept without its client, with our libraries.
pub const QUEUE_MS: u64 = 10_000;

/// A library that takes a lock over several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Rust,
    Python,
    PythonAsyncio,
    Pottery,
    RedlockPy,
    NodeRedlock,
}

impl Library {
    pub const NAMES: [&str; 6] = ["rust", "python", "python-asyncio", "pottery", "redlock-py", "node-redlock"];
    const ALL: [Library; 6] = [
        Library::Rust,
        Library::Python,
        Library::PythonAsyncio,
        Library::Pottery,
        Library::RedlockPy,
        Library::NodeRedlock,
    ];
    /// The locks of so many, which come first, are those of the module.
    pub const OURS: usize = 3;

    pub fn named(name: &str) -> Library {
        Library::ALL[Library::NAMES.iter().position(|one| *one == name).expect("one of them")]
    }

    /// True if its locks are those of the module.
    pub fn is_ours(self) -> bool {
        (self as usize) < Library::OURS
    }

    fn command(self) -> Command {
        let agents = file_from("REDIS_LOCK_QUORUM_AGENTS", "faults/agents");
        let interpreted = |interpreter, script| {
            let mut command = Command::new(interpreter);
            command.arg(agents.join(script));
            command
        };
        let python = || file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python");
        let mut command = match self {
            Library::Rust => Command::new(std::env::current_exe().expect("runs")),
            Library::Python | Library::PythonAsyncio => interpreted(python(), "quorum.py"),
            Library::Pottery | Library::RedlockPy => interpreted(python(), "redlocks.py"),
            Library::NodeRedlock => interpreted(file_from("REDIS_LOCK_NODE", "target/node/bin/node"), "redlocks.mjs"),
        };
        command.arg(if self == Library::Rust { QUORUM } else { Library::NAMES[self as usize] });
        command
    }
}

/// What the agents of one scene have seen, and their resource.
#[derive(Default)]
pub struct Record {
    /// By client and number. A hold is valid from the moment when its client knew of it, to the release, or to the end
    /// that the client itself reckoned: a client that sleeps is not valid beyond that. Without a fence, that is 0.
    pub holds: BTreeMap<(u64, u64), Grant>,
    pub counts: BTreeMap<String, u64>,
    pub violations: Vec<String>,
    resource: Resource,
    /// Agents that have just asked what to do.
    idle: Vec<u64>,
}

impl Record {
    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn hold(&mut self, client: u64, number: u64) -> &mut Grant {
        self.holds.get_mut(&(client, number)).expect("agents tell of a hold first")
    }

    /// Whether this client relies on a hold now.
    pub fn is_holding(&self, client: u64) -> bool {
        self.last_hold(client).is_some_and(|hold| hold.release.is_none() && boot_us() < hold.lease_ends.0)
    }

    /// Whether another client has written since this one got its last hold: what this one writes now comes too late.
    pub fn is_overtaken(&self, client: u64) -> bool {
        self.last_hold(client).is_some_and(|hold| self.resource.has_newer(hold.told.0))
    }

    fn last_hold(&self, client: u64) -> Option<&Grant> {
        self.holds.range((client, 0)..=(client, u64::MAX)).next_back().map(|(_, hold)| hold)
    }

    fn write(&mut self, client: u64, number: u64) -> bool {
        let hold = self.hold(client, number).clone();
        let fence = Some(hold.fence).filter(|fence| *fence > 0);
        let Used { accepted, is_old } = self.resource.is_used(fence, hold.told.0, true);
        self.count("writes");
        match (accepted, is_old) {
            (true, true) => self.count("old writers: writes accepted"),
            (false, true) => self.count("old writers: writes refused"),
            (true, false) => {}
            (false, false) => self.violations.push(format!("the resource refused the newest writer: {hold:?}")),
        }
        if accepted && is_old && fence.is_some() {
            self.violations.push(format!("the resource accepted an old writer: {hold:?}"));
        }
        accepted
    }
}

/// The client relies on its hold no more from then on.
fn given_up(at: u64) -> Release {
    Release { asked: Moment(at), answer: None }
}

pub enum Pace {
    /// They hold for a random time, and write.
    Work(Box<Mutex<StdRng>>),
    /// They take and release once for each permit.
    Step(Mutex<u64>),
}

/// What all agents of one scene share.
pub struct Stage {
    pub library: Library,
    /// For each half of the clients.
    pub urls: [Vec<String>; 2],
    pub pace: Pace,
    pub goes_on: AtomicBool,
    record: Mutex<Record>,
}

impl Stage {
    pub fn new(library: Library, urls: [Vec<String>; 2], pace: Pace) -> Arc<Stage> {
        let goes_on = AtomicBool::new(true);
        Arc::new(Stage { library, urls, pace, goes_on, record: Mutex::default() })
    }

    pub fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("nobody panics with it")
    }

    /// Lets the only agent take the lock once and release it; false if that takes too long.
    pub fn step(&self, patience: Duration) -> bool {
        let Pace::Step(permits) = &self.pace else { panic!("they go on by themselves") };
        let deadline = Instant::now() + patience;
        let is_idle = || !self.record().idle.is_empty();
        let wait = |deadline: Instant| {
            while !is_idle() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            is_idle()
        };
        if !wait(deadline) {
            return false;
        }
        self.record().idle.clear();
        *permits.lock().expect("nobody panics with it") += 1;
        wait(deadline)
    }

    /// What to do next, in words.
    fn next(&self, client: u64) -> String {
        let end = || Task::only("end").line();
        match &self.pace {
            Pace::Work(dice) => {
                let mut dice = dice.lock().expect("nobody panics with it");
                // Most hold for a short time; some for several leases, so that they are renewed, or end.
                let is_long = dice.random_bool(0.4);
                let hold_ms = dice.random_range(0..=if is_long { 3 * LEASE_MS } else { 200 });
                let work_ms = dice.random_range(1..=20);
                if self.goes_on.load(Ordering::Relaxed) { task(hold_ms, work_ms) } else { end() }
            }
            Pace::Step(permits) => {
                self.record().idle.push(client);
                while self.goes_on.load(Ordering::Relaxed) {
                    let mut permits = permits.lock().expect("nobody panics with it");
                    if *permits > 0 {
                        *permits -= 1;
                        return task(0, 0);
                    }
                    drop(permits);
                    thread::sleep(Duration::from_millis(1));
                }
                end()
            }
        }
    }
}

fn task(hold_ms: u64, work_ms: u64) -> String {
    let (keys, mode) = (vec![KEY.to_owned()], "write".to_owned());
    Task { keys, mode, lease_ms: LEASE_MS, wait_ms: WAIT_MS, hold_ms, work_ms, ..Task::only("take") }.line()
}

pub fn start(stage: &Arc<Stage>, client: u64) -> Process<Library> {
    let boot_ahead_us = boot_us().saturating_sub(Moment::now().0);
    let what = json!({"urls": stage.urls[client as usize % 2], "key": KEY, "lease_ms": LEASE_MS, "wait_ms": WAIT_MS,
        "boot_ahead_us": boot_ahead_us});
    let mut command = stage.library.command();
    command.arg(what.to_string());
    Process::start(Arc::clone(stage), client, stage.library, command)
}

impl Listener<Library> for Stage {
    /// Notes what an agent says; what it is to be answered.
    fn hear(&self, client: u64, _: Library, line: Line) -> Option<String> {
        let mut record = self.record();
        match line {
            Line::Next => {
                drop(record);
                return Some(self.next(client));
            }
            Line::Failed { why } => record.count(&format!("not got: {why}")),
            Line::Held { hold: number, fences, at: start, until, .. } => {
                record.count("holds");
                let (key, owner) = (KEY.to_owned(), format!("client {client}, hold {number}"));
                let (told, lease_ends) = (Moment(start), Moment(until));
                let fence = fences.first().map_or(0, |fence| *fence as i64);
                let hold =
                    Grant { key, owner, writes: true, fence, node: 0, asked: told, told, lease_ends, release: None };
                record.holds.insert((client, number), hold);
            }
            Line::Write { hold, until, .. } => {
                record.hold(client, hold).lease_ends = Moment(until);
                let accepted = record.write(client, hold);
                return Some(if accepted { "yes" } else { "no" }.to_owned());
            }
            Line::Lost { hold, at } => {
                record.hold(client, hold).release = Some(given_up(at));
                record.count("holds that ended before the work");
            }
            Line::Releasing { hold, at } => {
                record.hold(client, hold).release.get_or_insert(given_up(at));
            }
            Line::Released { ok, .. } => record.count(if ok { "released" } else { "not held at release" }),
            Line::Trouble { why } => record.count(&format!("trouble: {why}")),
            Line::Believes { hold, at, until } => {
                let late = at.saturating_sub(until);
                let what = format!("client {client}, hold {hold}: it is not lost, {late} us after its validity");
                record.violations.push(what);
            }
            Line::Guarding { .. } | Line::Guarded | Line::Exit { .. } => unreachable!("no task is for that"),
        }
        None
    }

    fn is_gone(&self, _: u64, _: Library) -> bool {
        !self.goes_on.load(Ordering::Relaxed)
    }

    fn violation(&self, what: String) {
        self.record().violations.push(what);
    }
}
