//! What becomes of channels with the node: a role that changes, data that are reloaded, databases that are swapped.

use super::{CHANNEL, Subscriber};
use crate::harness::connection::Reply;
use crate::harness::scene::Scene;
use testbed::{Server, wait_for};

#[test]
fn a_primary_that_becomes_a_replica_tells_each_channel_once() {
    let primary = Server::setup().option("repl-diskless-sync-delay", "0").start();
    let server = Server::setup().option("repl-diskless-sync-delay", "0").start();
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
