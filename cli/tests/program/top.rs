//! `redis-lock top`, behind a pseudo-terminal: what it shows, what its keys do, and what it leaves of the terminal.

use crate::documents::users;
use crate::harness::{is_held, program_at, run, wait_waiters};
use crate::operators::calls;
use crate::process::{children, pid};
use rustix::process::kill_process;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;
use testbed::{Client, Cluster, PATIENCE, Server, Signal, wait_for};
use vt100::{Color, Parser};

const PROGRAM: &str = env!("CARGO_BIN_EXE_redis-lock");

/// No program inherits an end of a terminal of another.
const FLAGS: OpenptFlags = OpenptFlags::RDWR.union(OpenptFlags::NOCTTY).union(OpenptFlags::CLOEXEC);

/// The program with a terminal of its own, or the shell that runs it.
struct Screen {
    child: Child,
    /// The end of the terminal that has the keys.
    keys: File,
    /// The other end, so that its attributes can be asked for when the program has ended.
    kept: OwnedFd,
    before: String,
    output: Receiver<Vec<u8>>,
    parser: Parser,
}

impl Screen {
    /// With 24 rows of 80 columns.
    fn open(port: u16, words: &[&str], environment: &[(&str, &str)]) -> Screen {
        Screen::run(port, &[&[PROGRAM, "top", "--interval", "200ms"], words].concat(), environment)
    }

    /// With these words for a program.
    fn run(port: u16, words: &[&str], environment: &[(&str, &str)]) -> Screen {
        let keys = openpt(FLAGS).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let other = || ioctl_tiocgptpeer(&keys, FLAGS).unwrap();
        tcsetwinsize(&keys, size(24, 80)).unwrap();
        let kept = other();
        let before = attributes(&kept);
        // It is the leader of a session with this terminal: so it is told of another size.
        let mut command = program_at(Path::new("setsid"), port, &[&["--ctty"], words].concat());
        command.env_remove("NO_COLOR").env("TERM", "xterm-256color").envs(environment.iter().copied());
        let command_ends = [other(), other(), other()].map(Stdio::from);
        let [input, out, err] = command_ends;
        command.stdin(input).stdout(out).stderr(err);
        let child = testbed::spawn(command).unwrap();
        let keys = File::from(keys);
        let mut reader = keys.try_clone().unwrap();
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Screen { child, keys, kept, before, output, parser: Parser::new(cells(24), cells(80), 0) }
    }

    fn text(&self) -> String {
        self.parser.screen().contents()
    }

    /// Waits until it shows this.
    fn wait(&mut self, what: &str, is_shown: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_shown(&self.text()) {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(_) => panic!("waited in vain for {what}:\n{}", self.text()),
            }
        }
    }

    fn wait_text(&mut self, text: &str) {
        self.wait(text, |shown| words(shown).contains(&words(text)));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for its end, and sees that the terminal is as it was.
    fn end(mut self) -> Option<i32> {
        let mut status = None;
        wait_for("the program to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        while self.parser.screen().alternate_screen() || self.parser.screen().hide_cursor() {
            self.parser.process(&self.output.recv_timeout(PATIENCE).expect("the terminal is still a screen"));
        }
        assert_eq!(attributes(&self.kept), self.before);
        status.unwrap().code()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The same, wherever its lines end.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn attributes(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).unwrap())
}

fn cells(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A lock, and so many that wait for it. The clients are theirs.
fn contend(server: &Server, key: &str, owner: &str, waiters: usize) -> Vec<Client> {
    let words = ["LOCK.ACQUIRE", key, owner, "PX", "600000", "NOTE", "night run"];
    assert!(server.connect().int(&words).is_some());
    let waiting = (0..waiters).map(|number| {
        let mut conn = server.connect();
        conn.send(&["LOCK.ACQUIRE", key, &format!("{key}-{number}"), "PX", "600000", "BLOCK", "0"]);
        conn
    });
    let waiting = waiting.collect();
    wait_waiters(server, key, waiters);
    waiting
}

/// Whether the rows of these keys come in this order.
fn in_order(shown: &str, keys: [&str; 2]) -> bool {
    let places = keys.map(|key| shown.find(key));
    places.iter().all(Option::is_some) && places.is_sorted()
}

#[test]
fn locks_are_shown_sorted_filtered_and_looked_into() {
    let server = Server::new();
    let _waiting = [contend(&server, "apple", "alice", 1), contend(&server, "zebra", "zoe", 2)];
    // A place without a client is counted wherever waiters are.
    assert_eq!(server.connect().int(&["LOCK.ACQUIRE", "apple", "away", "QUEUE", "60000"]), None);
    server.connect().int(&["LOCK.ACQUIRE", "zebra", "zebra-2", "QUEUE", "60000"]);
    server.connect().int(&["LOCK.ACQUIRE", "lost", "mallory", "PX", "600000"]);
    server.connect().int(&["LOCK.BREAK", "lost"]);
    let mut screen = Screen::open(server.port(), &[], &[]);
    screen.wait("the one with more waiters first", |shown| in_order(shown, ["zebra", "apple"]));
    // The holder, its note, what was lost, and what is counted a second.
    screen.wait("the holder and the loss", |shown| {
        let row = shown.lines().find(|line| line.contains("apple")).unwrap_or_default();
        row.contains("alice") && row.contains("night run") && shown.contains("mallory")
    });
    screen.wait_text("per second: granted 0.0");
    assert!(screen.text().contains("waiters 5  clients 3  places 2  contended 2"), "{}", screen.text());
    screen.press("sss");
    screen.wait("the order of the keys", |shown| shown.contains("by key") && in_order(shown, ["apple", "zebra"]));
    screen.press("/zeb\r");
    screen.wait("one row", |shown| shown.contains("with \"zeb\"") && !shown.contains("apple"));
    screen.press("\r");
    screen.wait_text("1 holding, 3 waiting");
    screen.wait_text("zebra-1");
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_lock_is_broken_after_yes_alone() {
    let server = Server::new();
    let _waiting = contend(&server, "report", "alice", 1);
    let mut screen = Screen::open(server.port(), &[], &[]);
    screen.wait_text("report");
    for answer in ["n", "\r", "\u{1b}"] {
        screen.press("b");
        screen.wait_text("break the hold of alice (held for");
        screen.press(answer);
        screen.wait_text("nothing was broken");
    }
    assert!(server.connect().lock_info("report").is_some_and(|info| info.holders[0].owner == b"alice"));
    screen.press("b");
    screen.wait_text("break the hold of alice");
    screen.press("y");
    screen.wait_text("report: ended 1 hold");
    // It is the next one's.
    screen.wait("the next holder", |shown| shown.contains("report-0") && shown.contains("0 waiting"));
    assert!(is_held(&mut server.connect(), "report"));
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_refresh_asks_little_however_many_locks_are_waited_for() {
    // What could go wrong: each refresh costs the server what grows with its locks, or a round trip for each of them.
    let server = Server::new();
    let mut conn = server.connect();
    let _waiting: Vec<_> = (0..150).map(|number| contend(&server, &format!("k{number}"), "alice", 1)).collect();
    let reads = |conn: &mut Client| conn.info_number("stats", "total_reads_processed");
    let (before, asked) = (reads(&mut conn), calls(&mut conn, "lock.info"));
    let mut screen = Screen::open(server.port(), &[], &[]);
    screen.wait_text("waiters 100+ clients 150");
    for _ in 0..3 {
        let seen = screen.text();
        screen.wait("other times", |shown| shown != seen);
    }
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
    let reads = reads(&mut conn) - before;
    let refreshes = calls(&mut conn, "lock.top");
    assert_eq!(calls(&mut conn, "lock.log"), refreshes);
    let asked = calls(&mut conn, "lock.info") - asked;
    // The last one may have been cut off.
    assert!((refreshes - 1) * 100 <= asked && asked <= refreshes * 100, "{asked} in {refreshes}");
    assert!(reads < refreshes * 50 + 50, "{reads} reads in {refreshes}");
}

#[test]
fn another_size_of_the_window_is_filled() {
    let server = Server::new();
    // It is not drawn anew for another reason.
    let mut screen = Screen::run(server.port(), &[PROGRAM, "top", "--interval", "1d"], &[]);
    screen.wait_text("locks 0");
    for (rows, columns) in [(10, 40), (40, 120), (1, 1), (24, 80)] {
        screen.parser.screen_mut().set_size(cells(rows), cells(columns));
        tcsetwinsize(&screen.keys, size(rows, columns)).unwrap();
        let last = usize::from(rows) - 1;
        screen.wait("its last line", |shown| shown.lines().nth(last).is_some_and(|line| line.starts_with('q')));
    }
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn the_terminal_is_as_it_was_after_a_signal() {
    let server = Server::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut screen = Screen::open(server.port(), &[], &[]);
        screen.wait_text("locks 0");
        testbed::signal(&screen.child, signal);
        assert_eq!(screen.end(), Some(code));
    }
    let mut screen = Screen::open(server.port(), &[], &[]);
    screen.wait_text("locks 0");
    screen.press("\u{3}");
    assert_eq!(screen.end(), Some(130));
}

#[test]
fn a_shell_that_stops_it_has_its_terminal_back_and_can_continue_it() {
    let server = Server::new();
    // Both a key, and a signal of somebody else: each time the shell goes on, with a terminal for lines.
    let script = "set -m; \"$0\" top --interval 200ms; for by in key signal; do stty -a; echo by $by; read _; fg; done";
    let mut screen = Screen::run(server.port(), &["sh", "-c", script, PROGRAM], &[]);
    for by in ["by key", "by signal"] {
        screen.wait_text("locks 0");
        if by == "by key" {
            screen.press("\u{1a}");
        } else {
            let program = children(screen.child.id())[0];
            kill_process(pid(program), Signal::TSTP).unwrap();
        }
        screen.wait_text(by);
        assert!(words(&screen.text()).contains(" icanon ") && !screen.parser.screen().alternate_screen());
        screen.press("\n");
    }
    screen.wait_text("locks 0");
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let server = Server::new();
    for (words, environment, has_colours) in
        [(&[][..], &[][..], true), (&["--no-color"], &[], false), (&[], &[("NO_COLOR", "1")], false)]
    {
        let mut screen = Screen::open(server.port(), words, environment);
        screen.wait_text("locks 0");
        let shown = screen.parser.screen();
        let places = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
        let mut cells = places.filter_map(|(row, column)| shown.cell(row, column));
        assert_eq!(cells.any(|cell| cell.fgcolor() != Color::Default), has_colours, "{words:?} {environment:?}");
        screen.press("q");
        assert_eq!(screen.end(), Some(0));
    }
}

#[test]
fn heads_of_tables_are_bold_on_a_terminal_alone() {
    let server = Server::new();
    assert!(server.connect().int(&["LOCK.ACQUIRE", "report", "alice", "PX", "600000"]).is_some());
    for (environment, is_bold) in [(&[][..], true), (&[("NO_COLOR", "1")], false), (&[("TERM", "dumb")], false)] {
        let mut screen = Screen::run(server.port(), &[PROGRAM, "ls"], environment);
        screen.wait_text("1 lock in database 0, went through 1 key");
        let bold = |row: u16| screen.parser.screen().cell(row, 0).is_some_and(vt100::Cell::bold);
        assert_eq!((bold(0), bold(1)), (is_bold, false), "{environment:?}");
        assert_eq!(screen.end(), Some(0));
    }
    assert!(!run(server.port(), &["ls"]).out.contains('\u{1b}'));
}

#[test]
fn rights_to_look_suffice_and_one_that_lacks_is_named() {
    let server = Server::new();
    let _waiting = contend(&server, "report", "alice", 1);
    let mut conn = server.connect();
    let viewer = users().next().unwrap();
    conn.ok(&["ACL", "SETUSER"].into_iter().chain(viewer.split(' ')).collect::<Vec<_>>());
    let url = format!("redis://viewer:change-me@127.0.0.1:{}", server.port());
    let mut screen = Screen::open(server.port(), &[], &[("REDIS_LOCK_URL", &url)]);
    screen.wait("all of it", |shown| shown.contains("alice") && shown.contains("locks 1"));
    assert!(!screen.text().contains("needs +"), "{}", screen.text());
    for right in ["lock.top", "lock.log", "lock.info", "info"] {
        conn.ok(&["ACL", "SETUSER", "viewer", &format!("-{right}")]);
        screen.wait_text(&format!("the user needs +{right})"));
        conn.ok(&["ACL", "SETUSER", "viewer", &format!("+{right}")]);
        screen.wait("it to be gone", |shown| !shown.contains("the user needs"));
    }
    // A key that it may not see hides no other.
    let _secret = contend(&server, "secret", "mallory", 1);
    conn.ok(&["ACL", "SETUSER", "viewer", "resetkeys", "%R~report"]);
    screen.wait("what it may see", |shown| {
        let holder = |key| shown.lines().find(|line| line.contains(key)).map(|line| line.contains("night run"));
        shown.contains("NOPERM") && holder(" report ") == Some(true) && holder(" secret ") == Some(false)
    });
    conn.ok(&["ACL", "SETUSER", "viewer", "%R~*"]);
    screen.wait("all of it", |shown| shown.contains("mallory"));
    screen.press("b");
    screen.wait_text("break the hold of alice");
    screen.press("y");
    screen.wait_text("the user needs +lock.break");
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn all_nodes_of_a_cluster_are_shown_and_a_server_that_is_away_is_named() {
    let cluster = Cluster::start(2, 0);
    let _waiting: Vec<Vec<Client>> = (0..2)
        .map(|node| {
            let server = &cluster.nodes[node];
            let is_there = |key: &String| cluster.conn(node).call(&["LOCK.CHECK", key, "me"]).is_ok();
            let key = (0..).map(|number| format!("key-{node}-{number}")).find(is_there).unwrap();
            contend(server, &key, "alice", 1)
        })
        .collect();
    let mut screen = Screen::open(cluster.nodes[0].port(), &[], &[]);
    screen.wait("both", |shown| shown.contains("SERVER") && ["key-0-", "key-1-"].iter().all(|key| shown.contains(key)));
    screen.press("q");
    assert_eq!(screen.end(), Some(0));

    // And all servers that are named.
    let servers = [Server::new(), Server::new()];
    let _waiting = servers.each_ref().map(|server| contend(server, &format!("at-{}", server.port()), "alice", 1));
    let urls = servers.each_ref().map(|server| format!("redis://127.0.0.1:{}", server.port()));
    let mut screen = Screen::open(9, &["--url", &urls[0], "--url", &urls[1]], &[]);
    let both = |shown: &str| servers.iter().all(|server| shown.contains(&format!("at-{}", server.port())));
    screen.wait("both", both);
    // One that does not answer delays no other, and is named.
    servers[0].signal(Signal::STOP);
    let refreshes = || calls(&mut servers[1].connect(), "lock.top");
    let before = refreshes();
    screen.wait_text(&format!("no answer from 127.0.0.1:{}", servers[0].port()));
    assert!(refreshes() >= before + 3 && screen.text().contains(&format!("at-{}", servers[1].port())));
    servers[0].signal(Signal::CONT);
    screen.wait("both again", both);
    screen.wait("it to be well", |shown| !shown.contains("no answer"));
    screen.press("q");
    assert_eq!(screen.end(), Some(0));

    let mut server = Server::new();
    let mut screen = Screen::open(server.port(), &[], &[]);
    screen.wait_text("locks 0");
    server.stop(true);
    screen.wait_text("no answer from 127.0.0.1");
    screen.press("q");
    assert_eq!(screen.end(), Some(69));
}

#[test]
fn without_a_terminal_there_is_no_screen() {
    let outcome = run(1, &["top"]);
    assert!(outcome.code == Some(64) && outcome.err.contains("needs a terminal"), "{outcome:?}");
}
