//! Places and offers when the server may not write, changes its role, or loses the slot.

use super::Scene;
use crate::harness::connection::{Connection, Reply};
use crate::harness::hold_back::HoldBack;
use crate::harness::state::{holders, let_it_tick};
use testbed::{Cluster, Port, Server, wait_for};

/// A place and an offer whose time is up while nothing may be written.
fn due_while(server: &Server, hold_back: &HoldBack) {
    let mut scene = Scene::new(server);
    scene.play(&[
        ("LOCK.ACQUIRE k a PX 600000", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 300", "nil"),
        ("LOCK.ACQUIRE k c QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE o a PX 600000", "#2"),
        ("LOCK.ACQUIRE o b QUEUE 300", "nil"),
        ("d: LOCK.ACQUIRE o d BLOCK 0", "waits"),
        ("LOCK.RELEASE o a", "0"),
    ]);
    scene.expect("o", "b is offered; d");
    hold_back.begin(&mut scene.conn);
    let_it_tick(&mut scene.conn);
    let_it_tick(&mut scene.conn);
    // The place is kept: its owner could not ask. The offer is over, but nothing can be told of that.
    scene.expect_numbers(2, 1, 1);
    assert_eq!(scene.number("lock_taken_back"), 0);
    scene.row("d:", "waits");
    hold_back.end(&mut scene.conn);
    scene.row("d:", "#3");
    scene.expect("o", "d holds");
    assert_eq!(["lock_taken_back", "lock_lapsed"].map(|field| scene.number(field)), [1, 0]);
    // Once more QUEUE, and no longer.
    scene.stage.until("lock_places", 1);
    scene.expect("k", "a holds; c");
}

#[test]
fn a_place_that_is_due_during_a_pause_is_kept_and_an_offer_ends_as_soon_as_writes_flow() {
    due_while(&Server::new(), &HoldBack::Pause);
}

#[test]
fn a_place_that_is_due_without_enough_replicas_is_kept_and_an_offer_ends_as_soon_as_writes_flow() {
    due_while(&Server::new(), &HoldBack::Replicas);
}

#[test]
fn a_place_that_is_due_while_the_disk_is_out_of_order_is_kept_and_an_offer_ends_as_soon_as_writes_flow() {
    let server = Server::new();
    let disk = HoldBack::disk(&server);
    due_while(&server, &disk);
}

#[test]
fn a_place_that_was_due_during_a_pause_is_granted_afterwards() {
    // Else every pause would throw all out of the queue that had no chance to ask.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a PX 600000", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 2000", "nil"),
        ("LOCK.ACQUIRE k c QUEUE 60000", "nil"),
    ]);
    let mut paused = Connection::resp2(&server);
    HoldBack::Pause.begin(&mut scene.conn);
    // A place that is over is not shown.
    wait_for("the time of b's place to be up", || scene.on("k") == "a holds; c");
    let_it_tick(&mut scene.conn);
    // Served as soon as writes flow.
    paused.send_line("LOCK.ACQUIRE k b QUEUE 60000\r\nLOCK.RELEASE k a");
    HoldBack::Pause.end(&mut scene.conn);
    assert_eq!((paused.read(), paused.read()), (Reply::Null, Reply::Int(0)));
    scene.expect("k", "b is offered; c");
}

#[test]
fn after_a_failover_places_are_gone_and_an_offer_is_a_plain_hold() {
    // The new primary knows the hold, and neither the queue nor that it was an offer.
    let (one, other) = (Server::new(), Server::new());
    other.follow(&one);
    let mut old = Scene::new(&one);
    old.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k c QUEUE 60000", "nil"),
        ("LOCK.RELEASE k a", "0"),
        ("LOCK.ACQUIRE p a", "#2"),
        ("LOCK.ACQUIRE p b QUEUE 2000", "nil"),
        ("LOCK.RELEASE p a", "0"),
        ("d: LOCK.ACQUIRE k d BLOCK 0 QUEUE 60000", "waits"),
    ]);
    old.expect_numbers(2, 1, 2);
    other.catch_up(&one);
    let mut new = Scene::new(&other);
    new.expect("k", "b holds");
    new.conn.ok(&["REPLICAOF", "NO", "ONE"]);
    new.expect_numbers(0, 0, 0);
    new.stage.until("lock_lapsed", 1);
    assert_eq!(new.number("lock_taken_back"), 0);
    assert!(new.stage.ask(&["LOCK.ACQUIRE", "k", "b", "QUEUE", "60000"]).int() > 0);
    assert_eq!(new.of("holders", "writes"), Reply::Int(1));
    // The old one has sent all away, and keeps nothing for its next time as a primary.
    old.conn.ok(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    old.stage.waiter("d").assert_sent_away("a replica now");
    old.stage.until("lock_places", 0);
    old.expect_numbers(0, 0, 0);
    assert_eq!(old.stage.ask(&["LOCK.ACQUIRE", "k", "c", "QUEUE", "60000"]).code(), "READONLY");
}

#[test]
fn a_node_that_was_a_replica_for_a_while_has_plain_holds_where_it_had_offers() {
    // It has forgotten which of them belong together.
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.MACQUIRE 2 k j b QUEUE 60000", "nil"), ("LOCK.RELEASE k a", "0")]);
    scene.expect("j", "b is offered");
    let nobody = Port::claim();
    scene.conn.ok(&["REPLICAOF", "127.0.0.1", &nobody.number().to_string()]);
    assert_eq!([scene.on("k"), scene.on("j")], ["b holds", "b holds"]);
    scene.conn.ok(&["REPLICAOF", "NO", "ONE"]);
    assert!(scene.stage.ask(&["LOCK.EXTEND", "k", "b", "PX", "600000"]).int() > 0);
    assert!(scene.stage.ask(&["LOCK.ACQUIRE", "j", "b", "QUEUE", "60000"]).int() > 0);
    scene.expect_numbers(0, 0, 0);
    assert_eq!(scene.of("holders", "writes"), Reply::Int(1));
}

#[test]
fn when_the_slot_moves_places_are_gone_and_an_offer_is_a_plain_hold() {
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let offered = format!("{{{key}}}o");
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    for key in [&key, &offered] {
        old.int(&["LOCK.ACQUIRE", key, "a", "PX", "600000"]).expect("free");
        assert_eq!(old.int(&["LOCK.ACQUIRE", key, "b", "QUEUE", "60000"]), None);
        assert_eq!(old.int(&["LOCK.ACQUIRE", key, "c", "QUEUE", "60000"]), None);
    }
    assert_eq!(old.int(&["LOCK.RELEASE", &offered, "a"]), Some(0));
    assert_eq!(["lock_places", "lock_offered"].map(|field| old.info_number("lock", field)), [3, 1]);
    let mut waits = Connection::waiting(&cluster.nodes[0], &format!("LOCK.ACQUIRE {key} d BLOCK 0 QUEUE 60000"));
    cluster.begin_move(&slot, 0, 1);
    [&key, &offered].into_iter().for_each(|key| cluster.migrate(key, 0, 1));
    cluster.end_move(&slot, 0, 1);
    waits.assert_sent_away("moved");
    wait_for("the places to be gone", || old.info("lock", "lock_places") == "0");
    assert_eq!(["lock_waiters", "lock_offered"].map(|field| old.info_number("lock", field)), [0, 0]);
    assert!(old.error(&["LOCK.ACQUIRE", &key, "b", "QUEUE", "60000"]).starts_with("MOVED"));
    assert_eq!([holders(&mut new, &key), holders(&mut new, &offered)], [["a"], ["b"]]);
    assert_eq!(new.info("lock", "lock_offered"), "0");
    // It is the first there that asks again.
    assert_eq!(new.int(&["LOCK.ACQUIRE", &key, "c", "QUEUE", "60000"]), None);
    new.int(&["LOCK.ACQUIRE", &offered, "b", "QUEUE", "60000"]).expect("it holds it");
    assert_eq!(new.int(&["LOCK.RELEASE", &offered, "b"]), Some(0));
}
