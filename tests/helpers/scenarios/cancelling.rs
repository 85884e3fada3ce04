//! Applications that change their minds: nobody may be locked out by what they asked for before.

use crate::stage::{Pair, Play, Stage, connect};
use serde_json::json;
use std::time::{Duration, Instant};
use testbed::{Client, Signal, wait_for};

/// Pauses before a cancellation, from none to well after a hand-off. A fixed row that visits each order of events, in
/// place of chance, so that a failure can be played again.
fn pause(round: u32) {
    std::thread::sleep(Duration::from_micros(u64::from(round * 37 % 40) * 100));
}

/// The key is free for others now, or soon: a place that was given up ends, and an offer goes on to the next.
fn nobody_is_locked_out(conn: &mut Client, key: &str, round: u32) {
    let probe = ["LOCK.ACQUIRE", key, "probe", "PX", "60000", "BLOCK", "15000"];
    assert!(conn.int(&probe).is_some(), "round {round}: {:?}", conn.lock_info(key));
    conn.int(&["LOCK.RELEASE", key, "probe"]);
    wait_for("no place to be left", || conn.lock_info(key).is_none());
}

/// One hundred times. Either it was cancelled and has nothing, or it was granted before and can release.
pub(crate) fn a_wait_that_is_cancelled_around_the_hand_off_locks_nobody_out(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, port, .. } = &mut pair;
    let mut probe = connect(*port);
    agent.open("a", json!({"keys": ["k"], "lease": 60.0}));
    let (mut cancelled, mut granted) = (0, 0);
    for round in 0..100 {
        conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
        let asked = agent.acquire_cancellable("a");
        conn.await_waiters("k", 1);
        if round % 2 == 0 {
            conn.send(&["LOCK.RELEASE", "k", "first"]);
            pause(round);
            agent.cancel(&asked);
            assert_eq!(redis::from_redis_value::<i64>(conn.0.recv_response().unwrap()).unwrap(), 0);
        } else {
            let cancel = agent.send(json!({"do": "cancel", "of": asked.id}));
            pause(round);
            conn.int(&["LOCK.RELEASE", "k", "first"]);
            cancel.value();
        }
        let answer = asked.value();
        if answer["fences"][0].is_i64() {
            granted += 1;
            agent.released("a");
        } else {
            cancelled += 1;
            assert_eq!(answer["error"], "cancelled", "{answer}");
        }
        nobody_is_locked_out(&mut probe, "k", round);
    }
    assert!(cancelled > 0, "{granted} granted, {cancelled} cancelled: it never came to a cancellation");
}

/// The request may be anywhere: unsent, on its way, waiting.
pub(crate) fn a_request_that_is_cancelled_at_once_locks_nobody_out(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, port, .. } = &mut pair;
    let mut probe = connect(*port);
    agent.open("a", json!({"keys": ["k"], "lease": 60.0}));
    for round in 0..60 {
        let held = round % 3 != 0;
        if held {
            // A request of the round before may come only now; it is given back at once.
            conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000", "BLOCK", "15000"]).unwrap();
        }
        let asked = agent.acquire_cancellable("a");
        pause(round);
        agent.cancel(&asked);
        let answer = asked.value();
        if held {
            conn.int(&["LOCK.RELEASE", "k", "first"]);
        }
        if answer["fences"][0].is_i64() {
            assert!(!held, "{answer}");
            agent.released("a");
        } else {
            assert_eq!(answer["error"], "cancelled", "{answer}");
        }
        nobody_is_locked_out(&mut probe, "k", round);
    }
}

/// The server stands still for longer than any request may take, and goes on: the cancelled waits are gone.
pub(crate) fn a_wait_that_is_cancelled_while_the_server_hangs_locks_nobody_out(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, server, .. } = &mut stage;
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    agent.open("a", json!({"keys": ["k"], "lease": 60.0}));
    let asked = agent.acquire_cancellable("a");
    conn.await_waiters("k", 1);
    server.signal(Signal::STOP);
    agent.cancel(&asked);
    // The application need not wait for the server.
    std::thread::sleep(Duration::from_secs(5));
    server.signal(Signal::CONT);
    assert_eq!(asked.error(), "cancelled");
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    // The place ends soon, and not only after its QUEUE or a lease.
    let end = Instant::now() + Duration::from_secs(6);
    while conn.lock_info("k").is_some() {
        assert!(Instant::now() < end, "{:?}", conn.lock_info("k"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The release is sent all the same.
pub(crate) fn a_release_that_is_cancelled_still_gives_back(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, port, .. } = &mut pair;
    let mut probe = connect(*port);
    agent.open("a", json!({"keys": ["k"], "lease": 60.0}));
    for round in 0..50 {
        agent.acquired("a");
        let releasing = agent.release_cancellable("a");
        pause(round % 8);
        agent.cancel(&releasing);
        let answer = releasing.value();
        assert!(answer["released"] == true || answer["error"] == "cancelled", "{answer}");
        nobody_is_locked_out(&mut probe, "k", round);
    }
}
