//! RETRY: a request whose reply was lost, sent again.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::servers::subscribers_can_wait;
use crate::harness::transcript::{Row, Stage};
use testbed::Server;

/// A new connection takes over the place of the old one, whose reply is that it holds nothing.
const PLACE: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
    ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
    ("new: LOCK.ACQUIRE k b BLOCK 0", "ERR owner already waits there: use RETRY | b: waits"),
    ("new: LOCK.ACQUIRE k b BLOCK 60000 RETRY 1 PX 60000 NOTE new", "waits | b: nil"),
    (
        "LOCK.INFO k COUNT 1",
        "[mode write fence #1 holding 1 holders [[owner a mode write writes 1 fence #1]] waiting 2 waiters [[owner b mode write left_ms ~]]]",
    ),
    // The old connection is free, and its owner waits once.
    ("b: PING", "PONG"),
    ("b: LOCK.RW k b WRITE BLOCK 5", "ERR owner already waits there: use RETRY"),
    ("LOCK.RELEASE k a", "0 | new: #2 | c: waits"),
    (
        "LOCK.INFO k OWNER b COUNT 0",
        "[mode write fence #2 holding 1 holders [[owner b mode write writes 1 fence #2 note new]] waiting 1]",
    ),
    ("LOCK.RELEASE k b", "0 | c: #3"),
];

/// When it holds already, nothing is counted twice, and the lease never becomes shorter.
const HELD: &[Row] = &[
    ("LOCK.ACQUIRE k a PX 50000 NOTE one", "#1"),
    ("LOCK.ACQUIRE k a RETRY 1 PX 5", "#1"),
    ("LOCK.ACQUIRE k a RETRY 1 PX 5 BLOCK 0", "#1"),
    ("LOCK.INFO k", "[mode write fence #1 holding 1 holders [[owner a mode write writes 1 fence #1 note one]]]"),
    // At least so many.
    ("LOCK.ACQUIRE k a RETRY 3 NOTE two", "#1"),
    ("LOCK.ACQUIRE k a RETRY 2", "#1"),
    ("LOCK.RW k a READ RETRY 2", "#1"),
    (
        "LOCK.INFO k",
        "[mode write fence #1 shares 2 holding 1 holders [[owner a mode write reads 2 writes 3 fence #1 note two]]]",
    ),
    ("LOCK.RELEASE k a ALL", "0"),
    // A lock that is free: an acquisition as any other.
    ("LOCK.ACQUIRE k a RETRY 2", "#2"),
    ("LOCK.RELEASE k a", "1"),
    ("LOCK.ACQUIRE k b RETRY 1", "nil"),
    ("LOCK.ACQUIRE k a RETRY 4294967295", "#2"),
    ("LOCK.ACQUIRE k a RETRY 4294967295", "#2"),
    ("LOCK.ACQUIRE k a", "LIMIT the owner's count is 4294967295, the highest there is"),
    ("LOCK.RELEASE k a TO 1", "1"),
    ("LOCK.RELEASE k a", "0"),
    ("EXISTS k", "0"),
];

#[test]
fn a_request_sent_again_counts_once() {
    // The reply was lost, not the request. To count it twice keeps the lock after its release; to lose the place in the
    // queue starves a client with a bad network.
    for rows in [PLACE, HELD] {
        Stage::alone().play(rows);
    }
}

#[test]
fn what_was_granted_to_a_connection_that_broke_afterwards_is_confirmed_by_the_next() {
    // The reply had left the server: it holds the lock without knowing, and must learn that it does.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 PX 60000", "waits"),
        ("LOCK.RELEASE k a", "0 | b: #2"),
    ]);
    stage.leave("b");
    stage.play(&[
        ("LOCK.ACQUIRE k a", "nil"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 PX 60000 RETRY 1", "#2"),
        ("LOCK.RELEASE k b", "0"),
        ("EXISTS k", "0"),
    ]);
    assert_eq!(server.connect().info_number("lock", "lock_taken_back"), 0);
}

#[test]
fn a_retry_that_cannot_wait_leaves_the_place_as_it_was() {
    // The old connection would be answered null, the new one too, and no client would wait for the owner any more.
    const RETRY: [&str; 7] = ["LOCK.ACQUIRE", "k", "b", "BLOCK", "0", "RETRY", "1"];
    let (server, mut conn) = Server::connected();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a"]).expect("free");
    let mut old = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0");
    let mut last = Connection::waiting(&server, "LOCK.ACQUIRE k c BLOCK 0");
    let mut wire = Connection::resp2(&server);
    wire.load_function();
    for way in [Way::Exec, Way::Script, Way::Function] {
        assert_eq!(wire.ask_by(way, &RETRY), Reply::Null, "{way:?}");
        assert!(old.is_blocked(&mut conn), "{way:?}");
    }
    assert_eq!(wire.ask(&RETRY[..3]), Reply::Null);
    assert!(old.is_blocked(&mut conn), "one that asks to try once");
    let mut subscriber = Connection::resp3(&server);
    assert!(matches!(subscriber.say("SUBSCRIBE channel"), Reply::Push(_)));
    subscriber.send(&RETRY);
    if subscribers_can_wait() {
        assert_eq!(old.read(), Reply::Null);
    } else {
        assert_eq!(subscriber.read(), Reply::Null);
        assert!(old.is_blocked(&mut conn));
    }
    let waiters: Vec<Vec<u8>> = conn.lock_info("k").unwrap().waiters.into_iter().map(|waiter| waiter.owner).collect();
    assert_eq!(waiters, [b"b", b"c"]);
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    let granted = if subscribers_can_wait() { subscriber.read() } else { old.read() };
    assert!(granted.int() > fence);
    assert!(last.is_blocked(&mut conn));
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0));
    assert!(last.read().int() > granted.int());
}
