//! Places and offers whose owner's connection has closed: `lock.away-ms`.

use super::Scene;
use crate::harness::connection::{Connection, Reply};
use crate::harness::turn::{Way, turn};
use testbed::Server;

/// Longer than any test takes.
pub(crate) const LONG: &str = "600000";

pub(crate) fn server(away_ms: &str) -> Server {
    Server::setup().lock_option("away-ms", away_ms).lock_option("max-queue-ms", "3600000").start()
}

impl Scene<'_> {
    /// For how long the first waiter is kept, once it has no client.
    fn queue_left(&mut self) -> i64 {
        loop {
            let Reply::Int(left) = self.of("waiters", "queue_left_ms") else { continue };
            if self.of("waiters", "client") == Reply::Null {
                return left;
            }
        }
    }
}

#[test]
fn waiters_that_were_killed_cost_the_next_owner_one_short_time_together() {
    // The place of a process that is dead held up the queue for its whole QUEUE, ten seconds as a rule.
    let server = server("300");
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    let dead: Vec<Connection> = (0..16)
        .map(|n| Connection::waiting(&server, &format!("LOCK.ACQUIRE k dead{n} BLOCK 0 QUEUE {LONG}")))
        .collect();
    scene.row("c: LOCK.ACQUIRE k c BLOCK 0", "waits");
    drop(dead);
    scene.row("LOCK.RELEASE k a", "0");
    scene.stage.waiter("c").read().int();
    scene.expect("k", "c holds");
    scene.expect_numbers(0, 0, 0);
}

#[test]
fn waiters_of_several_keys_that_were_killed_end_as_soon() {
    let server = server("300");
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    for ask in ["LOCK.MACQUIRE 2 k j b", "LOCK.RW k d READ", "LOCK.SHARE k e 3"] {
        drop(Connection::waiting(&server, &format!("{ask} BLOCK 0 QUEUE {LONG}")));
    }
    scene.stage.until("lock_places", 0);
    scene.expect("k", "a holds");
    scene.expect("j", "free");
}

#[test]
fn an_owner_that_asks_again_in_time_keeps_its_place_for_queue() {
    let server = server("60000");
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    drop(Connection::waiting(&server, &format!("LOCK.ACQUIRE k b BLOCK 0 QUEUE {LONG}")));
    scene.row("c: LOCK.ACQUIRE k c BLOCK 0", "waits");
    assert!(scene.queue_left() <= 60_000);
    scene.row("LOCK.ACQUIRE k b QUEUE 600000", "nil");
    assert!(scene.queue_left() > 60_000);
    scene.expect("k", "a holds; b c");
}

#[test]
fn only_a_closed_connection_shortens_the_time_of_a_place() {
    // The end of BLOCK and CLIENT UNBLOCK leave the connection as it is.
    let server = server("50");
    for end in ["CLIENT UNBLOCK % TIMEOUT", "CLIENT UNBLOCK % ERROR"] {
        let mut scene = Scene::new(&server);
        scene.row("LOCK.ACQUIRE k a", "#1");
        let mut b = Connection::waiting(&server, &format!("LOCK.ACQUIRE k b BLOCK 0 QUEUE {LONG}"));
        scene.stage.ask(&end.replace('%', &b.id().to_string()).split(' ').collect::<Vec<_>>());
        b.read();
        assert!(scene.queue_left() > 60_000, "{end}");
        // When that connection closes, too, the process may be dead.
        drop(b);
        scene.stage.until("lock_places", 0);
        scene.stage.ask(&["FLUSHALL"]);
        scene.stage.ask(&["LOCK.RELEASE", "k", "b"]);
    }
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    scene.row("LOCK.ACQUIRE k b BLOCK 1 QUEUE 600000", "nil");
    assert!(scene.queue_left() > 60_000, "the end of BLOCK");
}

#[test]
fn a_time_of_zero_keeps_places_as_long_as_queue_and_a_shorter_queue_stays() {
    for (away_ms, queue, kept) in [("0", "600000", 60_001..=600_000), ("60000", "5000", 0..=5_000)] {
        let server = server(away_ms);
        let mut scene = Scene::new(&server);
        scene.row("LOCK.ACQUIRE k a", "#1");
        drop(Connection::waiting(&server, &format!("LOCK.ACQUIRE k b BLOCK 0 QUEUE {queue}")));
        let left = scene.queue_left();
        assert!(kept.contains(&left), "{away_ms} {queue}: {left}");
    }
}

#[test]
fn what_a_place_is_offered_after_its_connection_closed_ends_with_the_place() {
    let server = server("60000");
    let mut scene = Scene::new(&server);
    scene.row("LOCK.ACQUIRE k a", "#1");
    drop(Connection::waiting(&server, &format!("LOCK.ACQUIRE k b BLOCK 0 QUEUE {LONG}")));
    assert!(scene.queue_left() <= 60_000);
    scene.row("LOCK.RELEASE k a", "0");
    scene.expect("k", "b is offered");
    assert!(scene.of("holders", "ttl_ms").int() <= 60_000);
}

#[test]
fn a_grant_that_a_closed_connection_did_not_receive_is_offered_for_a_short_time() {
    for way in [Way::Exec, Way::Pipelined] {
        let server = server("60000");
        let mut scene = Scene::new(&server);
        scene.row("LOCK.ACQUIRE k a", "#1");
        let b = Connection::waiting(&server, &format!("LOCK.ACQUIRE k b PX {LONG} BLOCK 0 QUEUE {LONG}"));
        turn(&server, way, &["LOCK.RELEASE k a", &b.kill()]);
        scene.stage.until("lock_offered", 1);
        let left = scene.of("holders", "ttl_ms").int();
        assert!(left <= 60_000, "{left}");
    }
}
