//! What LOCK.INFO and INFO say of waiters, and how many may wait.

use crate::harness::connection::Connection;
use crate::harness::texts::{UNBLOCKED, WRONGTYPE};
use crate::harness::transcript::{Row, Stage};
use std::time::Instant;
use testbed::{PATIENCE, Server, wait_for};

/// LOCK.INFO shows waiters in order, as many as COUNT says, whichever owner holds.
const SHOWN: &[Row] = &[
    ("LOCK.INFO k", "nil"),
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.INFO k COUNT 0", "[mode read fence #1 shares 1 holding 1 holders []]"),
    ("b: LOCK.RW k b WRITE BLOCK 0", "waits"),
    ("c: LOCK.RW k c READ BLOCK 60000", "waits"),
    ("LOCK.INFO k COUNT 0", "[mode read fence #1 shares 1 holding 1 holders [] waiting 2]"),
    (
        "LOCK.INFO k COUNT 1",
        "[mode read fence #1 shares 1 holding 1 holders [[owner a mode read reads 1 fence #1]] waiting 2 waiters [[owner b mode write]]]",
    ),
    (
        "LOCK.INFO k",
        "[mode read fence #1 shares 1 holding 1 holders [[owner a mode read reads 1 fence #1]] \
         waiting 2 waiters [[owner b mode write] [owner c mode read left_ms ~]]]",
    ),
    // An upgrade is shown where it stands: first.
    ("LOCK.RW k d READ", "nil"),
    ("CLIENT UNBLOCK %b", "1 | b: nil | c: #2"),
    ("w: LOCK.RW k w WRITE BLOCK 0", "waits"),
    ("a: LOCK.RW k a WRITE BLOCK 0", "waits"),
    (
        "LOCK.INFO k OWNER a COUNT 10",
        "[mode read fence #2 shares 2 holding 2 holders [[owner a mode read reads 1 fence #1]] \
         waiting 2 waiters [[owner a mode write] [owner w mode write]]]",
    ),
    // With OWNER, null says that this one does not hold it, even while it waits.
    ("LOCK.INFO k OWNER w", "nil"),
];

#[test]
fn lock_info_shows_waiters_in_order() {
    // An operator who searches for the holder that blocks every waiter must see all holders, in the order of service.
    Stage::alone().play(SHOWN);
}

#[test]
fn the_times_of_a_wait_run_and_its_client_is_named() {
    // Which client is stuck, since when, and which client to ask: without the client's number the operator cannot
    // unblock it.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]);
    let limited = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 50000");
    let endless = Connection::waiting(&server, "LOCK.RW k c READ BLOCK 0");
    let info = conn.lock_info("k").unwrap();
    let [b, c] = &info.waiters[..] else { panic!("{info:?}") };
    assert_eq!((&b.owner[..], &b.mode[..], b.client), (&b"b"[..], "write", Some(limited.id())));
    assert_eq!((&c.owner[..], &c.mode[..], c.client, c.left_ms), (&b"c"[..], "read", Some(endless.id()), None));
    wait_for("time to pass", || conn.lock_info("k").unwrap().waiters[0].waited_ms > b.waited_ms + 20);
    let later = conn.lock_info("k").unwrap().waiters[0].clone();
    // To the millisecond: both are rounded.
    assert!((50_000..=50_001).contains(&(later.waited_ms + later.left_ms.unwrap())), "{later:?}");
    // Its number is good for what it is there for.
    assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &later.client.unwrap().to_string()]), Some(1));
    // In another database no client waits for a key of that name.
    conn.ok(&["SELECT", "1"]);
    assert!(conn.lock_info("k").is_none());
}

#[test]
fn info_counts_how_waits_begin_and_end() {
    // Each way counts once, or alerts that are built on them never fire, or always.
    let (server, mut conn) = Server::connected();
    let mut expect = |what: &str, expected: [u64; 8]| {
        let fields = [
            "lock_queued",
            "lock_handed_off",
            "lock_timed_out",
            "lock_cancelled",
            "lock_deadlocks",
            "lock_taken_back",
            "lock_waiters",
            "lock_contended_keys",
        ];
        let mut seen = [0; 8];
        let deadline = Instant::now() + PATIENCE;
        while seen != expected && Instant::now() < deadline {
            seen = fields.map(|field| conn.info_number("lock", field));
        }
        assert_eq!(seen, expected, "{what}: {fields:?}");
    };
    let mut stage = Stage::new(&server);
    expect("at the start", [0; 8]);
    stage.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b", "nil"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
    ]);
    expect("two wait for one key", [2, 0, 0, 0, 0, 0, 2, 1]);
    stage.play(&[("LOCK.ACQUIRE j x", "#2"), ("d: LOCK.ACQUIRE j d BLOCK 0", "waits")]);
    expect("and one for another", [3, 0, 0, 0, 0, 0, 3, 2]);
    stage.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#3")]);
    expect("let in", [3, 1, 0, 0, 0, 0, 2, 2]);
    stage.play(&[("e: LOCK.ACQUIRE k e BLOCK 10", "nil")]);
    expect("its time was up", [4, 1, 1, 0, 0, 0, 2, 2]);
    stage.leave("c");
    expect("its client went", [4, 1, 1, 1, 0, 0, 1, 1]);
    stage.play(&[("d2: LOCK.ACQUIRE j d BLOCK 0 RETRY 1", "waits"), ("d:", "nil")]);
    expect("its place was taken over", [5, 1, 1, 2, 0, 0, 1, 1]);
    stage.play(&[("CLIENT UNBLOCK %d2 ERROR", "1"), ("d2:", UNBLOCKED)]);
    expect("it was unblocked with an error", [5, 1, 1, 3, 0, 0, 0, 0]);
    stage.play(&[("f: LOCK.ACQUIRE j b BLOCK 0", "waits"), ("CLIENT UNBLOCK %f", "1"), ("f:", "nil")]);
    expect("it was unblocked as if its time was up", [6, 1, 2, 3, 0, 0, 0, 0]);
    stage.play(&[
        ("f: LOCK.ACQUIRE j b BLOCK 0", "waits"),
        ("g: LOCK.ACQUIRE k x BLOCK 0", "DEADLOCK x -> k -> b -> j -> x"),
    ]);
    expect("refused for a deadlock", [7, 1, 2, 3, 1, 0, 1, 1]);
    stage.play(&[("SET j text", "OK"), ("f:", WRONGTYPE)]);
    expect("sent away", [7, 1, 2, 4, 1, 0, 0, 0]);
}

const FULL: &str = "LIMIT server has lock.max-waiters waiters";
const KEY_FULL: &str = "LIMIT key has lock.max-waiters-per-key waiters";

#[test]
fn no_more_wait_than_may() {
    // Each costs memory: a crowd that comes again and again would take all of it.
    let server = Server::setup().lock_option("max-waiters", "3").lock_option("max-waiters-per-key", "2").start();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE j a", "#1"),
        ("LOCK.ACQUIRE k a", "#2"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
        ("c: LOCK.RW k c READ BLOCK 0", "waits"),
        ("d: LOCK.ACQUIRE k d BLOCK 0", KEY_FULL),
        ("d: LOCK.RW k * READ BLOCK 60000", KEY_FULL),
        // A requester that does not want to wait is not concerned, nor is one that may have the lock.
        ("LOCK.ACQUIRE k d", "nil"),
        ("LOCK.ACQUIRE k a BLOCK 0", "#2"),
        ("LOCK.ACQUIRE l d BLOCK 0", "#3"),
        ("d: LOCK.ACQUIRE j d BLOCK 0", "waits"),
        ("e: LOCK.ACQUIRE j e BLOCK 0", FULL),
        ("e: LOCK.ACQUIRE k e BLOCK 0", FULL),
        // A waiter may ask again.
        ("b2: LOCK.ACQUIRE k b BLOCK 0", "ERR owner already waits there: use RETRY"),
        ("b2: LOCK.ACQUIRE k b BLOCK 0 RETRY 1", "waits | b: nil"),
        ("LOCK.INFO j COUNT 0", "[mode write fence #1 holding 1 holders [] waiting 1]"),
        ("LOCK.INFO k COUNT 0", "[mode write fence #2 holding 1 holders [] waiting 2]"),
        // A place is free again.
        ("LOCK.RELEASE k a ALL", "0 | b2: #4"),
        ("f: LOCK.ACQUIRE k f BLOCK 0", "waits"),
        ("e: LOCK.ACQUIRE j e BLOCK 0", FULL),
        // The limits are what they are now; a waiter goes on waiting.
        ("CONFIG SET lock.max-waiters 0", "OK"),
        ("e: LOCK.ACQUIRE j e BLOCK 0", FULL),
        ("CONFIG SET lock.max-waiters 1000000 lock.max-waiters-per-key 0", "OK"),
        ("e: LOCK.ACQUIRE j e BLOCK 0", KEY_FULL),
        ("d:", "waits"),
        ("LOCK.RELEASE j a", "0 | d: #5"),
        ("CONFIG SET lock.max-waiters-per-key 1", "OK"),
        ("e: LOCK.ACQUIRE j e BLOCK 0", "waits"),
    ]);
    assert_eq!(server.connect().info_number("lock", "lock_waiters"), 3);
}
