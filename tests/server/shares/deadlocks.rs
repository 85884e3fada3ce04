//! Deadlocks with shares: a waiting share waits for a writer, for waiters before it, and for holders of so many shares
//! that they must give some back. Where any of several holders may let it in, there is no deadlock to be told.

use crate::harness::transcript::Stage;
use testbed::Server;

#[test]
fn a_reader_that_reads_once_more_may_close_a_cycle() {
    Stage::alone().play(&[
        ("LOCK.RW j a READ", "#1"),
        ("LOCK.SHARE j x 2", "#2"),
        ("LOCK.ACQUIRE k b", "#3"),
        ("b: LOCK.SHARE j b 2 BLOCK 0", "waits"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("LOCK.RW j a READ", "#1 | a: DEADLOCK a -> k -> b -> ? -> a"),
    ]);
}

#[test]
fn an_offer_that_is_collected_with_more_reads_may_close_a_cycle() {
    let mut stage = Stage::alone();
    stage.play(&[
        ("LOCK.ACQUIRE k w", "#1"),
        ("LOCK.ACQUIRE j b", "#2"),
        ("LOCK.RW k a READ QUEUE 60000", "nil"),
        ("LOCK.RELEASE k w", "0"),
        ("LOCK.SHARE k x 3 TAKE 2", "#3"),
        ("a: LOCK.ACQUIRE j a BLOCK 0", "waits"),
        ("b: LOCK.SHARE k b 3 TAKE 2 BLOCK 0", "waits"),
    ]);
    // With two of a's there is no room for two more, whatever x does. Its fence is lower than x's.
    stage.ask(&["LOCK.RW", "k", "a", "READ", "RETRY", "2"]).int();
    stage.play(&[("a:", "DEADLOCK a -> j -> b -> ? -> a"), ("b:", "waits")]);
}

#[test]
fn a_hold_that_a_client_sets_with_more_reads_may_close_a_cycle() {
    // A tool that replays a file takes no request's way. Both would wait for ever.
    let mut stage = Stage::owning(Server::setup().lock_option("allow-hold", "yes").start());
    stage.play(&[("LOCK.ACQUIRE j b", "#1"), ("LOCK.SHARE k x 3", "#2")]);
    let fence = stage.ask(&["LOCK.SHARE", "k", "a", "3"]).int().to_string();
    stage.play(&[("a: LOCK.ACQUIRE j a BLOCK 0", "waits"), ("b: LOCK.SHARE k b 3 TAKE 2 BLOCK 0", "waits")]);
    assert_eq!(stage.ask(&["LOCK.HOLD", "k", "a", "2", "0", &fence, "0", "60000"]).int(), 1);
    stage.play(&[("a:", "DEADLOCK a -> j -> b -> ? -> a"), ("b:", "waits")]);
}
