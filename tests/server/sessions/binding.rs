//! Holds that are bound to a connection: what SESSION says, what ends with the connection, however that ends, and what
//! binds a hold anew.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::state::{gone, holders, let_it_tick};
use crate::harness::transcript::{Player, Row, Stage};
use redis::Value;
use std::time::{Duration, Instant};
use testbed::{Client, Fields, HolderInfo, Server, wait_for};

/// The hold of the only holder.
pub(crate) fn only_hold(conn: &mut Client, key: &str) -> HolderInfo {
    let mut holders = conn.lock_info(key).unwrap_or_else(|| panic!("nobody holds {key}")).holders;
    assert_eq!(holders.len(), 1, "{holders:?}");
    holders.remove(0)
}

/// Why holds were lost, the last first: reason and owner.
pub(crate) fn lost(conn: &mut Client) -> Vec<(String, String)> {
    let rows: Vec<Value> = conn.get(&["LOCK.LOG"]);
    let rows = rows.into_iter().map(Fields::from);
    rows.map(|row| (row.get("reason"), row.get("owner"))).collect()
}

const SYNTAX: &[Row] = &[
    ("LOCK.ACQUIRE k a SESSION 0", "#1"),
    ("LOCK.ACQUIRE k a SESSION 315360000000", "#1"),
    ("LOCK.ACQUIRE k a session 1000 PX 5000 NOTE x RETRY 1", "#1"),
    ("LOCK.RW k a READ SESSION 0", "#1"),
    ("LOCK.EXTEND k a PX 5000 SESSION 0", "#1"),
    ("LOCK.EXTEND k a SESSION 0 FENCE #1 PX 5000", "#1"),
    ("LOCK.EXTEND k a SESSION 0 FENCE #1+1 PX 5000", "nil"),
    ("LOCK.EXTEND k b PX 5000 SESSION 0", "nil"),
    ("LOCK.MACQUIRE 2 k l a SESSION 0", "[#1 #2]"),
    ("LOCK.MEXTEND 3 k l m a PX 5000 SESSION 7", "[#1 #2 nil]"),
    ("LOCK.ACQUIRE m * SESSION 5 BLOCK 0", "[<made> #3]"),
    ("LOCK.ACQUIRE k b SESSION 0", "nil"),
    ("LOCK.ACQUIRE k b SESSION 0 BLOCK 1", "nil"),
    ("LOCK.RELEASE k a READ ALL", "3"),
];

#[test]
fn session_takes_a_number_of_milliseconds_once() {
    // What is read wrongly binds for another time than was asked, or not at all. What is refused is in
    // commands/replies_syntax.rs.
    let (_server, mut wire) = Connection::alone();
    for way in [Way::Plain, Way::Exec] {
        Player::new(&mut wire, way).play(SYNTAX);
    }
}

#[test]
fn info_shows_what_a_hold_is_bound_to() {
    // Operators read this before they kill a connection.
    let (server, mut conn) = Server::connected();
    let (mut one, mut other) = (Connection::resp2(&server), Connection::resp2(&server));
    let seen = |conn: &mut Client| {
        let hold = only_hold(conn, "k");
        (hold.session, hold.client)
    };
    one.say("LOCK.ACQUIRE k a PX 600000");
    assert_eq!(seen(&mut conn), (None, None));
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
    one.say("LOCK.ACQUIRE k a SESSION 0");
    assert_eq!(seen(&mut conn), (Some(0), Some(one.id())));
    assert_eq!(conn.info("lock", "lock_session_holds"), "1");
    other.say("LOCK.EXTEND k a PX 600000 SESSION 1234");
    assert_eq!(seen(&mut conn), (Some(1234), Some(other.id())));
    assert_eq!(conn.info("lock", "lock_session_holds"), "1");
    let bytes = |number: i64| format!("$7\\r\\nsession\\r\\n:1234\\r\\n$6\\r\\nclient\\r\\n:{number}\\r\\n");
    for mut wire in [Connection::resp2(&server), Connection::resp3(&server)] {
        let shown = wire.bytes("LOCK.INFO k");
        assert!(shown.contains(&bytes(other.id())), "{shown}");
    }
    assert_eq!(other.say("LOCK.RELEASE k a ALL"), Reply::Int(0));
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
}

/// How a connection ends.
const ENDS: &str = "closed,reset,half closed,quit,killed by itself,killed,killed by its address,idle,evicted,\
                    too much output,no protocol,its user is deleted";

/// A user that may do all, and that is deleted at one of the ends.
const USER: [&str; 8] = ["ACL", "SETUSER", "user", "on", "nopass", "~*", "&*", "+@all"];

fn end(conn: &mut Client, mut holder: Connection, how: &str) {
    let id = holder.id();
    println!("{how}");
    match how {
        "closed" => drop(holder),
        "reset" => {
            // A socket that is closed with something unread in it is reset.
            holder.send(&["PING"]);
            wait_for("the reply", || holder.has_reply());
            drop(holder);
        }
        "half closed" => {
            holder.shut_writing();
            assert!(holder.is_closed());
        }
        "quit" => assert_eq!(holder.say("QUIT"), Reply::simple("OK")),
        "killed by itself" => {
            let killed = holder.ask(&["CLIENT", "KILL", "ID", &id.to_string(), "SKIPME", "no"]);
            assert_eq!(killed, Reply::Int(1));
        }
        "killed" => assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &id.to_string()]), Some(1)),
        "killed by its address" => {
            let shown: String = conn.get(&["CLIENT", "LIST", "ID", &id.to_string()]);
            let address = shown.split(' ').find_map(|field| field.strip_prefix("addr=")).unwrap().to_owned();
            conn.ok(&["CLIENT", "KILL", &address]);
        }
        "idle" => conn.ok(&["CONFIG", "SET", "timeout", "1"]),
        "evicted" => {
            conn.ok(&["CLIENT", "NO-EVICT", "on"]);
            conn.ok(&["CONFIG", "SET", "maxmemory-clients", "2mb"]);
            // It may be gone before it has sent all of it.
            holder.send_bytes(format!("*2\r\n$4\r\nECHO\r\n$9000000\r\n{}", "x".repeat(8 << 20)).as_bytes());
        }
        "too much output" => {
            conn.ok(&["CONFIG", "SET", "client-output-buffer-limit", "normal 100kb 0 0"]);
            // Of small pieces: the newest servers send large ones without copying them to the buffer.
            let fill = "for _ = 1, 10000 do redis.call('RPUSH', KEYS[1], ARGV[1]) end";
            conn.call(&["EVAL", fill, "1", "list", &"x".repeat(100)]).unwrap();
            for _ in 0..40 {
                holder.send_bytes(b"LRANGE list 0 -1\r\n");
            }
        }
        "no protocol" => holder.send_bytes(b"*x\r\n"),
        "its user is deleted" => assert_eq!(conn.int(&["ACL", "DELUSER", "user"]), Some(1)),
        other => panic!("no end: {other}"),
    }
    gone(conn, id);
    conn.ok(&["CONFIG", "SET", "timeout", "0"]);
    conn.ok(&["CONFIG", "SET", "maxmemory-clients", "0"]);
    conn.ok(&["CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0"]);
}

#[test]
fn a_hold_ends_with_its_connection_however_that_ends() {
    // One way that is not noticed would leave the lock to a client that is not there, for a whole lease.
    let (server, mut conn) = Server::connected();
    for (round, how) in ENDS.split(',').enumerate() {
        conn.ok(&USER);
        let mut holder = Connection::resp2(&server);
        assert_eq!(holder.say("AUTH user any"), Reply::simple("OK"));
        holder.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
        holder.say("LOCK.ACQUIRE k a");
        holder.say("LOCK.MACQUIRE 2 grace free a PX 600000 SESSION 300000");
        holder.say("LOCK.ACQUIRE unbound a PX 600000");
        let mut waiter = Connection::waiting(&server, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
        end(&mut conn, holder, how);
        assert!(waiter.read().int() > 0, "{how:?}");
        let hold = only_hold(&mut conn, "k");
        assert_eq!((hold.owner, hold.session, hold.client), (b"b".to_vec(), None, None), "{how:?}");
        let cut = only_hold(&mut conn, "grace");
        assert!(cut.ttl_ms <= 300_000 && cut.ttl_ms > 200_000, "{how:?}: {cut:?}");
        assert_eq!((cut.session, cut.client), (None, None), "{how:?}");
        assert!(only_hold(&mut conn, "unbound").ttl_ms > 400_000, "{how:?}");
        assert_eq!(conn.info_number("lock", "lock_sessions_closed"), round as u64 + 1, "{how:?}");
        assert_eq!(conn.info("lock", "lock_session_holds"), "0", "{how:?}");
        assert_eq!(lost(&mut conn), [("session".to_owned(), "a".to_owned())], "{how:?}");
        conn.ok(&["LOCK.LOG", "RESET"]);
        conn.ok(&["FLUSHALL"]);
    }
}

#[test]
fn a_hold_is_handed_on_without_waiting_for_a_tick() {
    // Found at the next tick only, it would be late by as much as ticks are apart: a second, here.
    const ROUNDS: u32 = 10;
    // Closed at once, or after the reply, when the server has done what it does before it sleeps.
    for how in ["closed", "killed", "killed by itself", "quit"] {
        let (server, mut conn) = Server::setup().option("hz", "1").option("dynamic-hz", "no").connected();
        let mut waiters: Vec<Connection> = (0..=ROUNDS).map(|_| Connection::resp2(&server)).collect();
        waiters[0].say("LOCK.ACQUIRE k w0 PX 600000 SESSION 0");
        for (number, waiter) in waiters.iter_mut().enumerate().skip(1) {
            waiter.send(&["LOCK.ACQUIRE", "k", &format!("w{number}"), "PX", "600000", "BLOCK", "0", "SESSION", "0"]);
            waiter.expect_blocked(&mut conn, "LOCK.ACQUIRE");
        }
        let mut took = Duration::ZERO;
        let mut longest = Duration::ZERO;
        for _ in 0..ROUNDS {
            let mut first = waiters.remove(0);
            let id = first.id().to_string();
            let start = Instant::now();
            // Nothing is sent after this, which would wake the server.
            match how {
                "closed" => drop(first),
                "quit" => first.send(&["QUIT"]),
                "killed by itself" => first.send(&["CLIENT", "KILL", "ID", &id, "SKIPME", "no"]),
                _ => conn.send(&["CLIENT", "KILL", "ID", &id]),
            }
            assert!(waiters[0].read().int() > 0);
            took += start.elapsed();
            longest = longest.max(start.elapsed());
        }
        println!("{how:?}: {ROUNDS} hand-offs in {took:?}, the longest {longest:?}");
        // Each in another tick they would take one second each.
        assert!(took < Duration::from_secs(u64::from(ROUNDS) / 2), "{how:?}: {took:?}");
    }
}

#[test]
fn what_is_left_after_the_connection_lapses_and_subscribers_learn_of_both() {
    // A lease that was cut in silence would let every client plan with the old one; and the log must say why it was
    // lost.
    let server = Server::setup().option("notify-keyspace-events", "EAd").start();
    let mut stage = Stage::new(&server);
    let mut subscriber = Connection::resp2(&server);
    stage.play(&[
        ("s: LOCK.ACQUIRE k a PX 600000 SESSION 30 NOTE mine", "#1"),
        ("b: LOCK.ACQUIRE k b PX 600000 BLOCK 0", "waits"),
    ]);
    subscriber.say("PSUBSCRIBE __keyevent@0__:*");
    let mut expect = |events: &[(&str, &str)]| {
        for (event, key) in events {
            let message = subscriber.read().items();
            assert_eq!(message[2..], [Reply::bulk(&format!("__keyevent@0__:{event}")), Reply::bulk(key)]);
        }
    };
    stage.leave("s");
    stage.play(&[("b:", "#2")]);
    expect(&[("lock.extend", "k"), ("lock.lapse", "k"), ("lock.acquire", "k")]);
    let mut conn = server.connect();
    assert_eq!(lost(&mut conn), [("session".to_owned(), "a".to_owned())]);
    let counted = ["lock_lapsed", "lock_released", "lock_extended", "lock_sessions_closed"];
    assert_eq!(counted.map(|field| conn.info_number("lock", field)), [1, 0, 0, 1]);

    // At once: released.
    stage.play(&[("t: LOCK.ACQUIRE l a PX 600000 SESSION 0", "#3"), ("c: LOCK.RW l c READ BLOCK 0", "waits")]);
    stage.leave("t");
    stage.play(&[("c:", "#4")]);
    expect(&[("lock.acquire", "l"), ("lock.wait", "l"), ("lock.release", "l"), ("lock.acquire", "l")]);
    assert_eq!(counted.map(|field| conn.info_number("lock", field)), [1, 1, 0, 2]);

    // A lease that ends before the grace does is not cut, so nothing is sent; nor of a connection without a hold bound
    // to it.
    stage.play(&[("u: LOCK.ACQUIRE m a PX 600000 SESSION 900000", "#5"), ("v: LOCK.ACQUIRE n a", "#6")]);
    expect(&[("lock.acquire", "m"), ("lock.acquire", "n")]);
    stage.leave("u");
    stage.leave("v");
    let hold = only_hold(&mut conn, "m");
    assert!(hold.ttl_ms > 400_000 && hold.session.is_none() && hold.client.is_none(), "{hold:?}");
    assert_eq!(counted.map(|field| conn.info_number("lock", field)), [1, 1, 0, 3]);
    // Broken by an operator it is not lost by its session.
    stage.play(&[("LOCK.BREAK m", "1")]);
    expect(&[("lock.break", "m")]);
    let reasons: Vec<String> = lost(&mut conn).into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, ["break", "session", "session"]);
}

#[test]
fn a_hold_is_bound_to_one_connection_at_most() {
    // Bound to two it would end with the wrong one; to none, with neither.
    let (server, mut conn) = Server::connected();
    // What the second connection sends, and whether the binding moves there.
    for (again, moves) in [
        ("LOCK.ACQUIRE k a", false),
        ("LOCK.ACQUIRE k a RETRY 1", false),
        ("LOCK.RW k a READ PX 600000 NOTE other", false),
        ("LOCK.MACQUIRE 2 j k a", false),
        ("LOCK.EXTEND k a PX 600000", false),
        ("LOCK.MEXTEND 2 j k a PX 600000", false),
        ("LOCK.RELEASE k a TO 1", false),
        ("LOCK.ACQUIRE k a SESSION 0", true),
        ("LOCK.ACQUIRE k a RETRY 1 SESSION 0", true),
        ("LOCK.RW k a READ SESSION 0", true),
        ("LOCK.MACQUIRE 2 j k a SESSION 0", true),
        ("LOCK.EXTEND k a PX 600000 SESSION 0", true),
        ("LOCK.MEXTEND 2 j k a PX 600000 SESSION 0", true),
    ] {
        let (mut first, mut second) = (Connection::resp2(&server), Connection::resp2(&server));
        first.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
        let reply = second.say(again);
        assert!(!matches!(reply, Reply::Error(_) | Reply::Null), "{again}: {reply:?}");
        let (bound, other) = if moves { (second, first) } else { (first, second) };
        assert_eq!(only_hold(&mut conn, "k").client, Some(bound.id()), "{again}");
        other.leave(&mut conn);
        let_it_turn(&mut conn);
        assert_eq!(only_hold(&mut conn, "k").client, Some(bound.id()), "{again}: ended with the wrong connection");
        bound.leave(&mut conn);
        assert!(conn.lock_info("k").is_none(), "{again}");
        wait_for("it to be ended", || conn.int(&["EXISTS", "k"]) == Some(0));
        conn.ok(&["FLUSHALL"]);
    }
}

/// Lets the server run a few turns of its event loop: what it does at the end of a turn is done.
fn let_it_turn(conn: &mut Client) {
    (0..3).for_each(|_| drop(conn.get::<String>(&["PING"])));
}

#[test]
fn a_client_that_comes_back_without_session_holds_on_unbound() {
    // What closed the old connection must not end what was extended since.
    let (server, mut conn) = Server::connected();
    for back in ["LOCK.EXTEND k a PX 600000", "LOCK.ACQUIRE k a PX 600000", "LOCK.ACQUIRE k a PX 600000 RETRY 1"] {
        let mut stage = Stage::new(&server);
        stage.play(&[("s: LOCK.ACQUIRE k a PX 600000 SESSION 60000", "#1")]);
        stage.leave("s");
        stage.play(&[("EXISTS k", "1")]);
        stage.play(&[(format!("t: {back}").leak(), "#1")]);
        let hold = only_hold(&mut conn, "k");
        assert!(hold.ttl_ms > 500_000 && hold.session.is_none() && hold.client.is_none(), "{back}: {hold:?}");
        stage.leave("t");
        let_it_tick(&mut conn);
        assert!(only_hold(&mut conn, "k").ttl_ms > 500_000, "{back}");
        // If its lease ends now, that is a lapse like any other.
        stage.play(&[("LOCK.EXTEND k a PX 1", "#1")]);
        wait_for("it to lapse", || conn.int(&["EXISTS", "k"]) == Some(0));
        assert_eq!(lost(&mut conn), [("lapse".to_owned(), "a".to_owned())], "{back}");
        conn.ok(&["LOCK.LOG", "RESET"]);
    }
}

#[test]
fn many_holds_of_one_connection_end_together_and_only_they() {
    // Readers beside each other, several databases, several owners, an own second hold.
    let (server, mut conn) = Server::connected();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("s: LOCK.RW k a READ PX 600000 SESSION 0", "#1"),
        ("s: LOCK.RW k b READ PX 600000 SESSION 0", "#2"),
        ("LOCK.RW k c READ PX 600000", "#3"),
        ("t: LOCK.RW k d READ PX 600000 SESSION 0", "#4"),
        ("s: LOCK.ACQUIRE l a SESSION 0", "#5"),
        ("s: SELECT 3", "OK"),
        ("s: LOCK.ACQUIRE k a PX 600000 SESSION 0", "#6"),
        ("s: LOCK.ACQUIRE unbound a PX 600000", "#7"),
        ("t: SELECT 3", "OK"),
        ("w: SELECT 3", "OK"),
        ("w: LOCK.ACQUIRE k b PX 600000 BLOCK 0", "waits"),
    ]);
    stage.leave("s");
    stage.play(&[("w:", "#8"), ("EXISTS l", "0")]);
    assert_eq!(holders(&mut conn, "k"), ["c", "d"]);
    conn.ok(&["SELECT", "3"]);
    assert_eq!(holders(&mut conn, "k"), ["b"]);
    assert_eq!(holders(&mut conn, "unbound"), ["a"]);
    assert_eq!(conn.info("lock", "lock_session_holds"), "1");
}

#[test]
fn in_a_transaction_the_hold_is_bound_to_its_sender() {
    // The server runs transactions as the client, or as something that stands for it.
    let (server, mut conn) = Server::connected();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("s: MULTI", "OK"),
        ("s: LOCK.ACQUIRE k a PX 600000 SESSION 0", "QUEUED"),
        ("s: LOCK.MACQUIRE 2 l m a PX 600000 SESSION 0", "QUEUED"),
        ("s: LOCK.EXTEND l a PX 600000 SESSION 5000", "QUEUED"),
        ("s: EXEC", "[#1 [#2 #3] #2]"),
    ]);
    let id = stage.waiter("s").id();
    for (key, grace) in [("k", 0), ("l", 5000), ("m", 0)] {
        let hold = only_hold(&mut conn, key);
        assert_eq!((hold.session, hold.client), (Some(grace), Some(id)), "{key}");
    }
    stage.leave("s");
    wait_for("them to be ended", || conn.int(&["EXISTS", "k", "m"]) == Some(0));
    assert!(only_hold(&mut conn, "l").ttl_ms <= 5000);
}

#[test]
fn what_is_no_end_of_a_connection_ends_nothing() {
    // The client is there, and goes on working in the belief that it holds the lock.
    let (server, mut conn) = Server::connected();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("s: LOCK.ACQUIRE k a PX 600000 SESSION 0", "#1"),
        ("LOCK.ACQUIRE l x PX 600000", "#2"),
        // Its other waits end in all ways.
        ("s: LOCK.ACQUIRE l a BLOCK 0 SESSION 0", "waits"),
        ("CLIENT UNBLOCK %s TIMEOUT", "1 | s: nil"),
        ("s: LOCK.ACQUIRE l a BLOCK 0 SESSION 0", "waits"),
        ("CLIENT UNBLOCK %s ERROR", "1 | s: UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ("s: BLPOP list 0", "waits"),
        ("CLIENT UNBLOCK %s ERROR", "1 | s: UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ("s: LOCK.ACQUIRE l a BLOCK 1 SESSION 0", "nil"),
        ("s: LOCK.ACQUIRE l a SESSION 0", "nil"),
        ("s: SELECT 5", "OK"),
        ("s: SWAPDB 5 6", "OK"),
        ("s: SELECT 0", "OK"),
        ("s: LOCK.ACQUIRE k", "ERR wrong number of arguments for 'lock.acquire' command"),
        ("s: MULTI", "OK"),
        ("s: DISCARD", "OK"),
        ("s: CLIENT SETNAME other", "OK"),
        ("s: RESET", "RESET"),
    ]);
    let_it_tick(&mut conn);
    let hold = only_hold(&mut conn, "k");
    assert_eq!((hold.session, hold.client), (Some(0), Some(stage.waiter("s").id())));
    assert_eq!(conn.info("lock", "lock_session_holds"), "1");
    assert_eq!(conn.info("lock", "lock_sessions_closed"), "0");
    stage.leave("s");
    assert!(conn.lock_info("k").is_none());
}

#[test]
fn with_io_threads_the_end_of_a_connection_is_found_as_well() {
    // There other threads read from the sockets, and learn first that one was closed.
    let mut setup = Server::setup().option("io-threads", "3");
    if Server::new()
        .connect()
        .call(&["CONFIG", "GET", "io-threads-do-reads"])
        .is_ok_and(|found| redis::from_redis_value::<Vec<String>>(found).is_ok_and(|pairs| !pairs.is_empty()))
    {
        setup = setup.option("io-threads-do-reads", "yes");
    }
    let server = setup.start();
    let mut conn = server.connect();
    // Enough at once for the threads to be put to work.
    let mut holders: Vec<Connection> = (0..100).map(|_| Connection::resp2(&server)).collect();
    for round in 0..3 {
        for (number, holder) in holders.iter_mut().enumerate() {
            holder.send(&["LOCK.ACQUIRE", &format!("k{number}"), "a", "PX", "600000", "SESSION", "0"]);
        }
        for holder in &mut holders {
            assert!(holder.read().int() > 0);
        }
        assert_eq!(conn.info("lock", "lock_session_holds"), "100", "round {round}");
        drop(std::mem::take(&mut holders));
        wait_for("all to be ended", || conn.info("lock", "lock_session_holds") == "0");
        assert_eq!(conn.get::<usize>(&["DBSIZE"]), 0);
        holders = (0..100).map(|_| Connection::resp2(&server)).collect();
    }
    assert_eq!(conn.info("lock", "lock_sessions_closed"), "300");
}
