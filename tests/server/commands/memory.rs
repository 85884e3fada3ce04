//! A server at `maxmemory`: what needs new memory is refused with the server's own words and leaves no trace, and all
//! else is served.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::scene::Scene;
use crate::harness::transcript::Player;
use testbed::{Client, Server, wait_for};

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

fn fill(conn: &mut Client, full: bool) {
    conn.ok(&["CONFIG", "SET", "maxmemory", if full { "1" } else { "0" }]);
}

#[test]
fn a_full_server_refuses_new_holds_and_places_and_serves_the_rest() {
    // What could go wrong: a holder is told OOM for what it has already, or a new hold is made on a full server.
    let (server, mut conn) = Server::connected();
    let mut wire = Connection::resp2(&server);
    for way in [Way::Plain, Way::Script] {
        let mut player = Player::new(&mut wire, way);
        player.play(&[
            ("LOCK.ACQUIRE k a", "#1"),
            ("LOCK.SHARE s a 5", "#2"),
            ("LOCK.RW r a READ", "#3"),
            ("LOCK.ACQUIRE q a", "#4"),
            ("LOCK.ACQUIRE q b QUEUE 60000", "nil"),
        ]);
        fill(&mut conn, true);
        player.go_on(&[
            // A holder asks again, takes more of what it holds, or upgrades.
            ("LOCK.ACQUIRE k a", "#1"),
            ("LOCK.ACQUIRE k a RETRY 1", "#1"),
            ("LOCK.RW k a READ", "#1"),
            ("LOCK.MACQUIRE 2 k q a", "[#1 #4]"),
            ("LOCK.SHARE s a 5 TAKE 2", "#2"),
            ("LOCK.RW r a WRITE", "#5"),
            // An owner with a place asks again.
            ("LOCK.ACQUIRE q b QUEUE 60000", "nil"),
            // Null needs no memory.
            ("LOCK.ACQUIRE k b", "nil"),
            ("LOCK.SHARE k b 3", "nil"),
            // A new hold, on a free key or beside others, and a new place.
            ("LOCK.ACQUIRE free b", OOM),
            ("LOCK.RW free b READ", OOM),
            ("LOCK.SHARE s b 5", OOM),
            ("LOCK.MACQUIRE 2 k free a", OOM),
            ("LOCK.ACQUIRE k b QUEUE 60000", OOM),
            ("LOCK.MACQUIRE 2 free k b QUEUE 60000", OOM),
            // What is held can be given back, extended and looked at.
            ("LOCK.EXTEND k a PX 60000", "#1"),
            ("LOCK.MEXTEND 2 k free a PX 60000", "[#1 nil]"),
            ("LOCK.CHECK k a", "#1"),
            ("LOCK.RELEASE q a ALL", "0"),
            // The owner with the place has an offer now, and collects it.
            ("LOCK.ACQUIRE q b QUEUE 60000", "#6"),
            ("LOCK.MRELEASE 5 k s r q free a ALL", "[0 0 0 nil nil]"),
        ]);
        assert_eq!(conn.get::<i64>(&["DBSIZE"]), 1, "{way:?}");
        fill(&mut conn, false);
    }
}

#[test]
fn a_transaction_gets_what_needs_no_new_memory() {
    let (server, mut conn) = Server::connected();
    let mut wire = Connection::resp2(&server);
    let held = wire.say("LOCK.ACQUIRE k a").int();
    // It is queued before memory is short: Redis 7.0 queues nothing then.
    assert_eq!(wire.say("MULTI"), Reply::simple("OK"));
    for command in ["LOCK.ACQUIRE k a", "LOCK.ACQUIRE free a", "LOCK.ACQUIRE k b", "LOCK.RELEASE k a TO 1"] {
        assert_eq!(wire.say(command), Reply::simple("QUEUED"), "{command}");
    }
    fill(&mut conn, true);
    let replies = wire.say("EXEC").items();
    assert_eq!(replies, [Reply::Int(held), Reply::error(OOM), Reply::Null, Reply::Int(1)]);
}

#[test]
fn a_client_that_would_have_to_be_parked_is_refused_by_a_full_server() {
    let mut scene = Scene::alone();
    scene.play(&[("LOCK.ACQUIRE k a", "#1"), ("LOCK.ACQUIRE k p QUEUE 60000", "nil")]);
    fill(&mut scene.conn, true);
    scene.play(&[
        ("b: LOCK.ACQUIRE k b BLOCK 0", OOM),
        ("b: LOCK.MACQUIRE 2 k m b BLOCK 0", OOM),
        // An owner that has a place keeps it, and is answered as one that does not wait.
        ("p: LOCK.ACQUIRE k p BLOCK 0 QUEUE 60000", "nil"),
    ]);
    assert_eq!(scene.conn.info("clients", "blocked_clients"), "0");
    fill(&mut scene.conn, false);
    scene.play(&[
        ("c: LOCK.ACQUIRE k c BLOCK 0", "waits"),
        ("p: LOCK.ACQUIRE k p BLOCK 0 QUEUE 60000", "waits"),
        ("LOCK.RELEASE k a", "0 | p: #2 | c: waits"),
    ]);
}

#[test]
fn owners_with_places_are_served_in_their_order_while_memory_is_short() {
    // What could go wrong: an owner with an offer is told OOM, and the lock lies idle until a later waiter has it.
    let mut scene = Scene::alone();
    scene.play(&[
        ("LOCK.ACQUIRE k h", "#1"),
        ("LOCK.ACQUIRE k x QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k y QUEUE 60000", "nil"),
        ("z: LOCK.ACQUIRE k z BLOCK 0", "waits"),
    ]);
    fill(&mut scene.conn, true);
    scene.play(&[
        ("LOCK.RELEASE k h", "0"),
        ("LOCK.ACQUIRE k y QUEUE 60000", "nil"),
        ("LOCK.ACQUIRE k x QUEUE 60000", "#2"),
        ("LOCK.RELEASE k x", "0"),
        ("LOCK.ACQUIRE k y QUEUE 60000", "#3"),
        ("LOCK.RELEASE k y", "0 | z: #4"),
    ]);
}

#[test]
fn a_refusal_for_want_of_memory_leaves_no_trace() {
    // A server that waits for the disk in the background writes its file later, and tells its length later.
    let saved = Server::setup().option("appendonly", "yes").option("appendfsync", "no");
    let mut scene = Scene::owning(saved.option("enable-debug-command", "yes").start());
    scene.play(&[
        ("LOCK.RW k a READ", "#1"),
        ("LOCK.RW k r READ", "#2"),
        ("LOCK.ACQUIRE k p QUEUE 60000", "nil"),
        ("LOCK.MACQUIRE 2 i j q", "[#3 #4]"),
    ]);
    fill(&mut scene.conn, true);
    let trace = |scene: &mut Scene<'_>| {
        let fields = ["lock_waiters", "lock_places", "lock_offered", "lock_granted", "lock_queued", "lock_leases"];
        let numbers = fields.map(|field| scene.conn.info_number("lock", field));
        let length = scene.conn.info_number("persistence", "aof_current_size");
        (scene.conn.get::<String>(&["DEBUG", "DIGEST"]), numbers, length)
    };
    let before = trace(&mut scene);
    scene.play(&[
        ("LOCK.ACQUIRE free b", OOM),
        ("LOCK.ACQUIRE k b QUEUE 60000 BLOCK 0", OOM),
        ("LOCK.RW k a WRITE BLOCK 0", OOM),
        ("LOCK.MACQUIRE 3 i j k q BLOCK 0", OOM),
    ]);
    assert_eq!(trace(&mut scene), before);
}

#[test]
fn what_eviction_can_make_room_for_is_granted() {
    // What could go wrong: a server that has just evicted enough, or may go on evicting, refuses all the same.
    let (_server, mut conn) = Server::connected();
    let value = "v".repeat(100_000);
    for policy in ["noeviction", "volatile-lru", "volatile-ttl", "volatile-random", "allkeys-lru"] {
        conn.ok(&["FLUSHALL"]);
        conn.ok(&["CONFIG", "SET", "maxmemory-policy", policy]);
        for n in 0..50 {
            conn.ok(&["SET", &format!("filler{n}"), &value, "EX", "3600"]);
        }
        let used = conn.info_number("memory", "used_memory");
        conn.ok(&["CONFIG", "SET", "maxmemory", &(used - 1_000_000).to_string()]);
        let granted = conn.call(&["LOCK.ACQUIRE", "k", "a"]).is_ok();
        assert_eq!(granted, policy != "noeviction", "{policy}");
        fill(&mut conn, false);
    }
}

#[test]
fn a_full_replica_takes_the_records_of_its_primary() {
    let primary = Server::new();
    let replica = Server::setup().option("replica-ignore-maxmemory", "no").start();
    replica.follow(&primary);
    let (mut there, mut here) = (primary.connect(), replica.connect());
    fill(&mut here, true);
    assert!(there.int(&["LOCK.ACQUIRE", "k", "a"]).is_some());
    wait_for("the record to arrive", || here.lock_info("k").is_some());
    assert_eq!(Connection::resp2(&replica).say("LOCK.ACQUIRE other a").code(), "READONLY");
    assert_eq!(there.int(&["LOCK.RELEASE", "k", "a"]), Some(0));
    wait_for("the end to arrive", || here.lock_info("k").is_none());
    assert_eq!(Connection::resp2(&replica).say("LOCK.INFO k"), Reply::Null);
}
