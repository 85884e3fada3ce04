//! Deadlocks: a requester that would wait for itself is refused at once, with the cycle named, and no other is
//! disturbed.

use crate::harness::connection::{Connection, Reply};
use crate::harness::transcript::{Row, Stage};
use testbed::{Server, wait_for};

/// Each holds what the other wants.
const TWO: &[Row] = &[
    ("LOCK.ACQUIRE j a", "#1"),
    ("LOCK.ACQUIRE k b", "#2"),
    ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
    ("b: LOCK.ACQUIRE j b BLOCK 0", "DEADLOCK b -> j -> a -> k -> b"),
    // A limit does not help: both would wait it out for nothing.
    ("b: LOCK.ACQUIRE j b BLOCK 60000", "DEADLOCK b -> j -> a -> k -> b"),
    ("b: LOCK.RW j b READ BLOCK 1 RETRY 1", "DEADLOCK b -> j -> a -> k -> b"),
    // A requester that only tries waits for no client.
    ("b: LOCK.ACQUIRE j b", "nil | a: waits"),
    ("LOCK.INFO j COUNT 0", "[mode write fence #1 holding 1 holders []]"),
    // The refused requester still holds, and can give way.
    ("b: LOCK.RELEASE k b", "0 | a: #3"),
    ("b: LOCK.ACQUIRE j b BLOCK 0", "waits"),
    ("LOCK.RELEASE j a", "0 | b: #4"),
];

/// Two readers that both want to write wait for each other.
const UPGRADES: &[Row] = &[
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.RW k b READ", "#2"),
    ("a: LOCK.RW k a WRITE BLOCK 0", "waits"),
    ("b: LOCK.RW k b WRITE BLOCK 0", "DEADLOCK b -> k -> a -> k -> b"),
    ("b: LOCK.RW k b WRITE", "nil | a: waits"),
    ("b: LOCK.RELEASE k b", "0 | a: #3"),
];

/// Names are bytes: none of them may break the error's line, or make it endless.
const NAMES: &[Row] = &[
    (r#"LOCK.ACQUIRE "two words" "\x00\xff\r\n""#, "#1"),
    (r#"LOCK.ACQUIRE @65 "->""#, "#2"),
    (r#"a: LOCK.ACQUIRE @65 "\x00\xff\r\n" BLOCK 0"#, "waits"),
    (
        r#"b: LOCK.ACQUIRE "two words" "->" BLOCK 0"#,
        r#"DEADLOCK "->" -> "two words" -> "\x00\xff\r\n" -> "oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo"... -> "->""#,
    ),
    // 64 are shown as they are.
    ("LOCK.ACQUIRE order:{7}/a_b-c.d@e#f a", "#3"),
    ("LOCK.ACQUIRE @64 b", "#4"),
    ("c: LOCK.ACQUIRE @64 a BLOCK 0", "waits"),
    (
        "d: LOCK.ACQUIRE order:{7}/a_b-c.d@e#f b BLOCK 0",
        "DEADLOCK b -> order:{7}/a_b-c.d@e#f -> a -> oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo -> b",
    ),
];

#[test]
fn a_wait_that_would_never_end_is_refused_with_the_cycle_named() {
    // All in the cycle hang until a lease ends; without the names no user finds the two programs that differ in order.
    for rows in [TWO, UPGRADES, NAMES] {
        Stage::alone().play(rows);
    }
}

#[test]
fn a_refused_wait_leaves_no_trace() {
    // A place in the queue, a change that is sent, or a count of what never was.
    let server = Server::setup().option("appendonly", "yes").start();
    let mut stage = Stage::new(&server);
    stage.play(&TWO[..3]);
    let mut conn = server.connect();
    let fields =
        ["lock_waiters", "lock_queued", "lock_contended_keys", "lock_refused", "lock_fence_clock", "lock_leases"];
    let mut trace = || (fields.map(|field| conn.info("lock", field)), server.aof_tail());
    let before = trace();
    for refused in 1..=3 {
        stage.play(&TWO[3..4]);
        assert_eq!(trace(), before);
        assert_eq!(server.connect().info_number("lock", "lock_deadlocks"), refused);
    }
    assert_eq!(before.0[..3], ["1", "1", "1"]);
}

#[test]
fn a_long_cycle_is_found_and_its_text_is_cut() {
    // The search must not stop early, and an error line must not grow without end.
    for (owners, expected) in [
        (
            8,
            "DEADLOCK o7 -> k0 -> o0 -> k1 -> o1 -> k2 -> o2 -> k3 -> o3 -> k4 -> o4 -> k5 -> o5 -> k6 -> o6 -> k7 -> o7",
        ),
        (
            9,
            "DEADLOCK o8 -> k0 -> o0 -> k1 -> o1 -> k2 -> o2 -> k3 -> o3 -> k4 -> o4 -> k5 -> o5 -> k6 -> o6 -> k7 -> ... (1 more)",
        ),
        (
            64,
            "DEADLOCK o63 -> k0 -> o0 -> k1 -> o1 -> k2 -> o2 -> k3 -> o3 -> k4 -> o4 -> k5 -> o5 -> k6 -> o6 -> k7 -> ... (56 more)",
        ),
    ] {
        let (server, mut conn) = Server::connected();
        for at in 0..owners {
            conn.int(&["LOCK.ACQUIRE", &format!("k{at}"), &format!("o{at}"), "PX", "60000"]);
        }
        let wait = |at: usize| {
            let (key, owner) = (format!("k{}", (at + 1) % owners), format!("o{at}"));
            Connection::sent(&server, &["LOCK.ACQUIRE", &key, &owner, "BLOCK", "0"])
        };
        let waiters: Vec<Connection> = (0..owners - 1).map(wait).collect();
        wait_for("all to wait", || conn.info_number("lock", "lock_waiters") == waiters.len() as u64);
        assert_eq!(wait(owners - 1).read(), Reply::Error(expected.to_owned()));
    }
}

#[test]
fn without_detection_only_two_upgrades_of_one_key_are_refused() {
    // Threads that share an owner would be refused for nothing. Two upgrades can never end well, whichever requester
    // comes last.
    let mut stage = Stage::owning(Server::setup().lock_option("deadlock-detection", "no").start());
    stage.play(UPGRADES);
    stage.play(&[
        ("FLUSHALL", "OK"),
        ("LOCK.ACQUIRE j a", "#4"),
        ("LOCK.ACQUIRE k b", "#5"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("b: LOCK.ACQUIRE j b BLOCK 50", "nil"),
        ("b: LOCK.ACQUIRE j b BLOCK 0", "waits"),
        // A lease ends it.
        ("LOCK.EXTEND k b PX 20", "#5 | a: #6"),
        ("LOCK.RELEASE j a", "0 | b: #7"),
        // And it can be set while it runs.
        ("CONFIG SET lock.deadlock-detection yes", "OK"),
        ("a: LOCK.ACQUIRE j a BLOCK 0", "waits"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "DEADLOCK b -> k -> a -> j -> b"),
    ]);
}

#[test]
fn keys_that_the_asker_may_not_read_are_not_named() {
    // The error would show every client what others lock, and which owners they are.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE j a", "#1"),
        ("LOCK.ACQUIRE k c", "#2"),
        ("LOCK.ACQUIRE l b", "#3"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("c: LOCK.ACQUIRE l c BLOCK 0", "waits"),
    ]);
    for (keys, expected) in [
        (&["~*"][..], "DEADLOCK b -> j -> a -> k -> c -> l -> b"),
        (&["~j", "~l"], "DEADLOCK b -> j -> a -> ? -> ? -> l -> b"),
        (&["~j", "~k"], "DEADLOCK b -> j -> a -> k -> c -> ? -> b"),
        (&["~j"], "DEADLOCK b -> j -> a -> ? -> ? -> ? -> b"),
        // To write is not to read.
        (&["~j", "%W~k", "%R~l"], "DEADLOCK b -> j -> a -> ? -> ? -> l -> b"),
    ] {
        let mut user = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "+@all"];
        user.extend(keys);
        assert_eq!(stage.ask(&user), Reply::simple("OK"));
        let mut wire = Connection::resp2(&server);
        assert_eq!(wire.say("AUTH limited secret"), Reply::simple("OK"));
        assert_eq!(wire.say("LOCK.ACQUIRE j b BLOCK 0"), Reply::Error(expected.to_owned()), "{keys:?}");
    }
}

/// A cycle through two databases, in which keys have the same names.
const TWO_DATABASES: &[Row] = &[
    ("LOCK.ACQUIRE j a", "#1"),
    ("LOCK.ACQUIRE l b", "#2"),
    ("c: SELECT 1", "OK"),
    ("c: LOCK.ACQUIRE j c", "#3"),
    ("a: SELECT 1", "OK"),
    ("a: LOCK.ACQUIRE j a BLOCK 0", "waits"),
    ("d: LOCK.ACQUIRE l c BLOCK 0", "waits"),
    ("b: LOCK.ACQUIRE j b BLOCK 0", "DEADLOCK b -> j -> a -> ? -> ? -> l -> b"),
    // The other way round: the error to a requester in the second database does not name the first.
    ("e: SELECT 1", "OK"),
    ("e: LOCK.ACQUIRE k e", "#4"),
    ("f: LOCK.ACQUIRE l e BLOCK 0", "waits"),
    ("g: SELECT 1", "OK"),
    ("g: LOCK.ACQUIRE k b BLOCK 0", "DEADLOCK b -> k -> e -> ? -> b"),
];

/// The same, closed by a lock that is moved while `b` waits in the second database.
const TWO_DATABASES_LATE: &[Row] = &[
    ("LOCK.ACQUIRE y b", "#1"),
    ("z: SELECT 1", "OK"),
    ("z: LOCK.ACQUIRE y z", "#2"),
    ("z: LOCK.ACQUIRE x a", "#3"),
    ("a: LOCK.ACQUIRE y a BLOCK 0", "waits"),
    ("b: SELECT 1", "OK"),
    ("b: LOCK.ACQUIRE y b BLOCK 0", "waits"),
    ("z: RENAME x y", "OK | b: DEADLOCK b -> y -> a -> ? -> b | a: waits"),
];

#[test]
fn keys_of_other_databases_than_the_askers_are_not_named() {
    // The requester may not be allowed to select them: Valkey has ACL rules for databases.
    for rows in [TWO_DATABASES, TWO_DATABASES_LATE] {
        Stage::alone().play(rows);
    }
}

/// `b` holds j, for which `a` waits, and waits for y, which z holds.
const ALMOST: &[Row] = &[
    ("j: SELECT 2", "OK"),
    ("j: LOCK.ACQUIRE j b", "#1"),
    ("LOCK.ACQUIRE y z", "#2"),
    ("a: SELECT 2", "OK"),
    ("a: LOCK.ACQUIRE j a BLOCK 0", "waits"),
    ("b: LOCK.ACQUIRE y b BLOCK 0", "waits"),
];

#[test]
fn a_lock_that_is_moved_may_close_a_cycle_and_one_of_it_is_told() {
    // No client sends a new request in this case, so the deadlock would never be noticed. The waiter did not ask for
    // the other keys: the error does not name them.
    let closed: &[Row] = &[("b:", "DEADLOCK b -> y -> a -> ? -> b"), ("a:", "waits")];
    for ways in [
        &[("LOCK.ACQUIRE x a", "#3"), ("RENAME x y", "OK")][..],
        // MOVE takes no key that is there: it must go in the same turn.
        &[
            ("t: SELECT 1", "OK"),
            ("t: LOCK.ACQUIRE y a", "#3"),
            ("MULTI", "OK"),
            ("DEL y", "QUEUED"),
            ("SELECT 1", "QUEUED"),
            ("MOVE y 0", "QUEUED"),
            ("SELECT 0", "QUEUED"),
            ("EXEC", "[1 OK 1 OK]"),
        ],
        &[("t: SELECT 1", "OK"), ("t: LOCK.ACQUIRE y a", "#3"), ("SWAPDB 0 1", "OK")],
    ] {
        let mut stage = Stage::alone();
        stage.play(&[ALMOST, ways, closed].concat());
        stage.play(&[("j: LOCK.RELEASE j b", "0")]);
        assert!(stage.waiter("a").read().int() > 0);
        stage.play(&[("LOCK.INFO y OWNER z", "nil")]);
    }
}
