//! What operators see of a grace: INFO, and lines of the log.

use super::{LONG, Scene, promote, started, with_grace};
use testbed::{Server, wait_for};

const BEGUN: &str = "no lock is granted for 600000 ms (lock.grace-ms): this node has started";
const PROMOTED: &str = "no lock is granted for 600000 ms (lock.grace-ms): this node has been promoted";
const OVER: &str = "locks are granted again: the grace is over (lock.grace-ms)";
const SHORT: &str = "lock.grace-ms (600000) is below lock.max-lease-ms (86400000)";

fn count(server: &Server, line: &str) -> usize {
    server.log().matches(line).count()
}

#[test]
fn the_log_says_when_a_grace_begins_and_ends() {
    let server = started();
    let mut scene = Scene::new(&server);
    assert_eq!([BEGUN, PROMOTED, OVER].map(|line| count(&server, line)), [1, 0, 0]);
    promote(&mut scene.conn);
    assert_eq!([BEGUN, PROMOTED, OVER].map(|line| count(&server, line)), [1, 1, 0]);
    scene.end();
    assert_eq!([BEGUN, PROMOTED, OVER].map(|line| count(&server, line)), [1, 1, 1]);
    // None runs: there is nothing to say.
    promote(&mut scene.conn);
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", "5"]);
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    assert_eq!([BEGUN, PROMOTED, OVER].map(|line| count(&server, line)), [1, 1, 1]);
    // Also where it ends by itself, though nobody asks for anything.
    scene.conn.ok(&["CONFIG", "SET", "lock.grace-ms", "300"]);
    promote(&mut scene.conn);
    drop(scene);
    wait_for("the line", || count(&server, OVER) == 2);
}

#[test]
fn a_grace_below_the_longest_lease_is_warned_of_at_the_start() {
    // The promise needs the longest lease that may run, which is a day unless it is configured.
    let server = started();
    assert_eq!(count(&server, SHORT), 1);
    let warning = server.log().lines().find(|line| line.contains(SHORT)).unwrap().to_owned();
    assert!(warning.contains(" # "), "a warning: {warning}");
    let setup = with_grace().lock_option("default-lease-ms", LONG).lock_option("max-lease-ms", LONG);
    assert!(!setup.start().log().contains("is below lock.max-lease-ms"));
    assert!(!Server::new().log().contains("lock.grace-ms"), "it is off");
}

#[test]
fn info_shows_what_is_left() {
    let mut scene = Scene::owning(started());
    let first = scene.left();
    assert!((1..=600_000).contains(&first));
    wait_for("it to become less", || scene.left() < first);
    scene.end();
    assert_eq!(scene.left(), 0);
}
