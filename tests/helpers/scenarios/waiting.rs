//! Waits: in their place, over the client's own timeout, over lost connections, and no longer than was asked for.

use crate::stage::{Pair, Play, Stage, connect, count, holders, waits_for_held};
use serde_json::json;
use std::time::{Duration, Instant};
use testbed::{Client, Server, Signal, wait_for};

/// How much later than it should an answer may come, on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

/// redis-py gives up a read after 5 s. The place must be kept over that, and nobody may pass.
pub(crate) fn a_wait_outlasts_the_clients_timeout_in_its_place(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, port, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"]}));
    let asked = waits_for_held(agent, conn, "a", "k");
    let _late = late_comer(connect(*port), conn);
    // The user's client is free meanwhile.
    agent.ask(json!({"do": "ping"}));
    assert!(asked.within(Duration::from_millis(6_500)).is_none());

    conn.int(&["LOCK.RELEASE", "k", "first"]);
    let fence = asked.fence();
    assert_eq!(conn.lock_info("k").unwrap().fence, fence);
    assert_eq!(conn.lock_info("k").unwrap().holders[0].writes, 1, "a request that is sent again counts once");
    agent.released("a");
    assert_eq!(holders(conn, "k"), ["late"]);
}

/// The wait is over in time, and the next release serves somebody else.
pub(crate) fn a_wait_that_is_over_leaves_no_place(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    agent.open("a", json!({"keys": ["k"], "wait": 0.7}));
    let began = Instant::now();
    let asked = waits_for_held(agent, conn, "a", "k");
    let answer = asked.answer();
    assert!(answer.value["fences"].is_null() && answer.value["error"].is_null(), "{}", answer.value);
    let took = answer.at - began;
    assert!(took >= Duration::from_millis(690) && took < Duration::from_millis(700) + SLACK, "{took:?}");
    assert_eq!(conn.lock_info("k").unwrap().waiting, 0);
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    assert!(conn.lock_info("k").is_none());
}

/// Neither BLOCK nor QUEUE: one request, and no place.
pub(crate) fn a_wait_of_zero_tries_once(play: Play) {
    let mut pair = play.pair();
    let Pair { agent, conn, .. } = &mut pair;
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    agent.open("a", json!({"keys": ["k"], "wait": 0}));
    let before = calls(conn);
    assert!(agent.acquire("a").value()["fences"].is_null());
    assert_eq!(calls(conn) - before, 1);
    assert_eq!(conn.info_number("lock", "lock_queued"), 0);
    // It overtakes nobody, either.
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    conn.int(&["LOCK.RW", "k", "reader", "READ", "PX", "60000"]).unwrap();
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "k", "writer", "QUEUE", "60000"]), None);
    agent.open("b", json!({"keys": ["k"], "shared": true, "wait": 0}));
    assert!(agent.acquire("b").value()["fences"].is_null());
    assert_eq!(conn.info_number("lock", "lock_queued"), 1);
}

/// A place is the owner's and not the connection's.
pub(crate) fn a_wait_outlives_its_connection(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, server, proxy } = &mut stage;
    agent.open("a", json!({"keys": ["k"]}));
    let asked = waits_for_held(agent, conn, "a", "k");
    let _late = late_comer(server.connect(), conn);
    for _ in 0..3 {
        proxy.cut_all();
        // It is there again, in front.
        wait_for("the wait to go on", || {
            let waiters = conn.lock_info("k").unwrap().waiters;
            waiters.len() == 2 && waiters[0].owner != b"late" && waiters[0].client.is_some()
        });
    }
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    assert_eq!(asked.fence(), conn.lock_info("k").unwrap().fence);
    agent.released("a");
}

/// A proxy, or CLIENT UNBLOCK, may end a BLOCK too soon. A helper that asks again at once would spin.
pub(crate) fn an_early_null_is_no_reason_to_ask_at_once(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"]}));
    let asked = waits_for_held(agent, conn, "a", "k");
    let before = calls(conn);
    let end = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < end {
        let waits = conn.lock_info("k").unwrap().waiters.first().and_then(|first| first.client);
        if let Some(client) = waits {
            conn.int(&["CLIENT", "UNBLOCK", &client.to_string(), "TIMEOUT"]);
        }
        assert!(asked.within(Duration::from_millis(10)).is_none());
    }
    // A request without BLOCK may come first.
    assert!(calls(conn) - before <= 2, "{} requests in 1.5 s", calls(conn) - before);
    assert_eq!(conn.lock_info("k").unwrap().waiting, 1, "the place is kept");
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    asked.fence();
    agent.released("a");
}

/// GRACE is no answer to somebody who waits, and an error to somebody who does not.
pub(crate) fn a_grace_is_waited_for(play: Play) {
    let mut stage = play.stage_on(Server::setup().lock_option("grace-ms", "3000"));
    let Stage { agent, conn, .. } = &mut stage;
    agent.open("once", json!({"keys": ["k"], "wait": 0}));
    agent.open("a", json!({"keys": ["k"], "wait": 60}));
    if conn.info_number("lock", "lock_grace_left_ms") > 1_000 {
        let answer = agent.acquire("once").value();
        // The grace may have ended since.
        if conn.info_number("lock", "lock_grace_left_ms") > 0 {
            assert_eq!(answer["error"], "server", "{answer}");
            assert!(answer["message"].as_str().unwrap().contains("GRACE"), "{answer}");
        }
    }
    agent.acquired("a");
    assert_eq!(conn.info_number("lock", "lock_grace_left_ms"), 0);
    agent.released("a");
}

/// Asked again as long as the wait lasts; then the error is raised, and not "held by another".
pub(crate) fn an_error_that_does_not_pass_is_raised_when_the_wait_is_over(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, server, .. } = &mut stage;
    let primary = Server::new();
    server.follow(&primary);
    agent.open("a", json!({"keys": ["k"], "wait": 1.0}));
    let before = refused(conn);
    let began = Instant::now();
    let asked = agent.acquire("a");
    let answer = asked.answer();
    assert_eq!(answer.value["error"], "server", "{}", answer.value);
    assert!(answer.value["message"].as_str().unwrap().contains("READONLY"), "{}", answer.value);
    let took = answer.at - began;
    assert!(took >= Duration::from_millis(600) && took < Duration::from_secs(1) + SLACK, "{took:?}");
    // With a back-off of at least 100 ms.
    let asked = refused(conn) - before;
    assert!((2..=12).contains(&asked), "{asked}");
}

/// The application gets its answer when its wait is over, whatever the server does.
pub(crate) fn a_server_that_hangs_does_not_prolong_a_wait(play: Play) {
    let mut stage = play.stage();
    let Stage { agent, conn, server, .. } = &mut stage;
    agent.open("a", json!({"keys": ["k"], "wait": 2.0}));
    let began = Instant::now();
    let asked = waits_for_held(agent, conn, "a", "k");
    server.signal(Signal::STOP);
    let answer = asked.within(Duration::from_secs(20)).expect("an answer from a helper whose server hangs");
    let took = answer.at - began;
    assert!(answer.value["fences"].is_null(), "{}", answer.value);
    // One second more to read the reply of the request that waited, and some for the RELEASE.
    assert!(took < Duration::from_secs(5) + SLACK, "{took:?}");
    server.signal(Signal::CONT);
    wait_for("the place to end", || conn.lock_info("k").is_some_and(|info| info.waiting == 0));
}

/// Another client, which waits behind the helper and must not be served before it.
fn late_comer(mut late: Client, conn: &mut Client) -> Client {
    late.send(&["LOCK.ACQUIRE", "k", "late", "PX", "60000", "BLOCK", "0"]);
    conn.await_waiters("k", 2);
    late
}

fn calls(conn: &mut Client) -> u64 {
    count(conn, "lock.acquire", "calls")
}

fn refused(conn: &mut Client) -> u64 {
    count(conn, "lock.acquire", "rejected_calls") + count(conn, "lock.acquire", "failed_calls")
}
