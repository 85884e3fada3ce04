//! What goes on during a grace: holders extend and release, leases and sessions end, operators break holds, and records
//! of the primary are applied. What becomes free is granted when the grace is over.

use super::{LONG, Scene, left, promote, with_grace};
use crate::harness::state::holders;
use testbed::Server;

#[test]
fn holders_extend_and_release_and_operators_break() {
    // What could go wrong: a holder loses its lock because it may not extend it, or cannot give it back.
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.MACQUIRE 4 i j k l a PX 600000", "[#1 #2 #3 #4]"), ("LOCK.RW k a READ", "#3")]);
    scene.promote();
    scene.play(&[
        ("LOCK.EXTEND k a PX 700000 FENCE #3 NOTE 40%", "#3"),
        ("LOCK.EXTEND k b PX 700000", "nil"),
        ("LOCK.MEXTEND 2 j k a PX 700000", "[#2 #3]"),
        ("LOCK.CHECK k a WRITE FENCE #3", "#3"),
        ("LOCK.CHECK k b", "nil"),
        ("LOCK.GUARD k a #3 SET data x", "[#3 OK]"),
        ("LOCK.GUARD k a #3 LOCK.ACQUIRE k a", "GRACE ~"),
        ("LOCK.RELEASE k a READ", "1"),
        ("LOCK.RELEASE k a FENCE #3", "0"),
        ("LOCK.RELEASE k a", "nil"),
        ("LOCK.MRELEASE 2 j k a", "[0 nil]"),
        ("LOCK.BREAK i", "1"),
        ("LOCK.INFO i", "nil"),
        (
            "LOCK.INFO l OWNER a COUNT 0",
            "[mode write fence #4 holding 1 holders [[owner a mode write writes 1 fence #4]]]",
        ),
        ("LOCK.ACQUIRE k b", "GRACE ~"),
    ]);
}

#[test]
fn a_waiter_whose_client_goes_leaves_the_queue() {
    let server = super::started();
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
        ("LOCK.ACQUIRE k c QUEUE 60000", "GRACE ~"),
        ("LOCK.ACQUIRE k d QUEUE 1", "GRACE ~"),
        ("LOCK.RELEASE k c", "nil"),
    ]);
    scene.stage.leave("a");
    scene.stage.until("lock_places", 0);
    scene.end();
    scene.play(&[("b:", "#1")]);
}

#[test]
fn records_of_the_primary_and_of_the_file_are_applied() {
    // What could go wrong: a replica, or a server that loads its file, refuses what the primary granted.
    let primary = Server::new();
    let replica = with_grace().start();
    let mut there = primary.connect();
    there.int(&["LOCK.ACQUIRE", "before", "a", "PX", LONG]).unwrap();
    replica.follow(&primary);
    let fence = there.int(&["LOCK.ACQUIRE", "after", "b", "PX", LONG]);
    replica.catch_up(&primary);
    let mut conn = replica.connect();
    assert_eq!((holders(&mut conn, "before"), holders(&mut conn, "after")), (vec!["a".into()], vec!["b".into()]));
    assert!(left(&mut conn) > 0, "its own start");
    // A replica does not grant in any case.
    conn.ok(&["CONFIG", "SET", "replica-read-only", "no"]);
    assert_eq!(conn.error(&["LOCK.ACQUIRE", "k", "a"]), "READONLY locks are granted by the primary only");
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(conn.int(&["LOCK.EXTEND", "after", "b", "PX", LONG]), fence);

    let mut server = with_grace().option("appendonly", "yes").start();
    let mut conn = server.connect();
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", LONG]);
    server.restart();
    let mut conn = server.connect();
    assert_eq!(holders(&mut conn, "k"), ["a"]);
    assert!(conn.error(&["LOCK.ACQUIRE", "k", "a", "RETRY", "1"]).starts_with("GRACE "));
    assert_eq!(conn.int(&["LOCK.EXTEND", "k", "a", "PX", LONG]), fence);
}

#[test]
fn a_hold_of_a_client_is_taken_as_ever() {
    // A tool that replays an AOF knows what was granted.
    let server = with_grace().lock_option("allow-hold", "yes").start();
    let mut conn = server.connect();
    assert_eq!(conn.int(&["LOCK.HOLD", "k", "a", "0", "1", "5", "0", "600000"]), Some(1));
    assert_eq!(holders(&mut conn, "k"), ["a"]);
    promote(&mut conn);
    assert_eq!(holders(&mut conn, "k"), ["a"]);
}
