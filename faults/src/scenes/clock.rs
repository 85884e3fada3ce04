//! The wall clock of a server steps by an hour or a day, forwards or back, while clients lock and wait. Leases,
//! timeouts and the order of service go on as if nothing had happened, and fences rise. The same holds on a replica
//! that takes over, though its own wall clock steps as well.
//!
//! Before the first step, the run measures how late undisturbed leases end: the promise is ten milliseconds.
//!
//! A round is one step of both clocks and one promotion of the replica, which follows again after it. One round in two
//! is under load, and begins with many small steps of the primary's clock while its timer rings.

use crate::caller::{Answer, Asking, Caller, ask_apart};
use crate::crowd::Crowd;
use crate::history::{Grant, Moment};
use crate::judge::{fences, judge_as, tell};
use crate::look::{apart, left_ms, wait_in_line};
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::witness::Witness;
use crate::worker::Habits;
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use std::thread;
use std::time::Duration;
use testbed::{Server, wait_for};

const PATIENCE: Duration = Duration::from_secs(5);
/// When the spans end over which the clocks step, after their begin.
const SPAN_MS: u64 = 800;
/// When the lease ends that goes over the promotion as well.
const LONG_SPAN_MS: u64 = 2_500;
/// How late half of the leases may end on a server that is otherwise idle, and whose clock does not step.
const PUNCTUAL_US: u64 = 10_000;
const STEPS: [i64; 4] = [-86_400, -3_600, 3_600, 86_400];

pub const SCENE: Scene =
    Scene { name: "clock", about: "Wall clocks step while clients lock and wait", rounds: "8", play, ..Scene::PLAIN };

fn play(options: &Options, report: &mut Report) {
    // The allocator's own thread sleeps until a moment of the kernel's wall clock: it would never sleep again.
    let setup = || Server::setup().option("jemalloc-bg-thread", "no").option("repl-diskless-sync-delay", "0");
    let start = || setup().wall_offset("+0").start();
    let (primary, replica) = (start(), start());
    replica.follow(&primary);
    let clients = [(8, Habits::brief(4))];
    let port = primary.port();
    let crowd = Crowd { number: 0, clients: &clients, patience: PATIENCE, place: &|_| Some(port) };
    let witness = Witness::of(primary.port());
    let mut stage = Stage {
        primary,
        replica,
        offsets: [0; 2],
        dice: options.dice(0),
        witness,
        grants: vec![],
        late: vec![],
        own_late: vec![],
        report,
    };
    stage.measure_undisturbed();
    let undisturbed = std::mem::take(&mut stage.late);
    let mut own = std::mem::take(&mut stage.own_late);
    own.sort_unstable();
    // One round in two is under load. On an idle server, only the server's timers read the time.
    let ((), saw) = crowd.during(options, || (0..options.rounds).step_by(2).for_each(|round| stage.round(round)));
    let under_load = std::mem::take(&mut stage.late);
    (1..options.rounds).step_by(2).for_each(|round| stage.round(round));
    let Stage { grants, late: alone, .. } = stage;
    judge_as(report, "load", &saw, |_| None);

    // The node has one clock for fences: they rise over all its keys.
    let on_one_key = |grant: Grant| Grant { key: "any".to_owned(), ..grant };
    let grants: Vec<Grant> = grants.into_iter().chain(saw.grants).map(on_one_key).collect();
    report.add("fences compared", grants.len() as u64);
    tell(report, fences(&grants), |_| None);

    let middle = own[own.len() / 2];
    if middle > PUNCTUAL_US {
        report.violation(format!(
            "undisturbed: half of the leases ended later than {middle} us by the server's own doing"
        ));
    }
    for (when, mut late) in [("undisturbed", undisturbed), ("under load", under_load), ("alone", alone)] {
        late.sort_unstable();
        report.add(&format!("{when}: moments measured"), late.len() as u64);
        for (name, part) in [("half of them", 50), ("99 of 100", 99), ("all", 100)] {
            let most = (late.len() * part).div_ceil(100).checked_sub(1).map_or(0, |place| late[place]);
            report.add(&format!("{when}: microseconds late at most: {name}"), most);
        }
    }
    report.must_see(["granted", "null", "not held at release"].map(|answer| format!("load: answered {answer}")));
}

struct Stage<'r> {
    primary: Server,
    replica: Server,
    /// How far their wall clocks are off, in seconds.
    offsets: [i64; 2],
    dice: StdRng,
    witness: Witness,
    /// What the primary granted, apart from the load.
    grants: Vec<Grant>,
    /// How late something came, in microseconds.
    late: Vec<u64>,
    /// The same without the time for which the machine ran none of the processes.
    own_late: Vec<u64>,
    report: &'r mut Report,
}

/// Something that the server began between two moments, and ends after some time.
#[derive(Clone, Copy)]
struct Span {
    from: Moment,
    to: Moment,
    ms: u64,
}

impl Stage<'_> {
    fn round(&mut self, round: u64) {
        let [lease, grace, line, long] = ["lease", "grace", "line", "long"].map(|name| format!("{name}{round}"));
        if round.is_multiple_of(2) {
            self.step_while_ringing(round);
        }
        // A silent client holds every lock, and other clients wait for it.
        let lease_ends = self.hold(&lease, SPAN_MS);
        let after_lease = self.wait(&lease, "next", 0);
        let long_ends = self.hold_on_both(&long, LONG_SPAN_MS);
        let from = Moment::now();
        let null = self.wait(&long, "next", SPAN_MS);
        let time_out = Span { from, to: Moment::now(), ms: SPAN_MS };
        self.hold(&grace, 60_000);
        let after_grace = self.wait(&grace, "next", 0);
        let grace_ends = self.close_session(&grace, SPAN_MS);
        self.hold(&line, SPAN_MS);
        let in_line: Vec<Asking> = (0..5).map(|number| self.wait(&line, &number.to_string(), 0)).collect();

        thread::sleep(Duration::from_millis(self.dice.random_range(0..SPAN_MS / 2)));
        self.step();

        self.expect("the end of a lease", after_lease, lease_ends, true);
        self.expect("the end of a session's grace", after_grace, grace_ends, true);
        self.expect("a timeout", null, time_out, false);
        self.served_in_order(&line, in_line);
        self.promote(round, &long, long_ends);
    }

    /// A hundred leases, one after the other, each with a waiter, with nothing else going on.
    fn measure_undisturbed(&mut self) {
        for number in 0..100 {
            let key = format!("undisturbed{number}");
            let span = self.hold(&key, 20 + number % 50);
            let asking = self.wait(&key, "next", 0);
            self.expect("the end of a lease", asking, span, true);
        }
    }

    /// Keeps the server's timer ringing, and sets its clock forward and back meanwhile. The server reads the clock
    /// before the timer rings and afterwards, and compares the two.
    fn step_while_ringing(&mut self, round: u64) {
        let mut pipe = redis::pipe();
        for number in 10..4000 {
            let key = format!("ringing{round}.{number}");
            pipe.cmd("LOCK.ACQUIRE").arg(key).arg("holder").arg("PX").arg(number / 10).ignore();
        }
        pipe.query::<()>(&mut self.primary.connect().0).expect("all are free");
        let mut caller = Caller::new(self.primary.port(), PATIENCE);
        for _ in 0..60 {
            for offset in [self.offsets[0] + 3_600, self.offsets[0]] {
                self.primary.set_wall_offset(&format!("{offset:+}"));
                thread::sleep(Duration::from_micros(self.dice.random_range(0..1500)));
            }
            if let (_, answer @ (Answer::Silence | Answer::Lost), _) = caller.ask("PING") {
                self.report.violation(format!("a PING after a step back got {answer:?}"));
            }
        }
        self.report.add("steps of a wall clock while its timer rings", 120);
    }

    fn step(&mut self) {
        for (server, offset) in [&self.primary, &self.replica].into_iter().zip(&mut self.offsets) {
            *offset += STEPS.choose(&mut self.dice).expect("there are some");
            server.set_wall_offset(&format!("{offset:+}"));
            self.report.add("steps of a wall clock", 1);
        }
    }

    fn hold(&mut self, key: &str, lease_ms: u64) -> Span {
        let mut caller = Caller::new(self.primary.port(), PATIENCE);
        let (from, answer, to) = caller.ask(&format!("LOCK.ACQUIRE {key} holder PX {lease_ms}"));
        let fence = answer.int().unwrap_or_else(|| panic!("{key} is free, and got {answer:?}"));
        self.granted(key, "holder", fence, from, to);
        Span { from, to, ms: lease_ms }
    }

    /// Takes a free lock, and waits until the replica knows: there its lease runs from then on.
    fn hold_on_both(&mut self, key: &str, lease_ms: u64) -> Span {
        let span = self.hold(key, lease_ms);
        let mut there = self.replica.connect();
        wait_for("the replica to know of the lock", || left_ms(&mut there, key).is_some());
        Span { to: Moment::now(), ..span }
    }

    /// Waits for a lock behind the present waiters; 0: without a limit.
    fn wait(&self, key: &str, owner: &str, block_ms: u64) -> Asking {
        let request = format!("LOCK.ACQUIRE {key} {owner} PX 20 BLOCK {block_ms}");
        wait_in_line(&self.primary, key, request, Duration::from_millis(LONG_SPAN_MS), PATIENCE)
    }

    /// Binds the holder to a connection that closes.
    fn close_session(&self, key: &str, grace_ms: u64) -> Span {
        let mut caller = Caller::new(self.primary.port(), PATIENCE);
        let (_, answer, _) = caller.ask(&format!("LOCK.EXTEND {key} holder PX 60000 SESSION {grace_ms}"));
        assert!(answer.int().is_some(), "{answer:?}");
        let from = Moment::now();
        caller.hang_up();
        Span { from, to: Moment::now(), ms: grace_ms }
    }

    /// The waiter is answered when a span is over, with a fence or with null.
    fn expect(&mut self, what: &str, asking: Asking, span: Span, with_fence: bool) -> Option<i64> {
        let (asked, answer, told) = asking.join().expect("does not panic");
        // A request that comes when it is over already is answered at once.
        let (earliest, latest) = (span.from.after_ms(span.ms), asked.max(span.to.after_ms(span.ms)));
        self.late.push(told.0.saturating_sub(latest.0));
        self.report.add(&format!("seen: {what}"), 1);
        let stalled = self.witness.stalled_us(latest, told);
        self.own_late.push(told.0.saturating_sub(latest.0 + stalled));
        if !self.witness.is_in_time((earliest, latest), told) {
            let due = format!("due from {earliest:?} to {latest:?}, stalled for {stalled} us");
            self.report.violation(format!("{what}: asked for at {asked:?}, {due}, told at {told:?}"));
        }
        if answer.int().is_some() != with_fence || !with_fence && answer != Answer::Null {
            self.report.violation(format!("{what}: {answer:?}"));
        }
        answer.int()
    }

    /// They came in this order, and hold one after the other, until their leases end.
    fn served_in_order(&mut self, key: &str, in_line: Vec<Asking>) {
        let mut last = 0;
        for (number, asking) in in_line.into_iter().enumerate() {
            let (asked, answer, told) = asking.join().expect("does not panic");
            match answer.int() {
                Some(fence) if fence > last => last = self.granted(key, &number.to_string(), fence, asked, told),
                _ => self.report.violation(format!("number {number} in line got {answer:?} after {last}")),
            }
            self.report.add("seen: one in line", 1);
        }
    }

    /// The replica takes over with the leases as they are, and gives that up again.
    fn promote(&mut self, round: u64, long: &str, long_ends: Span) {
        let last = format!("last{round}");
        let arrival = self.hold_on_both(&last, 60_000);
        let last_fence = self.grants.last().expect("just held").fence;
        let (mut here, mut there) = (self.primary.connect(), self.replica.connect());
        there.ok(&["REPLICAOF", "NO", "ONE"]);
        self.report.add("promotions", 1);
        let on_its_way = (arrival.to.0 - arrival.from.0).div_ceil(1000) as i64;
        self.report.violations(apart(&mut here, &mut there, &last, on_its_way));
        let request = format!("LOCK.ACQUIRE {long} next PX 20 BLOCK 0");
        let asking = ask_apart(self.replica.port(), request, Duration::from_millis(LONG_SPAN_MS), PATIENCE);
        let fence = self.expect("the end of a lease after a promotion", asking, long_ends, true);
        if fence.is_none_or(|fence| fence <= last_fence) {
            self.report.violation(format!("a promoted node gave {fence:?} after {last_fence}"));
        }
        self.replica.follow(&self.primary);
    }

    fn granted(&mut self, key: &str, owner: &str, fence: i64, asked: Moment, told: Moment) -> i64 {
        let (key, owner, node) = (key.to_owned(), format!("{key} {owner}"), self.primary.port());
        let grant = Grant { key, owner, writes: true, fence, node, asked, told, lease_ends: told, release: None };
        self.grants.push(grant);
        fence
    }
}
