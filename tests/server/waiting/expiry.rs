//! Waiters for a lock to which a client has given a time to live. The server does not look for what has expired here:
//! it deletes such a key when somebody opens it, and nobody does so but the module.

use crate::harness::connection::{Connection, Reply};
use crate::harness::payload::dump;
use crate::harness::state::{holders, let_it_tick, waiters};
use testbed::{Client, Server, Setup, wait_for};

/// A server that deletes what has expired only when it is opened.
fn blind(setup: Setup) -> (Server, Client) {
    let server = setup.start();
    let mut conn = server.connect();
    conn.ok(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    (server, conn)
}

/// The server's own clock, in milliseconds.
fn now_ms(conn: &mut Client) -> u64 {
    conn.info_number("server", "server_time_usec") / 1_000
}

/// How a lock comes by its time to live. Each says so of `KEY`, and whether before the wait begins.
const WAYS: [(&str, bool); 6] = [
    ("PEXPIRE KEY 50", false),
    ("EXPIRE KEY 1", false),
    ("PEXPIREAT KEY <end>", false),
    ("RESTORE KEY 50", false),
    ("PEXPIRE KEY 500", true),
    ("RESTORE KEY 500", true),
];

/// Requests for `KEY`, and whether they are answered with a fence. Each has an owner of its own: where an owner waits
/// for several keys, the module may open one for what happens to another.
const REQUESTS: [(&str, bool); 5] = [
    ("LOCK.ACQUIRE KEY w:KEY PX 600000 BLOCK 0", true),
    ("LOCK.RW KEY w:KEY READ PX 600000 BLOCK 0", true),
    ("LOCK.SHARE KEY w:KEY 2 PX 600000 BLOCK 0", true),
    ("LOCK.MACQUIRE 2 other:KEY KEY w:KEY PX 600000 BLOCK 0", true),
    // Its hold is gone with the lock.
    ("LOCK.RW KEY w:KEY WRITE PX 600000 BLOCK 0", false),
];

fn give_time_to_live(conn: &mut Client, key: &str, way: &str) {
    let end = (now_ms(conn) + 50).to_string();
    let way = way.replace("KEY", key).replace("<end>", &end);
    if let Some(rest) = way.strip_prefix("RESTORE ") {
        let (_, ms) = rest.split_once(' ').unwrap();
        let payload = dump(conn, key);
        conn.call(&[b"RESTORE", key.as_bytes(), ms.as_bytes(), &payload, b"REPLACE"]).unwrap();
    } else {
        assert_eq!(conn.int(&way.split(' ').collect::<Vec<_>>()), Some(1), "{way}");
    }
}

#[test]
fn a_request_that_waits_has_the_lock_when_its_time_to_live_is_over() {
    // What could go wrong: it waits for a lock that nobody holds, until somebody else happens to open the key.
    let (server, mut conn) = blind(Server::setup());
    let mut all = Vec::new();
    for db in [0, 9] {
        conn.ok(&["SELECT", &db.to_string()]);
        for (nth, (way, comes_first)) in WAYS.into_iter().enumerate() {
            for (of, (request, is_granted)) in REQUESTS.into_iter().enumerate() {
                let key = format!("{db}-{nth}-{of}");
                if is_granted {
                    conn.int(&["LOCK.ACQUIRE", &key, "h", "PX", "600000"]).expect("free");
                } else {
                    for reader in ["h", &format!("w:{key}")] {
                        conn.int(&["LOCK.RW", &key, reader, "READ", "PX", "600000"]).expect("free");
                    }
                }
                if comes_first {
                    give_time_to_live(&mut conn, &key, way);
                }
                let request = request.replace("KEY", &key);
                // That has it at once if the machine is slow and the time is over.
                let waiter = Connection::resp2(&server);
                let mut waiter = if comes_first { waiter } else { Connection::waiting_in(&server, db, &request) };
                if comes_first {
                    assert_eq!(waiter.say(&format!("SELECT {db}")), Reply::simple("OK"));
                    waiter.send_line(&request);
                } else {
                    give_time_to_live(&mut conn, &key, way);
                }
                all.push((waiter, is_granted, format!("{request} in {db}: {way}")));
            }
        }
    }
    for (mut waiter, is_granted, what) in all {
        match waiter.only_reply() {
            Reply::Int(fence) => assert!(is_granted && fence > 0, "{what}"),
            Reply::Array(fences) => assert!(is_granted && fences.len() == 2, "{what}"),
            reply => assert!(!is_granted && reply == Reply::Null, "{what}: {reply:?}"),
        }
    }
    assert_eq!(waiters(&mut conn), 0);
}

#[test]
fn a_place_without_a_client_is_offered_the_lock_when_its_time_to_live_is_over() {
    // What could go wrong: only parked clients make the module look after keys.
    let (_server, mut conn) = blind(Server::setup());
    for (key, comes_first) in [("before", true), ("after", false)] {
        conn.int(&["LOCK.ACQUIRE", key, "h", "PX", "600000"]).expect("free");
        for expire in [comes_first, !comes_first] {
            let command: &[&str] =
                if expire { &["PEXPIRE", key, "200"] } else { &["LOCK.ACQUIRE", key, "w", "QUEUE", "60000"] };
            conn.call(command).unwrap();
        }
    }
    wait_for("both to be offered", || conn.info("lock", "lock_offered") == "2");
}

#[test]
fn a_time_to_live_that_is_moved_or_taken_away_is_followed() {
    // What could go wrong: the waiter is let in beside a holder; or it is forgotten after the module has looked once.
    let (server, mut conn) = blind(Server::setup());
    conn.int(&["LOCK.ACQUIRE", "k", "h", "PX", "600000"]).expect("free");
    conn.int(&["PEXPIRE", "k", "600000"]);
    let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    for change in ["PERSIST k", "PEXPIRE k 500000"] {
        // In one turn, so that the lock is held still.
        let mut pipe = redis::pipe();
        pipe.cmd("PEXPIRE").arg(&["k", "60"]).ignore();
        pipe.cmd(change.split(' ').next().unwrap()).arg(change.split(' ').skip(1).collect::<Vec<_>>()).ignore();
        pipe.query::<()>(&mut conn.0).unwrap();
        let_it_tick(&mut conn);
        waiter.assert_waiting();
        assert_eq!(holders(&mut conn, "k"), ["h"], "{change}");
    }
    conn.int(&["PEXPIRE", "k", "50"]);
    waiter.only_reply().int();
    assert_eq!(conn.int(&["PTTL", "k"]), Some(-1), "the grant does not expire");
}

#[test]
fn a_lock_that_is_renamed_to_a_key_that_is_waited_for_brings_its_time_to_live() {
    // What could go wrong: no EXPIRE is heard then, and the queue was there before.
    let (server, mut conn) = blind(Server::setup());
    for (key, owner) in [("k", "h"), ("new", "n")] {
        conn.int(&["LOCK.ACQUIRE", key, owner, "PX", "600000"]).expect("free");
    }
    let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    conn.int(&["PEXPIRE", "new", "300"]);
    conn.ok(&["RENAME", "new", "k"]);
    waiter.only_reply().int();
}

#[test]
fn a_time_to_live_that_a_step_of_the_wall_clock_ends_is_over() {
    // What could go wrong: the timer goes by the monotonic clock, the server by the wall clock.
    let (server, mut conn) = blind(Server::setup().wall_offset("+0"));
    conn.int(&["LOCK.ACQUIRE", "k", "h", "PX", "600000"]).expect("free");
    let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    conn.int(&["EXPIRE", "k", "1800"]);
    server.set_wall_offset("+1h");
    waiter.only_reply().int();
}

#[test]
fn in_import_mode_nothing_expires_by_itself() {
    // What could go wrong: who imports the data decides what is deleted, and sends it; what is deleted here could be
    // held by two.
    let (server, mut conn) = blind(Server::setup());
    if conn.call(&["CONFIG", "SET", "import-mode", "yes"]).is_err() {
        // Redis, and Valkey before 8.1, have no such mode.
        return;
    }
    conn.int(&["LOCK.ACQUIRE", "k", "h", "PX", "600000"]).expect("free");
    let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    conn.int(&["PEXPIRE", "k", "50"]);
    let expired = conn.info("stats", "expired_keys");
    let_it_tick(&mut conn);
    waiter.assert_waiting();
    assert_eq!(conn.info("stats", "expired_keys"), expired);
    conn.ok(&["CONFIG", "SET", "import-mode", "no"]);
    waiter.only_reply().int();
}
