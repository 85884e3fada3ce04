//! Processes of clients that say by lines what they see, and are answered by lines.

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What a client is to do next, as it is told by a line.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    /// `take`, `rest` or `end`.
    #[serde(rename = "do")]
    pub what: String,
    pub keys: Vec<String>,
    /// `write`, `read` or `share`.
    pub mode: String,
    pub limit: u32,
    pub take: u32,
    pub lease_ms: u64,
    pub wait_ms: u64,
    pub hold_ms: u64,
    pub work_ms: u64,
    pub guarded: bool,
    pub session_ms: Option<u64>,
}

impl Task {
    /// Rest, or end.
    pub fn only(what: &str) -> Task {
        Task { what: what.to_owned(), ..Task::default() }
    }

    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }
}

/// What a client says. Moments are microseconds of `CLOCK_BOOTTIME`.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Line {
    Next,
    Failed {
        why: String,
    },
    Held {
        hold: u64,
        owner: Option<String>,
        fences: Vec<u64>,
        asked: u64,
        at: u64,
        until: u64,
    },
    /// It is about to write to the data beside the lock.
    Guarding {
        hold: u64,
        name: String,
    },
    Guarded,
    /// It writes to the resource. It has checked that it holds the lock: asked, and at what moment that was known.
    Write {
        hold: u64,
        asked: u64,
        at: u64,
        until: u64,
    },
    /// Its library says that it is held, at a moment after its validity.
    Believes {
        hold: u64,
        at: u64,
        until: u64,
    },
    /// Its hold is over, though it was not released.
    Lost {
        hold: u64,
        at: u64,
    },
    Releasing {
        hold: u64,
        at: u64,
    },
    Released {
        hold: u64,
        ok: bool,
    },
    /// Something failed while it held the lock.
    Trouble {
        why: String,
    },
    /// `redis-lock run` has ended with this code.
    Exit {
        code: Option<i32>,
    },
}

/// What hears clients of some kinds.
pub trait Listener<K>: Send + Sync + 'static {
    /// A client says something: what it is answered.
    fn hear(&self, client: u64, kind: K, line: Line) -> Option<String>;
    /// A client has ended. Whether it was to.
    fn is_gone(&self, client: u64, kind: K) -> bool;
    /// What a client did that it must not do.
    fn violation(&self, what: String);
}

/// A running client. It is killed when this is dropped.
pub struct Process<K> {
    pub client: u64,
    pub kind: K,
    child: Child,
    killed: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl<K: Copy + Send + 'static> Process<K> {
    pub fn start(listener: Arc<impl Listener<K>>, client: u64, kind: K, mut command: Command) -> Process<K> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let description = format!("{command:?}");
        let mut child = testbed::spawn(command).unwrap_or_else(|error| panic!("{description}: {error}"));
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let killed = Arc::<AtomicBool>::default();
        let was_killed = Arc::clone(&killed);
        let listen = move || listen(&*listener, (client, kind), BufReader::new(from), to, &was_killed);
        Process { client, kind, child, killed, reader: Some(thread::spawn(listen)) }
    }

    pub fn signal(&self, signal: Signal) {
        // Fails if it has ended by itself: its reader tells.
        let _: rustix::io::Result<()> = kill_process(Pid::from_child(&self.child), signal);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself; false if that takes too long, or if it failed.
    pub fn ends_within(&mut self, patience: Duration) -> bool {
        testbed::ends_within(&mut self.child, patience)
    }
}

impl<K> Process<K> {
    /// Kills it; it is gone when this returns.
    pub fn kill(&mut self) {
        self.killed.store(true, Ordering::Relaxed);
        // Fails if it has ended.
        let _: std::io::Result<()> = self.child.kill();
        self.child.wait().expect("a child");
    }
}

impl<K> Drop for Process<K> {
    fn drop(&mut self) {
        self.kill();
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading does not panic");
        }
    }
}

/// Hears a client until it ends. What it has started, and that outlives it, is heard too.
fn listen<K: Copy>(
    listener: &impl Listener<K>,
    (client, kind): (u64, K),
    from: impl BufRead,
    mut to: ChildStdin,
    killed: &AtomicBool,
) {
    for line in from.lines().map_while(Result::ok) {
        match serde_json::from_str(&line).map(|line| listener.hear(client, kind, line)) {
            // It may have been killed meanwhile.
            Ok(Some(answer)) => drop(writeln!(to, "{answer}")),
            // The last line of one that was killed may be cut off.
            Err(error) if !killed.load(Ordering::Relaxed) => {
                listener.violation(format!("client {client} said {line:?}: {error}"));
            }
            _ => {}
        }
    }
    if !listener.is_gone(client, kind) && !killed.load(Ordering::Relaxed) {
        listener.violation(format!("client {client} ended by itself"));
    }
}

/// This moment on the clock of the agents' stamps, in microseconds.
pub fn boot_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}
