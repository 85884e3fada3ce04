//! How shares end otherwise than by RELEASE, and where they are kept.

use crate::harness::connection::Connection;
use crate::harness::transcript::Stage;
use crate::harness::turn::{Way, turn};
use testbed::{Server, wait_for};

#[test]
fn shares_end_with_their_session() {
    let mut stage = Stage::alone();
    stage.play(&[
        ("a: LOCK.SHARE k a 3 TAKE 3 SESSION 0", "#1"),
        ("c: LOCK.SHARE k c 3 BLOCK 0", "waits"),
        ("d: LOCK.SHARE k d 3 TAKE 2 BLOCK 0", "waits"),
    ]);
    stage.leave("a");
    stage.play(&[("c:", "#2"), ("d:", "#3")]);
}

#[test]
fn shares_whose_client_was_killed_before_it_was_told_are_taken_back_all_of_them() {
    // What could go wrong: one count is taken back, as of any other grant, and the rest holds the limit for a lease.
    let (server, mut conn) = Server::connected();
    let mut stage = Stage::new(&server);
    stage.play(&[("LOCK.SHARE k a 3 TAKE 3 PX 600000", "#1")]);
    let killed = Connection::waiting(&server, "LOCK.SHARE k b 3 TAKE 3 PX 600000 BLOCK 0");
    stage.play(&[("c: LOCK.SHARE k c 3 TAKE 2 BLOCK 0", "waits")]);
    // Both in one turn: the grant comes before its client goes.
    turn(&server, Way::Exec, &["LOCK.RELEASE k a ALL", &killed.kill()]);
    stage.until("lock_taken_back", 1);
    wait_for("the next to be served", || conn.lock_info("k").is_some_and(|info| info.holders[0].owner == b"c"));
    assert_eq!(conn.lock_info("k").unwrap().holders[0].reads, 2);
}

#[test]
fn shares_outlive_a_restart_and_are_those_of_the_next_primary() {
    let server = Server::setup().option("appendonly", "yes").start();
    let replica = Server::new();
    replica.connect().ok(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let mut conn = server.connect();
    let fence = conn.int(&["LOCK.SHARE", "k", "a", "3", "TAKE", "2", "PX", "600000"]).unwrap();
    conn.int(&["LOCK.SHARE", "k", "b", "3", "PX", "600000"]).unwrap();
    assert_eq!(conn.int(&["LOCK.RELEASE", "k", "a"]), Some(1));
    let mut other = replica.connect();
    wait_for("the replica to have both", || {
        other.lock_info("k").is_some_and(|info| info.holders.iter().map(|holder| holder.reads).eq([1, 1]))
    });
    other.ok(&["REPLICAOF", "NO", "ONE"]);
    conn.ok(&["DEBUG", "RELOAD"]);
    for mut conn in [conn, other] {
        assert_eq!(conn.int(&["LOCK.SHARE", "k", "c", "3", "TAKE", "2"]), None);
        assert!(conn.int(&["LOCK.SHARE", "k", "c", "3"]).unwrap() > fence);
        assert_eq!(conn.int(&["LOCK.SHARE", "k", "d", "3"]), None);
    }
}
