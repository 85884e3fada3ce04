//! Servers that may not write, or are full. Causes are no memory (without eviction, and with it), no space for the
//! append-only file, and a dump that cannot be written. Others are too few replicas, and a primary that was made a
//! replica. The server refuses requests with its own codes, and they leave no trace. In the background nothing ends or
//! is granted while writes are refused, and the server does not spin meanwhile. A holder can release its lock when
//! memory alone is short. All goes on afterwards.
//!
//! A round is each of these once, while clients lock and wait. It ends with `kill -9` and a start from the append-only
//! file.

use crate::caller::{Answer, Asking, Caller};
use crate::crowd::Crowd;
use crate::history::Moment;
use crate::judge::{LOSSES, judge_as};
use crate::look::{wait_in_line, waiting};
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::witness::Witness;
use crate::worker::Habits;
use std::fs;
use std::thread;
use std::time::Duration;
use testbed::{Client, Server, wait_for};

const PATIENCE: Duration = Duration::from_secs(5);
/// Leases of the scene that end while the state lasts.
const BRIEF_MS: u64 = 400;
/// So much of the time, in percent, a server may be busy that only has to refuse: with the clients here it is a few.
const BUSY_MAX: u64 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    FullMemory,
    /// Keys with a time to live are evicted: locks have none.
    FullMemoryVolatile,
    /// Any key is evicted, locks too.
    FullMemoryAllKeys,
    FullDisk,
    FailedDump,
    FewReplicas,
    Replica,
}

const STATES: [State; 7] = [
    State::FullMemory,
    State::FullMemoryVolatile,
    State::FullMemoryAllKeys,
    State::FullDisk,
    State::FailedDump,
    State::FewReplicas,
    State::Replica,
];

impl State {
    /// How a write that is refused is answered.
    fn code(self) -> &'static str {
        match self {
            State::FullMemory | State::FullMemoryVolatile | State::FullMemoryAllKeys => "OOM",
            State::FullDisk | State::FailedDump => "MISCONF",
            State::FewReplicas => "NOREPLICAS",
            State::Replica => "READONLY",
        }
    }

    /// Lets it come, or go, and waits until it has.
    fn set(self, server: &Server, on: bool) {
        let mut conn = server.connect();
        let mut memory = |policy: &str| {
            conn.ok(&["CONFIG", "SET", "maxmemory-policy", policy]);
            conn.ok(&["CONFIG", "SET", "maxmemory", if on { "1" } else { "0" }]);
        };
        match self {
            State::FullMemory => memory("noeviction"),
            State::FullMemoryVolatile => memory("volatile-random"),
            State::FullMemoryAllKeys => memory("allkeys-random"),
            State::FullDisk => {
                // Shorter than the file is by now: it cannot grow. That shows with the next write, and goes when the
                // server tries again, each second.
                server.limit_files(on.then_some(16));
                let status = if on { "err" } else { "ok" };
                wait_for("the disk to be full or not", || {
                    let _refused: Result<_, _> = conn.call(&["SET", "written", "to the file"]);
                    conn.info("persistence", "aof_last_write_status") == status
                });
            }
            State::FailedDump => {
                // A directory in place of the dump: writing it fails, for root as well.
                let dump = server.dir().join("dump.rdb");
                if on { fs::create_dir(&dump) } else { fs::remove_dir(&dump) }.expect("a directory of ours");
                conn.ok(&["CONFIG", "SET", "save", "3600 1000000"]);
                let status = if on { "err" } else { "ok" };
                wait_for("a save to begin", || conn.call(&["BGSAVE"]).is_ok());
                wait_for("the save to end", || {
                    conn.info("persistence", "rdb_bgsave_in_progress") == "0"
                        && conn.info("persistence", "rdb_last_bgsave_status") == status
                });
                if !on {
                    fs::remove_file(&dump).expect("just written");
                    conn.ok(&["CONFIG", "SET", "save", ""]);
                }
            }
            State::FewReplicas => conn.ok(&["CONFIG", "SET", "min-replicas-to-write", if on { "9" } else { "0" }]),
            // The replica of a primary that cannot be reached: what it holds stays.
            State::Replica if on => conn.ok(&["REPLICAOF", "127.0.0.1", "1"]),
            State::Replica => conn.ok(&["REPLICAOF", "NO", "ONE"]),
        }
    }
}

pub const SCENE: Scene = Scene {
    name: "limits",
    about: "Servers that may not write, or are full, while clients lock and wait",
    rounds: "2",
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    let setup = Server::setup().option("appendonly", "yes").option("auto-aof-rewrite-percentage", "0");
    let setup = setup.option("repl-ping-replica-period", "3600").option("repl-diskless-sync-delay", "0");
    let (mut server, replica) = (setup.outlives_full_files().start(), Server::new());
    replica.follow(&server);
    let clients = [(8, Habits::brief(4))];
    let mut number = 0;
    for _ in 0..options.rounds {
        for state in STATES {
            number += 1;
            let crowd = Crowd { number, clients: &clients, patience: PATIENCE, place: &|_| Some(server.port()) };
            let witness = Witness::of(server.port());
            let mut stage = Stage { server: &server, replica: &replica, state, number, witness, report };
            let ((), saw) = crowd.during(options, || stage.play());
            let what = format!("{state:?}");
            // There locks are taken from their holders.
            let evicts = state == State::FullMemoryAllKeys;
            judge_as(report, &what, &saw, |wrong| (evicts && LOSSES.contains(&wrong.name)).then_some(", evicted"));
            let answers = ["granted".to_owned(), format!("error {}", state.code())];
            report.must_see(answers.map(|answer| format!("{what}: answered {answer}")));
        }
        survive(&mut server, report);
        replica.catch_up(&server);
    }
    report.must_see(["leases that were over while nothing could end"]);
}

/// Nothing is left behind, and what is held is in the file.
fn survive(server: &mut Server, report: &mut Report) {
    let mut conn = server.connect();
    // That of the round before was evicted.
    wait_for("all leases to end", || conn.info("lock", "lock_leases") == "0");
    for (section, field) in [("lock", "lock_waiters"), ("lock", "lock_session_holds"), ("clients", "blocked_clients")] {
        let left = conn.info(section, field);
        if left != "0" {
            report.violation(format!("{field} is {left} at the end of a round"));
        }
    }
    let fence = conn.int(&["LOCK.ACQUIRE", "kept", "keeper", "PX", "86400000"]);
    server.await_aof();
    server.crash();
    let kept = server.connect().lock_info("kept").map(|info| info.fence);
    if kept != fence {
        report.violation(format!("held before the restart: {fence:?}, after: {kept:?}"));
    }
    report.add("starts from the append-only file", 1);
}

struct Stage<'s> {
    server: &'s Server,
    replica: &'s Server,
    state: State,
    number: u64,
    witness: Witness,
    report: &'s mut Report,
}

impl Stage<'_> {
    fn play(&mut self) {
        let mut conn = self.server.connect();
        self.flows(&mut conn);
        // The holders are a client that releases, a client that stays silent, and a client whose connection closes;
        // each lock has a waiter.
        let [held, brief, bound, long] =
            ["held", "brief", "bound", "long"].map(|name| format!("{name}{}", self.number));
        for key in [&held, &long] {
            conn.int(&["LOCK.ACQUIRE", key, "holder", "PX", "60000"]).expect("free");
        }
        let mut session = Caller::new(self.server.port(), PATIENCE);
        session.ask(&format!("LOCK.ACQUIRE {bound} holder PX 60000 SESSION 0"));
        let [after_held, after_bound] = [&held, &bound].map(|key| self.wait(key, 0));
        let timed = self.wait(&long, BRIEF_MS);
        let (from, _, to) =
            Caller::new(self.server.port(), PATIENCE).ask(&format!("LOCK.ACQUIRE {brief} holder PX {BRIEF_MS}"));
        let after_brief = self.wait(&brief, 0);
        let due = (from.after_ms(BRIEF_MS), to.after_ms(BRIEF_MS));
        conn.ok(&["SET", "volatile", "v", "PX", "60000"]);

        self.state.set(self.server, true);
        let in_time = Moment::now() < due.0;
        self.report.add("states", 1);
        self.refused(&mut conn, &held);
        match self.state {
            State::FullMemory | State::FullMemoryVolatile => {
                self.lets_go(&mut conn, &held);
                session.hang_up();
                let now = Moment::now();
                self.granted("after a release", after_held, (from, now));
                self.granted("after a session", after_bound, (from, now));
                self.granted("after a lease", after_brief, due);
                self.null(timed);
                let evicted = conn.get::<i64>(&["EXISTS", "volatile"]) == 0;
                if evicted != (self.state == State::FullMemoryVolatile) {
                    self.report.violation(format!("{:?}: evicted what has a time to live: {evicted}", self.state));
                }
                self.state.set(self.server, false);
            }
            State::FullMemoryAllKeys => {
                // Evicted, all of them, and what the next are granted as well.
                let now = Moment::now();
                let refused = |conn: &mut Client| -> u64 {
                    let count = conn.info("errorstats", "errorstat_OOM");
                    count.strip_prefix("count=").expect("a count").parse().expect("a number")
                };
                let before = refused(&mut conn);
                wait_for("clients to be refused", || refused(&mut conn) > before + 10);
                self.granted("after an eviction", after_held, (from, now));
                self.granted("after an eviction", after_bound, (from, now));
                self.granted("after an eviction", after_brief, (from, now));
                self.granted("after an eviction", timed, (from, now));
                session.hang_up();
                self.state.set(self.server, false);
            }
            State::FullDisk | State::FailedDump | State::FewReplicas => {
                self.frozen(&mut conn, |scene| {
                    session.hang_up();
                    scene.null(timed);
                    thread::sleep(Duration::from_millis(BRIEF_MS / 2));
                    scene.report.add("leases that were over while nothing could end", u64::from(in_time));
                    scene.rests();
                    for (what, asking) in [("held", &after_held), ("bound", &after_bound), ("brief", &after_brief)] {
                        // On a slow machine that lease was over before.
                        if asking.is_finished() && (what != "brief" || in_time) {
                            scene.report.violation(format!("{:?}: who waits for {what} was answered", scene.state));
                        }
                    }
                });
                self.state.set(self.server, false);
                let now = Moment::now();
                self.granted("after a lease that was over", after_brief, (due.0, now));
                self.granted("after a session that was over", after_bound, (from, now));
                self.lets_go(&mut conn, &held);
                self.granted("after a release", after_held, (now, Moment::now()));
            }
            State::Replica => {
                for asking in [timed, after_held, after_bound, after_brief] {
                    let (_, answer, _) = asking.join().expect("does not panic");
                    // Some servers close the connection after the error, or instead of it.
                    if !matches!(&answer, Answer::Error(text) if text.starts_with("UNBLOCKED ")) {
                        self.report
                            .violation(format!("who waited on a primary that was made a replica got {answer:?}"));
                    }
                }
                self.frozen(&mut conn, |scene| scene.rests());
                self.state.set(self.server, false);
                let again = self.wait(&brief, 0);
                let now = Moment::now();
                self.granted("after a lease that was over", again, (due.0, now));
                let again = self.wait(&held, 0);
                self.lets_go(&mut conn, &held);
                self.granted("after a release", again, (now, Moment::now()));
                conn.get::<i64>(&["LOCK.BREAK", &bound]);
            }
        }
        conn.int(&["LOCK.RELEASE", &long, "holder"]);
        self.flows(&mut conn);
    }

    /// Waits until clients have been granted something: all goes on.
    fn flows(&self, conn: &mut Client) {
        let granted = |conn: &mut Client| conn.info_number("lock", "lock_granted");
        let before = granted(conn);
        wait_for("the clients to be granted locks", || granted(conn) > before + 10);
    }

    fn wait(&self, key: &str, block_ms: u64) -> Asking {
        let request = format!("LOCK.ACQUIRE {key} next PX 20 BLOCK {block_ms}");
        wait_in_line(self.server, key, request, PATIENCE, PATIENCE)
    }

    /// The server refuses with its own code what would grant, and what else would write where nothing may be written.
    /// This holds on free keys and on held ones, and leaves no trace.
    fn refused(&mut self, conn: &mut Client, held: &str) {
        let free = format!("free{}", self.number);
        let mut refused = vec![
            format!("LOCK.ACQUIRE {free} x"),
            format!("LOCK.ACQUIRE {free} x BLOCK 0"),
            format!("LOCK.ACQUIRE {held} x BLOCK 0"),
            format!("LOCK.RW {free} x READ SESSION 0"),
            format!("LOCK.MACQUIRE 2 {free} {free}2 x BLOCK 1"),
        ];
        if self.state.code() != "OOM" {
            refused.extend([
                format!("LOCK.ACQUIRE {held} holder RETRY 1"),
                format!("LOCK.RELEASE {held} holder"),
                format!("LOCK.EXTEND {held} holder PX 1"),
                format!("LOCK.MRELEASE 2 {held} {free} holder"),
                format!("LOCK.MEXTEND 2 {held} {free} holder PX 1"),
                format!("LOCK.BREAK {held}"),
            ]);
        }
        let before = waiting(conn, held);
        for request in &refused {
            let (_, answer, _) = Caller::new(self.server.port(), PATIENCE).ask(request);
            self.report.add(&format!("refused with {}", self.state.code()), 1);
            if !matches!(&answer, Answer::Error(text) if text.starts_with(&format!("{} ", self.state.code()))) {
                self.report.violation(format!("{:?}: {request}: {answer:?}", self.state));
            }
        }
        // Waiters may leave meanwhile, but none may arrive.
        if waiting(conn, held) > before || conn.get::<i64>(&["EXISTS", &free]) == 1 || waiting(conn, &free) > 0 {
            self.report.violation(format!("{:?}: a refused request left a trace", self.state));
        }
        for request in refused.iter().chain([&format!("LOCK.RELEASE {held} holder")]) {
            let (_, answer, _) = Caller::new(self.replica.port(), PATIENCE).ask(request);
            self.report.add("refused by a replica", 1);
            if !matches!(&answer, Answer::Error(text) if text.starts_with("READONLY ")) {
                self.report.violation(format!("on a replica: {request}: {answer:?}"));
            }
        }
    }

    /// The holder can extend, and release.
    fn lets_go(&mut self, conn: &mut Client, held: &str) {
        let extended = conn.int(&["LOCK.EXTEND", held, "holder", "PX", "60000"]);
        let released = conn.int(&["LOCK.RELEASE", held, "holder"]);
        if extended.is_none() || released != Some(0) {
            self.report.violation(format!("{:?}: EXTEND gave {extended:?}, RELEASE {released:?}", self.state));
        }
    }

    /// Nothing changes meanwhile: no lock, no count, nothing sent to replicas or the file.
    fn frozen(&mut self, conn: &mut Client, meanwhile: impl FnOnce(&mut Self)) {
        let state = |conn: &mut Client| {
            let counts = ["granted", "handed_off", "released", "extended", "lapsed", "broken", "taken_back"];
            let counts = counts.map(|count| conn.info("lock", &format!("lock_{count}"))).join(" ");
            let sizes = [("replication", "master_repl_offset"), ("persistence", "aof_current_size")];
            let sizes = sizes.map(|(section, field)| conn.info(section, field)).join(" ");
            let digest: String = conn.get(&["DEBUG", "DIGEST"]);
            format!("counts {counts}; sizes {sizes}; digest {digest}")
        };
        let before = state(conn);
        meanwhile(self);
        let after = state(conn);
        self.report.add("compared before and after", 1);
        if before != after {
            self.report.violation(format!("{:?}: changed from {before} to {after}", self.state));
        }
    }

    /// For a second, longer than the brief lease runs, the server does not spin: leases are due, and must not end.
    fn rests(&mut self) {
        let mut conn = self.server.connect();
        let mut spent_us = || conn.cpu_us("") as u64;
        let (from, before) = (Moment::now(), spent_us());
        thread::sleep(Duration::from_secs(1));
        let (spent, took) = (spent_us() - before, Moment::now().0 - from.0);
        let busy = 100 * spent / took;
        let figure = &format!("{:?}: busy while nothing could end, at most percent", self.state);
        self.report.add(figure, busy.saturating_sub(self.report.figure(figure)));
        if busy > BUSY_MAX {
            self.report.violation(format!("{:?}: busy for {busy} % of the time while nothing may end", self.state));
        }
    }

    /// The waiter is granted between two moments, or a little later.
    fn granted(&mut self, what: &str, asking: Asking, due: (Moment, Moment)) {
        let (_, answer, told) = asking.join().expect("does not panic");
        self.report.add(&format!("granted {what}"), 1);
        if answer.int().is_none() || !self.witness.is_in_time(due, told) {
            self.report.violation(format!("{:?}: {what}: {answer:?} at {told:?}, due {due:?}", self.state));
        }
    }

    /// The waiter is answered that its time is up.
    fn null(&mut self, asking: Asking) {
        let (asked, answer, told) = asking.join().expect("does not panic");
        let due = asked.after_ms(BRIEF_MS);
        self.report.add("timeouts", 1);
        if answer != Answer::Null || !self.witness.is_in_time((due, due), told) {
            self.report.violation(format!("{:?}: a timeout: {answer:?} at {told:?}, due {due:?}", self.state));
        }
    }
}
