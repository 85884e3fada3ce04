//! Places in the queues of several keys (MACQUIRE): one place, one offer.

use super::Scene;
use crate::harness::texts::TAKEN_OVER;

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
