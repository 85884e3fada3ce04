//! Clients lock, take shares, lock again, upgrade, go down, extend, give some back, hold too long and release.
//! Meanwhile they and the server are stopped, clients are killed, an operator breaks holds, and connections are cut in
//! the middle of a request or a reply. From the replies, the run checks that some order of events explains everything:
//! at every moment there is one writer, or only readers and shares within the limit of each request at its grant.
//! RETRY and QUEUE count once. Fences rise, and every acknowledged release has freed its lock. No waiter is forgotten:
//! none is answered null before its timeout, and none waits while its lock cannot be held.
//!
//! Some ask with QUEUE: they lose their connection, come back over another one, over two at once, too late or never.
//! Requests are granted in the order in which they were first asked for, however many shares each of them takes. What
//! is kept for owners that never come back ends with QUEUE, as LOCK.INFO shows. Some wait by NOTIFY. Offers are told,
//! also while another client sends names that mean nothing, and kills subscriptions.
//!
//! A round is five seconds of that on fresh locks. The clients are four processes of eight, so that they can be stopped
//! and killed; one that is killed has a successor. Most of them share five locks, which receive requests all the time.
//! Two of these have one limit for all their shares. The others are quiet, two to a lock of another four. A waiter that
//! is forgotten in such a queue stays forgotten, because no other request makes the module serve that queue again.

mod client;
mod disturb;
mod ears;
mod notified;
mod process;
mod saw;
mod standing;
mod wish;

use self::disturb::{Disturber, Done};
use self::process::Process;
pub use self::process::{CLIENTS_OF, clients};
use self::saw::Saw;
use self::wish::{Lock, PROCESSES, keys};
use crate::audit;
use crate::breaks::{but_for_breaks, is_undisturbed};
use crate::history::{Moment, passed_over};
use crate::judge::{answers, fences, holds, tell};
use crate::linear::explained;
use crate::options::{Options, Scene};
use crate::places::{out_of_order, outstayed, shown};
use crate::report::Report;
use crate::views::{View, crowded};
use rand::rngs::StdRng;
use std::path::Path;
use testbed::{Proxy, Server, wait_for};

const LOAD_MS: u64 = 5_000;

/// What happens at once is known outside after so long, stops apart.
const PROMPT_MS: u64 = 300;

/// The longest lease and QUEUE that a client asks for.
const HOLD_MS_MAX: u64 = 2_400;

/// What must be above zero: without these a run could not have shown a violation.
const EVIDENCE: [&str; 40] = [
    "granted",
    "null",
    "released",
    "lapsed before the release",
    "released about when the lease ends",
    "extended",
    "held again",
    "upgraded or anew",
    "stood in line for long",
    "shares granted, one",
    "shares granted, several",
    "more shares",
    "more shares by RETRY",
    "more shares refused",
    "shares beside writing",
    "gave some back",
    "views of a full lock",
    "repeated",
    "looks",
    "connections cut",
    "connections lost in a request",
    "clients stopped",
    "server stopped",
    "clients killed",
    "held by clients that were killed",
    "holds broken",
    "left to the end of its session",
    "granted to a place",
    "came back over another connection",
    "asked twice at once",
    "asked again with another limit",
    "came back too late",
    "never came back",
    "gave its place up",
    "places compared",
    "views of offers to owners that never came back",
    "woken by name",
    "offers that must be told",
    "messages forged",
    "subscriptions killed",
];

pub const SCENE: Scene = Scene {
    name: "history",
    about: "Checks the histories of 32 clients on 9 locks; a round is 5 s",
    rounds: "4",
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    let mut dice = options.dice(u64::MAX);
    let server = Server::new();
    for round in 0..options.rounds {
        play_round(round, &server, options.seed, &mut dice, report);
    }
    report.must_see(EVIDENCE);
}

fn play_round(round: u64, server: &Server, seed: u64, dice: &mut StdRng, report: &mut Report) {
    let mut conn = server.connect();
    let end = Moment::now().after_ms(LOAD_MS);
    let proxies: Vec<Proxy> = (0..PROCESSES).map(|_| Proxy::to(server.port())).collect();
    let mut processes: Vec<Process> =
        (0..).zip(&proxies).map(|(seat, proxy)| Process::start(proxy, seat, seat, round, seed, end)).collect();
    let disturber = Disturber::new(server, &proxies, dice, round, seed, end);
    let ((mut all, done), views) =
        audit::views_during(&keys(round), server.port(), || disturber.live(&mut processes, report));
    processes.into_iter().for_each(|process| process.said(false, &mut all));
    report.add("connections cut", proxies.iter().map(Proxy::cuts).sum());
    judge(round, all, &done, &views, report);
    wait_for("all leases to be over", || conn.get::<u64>(&["DBSIZE"]) == 0);
    wait_for("all places to be over", || conn.info("lock", "lock_places") == "0");
    for field in ["lock_waiters", "lock_leases"] {
        assert_eq!(conn.info("lock", field), "0", "{field}");
    }
    report.add("rounds", 1);
}

fn judge(round: u64, mut all: Saw, done: &Done, views: &[View], report: &mut Report) {
    for (prefix, closed) in &done.killed {
        report.add("held by clients that were killed", all.killed(prefix, *closed, HOLD_MS_MAX));
    }
    done.breaks.iter().for_each(|(broken, ended)| all.broken(broken, *ended));
    let breaks: Vec<_> = done.breaks.iter().map(|(broken, _)| broken.clone()).collect();
    all.counts.iter().for_each(|(what, count)| report.add(what, *count));
    report.violations(all.failed.iter().map(|what| format!("a client failed: {what}")));
    report.violations(all.untold.iter().map(|owner| format!("offered, and not told: {owner}")));
    let alone = passed_over(&all.stays, &all.maybes(), &done.stops, PROMPT_MS);
    report.violations(alone.iter().map(|stay| format!("in line while nobody held: {stay:?}")));
    // Against no holds at all, these count as passed over: they are the waiters that could show the fault.
    report.add("stood in line for long", passed_over(&all.stays, &[], &done.stops, PROMPT_MS).len() as u64);
    let pieces = but_for_breaks(all.pieces, &breaks);
    let answers = answers(&all.forgotten, &all.too_early);
    tell(report, [holds(&pieces, &[]), fences(&all.grants), answers].concat(), |_| None);
    let limits = Lock::all_busy(round).filter_map(|lock| Some((lock.key.clone(), lock.limit()?))).collect();
    let (full, crowd) = crowded(views, &limits);
    report.add("views of a full lock", full);
    report.violations(crowd.iter().map(|view| format!("too many beside each other: {view:?}")));
    let places = shown(all.places, views);
    let (compared, passed) = out_of_order(&places);
    report.add("places compared", compared);
    let passed = passed.iter().filter(|(first, _)| is_undisturbed(first, &breaks));
    report.violations(passed.map(|(first, later)| format!("passed in its place: {first:?} by {later:?}")));
    let (offers, stayed) = outstayed(&places, views);
    report.add("views of offers to owners that never came back", offers);
    report.violations(stayed.iter().map(|(place, view)| format!("kept for too long: {place:?} in {view:?}")));
    for (key, events) in &all.events {
        report.add("events explained", events.len() as u64);
        if !explained(events, &all.uncertain) {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/faults");
            std::fs::create_dir_all(&directory).expect("a place for it");
            let file = directory.join(format!("history-{key}.json"));
            std::fs::write(&file, serde_json::to_string(events).expect("plain data")).expect("a place for it");
            report.violation(format!("no order explains what happened to {key}: see {}", file.display()));
        }
    }
}
