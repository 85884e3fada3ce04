//! A line of owners with QUEUE over wires that break. Some lose their connection while they wait, or while the grant is
//! on its way, and come back: over another connection, or over two at once. Others never come back.
//!
//! Owners that never come back stand at the head. The line moves on when their QUEUE is over, and the PX of those whose
//! grants were delivered. The others are granted in the order in which they came.

use super::wires::{BYTES, PATIENCE, Stage};
use crate::audit;
use crate::caller::{Caller, Numbered};
use crate::history::{Grant, Moment, Release};
use crate::judge::judge_as;
use crate::places::{End, Place, Told, held_up_us, out_of_order, outstayed};
use crate::requester::Requester;
use crate::worker::{Saw, together};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use redis::Value;
use std::collections::BTreeSet;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testbed::{Fields, Proxy, wait_for};

const QUEUE_MS: u64 = 1_500;
/// Of a request that keeps the place if it is repeated at once.
const SLICE_MS: u64 = QUEUE_MS / 8;
/// Of a request that waits for all that happens here.
const LONG_MS: u64 = 20_000;
/// Of an owner that may be granted and not know of it, so that its lease ends here.
const SHORT_LEASE_MS: u64 = 500;
/// Of all others, so that a hold that ends with it shows.
const LONG_LEASE_MS: u64 = 30_000;
/// The reply of a grant is longer, so that it is cut.
const REPLY_BYTES: u32 = 19;
/// The times of several owners end one after the other, each a little late.
const HELD_UP_US_MAX: u64 = 2_000_000;
/// An owner that lives is granted by then.
const LINE_MS: u64 = 15_000;

/// What becomes of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Waits, in one request.
    Waits,
    /// Waits, in one request after the other.
    Slices,
    /// Asks, in one request after the other that does not wait.
    Polls,
    /// As [`Kind::Slices`], and loses its connection again and again.
    Returns,
    /// The same, with two requests at once.
    ReturnsTwice,
    /// Loses its connection while the grant is on its way, and comes back.
    ReturnsGranted,
    /// Asks once without waiting, and dies.
    DiesBetween,
    /// Dies while it waits; the server notices.
    DiesWaiting,
    /// Dies while the grant is on its way.
    DiesGranted,
    /// Is killed in the transaction that frees the lock, before the server could send it the grant.
    DiesKilled,
    /// Dies, and its connection does not report it.
    DiesUnnoticed,
}

/// One owner in the line.
struct Standing {
    kind: Kind,
    wire: Proxy,
    /// When the server showed it.
    shown: Option<Moment>,
    thread: JoinHandle<Stood>,
}

/// What became of it.
struct Stood {
    place: Place,
    hold: Option<Grant>,
    forgotten: Vec<String>,
    too_early: Vec<String>,
}

impl Kind {
    fn lives(self) -> bool {
        !self.is_unreachable() && !matches!(self, Kind::DiesGranted | Kind::DiesUnnoticed)
    }

    /// Whether the server knows, before it can deliver a grant, that there is no client.
    fn is_unreachable(self) -> bool {
        matches!(self, Kind::DiesBetween | Kind::DiesWaiting | Kind::DiesKilled)
    }

    /// Whether its wire is broken while the grant is on its way.
    fn is_cut_granted(self) -> bool {
        matches!(self, Kind::ReturnsGranted | Kind::DiesGranted)
    }

    fn lease_ms(self) -> u64 {
        if matches!(self, Kind::DiesGranted | Kind::DiesUnnoticed) { SHORT_LEASE_MS } else { LONG_LEASE_MS }
    }
}

impl Stage<'_> {
    /// One line for one lock, or for two at once. The first in it is killed in the step that grants, or another dies
    /// otherwise.
    pub fn line(&mut self, key: &str, first_is_killed: bool) {
        let keys =
            if self.dice.random_bool(0.3) { vec![format!("{key}a"), format!("{key}b")] } else { vec![key.to_owned()] };
        let (key, port) = (keys[0].clone(), self.primary.port());
        let ((stood, freed), views) =
            audit::views_during(&[key], port, || self.stand_and_break(&keys, first_is_killed));
        let kinds = |lives: bool| stood.iter().filter(move |(kind, _)| kind.lives() == lives);
        let lapsed = self.lapsed(&keys[0]);
        let places: Vec<Place> = stood.iter().map(|(_, stood)| stood.place.clone()).collect();
        self.line_moves_on(&places, &stood, freed, &lapsed);
        for (kind, Stood { place, .. }) in kinds(true).filter(|(_, stood)| stood.hold.is_none()) {
            self.report.violation(format!("{kind:?} was not granted within {LINE_MS} ms: {place:?}"));
        }
        // A grant that was delivered to nobody is an offer, and never a hold.
        for (kind, Stood { place, .. }) in kinds(false).filter(|(kind, _)| kind.is_unreachable()) {
            let mut holders = views.iter().flat_map(|view| &view.holders).filter(|holder| holder.owner == place.owner);
            let offered = holders.clone().any(|holder| holder.offered);
            if lapsed.contains(&place.owner) || holders.any(|holder| !holder.offered) {
                self.report.violation(format!("{kind:?} had a hold that was delivered to nobody: {place:?}"));
            }
            self.report.add("line: killed owners that were offered", u64::from(offered && *kind == Kind::DiesKilled));
        }
        let (compared, passed) = out_of_order(&places);
        self.report.violations(passed.iter().map(|(first, later)| format!("passed in line: {first:?} by {later:?}")));
        let (offers, stayed) = outstayed(&places, &views);
        self.report.violations(stayed.iter().map(|(place, view)| format!("kept for too long: {place:?} in {view:?}")));
        let crowded = views.iter().filter(|view| view.holders.len() > 1);
        self.report.violations(crowded.map(|view| format!("several writers: {view:?}")));
        let saw = stood.iter().map(|(_, Stood { hold, forgotten, too_early, .. })| {
            let (grants, forgotten, too_early) = (hold.iter().cloned().collect(), forgotten.clone(), too_early.clone());
            Saw { grants, forgotten, too_early, ..Saw::default() }
        });
        judge_as(self.report, "line", &together(saw), |_| None);
        let lost = stood.iter().flat_map(|(_, stood)| &stood.place.asks).filter(|ask| ask.answer == Told::Unknown);
        for (figure, count) in [
            ("line: requests without an answer", lost.count() as u64),
            ("line: places compared", compared),
            ("line: views of offers to owners that never came back", offers),
            ("line: leases of owners that never came back", lapsed.len() as u64),
        ] {
            self.report.add(figure, count);
        }
    }

    /// The first owner that lives does not wait for those before it for longer than it must.
    fn line_moves_on(&mut self, places: &[Place], stood: &[(Kind, Stood)], freed: Moment, lapsed: &BTreeSet<String>) {
        let first = stood.iter().position(|(kind, _)| kind.lives()).expect("some live");
        let told = places[first..].iter().filter_map(|place| Some(place.granted()?.0.told)).min();
        let Some(next) = told else { return };
        let late = held_up_us(next, freed, &places[..first], lapsed);
        let stalled = self.witness.stalled_us(freed, next);
        if late > HELD_UP_US_MAX + stalled {
            let dead = &stood[..first].iter().map(|(kind, _)| kind).collect::<Vec<_>>();
            self.report
                .violation(format!("held up for {late} us too long by {dead:?}, {lapsed:?}: {:?}", places[first]));
        }
    }

    /// The owners whose holds on this key ended with their leases, as the server's log says.
    fn lapsed(&mut self, key: &str) -> BTreeSet<String> {
        let rows: Vec<Value> = self.primary.connect().get(&["LOCK.LOG", "COUNT", "128"]);
        let rows = rows.into_iter().map(Fields::from).filter(|row| row.get::<String>("key") == key);
        rows.map(|row| row.get("owner")).collect()
    }

    /// Owners stand in line behind a holder, who leaves when much has happened to their wires. What became of them, in
    /// the order in which they came, and when the lock was free.
    fn stand_and_break(&mut self, keys: &[String], first_is_killed: bool) -> (Vec<(Kind, Stood)>, Moment) {
        let mut conn = self.primary.connect();
        keys.iter().for_each(|key| {
            conn.int(&["LOCK.ACQUIRE", key, "holder", "PX", "60000"]).expect("free");
        });
        let mut dead = [
            Kind::DiesBetween,
            Kind::DiesBetween,
            Kind::DiesWaiting,
            Kind::DiesWaiting,
            Kind::DiesGranted,
            Kind::DiesUnnoticed,
        ];
        let mut others = [
            Kind::Waits,
            Kind::Slices,
            Kind::Polls,
            Kind::Returns,
            Kind::ReturnsTwice,
            Kind::ReturnsGranted,
            Kind::DiesBetween,
            Kind::DiesWaiting,
        ];
        dead.shuffle(&mut self.dice);
        others.shuffle(&mut self.dice);
        let standing: Vec<Standing> = first_is_killed
            .then_some(Kind::DiesKilled)
            .into_iter()
            .chain(dead)
            .chain(others)
            .zip(0..)
            .map(|(kind, number)| self.join_line(keys, kind, number))
            .collect();
        self.break_lines(&standing);
        for Standing { kind, wire, .. } in &standing {
            match kind {
                Kind::DiesUnnoticed => wire.freeze(true),
                kind if kind.is_cut_granted() && self.dice.random_bool(0.5) => {
                    wire.cut_after(self.dice.random_range(0..REPLY_BYTES));
                }
                // The server reads of it in the same turn as of the release, with luck.
                kind if kind.is_cut_granted() => wire.cut_all(),
                _ => {}
            }
        }
        let waiter = conn.lock_info(&keys[0]).and_then(|info| info.waiters.first().and_then(|waiter| waiter.client));
        conn.ok(&["MULTI"]);
        keys.iter().for_each(|key| assert_eq!(conn.get::<String>(&["LOCK.RELEASE", key, "holder"]), "QUEUED"));
        if let Some(killed) = waiter.filter(|_| first_is_killed) {
            assert_eq!(conn.get::<String>(&["CLIENT", "KILL", "ID", &killed.to_string()]), "QUEUED");
        }
        conn.get::<Vec<Value>>(&["EXEC"]);
        let freed = Moment::now();
        // All but those of which the server does not know end by themselves.
        let goes_on = |one: &Standing| one.kind != Kind::DiesUnnoticed && !one.thread.is_finished();
        while standing.iter().any(goes_on) {
            thread::sleep(Duration::from_millis(1));
        }
        let ended = |Standing { kind, wire, shown, thread }| {
            wire.cut_all();
            wire.freeze(false);
            let mut stood: Stood = thread.join().expect("does not panic");
            stood.place.shown = shown;
            (kind, stood)
        };
        (standing.into_iter().map(ended).collect(), freed)
    }

    /// One more owner; it stands behind all others when this returns.
    fn join_line(&mut self, keys: &[String], kind: Kind, number: u32) -> Standing {
        let wire = Proxy::to(self.primary.port());
        let (keys, port, seed) = (keys.to_vec(), wire.port(), self.dice.random());
        let (key, owner) = (keys[0].clone(), format!("{}.{number}", keys[0]));
        let name = owner.clone();
        let thread = thread::spawn(move || Owner { keys, owner, kind, dice: StdRng::seed_from_u64(seed) }.live(port));
        let mut eyes = Caller::new(self.primary.port(), PATIENCE);
        let stands = || {
            let view = audit::view(&mut eyes, &key).expect("the server answers");
            view.waiters.iter().any(|waiter| waiter.owner == name)
        };
        if kind == Kind::DiesBetween {
            // It may be gone already where the machine is slow.
            wait_for("it to have died", || thread.is_finished());
            return Standing { kind, wire, shown: None, thread };
        }
        wait_for("it to stand in line", stands);
        Standing { kind, wire, shown: Some(Moment::now()), thread }
    }

    /// Breaks the wires of those that wait, for so long that the places of the others stand all the time.
    fn break_lines(&mut self, standing: &[Standing]) {
        for _ in 0..6 {
            for Standing { kind, wire, .. } in standing {
                match kind {
                    Kind::Returns | Kind::ReturnsTwice if self.dice.random_bool(0.5) => wire.cut_all(),
                    Kind::Returns | Kind::ReturnsTwice => wire.cut_after(self.dice.random_range(0..BYTES)),
                    Kind::DiesWaiting if self.dice.random_bool(0.3) => wire.cut_all(),
                    _ => {}
                }
            }
            thread::sleep(Duration::from_millis(self.dice.random_range(10..60)));
        }
        standing.iter().filter(|one| one.kind == Kind::DiesWaiting).for_each(|one| one.wire.cut_all());
        // The grant cannot be delivered to any of these.
        let died = |one: &Standing| one.kind != Kind::DiesWaiting || one.thread.is_finished();
        wait_for("the server to know that they died", || standing.iter().all(died));
    }
}

/// One owner of the line.
struct Owner {
    keys: Vec<String>,
    owner: String,
    kind: Kind,
    dice: StdRng,
}

impl Owner {
    fn live(mut self, port: u16) -> Stood {
        let mut line = Numbered::new(port, PATIENCE);
        let several = self.keys.len() > 1;
        let named = if several { format!("{} {}", self.keys.len(), self.keys.join(" ")) } else { self.keys[0].clone() };
        let command = |what: &str| format!("LOCK.{}{what} {named} {}", if several { "M" } else { "" }, self.owner);
        let (acquire, release) = (command("ACQUIRE"), command("RELEASE"));
        let (key, owner, lease_ms) = (self.keys[0].clone(), self.owner.clone(), self.kind.lease_ms());
        let (queue_ms, shown, asks, end) = (QUEUE_MS, None, Vec::new(), End::Open);
        let place = Place { key, owner, queue_ms, lease_ms, shown, asks, end };
        let mut requester = Requester::new(&mut line, PATIENCE, &acquire, place);
        let from = Moment::now();
        let fence = loop {
            let told = match self.kind {
                Kind::Slices | Kind::Returns => requester.ask(SLICE_MS),
                Kind::ReturnsTwice => requester.ask_twice(SLICE_MS),
                Kind::Polls | Kind::DiesBetween => requester.ask(0),
                _ => requester.ask(LONG_MS),
            };
            match told {
                Told::Fence(fence) => break Some(fence),
                _ if self.kind == Kind::DiesUnnoticed => break None,
                _ if !self.kind.lives() => {
                    requester.die();
                    break None;
                }
                _ if Moment::now() > from.after_ms(LINE_MS) => {
                    requester.leave(&release);
                    break None;
                }
                // Those that lost their connection come back at once.
                Told::Waits if self.kind == Kind::Polls => thread::sleep(Duration::from_millis(SLICE_MS)),
                _ => {}
            }
        };
        let told = requester.settle();
        let hold = fence.map(|fence| {
            thread::sleep(Duration::from_millis(self.dice.random_range(0..10)));
            let asked = Moment::now();
            requester.give_back(&release);
            let Place { key, owner, lease_ms, .. } = requester.place.clone();
            let lease_ends = requester.place.granted().map_or(told, |(ask, _)| ask.asked).after_ms(lease_ms);
            let release = Some(Release { asked, answer: None });
            let asked = requester.place.first_asked();
            Grant { key, owner, writes: true, fence, node: port, asked, told, lease_ends, release }
        });
        let Requester { place, forgotten, too_early, .. } = requester;
        Stood { place, hold, forgotten, too_early }
    }
}
