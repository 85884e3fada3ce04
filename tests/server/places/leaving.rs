//! Leaving a place: RELEASE and MRELEASE by its owner, BREAK by an operator.

use super::{Events, Scene};
use crate::harness::transcript::Row;
use testbed::Server;

/// A place without a client, and one that waits behind it.
const DETACHED: &[Row] =
    &[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 60000", "nil"), ("c: LOCK.ACQUIRE k c BLOCK 0", "waits")];

#[test]
fn a_release_ends_the_place_and_answers_null() {
    // A client that gives up would hold up the queue for QUEUE, and be granted what it does not want.
    for (release, reply) in [
        ("LOCK.RELEASE k b", "nil"),
        ("LOCK.RELEASE k b ALL", "nil"),
        ("LOCK.RELEASE k b TO 0", "nil"),
        ("LOCK.RELEASE k b WRITE", "nil"),
        ("LOCK.MRELEASE 1 k b", "[nil]"),
        ("LOCK.MRELEASE 2 j k b ALL", "[nil nil]"),
    ] {
        let server = Server::new();
        let mut events = Events::of(&server);
        let mut scene = Scene::new(&server);
        scene.play(DETACHED);
        scene.row(release, reply);
        scene.expect("k", "a holds; c");
        scene.expect_numbers(0, 1, 0);
        assert_eq!(events.since(), ["acquire k", "wait k", "wait k"], "{release}");
        scene.play(&[("LOCK.RELEASE k a", "0"), ("c:", "#2")]);
    }
}

#[test]
fn a_release_answers_null_to_the_request_that_waits_at_the_place() {
    // A helper that is cancelled releases over another connection, and reads the null of the first.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("LOCK.RELEASE k b", "nil | b: nil | c: waits"),
    ]);
    scene.expect("k", "a holds; c");
    scene.expect_numbers(0, 1, 0);
}

#[test]
fn an_offer_is_released_like_a_hold() {
    // Null would say that there was nothing: the client must know that it had just been granted.
    for (release, reply) in [("LOCK.RELEASE k b", "0"), ("LOCK.RELEASE k b ALL", "0"), ("LOCK.MRELEASE 1 k b", "[0]")] {
        let server = Server::new();
        let mut events = Events::of(&server);
        let mut scene = Scene::new(&server);
        scene.play(DETACHED);
        scene.row("LOCK.RELEASE k a", "0");
        scene.expect("k", "b is offered; c");
        scene.play(&[(release, reply), ("c:", "#2")]);
        scene.expect_numbers(0, 0, 0);
        let waited = ["acquire k", "wait k", "wait k"];
        let rest = ["release k", "acquire k", "release k", "acquire k"];
        assert_eq!(events.since(), [&waited[..], &rest].concat(), "{release}");
        assert_eq!(scene.number("lock_taken_back"), 0);
        scene.row("LOCK.RELEASE k b", "nil");
    }
}

#[test]
fn break_ends_and_counts_offers_without_a_row_in_the_log_and_places_stay() {
    // The log shows whose work was cut short. No client has worked under an offer.
    let server = Server::new();
    let mut events = Events::of(&server);
    let mut scene = Scene::new(&server);
    scene.play(DETACHED);
    scene.play(&[("LOCK.ACQUIRE k d QUEUE 60000", "nil"), ("LOCK.RELEASE k a", "0")]);
    scene.expect("k", "b is offered; c d");
    events.since();
    scene.play(&[("LOCK.BREAK k", "1"), ("c:", "#2"), ("LOCK.LOG", "[]")]);
    assert_eq!(events.since(), ["break k", "acquire k"]);
    scene.expect("k", "c holds; d");
    scene.expect_numbers(1, 0, 0);
    assert_eq!(["lock_broken", "lock_taken_back"].map(|field| scene.number(field)), [1, 0]);
    // A hold is a hold.
    scene.row("LOCK.BREAK k", "1");
    assert_eq!(scene.stage.ask(&["LOCK.LOG"]).items().len(), 1);
    scene.expect("k", "d is offered");
    assert_eq!(scene.number("lock_broken"), 2);
}

#[test]
fn break_of_an_owner_ends_its_place_or_its_offer() {
    let mut scene = Scene::alone();
    scene.play(DETACHED);
    scene.play(&[("d: LOCK.ACQUIRE k d BLOCK 0 QUEUE 60000", "waits"), ("LOCK.BREAK k b", "0")]);
    scene.expect("k", "a holds; c d");
    // A client that waits there learns of it; one without QUEUE has no place.
    scene.play(&[("LOCK.BREAK k d", "0"), ("d:", "nil"), ("LOCK.BREAK k c", "0"), ("c:", "waits")]);
    scene.expect("k", "a holds; c");
    scene.play(&[("LOCK.RELEASE k a", "0"), ("c:", "#2"), ("LOCK.ACQUIRE k b QUEUE 60000", "nil")]);
    scene.play(&[("LOCK.RELEASE k c", "0"), ("LOCK.BREAK k b", "1"), ("LOCK.LOG", "[]")]);
    scene.expect("k", "free");
    assert_eq!(scene.stage.ask(&["LOCK.ACQUIRE", "k", "x"]).code(), "");
}
