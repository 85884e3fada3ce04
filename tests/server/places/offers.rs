//! Offers: grants to places without a client. Collected or not, and what they are until then.

use super::{Events, Scene};
use crate::harness::connection::{Connection, Reply};
use crate::harness::transcript::Row;
use crate::waiting::effects::{self, Scene as Sent};
use testbed::Server;

/// The owner `b` was offered the key until a minute from now.
const OFFERED: &[Row] =
    &[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000", "nil"), ("LOCK.RELEASE k a", "0")];

#[test]
fn an_offer_is_collected_by_any_acquisition_in_its_mode() {
    for collects in [
        "LOCK.ACQUIRE k b PX 100000 QUEUE 5000",
        "LOCK.ACQUIRE k b PX 100000 QUEUE 5000 BLOCK 0",
        "LOCK.ACQUIRE k b PX 100000",
        "LOCK.ACQUIRE k b PX 100000 BLOCK 0",
        "LOCK.RW k b WRITE PX 100000 RETRY 1",
        "LOCK.ACQUIRE k b PX 5000",
    ] {
        let mut scene = Scene::alone();
        scene.play(OFFERED);
        scene.expect("k", "b is offered");
        scene.expect_numbers(0, 0, 1);
        let offered = scene.of("holders", "fence");
        assert!((50_000..=60_000).contains(&scene.of("holders", "ttl_ms").int()), "what is left of QUEUE");
        assert_eq!(["granted", "handed_off"].map(|field| scene.number(&format!("lock_{field}"))), [2, 1]);
        scene.row(collects, "#2");
        scene.expect("k", "b holds");
        scene.expect_numbers(0, 0, 0);
        assert_eq!(scene.of("holders", "fence"), offered, "{collects}");
        assert_eq!(scene.of("holders", "writes"), Reply::Int(1), "{collects}");
        let left = scene.of("holders", "ttl_ms").int();
        // From the request, be that later or earlier than what was left of the offer.
        let expected = if collects.contains("PX 5000") { 1..=5_000 } else { 90_000..=100_000 };
        assert!(expected.contains(&left), "{collects}: {left}");
        assert_eq!(["granted", "handed_off", "extended"].map(|f| scene.number(&format!("lock_{f}"))), [2, 1, 0]);
        // It is a hold like any other.
        scene.play(&[
            ("LOCK.EXTEND k b PX 5000 FENCE #2", "#2"),
            ("LOCK.ACQUIRE k b", "#2"),
            ("LOCK.RELEASE k b", "1"),
        ]);
    }
}

#[test]
fn an_offer_that_is_not_collected_is_taken_back_and_the_next_is_served() {
    // It is no lapse: its owner has lost nothing that it knew of, and no operator is to look for it.
    let server = Server::new();
    let mut events = Events::of(&server);
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 400", "nil"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("LOCK.RELEASE k a", "0 | c: #2"),
    ]);
    scene.expect("k", "c holds");
    let counted = ["lock_taken_back", "lock_lapsed", "lock_released", "lock_granted", "lock_handed_off"];
    assert_eq!(counted.map(|field| scene.number(field)), [1, 0, 1, 3, 2], "{counted:?}");
    scene.expect_numbers(0, 0, 0);
    scene.row("LOCK.LOG", "[]");
    let waited = ["acquire k", "wait k", "wait k"];
    assert_eq!(events.since(), [&waited[..], &["release k", "acquire k", "release k", "acquire k"]].concat());
    // The next request is judged anew.
    scene.row("LOCK.ACQUIRE k b QUEUE 60000", "nil");
}

#[test]
fn an_offer_that_a_command_finds_over_is_taken_back_by_that() {
    // The same where the timer is late.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 50", "nil")]);
    let mut wire = Connection::resp2(&server);
    wire.send_line("LOCK.RELEASE k a\r\nDEBUG SLEEP 0.1\r\nLOCK.INFO k\r\nLOCK.ACQUIRE k c");
    assert_eq!((wire.read(), wire.read(), wire.read()), (Reply::Int(0), Reply::simple("OK"), Reply::Null));
    wire.read().int();
    scene.expect("k", "c holds");
    assert_eq!(["lock_taken_back", "lock_lapsed"].map(|field| scene.number(field)), [1, 0]);
    scene.expect_numbers(0, 0, 0);
}

#[test]
fn events_tell_of_an_offer_its_collection_and_its_end() {
    // A client that hears of lock.acquire knows when to ask again.
    let server = Server::new();
    let mut events = Events::of(&server);
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000", "nil")]);
    assert_eq!(events.since(), ["acquire k", "wait k"]);
    scene.row("LOCK.RELEASE k a", "0");
    assert_eq!(events.since(), ["release k", "acquire k"]);
    scene.row("LOCK.ACQUIRE k b QUEUE 60000", "#2");
    assert_eq!(events.since(), ["extend k"]);
    scene.play(&[("LOCK.ACQUIRE k c QUEUE 60000", "nil"), ("LOCK.RELEASE k b", "0"), ("LOCK.RELEASE k c", "0")]);
    assert_eq!(events.since(), ["wait k", "release k", "acquire k", "release k"]);
}

#[test]
fn replicas_learn_of_an_offer_and_of_its_collection() {
    let server = effects::server();
    let mut sent = Sent::new(&server);
    sent.check(&[("LOCK.ACQUIRE k a PX 60000", "#1")], &["LOCK.HOLD k a 0 1 #1 ~ 60000"]);
    sent.check(&[("LOCK.ACQUIRE k b PX 50000 NOTE mine QUEUE 40000", "nil")], &[]);
    sent.check(&[("LOCK.RW k c READ QUEUE 40000", "nil"), ("LOCK.ACQUIRE k b QUEUE 30000", "nil")], &[]);
    let mut scene = Scene::new(&server);
    scene.row("LOCK.RELEASE k a", "0");
    let fence = scene.of("holders", "fence").int();
    assert_eq!(sent.stage.name_of(fence), "#2");
    sent.check(
        &[("LOCK.ACQUIRE k b PX 50000 NOTE mine QUEUE 30000", "#2")],
        &["MULTI", "LOCK.HOLD k a 0 0 #1", "LOCK.HOLD k b 0 1 #2 ~ ~", "EXEC", "LOCK.HOLD k b 0 1 #2 ~ 50000 mine"],
    );
}

#[test]
fn a_grant_that_is_collected_within_the_step_that_makes_it_is_told_once() {
    // What the request finds over makes room for its own place.
    let server = effects::server();
    let mut events = Events::of(&server);
    let mut sent = Sent::new(&server);
    let mut wire = Connection::resp2(&server);
    wire.send_line(
        "LOCK.ACQUIRE k a PX 20\r\nLOCK.ACQUIRE k b QUEUE 40000\r\nDEBUG SLEEP 0.1\r\n\
         LOCK.ACQUIRE k b PX 60000 NOTE mine QUEUE 40000",
    );
    let first = wire.read().int();
    assert_eq!((wire.read(), wire.read()), (Reply::Null, Reply::simple("OK")));
    let second = wire.read().int();
    assert_eq!([first, second].map(|fence| sent.stage.name_of(fence)), ["#1", "#2"]);
    sent.check(
        &[],
        &["LOCK.HOLD k a 0 1 #1 ~ 20", "MULTI", "LOCK.HOLD k a 0 0 #1", "LOCK.HOLD k b 0 1 #2 ~ 60000 mine", "EXEC"],
    );
    assert_eq!(events.since(), ["acquire k", "wait k", "lapse k", "acquire k"]);
    let mut scene = Scene::new(&server);
    scene.expect("k", "b holds");
    assert_eq!(["lock_granted", "lock_handed_off", "lock_taken_back"].map(|field| scene.number(field)), [2, 1, 0]);
}
