//! Grants to clients that go before they are told: of a place such a grant becomes an offer.

use super::{Events, Scene, patient_server};
use crate::harness::connection::{Connection, Reply};
use crate::harness::state::let_it_tick;
use crate::harness::turn::{Way, turn};
use testbed::Server;

/// What ends the wait of a client in the turn in which it is granted, before it is told.
const ENDS: &[&str] = &["CLIENT KILL ID %", "CLIENT UNBLOCK % ERROR"];

#[test]
fn what_a_place_was_granted_and_not_told_becomes_an_offer() {
    // Rolled back, the owner loses its turn; kept, the lock is taken for a lease that no client knows of.
    for end in ENDS {
        for way in [Way::Exec, Way::Pipelined] {
            for options in ["PX 600000", "PX 600000 SESSION 300000 NOTE mine", "PX 5000"] {
                let how = format!("{end} {way:?} {options}");
                let server = patient_server();
                let mut scene = Scene::new(&server);
                scene.row("LOCK.ACQUIRE k a", "#1");
                let mut b = Connection::waiting(&server, &format!("LOCK.ACQUIRE k b {options} BLOCK 0 QUEUE 60000"));
                scene.row("c: LOCK.ACQUIRE k c BLOCK 0", "waits");
                let end = end.replace('%', &b.id().to_string());
                turn(&server, way, &["LOCK.RELEASE k a", &end]);
                if let Reply::Int(fence) = b.read() {
                    // The grant came first, and it was told.
                    panic!("{how}: {fence}");
                }
                scene.stage.until("lock_offered", 1);
                scene.expect("k", "b is offered; c");
                scene.expect_numbers(0, 1, 1);
                let left = scene.of("holders", "ttl_ms").int();
                assert!((50_000..=60_000).contains(&left), "{how}: QUEUE from then on, but {left} ms are left");
                assert_eq!(["session", "note"].map(|field| scene.of("holders", field)), [Reply::Null, Reply::Null]);
                let offered = scene.of("holders", "fence").int();
                // The connection that is gone ends nothing.
                drop(b);
                let_it_tick(&mut scene.conn);
                scene.expect("k", "b is offered; c");
                assert_eq!(scene.number("lock_taken_back"), 0, "{how}");
                let again = ["LOCK.ACQUIRE", "k", "b", "PX", "500000", "QUEUE", "60000"];
                assert_eq!(scene.stage.ask(&again), Reply::Int(offered), "{how}");
                scene.expect("k", "b holds; c");
                assert!(scene.of("holders", "ttl_ms").int() > 60_000, "{how}");
                assert_eq!(scene.of("holders", "writes"), Reply::Int(1), "{how}");
                assert_eq!(["lock_granted", "lock_lapsed"].map(|field| scene.number(field)), [2, 0], "{how}");
                scene.stage.ask(&["LOCK.RELEASE", "k", "b"]);
                assert!(scene.stage.waiter("c").read().int() > offered, "{how}");
            }
        }
    }
}

#[test]
fn what_was_not_told_is_taken_back_when_nobody_collects_it() {
    let server = Server::new();
    let mut events = Events::of(&server);
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    let b = Connection::waiting(&server, "LOCK.ACQUIRE k b PX 600000 RETRY 4 BLOCK 0 QUEUE 300");
    scene.row("c: LOCK.ACQUIRE k c BLOCK 0", "waits");
    turn(&server, Way::Exec, &["LOCK.RELEASE k a", &b.kill()]);
    scene.row("c:", "#2");
    assert_eq!(["lock_taken_back", "lock_lapsed"].map(|field| scene.number(field)), [1, 0]);
    scene.expect_numbers(0, 0, 0);
    let events = events.since();
    assert_eq!(events.last().map(String::as_str), Some("acquire k"), "{events:?}");
    assert_eq!(events.iter().filter(|event| *event == "acquire k").count(), 3, "{events:?}");
}

#[test]
fn without_queue_what_was_not_told_is_taken_back_at_once() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE o a", "#2"), ("LOCK.ACQUIRE o b QUEUE 60000", "nil")]);
    let b = Connection::waiting(&server, "LOCK.ACQUIRE k b PX 600000 BLOCK 0");
    scene.row("c: LOCK.ACQUIRE k c BLOCK 0", "waits");
    turn(&server, Way::Exec, &["LOCK.RELEASE k a", &b.kill()]);
    scene.row("c:", "#3");
    assert_eq!(scene.number("lock_taken_back"), 1);
    scene.expect_numbers(1, 0, 0);
}

#[test]
fn a_grant_of_several_keys_that_was_not_told_is_one_offer() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    let b = Connection::waiting(&server, "LOCK.MACQUIRE 2 k j b PX 600000 BLOCK 0 QUEUE 60000");
    scene.row("c: LOCK.ACQUIRE j c BLOCK 0", "waits");
    turn(&server, Way::Exec, &["LOCK.RELEASE k a", &b.kill()]);
    scene.stage.until("lock_offered", 1);
    assert_eq!([scene.on("k"), scene.on("j")], ["b is offered", "b is offered; c"]);
    scene.row("LOCK.MACQUIRE 2 k j b QUEUE 60000", "[#2 #3]");
    scene.expect_numbers(0, 1, 0);
}

#[test]
fn of_a_grant_that_was_not_told_what_its_owner_held_before_stays_as_it_was() {
    // It is asked for again together with the offer, by the same keys.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k b PX 500000", "#1"), ("LOCK.ACQUIRE j a", "#2")]);
    let b = Connection::waiting(&server, "LOCK.MACQUIRE 2 k j b PX 600000 RETRY 2 BLOCK 0 QUEUE 60000");
    turn(&server, Way::Exec, &["LOCK.RELEASE j a", &b.kill()]);
    scene.stage.until("lock_offered", 1);
    assert_eq!([scene.on("k"), scene.on("j")], ["b holds", "b is offered"]);
    assert_eq!(scene.of("holders", "writes"), Reply::Int(1));
    scene.row("LOCK.MACQUIRE 2 k j b QUEUE 60000", "[#1 #3]");
    assert_eq!([scene.on("k"), scene.on("j")], ["b holds"; 2]);
}

#[test]
fn an_owner_that_asks_again_in_the_turn_of_its_grant_has_it_confirmed() {
    // The request that took longer than the client's timeout, and the one that is sent again, meet in one turn.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    let b = Connection::waiting(&server, "LOCK.ACQUIRE k b PX 600000 BLOCK 0 QUEUE 60000");
    scene.row("c: LOCK.ACQUIRE k c BLOCK 0", "waits");
    let again = "LOCK.ACQUIRE k b PX 600000 QUEUE 60000";
    turn(&server, Way::Exec, &["LOCK.RELEASE k a", again, &b.kill()]);
    let_it_tick(&mut scene.conn);
    scene.expect("k", "b holds; c");
    assert_eq!(scene.of("holders", "writes"), Reply::Int(1));
    scene.expect_numbers(0, 1, 0);
}
