//! Places in the queues of several keys (MACQUIRE): one place, one offer.

use super::{Scene, TAKEN_OVER};
use crate::harness::connection::Reply;
use crate::harness::transcript::Row;
use testbed::Server;

const GONE_ALL: &str = "[nil nil]";

#[test]
fn one_place_stands_in_all_queues_and_is_kept_as_one() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("m: LOCK.MACQUIRE 2 k j b BLOCK 0 QUEUE 60000", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("LOCK.MACQUIRE 2 k j b QUEUE 60000", "nil"),
        ("m2: LOCK.MACQUIRE 2 k j b BLOCK 0 QUEUE 60000", "waits"),
        ("m:", TAKEN_OVER),
    ]);
    scene.expect_numbers(1, 2, 0);
    scene.stage.leave("m2");
    assert_eq!([scene.on("k"), scene.on("j")], ["a holds; b c", "b"]);
    scene.expect_numbers(1, 1, 0);
    // Over as one, too.
    scene.row("LOCK.MACQUIRE 2 k j b QUEUE 300", "nil");
    scene.stage.until("lock_places", 0);
    assert_eq!([scene.on("k"), scene.on("j")], ["a holds; c", "free"]);
}

/// An offer of two keys, and a client that waits for the second.
const OFFERED: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.MACQUIRE 2 k j b QUEUE 60000", "nil"),
    ("c: LOCK.ACQUIRE j c BLOCK 0", "waits"),
    ("LOCK.RELEASE k a", "0"),
];

#[test]
fn it_is_offered_and_collected_all_at_once() {
    // A part of it is of no use, and would hold what others wait for.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(OFFERED);
    assert_eq!([scene.on("k"), scene.on("j")], ["b is offered", "b is offered; c"]);
    scene.expect_numbers(0, 1, 1);
    scene.row("LOCK.MACQUIRE 2 k j b PX 500000 QUEUE 60000", "[#2 #3]");
    assert_eq!([scene.on("k"), scene.on("j")], ["b holds", "b holds; c"]);
    scene.expect_numbers(0, 1, 0);
    assert!(scene.of("holders", "ttl_ms").int() > 60_000);
    scene.play(&[("LOCK.MRELEASE 2 k j b", "[0 0]"), ("c:", "#4")]);
}

#[test]
fn an_offer_of_several_keys_that_is_not_collected_is_taken_back_on_each() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.MACQUIRE 2 k j b QUEUE 400", "nil"),
        ("c: LOCK.ACQUIRE j c BLOCK 0", "waits"),
        ("LOCK.RELEASE k a", "0"),
        ("c:", "#2"),
    ]);
    scene.stage.until("lock_taken_back", 2);
    assert_eq!([scene.on("k"), scene.on("j")], ["free", "c holds"]);
    scene.expect_numbers(0, 0, 0);
    assert_eq!(scene.number("lock_lapsed"), 0);
}

#[test]
fn if_one_offered_hold_is_gone_the_others_are_taken_back_and_the_request_is_judged_anew() {
    // To collect what is left would be a grant of some of the keys.
    for gone in ["DEL k", "LOCK.BREAK k"] {
        let server = Server::new();
        let mut scene = Scene::new(&server);
        scene.play(OFFERED);
        scene.row(gone, "1");
        // Another has the first key meanwhile.
        scene.row("LOCK.ACQUIRE k x", "#2");
        scene.expect("j", "b is offered; c");
        scene.play(&[("LOCK.MACQUIRE 2 k j b QUEUE 60000", "nil"), ("c:", "#3")]);
        assert_eq!([scene.on("k"), scene.on("j")], ["x holds; b", "c holds; b"], "{gone}");
        scene.expect_numbers(1, 0, 0);
        assert_eq!(["lock_taken_back", "lock_lapsed"].map(|field| scene.number(field)), [1, 0]);
    }
}

#[test]
fn an_offered_hold_that_goes_over_another_one_of_the_offer_leaves_it_without_one() {
    for (way, on_k) in [("RENAME k j", "free"), ("RENAME j k", "b is offered")] {
        let server = Server::new();
        let mut scene = Scene::new(&server);
        scene.play(&[
            ("LOCK.ACQUIRE k a", "#1"),
            ("LOCK.MACQUIRE 2 k j b QUEUE 60000", "nil"),
            ("LOCK.RELEASE k a", "0"),
            (way, "OK"),
        ]);
        scene.expect("k", on_k);
        scene.expect_numbers(0, 0, 1);
        // What is left of it is taken back, and the request is judged anew.
        scene.row("LOCK.MACQUIRE 2 k j b QUEUE 60000", "[#2 #3]");
        assert_eq!([scene.on("k"), scene.on("j")], ["b holds"; 2], "{way}");
        scene.expect_numbers(0, 0, 0);
    }
}

#[test]
fn judged_anew_it_is_granted_where_no_other_waits() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.MACQUIRE 3 k j i b QUEUE 60000", "nil"),
        ("LOCK.RELEASE k a", "0"),
        ("DEL j", "1"),
        ("LOCK.MACQUIRE 3 k j i b QUEUE 60000", "[#2 #3 #4]"),
    ]);
    assert_eq!(["k", "j", "i"].map(|key| scene.on(key)), ["b holds"; 3]);
    assert_eq!([scene.of("holders", "writes"), scene.of("holders", "note")], [Reply::Int(1), Reply::Null]);
    scene.expect_numbers(0, 0, 0);
}

#[test]
fn a_release_of_any_of_its_keys_ends_the_place_in_all_queues() {
    for (release, reply) in
        [("LOCK.RELEASE j b", "nil"), ("LOCK.RELEASE k b ALL", "nil"), ("LOCK.MRELEASE 2 k j b", GONE_ALL)]
    {
        let server = Server::new();
        let mut scene = Scene::new(&server);
        scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("m: LOCK.MACQUIRE 2 k j b BLOCK 0 QUEUE 60000", "waits")]);
        scene.play(&[("c: LOCK.ACQUIRE j c BLOCK 0", "waits"), (release, reply), ("m:", "nil"), ("c:", "#2")]);
        assert_eq!([scene.on("k"), scene.on("j")], ["a holds", "c holds"], "{release}");
        scene.expect_numbers(0, 0, 0);
    }
}

#[test]
fn a_release_of_any_of_its_keys_ends_the_offer_of_all() {
    for (release, reply) in
        [("LOCK.RELEASE k b", "0"), ("LOCK.RELEASE j b ALL", "0"), ("LOCK.MRELEASE 2 k j b", "[0 0]")]
    {
        let server = Server::new();
        let mut scene = Scene::new(&server);
        scene.play(OFFERED);
        scene.play(&[(release, reply), ("c:", "#2")]);
        assert_eq!([scene.on("k"), scene.on("j")], ["free", "c holds"], "{release}");
        scene.expect_numbers(0, 0, 0);
        assert_eq!(["lock_taken_back", "lock_lapsed"].map(|field| scene.number(field)), [0, 0]);
    }
}

#[test]
fn what_its_owner_held_of_the_keys_before_is_no_part_of_the_offer() {
    // A hold that was there before is never cut nor taken back.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k b PX 500000 NOTE mine", "#1"),
        ("LOCK.ACQUIRE j a", "#2"),
        ("LOCK.MACQUIRE 2 k j b QUEUE 400", "nil"),
        ("LOCK.RELEASE j a", "0"),
    ]);
    assert_eq!([scene.on("k"), scene.on("j")], ["b holds", "b is offered"]);
    scene.stage.until("lock_taken_back", 1);
    assert_eq!([scene.on("k"), scene.on("j")], ["b holds", "free"]);
    assert!(scene.of("holders", "ttl_ms").int() > 60_000);
    assert_eq!([scene.of("holders", "writes"), scene.of("holders", "note")], [Reply::Int(1), Reply::bulk("mine")]);
    // And collected, it is asked for as any hold is: nothing is added.
    scene.play(&[
        ("LOCK.ACQUIRE j a", "#3"),
        ("LOCK.MACQUIRE 2 k j b QUEUE 60000", "nil"),
        ("LOCK.RELEASE j a", "0"),
        ("LOCK.MACQUIRE 2 k j b QUEUE 60000", "[#1 #4]"),
    ]);
    assert_eq!(scene.of("holders", "writes"), Reply::Int(1));
    scene.expect_numbers(0, 0, 0);
}
