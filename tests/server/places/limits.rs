//! How many places there may be, and how many bytes of them.

use super::Scene;

use testbed::Server;

#[test]
fn no_more_places_than_may_be() {
    // Each costs memory, and no connection that an operator could limit.
    let full = "LIMIT server has lock.max-places places";
    let mut scene = Scene::owning(Server::setup().lock_option("max-places", "2").start());
    scene.play(&[
        ("LOCK.ACQUIRE k a QUEUE 60000", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("c: LOCK.ACQUIRE k c BLOCK 0 QUEUE 60000", "waits"),
        ("LOCK.ACQUIRE k d QUEUE 60000", full),
        ("LOCK.MACQUIRE 2 i k d BLOCK 0 QUEUE 60000", full),
        // What needs no place is served, and what stands asks again.
        ("LOCK.ACQUIRE i d QUEUE 60000", "#2"),
        ("LOCK.ACQUIRE k d", "nil"),
        ("LOCK.ACQUIRE k b QUEUE 300", "nil"),
        ("d: LOCK.ACQUIRE k e BLOCK 0", "waits"),
    ]);
    scene.expect_numbers(2, 2, 0);
    scene.stage.until("lock_places", 1);
    scene.row("LOCK.ACQUIRE k d QUEUE 60000", "nil");
    scene.expect("k", "a holds; c e d");
    // An offer is no place.
    scene.play(&[("LOCK.RELEASE k c", "nil"), ("c:", "nil"), ("LOCK.RELEASE k a", "0"), ("d:", "#3")]);
    scene.play(&[("LOCK.RELEASE k e", "0"), ("CONFIG SET lock.max-places 0", "OK")]);
    scene.expect_numbers(0, 0, 1);
    scene.play(&[("LOCK.ACQUIRE k d QUEUE 60000", "#4"), ("LOCK.ACQUIRE k b QUEUE 60000", full)]);
}

/// A row of a scene that depends on what was seen before.
fn row(text: String) -> &'static str {
    text.leak()
}

#[test]
fn no_more_bytes_of_places_than_may_be() {
    // The name of a key may have half a gigabyte.
    let full = "LIMIT keys, owners and channels of places would take more than lock.max-place-bytes";
    let mut scene = Scene::alone();
    let long = "n".repeat(100);
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        (row(format!("LOCK.ACQUIRE {long} a")), "#2"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
    ]);
    let one = scene.number("lock_place_bytes");
    scene.play(&[
        (row(format!("CONFIG SET lock.max-place-bytes {one}")), "OK"),
        ("LOCK.ACQUIRE k c QUEUE 60000", full),
        // What stands is kept.
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        // It would become a place.
        ("LOCK.ACQUIRE k c QUEUE 60000", "nil"),
        ("LOCK.RELEASE k c", "nil | c: nil"),
        ("LOCK.RELEASE k b", "nil"),
    ]);
    assert_eq!(scene.number("lock_place_bytes"), 0);
    scene.play(&[
        // A long name takes memory, and each further key of a request has a queue of its own.
        (row(format!("LOCK.ACQUIRE {long} b QUEUE 60000")), full),
        ("LOCK.MACQUIRE 2 i k b QUEUE 60000", full),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
    ]);
    scene.expect("k", "a holds; b");
}

#[test]
fn no_more_bytes_of_parked_clients_than_may_be() {
    // Ten connections could fill the memory with names.
    let full = "LIMIT keys and owners of waiters would take more than lock.max-waiter-bytes";
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("b: LOCK.ACQUIRE k b BLOCK 0", "waits")]);
    let one = scene.number("lock_waiter_bytes");
    scene.play(&[
        (row(format!("CONFIG SET lock.max-waiter-bytes {one}")), "OK"),
        ("c: LOCK.ACQUIRE k c BLOCK 0", full),
        // With QUEUE it is a place, parked or not.
        ("c: LOCK.ACQUIRE k c BLOCK 0 QUEUE 60000", "waits"),
    ]);
    assert_eq!(scene.number("lock_waiter_bytes"), one);
    let place = scene.number("lock_place_bytes");
    assert!(place > 0 && place < one, "{place} of a place in a queue that is there, and {one}");
    scene.play(&[("LOCK.RELEASE k a", "0"), ("b:", "#2")]);
    // The queue counts for those that are left in it.
    assert_eq!([scene.number("lock_waiter_bytes"), scene.number("lock_place_bytes")], [0, one]);
    let long = "n".repeat(100);
    scene.play(&[
        (row(format!("LOCK.ACQUIRE {long} a")), "#3"),
        (row(format!("d: LOCK.ACQUIRE {long} d BLOCK 0")), full),
    ]);
    scene.play(&[("LOCK.RELEASE k b", "0"), ("c:", "#4"), ("LOCK.RELEASE k c", "0")]);
    assert_eq!([scene.number("lock_waiter_bytes"), scene.number("lock_place_bytes")], [0, 0]);
}

#[test]
fn an_owner_has_no_more_places_than_may_be() {
    // All places of an owner are searched for deadlocks together. One connection could let it have a hundred thousand.
    let (_server, mut conn) = Server::connected();
    for n in 0..257 {
        let key = format!("k{n}");
        conn.int(&["LOCK.ACQUIRE", &key, "h", "PX", "600000"]).expect("free");
        let ask = ["LOCK.ACQUIRE", &key, "o", "QUEUE", "60000"];
        if n < 256 {
            assert_eq!(conn.int(&ask), None, "{n}");
        } else {
            assert_eq!(conn.error(&ask), "LIMIT owner has 256 places, the most there may be");
        }
    }
    assert_eq!(conn.info_number("lock", "lock_places"), 256);
    // Asking again, and another owner, are no more.
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "k0", "o", "QUEUE", "60000"]), None);
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "k0", "p", "QUEUE", "60000"]), None);
}

#[test]
fn places_count_as_waiters_of_their_key() {
    let full = "LIMIT key has lock.max-waiters-per-key waiters";
    let mut scene = Scene::owning(Server::setup().lock_option("max-waiters-per-key", "2").start());
    scene.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k c QUEUE 300", "nil"),
        ("LOCK.ACQUIRE k d QUEUE 60000", full),
        ("LOCK.ACQUIRE k d BLOCK 0", full),
        ("LOCK.ACQUIRE k b QUEUE 60000", "nil"),
        ("b: LOCK.ACQUIRE k b BLOCK 0 QUEUE 60000", "waits"),
    ]);
    scene.stage.until("lock_places", 1);
    scene.row("LOCK.ACQUIRE k d QUEUE 60000", "nil");
    scene.expect("k", "a holds; b d");
    assert_eq!(scene.conn.get::<Vec<String>>(&["CONFIG", "GET", "lock.max-waiters-per-key"])[1], "2");
}
