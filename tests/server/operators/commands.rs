//! What operators do and see: LOCK.BREAK, LOCK.TOP, LOCK.LOG, and the fields of INFO lock. What is malformed is in
//! commands/replies_syntax.rs.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::stream::Stream;
use crate::harness::transcript::{Player, Row, Stage};
use crate::waiting::effects::{self, Scene};
use std::time::{SystemTime, UNIX_EPOCH};
use testbed::{Client, Server, wait_for};

/// One owner, or all; no owner is 0 and no error.
const BROKEN: &[Row] = &[
    ("LOCK.BREAK k", "0"),
    ("LOCK.BREAK k a", "0"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.BREAK k b", "0"),
    ("LOCK.BREAK k a", "1"),
    ("EXISTS k", "0"),
    // Its owner gets the same reply as after a lapse: it does not hold it.
    ("LOCK.RELEASE k a", "nil"),
    ("LOCK.EXTEND k a PX 5000", "nil"),
    ("LOCK.ACQUIRE k a", "#2"),
    ("LOCK.BREAK k", "1"),
    ("LOCK.RW k a READ", "#3"),
    ("LOCK.RW k b READ", "#4"),
    ("LOCK.RW k c READ", "#5"),
    ("LOCK.BREAK k b", "1"),
    ("LOCK.RW k c WRITE", "nil"),
    ("LOCK.BREAK k", "2"),
    ("LOCK.BREAK k", "0"),
    ("DBSIZE", "0"),
    ("LOCK.ACQUIRE k a", "#6"),
    ("LOCK.RW k a READ", "#6"),
    ("LOCK.BREAK k a", "1"),
    (r#"LOCK.ACQUIRE "\x00\xff" "\x00""#, "#7"),
    (r#"LOCK.BREAK "\x00\xff" "\x00""#, "1"),
];

#[test]
fn a_broken_hold_is_gone_whoever_had_it() {
    // What could go wrong: a lock whose owner will never come back cannot be freed but by DEL, which reports to no
    // client.
    let (server, mut wire) = Connection::alone();
    wire.load_function();
    for way in [Way::Plain, Way::Exec, Way::Script, Way::Function] {
        Player::new(&mut wire, way).play(BROKEN);
    }
    Player::new(&mut Connection::resp3(&server), Way::Plain).play(BROKEN);
}

#[test]
fn a_break_and_the_grant_that_follows_are_sent_as_one() {
    // What could go wrong: between the two, a replica that takes over gives the lock to any requester; or it keeps the
    // hold.
    let server = effects::server();
    let mut scene = Scene::new(&server);
    scene.check(&[("LOCK.BREAK k", "0"), ("LOCK.BREAK k a", "0")], &[]);
    scene.check(
        &[
            ("LOCK.RW k a READ PX 60000", "#1"),
            ("LOCK.RW k b READ PX 60000", "#2"),
            ("LOCK.BREAK k x", "0"),
            ("LOCK.BREAK k a", "1"),
        ],
        &["LOCK.HOLD k a 1 0 #1 ~ 60000", "LOCK.HOLD k b 1 0 #2 ~ 60000", "LOCK.HOLD k a 0 0 #1"],
    );
    scene.check(
        &[
            ("c: LOCK.ACQUIRE k c PX 50000 NOTE next BLOCK 0", "waits"),
            ("d: LOCK.ACQUIRE k d PX 40000 BLOCK 0", "waits"),
            ("LOCK.BREAK k b", "1"),
            ("c:", "#3"),
            ("d:", "waits"),
        ],
        &["MULTI", "LOCK.HOLD k b 0 0 #2", "LOCK.HOLD k c 0 1 #3 ~ 50000 next", "EXEC"],
    );
    // The waiter is not broken: it is next.
    scene.check(&[("LOCK.BREAK k d", "0"), ("d:", "waits")], &[]);
    scene.check(
        &[("LOCK.BREAK k", "1"), ("d:", "#4")],
        &["MULTI", "LOCK.HOLD k c 0 0 #3", "LOCK.HOLD k d 0 1 #4 ~ 40000", "EXEC"],
    );
    scene.check(&[("LOCK.BREAK k", "1")], &["LOCK.HOLD k d 0 0 #4"]);
    // All readers at once.
    scene.check(
        &[("LOCK.RW k a READ PX 60000", "#5"), ("LOCK.RW k b READ PX 60000", "#6"), ("LOCK.BREAK k", "2")],
        &[
            "LOCK.HOLD k a 1 0 #5 ~ 60000",
            "LOCK.HOLD k b 1 0 #6 ~ 60000",
            "MULTI",
            "LOCK.HOLD k a 0 0 #5",
            "LOCK.HOLD k b 0 0 #6",
            "EXEC",
        ],
    );
}

#[test]
fn a_break_is_an_event_and_is_counted() {
    // What could go wrong: an observer of a lock learns that it was released, and goes on as if its owner had finished.
    let server = Server::setup().option("notify-keyspace-events", "Ed").start();
    let (mut subscriber, mut actor) = (Connection::resp2(&server), Connection::resp2(&server));
    subscriber.say("PSUBSCRIBE __keyevent@0__:*");
    for command in ["LOCK.RW k a READ", "LOCK.RW k b READ"] {
        assert!(actor.say(command).int() > 0);
    }
    assert_eq!(actor.say("LOCK.BREAK k").int(), 2);
    assert_eq!(actor.say("LOCK.BREAK k").int(), 0);
    for event in ["lock.acquire", "lock.acquire", "lock.break", "lock.break"] {
        let channel = format!("__keyevent@0__:{event}");
        assert_eq!(subscriber.read().items()[2..], [Reply::bulk(&channel), Reply::bulk("k")]);
    }
    assert!(!subscriber.has_reply());
    let mut conn = server.connect();
    let counts = ["lock_broken", "lock_released", "lock_lapsed", "lock_granted"];
    assert_eq!(counts.map(|field| conn.info_number("lock", field)), [2, 0, 0, 2]);
}

#[test]
fn watchers_are_told_of_a_break() {
    // What could go wrong: a transaction that was to run under a lock runs after the lock was taken away.
    let server = Server::new();
    Stage::new(&server).play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("w: WATCH k", "OK"),
        ("LOCK.BREAK k other", "0"),
        ("w: MULTI", "OK"),
        ("w: PING", "QUEUED"),
        ("w: EXEC", "[PONG]"),
        ("w: WATCH k", "OK"),
        ("LOCK.BREAK k", "1"),
        ("w: MULTI", "OK"),
        ("w: PING", "QUEUED"),
    ]);
}

#[test]
fn a_full_server_can_be_helped_by_a_break() {
    // What could go wrong: the lock that keeps a server full cannot be taken away because the server is full.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).expect("free");
    let mut next = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0");
    conn.ok(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(conn.error(&["LOCK.ACQUIRE", "free", "a"]).starts_with("OOM "));
    assert_eq!(conn.int(&["LOCK.BREAK", "k"]), Some(1));
    // The hand-off is no new lock.
    assert!(next.read().int() > 0);
    assert_eq!(conn.int(&["LOCK.BREAK", "k", "b"]), Some(1));
    assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0);
    assert!(matches!(conn.call(&["LOCK.TOP"]).unwrap(), redis::Value::Array(_)));
    assert!(matches!(conn.call(&["LOCK.LOG"]).unwrap(), redis::Value::Array(_)));
}

#[test]
fn a_replica_breaks_nothing_and_shows_what_it_knows() {
    // What could go wrong: a lock that is broken on a replica alone is held and free at once.
    let primary = Server::setup().option("repl-diskless-sync-delay", "0").start();
    let replica = Server::new();
    let (mut there, mut here) = (primary.connect(), replica.connect());
    there.int(&["LOCK.ACQUIRE", "k", "a"]).expect("free");
    replica.follow(&primary);
    for read_only in ["yes", "no"] {
        here.ok(&["CONFIG", "SET", "replica-read-only", read_only]);
        for command in [&["LOCK.BREAK", "k"][..], &["LOCK.BREAK", "k", "a"], &["LOCK.BREAK", "nobody"]] {
            assert!(here.error(command).starts_with("READONLY "), "{command:?}, replica-read-only {read_only}");
        }
    }
    assert_eq!(here.lock_info("k").unwrap().holding, 1);
    let mut wire = Connection::resp2(&replica);
    assert_eq!(
        wire.say("LOCK.TOP"),
        Reply::Array(vec![Reply::bulk("waits"), Reply::Array(vec![]), Reply::bulk("keys"), Reply::Array(vec![])])
    );
    assert_eq!(there.int(&["LOCK.BREAK", "k"]), Some(1));
    replica.catch_up(&primary);
    assert!(here.lock_info("k").is_none());
    // A fact is no loss: its recipient has not lost anything by its own clock.
    assert_eq!(wire.say("LOCK.LOG"), Reply::Array(vec![]));
    assert_eq!(here.info_number("lock", "lock_broken"), 0);
}

/// Waits by age and keys by crowd, over all databases.
const TOP: &[Row] = &[
    ("LOCK.TOP", "[waits [] keys []]"),
    ("LOCK.ACQUIRE j x", "#1"),
    ("LOCK.ACQUIRE k x", "#2"),
    ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
    (
        "LOCK.TOP",
        "[waits [[waited_ms ~ left_ms nil owner a mode write limit nil take nil db 0 keys [k] client ~]] \
         keys [[db 0 key k waiting 1 waited_ms ~]]]",
    ),
    ("b: LOCK.RW j b READ BLOCK 60000", "waits"),
    ("m: LOCK.MACQUIRE 3 l k j m BLOCK 0", "waits"),
    ("d: SELECT 3", "OK"),
    ("e: SELECT 3", "OK"),
    ("d: LOCK.ACQUIRE k y", "#3"),
    ("e: LOCK.RW k e READ BLOCK 0", "waits"),
    (
        "LOCK.TOP",
        "[waits [[waited_ms ~ left_ms nil owner a mode write limit nil take nil db 0 keys [k] client ~] \
         [waited_ms ~ left_ms ~ owner b mode read limit nil take nil db 0 keys [j] client ~] \
         [waited_ms ~ left_ms nil owner m mode write limit nil take nil db 0 keys [l k j] client ~] \
         [waited_ms ~ left_ms nil owner e mode read limit nil take nil db 3 keys [k] client ~]] \
         keys [[db 0 key j waiting 2 waited_ms ~] [db 0 key k waiting 2 waited_ms ~] \
         [db 0 key l waiting 1 waited_ms ~] [db 3 key k waiting 1 waited_ms ~]]]",
    ),
    (
        "LOCK.TOP COUNT 1",
        "[waits [[waited_ms ~ left_ms nil owner a mode write limit nil take nil db 0 keys [k] client ~]] \
         keys [[db 0 key j waiting 2 waited_ms ~]]]",
    ),
    ("LOCK.TOP COUNT 0", "[waits [] keys []]"),
    // Whatever database it is asked from.
    ("d: LOCK.TOP COUNT 0", "[waits [] keys []]"),
    (
        "d: LOCK.TOP COUNT 1",
        "[waits [[waited_ms ~ left_ms nil owner a mode write limit nil take nil db 0 keys [k] client ~]] keys [[db 0 key j waiting 2 waited_ms ~]]]",
    ),
    ("LOCK.RELEASE k x", "0"),
    ("a:", "#4"),
    (
        "LOCK.TOP COUNT 1",
        "[waits [[waited_ms ~ left_ms ~ owner b mode read limit nil take nil db 0 keys [j] client ~]] \
         keys [[db 0 key j waiting 2 waited_ms ~]]]",
    ),
];

#[test]
fn top_shows_the_longest_waits_and_the_most_crowded_keys() {
    // What could go wrong: an operator asks why everything stands still, and sees the latest, or one database only.
    Stage::new(&Server::new()).play(TOP);
}

#[test]
fn top_is_a_map_in_resp3_and_names_the_clients() {
    // What could go wrong: a program that reads by name finds an array; an operator cannot unblock a client on the
    // list.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "x"]).expect("free");
    let waiters: Vec<Connection> =
        (0..12).map(|number| Connection::waiting(&server, &format!("LOCK.RW k w{number} READ BLOCK 0"))).collect();
    let names = |map: &Reply| match map {
        Reply::Map(pairs) => pairs.iter().map(|(name, _)| name.text()).collect::<Vec<_>>(),
        other => panic!("not a map: {other:?}"),
    };
    let top = Connection::resp3(&server).say("LOCK.TOP");
    assert_eq!(names(&top), ["waits", "keys"]);
    let waits = top.field("waits").items();
    // As many as LOCK.INFO shows when the command does not say how many.
    assert_eq!(waits.len(), 10);
    assert_eq!(names(&waits[0]), ["waited_ms", "left_ms", "owner", "mode", "limit", "take", "db", "keys", "client"]);
    let clients: Vec<i64> = waits.iter().map(|wait| wait.field("client").int()).collect();
    assert_eq!(clients, waiters[..10].iter().map(Connection::id).collect::<Vec<_>>());
    let ages: Vec<i64> = waits.iter().map(|wait| wait.field("waited_ms").int()).collect();
    assert!(ages.is_sorted_by(|older, younger| older >= younger), "{ages:?}");
    let keys = top.field("keys").items();
    assert_eq!(names(&keys[0]), ["db", "key", "waiting", "waited_ms"]);
    assert_eq!(keys[0].field("waiting").int(), 12);
    // As long as the one that has waited longest.
    assert!(keys[0].field("waited_ms").int() >= ages[0]);
    assert_eq!(Connection::resp3(&server).say("LOCK.TOP COUNT 100").field("waits").items().len(), 12);
}

#[test]
fn info_and_top_show_no_more_rows_than_the_server_writes_in_a_moment() {
    // What could go wrong: a client asks for all of 65,536 holders, and all others wait for 50 ms.
    let (server, mut conn) = Server::connected();
    let fill = "for i=1,5000 do redis.call('LOCK.RW','k','o'..i,'READ') end \
                for i=1,5000 do redis.call('LOCK.ACQUIRE','k','p'..i,'QUEUE',60000) end";
    conn.call(&["EVAL", fill, "0"]).unwrap();
    let mut conn = Connection::resp3(&server);
    for (command, rows) in
        [("LOCK.INFO k COUNT 100000", ["holders", "waiters"]), ("LOCK.TOP COUNT 100000", ["waits", "keys"])]
    {
        let reply = conn.say(command);
        assert_eq!(reply.field(rows[0]).items().len(), 4_096, "{command}");
        assert!(reply.field(rows[1]).items().len() <= 4_096, "{command}");
    }
    let reply = conn.say("LOCK.INFO k COUNT 1");
    assert_eq!((reply.field("holding").int(), reply.field("waiting").int()), (5_000, 5_000));
}

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
    let (primary, replica) = (Server::setup().option("repl-diskless-sync-delay", "0").start(), Server::new());
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

#[test]
fn holds_name_their_note_and_their_connection() {
    // What could go wrong: an operator sees the holder of a lock as a string of digits, and cannot find the process.
    let server = Server::new();
    let mut session = Connection::resp2(&server);
    let client = session.id();
    let fence = session.say("LOCK.ACQUIRE k a SESSION 500 NOTE host:17").int();
    assert!(fence > 0);
    let holder = |wire: &mut Connection| wire.say("LOCK.INFO k").field("holders").items().remove(0);
    let mut wire = Connection::resp2(&server);
    let seen = holder(&mut wire);
    let fields = ["session", "client", "note"].map(|field| seen.field(field));
    assert_eq!(fields, [Reply::Int(500), Reply::Int(client), Reply::bulk("host:17")]);
    // Bound anew, by the client that extends it there.
    let other = wire.say("CLIENT ID").int();
    assert_eq!(wire.say("LOCK.EXTEND k a PX 60000 SESSION 0").int(), fence);
    let seen = holder(&mut wire);
    let fields = ["session", "client", "note"].map(|field| seen.field(field));
    assert_eq!(fields, [Reply::Int(0), Reply::Int(other), Reply::bulk("host:17")]);
    let mut conn = server.connect();
    assert_eq!(conn.info_number("lock", "lock_session_holds"), 1);
    // The first connection has nothing to do with it any more.
    drop(session);
    wait_for("it to be gone", || wire.say(&format!("CLIENT LIST ID {client}")).text().is_empty());
    assert_eq!(holder(&mut wire).field("client").int(), other);
    drop(wire);
    wait_for("the lock to be free", || conn.lock_info("k").is_none());
    let counts = ["lock_sessions_closed", "lock_session_holds", "lock_released", "lock_lapsed"];
    assert_eq!(counts.map(|field| conn.info_number("lock", field)), [1, 0, 1, 0]);
}

#[test]
fn info_measures_how_long_was_waited() {
    // What could go wrong: an alert on long waits never fires, or waits count that were in vain or did not take place.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    let mut conn = server.connect();
    let mut waits =
        || ["lock_wait_p50_us", "lock_wait_p99_us", "lock_wait_max_us"].map(|f| conn.info_number("lock", f));
    assert_eq!(waits(), [0; 3]);
    stage.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b BLOCK 5", "nil"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("CLIENT UNBLOCK %c", "1"),
        ("c:", "nil"),
    ]);
    assert_eq!(waits(), [0; 3], "none of them was let in");
    // One waiter that waits a while, by the server's own count of it.
    stage.play(&[("b: LOCK.ACQUIRE k b BLOCK 0", "waits")]);
    let mut wire = Connection::resp2(&server);
    let mut waited_ms = 0;
    wait_for("time to pass", || {
        waited_ms = wire.say("LOCK.TOP").field("waits").items()[0].field("waited_ms").int();
        waited_ms >= 60
    });
    stage.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2")]);
    let [p50, p99, max] = waits();
    // To two digits.
    let least = waited_ms as u64 * 1000 * 99 / 100;
    assert!(p50 >= least && p50 <= p99 && p99 <= max, "{p50} {p99} {max}, waited {waited_ms} ms");
    assert!(max < 20_000_000, "{max}");
    // Many that hardly wait move the middle, not the longest.
    for _ in 0..30 {
        stage.play(&[("c: LOCK.ACQUIRE k c BLOCK 0", "sent"), ("LOCK.BREAK k b", "1")]);
        assert!(stage.waiter("c").read().int() > 0);
        stage.play(&[("b: LOCK.ACQUIRE k b BLOCK 0", "sent"), ("LOCK.BREAK k c", "1")]);
        assert!(stage.waiter("b").read().int() > 0);
    }
    let [middle, _, longest] = waits();
    assert!(middle < p50 && longest >= max, "{middle} {longest}, before {p50} {max}");
}

#[test]
fn every_counter_counts_what_it_says() {
    // What could go wrong: a number that stands still, or that counts requests where it says keys.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    let mut conn = server.connect();
    let mut seen: Vec<(String, u64)> = Vec::new();
    // The fields that a step changed, and by how much; without the clocks.
    let mut changed = || {
        let text: String = conn.get(&["INFO", "lock"]);
        let fields = text.lines().filter_map(|line| line.strip_prefix("lock_")?.split_once(':'));
        // What a waiter takes has a test of its own.
        let clocks = ["fence_clock", "wait_p50_us", "wait_p99_us", "wait_max_us", "waiter_bytes", "place_bytes"];
        let now: Vec<(String, u64)> = fields
            .filter(|(name, _)| !clocks.contains(name))
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect();
        let by = |(name, value): &(String, u64)| {
            let before = seen.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value);
            (before != *value).then(|| format!("{name} {:+}", value.cast_signed() - before.cast_signed()))
        };
        let all: Vec<String> = now.iter().filter_map(by).collect();
        seen = now;
        all.join(", ")
    };
    let steps: &[(Row, &str)] = &[
        (("LOCK.ACQUIRE j a", "#1"), "granted +1, leases +1"),
        (("LOCK.ACQUIRE j a", "#1"), "granted +1"),
        (("LOCK.ACQUIRE j b", "nil"), "refused +1"),
        (("LOCK.MACQUIRE 2 j k b", "nil"), "refused +1"),
        // By key.
        (("LOCK.MACQUIRE 2 k l a", "[#2 #3]"), "granted +2, leases +2"),
        (("LOCK.MEXTEND 3 j k l a PX 60000", "[#1 #2 #3]"), "extended +3"),
        (("LOCK.EXTEND j b PX 60000", "nil"), ""),
        (("LOCK.MRELEASE 3 j k l a", "[1 0 0]"), "released +3, leases -2"),
        (("LOCK.RELEASE j b", "nil"), ""),
        (("b: LOCK.MACQUIRE 2 j k b BLOCK 0", "waits"), "queued +1, waiters +1, contended_keys +2"),
        (("LOCK.BREAK j", "1"), "granted +2, handed_off +1, broken +1, waiters -1, contended_keys -2, leases +1"),
        (("b:", "[#4 #5]"), ""),
        (("LOCK.BREAK j x", "0"), ""),
        (("s: LOCK.ACQUIRE s a SESSION 0", "#6"), "granted +1, leases +1, session_holds +1"),
        (("s: LOCK.ACQUIRE s2 a SESSION 60000", "#7"), "granted +1, leases +1, session_holds +1"),
        (
            (
                "LOCK.INFO j COUNT 0",
                "[mode write fence #4 shares 0 holding 1 holders [] waiting 0 waiters [] reserved_by nil]",
            ),
            "",
        ),
        (("LOCK.ACQUIRE j a PX 0", "ERR PX must be a whole number from 1 to 86400000"), ""),
    ];
    for ((command, reply), expected) in steps {
        stage.play(&[(command, reply)]);
        assert_eq!(changed(), *expected, "{command}");
    }
    // Those that a connection bound while it was there.
    stage.leave("s");
    wait_for("its hold to be gone", || server.connect().get::<i64>(&["EXISTS", "s"]) == 0);
    assert_eq!(changed(), "released +1, sessions_closed +1, leases -1, session_holds -2");
    stage.play(&[("LOCK.EXTEND s2 a PX 1", "#7")]);
    wait_for("its lease to end", || server.connect().get::<i64>(&["EXISTS", "s2"]) == 0);
    assert_eq!(changed(), "extended +1, lapsed +1, leases -1");
}

#[test]
fn what_is_looked_at_is_not_sent() {
    // What could go wrong: every read of a monitoring tool goes to the file and to all replicas.
    let server = Server::setup().option("appendonly", "yes").option("repl-diskless-sync-delay", "0").start();
    let mut stream = Stream::of(&server);
    let mut wire = Connection::resp2(&server);
    for command in ["LOCK.TOP", "LOCK.LOG", "LOCK.LOG RESET", "LOCK.INFO k", "LOCK.BREAK k"] {
        wire.say(command);
    }
    assert_eq!(stream.commands(&server), Vec::<Vec<String>>::new());
    assert_eq!(server.aof_tail(), Vec::<Vec<String>>::new());
}
