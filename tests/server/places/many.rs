//! Places in the queues of several keys (MACQUIRE): one place, one offer.

use super::{Scene, TAKEN_OVER};
use crate::harness::transcript::Row;

#[test]
fn one_place_stands_in_all_queues_and_is_kept_as_one() {
    let mut scene = Scene::alone();
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
    let mut scene = Scene::alone();
    scene.play(OFFERED);
    assert_eq!([scene.on("k"), scene.on("j")], ["b is offered", "b is offered; c"]);
    scene.expect_numbers(0, 1, 1);
    scene.row("LOCK.MACQUIRE 2 k j b PX 500000 QUEUE 60000", "[#2 #3]");
    assert_eq!([scene.on("k"), scene.on("j")], ["b holds", "b holds; c"]);
    scene.expect_numbers(0, 1, 0);
    assert!(scene.of("holders", "ttl_ms").int() > 60_000);
    scene.play(&[("LOCK.MRELEASE 2 k j b", "[0 0]"), ("c:", "#4")]);
}
