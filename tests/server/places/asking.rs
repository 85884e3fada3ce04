//! Asking for a place, and asking again: without and with BLOCK, over the same connection or another.

use super::{Scene, TAKEN_OVER, patient_server};
use crate::harness::connection::{Connection, Reply};
use crate::harness::transcript::Row;
use testbed::Server;

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
            "[mode write fence #1 shares 0 holding 1 holders [[owner a mode write reads 0 writes 1 fence #1 ttl_ms ~ held_ms ~ \
             offered 0 session nil client nil note nil]] waiting 2 waiters [\
             [owner b mode write limit nil take nil waited_ms ~ left_ms nil queue_left_ms ~ keys 1 client nil] \
             [owner c mode read limit nil take nil waited_ms ~ left_ms nil queue_left_ms ~ keys 1 client nil]] reserved_by nil]",
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
    let server = patient_server();
    let mut scene = Scene::new(&server);
    scene.play(TWO);
    scene.stage.leave("b");
    is_kept(&mut scene);
}

#[test]
fn a_client_that_is_killed_or_unblocked_keeps_its_place() {
    for end in [
        &[("CLIENT KILL ID %b", "1"), ("b:", "closed")][..],
        &[("CLIENT UNBLOCK %b TIMEOUT", "1"), ("b:", "nil")],
        &[("CLIENT UNBLOCK %b ERROR", "1"), ("b:", "UNBLOCKED client unblocked via CLIENT UNBLOCK")],
    ] {
        let mut scene = Scene::owning(patient_server());
        scene.play(TWO);
        scene.play(end);
        is_kept(&mut scene);
    }
}

#[test]
fn a_place_ends_when_queue_is_over() {
    // The owner may be dead: those behind must not stand behind it for ever.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.RW k a READ", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 10 QUEUE 300", "nil"),
        ("c: LOCK.RW k c READ BLOCK 0", "waits"),
        // A reader behind a writer waits; behind a place that is over it does not.
        ("c:", "#2"),
    ]);
    scene.expect("k", "a holds c holds");
    scene.expect_numbers(0, 0, 0);
    let ends = ["lock_timed_out", "lock_cancelled", "lock_taken_back", "lock_lapsed"];
    assert_eq!(ends.map(|field| scene.number(field)), [1, 0, 0, 0], "{ends:?}: once, when the place is over");
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

#[test]
fn a_request_with_queue_gives_queue_to_the_one_without_that_waits_already() {
    // The rules of places hold where either of the two has QUEUE.
    let server = patient_server();
    let mut scene = Scene::new(&server);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("b:", "waits"),
    ]);
    scene.expect_numbers(1, 2, 0);
    scene.play(&[("b2: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"), ("b:", TAKEN_OVER)]);
    scene.stage.leave("b2");
    is_kept(&mut scene);
}

#[test]
fn queue_is_that_of_the_last_request() {
    // An owner that shortens it would hold up the queue for longer than it said, or lose its place too early.
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 1000", "nil")]);
    scene.row("LOCK.ACQUIRE k b QUEUE 60000", "nil");
    assert!((50_000..=60_000).contains(&scene.of("waiters", "queue_left_ms").int()));
    scene.row("LOCK.ACQUIRE k b QUEUE 300", "nil");
    scene.stage.until("lock_places", 0);
    scene.expect("k", "a holds");
    // Of one that waits it counts from the end of its request.
    scene.play(&[
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
        ("LOCK.ACQUIRE k b QUEUE 50", "nil"),
        (
            "LOCK.INFO k COUNT 0",
            "[mode write fence #1 shares 0 holding 1 holders [] waiting 1 waiters [] reserved_by nil]",
        ),
    ]);
    scene.stage.leave("b");
    scene.stage.until("lock_places", 0);
    scene.expect("k", "a holds");
}

#[test]
fn without_queue_but_with_retry_and_block_the_place_is_taken_over_and_ends_with_its_connection() {
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("b2: LOCK.ACQUIRE k b BLOCK 0 RETRY 1", "waits"),
        ("b:", TAKEN_OVER),
    ]);
    scene.expect("k", "a holds; b c");
    scene.expect_numbers(0, 2, 0);
    scene.stage.leave("b2");
    scene.expect("k", "a holds; c");
}

#[test]
fn without_queue_and_without_retry_block_is_refused_while_the_place_stands() {
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k b BLOCK 0", "ERR owner already waits there: use RETRY"),
    ]);
    scene.expect("k", "a holds; b");
    scene.expect_numbers(1, 0, 0);
}

#[test]
fn without_queue_and_block_it_tries_once_and_the_place_is_not_renewed() {
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b QUEUE 500", "nil")]);
    let mut wire = Connection::resp2(&server);
    let mut tries = 0;
    // Each would give it 500 ms more.
    while scene.number("lock_places") > 0 {
        let again = if tries % 2 == 0 { "LOCK.ACQUIRE k b" } else { "LOCK.ACQUIRE k b RETRY 1" };
        assert_eq!(wire.say(again), Reply::Null);
        tries += 1;
        assert!(tries < 1_000_000, "the place stands for ever");
    }
    scene.expect("k", "a holds");
}
