//! Processes of clients. Each takes locks as it is told, with the library of its language, and says by lines what it
//! sees. Faults/agents/soak.py has the words of these lines.

use super::kind::Kind;
use super::record::{Line, Record, Task};
use super::servers::{NAME, Servers};
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What the clients are to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Work,
    Rest,
    End,
}

/// What all clients share.
pub struct Stage {
    pub servers: Arc<Servers>,
    pub record: Mutex<Record>,
    phase: AtomicU8,
    dice: Mutex<StdRng>,
}

impl Stage {
    /// Without clients yet.
    pub fn new(servers: Arc<Servers>, dice: StdRng) -> Arc<Stage> {
        Arc::new(Stage { servers, record: Mutex::default(), phase: AtomicU8::new(0), dice: Mutex::new(dice) })
    }

    /// Says what is to be done from now on.
    pub fn turn_to(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        [Phase::Work, Phase::Rest, Phase::End][usize::from(self.phase.load(Ordering::Relaxed))]
    }

    /// What has been seen.
    pub fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().expect("nobody panics with it")
    }

    fn hear(&self, client: u64, kind: Kind, line: Line) -> Option<String> {
        if line != Line::Next {
            return self.record().hear(client, kind, line);
        }
        let rest = self.phase() != Phase::Work;
        self.record().is_idle(client, rest);
        match self.phase() {
            Phase::Work => {
                let task = Task::choose(kind, &mut self.dice.lock().expect("nobody panics with it"));
                let text = serde_json::to_string(&task).expect("plain");
                self.record().begins(client, task);
                Some(text)
            }
            Phase::Rest => Some(json!({"do": "rest"}).to_string()),
            Phase::End => Some(json!({"do": "end"}).to_string()),
        }
    }
}

/// A running client. It is killed when this is dropped.
pub struct Process {
    pub client: u64,
    pub kind: Kind,
    child: Child,
    killed: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a client with this number.
    pub fn start(stage: &Arc<Stage>, client: u64, kind: Kind) -> Process {
        let servers = &stage.servers;
        let config = json!({
            "client": format!("c{client}"), "name": NAME, "user": "app", "password": servers.app_password,
            "sentinels": servers.sentinel_ports(), "authority": servers.tls.authority(),
            "redis_cli": servers.programs.cli, "program": servers.programs.redis_lock,
        });
        let errors = File::create(servers.dir.join(format!("client-{client}.err"))).expect("a directory of our own");
        let mut command = kind.command();
        command.arg(config.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        command.env("SSL_CERT_FILE", servers.tls.authority()).env("REDISCLI_AUTH", &servers.app_password);
        let description = format!("{command:?}");
        let mut child = testbed::spawn(command).unwrap_or_else(|error| panic!("{description}: {error}"));
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let killed = Arc::<AtomicBool>::default();
        let (stage, was_killed) = (Arc::clone(stage), Arc::clone(&killed));
        let listen = move || listen(&stage, (client, kind), BufReader::new(from), to, &was_killed);
        Process { client, kind, child, killed, reader: Some(thread::spawn(listen)) }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // Fails if it has ended: its reader tells.
        let _: rustix::io::Result<()> = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself; false if that takes too long, or if it failed.
    pub fn ends_within(&mut self, patience: Duration) -> bool {
        testbed::ends_within(&mut self.child, patience)
    }

    /// Kills it; it is gone when this returns.
    pub fn kill(&mut self) {
        self.killed.store(true, Ordering::Relaxed);
        // Fails if it has ended.
        let _: std::io::Result<()> = self.child.kill();
        self.child.wait().expect("a child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let Some(reader) = self.reader.take() {
            reader.join().expect("reading does not panic");
        }
    }
}

/// Hears a client until it ends. What it has started, and that outlives it, is heard too.
fn listen(stage: &Stage, (client, kind): (u64, Kind), from: impl BufRead, mut to: ChildStdin, killed: &AtomicBool) {
    for line in from.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(said) => {
                if let Some(answer) = stage.hear(client, kind, said) {
                    // It may have been killed meanwhile.
                    let _: std::io::Result<()> = writeln!(to, "{answer}");
                }
            }
            // The last line of one that was killed may be cut off.
            Err(_) if killed.load(Ordering::Relaxed) => {}
            Err(error) => stage.record().report.violation(format!("client {client} said {line:?}: {error}")),
        }
    }
    if stage.phase() != Phase::End && !killed.load(Ordering::Relaxed) {
        let what = format!("client {client}, {}, ended by itself: see client-{client}.err", kind.name());
        stage.record().report.violation(what);
    }
    stage.record().is_gone(client);
}
