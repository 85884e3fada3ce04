//! Clients that wait: connections that have sent a command whose reply they have not read; and transcripts of several
//! of them.

use crate::harness::wire::{Names, Reply, Row, Wire};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testbed::{PATIENCE, Server, wait_for};

/// A connection, which may wait for the reply to what it sent; and another one that watches it.
pub(crate) struct Waiter {
    wire: Wire,
    eye: Wire,
    id: i64,
}

impl Waiter {
    /// A connection that has sent nothing.
    pub(crate) fn connect(server: &Server) -> Waiter {
        Waiter::over(server, Wire::resp2(server))
    }

    /// The same in RESP3.
    pub(crate) fn connect_resp3(server: &Server) -> Waiter {
        Waiter::over(server, Wire::resp3(server))
    }

    fn over(server: &Server, mut wire: Wire) -> Waiter {
        let id = wire.say("CLIENT ID").int();
        Waiter { wire, eye: Wire::resp2(server), id }
    }

    /// A new connection that has sent this command. Whether it waits remains to be seen.
    pub(crate) fn send<A: AsRef<[u8]>>(server: &Server, args: &[A]) -> Waiter {
        let mut waiter = Waiter::connect(server);
        waiter.wire.send(args);
        waiter
    }

    /// A new connection that waits for the reply to this command, of words that need no quotes.
    pub(crate) fn waits(server: &Server, command: &str) -> Waiter {
        let mut waiter = Waiter::send(server, &command.split(' ').collect::<Vec<_>>());
        waiter.expect_waiting(command);
        waiter
    }

    /// Its number at the server.
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Its connection, to send more.
    pub(crate) fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// The reply, which must come within [`PATIENCE`].
    pub(crate) fn reply(&mut self) -> Reply {
        self.wire.read()
    }

    /// Whether the server keeps it waiting.
    pub(crate) fn is_waiting(&mut self) -> bool {
        let listed = self.eye.ask(&["CLIENT", "LIST", "ID", &self.id.to_string()]).text();
        let flags = listed.split(' ').find_map(|field| field.strip_prefix("flags="));
        !self.wire.has_reply() && flags.is_some_and(|flags| flags.contains('b'))
    }

    /// Whether the server has closed it, or closes it soon, with nothing sent before.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.wire.is_closed()
    }

    /// Waits until the server keeps it waiting; fails when there is a reply instead.
    pub(crate) fn expect_waiting(&mut self, command: &str) {
        wait_for(&format!("{command} to wait"), || self.is_waiting() || self.wire.has_reply());
        if self.wire.has_reply() {
            panic!("{command} does not wait: {:?}", self.wire.read());
        }
    }
}

/// A transcript of several connections.
///
/// A row is a command, as [`Row`] has it, and its reply. `b: LOCK.ACQUIRE ...` sends it over the connection b, which is
/// made when it is first named; when that is to wait for its reply, the row says `waits`, or `sent` when the wait may
/// be over before one could see it. `b:` alone reads the reply that it waited for, or, with `waits`, sees that there is
/// none. Without a name the command goes over one that never waits. `%b` stands for the number of b's connection.
pub(crate) struct Stage<'s> {
    server: &'s Server,
    wire: Wire,
    waiters: BTreeMap<String, Waiter>,
    names: Names,
}

impl Stage<'_> {
    pub(crate) fn new(server: &Server) -> Stage<'_> {
        Stage { server, wire: Wire::resp2(server), waiters: BTreeMap::new(), names: Names::default() }
    }

    /// Plays all rows.
    #[track_caller]
    pub(crate) fn play(&mut self, rows: &[Row]) {
        for (at, (command, expected)) in rows.iter().enumerate() {
            let got = self.play_row(command, expected);
            assert_eq!(got, *expected, "row {}: {command}", at + 1);
        }
    }

    fn play_row(&mut self, command: &str, expected: &str) -> String {
        let (name, command) = match command.split_once(':') {
            Some((name, command)) if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => (name, command.trim()),
            _ => ("", command),
        };
        let words: Vec<Vec<u8>> = self.names.words(command).into_iter().map(|word| self.number(word)).collect();
        if name.is_empty() {
            let reply = self.wire.ask(&words);
            return self.names.show(&reply);
        }
        let waiter = self.waiters.entry(name.to_owned()).or_insert_with(|| Waiter::connect(self.server));
        if !command.is_empty() {
            waiter.wire.send(&words);
            if expected == "waits" {
                waiter.expect_waiting(command);
                return expected.to_owned();
            }
            if expected == "sent" {
                // What is sent after the reply to this is served after it.
                self.wire.say("PING");
                return expected.to_owned();
            }
        } else if expected == "waits" {
            // What was done for it at the end of a turn, or in a timer, is done when other turns have gone by.
            (0..3).for_each(|_| drop(self.wire.say("PING")));
            if waiter.is_waiting() {
                return expected.to_owned();
            }
        }
        let reply = waiter.reply();
        self.names.show(&reply)
    }

    fn number(&self, word: Vec<u8>) -> Vec<u8> {
        match word.strip_prefix(b"%").map(|name| self.waiters.get(&String::from_utf8_lossy(name).into_owned())) {
            Some(Some(waiter)) => waiter.id().to_string().into_bytes(),
            _ => word,
        }
    }

    /// A fence by its name, as in rows.
    pub(crate) fn name_of(&mut self, fence: i64) -> String {
        self.names.show(&Reply::Int(fence))
    }

    /// Sends what is no row over the connection that never waits.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.wire.ask(args)
    }

    /// A connection by its name.
    pub(crate) fn waiter(&mut self, name: &str) -> &mut Waiter {
        self.waiters.get_mut(name).expect("a row named it")
    }

    /// The connection goes away, whatever it waits for, and the server has seen it.
    pub(crate) fn leave(&mut self, name: &str) {
        let waiter = self.waiters.remove(name).expect("a row named it");
        let id = waiter.id().to_string();
        drop(waiter);
        wait_for("the server to see that it has gone", || {
            self.wire.ask(&["CLIENT", "LIST", "ID", &id]).text().is_empty()
        });
    }

    /// Waits until a field of `INFO lock` has this value.
    #[track_caller]
    pub(crate) fn until(&mut self, field: &str, value: u64) {
        let mut conn = self.server.connect();
        let deadline = Instant::now() + PATIENCE;
        while conn.info_number("lock", field) != value {
            assert!(Instant::now() < deadline, "{field} is {}", conn.info("lock", field));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
