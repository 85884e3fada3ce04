//! CONFIG SET of `lock.grace-ms` while a grace runs, and when none does.

use super::{LONG, Scene, left, promote, started};
use testbed::Server;

#[test]
fn without_the_configuration_nothing_is_refused() {
    let mut scene = Scene::alone();
    scene.play(&[("CONFIG GET lock.grace-ms", "[lock.grace-ms 0]"), ("LOCK.ACQUIRE k a", "#1")]);
    promote(&mut scene.conn);
    assert_eq!(scene.left(), 0);
    scene.play(&[("LOCK.ACQUIRE k a", "#2"), ("LOCK.ACQUIRE k b", "nil")]);
}

#[test]
fn raising_it_lengthens_the_grace_that_runs_and_0_ends_it_at_once() {
    let mut scene = Scene::owning(started());
    let before = scene.left();
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", "900000"]);
    let after = scene.left();
    assert!(before + 200_000 < after && after <= before + 300_000, "{before}, {after}: it goes on from its begin");
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", "700000"]);
    let lowered = scene.left();
    assert!(after - 300_000 < lowered && lowered <= after - 200_000, "{after}, {lowered}");
    scene.play(&[
        ("w: LOCK.ACQUIRE k w BLOCK 0", "waits"),
        ("x: LOCK.ACQUIRE k x BLOCK 0", "waits"),
        ("LOCK.ACQUIRE other a", "GRACE ~"),
    ]);
    scene.end();
    scene.play(&[("LOCK.ACQUIRE other a", "#1")]);
    assert_eq!(scene.left(), 0);
    scene.stage.waiter("w").read().int();
    scene.play(&[("x:", "waits")]);
}

#[test]
fn a_grace_that_is_over_is_not_resumed() {
    // An operator who prepares the next failover must not stop the service.
    let mut scene = Scene::owning(started());
    scene.end();
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", LONG]);
    assert_eq!(scene.left(), 0);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
    // It is over by itself, too.
    let mut scene = Scene::owning(Server::setup().lock_option("grace-ms", "1").start());
    testbed::wait_for("its end", || scene.left() == 0);
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", LONG]);
    assert_eq!(scene.left(), 0);
    scene.play(&[("LOCK.ACQUIRE k a", "#1")]);
}

#[test]
fn a_config_set_that_is_refused_leaves_the_grace_as_it_is() {
    // What could go wrong: the values are restored, but the grace has ended, and nobody notices.
    let mut scene = Scene::owning(started());
    for pairs in [["lock.grace-ms", "0", "lock.max-lease-ms", "5"], ["lock.max-lease-ms", "5", "lock.grace-ms", "0"]] {
        let command: Vec<&str> = ["CONFIG", "SET"].into_iter().chain(pairs).collect();
        let error = scene.conn.error(&command);
        assert!(error.contains("lock.default-lease-ms must not be above lock.max-lease-ms"), "{error}");
        assert!(left(&mut scene.conn) > 0);
        scene.play(&[("CONFIG GET lock.grace-ms", "[lock.grace-ms 600000]"), ("LOCK.ACQUIRE k a", "GRACE ~")]);
    }
    for value in ["-1", "31536000001", "x"] {
        assert!(!scene.conn.error(&["CONFIG", "SET", "lock.grace-ms", value]).is_empty());
    }
    assert!(left(&mut scene.conn) > 0);
    // As long as it may be.
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", "31536000000"]);
    assert!(left(&mut scene.conn) > 31_535_000_000);
}
