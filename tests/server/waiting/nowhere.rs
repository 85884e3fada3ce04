//! Where no client can wait: transactions, scripts, functions, connections that must listen. A request that may wait is
//! tried once there.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Row, play_in};
use testbed::{Server, wait_for};

/// BLOCK means: try once. Everything else as outside.
const ONCE: &[Row] = &[
    ("LOCK.ACQUIRE k a BLOCK 0", "#1"),
    ("LOCK.ACQUIRE k a BLOCK 60000", "#1"),
    ("LOCK.ACQUIRE k b BLOCK 0", "nil"),
    ("LOCK.ACQUIRE k b BLOCK 1", "nil"),
    ("LOCK.ACQUIRE k * BLOCK 315360000000", "nil"),
    ("LOCK.RW k b READ BLOCK 0 NOTE x PX 5", "nil"),
    ("LOCK.RW k b WRITE BLOCK 0 RETRY 2", "nil"),
    ("LOCK.RELEASE k a TO 1", "1"),
    ("LOCK.INFO k COUNT 0", "[mode write fence #1 holding 1 holders []]"),
    ("LOCK.RELEASE k a", "0"),
    ("LOCK.RW k b READ BLOCK 0", "#2"),
    ("LOCK.RW k c READ BLOCK 0", "#3"),
    // Both would wait for each other: neither waits.
    ("LOCK.RW k b WRITE BLOCK 0", "nil"),
    ("LOCK.RW k c WRITE BLOCK 0", "nil"),
    ("LOCK.ACQUIRE k * BLOCK soon", "ERR BLOCK must be a whole number from 0 to 315360000000"),
    ("SET s text", "OK"),
    ("LOCK.ACQUIRE s a BLOCK 0", WRONGTYPE),
];

#[test]
fn in_a_transaction_a_script_or_a_function_a_request_is_tried_once() {
    // The server would wait for itself: a script that waits holds up every client, for ever.
    let server = Server::new();
    play_in(&server, &[Way::Exec, Way::Script, Way::Function], ONCE);
    let mut conn = server.connect();
    assert_eq!(["lock_queued", "lock_waiters"].map(|field| conn.info_number("lock", field)), [0, 0]);
}

#[test]
fn a_call_from_another_module_is_tried_once() {
    // That module needs its reply now, and its client did not ask to wait.
    const INTEGER: i64 = 2;
    const NULL: i64 = 4;
    let (_server, mut conn) = Server::setup().probe_module().connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]);
    assert_eq!(conn.int(&["PANIC.CALL", "LOCK.ACQUIRE"]), Some(NULL));
    assert_eq!(conn.lock_info("k").unwrap().waiting, 0);
    assert_eq!(conn.info_number("lock", "lock_queued"), 0);
    conn.int(&["LOCK.RELEASE", "k", "a"]);
    assert!(conn.lock_info("k").is_none());
    assert_eq!(conn.int(&["PANIC.CALL", "LOCK.ACQUIRE"]), Some(INTEGER));
    assert_eq!(conn.lock_info("k").unwrap().holders[0].owner, b"b");
}

#[test]
fn a_connection_that_also_subscribes_waits_or_is_told_at_once_that_it_cannot() {
    // On some servers such a client cannot be made to wait: it must not stand in the queue then, with no client to
    // answer.
    let (server, mut conn) = Server::connected();
    let held = conn.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
    let mut waiter = Connection::resp3(&server);
    assert!(matches!(waiter.say("SUBSCRIBE news"), Reply::Push(_)));
    waiter.send(&["LOCK.ACQUIRE", "k", "b", "BLOCK", "0"]);
    wait_for("it to wait or to be told", || waiter.is_blocked(&mut conn) || waiter.has_reply());
    if waiter.is_blocked(&mut conn) {
        conn.int(&["LOCK.RELEASE", "k", "a"]);
        assert!(waiter.read().int() > held);
    } else {
        assert_eq!(waiter.read(), Reply::Null);
        assert_eq!(conn.lock_info("k").unwrap().waiting, 0);
        conn.int(&["LOCK.RELEASE", "k", "a"]);
        assert!(conn.lock_info("k").is_none());
    }
    assert_eq!(conn.info_number("lock", "lock_waiters"), 0);
    conn.get::<i64>(&["PUBLISH", "news", "hello"]);
    assert_eq!(waiter.read(), Reply::Push(["message", "news", "hello"].map(Reply::bulk).to_vec()));
}
