//! A process that is dead: its places end soon after the connection has closed over which their owners asked.

use super::CHANNEL;
use crate::harness::connection::{Connection, Reply};
use crate::harness::scene::Scene;
use crate::places::away::{LONG, server};
use testbed::{Server, wait_for};

/// Asks for places on `k` over one connection.
fn places(server: &Server, owners: impl Iterator<Item = String>) -> Connection {
    let mut wire = Connection::resp2(server);
    for owner in owners {
        let ask = ["LOCK.ACQUIRE", "k", &owner, "QUEUE", LONG, "NOTIFY", CHANNEL];
        assert_eq!(wire.ask(&ask), Reply::Null);
    }
    wire
}

/// For how long the first waiter is kept.
fn queue_left(scene: &mut Scene<'_>) -> i64 {
    scene.of("waiters", "queue_left_ms").int()
}

#[test]
fn a_process_that_is_killed_costs_the_next_owner_one_short_time_whatever_number_of_places_it_had() {
    let server = server("300");
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let dead = places(&server, (0..16).map(|n| format!("dead{n}")));
    scene.play(&[("c: LOCK.ACQUIRE k c BLOCK 0", "waits")]);
    drop(dead);
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    scene.stage.waiter("c").read().int();
    scene.stage.until("lock_places", 0);
    scene.stage.until("lock_offered", 0);
}

#[test]
fn an_offer_ends_soon_after_its_connection_has_closed_also_one_of_several_keys() {
    let server = server("300");
    for ask in ["LOCK.ACQUIRE k b", "LOCK.MACQUIRE 2 k j b", "LOCK.SHARE k b 3", "LOCK.RW k b READ"] {
        let mut scene = Scene::new(&server);
        scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
        let mut wire = Connection::resp2(&server);
        assert_eq!(wire.say(&format!("{ask} QUEUE {LONG} NOTIFY ch")), Reply::Null);
        scene.play(&[("LOCK.RELEASE k a", "0"), ("c: LOCK.ACQUIRE k c BLOCK 0", "waits")]);
        scene.stage.until("lock_offered", 1);
        assert_eq!(["session", "client"].map(|field| scene.of("holders", field)), [Reply::Null, Reply::Null]);
        wire.leave(&mut scene.conn);
        scene.stage.waiter("c").read().int();
        scene.stage.until("lock_offered", 0);
        scene.stage.ask(&["FLUSHALL"]);
        assert_eq!(scene.conn.info_number("lock", "lock_session_holds"), 0, "{ask}");
    }
}

#[test]
fn an_owner_that_is_back_in_time_keeps_its_place_and_its_offer() {
    let server = server("60000");
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let wire = places(&server, ["b".to_owned()].into_iter());
    scene.play(&[("c: LOCK.ACQUIRE k c BLOCK 0", "waits")]);
    assert!(queue_left(&mut scene) > 60_000);
    wire.leave(&mut scene.conn);
    wait_for("the place to be kept for a short time", || queue_left(&mut scene) <= 60_000);
    let back = places(&server, ["b".to_owned()].into_iter());
    assert!(queue_left(&mut scene) > 60_000);
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    scene.stage.until("lock_offered", 1);
    back.leave(&mut scene.conn);
    scene.play(&[("LOCK.ACQUIRE k b PX 600000", "#2")]);
    let left = scene.of("holders", "ttl_ms").int();
    assert!(left > 60_000, "it is a plain hold, whose connection does not matter: {left}");
}

#[test]
fn a_hold_that_was_offered_does_not_end_with_the_connection_that_collected_it() {
    let server = server("100");
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let mut wire = places(&server, ["b".to_owned()].into_iter());
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    wire.say("LOCK.ACQUIRE k b QUEUE 60000 NOTIFY ch PX 600000").int();
    wire.leave(&mut scene.conn);
    assert_eq!(scene.conn.info_number("lock", "lock_session_holds"), 0);
    let left = scene.of("holders", "ttl_ms").int();
    assert!(left > 60_000, "{left}");
}

#[test]
fn a_place_belongs_to_the_connection_over_which_its_owner_asked_last() {
    let server = server("60000");
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let first = places(&server, ["b".to_owned()].into_iter());
    let second = places(&server, ["b".to_owned()].into_iter());
    first.leave(&mut scene.conn);
    assert!(queue_left(&mut scene) > 60_000, "the first is not its any more");
    // A request with QUEUE alone belongs to no connection, and changes nothing of that.
    let mut pooled = Connection::resp2(&server);
    assert_eq!(pooled.say(&format!("LOCK.ACQUIRE k b QUEUE {LONG}")), Reply::Null);
    pooled.leave(&mut scene.conn);
    assert!(queue_left(&mut scene) > 60_000, "a pool may close that");
    second.leave(&mut scene.conn);
    wait_for("the place to be kept for a short time", || queue_left(&mut scene) <= 60_000);
}

#[test]
fn a_place_whose_client_was_answered_null_ends_when_that_connection_closes_later() {
    let server = server("60000");
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let mut wire = Connection::resp2(&server);
    assert_eq!(wire.say(&format!("LOCK.ACQUIRE k b BLOCK 1 QUEUE {LONG}")), Reply::Null);
    assert!(queue_left(&mut scene) > 60_000);
    wire.leave(&mut scene.conn);
    wait_for("the place to be kept for a short time", || queue_left(&mut scene) <= 60_000);
}

#[test]
fn ten_thousand_places_of_one_connection_are_gone_soon_after_it_closes_and_others_are_served_meanwhile() {
    let server = Server::setup().lock_option("away-ms", "1").lock_option("max-waiters-per-key", "100000").start();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let mut wire = Connection::resp2(&server);
    const COUNT: usize = 10_000;
    for n in 0..COUNT {
        wire.send_line(&format!("LOCK.ACQUIRE k{} o{n} QUEUE 60000 NOTIFY ch", n % 10 * (n % 2)));
    }
    let free = (0..COUNT).filter(|_| matches!(wire.read(), Reply::Int(_))).count();
    assert!(free <= 10, "{free}");
    assert!(scene.conn.info_number("lock", "lock_places") as usize >= COUNT - 10);
    wire.leave(&mut scene.conn);
    scene.stage.until("lock_places", 0);
    scene.stage.until("lock_notify_channels", 0);
    assert_eq!(scene.conn.info_number("lock", "lock_place_bytes"), 0);
}

#[test]
fn a_time_of_zero_keeps_places_and_offers_as_long_as_queue() {
    let server = server("0");
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let wire = places(&server, ["b".to_owned(), "c".to_owned()].into_iter());
    scene.play(&[("LOCK.RELEASE k a", "0")]);
    wire.leave(&mut scene.conn);
    assert!(queue_left(&mut scene) > 60_000);
    let left = scene.of("holders", "ttl_ms").int();
    assert!(left > 60_000, "{left}");
}

#[test]
fn an_owner_that_is_back_around_the_end_has_its_turn_or_leaves_it_to_the_next_one() {
    // Whatever the moment: one of the two has the lock, and neither waits for ever.
    let server = server("30");
    for ms in 15..45 {
        let mut scene = Scene::new(&server);
        scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
        let gone = places(&server, ["b".to_owned()].into_iter());
        scene.play(&[("c: LOCK.ACQUIRE k c BLOCK 0", "waits")]);
        drop(gone);
        std::thread::sleep(std::time::Duration::from_millis(ms));
        let mut back = places(&server, ["b".to_owned()].into_iter());
        scene.play(&[("LOCK.RELEASE k a", "0")]);
        match back.say(&format!("LOCK.ACQUIRE k b QUEUE {LONG}")) {
            Reply::Int(_) => {
                scene.play(&[("c:", "waits"), ("LOCK.RELEASE k b", "0")]);
                scene.stage.waiter("c").read().int();
            }
            reply => {
                assert_eq!(reply, Reply::Null, "after {ms} ms");
                scene.stage.waiter("c").read().int();
                scene.play(&[("LOCK.RELEASE k b", "nil")]);
            }
        }
        scene.play(&[("LOCK.RELEASE k c", "0"), ("LOCK.INFO k", "nil")]);
    }
}

#[test]
fn a_connection_that_waits_at_two_places_keeps_neither_longer_than_the_other() {
    // BLOCK on one connection and NOTIFY on another: only the places of the one that closes are shortened.
    let server = server("60000");
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    let other = places(&server, ["x".to_owned()].into_iter());
    let wire = places(&server, ["b".to_owned(), "c".to_owned()].into_iter());
    wire.leave(&mut scene.conn);
    let left = |scene: &mut Scene<'_>| -> Vec<bool> {
        let waiters = scene.stage.ask(&["LOCK.INFO", "k"]).field("waiters").items();
        waiters.iter().map(|waiter| waiter.field("queue_left_ms").int() <= 60_000).collect()
    };
    wait_for("both to be kept for a short time", || left(&mut scene) == [false, true, true]);
    other.leave(&mut scene.conn);
    wait_for("all to be", || left(&mut scene) == [true; 3]);
}
