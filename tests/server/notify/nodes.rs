//! What becomes of channels with the node: a role that changes, data that are reloaded, databases that are swapped.

use super::{CHANNEL, Subscriber};
use crate::harness::connection::{Connection, Reply};
use crate::harness::scene::Scene;
use std::collections::BTreeSet;
use testbed::{Server, Signal, wait_for};

#[test]
fn a_primary_that_becomes_a_replica_tells_each_channel_once() {
    let primary = Server::new();
    let server = Server::new();
    let mut subscribers = [CHANNEL, "other"].map(|channel| Subscriber::of(&server, channel));
    let mut scene = Scene::new(&server);
    for n in 0..10 {
        let key = format!("k{n}");
        scene.stage.ask(&["LOCK.ACQUIRE", &key, "a"]).int();
        for owner in 0..100 {
            let channel = if owner == 0 { "other" } else { CHANNEL };
            let owner = format!("o{owner}");
            let ask = ["LOCK.ACQUIRE", &key, &owner, "QUEUE", "60000", "NOTIFY", channel];
            assert_eq!(scene.stage.ask(&ask), Reply::Null);
        }
    }
    scene.conn.ok(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    assert_eq!(subscribers.each_mut().map(Subscriber::next), ["*", "*"]);
    wait_for("all to be forgotten", || {
        ["lock_places", "lock_notify_channels", "lock_place_bytes"]
            .iter()
            .all(|f| scene.conn.info_number("lock", f) == 0)
    });
    assert_eq!(scene.conn.info_number("lock", "lock_notified"), 2);
    // Promoted again at once: the owners were told to ask.
    scene.conn.ok(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(subscribers.each_mut().map(Subscriber::heard), [vec![""; 0], vec![]]);
}

#[test]
fn a_failover_that_is_aborted_after_the_demotion_tells_owners_to_ask_again() {
    let (server, replica) = (Server::new(), Server::new());
    replica.follow(&server);
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.stage.ask(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).int();
    let ask = ["LOCK.ACQUIRE", "k", "b", "QUEUE", "60000", "NOTIFY", CHANNEL];
    assert_eq!(scene.stage.ask(&ask), Reply::Null);
    wait_for("the replica to be online", || scene.conn.info("replication", "slave0").contains("state=online"));
    replica.signal(Signal::STOP);
    let port = replica.port().to_string();
    scene.conn.ok(&["FAILOVER", "TO", "127.0.0.1", &port, "FORCE", "TIMEOUT", "10"]);
    assert_eq!(subscriber.next(), "*");
    scene.conn.ok(&["FAILOVER", "ABORT"]);
    wait_for("the node to be primary again", || scene.conn.info("replication", "role") == "master");
    assert_eq!(scene.conn.info_number("lock", "lock_places"), 0);
    // The hold of before has outlived both.
    assert_eq!(scene.stage.ask(&ask), Reply::Null);
    scene.stage.ask(&["LOCK.RELEASE", "k", "a"]).int();
    assert_eq!(subscriber.next(), "b");
    scene.stage.ask(&ask).int();
}

#[test]
fn a_reload_and_a_swap_of_databases_leave_places_their_channels() {
    let server = Server::new();
    for change in [&["DEBUG", "RELOAD"][..], &["SWAPDB", "0", "1"]] {
        let mut subscriber = Subscriber::of(&server, CHANNEL);
        let mut scene = Scene::new(&server);
        scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil")]);
        scene.conn.ok(change);
        if change[0] == "SWAPDB" {
            // The place stays with the number of its database, where the key is free now.
            assert_eq!(subscriber.next(), "b");
        } else {
            assert_eq!(subscriber.heard(), [""; 0]);
            scene.stage.ask(&["LOCK.RELEASE", "k", "a"]);
            assert_eq!(subscriber.next(), "b", "{change:?}");
        }
        scene.stage.ask(&["FLUSHALL"]);
        scene.stage.until("lock_offered", 0);
    }
}

#[test]
fn a_slow_subscriber_that_is_cut_off_costs_nobody_the_lock() {
    let server = Server::setup().option("client-output-buffer-limit", "pubsub 1mb 1mb 1").start();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil")]);
    let id = subscriber.wire.id().to_string();
    scene.stage.ask(&["CLIENT", "KILL", "ID", &id]);
    subscriber.wire.assert_closed();
    scene.play(&[("LOCK.RELEASE k a", "0"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "#2")]);
    assert_eq!(scene.conn.info_number("lock", "lock_notified_unheard"), 1);
}

#[test]
fn a_subscriber_at_a_replica_hears_nothing_and_nothing_is_replicated() {
    let server = Server::setup().option("appendonly", "yes").start();
    let replica = Server::new();
    replica.follow(&server);
    let mut subscribers = [&server, &replica].map(|node| Subscriber::of(node, CHANNEL));
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil"),
        ("LOCK.RELEASE k a", "0"),
    ]);
    assert_eq!(subscribers[0].heard(), ["b"]);
    replica.catch_up(&server);
    assert_eq!(subscribers[1].heard(), [""; 0]);
    let records = server.aof_tail();
    assert!(records.iter().all(|words| !words[0].to_uppercase().contains("PUBLISH")), "{records:?}");
    // A place is this node's alone.
    assert_eq!(replica.connect().info_number("lock", "lock_notify_channels"), 0);
}

#[test]
fn a_crowd_of_places_is_told_by_one_message_when_the_node_is_demoted() {
    const COUNT: usize = 20_000;
    let primary = Server::new();
    let server = Server::setup().lock_option("max-waiters-per-key", "100000").start();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    let mut wire = Connection::resp2(&server);
    for n in 0..10 {
        wire.send_line(&format!("LOCK.ACQUIRE k{n} a"));
        wire.read().int();
    }
    for n in 0..COUNT {
        wire.send_line(&format!("LOCK.ACQUIRE k{} o{n} QUEUE 60000 NOTIFY ch", n % 10));
    }
    assert!((0..COUNT).all(|_| wire.read() == Reply::Null));
    assert_eq!(scene.conn.info_number("lock", "lock_places") as usize, COUNT);
    scene.conn.ok(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    assert_eq!(subscriber.next(), "*");
    assert_eq!(scene.conn.info_number("lock", "lock_notified"), 1);
    assert_eq!(scene.conn.info_number("lock", "lock_place_bytes"), 0);
}

#[test]
fn a_node_that_is_demoted_tells_many_channels_in_pieces_and_each_once() {
    // More than one turn of the event loop takes.
    const COUNT: usize = 3_000;
    let server = Server::new();
    let mut scene = Scene::new(&server);
    let [mut wire, mut subscriber] = [Connection::resp2(&server), Connection::resp2(&server)];
    subscriber.ask(&["PSUBSCRIBE", "ch*"]);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    for n in 0..COUNT {
        wire.send_line(&format!("LOCK.ACQUIRE k o{n} QUEUE 60000 NOTIFY ch{n}"));
    }
    assert!((0..COUNT).all(|_| wire.read() == Reply::Null));
    scene.conn.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(scene.conn.info_number("lock", "lock_places"), 0);
    // A node that is promoted again at once tells the rest all the same.
    scene.conn.ok(&["REPLICAOF", "NO", "ONE"]);
    let heard: BTreeSet<String> = (0..COUNT)
        .map(|_| {
            let message = subscriber.read().items();
            assert_eq!(message[3].text(), "*");
            message[2].text()
        })
        .collect();
    assert_eq!(heard.len(), COUNT);
    assert_eq!(scene.conn.info_number("lock", "lock_notified"), COUNT as u64);
}

#[test]
fn a_server_with_threads_for_input_and_output_tells_owners_as_well() {
    let server = Server::setup().option("io-threads", "4").start();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    for round in 0..50 {
        scene.stage.ask(&["LOCK.ACQUIRE", "k", "a"]).int();
        assert_eq!(scene.stage.ask(&["LOCK.ACQUIRE", "k", "b", "QUEUE", "60000", "NOTIFY", CHANNEL]), Reply::Null);
        scene.stage.ask(&["LOCK.RELEASE", "k", "a"]).int();
        assert_eq!(subscriber.next(), "b", "{round}");
        scene.stage.ask(&["LOCK.ACQUIRE", "k", "b"]).int();
        scene.stage.ask(&["LOCK.RELEASE", "k", "b"]).int();
    }
    assert_eq!(subscriber.heard(), [""; 0]);
}
