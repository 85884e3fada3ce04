//! The processes of clients.

use super::client::Client;
use super::saw::Saw;
use super::wish::{CLIENTS, quiet_key};
use crate::history::Moment;
use crate::options::dice;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use testbed::{Proxy, Signal};

/// A process of clients, and what it says.
pub struct Process {
    pub number: u64,
    child: Child,
    lines: JoinHandle<Vec<String>>,
}

/// What the names of a process's owners begin with.
pub fn prefix(round: u64, number: u64) -> String {
    format!("r{round}.c{number}.")
}

/// The first argument of this program when it is one of these processes.
pub const CLIENTS_OF: &str = "clients-of-history";

/// One process of clients; each says on standard output what it sees.
pub fn clients(words: &[String]) {
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let (port, seat, process, round) = (number(0) as u16, number(1), number(2), number(3));
    let (seed, end) = (number(4), Moment(number(5)));
    // The process may be killed before its status tells that one of them failed.
    std::panic::set_hook(Box::new(|what| {
        let failed = vec![what.to_string()];
        println!("{}", serde_json::to_string(&Saw { failed, ..Saw::default() }).expect("plain data"));
    }));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let dice = dice(seed, (round << 32) + process * CLIENTS + client);
            // One of them is in this process, the other in the one beside.
            let quiet = (client % 4 == 1).then(|| quiet_key(round, seat, client));
            let name = format!("{}{client}", prefix(round, process));
            scope.spawn(move || Client::new(port, name, round, quiet, dice).live(end));
        }
    });
}

impl Process {
    /// Starts the process with this number. It has the quiet locks of its seat, as the one before it there had.
    pub fn start(proxy: &Proxy, seat: u64, number: u64, round: u64, seed: u64, end: Moment) -> Process {
        let words = [proxy.port().into(), seat, number, round, seed, end.0];
        let mut child = Command::new(std::env::current_exe().expect("runs"))
            .arg(CLIENTS_OF)
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

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub fn signal(&self, signal: Signal) {
        testbed::signal(&self.child, signal);
    }

    /// What it said. The last line of a process that was killed may be cut off.
    pub fn said(mut self, killed: bool, saw: &mut Saw) {
        self.child.wait().expect("a child");
        let lines = self.lines.join().expect("reading does not panic");
        for (number, line) in (1..).zip(&lines) {
            match serde_json::from_str(line) {
                Ok(next) => saw.add(next),
                Err(error) => assert!(killed && number == lines.len(), "{line}: {error}"),
            }
        }
    }
}
