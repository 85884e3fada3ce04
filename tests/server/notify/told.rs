//! When the owner of a place is told, and when it is not.

use super::{CHANNEL, Subscriber};
use crate::harness::connection::{Connection, Reply};
use crate::harness::scene::Scene;
use crate::harness::transcript::Row;
use crate::harness::turn::{Way, turn};
use testbed::Server;

/// `a` holds the key, and `b` has a place there whose owner is told.
const PLACED: &[Row] = &[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil")];

fn placed(server: &Server) -> (Scene<'_>, Subscriber) {
    let subscriber = Subscriber::of(server, CHANNEL);
    let mut scene = Scene::new(server);
    scene.play(PLACED);
    (scene, subscriber)
}

#[test]
fn the_owner_of_a_place_is_told_by_its_name_when_it_is_offered_the_lock() {
    let server = Server::new();
    let (mut scene, mut subscriber) = placed(&server);
    assert_eq!(subscriber.heard(), [""; 0], "it only waits");
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    assert_eq!(subscriber.heard(), ["b"]);
    scene.play(&[("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "#2"), ("LOCK.RELEASE k b", "0")]);
    assert_eq!(subscriber.heard(), [""; 0], "it has what it was told of");
    let counted = ["lock_notified", "lock_notified_unheard", "lock_notify_channels", "lock_place_bytes"];
    assert_eq!(counted.map(|field| scene.conn.info_number("lock", field)), [1, 0, 0, 0], "{counted:?}");
}

#[test]
fn a_lease_that_ends_tells_the_next_owner() {
    let server = Server::new();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a PX 1000", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch", "nil")]);
    assert_eq!(subscriber.next(), "b");
    scene.play(&[("LOCK.ACQUIRE k b QUEUE 60000", "#2")]);
}

#[test]
fn each_kind_of_place_is_told_once_also_one_of_several_keys() {
    let server = Server::new();
    for ask in [
        "LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch",
        "LOCK.RW k b READ QUEUE 60000 NOTIFY ch",
        "LOCK.SHARE k b 3 TAKE 2 QUEUE 60000 NOTIFY ch",
        "LOCK.MACQUIRE 3 i k j b QUEUE 60000 NOTIFY ch",
    ] {
        let mut subscriber = Subscriber::of(&server, CHANNEL);
        let mut scene = Scene::new(&server);
        scene.play(&[("LOCK.ACQUIRE k a", "#1"), (ask, "nil"), ("LOCK.RELEASE k a", "0")]);
        assert_eq!(subscriber.heard(), ["b"], "{ask}");
        scene.stage.ask(&["FLUSHALL"]);
    }
}

#[test]
fn a_place_that_ends_before_its_time_tells_its_owner() {
    let server = Server::new();
    for (end, rows) in [
        ("BREAK", &[("LOCK.BREAK k b", "0")][..]),
        ("WRONGTYPE", &[("SET k x", "OK")]),
        ("RENAME", &[("LOCK.ACQUIRE j b", "#2"), ("RENAME j k", "OK")]),
        ("deadlock", &[("LOCK.ACQUIRE j b", "#2"), ("c: LOCK.ACQUIRE j a BLOCK 0", DEADLOCK)]),
    ] {
        let (mut scene, mut subscriber) = placed(&server);
        scene.play(rows);
        if end == "deadlock" {
            // Told to the request that closes the cycle: the place stays.
            assert_eq!(subscriber.heard(), [""; 0], "{end}");
        } else {
            assert_eq!(subscriber.next(), "b", "{end}");
            assert_eq!(subscriber.heard(), [""; 0], "{end}");
            scene.stage.until("lock_places", 0);
        }
        scene.stage.ask(&["FLUSHALL"]);
        scene.stage.ask(&["LOCK.RELEASE", "k", "b"]);
        scene.stage.until("lock_places", 0);
    }
}

const DEADLOCK: &str = "DEADLOCK a -> j -> b -> k -> a";

#[test]
fn a_grant_that_its_client_did_not_receive_tells_the_owner() {
    // As an offer, or rolled back where the owner held the key before.
    let server = Server::new();
    for way in [Way::Exec, Way::Pipelined] {
        let mut subscriber = Subscriber::of(&server, CHANNEL);
        let mut scene = Scene::new(&server);
        scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
        let b = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000 NOTIFY ch");
        turn(&server, way, &["LOCK.RELEASE k a", &b.kill()]);
        assert_eq!(subscriber.next(), "b");
        scene.stage.until("lock_offered", 1);
        assert_eq!(subscriber.heard(), [""; 0]);
        scene.stage.ask(&["FLUSHALL"]);
        scene.stage.until("lock_offered", 0);
    }
}

#[test]
fn a_message_comes_behind_the_keyspace_events_of_its_step() {
    // A client that hears of both knows then what happened.
    let (server, mut conn) = Server::connected();
    conn.ok(&["CONFIG", "SET", "notify-keyspace-events", "Ed"]);
    let mut wire = Connection::resp2(&server);
    wire.say("PSUBSCRIBE *");
    let mut scene = Scene::new(&server);
    scene.play(PLACED);
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    let heard: Vec<String> = (0..5).map(|_| wire.read().items()[2].text()).collect();
    let event = |name: &str| format!("__keyevent@0__:lock.{name}");
    assert_eq!(heard, [event("acquire"), event("wait"), event("release"), event("acquire"), "ch".to_owned()]);
}

#[test]
fn many_owners_that_are_offered_a_lock_at_once_are_each_told() {
    // Readers come in pieces of a step: none is forgotten, and none is told twice.
    let server = Server::new();
    let mut subscriber = Subscriber::of(&server, CHANNEL);
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    for n in 0..300 {
        let reader = format!("r{n}");
        let ask = ["LOCK.RW", "k", &reader, "READ", "QUEUE", "60000", "NOTIFY", CHANNEL];
        assert_eq!(scene.stage.ask(&ask), Reply::Null);
    }
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    scene.stage.until("lock_offered", 300);
    let mut heard = subscriber.heard();
    heard.sort();
    heard.dedup();
    assert_eq!(heard.len(), 300);
    assert_eq!(scene.conn.info_number("lock", "lock_notified"), 300);
}

#[test]
fn a_message_to_nobody_is_counted_and_costs_the_owner_nothing() {
    let mut scene = Scene::alone();
    scene.play(PLACED);
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    let counted = ["lock_notified", "lock_notified_unheard", "lock_offered"];
    assert_eq!(counted.map(|field| scene.conn.info_number("lock", field)), [1, 1, 1], "{counted:?}");
    scene.play(&[("LOCK.ACQUIRE k b", "#2")]);
}

#[test]
fn a_client_of_resp3_that_releases_in_a_transaction_gets_its_replies_and_then_the_message() {
    // Redis 7.0 writes a message into the middle of the reply of EXEC, and the client is out of step for good.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(PLACED);
    let mut wire = Connection::resp3(&server);
    assert!(matches!(wire.say("SUBSCRIBE ch"), Reply::Push(_)));
    for command in ["MULTI", "LOCK.RELEASE k a", "PING", "EXEC"] {
        wire.send_line(command);
    }
    let mut replies: Vec<Reply> = (0..5).map(|_| wire.read()).collect();
    let at = replies.iter().position(|reply| matches!(reply, Reply::Push(_))).expect("a message");
    let Reply::Push(message) = replies.remove(at) else { panic!("it is one") };
    assert_eq!(message[2], Reply::bulk("b"));
    let exec = Reply::Array(vec![Reply::Int(0), Reply::simple("PONG")]);
    assert_eq!(replies, [Reply::simple("OK"), Reply::simple("QUEUED"), Reply::simple("QUEUED"), exec]);
    assert_eq!(wire.say("PING"), Reply::simple("PONG"));
}

#[test]
fn a_script_that_releases_tells_the_next_owner() {
    let server = Server::new();
    let (mut scene, mut subscriber) = placed(&server);
    let script = "redis.call('LOCK.RELEASE', KEYS[1], 'a') return redis.call('PING')";
    assert_eq!(scene.stage.ask(&["EVAL", script, "1", "k"]).text(), "PONG");
    assert_eq!(subscriber.next(), "b");
}
