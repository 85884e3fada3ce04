//! What operators do and see: LOCK.BREAK, LOCK.TOP, and the fields of INFO lock. What is malformed is in
//! commands/replies_syntax.rs.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::stream::Stream;
use crate::harness::transcript::{Player, Row, Stage};
use crate::waiting::effects::Scene;
use testbed::{Server, wait_for};

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
    let mut scene = Scene::alone();
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
            ("LOCK.BREAK k b", "1 | c: #3 | d: waits"),
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
    Stage::alone().play(&[
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
        // A null array.
        ("w: EXEC", "unexpected *-1"),
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
    let primary = Server::new();
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
    ("LOCK.TOP", "[waits [[owner a mode write keys [k]]] keys [[key k waiting 1]]]"),
    ("b: LOCK.RW j b READ BLOCK 60000", "waits"),
    ("m: LOCK.MACQUIRE 3 l k j m BLOCK 0", "waits"),
    ("d: SELECT 3", "OK"),
    ("e: SELECT 3", "OK"),
    ("d: LOCK.ACQUIRE k y", "#3"),
    ("e: LOCK.RW k e READ BLOCK 0", "waits"),
    (
        "LOCK.TOP",
        "[waits [[owner a mode write keys [k]] \
         [left_ms ~ owner b mode read keys [j]] \
         [owner m mode write keys [l k j]] \
         [owner e mode read db 3 keys [k]]] \
         keys [[key j waiting 2] [key k waiting 2] [key l waiting 1] [db 3 key k waiting 1]]]",
    ),
    ("LOCK.TOP COUNT 1", "[waits [[owner a mode write keys [k]]] keys [[key j waiting 2]]]"),
    ("LOCK.TOP COUNT 0", "[waits [] keys []]"),
    // Whatever database it is asked from.
    ("d: LOCK.TOP COUNT 0", "[waits [] keys []]"),
    ("d: LOCK.TOP COUNT 1", "[waits [[owner a mode write keys [k]]] keys [[key j waiting 2]]]"),
    ("LOCK.RELEASE k x", "0 | a: #4"),
    ("LOCK.TOP COUNT 1", "[waits [[left_ms ~ owner b mode read keys [j]]] keys [[key j waiting 2]]]"),
];

#[test]
fn top_shows_the_longest_waits_and_the_most_crowded_keys() {
    // What could go wrong: an operator asks why everything stands still, and sees the latest, or one database only.
    Stage::alone().play(TOP);
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
        ("CLIENT UNBLOCK %c", "1 | c: nil"),
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
        (("LOCK.INFO j COUNT 0", "[mode write fence #4 holding 1 holders []]"), ""),
        (("LOCK.ACQUIRE j a PX 0", "ERR PX must be a whole number from 1 to 86400000"), ""),
    ];
    for ((command, reply), expected) in steps {
        stage.play(&[(command, reply)]);
        assert_eq!(changed(), *expected, "{command}");
    }
    // It is a module's section: not among the default ones, but among all.
    let mut other = server.connect();
    assert!(other.get::<String>(&["INFO", "lock"]).starts_with("# lock\r\n"));
    assert!(other.get::<String>(&["INFO", "everything"]).contains("lock_granted:"));
    assert!(!other.get::<String>(&["INFO"]).contains("lock_granted:"));
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
    let server = Server::setup().option("appendonly", "yes").start();
    let mut stream = Stream::of(&server);
    let mut wire = Connection::resp2(&server);
    for command in ["LOCK.TOP", "LOCK.LOG", "LOCK.LOG RESET", "LOCK.INFO k", "LOCK.BREAK k"] {
        wire.say(command);
    }
    assert_eq!(stream.commands(&server), Vec::<Vec<String>>::new());
    assert_eq!(server.aof_tail(), Vec::<Vec<String>>::new());
}
