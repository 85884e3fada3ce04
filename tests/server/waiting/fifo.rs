//! Waiting for a lock: which waiter is granted when, in which order, and how a wait ends.

use crate::harness::connection::{Connection, Reply};
use crate::harness::state::{let_it_tick, nobody_waits};
use crate::harness::transcript::{Row, Stage};
use std::time::{Duration, Instant};
use testbed::{Server, wait_for};

/// Readers that stand together are granted together; a writer parts them, so that neither starves.
const RUNS: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("b: LOCK.RW k b READ BLOCK 0", "waits"),
    ("c: LOCK.RW k c READ BLOCK 0", "waits"),
    ("d: LOCK.RW k d WRITE BLOCK 0", "waits"),
    ("e: LOCK.RW k e READ BLOCK 0", "waits"),
    ("f: LOCK.RW k f READ BLOCK 0", "waits"),
    ("g: LOCK.RW k g WRITE BLOCK 0", "waits"),
    ("LOCK.RELEASE k a", "0 | b: #2 | c: #3 | d: waits | e: waits"),
    ("LOCK.RELEASE k b", "0 | d: waits"),
    ("LOCK.RELEASE k c", "0 | d: #4 | e: waits"),
    ("LOCK.RELEASE k d", "0 | e: #5 | f: #6 | g: waits"),
    ("LOCK.RELEASE k f", "0"),
    ("LOCK.RELEASE k e", "0 | g: #7"),
];

/// Bytes are bytes, in a queue as well.
const BYTES: &[Row] = &[
    (r#"LOCK.ACQUIRE "\x00" "\xff""#, "#1"),
    (r#"b: LOCK.ACQUIRE "\x00" "\r\n" BLOCK 0 NOTE "\x00""#, "waits"),
    (r#"c: LOCK.ACQUIRE "\x00" "\r" BLOCK 0"#, "waits"),
    (r#"LOCK.RELEASE "\x00" "\xff""#, "0 | b: #2"),
    (
        r#"LOCK.INFO "\x00" COUNT 1"#,
        r#"[mode write fence #2 holding 1 holders [[owner "\r\n" mode write writes 1 fence #2 note "\x00"]] waiting 1 waiters [[owner "\r" mode write]]]"#,
    ),
];

#[test]
fn waiters_are_served_in_order() {
    // A lost hand-off hangs a program; an unfair one starves it; two at once are worse than no lock.
    for rows in [RUNS, BYTES] {
        Stage::alone().play(rows);
    }
}

#[test]
fn an_owner_that_the_server_makes_learns_its_name_with_its_grant() {
    // Without it the lock could not be released.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k * BLOCK 0", "waits"),
        ("c: LOCK.ACQUIRE k * BLOCK 60000", "waits"),
        ("LOCK.RELEASE k a", "0"),
    ]);
    let mut reply = stage.waiter("b").read().items();
    let (fence, owner) = (reply.pop().unwrap().int(), reply.pop().unwrap().text());
    assert_eq!((owner.len(), reply.len()), (32, 0));
    assert_eq!(server.connect().int(&["LOCK.RELEASE", "k", &owner, "FENCE", &fence.to_string()]), Some(0));
    let mut reply = stage.waiter("c").read().items();
    assert!(reply.pop().unwrap().int() > fence);
    assert_ne!(reply.pop().unwrap().text(), owner);
}

#[test]
fn a_waiter_is_answered_in_the_protocol_that_it_speaks() {
    // The reply is written by another call than that of the command.
    let (server, mut conn) = Server::connected();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
    let mut waiters = [Connection::resp3(&server), Connection::resp3(&server), Connection::resp3(&server)];
    let commands = ["LOCK.ACQUIRE k b BLOCK 0", "LOCK.ACQUIRE k c BLOCK 1", "LOCK.ACQUIRE k * BLOCK 0"];
    for (before, (waiter, command)) in (0..).zip(waiters.iter_mut().zip(commands)) {
        waiter.send(&command.split(' ').collect::<Vec<_>>());
        // In this order.
        wait_for("it to have been served", || conn.info_number("lock", "lock_queued") > before);
    }
    // As `_`, which the reader takes for null in RESP3 alone.
    assert_eq!(waiters[1].read(), Reply::Null);
    waiters[0].expect_blocked(&mut conn, "b");
    waiters[2].expect_blocked(&mut conn, "*");
    conn.int(&["LOCK.RELEASE", "k", "a"]);
    assert!(waiters[0].read().int() > fence);
    conn.int(&["LOCK.RELEASE", "k", "b"]);
    assert_eq!(waiters[2].read().items().len(), 2);
}

#[test]
fn a_wait_with_a_limit_ends_with_null_when_its_time_is_up() {
    // Too early, and the client gives up what it was about to get; too late or never, and its own timeouts end the
    // wait.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]);
    for limit in [1, 50, 200] {
        let limit_ms = limit.to_string();
        let mut waiter = Connection::resp2(&server);
        let began = Instant::now();
        waiter.send(&["LOCK.ACQUIRE", "k", "b", "BLOCK", &limit_ms]);
        assert_eq!(waiter.read(), Reply::Null);
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(limit), "{took:?} of {limit} ms");
    }
    assert_eq!(conn.info_number("lock", "lock_waiters"), 0);
    // It holds nothing, and no release grants it anything any more.
    conn.int(&["LOCK.RELEASE", "k", "a"]);
    assert!(conn.lock_info("k").is_none());
}

#[test]
fn waits_end_in_the_order_of_their_limits_and_let_others_in() {
    // One timer serves all waits and all leases: it must follow whichever is the earliest.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.RW k a READ PX 60000", "#1"),
        ("x: LOCK.RW k x WRITE BLOCK 60000", "waits"),
        ("z: LOCK.RW k z READ BLOCK 600000", "waits"),
        ("y: LOCK.RW k y WRITE BLOCK 100", "nil"),
        ("v: LOCK.RW k v WRITE BLOCK 50", "nil | x: waits | z: waits"),
        ("LOCK.ACQUIRE j a PX 30", "#2"),
        // Ended by a lease, before any of the limits.
        ("u: LOCK.ACQUIRE j u BLOCK 60000", "#3"),
    ]);
    // A writer that leaves lets the server grant to the readers behind it, though no command touched the key.
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.RW l a READ PX 60000", "#1"),
        ("w: LOCK.RW l w WRITE BLOCK 2000", "sent"),
        ("r: LOCK.RW l r READ BLOCK 0", "#2 | w: nil"),
    ]);
}

#[test]
fn a_wait_without_a_limit_outlasts_those_with_one() {
    // BLOCK 0 means no limit, as everywhere in the server, not a limit of nothing.
    Stage::alone().play(&[
        ("LOCK.ACQUIRE k a PX 60000", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 100", "nil | b: waits"),
        // The longest limit there is.
        ("d: LOCK.ACQUIRE k d BLOCK 315360000000", "waits"),
        ("LOCK.RELEASE k a", "0 | b: #2"),
        ("LOCK.RELEASE k b", "0 | d: #3"),
    ]);
}

#[test]
fn limits_of_waits_do_not_follow_the_wall_clock() {
    // NTP or an operator sets the clock: no wait may end early, nor last for an hour more.
    let (server, mut conn) = Server::setup().wall_offset("+0").connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]);
    let mut long = Connection::waiting(&server, "LOCK.ACQUIRE k long BLOCK 60000");
    server.set_wall_offset("+1h");
    let mut short = Connection::sent(&server, &["LOCK.ACQUIRE", "k", "short", "BLOCK", "300"]);
    wait_for("it to have been served", || conn.info_number("lock", "lock_queued") == 2);
    server.set_wall_offset("-1h");
    assert_eq!(short.read(), Reply::Null);
    assert!(long.is_blocked(&mut conn));
    conn.int(&["LOCK.RELEASE", "k", "a"]);
    assert!(long.read().int() > 0);
}

#[test]
fn a_lock_given_back_on_the_servers_way_to_sleep_is_handed_on_at_once() {
    // Redis 7.0 serves what a client has sent behind BLPOP after the event in which we tell it which client to unblock.
    // It would sleep until its next tick then: a second, here. Each round comes to this at another moment between two
    // ticks.
    let server = Server::setup().option("hz", "1").option("dynamic-hz", "no").start();
    let (mut conn, mut other) = (server.connect(), server.connect());
    let mut took = Vec::new();
    for _ in 0..9 {
        let mut pipe = redis::pipe();
        pipe.cmd("LOCK.ACQUIRE").arg(&["k", "a"]);
        pipe.cmd("BLPOP").arg(&["list", "0"]);
        pipe.cmd("LOCK.RELEASE").arg(&["k", "a"]);
        conn.0.send_packed_command(&pipe.get_packed_pipeline()).unwrap();
        wait_for("the holder to wait", || other.info("clients", "blocked_clients") == "1");
        let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0");
        let given_back = Instant::now();
        other.get::<i64>(&["RPUSH", "list", "x"]);
        assert!(waiter.read().int() > 0);
        took.push(given_back.elapsed());
        other.int(&["LOCK.RELEASE", "k", "b"]);
        for _ in 0..3 {
            conn.0.recv_response().unwrap();
        }
    }
    // From tick to tick each would take a second.
    took.sort_unstable();
    assert!(took[4] < Duration::from_millis(500), "{took:?}");
}

#[test]
fn the_lease_begins_with_the_grant() {
    // A lease that began when the request came would be over, or nearly, after a long wait.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b PX 100000 BLOCK 0 NOTE mine", "waits"),
        ("LOCK.EXTEND k a PX 100", "#1 | b: #2"),
    ]);
    let info = server.connect().lock_info("k").unwrap();
    let holder = &info.holders[0];
    assert_eq!((holder.owner.as_slice(), holder.note.as_deref()), (&b"b"[..], Some("mine")));
    // To the millisecond: the lease and what it has held make up all of it.
    assert!((100_000..=100_001).contains(&(holder.ttl_ms + holder.held_ms)), "{holder:?}");
    // The default lease as it is then.
    let mut conn = server.connect();
    let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k c BLOCK 0");
    conn.int(&["LOCK.RELEASE", "k", "b"]);
    waiter.read().int();
    assert!(conn.lock_info("k").unwrap().holders[0].ttl_ms > 25_000);
}

#[test]
fn a_lease_that_ends_hands_the_lock_to_the_next_in_line() {
    // The holder has died: only the timer serves the waiters.
    let server = Server::new();
    Stage::new(&server).play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b PX 50 BLOCK 0", "waits"),
        ("c: LOCK.RW k c READ PX 60000 BLOCK 0", "waits"),
        ("d: LOCK.RW k d READ PX 50 BLOCK 0", "waits"),
        ("e: LOCK.ACQUIRE k e BLOCK 0", "waits"),
        ("LOCK.EXTEND k a PX 20", "#1 | b: #2 | c: #3 | d: #4 | e: waits"),
        ("LOCK.RELEASE k c", "0 | e: #5"),
    ]);
    let mut conn = server.connect();
    assert_eq!([conn.info("lock", "lock_lapsed"), conn.info("lock", "lock_handed_off")], ["3", "4"]);
}

#[test]
fn commands_sent_behind_one_that_waits_are_answered_behind_it() {
    // The replies of a pipeline must come in the order of its commands, whenever its first is answered.
    let mut stage = Stage::alone();
    stage.play(&[("LOCK.ACQUIRE k a", "#1"), ("b: LOCK.ACQUIRE k b BLOCK 0", "waits")]);
    for command in [&["LOCK.RELEASE", "k", "b"][..], &["LOCK.ACQUIRE", "k", "c", "BLOCK", "0"], &["PING"]] {
        stage.waiter("b").send(command);
    }
    stage.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2"), ("b:", "0"), ("b:", "#3"), ("b:", "PONG")]);
}

#[test]
fn a_granted_waiter_may_release_with_what_it_has_sent_already() {
    // The next commands of a client are served while the server wakes it: a hand-off within a hand-off.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]);
    let wait = |number| Connection::waiting(&server, &format!("LOCK.ACQUIRE k w{number} BLOCK 0"));
    let mut parked: Vec<Connection> = (0..50).map(wait).collect();
    for (number, waiter) in parked.iter_mut().enumerate() {
        waiter.send_line(&format!("LOCK.RELEASE k w{number}"));
    }
    assert_eq!(conn.int(&["DEL", "k"]), Some(1));
    let granted = parked.iter_mut().map(|waiter| (waiter.read().int(), waiter.only_reply()));
    let (fences, left): (Vec<i64>, Vec<Reply>) = granted.unzip();
    assert!(fences.is_sorted() && left.iter().all(|left| *left == Reply::Int(0)), "{fences:?} {left:?}");
    nobody_waits(&mut conn);
    assert_eq!(conn.int(&["DBSIZE"]), Some(0));
}

#[test]
fn lists_and_locks_do_not_wake_each_other() {
    // The server visits all clients that are parked on a key whenever it is created, whatever they wait for.
    let mut stage = Stage::alone();
    stage.play(&[
        ("popper: BLPOP k 0", "waits"),
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
        ("DEL k", "1 | b: #2 | popper: waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        // Gone in the same step as it came: the list serves the one, and the lock the other.
        ("MULTI", "OK"),
        ("DEL k", "QUEUED"),
        ("RPUSH k x", "QUEUED"),
        ("EXEC", "[1 1] | popper: [k x]"),
    ]);
    let end = stage.waiter("c").only_reply();
    assert!(matches!(end, Reply::Int(_)) || end.code() == "WRONGTYPE", "{end:?}");
    nobody_waits(&mut stage.connect());
}

#[test]
fn a_waiter_after_a_time_without_waiters_is_granted_all_the_same() {
    // The module subscribes to the server's event-loop turns while there is a waiter, and stops when it has seen that
    // there is none.
    let (server, mut conn) = Server::connected();
    for _ in 0..3 {
        for end in [&["LOCK.RELEASE", "k", "a"][..], &["DEL", "k"]] {
            conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]);
            let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k b PX 60000 BLOCK 0");
            conn.int(end);
            assert!(waiter.read().int() > 0);
            assert_eq!(conn.int(&["LOCK.RELEASE", "k", "b"]), Some(0));
            let_it_tick(&mut conn);
        }
    }
}

#[test]
fn a_long_line_is_served_to_the_last_in_order() {
    // What is done in slices may lose its place between two of them, or pass a waiter.
    const READERS: usize = 300;
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]);
    let mut line: Vec<Connection> = Vec::new();
    let mut stand = |owner: &str, mode: &str| {
        line.push(Connection::sent(&server, &["LOCK.RW", "k", owner, mode, "PX", "60000", "BLOCK", "0"]));
        let len = line.len() as u64;
        wait_for("it to stand in line", || conn.info_number("lock", "lock_waiters") == len);
    };
    (0..READERS).for_each(|at| stand(&format!("reader-{at}"), "READ"));
    stand("writer", "WRITE");
    stand("late", "READ");
    let mut conn = server.connect();
    conn.int(&["LOCK.RELEASE", "k", "a"]);
    let (readers, others) = line.split_at_mut(READERS);
    let fences: Vec<i64> = readers.iter_mut().map(|reader| reader.read().int()).collect();
    assert!(fences.windows(2).all(|two| two[0] < two[1]), "{fences:?}");
    let info = conn.lock_info("k").unwrap();
    assert_eq!((info.holding, info.waiting), (READERS, 2));
    for at in (0..READERS).rev() {
        assert!(others[0].is_blocked(&mut conn));
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", &format!("reader-{at}")]), Some(0));
    }
    let fence = others[0].read().int();
    assert!(fence > *fences.last().unwrap());
    assert!(others[1].is_blocked(&mut conn));
    conn.int(&["LOCK.RELEASE", "k", "writer"]);
    assert!(others[1].read().int() > fence);
}

/// A reader that waits because the key has as many holders as it may, and a higher limit.
const RAISED_LIMIT: &[Row] = &[
    ("CONFIG SET lock.max-holders-per-key 1", "OK"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("b: LOCK.RW k b READ BLOCK 0", "waits"),
    ("c: LOCK.RW k c READ BLOCK 0", "waits"),
    ("d: LOCK.RW k d READ BLOCK 0", "waits"),
    ("LOCK.RELEASE k a", "0 | b: #2 | c: waits"),
    // No client releases anything.
    ("CONFIG SET lock.max-holders-per-key 2", "OK | c: #3 | d: waits"),
    // A request that comes in the same turn of the server as the higher limit does not pass the waiter for it.
    ("MULTI", "OK"),
    ("CONFIG SET lock.max-holders-per-key 3", "QUEUED"),
    ("LOCK.RW k e READ", "QUEUED"),
    ("EXEC", "[OK LIMIT key has lock.max-holders-per-key holders] | d: #4"),
];

#[test]
fn a_raised_limit_of_holders_serves_its_waiters_and_no_request_passes_them() {
    // What could go wrong: the queue is not scanned when the limit changes. The waiter is forgotten, and a newcomer has
    // its place.
    Stage::alone().play(RAISED_LIMIT);
}
