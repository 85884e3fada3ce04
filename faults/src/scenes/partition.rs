//! Wires that hold back data, that are cut, and that are cut in the middle of a request or of its reply. They run
//! between a primary and its clients, and between it and its replica. Nothing is held twice. No waiter is forgotten
//! when the wire heals. A request that is repeated with RETRY counts once. A session whose end goes unreported lives by
//! its lease. Nothing is left behind.
//!
//! A round is a few seconds under load, with random faults on both wires. Then clients take and release some locks over
//! a wire that is cut again and again. Then two clients vanish. Then owners with QUEUE stand in line, twice: some come
//! back, and those that do not hold up the line for QUEUE at most. Then others with NOTIFY are told when to ask.
//!
//! The wire is a proxy, which needs no rights and runs anywhere. To the server, a frozen wire appears as a half-open
//! connection does before keepalive finds out.

mod line;
mod told;
mod wires;

use self::wires::{PATIENCE, Stage};
use crate::crowd::Crowd;
use crate::judge::judge_as;
use crate::options::{Options, Scene};
use crate::report::Report;
use crate::witness::Witness;
use crate::worker::{Habits, together};
use testbed::{Proxy, Server};

pub const SCENE: Scene = Scene {
    name: "partition",
    about: "Wires that are frozen, and cut in the middle of requests",
    rounds: "3",
    play,
    ..Scene::PLAIN
};

fn play(options: &Options, report: &mut Report) {
    let primary = Server::setup().option("repl-diskless-sync-delay", "0").start();
    let replica = Server::new();
    let (to_clients, to_replica) = (Proxy::to(primary.port()), Proxy::to(primary.port()));
    replica.connect().ok(&["REPLICAOF", "127.0.0.1", &to_replica.port().to_string()]);
    replica.catch_up(&primary);
    let habits = Habits { lease_ms: 100..=1500, hold_ms: 0..=100, block_ms: 0..=1000, ..Habits::brief(6) };
    let (over, beside) = ([(8, habits.clone())], [(4, habits)]);
    let witness = Witness::of(primary.port());
    let dice = options.dice(0);
    let mut stage = Stage { primary: &primary, replica: &replica, to_clients, to_replica, witness, dice, report };
    for round in 0..options.rounds {
        // Some over the wire that breaks, some beside it: those go on meanwhile.
        let (over_port, port) = (stage.to_clients.port(), primary.port());
        let crowd = Crowd { number: 2 * round, clients: &over, patience: PATIENCE, place: &|_| Some(over_port) };
        let others = Crowd { number: 2 * round + 1, clients: &beside, place: &|_| Some(port), ..crowd };
        let (((), saw_beside), saw) = crowd.during(options, || others.during(options, || stage.break_wires()));
        let saw = together([saw, saw_beside]);
        judge_as(stage.report, "load", &saw, |_| None);
        stage.nothing_is_left(round);
        for number in 0..20 {
            stage.repeat_until_answered(&format!("repeated{round}.{number}"));
        }
        stage.vanish(&format!("frozen{round}"), false);
        stage.vanish(&format!("cut{round}"), true);
        for (name, first_is_killed) in [("line", false), ("killed", true)] {
            stage.line(&format!("{name}{round}"), first_is_killed);
        }
        stage.told(&format!("told{round}"), false);
        stage.told(&format!("disturbed{round}"), true);
        stage.nothing_is_left(round);
    }
    report.must_see([
        "load: answered granted",
        "load: answered connection lost",
        "connections cut at some byte",
        "partitions of clients, healed",
        "partitions of clients, cut",
        "replica parted",
        "replica cut off",
        "replica cut off for long",
        "sync_full",
        "line: requests without an answer",
        "line: places compared",
        "line: killed owners that were offered",
        "line: views of offers to owners that never came back",
        "line: leases of owners that never came back",
        "told: granted by messages alone",
        "told: granted",
        "told: woken in vain",
        "told: messages forged",
        "told: subscriptions cut",
        "told: subscriptions held back",
    ]);
}
