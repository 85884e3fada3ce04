//! Leases that go on, and locks that are lost: the application is told once, in time, and never extends again.

use crate::agent::Agent;
use crate::stage::{Pair, Play, Stage, count, holders};
use serde_json::json;
use std::thread::sleep;
use std::time::{Duration, Instant};
use testbed::{Client, Signal, wait_for};

/// How much later than it should an answer may come, on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// Held at each moment, by the same hold.
pub(crate) fn a_lock_is_renewed_over_ten_leases(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"], "lease": 1.5}));
    let fence = agent.acquired("a");
    let end = Instant::now() + Duration::from_secs(15);
    while Instant::now() < end {
        assert!(conn.int(&["LOCK.ACQUIRE", "k", "other"]).is_none());
        assert_eq!(conn.lock_info("k").map(|info| info.fence), Some(fence));
        sleep(Duration::from_millis(50));
    }
    assert!(!agent.is_lost("a"));
    agent.released("a");
    // The renewal ends with the lock.
    let calls = extensions(conn);
    sleep(Duration::from_millis(1_000));
    assert_eq!(extensions(conn), calls);
}

/// A laptop that was closed, a process that a debugger held: it wakes up, and others have the lock.
pub(crate) fn a_process_that_sleeps_beyond_its_lease_is_told_once(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"], "lease": 1.0}));
    agent.acquired("a");
    let lost = agent.await_lost("a");
    agent.signal(Signal::STOP);
    let other = conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "60000", "BLOCK", "60000"]).unwrap();
    let calls = extensions(conn);
    agent.signal(Signal::CONT);

    assert_eq!(lost.value()["signals"], 1);
    assert_that_it_is_of_no_use(agent, "a");
    assert_eq!(agent.await_lost("a").value()["signals"], 1, "told exactly once");
    sleep(Duration::from_millis(700));
    assert_eq!(extensions(conn), calls, "an owner that is past its time never extends");
    let info = conn.lock_info("k").unwrap();
    assert_eq!((info.fence, holders(conn, "k")), (other, vec!["other".to_owned()]));
}

/// Not before, since the server may come back; and not later, since another server may have let others in.
pub(crate) fn a_lock_is_lost_when_its_time_is_over_and_no_later_if_the_server_is_dead(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, server, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"], "lease": 3.0}));
    agent.acquired("a");
    let lost = agent.await_lost("a");
    server.stop(true);
    let died = Instant::now();
    let told = lost.answer().at - died;
    assert!(told < Duration::from_secs(3) + SLACK, "{told:?}");
    assert!(told > Duration::from_secs(1), "{told:?}: the server might have come back");
    server.start();
    let conn = &mut server.connect();
    assert_that_it_is_of_no_use(agent, "a");
    sleep(Duration::from_millis(1_500));
    assert_eq!(extensions(conn), 0, "an owner that was told of its loss never extends");
    assert!(conn.lock_info("k").is_none());
    // The helper is as good as new.
    agent.open("b", json!({"keys": ["k"]}));
    agent.acquired("b");
    agent.released("b");
}

/// A server that came back without its data answers null.
pub(crate) fn a_lock_that_a_server_forgot_is_lost_at_the_next_renewal(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, server, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"], "lease": 9.0}));
    agent.acquired("a");
    let lost = agent.await_lost("a");
    server.crash();
    let began = Instant::now();
    let told = lost.answer().at - began;
    // A renewal is due each 3 s, and one may have failed while the server was away.
    assert!(told < Duration::from_millis(6_500), "{told:?}");
    assert_that_it_is_of_no_use(agent, "a");
}

/// An operator took it away.
pub(crate) fn a_break_is_told_within_a_renewal(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"], "lease": 6.0}));
    agent.acquired("a");
    let lost = agent.await_lost("a");
    assert_eq!(conn.int(&["LOCK.BREAK", "k"]), Some(1));
    let began = Instant::now();
    let told = lost.answer().at - began;
    assert!(told < Duration::from_secs(2) + SLACK, "{told:?}");
    assert_eq!(lost.value()["signals"], 1);
    assert_that_it_is_of_no_use(agent, "a");
    assert_eq!(agent.await_lost("a").value()["signals"], 1, "told exactly once");
    assert!(conn.lock_info("k").is_none());
}

/// Something else lies on the key: whatever the server says of it, the lock is gone.
pub(crate) fn a_key_that_is_overwritten_is_a_loss(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"], "lease": 9.0}));
    agent.acquired("a");
    agent.open("several", json!({"keys": ["k1", "k2", "k3"], "lease": 9.0}));
    agent.acquired("several");
    conn.ok(&["SET", "k", "another's"]);
    conn.ok(&["SET", "k2", "another's"]);
    let began = Instant::now();
    for lock in ["a", "several"] {
        let told = agent.await_lost(lock).answer().at - began;
        assert!(told < Duration::from_secs(3) + SLACK, "{lock}: {told:?}");
        assert_eq!(agent.release(lock).error(), "lost");
    }
    assert_eq!(conn.get::<String>(&["GET", "k"]), "another's");
    wait_for("the other keys to be released", || conn.int(&["EXISTS", "k1", "k3"]) == Some(0));
    // Known at once to a check, and to a release without one.
    agent.open("long", json!({"keys": ["k4", "k5"], "lease": 60.0}));
    for checks in [true, false] {
        agent.acquired("long");
        conn.ok(&["SET", "k4", "another's"]);
        if checks {
            let check = agent.ask(json!({"do": "check", "lock": "long"}));
            assert!(check["held"] == false || check["error"] == "lost", "{check}");
        }
        assert_eq!(agent.release("long").error(), "lost");
        wait_for("the other key to be released", || conn.int(&["EXISTS", "k5"]) == Some(0));
        conn.int(&["DEL", "k4"]);
    }
}

/// The application learns at the end at the latest that it worked without the lock.
pub(crate) fn a_release_of_a_lost_lock_says_so(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"]}));
    agent.acquired("a");
    conn.int(&["LOCK.BREAK", "k"]);
    let other = conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "60000"]).unwrap();
    assert_eq!(agent.release("a").error(), "lost");
    assert!(agent.is_lost("a"));
    assert_eq!(conn.lock_info("k").unwrap().fence, other, "the release of a late holder changes nothing");
}

/// Renewals are repeated as long as the lock is valid.
pub(crate) fn a_network_that_hangs_for_less_than_the_lease_loses_nothing(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, proxy, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"], "lease": 6.0}));
    let fence = agent.acquired("a");
    let before = extensions(conn);
    wait_for("a renewal", || extensions(conn) > before);
    // The next renewal is due in 2 s: it meets a frozen wire, and is tried again.
    proxy.freeze(true);
    sleep(Duration::from_millis(3_200));
    proxy.freeze(false);
    sleep(Duration::from_millis(4_500));
    assert_eq!(conn.lock_info("k").map(|info| info.fence), Some(fence));
    assert!(!agent.is_lost("a"));
    agent.released("a");
}

/// The server has released it, and the reply is lost: null to a repeated release is no loss.
pub(crate) fn a_release_whose_reply_is_cut_off_is_no_loss(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, proxy, server } = &mut stage;
    agent.open("a", json!({"keys": ["k"], "lease": 60.0}));
    for _ in 0..5 {
        agent.acquired("a");
        server.signal(Signal::STOP);
        let releasing = agent.release("a");
        // Time for the request to reach the socket of the server, which reads it after its connection is cut.
        sleep(Duration::from_millis(200));
        proxy.cut_all();
        sleep(Duration::from_millis(200));
        server.signal(Signal::CONT);
        let answer = releasing.value();
        assert_eq!(answer["released"], true, "{answer}");
        assert!(conn.lock_info("k").is_none());
    }
}

/// A lost lock checks as not held, guards nothing, and its release says that it was lost.
fn assert_that_it_is_of_no_use(agent: &mut Agent, lock: &str) {
    assert!(agent.is_lost(lock));
    let check = agent.ask(json!({"do": "check", "lock": lock}));
    assert!(check["held"] == false || check["error"] == "lost", "{check}");
    let guard = agent.ask(json!({"do": "guard", "lock": lock, "command": ["SET", "{k}data", "late"]}));
    assert_eq!(guard["error"], "lost", "{guard}");
    assert_eq!(agent.release(lock).error(), "lost");
}

/// How often the server was asked to extend.
fn extensions(conn: &mut Client) -> u64 {
    count(conn, "lock.extend", "calls")
}
