//! Processes of clients. Each takes locks as it is told, with the library of its language, and says by lines what it
//! sees. Faults/agents/soak.py has the words of these lines.

use super::kind::Kind;
use super::record::{Record, task_for};
use super::servers::{NAME, Servers};
use crate::agents::{Line, Listener, Process, Task};
use rand::rngs::StdRng;
use serde_json::json;
use std::fs::File;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

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

    pub fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().expect("nobody panics with it")
    }
}

pub fn start(stage: &Arc<Stage>, client: u64, kind: Kind) -> Process<Kind> {
    let servers = &stage.servers;
    let config = json!({
        "client": format!("c{client}"), "name": NAME, "user": "app", "password": servers.app_password,
        "sentinels": servers.sentinel_ports(), "authority": servers.tls.authority(),
        "redis_cli": servers.programs.cli, "program": servers.programs.redis_lock,
        "blocking": if kind.is_told() { 0 } else { 8 },
    });
    let errors = File::create(servers.dir.join(format!("client-{client}.err"))).expect("a directory of our own");
    let mut command = kind.command();
    command.arg(config.to_string()).stderr(errors);
    command.env("SSL_CERT_FILE", servers.tls.authority()).env("REDISCLI_AUTH", &servers.app_password);
    Process::start(Arc::clone(stage), client, kind, command)
}

impl Listener<Kind> for Stage {
    fn hear(&self, client: u64, kind: Kind, line: Line) -> Option<String> {
        if line != Line::Next {
            return self.record().hear(client, kind, line);
        }
        let rest = self.phase() != Phase::Work;
        self.record().is_idle(client, rest);
        match self.phase() {
            Phase::Work => {
                let task = task_for(kind, &mut self.dice.lock().expect("nobody panics with it"));
                let text = task.line();
                self.record().begins(client, task);
                Some(text)
            }
            Phase::Rest => Some(Task::only("rest").line()),
            Phase::End => Some(Task::only("end").line()),
        }
    }

    fn is_gone(&self, client: u64, _: Kind) -> bool {
        self.record().is_gone(client);
        self.phase() == Phase::End
    }

    /// What it said of errors lies in client-NUMBER.err.
    fn violation(&self, what: String) {
        self.record().report.violation(what);
    }
}
