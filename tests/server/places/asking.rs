//! Asking for a place, and asking again: without and with BLOCK, over the same connection or another.

use super::{Scene, patient_server};
use crate::harness::connection::Reply;
use crate::harness::texts::{TAKEN_OVER, UNBLOCKED};
use crate::harness::transcript::Row;

#[test]
fn without_block_the_owner_is_answered_null_and_stands_in_the_queue() {
    // A client that may not block would be passed by all that may.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a QUEUE 60000", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("LOCK.RW k c READ QUEUE 60000", "nil"),
        (
            "LOCK.INFO k",
            "[mode write fence #1 holding 1 holders [[owner a mode write writes 1 fence #1]] \
             waiting 2 waiters [\
             [owner b mode write queue_left_ms ~ client nil] [owner c mode read queue_left_ms ~ client nil]]]",
        ),
    ]);
    scene.expect_numbers(2, 0, 0);
    scene.row("LOCK.RELEASE k a", "0");
    scene.expect("k", "b is offered; c");
    scene.play(&[("LOCK.RW k c READ QUEUE 60000", "nil"), ("LOCK.ACQUIRE k b QUEUE 60000", "#2")]);
    scene.row("LOCK.RELEASE k b", "0");
    scene.expect("k", "c is offered");
    scene.row("LOCK.RW k c READ QUEUE 60000", "#3");
    scene.expect_numbers(0, 0, 0);
}

#[test]
fn with_block_it_waits_and_is_granted_like_any_waiter() {
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b PX 50000 NOTE mine BLOCK 0 QUEUE 1", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
    ]);
    scene.expect_numbers(1, 2, 0);
    assert_eq!(scene.of("waiters", "queue_left_ms"), Reply::Null);
    scene.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2"), ("c:", "waits")]);
    // It was delivered, so QUEUE has nothing to say any more.
    scene.expect("k", "b holds; c");
    assert_eq!(scene.of("holders", "note"), Reply::bulk("mine"));
    assert!((40_000..=50_000).contains(&scene.of("holders", "ttl_ms").int()));
    scene.expect_numbers(0, 1, 0);
}

/// The place of `b` is still the first, it has no client, and it is kept for QUEUE from now.
fn is_kept(scene: &mut Scene<'_>) {
    scene.expect("k", "a holds; b c");
    scene.expect_numbers(1, 1, 0);
    assert!((50_000..=60_000).contains(&scene.of("waiters", "queue_left_ms").int()));
    scene.row("LOCK.RELEASE k a", "0");
    scene.expect("k", "b is offered; c");
    scene.play(&[("c:", "waits"), ("LOCK.ACQUIRE k b QUEUE 60000", "#2")]);
    let ends = ["lock_handed_off", "lock_timed_out", "lock_cancelled"];
    assert_eq!(ends.map(|field| scene.number(field)), [1, 0, 0], "{ends:?}: the wait went on until the grant");
}

/// A client that waits at a place, and another behind it.
const TWO: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
    ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
];

#[test]
fn after_null_the_place_is_kept() {
    // A client that polls in slices would join at the end each time.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 50 QUEUE 60000", "nil"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
    ]);
    is_kept(&mut scene);
}

#[test]
fn a_closed_connection_keeps_the_place() {
    // A socket's timeout in a client library closes the connection, and the request comes again.
    let mut scene = Scene::owning(patient_server());
    scene.play(TWO);
    scene.stage.leave("b");
    is_kept(&mut scene);
}

#[test]
fn a_client_that_is_killed_or_unblocked_keeps_its_place() {
    for end in [
        &[("CLIENT KILL ID %b", "1"), ("b:", "closed")][..],
        &[("CLIENT UNBLOCK %b TIMEOUT", "1"), ("b:", "nil")],
        &[("CLIENT UNBLOCK %b ERROR", "1"), ("b:", UNBLOCKED)],
    ] {
        let mut scene = Scene::owning(patient_server());
        scene.play(TWO);
        scene.play(end);
        is_kept(&mut scene);
    }
}

#[test]
fn asking_again_with_block_takes_the_place_over_and_the_old_request_is_told() {
    // Null would tell the old client that its time was up, and it would ask again for ever.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("b2: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
        ("b:", TAKEN_OVER),
        // Also the one whose connection is at hand still.
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
        ("b2:", TAKEN_OVER),
    ]);
    scene.expect("k", "a holds; b c");
    scene.expect_numbers(1, 2, 0);
    scene.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2"), ("c:", "waits")]);
}
