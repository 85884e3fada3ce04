//! What the server does to the keys of places and offers beside commands of locks.

use super::Scene;
use crate::harness::connection::Reply;
use crate::harness::payload::{dump, restore_over};
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::Row;
use testbed::{Server, wait_for};

/// Of a key: a place without a client. Of another: an offer.
const BOTH: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
    ("LOCK.ACQUIRE o a", "#2"),
    ("LOCK.ACQUIRE o b QUEUE 60000", "nil"),
    ("LOCK.ACQUIRE o c QUEUE 60000", "nil"),
    ("LOCK.RELEASE o a", "0"),
];

#[test]
fn del_and_flushall_end_offers_and_serve_places() {
    for (command, reply) in [("DEL k o", "2"), ("UNLINK k o", "2"), ("FLUSHALL", "OK"), ("FLUSHDB", "OK")] {
        let mut scene = Scene::alone();
        scene.play(BOTH);
        scene.row(command, reply);
        wait_for(command, || [scene.on("k"), scene.on("o")] == ["b is offered", "c is offered"]);
        scene.expect_numbers(0, 0, 2);
        scene.play(&[("LOCK.ACQUIRE o b", "nil"), ("LOCK.ACQUIRE k b", "#3"), ("LOCK.ACQUIRE o c", "#4")]);
        scene.expect_numbers(0, 0, 0);
        assert_eq!(["lock_lapsed", "lock_taken_back"].map(|field| scene.number(field)), [0, 0], "{command}");
    }
}

#[test]
fn renamed_an_offer_goes_along_and_places_stay_with_the_name() {
    let mut scene = Scene::alone();
    scene.play(BOTH);
    scene.row("RENAME o p", "OK");
    scene.expect("p", "b is offered");
    wait_for("the next to be served", || scene.on("o") == "c is offered");
    scene.expect_numbers(1, 0, 2);
    // It is collected where it lies.
    scene.play(&[("LOCK.ACQUIRE o b QUEUE 60000", "nil"), ("LOCK.ACQUIRE p b PX 500000 QUEUE 60000", "#3")]);
    assert_eq!([scene.on("p"), scene.on("o")], ["b holds", "c is offered; b"]);
    scene.row("RENAME k q", "OK");
    wait_for("the place to be served", || scene.on("k") == "b is offered");
    scene.expect("q", "a holds");
    // One that nobody collects ends where it lies.
    scene.play(&[("LOCK.ACQUIRE r a", "#4"), ("LOCK.ACQUIRE r d QUEUE 300", "nil"), ("LOCK.RELEASE r a", "0")]);
    scene.row("RENAME r s", "OK");
    scene.stage.until("lock_taken_back", 1);
    scene.expect("s", "free");
    assert_eq!(scene.number("lock_lapsed"), 0);
}

#[test]
fn moved_or_swapped_an_offer_goes_along_and_places_stay_with_the_database() {
    for (command, reply) in [("MOVE o 1", "1"), ("SWAPDB 0 1", "OK")] {
        let mut scene = Scene::alone();
        scene.play(BOTH);
        scene.row(command, reply);
        wait_for("the next to be served", || scene.on("o") == "c is offered");
        if command.starts_with("SWAPDB") {
            wait_for("the place to be served", || scene.on("k") == "b is offered");
        } else {
            scene.expect("k", "a holds; b");
        }
        scene.row("SELECT 1", "OK");
        scene.expect("o", "b is offered");
        // It has a fence of its own there, as any hold that was carried.
        let collected = scene.stage.ask(&["LOCK.ACQUIRE", "o", "b", "PX", "500000", "QUEUE", "60000"]).int();
        scene.expect("o", "b holds");
        scene.row("SELECT 0", "OK");
        let offered = scene.stage.ask(&["LOCK.ACQUIRE", "o", "c"]).int();
        assert!(offered > 0 && collected > 0 && offered != collected, "{command}");
        assert_eq!(["lock_lapsed", "lock_taken_back"].map(|field| scene.number(field)), [0, 0], "{command}");
    }
}

/// How the owner `b`, which stands in the queue of `k`, comes to hold it in another way. It holds `j` and, in the other
/// database, `k`.
const OTHER_WAYS: &[&[&str]] = &[
    &["RENAME j k"],
    &["SWAPDB 0 1"],
    &["MULTI", "DEL k", "SELECT 1", "MOVE k 0", "SELECT 0", "EXEC"],
    &["RESTORE k 0 $j REPLACE"],
    &["LOCK.HOLD k a 0 0 $1", "LOCK.HOLD k b 0 1 $2 0 500000"],
];

/// Plays one of them.
fn come_to_hold(scene: &mut Scene<'_>, way: &[&str], fence: i64) {
    let payload = dump(&mut scene.conn, "j");
    for command in way {
        let words: Vec<Vec<u8>> = command
            .split(' ')
            .map(|word| match word {
                "$j" => payload.clone(),
                "$1" => fence.to_string().into_bytes(),
                "$2" => (fence + 10).to_string().into_bytes(),
                word => word.as_bytes().to_vec(),
            })
            .collect();
        let reply = scene.stage.ask(&words);
        assert_eq!(reply.code(), "", "{command}: {reply:?}");
    }
}

#[test]
fn an_owner_that_comes_to_hold_the_key_in_another_way_has_no_place_any_more() {
    // The place would be granted what its owner holds, and then cut or taken back with QUEUE.
    for way in OTHER_WAYS {
        let mut scene = Scene::owning(Server::setup().lock_option("allow-hold", "yes").start());
        scene.play(&[("LOCK.ACQUIRE j b PX 500000", "#1"), ("SELECT 1", "OK"), ("LOCK.ACQUIRE k b PX 500000", "#2")]);
        scene.play(&[("SELECT 0", "OK"), ("LOCK.ACQUIRE k a", "#3"), ("LOCK.ACQUIRE k b QUEUE 300", "nil")]);
        let fence = scene.of("holders", "fence").int();
        come_to_hold(&mut scene, way, fence);
        scene.stage.until("lock_places", 0);
        scene.expect("k", "b holds");
        assert_eq!(scene.number("lock_offered"), 0, "{way:?}");
        // Longer than QUEUE.
        assert!(scene.of("holders", "ttl_ms").int() > 60_000, "{way:?}");
        let reply = scene.stage.ask(&["LOCK.ACQUIRE", "k", "b", "QUEUE", "1000"]);
        assert!(reply.int() > 0, "{way:?}");
        assert_eq!(scene.of("holders", "writes"), Reply::Int(1), "{way:?}: nothing is added");
    }
}

#[test]
fn a_request_that_waits_where_its_owner_comes_to_hold_is_answered_as_any_holder_is() {
    for way in OTHER_WAYS {
        let mut scene = Scene::owning(Server::setup().lock_option("allow-hold", "yes").start());
        scene.play(&[("LOCK.ACQUIRE j b PX 500000", "#1"), ("SELECT 1", "OK"), ("LOCK.ACQUIRE k b PX 500000", "#2")]);
        scene.play(&[
            ("SELECT 0", "OK"),
            ("LOCK.ACQUIRE k a", "#3"),
            ("b: LOCK.ACQUIRE k b PX 1000 BLOCK 0 QUEUE 60000", "waits"),
        ]);
        let fence = scene.of("holders", "fence").int();
        come_to_hold(&mut scene, way, fence);
        let granted = scene.stage.waiter("b").read().int();
        scene.expect("k", "b holds");
        // By LOCK.HOLD, the hold has another fence afterwards.
        let fence = scene.of("holders", "fence").int();
        assert!(fence == granted || fence > granted && way[0].starts_with("LOCK.HOLD"), "{way:?}");
        assert!(scene.of("holders", "ttl_ms").int() > 60_000, "{way:?}");
        scene.expect_numbers(0, 0, 0);
    }
}

/// The key `j` with readers of whom `b` is one, and a place of `b` that asked to write `k`.
const READS: &[Row] =
    &[("LOCK.RW j b READ PX 500000", "#1"), ("LOCK.RW j c READ PX 500000", "#2"), ("LOCK.ACQUIRE k a", "#3")];

#[test]
fn an_owner_that_comes_to_read_what_it_asked_to_write_has_no_place_any_more() {
    // It would be an upgrade, for which there is no place.
    let mut scene = Scene::alone();
    scene.play(READS);
    scene.play(&[("LOCK.ACQUIRE k b QUEUE 60000", "nil"), ("RENAME j k", "OK")]);
    scene.stage.until("lock_places", 0);
    scene.expect("k", "b holds c holds");
    scene.row("LOCK.ACQUIRE k b QUEUE 60000", "ERR QUEUE cannot wait for an upgrade: use BLOCK");
    // The same for a client that waits there.
    let mut scene = Scene::alone();
    scene.play(READS);
    scene.play(&[
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
        ("RENAME j k", "OK | b: ERR QUEUE cannot wait for an upgrade: use BLOCK"),
    ]);
    scene.expect("k", "b holds c holds");
    scene.expect_numbers(0, 0, 0);
}

/// What makes a plain hold of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    Restore,
    DebugReload,
    Restart,
}

#[test]
fn restored_reloaded_or_restarted_an_offer_is_a_plain_hold_with_what_was_left_of_it() {
    // What is saved knows no offers. Its owner may have the lock still, and nobody else until it is over.
    for saved in [Saved::Restore, Saved::DebugReload, Saved::Restart] {
        let mut server = Server::setup().option("appendonly", "yes").start();
        let mut scene = Scene::new(&server);
        scene.play(BOTH);
        scene.play(&[("LOCK.ACQUIRE p a", "#3"), ("LOCK.ACQUIRE p b QUEUE 1500", "nil"), ("LOCK.RELEASE p a", "0")]);
        match saved {
            Saved::Restore => {
                for key in ["o", "p"] {
                    let payload = dump(&mut scene.conn, key);
                    restore_over(&mut scene.conn, key, &payload).unwrap();
                }
                scene.expect("o", "b holds; c");
                scene.expect_numbers(2, 0, 0);
            }
            Saved::DebugReload => {
                scene.row("DEBUG RELOAD", "OK");
                scene.expect("o", "b holds; c");
                scene.expect_numbers(2, 0, 0);
            }
            Saved::Restart => {
                drop(scene);
                server.restart();
                scene = Scene::new(&server);
                scene.expect("o", "b holds");
                scene.expect("k", "a holds");
                scene.expect_numbers(0, 0, 0);
            }
        }
        assert!(
            (1..=60_000)
                .contains(&scene.stage.ask(&["LOCK.INFO", "o"]).field("holders").items()[0].field("ttl_ms").int())
        );
        scene.stage.until("lock_lapsed", 1);
        assert_eq!(scene.number("lock_taken_back"), 0, "{saved:?}");
        scene.expect("p", "free");
        // Its owner asks again, and has it: nothing is added.
        assert!(scene.stage.ask(&["LOCK.ACQUIRE", "o", "b", "QUEUE", "60000"]).int() > 0, "{saved:?}");
        assert_eq!(scene.stage.ask(&["LOCK.RELEASE", "o", "b"]), Reply::Int(0), "{saved:?}");
    }
}

#[test]
fn a_value_of_another_type_ends_places_without_an_answer() {
    // The next request is judged anew, and told what lies there.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("c: LOCK.ACQUIRE k c BLOCK 0 QUEUE 60000", "waits"),
        ("SET k text", "OK"),
        ("c:", WRONGTYPE),
    ]);
    scene.stage.until("lock_places", 0);
    scene.play(&[("LOCK.ACQUIRE k b QUEUE 60000", WRONGTYPE), ("DEL k", "1"), ("LOCK.ACQUIRE k d", "#2")]);
    scene.expect("k", "d holds");
    // Over an offer.
    scene.play(&[("LOCK.ACQUIRE k b QUEUE 60000", "nil"), ("LOCK.RELEASE k d", "0"), ("SET k text", "OK")]);
    scene.expect_numbers(0, 0, 0);
    scene.row("LOCK.ACQUIRE k b QUEUE 60000", WRONGTYPE);
}
