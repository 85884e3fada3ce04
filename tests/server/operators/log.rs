//! LOCK.LOG: the holds that their owners lost.

use crate::harness::connection::{Connection, Reply};
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::{Client, Server, wait_for};

/// The rows of LOCK.LOG without what depends on the time: id, reason, db, key, owner, mode, note.
fn log(conn: &mut Connection, command: &str) -> Vec<String> {
    let row = |row: &Reply| {
        let text = |field: &str| match row.field(field) {
            Reply::Int(number) => number.to_string(),
            Reply::Null => "nil".to_owned(),
            bytes => bytes.text(),
        };
        ["id", "reason", "db", "key", "owner", "mode", "note"].map(text).join(" ")
    };
    conn.say(command).items().iter().map(row).collect()
}

fn wall_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[test]
fn the_log_shows_every_hold_that_its_owner_lost() {
    // What could go wrong: an operator cannot find out afterwards which owner lost a lock. Or a release by its owner is
    // shown as a loss.
    let server = Server::new();
    let (mut wire, mut conn) = (Connection::resp2(&server), server.connect());
    assert_eq!(wire.say("LOCK.LOG"), Reply::Array(vec![]));
    let before = wall_ms();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "20", "NOTE", "host 1"]).unwrap();
    wait_for("the lease to end", || conn.info("lock", "lock_lapsed") == "1");
    let row = wire.say("LOCK.LOG").items().remove(0);
    let Reply::Array(flat) = &row else { panic!("flat in RESP2") };
    let names: Vec<String> = flat.chunks(2).map(|pair| pair[0].text()).collect();
    assert_eq!(names, ["id", "time_ms", "reason", "db", "key", "owner", "mode", "fence", "held_ms", "note"]);
    assert_eq!((row.field("fence").int(), row.field("id").int()), (fence, 1));
    assert!((before..=wall_ms()).contains(&row.field("time_ms").int()), "{row:?}");
    assert!((20..20_000).contains(&row.field("held_ms").int()), "{row:?}");
    let three = Connection::resp3(&server).say("LOCK.LOG").items().remove(0);
    assert!(matches!(&three, Reply::Map(pairs) if pairs.len() == 10), "{three:?}");

    // A break of several is several; what their owners did themselves is nothing.
    conn.ok(&["SELECT", "2"]);
    for reader in ["a", "b"] {
        conn.int(&["LOCK.RW", "r", reader, "READ"]).expect("granted");
    }
    conn.int(&["LOCK.BREAK", "r"]);
    for command in [&["LOCK.ACQUIRE", "own", "a"][..], &["LOCK.EXTEND", "own", "a", "PX", "5000"]] {
        conn.int(command).expect("held");
    }
    conn.int(&["LOCK.RELEASE", "own", "a"]);
    conn.int(&["LOCK.ACQUIRE", "own", "a"]);
    conn.get::<i64>(&["DEL", "own"]);
    // A closed connection, at once and after its grace.
    let mut session = server.connect();
    session.int(&["LOCK.ACQUIRE", "s", "now", "SESSION", "0", "NOTE", "n"]).expect("free");
    session.int(&["LOCK.ACQUIRE", "t", "later", "SESSION", "30"]).expect("free");
    drop(session);
    wait_for("both holds to end", || conn.get::<i64>(&["DBSIZE"]) == 0 && log(&mut wire, "LOCK.LOG").len() == 5);
    let expected = [
        "5 session 0 t later write nil",
        "4 session 0 s now write n",
        "3 break 2 r b read nil",
        "2 break 2 r a read nil",
    ];
    let rows = log(&mut wire, "LOCK.LOG");
    assert_eq!(rows[..4], expected);
    assert_eq!(rows[4], "1 lapse 0 k a write host 1");
    assert_eq!(log(&mut wire, "LOCK.LOG COUNT 2"), expected[..2]);
    assert!(log(&mut wire, "LOCK.LOG COUNT 0").is_empty());
    // Forgotten, but the numbers go on: a reader that has read up to 5 misses nothing.
    assert_eq!(wire.say("LOCK.LOG RESET"), Reply::simple("OK"));
    assert!(log(&mut wire, "LOCK.LOG").is_empty());
    conn.int(&["LOCK.ACQUIRE", "k", "a"]);
    conn.int(&["LOCK.BREAK", "k", "a"]);
    assert_eq!(log(&mut wire, "LOCK.LOG"), ["6 break 2 k a write nil"]);
}

/// Loses a lock of each of these owners, in this order.
fn lose(conn: &mut Client, owners: &[&str]) {
    for owner in owners {
        conn.int(&["LOCK.ACQUIRE", "k", owner]).expect("free");
        assert_eq!(conn.int(&["LOCK.BREAK", "k", owner]), Some(1));
    }
}

#[test]
fn the_log_is_as_long_as_it_may_be() {
    // What could go wrong: it grows for ever, or a length of zero or one is taken for another.
    let server = Server::setup().lock_option("log-max-len", "3").start();
    let (mut wire, mut conn) = (Connection::resp2(&server), server.connect());
    let owners = |wire: &mut Connection| {
        let rows = log(wire, "LOCK.LOG COUNT 1000");
        rows.iter().map(|row| row.split(' ').nth(4).unwrap().to_owned()).collect::<Vec<_>>()
    };
    lose(&mut conn, &["a", "b", "c", "d", "e"]);
    assert_eq!(owners(&mut wire), ["e", "d", "c"]);
    // Shrunk while it runs: the latest stay.
    conn.ok(&["CONFIG", "SET", "lock.log-max-len", "1"]);
    assert_eq!(owners(&mut wire), ["e"]);
    lose(&mut conn, &["f", "g"]);
    assert_eq!(owners(&mut wire), ["g"]);
    conn.ok(&["CONFIG", "SET", "lock.log-max-len", "0"]);
    assert!(owners(&mut wire).is_empty());
    lose(&mut conn, &["h"]);
    assert!(owners(&mut wire).is_empty());
    // Grown again: nothing comes back.
    conn.ok(&["CONFIG", "SET", "lock.log-max-len", "2"]);
    assert!(owners(&mut wire).is_empty());
    lose(&mut conn, &["i", "j", "k"]);
    assert_eq!(owners(&mut wire), ["k", "j"]);
    // Ten, when the command does not say how many.
    conn.ok(&["CONFIG", "SET", "lock.log-max-len", "100000"]);
    lose(&mut conn, &["l"; 20]);
    assert_eq!(log(&mut wire, "LOCK.LOG").len(), 10);
    assert_eq!(log(&mut wire, "LOCK.LOG COUNT 1000").len(), 22);
}

#[test]
fn the_log_keeps_the_beginning_of_long_names_and_says_how_much_more_there_was() {
    // What could go wrong: a user that may lock fills the memory with names of locks that are gone, and only RESET
    // frees it.
    const MIB: usize = 1 << 20;
    let (server, mut conn) =
        Server::setup().lock_option("max-owner-bytes", "65535").lock_option("max-note-bytes", "65535").connected();
    // No text: a key, an owner and a note of any bytes.
    let long = |first: u8, len: usize| [&[first, 0, 0xff, b'\n'][..], &vec![b'x'; len - 4]].concat();
    lose(&mut conn, &["a"]);
    let used = |conn: &mut Client| {
        conn.get::<String>(&["MEMORY", "PURGE"]);
        conn.info_number("memory", "used_memory")
    };
    let before = used(&mut conn);
    for n in 0..8 {
        // Over connections of their own: the server keeps no buffer of those that are gone.
        let mut other = server.connect();
        let (key, owner, note) = (long(n, 4 * MIB), long(n, 65_535), long(n, 60_000));
        let acquire: [&[u8]; 5] = [b"LOCK.ACQUIRE", &key, &owner, b"NOTE", &note];
        assert!(matches!(other.call(&acquire), Ok(redis::Value::Int(1..))));
        assert_eq!(other.call(&[&b"LOCK.BREAK"[..], &key]), Ok(redis::Value::Int(1)));
    }
    wait_for("the long names to be gone", || {
        conn.info("clients", "connected_clients") == "1" && used(&mut conn) < before + MIB as u64
    });
    // Every row is there, cut where it is too long.
    let rows = Connection::resp2(&server).say("LOCK.LOG").items();
    assert_eq!(rows.len(), 9);
    let cut = |first: u8, len: usize, kept: usize| {
        let more = format!("... ({} more bytes)", len - kept);
        Reply::Bulk([&long(first, len)[..kept], more.as_bytes()].concat())
    };
    for (n, row) in (0..8).rev().zip(&rows) {
        assert_eq!(row.field("key"), cut(n, 4 * MIB, 128));
        assert_eq!(row.field("owner"), cut(n, 65_535, 256));
        assert_eq!(row.field("note"), cut(n, 60_000, 256));
    }
    // What is just short enough is whole.
    let (key, owner) = (long(b'k', 128), long(b'o', 256));
    assert!(matches!(conn.call(&[b"LOCK.ACQUIRE", &key[..], &owner, b"NOTE", &owner]), Ok(redis::Value::Int(1..))));
    assert_eq!(conn.call(&[&b"LOCK.BREAK"[..], &key]), Ok(redis::Value::Int(1)));
    let row = Connection::resp2(&server).say("LOCK.LOG").items().remove(0);
    let [key, owner] = [key, owner].map(Reply::Bulk);
    assert_eq!((row.field("key"), row.field("owner"), row.field("note")), (key, owner.clone(), owner));
}

#[test]
fn a_replica_has_a_log_of_its_own_also_without_its_primary() {
    // What could go wrong: an operator cannot ask a replica, or a RESET of the one forgets what the other knows.
    let (primary, replica) = (Server::new(), Server::new());
    let (mut there, mut here) = (primary.connect(), replica.connect());
    lose(&mut here, &["before"]);
    replica.follow(&primary);
    lose(&mut there, &["after"]);
    replica.catch_up(&primary);
    let owners = |server: &Server| log(&mut Connection::resp2(server), "LOCK.LOG").len();
    assert_eq!((owners(&primary), owners(&replica)), (1, 1));
    here.ok(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    drop(primary);
    wait_for("the replica to have lost its primary", || here.info("replication", "master_link_status") == "down");
    assert!(here.error(&["LOCK.INFO", "k"]).starts_with("MASTERDOWN "));
    assert_eq!(owners(&replica), 1);
    here.ok(&["LOCK.LOG", "RESET"]);
    assert_eq!(owners(&replica), 0);
}
