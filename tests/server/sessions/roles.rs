//! Connections that close while the server may not write. It becomes a replica, hands over to another, is paused, lacks
//! replicas or a disk in order. Then the module ends nothing in the background; and nothing is forgotten.

use crate::harness::connection::{Connection, Reply};
use crate::harness::hold_back::HoldBack;
use crate::harness::state::{holders, let_it_tick, waiters};
use crate::harness::stream::Stream;
use crate::sessions::binding::{lost, only_hold};
use crate::waiting::roles::primary;
use std::time::{Duration, Instant};
use testbed::{Client, Server, Signal, wait_for};

/// Closes a connection with holds that have waiters while writes are held back, and sees that nothing ends. Then lets
/// writes flow, and sees that all is done as of the time of the close.
fn nothing_ends_during(server: &Server, hold_back: &HoldBack<'_>) {
    const GRACE: i64 = 20_000;
    let mut conn = server.connect();
    let mut holder = Connection::resp2(server);
    holder.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
    holder.say("LOCK.RW shared a READ PX 600000 SESSION 0");
    holder.say("LOCK.ACQUIRE brief a PX 600000 SESSION 1");
    holder.say(&format!("LOCK.ACQUIRE grace a PX 600000 SESSION {GRACE}"));
    let mut next = Connection::waiting(server, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    let mut after_brief = Connection::waiting(server, "LOCK.ACQUIRE brief b PX 600000 BLOCK 0");
    let mut writer = Connection::waiting(server, "LOCK.ACQUIRE shared w PX 600000 BLOCK 0");
    // It goes as well, while it waits: never to be granted anything.
    let ghost = Connection::waiting(server, "LOCK.ACQUIRE k ghost PX 600000 BLOCK 0 SESSION 0");
    hold_back.begin(&mut conn);
    let run = conn.info("server", "run_id");
    let granted = conn.info("lock", "lock_granted");
    let facts = server.aof_tail().len();

    [holder, ghost].into_iter().for_each(|client| client.leave(&mut conn));
    let closed = Instant::now();
    let_it_tick(&mut conn);
    assert_eq!(conn.info("lock", "lock_sessions_closed"), "1");
    assert_eq!(["lock_released", "lock_lapsed"].map(|field| conn.info_number("lock", field)), [0, 0]);
    assert_eq!(conn.info("lock", "lock_granted"), granted);
    assert_eq!(conn.int(&["EXISTS", "k", "shared", "brief", "grace"]), Some(4));
    assert!([&mut next, &mut writer, &mut after_brief].into_iter().all(|waiter| !waiter.has_reply()));
    assert_eq!(waiters(&mut conn), 3);
    assert_eq!(server.aof_tail().len(), facts, "sent while writes were held back");
    // It is shown as it is going to be.
    assert!(holders(&mut conn, "k").is_empty());
    assert_eq!(holders(&mut conn, "grace"), ["a"]);

    hold_back.end(&mut conn);
    for waiter in [&mut next, &mut writer, &mut after_brief] {
        assert!(waiter.read().int() > 0);
    }
    assert_eq!(holders(&mut conn, "k"), ["b"]);
    assert_eq!(holders(&mut conn, "shared"), ["w"]);
    wait_for("all to be ended", || conn.info("lock", "lock_session_holds") == "0");
    // In this order: at least so much had passed when the other was read.
    let since = i64::try_from(closed.elapsed().as_millis()).unwrap();
    let left = only_hold(&mut conn, "grace").ttl_ms;
    assert!(left <= GRACE - since + 1, "{left} ms are left {since} ms after the close: counted from later on");
    let rows = lost(&mut conn);
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(rows.iter().all(|row| *row == ("session".to_owned(), "a".to_owned())), "{rows:?}");
    assert_eq!(conn.info("server", "run_id"), run, "it has lived through it");
}

#[test]
fn nothing_ends_while_writes_are_paused() {
    // Replication during a pause aborts the server.
    let server = primary().start();
    let replica = Server::new();
    replica.follow(&server);
    nothing_ends_during(&server, &HoldBack::Pause);
    replica.catch_up(&server);
    assert_eq!(holders(&mut replica.connect(), "k"), ["b"]);
}

#[test]
fn nothing_ends_while_a_failover_is_under_way() {
    // The replica that takes over would not know of it.
    let (one, other) = (primary().start(), Server::new());
    other.follow(&one);
    nothing_ends_during(&one, &HoldBack::Failover(&one, &other));
    other.signal(Signal::CONT);
    other.catch_up(&one);
    assert_eq!(holders(&mut other.connect(), "k"), ["b"]);
}

#[test]
fn nothing_ends_without_the_replicas_that_are_asked_for() {
    // A client would be refused with NOREPLICAS: what is handed on now may be lost with this node.
    let server = primary().start();
    nothing_ends_during(&server, &HoldBack::Replicas);
}

#[test]
fn nothing_ends_while_the_disk_is_out_of_order() {
    // A client would be refused with MISCONF.
    let server = primary().start();
    let disk = HoldBack::disk(&server);
    nothing_ends_during(&server, &disk);
}

#[test]
fn a_connection_that_closes_while_everything_is_paused_is_found_afterwards() {
    // No command is served then; connections close all the same, and their end must not abort the server.
    let server = primary().start();
    let replica = Server::new();
    replica.follow(&server);
    let mut conn = server.connect();
    let mut holder = Connection::resp2(&server);
    holder.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
    let mut next = Connection::waiting(&server, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    let began = Instant::now();
    conn.ok(&["CLIENT", "PAUSE", "1000", "ALL"]);
    drop(holder);
    assert!(next.read().int() > 0);
    assert!(began.elapsed() >= Duration::from_millis(1000), "handed on during the pause");
    assert_eq!(conn.info("lock", "lock_sessions_closed"), "1");
    replica.catch_up(&server);
    assert_eq!(holders(&mut replica.connect(), "k"), ["b"]);
}

#[test]
fn on_a_primary_that_becomes_a_replica_holds_live_on_by_lease() {
    // The new primary does not know these connections; what the old one says about them would contradict it.
    let (one, other) = (primary().start(), primary().start());
    other.follow(&one);
    let mut holder = Connection::resp2(&one);
    holder.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
    holder.say("LOCK.ACQUIRE l a PX 600000 SESSION 1000");
    other.catch_up(&one);
    let (mut old, mut new) = (one.connect(), other.connect());
    new.ok(&["REPLICAOF", "NO", "ONE"]);
    old.ok(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    wait_for("the old primary to follow", || old.info("replication", "master_link_status") == "up");
    let facts = one.aof_tail().len();
    holder.leave(&mut old);
    let_it_tick(&mut old);
    assert_eq!(one.aof_tail().len(), facts, "a replica writes nothing of its own");
    assert_eq!(old.info("lock", "lock_session_holds"), "0");
    for conn in [&mut old, &mut new] {
        for key in ["k", "l"] {
            let hold = only_hold(conn, key);
            assert!(hold.ttl_ms > 400_000 && hold.session.is_none() && hold.client.is_none(), "{hold:?}");
        }
    }
    // Bound anew, there.
    let mut again = Connection::resp2(&other);
    again.say("LOCK.EXTEND k a PX 600000 SESSION 0");
    drop(again);
    wait_for("it to be ended", || new.int(&["EXISTS", "k"]) == Some(0));
}

#[test]
fn a_close_that_meets_the_demotion_sends_nothing() {
    // The work is left to the end of the turn, when this node is a replica already.
    for session in ["SESSION 0", "SESSION 600"] {
        let server = primary().start();
        let mut conn = server.connect();
        let mut holder = Connection::resp2(&server);
        holder.say(&format!("LOCK.ACQUIRE k a PX 600000 {session}"));
        let facts = server.aof_tail().len();
        let mut both = Connection::resp2(&server);
        both.send_bytes(format!("CLIENT KILL ID {}\r\nREPLICAOF 127.0.0.1 1\r\nPING\r\n", holder.id()).as_bytes());
        assert_eq!(both.read(), Reply::Int(1));
        let_it_tick(&mut conn);
        assert_eq!(server.aof_tail().len(), facts, "{session}");
        assert!(only_hold(&mut conn, "k").ttl_ms > 400_000, "{session}");
        // Nor later, when it is primary again.
        conn.ok(&["REPLICAOF", "NO", "ONE"]);
        let_it_tick(&mut conn);
        assert!(only_hold(&mut conn, "k").ttl_ms > 400_000, "{session}");
        assert_eq!(server.aof_tail().len(), facts, "{session}");
    }
}

#[test]
fn a_client_that_stays_through_a_demotion_and_back_has_what_it_bound_since() {
    // Its number is the same in both times. What lives on by lease must not end with what is bound now, and what it
    // binds once more must be bound.
    let server = primary().start();
    let mut conn = server.connect();
    let mut holder = Connection::resp2(&server);
    for key in ["old", "renamed", "again", "extended", "released"] {
        holder.say(&format!("LOCK.ACQUIRE {key} a PX 600000 SESSION 0"));
        holder.say(&format!("LOCK.ACQUIRE {key} a"));
    }
    conn.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
    let bound = |conn: &mut Client, key: &str| only_hold(conn, key).client;
    assert_eq!(bound(&mut conn, "old"), None);
    holder.say("LOCK.ACQUIRE again a PX 600000 SESSION 0");
    holder.say("LOCK.EXTEND extended a PX 600000 SESSION 0");
    assert_eq!(holder.say("LOCK.RELEASE released a"), Reply::Int(1));
    conn.ok(&["RENAME", "renamed", "new"]);
    for (key, id) in [("again", Some(holder.id())), ("extended", Some(holder.id())), ("released", None), ("new", None)]
    {
        assert_eq!(bound(&mut conn, key), id, "{key}");
    }
    assert_eq!(conn.info("lock", "lock_session_holds"), "2");
    // Requests in the turn of the close are the first to be confused.
    let mut pipe = Connection::resp2(&server);
    let kill = holder.kill();
    pipe.send_bytes(
        format!("{kill}\r\nLOCK.ACQUIRE old b\r\nLOCK.ACQUIRE again b\r\nLOCK.ACQUIRE new b\r\n").as_bytes(),
    );
    assert_eq!(pipe.read(), Reply::Int(1));
    assert_eq!(pipe.read(), Reply::Null, "held by lease");
    assert!(pipe.read().int() > 0);
    assert_eq!(pipe.read(), Reply::Null, "held by lease");
    wait_for("the rest to be ended", || conn.int(&["EXISTS", "extended"]) == Some(0));
    let_it_tick(&mut conn);
    for key in ["old", "released", "new"] {
        assert!(only_hold(&mut conn, key).ttl_ms > 400_000, "{key}");
    }
}

#[test]
fn a_server_that_ends_does_not_end_holds() {
    // Clients are disconnected then, all of them: they come back to the next one, and hold on there by lease.
    let server = primary().start();
    let mut stream = Stream::of(&server);
    let mut holder = Connection::resp2(&server);
    holder.say("LOCK.ACQUIRE k a PX 600000 SESSION 0");
    assert_eq!(stream.commands(&server).len(), 1);
    let mut server = server;
    server.stop(false);
    assert!(holder.is_closed());
    server.start();
    let file = server.aof_tail();
    assert_eq!(file.iter().filter(|command| command[0] == "LOCK.HOLD").count(), 1, "{file:?}");
    assert_eq!(holders(&mut server.connect(), "k"), ["a"]);
}
