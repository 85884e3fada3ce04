//! The options of requests with QUEUE: which request's count, how they count, and which are refused.

use super::Scene;
use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::transcript::{each, play_in};
use testbed::Server;

#[test]
fn px_note_and_session_are_those_of_the_request_that_is_answered_with_the_fence() {
    // A place that kept the options of its first request would grant a lease that no living request asked for.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("b: LOCK.ACQUIRE k b PX 11 NOTE first SESSION 11 BLOCK 10 QUEUE 60000", "nil"),
        ("b2: LOCK.ACQUIRE k b PX 50000 NOTE second SESSION 22 BLOCK 0 QUEUE 60000", "waits"),
        ("LOCK.RELEASE k a", "0 | b2: #2"),
    ]);
    assert_eq!(scene.of("holders", "note"), Reply::bulk("second"));
    assert_eq!(scene.of("holders", "session"), Reply::Int(22));
    assert!((40_000..=50_000).contains(&scene.of("holders", "ttl_ms").int()));
    // Nor does an offer keep any, whether its request waited or not.
    for (first, again, collected) in [
        (
            "c: LOCK.ACQUIRE k c PX 11 NOTE first SESSION 11 BLOCK 10 QUEUE 60000",
            "LOCK.ACQUIRE k c PX 40000 QUEUE 100",
            "#3",
        ),
        ("c: LOCK.ACQUIRE k d PX 11 NOTE first SESSION 11 QUEUE 60000", "LOCK.ACQUIRE k d PX 40000 QUEUE 100", "#4"),
    ] {
        scene.row(first, "nil");
        scene.stage.ask(&["LOCK.BREAK", "k"]);
        assert_eq!(scene.of("holders", "offered"), Reply::Int(1));
        assert_eq!(["note", "session"].map(|field| scene.of("holders", field)), [Reply::Null, Reply::Null], "{first}");
        scene.row(again, collected);
        assert_eq!(["note", "session"].map(|field| scene.of("holders", field)), [Reply::Null, Reply::Null], "{first}");
        assert!((30_000..=40_000).contains(&scene.of("holders", "ttl_ms").int()), "{first}");
    }
    scene.stage.leave("c");
    scene.expect("k", "d holds");
}

#[test]
fn the_default_lease_counts_when_the_request_that_collects_names_none() {
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k b PX 1000 QUEUE 60000", "nil")]);
    scene.play(&[("LOCK.RELEASE k a", "0"), ("LOCK.ACQUIRE k b", "#2")]);
    assert!((20_000..=30_000).contains(&scene.of("holders", "ttl_ms").int()));
}

const OTHER_MODE: &str = "ERR owner stands there in another mode: release that first";

#[test]
fn another_mode_is_refused_while_the_place_or_the_offer_stands() {
    // At most one place of an owner on a key: else its release would not say which it leaves.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("LOCK.RW k b READ QUEUE 60000", OTHER_MODE),
        ("LOCK.RW k b READ BLOCK 0", OTHER_MODE),
        ("LOCK.RW k b READ", OTHER_MODE),
        ("LOCK.RW k b WRITE QUEUE 60000", "nil"),
    ]);
    scene.expect("k", "a holds; b");
    scene.row("LOCK.RELEASE k a", "0");
    scene.expect("k", "b is offered");
    scene.play(&[("LOCK.RW k b READ QUEUE 60000", OTHER_MODE), ("LOCK.RW k b READ", OTHER_MODE)]);
    scene.expect("k", "b is offered");
    scene.play(&[("LOCK.ACQUIRE k b QUEUE 60000", "#2"), ("LOCK.RW k b READ QUEUE 60000", "#2")]);
    // Where a request waits without QUEUE, the new one's counts.
    scene.play(&[
        ("c: LOCK.RW k c READ BLOCK 0", "waits"),
        ("LOCK.RW k c WRITE QUEUE 60000", OTHER_MODE),
        ("c:", "waits"),
    ]);
}

#[test]
fn other_keys_are_refused_while_the_place_or_the_offer_stands() {
    let other_keys = "ERR owner stands there with other keys: release that first";
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.MACQUIRE 2 k j b QUEUE 60000", "nil")]);
    scene.play(&each(&[
        ("LOCK.{ACQUIRE k|ACQUIRE j|MACQUIRE 2 j k|MACQUIRE 3 k j i} b QUEUE 60000", other_keys),
        ("LOCK.{ACQUIRE j b|ACQUIRE k b BLOCK 0 RETRY 1|MACQUIRE 2 j i b BLOCK 0 RETRY 1}", other_keys),
    ]));
    scene.row("LOCK.MACQUIRE 2 k j b READ QUEUE 60000", OTHER_MODE);
    scene.expect("k", "a holds; b");
    scene.play(&[("LOCK.ACQUIRE i b QUEUE 60000", "#2"), ("LOCK.RELEASE k a", "0")]);
    assert_eq!([scene.on("k"), scene.on("j")], ["b is offered", "b is offered"]);
    for again in ["LOCK.ACQUIRE k b QUEUE 60000", "LOCK.ACQUIRE j b", "LOCK.MACQUIRE 2 j k b QUEUE 60000"] {
        scene.row(again, other_keys);
    }
    scene.row("LOCK.MACQUIRE 2 k j b QUEUE 60000", "[#3 #4]");
}

#[test]
fn an_owner_that_the_server_makes_cannot_have_a_place() {
    // No later request could name it.
    let refused = "ERR QUEUE needs an owner of your own: * is another one each time";
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k * QUEUE 1000", refused),
        ("LOCK.RW k * READ BLOCK 10 QUEUE 1000", refused),
        ("LOCK.MACQUIRE 2 k j * QUEUE 1000", refused),
    ]);
    scene.expect("k", "free");
}

#[test]
fn queue_is_from_one_to_the_configured_most() {
    let mut scene = Scene::alone();
    let range = "ERR QUEUE must be a whole number from 1 to 60000";
    scene.play(&each(&[
        ("LOCK.ACQUIRE k a QUEUE {0|60001|-1|x}", range),
        ("LOCK.ACQUIRE k a QUEUE", "ERR QUEUE needs a value"),
        ("LOCK.ACQUIRE k a QUEUE 1 QUEUE 2", "ERR QUEUE is given twice"),
        ("LOCK.{EXTEND k a PX 5|RELEASE k a} QUEUE 1", "ERR unknown option \"QUEUE\""),
        ("LOCK.ACQUIRE k a QUEUE 1", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("CONFIG SET lock.max-queue-ms 1000", "OK"),
        ("LOCK.{ACQUIRE|MACQUIRE 1} k c QUEUE 1001", "ERR QUEUE must be a whole number from 1 to 1000"),
        ("LOCK.ACQUIRE k c QUEUE 1000", "nil"),
    ]));
    // What stands is kept for what it was promised.
    assert!(scene.of("waiters", "queue_left_ms").int() > 1000);
}

#[test]
fn an_upgrade_has_no_place_and_is_granted_at_once_when_it_is_alone() {
    // An upgrade that no client waits for would hold what every other waits for.
    let refused = "ERR QUEUE cannot wait for an upgrade: use BLOCK";
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.RW k a READ", "#1"),
        ("LOCK.RW k b READ", "#2"),
        ("LOCK.RW k a WRITE QUEUE 60000", refused),
        ("LOCK.RW k a WRITE BLOCK 0 QUEUE 60000", refused),
        ("LOCK.MACQUIRE 2 j k a QUEUE 60000", refused),
    ]);
    scene.expect("k", "a holds b holds");
    scene.expect("j", "free");
    scene.expect_numbers(0, 0, 0);
    scene.play(&[("LOCK.RELEASE k b", "0"), ("LOCK.RW k a WRITE QUEUE 60000", "#3")]);
    scene.expect("k", "a holds");
}

#[test]
fn in_a_transaction_a_script_or_a_function_queue_alone_counts() {
    // Nothing blocks there, and a place needs no connection.
    let rows = &[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k c QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("LOCK.RELEASE k a", "0"),
        ("LOCK.ACQUIRE k c QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "#2"),
        ("LOCK.RELEASE k b", "0"),
        ("LOCK.RELEASE k c", "0"),
        ("EXISTS k", "0"),
    ];
    let server = Server::new();
    play_in(&server, &[Way::Exec, Way::Script, Way::Function], rows);
    let mut scene = Scene::new(&server);
    scene.expect_numbers(0, 0, 0);
    assert_eq!(scene.number("lock_queued"), 3 * 2);
    // One that waits goes on waiting.
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits")]);
    let mut wire = Connection::resp2(&server);
    for way in [Way::Exec, Way::Script] {
        let words = ["LOCK.ACQUIRE", "k", "b", "BLOCK", "0", "QUEUE", "60000"];
        assert_eq!(wire.ask_by(way, &words), Reply::Null, "{way:?}");
    }
    scene.play(&[("b:", "waits"), ("LOCK.RELEASE k a", "0"), ("b:", "#2")]);
}
