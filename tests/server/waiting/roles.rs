//! Waiters while the server may not write. It becomes a replica, hands over to another, is paused, lacks replicas or a
//! disk in order. Nothing is granted then, whatever ends; and no waiter is forgotten.

use crate::harness::connection::{Connection, Reply};
use crate::harness::hold_back::HoldBack;
use crate::harness::servers::not_run;
use crate::harness::state::{holders, let_it_tick, nobody_waits, waiters};
use crate::harness::texts::UNBLOCKED;
use std::time::{Duration, Instant};
use testbed::{Server, Setup, Signal, wait_for};

const REPLICA_NOW: &str = "UNBLOCKED lock wait ended: this node is a replica now";

pub(crate) fn primary() -> Setup {
    Server::setup().option("appendonly", "yes")
}

/// The wait is ended by us or by the server itself, with or without the connection.
fn assert_sent_away(waiter: &mut Connection, how: &str) {
    match waiter.read() {
        Reply::Error(text) => {
            let servers =
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
            assert!(text == REPLICA_NOW || text == servers, "{how}: {text}");
        }
        Reply::Closed => {}
        other => panic!("{how}: {other:?}"),
    }
}

/// A client holds `k`, others wait; also readers of `shared` behind a writer that waits.
struct Crowd {
    writers: Vec<Connection>,
    /// Waits for `shared`, which is held for reading.
    writer: Connection,
    readers: Vec<Connection>,
}

impl Crowd {
    fn gather(server: &Server, lease_ms: u64) -> Crowd {
        let mut conn = server.connect();
        conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", &lease_ms.to_string()]).unwrap();
        conn.int(&["LOCK.RW", "shared", "a", "READ", "PX", "600000"]).unwrap();
        let wait = |command: String| Connection::waiting(server, &command);
        Crowd {
            writers: (0..5).map(|number| wait(format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0"))).collect(),
            writer: wait("LOCK.ACQUIRE shared w PX 600000 BLOCK 0".to_owned()),
            readers: (0..5)
                .map(|number| wait(format!("LOCK.RW shared r{number} READ PX 600000 BLOCK 600000")))
                .collect(),
        }
    }

    fn everybody(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.writers.iter_mut().chain([&mut self.writer]).chain(&mut self.readers)
    }
}

#[test]
fn a_waiter_on_a_primary_that_becomes_a_replica_is_redirected() {
    // It would wait for a grant that only the new primary can make, or get one that the new primary does not know.
    let server = primary().start();
    let mut conn = server.connect();
    for round in 0..2 {
        let mut crowd = Crowd::gather(&server, 600_000);
        let granted = conn.info("lock", "lock_granted");
        conn.ok(&["REPLICAOF", "127.0.0.1", "1"]);
        for waiter in crowd.everybody() {
            assert_sent_away(waiter, &format!("round {round}"));
        }
        nobody_waits(&mut conn);
        let_it_tick(&mut conn);
        assert_eq!(conn.info("lock", "lock_granted"), granted);
        assert_eq!(conn.info("clients", "blocked_clients"), "0");
        assert_eq!(holders(&mut conn, "k"), ["a"]);
        let late = server.connect().error(&["LOCK.ACQUIRE", "k", "x", "BLOCK", "0"]);
        assert!(late.starts_with("READONLY"), "{late}");

        // Back again: none of those is in the queue, and a new queue is served.
        conn.ok(&["REPLICAOF", "NO", "ONE"]);
        let mut next = Connection::waiting(&server, "LOCK.ACQUIRE k x PX 600000 BLOCK 0");
        assert_eq!(waiters(&mut conn), 1);
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
        next.only_reply().int();
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "x"]), Some(0));
        assert_eq!(conn.int(&["LOCK.RELEASE", "shared", "a", "ALL"]), Some(0));
    }
}

#[test]
fn a_grant_that_meets_the_demotion_is_not_made_twice_nor_after_it() {
    // What frees the lock and what makes this a replica are served in the same turn of the server.
    for free in ["LOCK.RELEASE k a", "DEL k", "FLUSHALL", "RENAME k l"] {
        let server = primary().start();
        let mut conn = server.connect();
        let mut crowd = Crowd::gather(&server, 600_000);
        let mut both = Connection::resp2(&server);
        both.send_bytes(format!("{free}\r\nREPLICAOF 127.0.0.1 1\r\nPING\r\n").as_bytes());
        let mut granted = 0;
        for waiter in crowd.everybody() {
            match waiter.read() {
                Reply::Int(_) => granted += 1,
                Reply::Error(text) => assert!(text.starts_with("UNBLOCKED"), "{free}: {text}"),
                Reply::Closed => {}
                other => panic!("{free}: not granted, though time was left: {other:?}"),
            }
        }
        // One of each queue: FLUSHALL may unblock its own client later, and so the rest of what it has sent.
        assert!(granted <= if free == "FLUSHALL" { 2 } else { 1 }, "{free}: {granted} were granted");
        nobody_waits(&mut conn);
        let_it_tick(&mut conn);
        assert_eq!(conn.info("clients", "blocked_clients"), "0", "{free}");
        // And nothing is left over for the time when it is primary again.
        conn.ok(&["REPLICAOF", "NO", "ONE"]);
        let before = conn.info("lock", "lock_granted");
        let_it_tick(&mut conn);
        assert_eq!(conn.info("lock", "lock_granted"), before, "{free}");
    }
}

/// Lets everything happen that may free a lock while writes are held back, and sees that no waiter is granted. Then
/// lets writes flow, and sees that all are served in order.
fn nothing_is_granted_during(server: &Server, hold_back: &HoldBack<'_>) {
    let mut conn = server.connect();
    let holder = Connection::resp2(server);
    let mut crowd = Crowd::gather(server, 6000);
    conn.ok(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    conn.int(&["LOCK.ACQUIRE", "volatile", "a", "PX", "600000"]).unwrap();
    let mut volatile = Connection::waiting(server, "LOCK.ACQUIRE volatile v PX 600000 BLOCK 0");
    conn.int(&["PEXPIRE", "volatile", "6000"]);
    let mut short = Connection::waiting(server, "LOCK.ACQUIRE shared t PX 600000 BLOCK 6000");
    let held = Instant::now();
    hold_back.begin(&mut conn);
    assert!(held.elapsed() < Duration::from_millis(4000), "the machine is too slow for this test");
    let granted = conn.info("lock", "lock_granted");
    let run = conn.info("server", "run_id");

    // The writer that blocks the readers goes; so do a waiter in the middle, by its own will, and a holder.
    assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &crowd.writer.id().to_string()]), Some(1));
    assert_eq!(crowd.writer.read(), Reply::Closed);
    drop(crowd.writers.remove(2));
    assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &holder.id().to_string()]), Some(1));
    assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &crowd.readers[4].id().to_string(), "TIMEOUT"]), Some(1));
    assert_eq!(crowd.readers[4].only_reply(), Reply::Null);
    assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &crowd.readers[3].id().to_string(), "ERROR"]), Some(1));
    assert_eq!(crowd.readers[3].only_reply(), Reply::error(UNBLOCKED));
    // The timeout of one has passed, and the lease of `k` and the time to live of `volatile` with it.
    assert_eq!(short.read(), Reply::Null, "timeouts are answered");
    wait_for("the lease to be over", || holders(&mut conn, "k").is_empty());
    wait_for("those who went to be out of line", || waiters(&mut conn) == 8);
    let_it_tick(&mut conn);
    assert_eq!(conn.info("lock", "lock_granted"), granted);
    assert_eq!(conn.info("lock", "lock_lapsed"), "0");
    assert!(crowd.writers.iter_mut().all(Connection::is_waiting));
    assert!(crowd.readers[..3].iter_mut().all(Connection::is_waiting));
    volatile.assert_waiting();
    assert_eq!(waiters(&mut conn), 8);

    hold_back.end(&mut conn);
    for reader in &mut crowd.readers[..3] {
        reader.only_reply().int();
    }
    for (waiter, owner) in crowd.writers.iter_mut().zip(["w0", "w1", "w3", "w4"]) {
        waiter.only_reply().int();
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", owner]), Some(0));
    }
    volatile.only_reply().int();
    nobody_waits(&mut conn);
    assert_eq!(holders(&mut conn, "shared"), ["a", "r0", "r1", "r2"]);
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
    assert_eq!(conn.info("server", "run_id"), run, "it has lived through it");
}

#[test]
fn no_waiter_is_granted_while_clients_are_paused() {
    // Replication during a pause aborts the server.
    let server = primary().start();
    nothing_is_granted_during(&server, &HoldBack::Pause);
}

#[test]
fn no_waiter_is_granted_while_a_failover_is_under_way() {
    // The replica that takes over would not know of the grant.
    let (one, other) = (primary().start(), Server::new());
    other.follow(&one);
    nothing_is_granted_during(&one, &HoldBack::Failover(&one, &other));
    other.signal(Signal::CONT);
    other.catch_up(&one);
    assert_eq!(holders(&mut other.connect(), "shared"), ["a", "r0", "r1", "r2"]);
}

#[test]
fn no_waiter_is_granted_without_the_replicas_that_are_asked_for() {
    // A client would be refused with NOREPLICAS: what is granted now may be lost with this node.
    let server = primary().start();
    nothing_is_granted_during(&server, &HoldBack::Replicas);
}

#[test]
fn no_waiter_is_granted_while_the_disk_is_out_of_order() {
    // A client would be refused with MISCONF.
    let server = primary().start();
    let disk = HoldBack::disk(&server);
    nothing_is_granted_during(&server, &disk);
}

#[test]
fn while_everything_is_paused_timeouts_are_answered_and_no_waiter_is_granted() {
    // No command is served, so that only time and connections that close can end anything.
    let server = primary().start();
    let mut conn = server.connect();
    let mut crowd = Crowd::gather(&server, 4000);
    let mut short = Connection::waiting(&server, "LOCK.ACQUIRE k t BLOCK 4000");
    let (mut paused, began) = (Connection::resp2(&server), Instant::now());
    conn.ok(&["CLIENT", "PAUSE", "9000", "ALL"]);
    paused.send_line("LOCK.ACQUIRE other x");
    drop(crowd.writers.remove(0));
    let Crowd { mut writers, writer, mut readers } = crowd;
    drop(writer);
    assert_eq!(short.read(), Reply::Null);
    assert!(paused.is_waiting(), "only after the pause");
    loop {
        let waits = writers.iter_mut().chain(&mut readers).all(Connection::is_waiting);
        // Read before the clock: whatever was seen, was seen during the pause.
        if began.elapsed() >= Duration::from_millis(9000) {
            break;
        }
        assert!(waits, "let in during the pause");
        std::thread::sleep(Duration::from_millis(10));
    }
    paused.read().int();
    writers[0].only_reply().int();
    for reader in &mut readers {
        reader.only_reply().int();
    }
    assert!(writers[1].is_waiting());
    assert_eq!(holders(&mut conn, "k"), ["w1"]);
}

#[test]
fn a_failover_sends_everybody_away_and_the_new_primary_keeps_the_holds() {
    // Between the end of the pause and the demotion a waiter could be granted.
    let (one, other) = (primary().start(), primary().start());
    other.follow(&one);
    let (mut old, mut new) = (one.connect(), other.connect());
    let mut crowd = Crowd::gather(&one, 600_000);
    let granted = old.info("lock", "lock_granted");
    other.catch_up(&one);
    old.ok(&["FAILOVER"]);
    for waiter in crowd.everybody() {
        assert_sent_away(waiter, "failover");
    }
    wait_for("the other to be primary", || new.info("replication", "role") == "master");
    assert_eq!(old.info("lock", "lock_granted"), granted);
    assert_eq!(waiters(&mut old), 0);
    assert_eq!(holders(&mut new, "k"), ["a"]);
    let mut next = Connection::waiting(&other, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    assert_eq!(new.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    next.only_reply().int();
    assert!(one.log().lines().all(|line| !line.contains("crashed by signal")));
}

#[test]
fn a_client_that_follows_redirections_is_sent_away_like_all_others() {
    // Valkey does not end the waits of clients that have said that they follow redirects.
    if not_run("waiting::roles::a_client_that_follows_redirections_is_sent_away_like_all_others") {
        return;
    }
    let server = primary().start();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    conn.ok(&["CLIENT", "CAPA", "REDIRECT"]);
    let mut before = server.connect();
    let mut waiter = Connection::resp2(&server);
    waiter.send_line("EVAL return(1) 0\r\nCLIENT CAPA REDIRECT\r\nLOCK.ACQUIRE k b PX 600000 BLOCK 0");
    assert_eq!(waiter.read(), Reply::Int(1));
    assert_eq!(waiter.read(), Reply::simple("OK"));
    wait_for("it to be in line", || waiters(&mut before) == 1);
    before.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    let end = waiter.read();
    assert!(end == Reply::Closed || ["UNBLOCKED", "REDIRECT"].contains(&end.code()), "{end:?}");
    nobody_waits(&mut before);
    assert_eq!(holders(&mut before, "k"), ["a"]);
}

#[test]
fn a_lost_grant_is_not_taken_back_after_a_time_as_a_replica() {
    // Its owner has come back to the new primary meanwhile and works on with what it was granted.
    let (one, other) = (primary().start(), primary().start());
    other.follow(&one);
    let (mut old, mut new) = (one.connect(), other.connect());
    old.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    let mut waiter = Connection::waiting(&one, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    // In one turn, so that the grant is lost, and the pause puts off its rollback.
    let mut turn = Connection::resp2(&one);
    let commands = format!("LOCK.RELEASE k a\r\nCLIENT UNBLOCK {} ERROR\r\nCLIENT PAUSE 600000 WRITE\r\n", waiter.id());
    turn.send_bytes(commands.as_bytes());
    assert_eq!((turn.read(), turn.read()), (Reply::Int(0), Reply::Int(1)));
    assert_eq!(waiter.read().code(), "UNBLOCKED");
    other.catch_up(&one);
    assert_eq!(holders(&mut old, "k"), ["w"], "not yet taken back");

    new.ok(&["REPLICAOF", "NO", "ONE"]);
    new.int(&["LOCK.EXTEND", "k", "w", "PX", "600000"]).expect("replicas know of it");
    old.ok(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    // The pause would hold back what replicates to it as well.
    old.ok(&["CLIENT", "UNPAUSE"]);
    wait_for("the replica to be in sync", || old.info("replication", "master_link_status") == "up");
    one.catch_up(&other);
    old.ok(&["REPLICAOF", "NO", "ONE"]);
    let_it_tick(&mut old);
    assert_eq!(holders(&mut old, "k"), ["w"]);
}
