//! Those who wait while the server may not write: it becomes a replica, hands over to another, is paused, lacks
//! replicas or a disk in order. Nothing is granted then, whatever ends; and nobody is forgotten.

use crate::harness::parked::{End, Parked, holders, let_it_tick, nobody_waits, waiters};
use crate::harness::servers::not_run;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testbed::{Client, PATIENCE, Server, Setup, Signal, wait_for};

const REPLICA_NOW: &str = "UNBLOCKED lock wait ended: this node is a replica now";

fn primary() -> Setup {
    Server::setup().option("repl-diskless-sync-delay", "0").option("appendonly", "yes")
}

/// Sent away by us or by the server itself, with or without its connection.
fn assert_sent_away(waiter: &mut Parked, how: &str) {
    match waiter.end() {
        End::Error(text) => {
            let servers =
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
            assert!(text == REPLICA_NOW || text == servers, "{how}: {text}");
        }
        End::Closed => {}
        other => panic!("{how}: {other:?}"),
    }
}

/// Somebody holds `k`, others wait; also readers of `shared` behind a writer who waits.
struct Crowd {
    writers: Vec<Parked>,
    /// Waits for `shared`, which is held for reading.
    writer: Parked,
    readers: Vec<Parked>,
}

impl Crowd {
    fn gather(server: &Server, lease_ms: u64) -> Crowd {
        let mut conn = server.connect();
        conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", &lease_ms.to_string()]).unwrap();
        conn.int(&["LOCK.RW", "shared", "a", "READ", "PX", "600000"]).unwrap();
        let wait = |command: String| Parked::wait(server, &command);
        Crowd {
            writers: (0..5).map(|number| wait(format!("LOCK.ACQUIRE k w{number} PX 600000 BLOCK 0"))).collect(),
            writer: wait("LOCK.ACQUIRE shared w PX 600000 BLOCK 0".to_owned()),
            readers: (0..5)
                .map(|number| wait(format!("LOCK.RW shared r{number} READ PX 600000 BLOCK 600000")))
                .collect(),
        }
    }

    fn everybody(&mut self) -> impl Iterator<Item = &mut Parked> {
        self.writers.iter_mut().chain([&mut self.writer]).chain(&mut self.readers)
    }
}

#[test]
fn who_waits_on_a_primary_that_becomes_a_replica_is_sent_away() {
    // It would wait for a grant that only the new primary can make, or be given one that the new primary knows not of.
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

        // Back again: nobody of those is in line, and a new line is served.
        conn.ok(&["REPLICAOF", "NO", "ONE"]);
        let mut next = Parked::wait(&server, "LOCK.ACQUIRE k x PX 600000 BLOCK 0");
        assert_eq!(waiters(&mut conn), 1);
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
        next.only_end().fence();
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
        let mut both = Parked::connect(&server, 0);
        both.send_bytes(format!("{free}\r\nREPLICAOF 127.0.0.1 1\r\nPING\r\n").as_bytes());
        let mut granted = 0;
        for waiter in crowd.everybody() {
            match waiter.end() {
                End::Int(_) => granted += 1,
                End::Error(text) => assert!(text.starts_with("UNBLOCKED"), "{free}: {text}"),
                End::Closed => {}
                End::Null => panic!("{free}: not granted, though time was left"),
            }
        }
        // One of each line: FLUSHALL may let go of its own client later, and of the rest of what it has sent.
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

/// Has a replica that hangs and lags, so that a failover to it cannot end.
pub(crate) fn start_failover(primary: &Server, replica: &Server) {
    let mut conn = primary.connect();
    replica.signal(Signal::STOP);
    conn.ok(&["SET", "unseen", "x"]);
    conn.ok(&["FAILOVER"]);
    assert_eq!(conn.info("replication", "master_failover_state"), "waiting-for-sync");
}

/// Lets everything happen that may free a lock while writes are held back, and sees that nobody is let in; then lets
/// writes flow, and sees that all are served in order.
fn nothing_is_granted_until(server: &Server, hold_back: impl FnOnce(&mut Client), let_flow: impl FnOnce(&mut Client)) {
    let mut conn = server.connect();
    let holder = Parked::connect(server, 0);
    let mut crowd = Crowd::gather(server, 6000);
    let mut short = Parked::wait(server, "LOCK.ACQUIRE shared t PX 600000 BLOCK 6000");
    let held = Instant::now();
    hold_back(&mut conn);
    assert!(held.elapsed() < Duration::from_millis(4000), "the machine is too slow for this test");
    let granted = conn.info("lock", "lock_granted");
    let run = conn.info("server", "run_id");

    // The writer goes who keeps the readers from coming in; so do a waiter in the middle, by its own will, and somebody
    // who holds.
    assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &crowd.writer.id]), Some(1));
    assert_eq!(crowd.writer.end(), End::Closed);
    drop(crowd.writers.remove(2));
    assert_eq!(conn.int(&["CLIENT", "KILL", "ID", &holder.id]), Some(1));
    assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &crowd.readers[4].id, "TIMEOUT"]), Some(1));
    assert_eq!(crowd.readers[4].only_end(), End::Null);
    assert_eq!(conn.int(&["CLIENT", "UNBLOCK", &crowd.readers[3].id, "ERROR"]), Some(1));
    assert_eq!(crowd.readers[3].only_end(), End::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".to_owned()));
    // The time of one is up, and the lease of `k` with it.
    assert_eq!(short.end(), End::Null, "time-outs are answered");
    wait_for("the lease to be over", || holders(&mut conn, "k").is_empty());
    wait_for("those who went to be out of line", || waiters(&mut conn) == 7);
    let_it_tick(&mut conn);
    assert_eq!(conn.info("lock", "lock_granted"), granted);
    assert_eq!(conn.info("lock", "lock_lapsed"), "0");
    assert!(crowd.writers.iter_mut().all(Parked::is_waiting));
    assert!(crowd.readers[..3].iter_mut().all(Parked::is_waiting));
    assert_eq!(waiters(&mut conn), 7);

    let_flow(&mut conn);
    for reader in &mut crowd.readers[..3] {
        reader.only_end().fence();
    }
    for (waiter, owner) in crowd.writers.iter_mut().zip(["w0", "w1", "w3", "w4"]) {
        waiter.only_end().fence();
        assert_eq!(conn.int(&["LOCK.RELEASE", "k", owner]), Some(0));
    }
    nobody_waits(&mut conn);
    assert_eq!(holders(&mut conn, "shared"), ["a", "r0", "r1", "r2"]);
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
    assert_eq!(conn.info("server", "run_id"), run, "it has lived through it");
}

#[test]
fn nobody_is_let_in_while_clients_are_paused() {
    // What is replicated during a pause aborts the server.
    let server = primary().start();
    nothing_is_granted_until(
        &server,
        |conn| conn.ok(&["CLIENT", "PAUSE", "600000", "WRITE"]),
        |conn| conn.ok(&["CLIENT", "UNPAUSE"]),
    );
}

#[test]
fn nobody_is_let_in_while_a_failover_is_under_way() {
    // The replica that takes over would not know of the grant.
    let (one, other) = (primary().start(), Server::new());
    other.follow(&one);
    nothing_is_granted_until(&one, |_| start_failover(&one, &other), |conn| conn.ok(&["FAILOVER", "ABORT"]));
    other.signal(Signal::CONT);
    other.catch_up(&one);
    assert_eq!(holders(&mut other.connect(), "shared"), ["a", "r0", "r1", "r2"]);
}

#[test]
fn nobody_is_let_in_without_the_replicas_that_are_asked_for() {
    // A client would be refused with NOREPLICAS: what is granted now may be lost with this node.
    let server = primary().start();
    nothing_is_granted_until(
        &server,
        |conn| {
            conn.ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
            assert!(conn.error(&["LOCK.ACQUIRE", "x", "a"]).starts_with("NOREPLICAS"));
        },
        |conn| conn.ok(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
    );
}

/// Has failed to save, which holds nothing back yet. What is in the way of the next save.
pub(crate) fn fail_to_save(server: &Server, conn: &mut Client) -> PathBuf {
    // A directory in place of the dump: writing it fails, for root as well.
    let dump = server.dir().join("dump.rdb");
    fs::create_dir(&dump).unwrap();
    conn.ok(&["CONFIG", "SET", "save", "3600 1000000"]);
    conn.ok(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    save(conn, "err");
    dump
}

/// Saves, which ends like this.
pub(crate) fn save(conn: &mut Client, expected: &str) {
    conn.get::<String>(&["BGSAVE"]);
    wait_for("the save to end", || {
        conn.info("persistence", "rdb_bgsave_in_progress") == "0"
            && conn.info("persistence", "rdb_last_bgsave_status") == expected
    });
}

#[test]
fn nobody_is_let_in_while_the_disk_is_out_of_order() {
    // A client would be refused with MISCONF.
    let server = primary().start();
    let dump = fail_to_save(&server, &mut server.connect());
    nothing_is_granted_until(
        &server,
        |conn| {
            conn.ok(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
            assert!(conn.error(&["LOCK.ACQUIRE", "x", "a"]).starts_with("MISCONF"));
        },
        |conn| {
            fs::remove_dir(&dump).unwrap();
            save(conn, "ok");
        },
    );
}

#[test]
fn while_everything_is_paused_time_outs_are_answered_and_nobody_is_let_in() {
    // No command is served, so that only time and connections that close can end anything.
    let server = primary().start();
    let mut conn = server.connect();
    let mut crowd = Crowd::gather(&server, 4000);
    let mut short = Parked::wait(&server, "LOCK.ACQUIRE k t BLOCK 4000");
    let (mut paused, began) = (Parked::connect(&server, 0), Instant::now());
    conn.ok(&["CLIENT", "PAUSE", "9000", "ALL"]);
    paused.send("LOCK.ACQUIRE other x");
    drop(crowd.writers.remove(0));
    let Crowd { mut writers, writer, mut readers } = crowd;
    drop(writer);
    assert_eq!(short.end(), End::Null);
    assert!(paused.is_waiting(), "only after the pause");
    loop {
        let waits = writers.iter_mut().chain(&mut readers).all(Parked::is_waiting);
        // Looked at before the clock: whatever was seen, was seen during the pause.
        if began.elapsed() >= Duration::from_millis(9000) {
            break;
        }
        assert!(waits, "let in during the pause");
        std::thread::sleep(Duration::from_millis(10));
    }
    paused.end().fence();
    writers[0].only_end().fence();
    for reader in &mut readers {
        reader.only_end().fence();
    }
    assert!(writers[1].is_waiting());
    assert_eq!(holders(&mut conn, "k"), ["w1"]);
}

#[test]
fn a_failover_sends_everybody_away_and_the_new_primary_keeps_the_holds() {
    // Between the end of the pause and the demotion somebody could be let in.
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
    let mut next = Parked::wait(&other, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    assert_eq!(new.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    next.only_end().fence();
    assert!(one.log().lines().all(|line| !line.contains("crashed by signal")));
}

#[test]
fn a_replica_lets_nobody_wait() {
    // A replica that may be written to would keep a line of its own.
    let (one, other) = (primary().start(), Server::setup().option("replica-read-only", "no").start());
    other.follow(&one);
    one.connect().int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    other.catch_up(&one);
    let mut conn = other.connect();
    conn.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let refused = conn.error(&["LOCK.ACQUIRE", "k", "b", "BLOCK", "0"]);
    assert_eq!(refused, "READONLY locks are granted by the primary only");
    assert_eq!(waiters(&mut conn), 0);
}

#[test]
fn a_client_that_follows_redirections_is_sent_away_like_all_others() {
    // Valkey does not end the waits of those who have said that they go where they are sent.
    if not_run("waiting::roles::a_client_that_follows_redirections_is_sent_away_like_all_others") {
        return;
    }
    let server = primary().start();
    let mut conn = server.connect();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).unwrap();
    conn.ok(&["CLIENT", "CAPA", "REDIRECT"]);
    let mut before = server.connect();
    let mut waiter = Parked::connect(&server, 0);
    waiter.send("EVAL return(1) 0\r\nCLIENT CAPA REDIRECT\r\nLOCK.ACQUIRE k b PX 600000 BLOCK 0");
    assert_eq!(waiter.end(), End::Int(1));
    assert_eq!(waiter.status().as_deref(), Some("+OK"));
    wait_for("it to be in line", || waiters(&mut before) == 1);
    before.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    let end = waiter.end();
    assert!(end == End::Closed || ["UNBLOCKED", "REDIRECT"].contains(&end.code()), "{end:?}");
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
    let mut waiter = Parked::wait(&one, "LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    // In one turn, so that the grant is lost, and the pause puts off that it is taken back.
    let mut turn = Parked::connect(&one, 0);
    let commands = format!("LOCK.RELEASE k a\r\nCLIENT UNBLOCK {} ERROR\r\nCLIENT PAUSE 600000 WRITE\r\n", waiter.id);
    turn.send_bytes(commands.as_bytes());
    assert_eq!((turn.end(), turn.end()), (End::Int(0), End::Int(1)));
    assert_eq!(waiter.end().code(), "UNBLOCKED");
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
