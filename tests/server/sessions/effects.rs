//! What replicas and the append-only file receive when a connection closes that holds are bound to, word by word.

use crate::harness::transcript::Stage;
use crate::waiting::effects::{Scene, server};
use testbed::Server;

#[test]
fn a_closed_connection_is_sent_as_the_holds_that_it_leaves() {
    // Replicas do not know the connections of their primary: what they do not receive would hold on until its lease
    // ends.
    let server = server();
    let mut scene = Scene::new(&server);
    // That it is bound concerns no other server. Each has a connection of its own: on a busy machine the ends of two
    // holds may be sent in two steps.
    scene.check(
        &[("s: LOCK.ACQUIRE k a PX 60000 SESSION 0 NOTE x", "#1"), ("t: LOCK.ACQUIRE l a PX 60000 SESSION 5000", "#2")],
        &["LOCK.HOLD k a 0 1 #1 ~ 60000 x", "LOCK.HOLD l a 0 1 #2 ~ 60000"],
    );
    scene.check(&[("LOCK.EXTEND k a PX 50000", "#1")], &["LOCK.HOLD k a 0 1 #1 ~ 50000 x"]);
    scene.stage.leave("s");
    // By its time and not by a tick: nothing else is sent.
    scene.check(&[("LOCK.INFO k", "nil"), ("EXISTS l", "1")], &["LOCK.HOLD k a 0 0 #1"]);
    scene.stage.leave("t");
    scene.check(&[("EXISTS l", "1")], &["LOCK.HOLD l a 0 1 #2 ~ ~"]);
    scene.check(&[("LOCK.RELEASE l a", "0")], &["LOCK.HOLD l a 0 0 #2"]);
}

#[test]
fn the_end_of_a_session_and_the_grant_that_follows_are_sent_as_one() {
    // Between the two, a replica that takes over would give the lock to any requester.
    let mut scene = Scene::alone();
    scene.check(
        &[
            ("s: LOCK.RW k a WRITE PX 60000 SESSION 0", "#1"),
            ("b: LOCK.RW k b READ PX 50000 BLOCK 0 SESSION 0", "waits"),
            ("c: LOCK.RW k c READ PX 40000 BLOCK 0", "waits"),
        ],
        &["LOCK.HOLD k a 0 1 #1 ~ 60000"],
    );
    scene.stage.leave("s");
    scene.check(
        &[("b:", "#2"), ("c:", "#3")],
        &["MULTI", "LOCK.HOLD k a 0 0 #1", "LOCK.HOLD k b 1 0 #2 ~ 50000", "LOCK.HOLD k c 1 0 #3 ~ 40000", "EXEC"],
    );
    // One reader of two, and the writer behind them.
    scene.check(
        &[("d: LOCK.RW k d WRITE PX 30000 BLOCK 0", "waits"), ("LOCK.RELEASE k c", "0")],
        &["LOCK.HOLD k c 0 0 #3"],
    );
    scene.stage.leave("b");
    scene.check(&[("d:", "#4")], &["MULTI", "LOCK.HOLD k b 0 0 #2", "LOCK.HOLD k d 0 1 #4 ~ 30000", "EXEC"]);
}

#[test]
fn what_a_closed_connection_does_not_change_is_not_sent() {
    // Each would be written to disk and sent to all replicas, whenever a client goes.
    let mut scene = Scene::alone();
    scene.check(
        &[("s: LOCK.ACQUIRE k a PX 60000 SESSION 90000", "#1"), ("t: LOCK.ACQUIRE l a PX 60000", "#2")],
        &["LOCK.HOLD k a 0 1 #1 ~ 60000", "LOCK.HOLD l a 0 1 #2 ~ 60000"],
    );
    scene.stage.leave("s");
    scene.stage.leave("t");
    scene.check(&[("LOCK.RELEASE k a", "0")], &["LOCK.HOLD k a 0 0 #1"]);
}

#[test]
fn a_lease_that_was_cut_lapses_on_the_replica_as_well() {
    // The replica ends nothing by itself; it must receive both ends.
    let primary = Server::new();
    let replica = Server::new();
    replica.follow(&primary);
    let mut stage = Stage::new(&primary);
    stage.play(&[("s: LOCK.ACQUIRE k a PX 600000 SESSION 60000", "#1"), ("s: LOCK.ACQUIRE l a SESSION 20", "#2")]);
    replica.catch_up(&primary);
    let mut there = replica.connect();
    let hold = there.lock_info("k").unwrap().holders.remove(0);
    assert!(hold.ttl_ms > 500_000 && hold.session.is_none() && hold.client.is_none(), "{hold:?}");
    stage.leave("s");
    stage.until("lock_lapsed", 1);
    replica.catch_up(&primary);
    let hold = there.lock_info("k").unwrap().holders.remove(0);
    assert!(hold.ttl_ms <= 60_000, "{hold:?}");
    assert!(there.lock_info("l").is_none());
    assert_eq!(there.int(&["EXISTS", "l"]), Some(0));
    // A client of the replica that goes away is none of the primary's, whatever its number is.
    (0..30).for_each(|_| drop(replica.connect()));
    assert_eq!(there.info("lock", "lock_sessions_closed"), "0");
    assert_eq!(there.lock_info("k").unwrap().holding, 1);
}
