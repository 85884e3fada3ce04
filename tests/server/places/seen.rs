//! What INFO, LOCK.INFO and LOCK.TOP show of places and offers.

use super::Scene;
use crate::harness::connection::{Connection, Reply};
use crate::harness::servers::subscribers_can_wait;
use testbed::{Server, wait_for};

#[test]
fn info_counts_places_parked_clients_and_offers_apart() {
    // lock_waiters is what lock.max-waiters limits, lock_places what lock.max-places does.
    let mut scene = Scene::alone();
    scene.row("LOCK.ACQUIRE k a", "#1");
    scene.expect_numbers(0, 0, 0);
    scene.row("b: LOCK.ACQUIRE k b BLOCK 0", "waits");
    scene.expect_numbers(0, 1, 0);
    scene.row("c: LOCK.ACQUIRE k c BLOCK 0 QUEUE 60000", "waits");
    scene.expect_numbers(1, 2, 0);
    scene.row("LOCK.ACQUIRE k d QUEUE 60000", "nil");
    scene.expect_numbers(2, 2, 0);
    assert_eq!(scene.stage.ask(&["LOCK.INFO", "k"]).field("waiting"), Reply::Int(3));
    scene.row("CLIENT UNBLOCK %c", "1");
    scene.expect_numbers(2, 1, 0);
    scene.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2")]);
    scene.expect_numbers(2, 0, 0);
    scene.row("LOCK.RELEASE k b", "0");
    scene.expect_numbers(1, 0, 1);
    assert_eq!(scene.number("lock_contended_keys"), 1);
    scene.row("LOCK.RELEASE k c", "0");
    scene.expect_numbers(0, 0, 1);
    scene.row("LOCK.ACQUIRE k d", "#3");
    scene.expect_numbers(0, 0, 0);
    let counted = ["lock_granted", "lock_handed_off", "lock_queued", "lock_refused", "lock_timed_out"];
    // Each wait counts once when it begins and once when it ends, however many requests it has. Handed off: to b, to
    // c, to d. Refused: the request of d that was answered null.
    assert_eq!(counted.map(|field| scene.number(field)), [4, 3, 3, 1, 0], "{counted:?}");
    // A place's wait that ends in an offer is a wait: of b, c and d.
    assert!(scene.number("lock_wait_max_us") > 0);
}

#[test]
fn a_place_whose_client_cannot_be_parked_counts_as_queued() {
    // Valkey parks no client that has subscribed to a channel: it gets null, and its place stands all the same.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    let mut subscriber = Connection::resp3(&server);
    assert!(matches!(subscriber.say("SUBSCRIBE news"), Reply::Push(_)));
    subscriber.send(&["LOCK.ACQUIRE", "k", "b", "BLOCK", "0", "QUEUE", "60000"]);
    wait_for("it to stand in the queue", || scene.number("lock_places") == 1);
    let parked = u64::from(subscribers_can_wait());
    scene.expect_numbers(1, parked, 0);
    let counted = ["lock_queued", "lock_refused"];
    assert_eq!(counted.map(|field| scene.number(field)), [1, 1 - parked], "{counted:?}");
    if parked == 0 {
        assert_eq!(subscriber.read(), Reply::Null);
    }
    // As for each wait that is counted, its end is.
    scene.row("LOCK.RELEASE k a", "0");
    assert_eq!(scene.number("lock_handed_off"), 1);
}

#[test]
fn lock_info_shows_what_an_offer_is() {
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.RW k b READ QUEUE 60000", "nil"),
        ("LOCK.RELEASE k a", "0"),
        ("LOCK.RW k b READ QUEUE 60000", "#2"),
        ("LOCK.RW k c READ QUEUE 60000", "#3"),
        ("LOCK.ACQUIRE k d QUEUE 60000", "nil"),
        ("LOCK.RELEASE k b", "0"),
        ("LOCK.RELEASE k c", "0"),
        ("LOCK.ACQUIRE k e QUEUE 60000", "nil"),
    ]);
    let fence = scene.of("holders", "fence").int();
    assert_eq!(scene.stage.name_of(fence), "#4");
    scene.play(&[
        (
            "LOCK.INFO k",
            "[mode write fence #4 holding 1 holders [[owner d mode write writes 1 fence #4 \
             offered 1]] waiting 1 waiters [\
             [owner e mode write queue_left_ms ~ client nil]]]",
        ),
        ("LOCK.INFO k OWNER e", "nil"),
    ]);
    let top = scene.stage.ask(&["LOCK.TOP"]);
    let wait = top.field("waits").items().remove(0);
    assert_eq!([wait.field("owner"), wait.field("client")], [Reply::bulk("e"), Reply::Null]);
}

#[test]
fn a_place_that_is_over_is_not_shown_and_no_newcomer_waits_for_it() {
    // The timer may be late: a place that is over counts nowhere.
    let server = Server::new();
    let mut scene = Scene::new(&server);
    scene.play(&[("LOCK.RW k a READ", "#1"), ("LOCK.ACQUIRE k b QUEUE 50", "nil")]);
    let mut wire = Connection::resp2(&server);
    // In one turn of the event loop, so that no timer comes between.
    wire.send_line("DEBUG SLEEP 0.1\r\nLOCK.INFO k\r\nLOCK.RW k c READ\r\nLOCK.RW k d READ BLOCK 0");
    assert_eq!(wire.read(), Reply::simple("OK"));
    let (info, tried) = (wire.read(), wire.read());
    assert_eq!((info.field("waiting"), tried != Reply::Null), (Reply::Int(0), true), "shown, and let in: {info:?}");
    wire.read().int();
    scene.expect("k", "a holds c holds d holds");
}
