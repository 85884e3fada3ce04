//! Deadlocks with shares: a waiting share waits for a writer, for waiters before it, and for holders of so many shares
//! that they must give some back. Where any of several holders may let it in, there is no deadlock to be told.

use crate::harness::transcript::Stage;
use testbed::Server;

fn plays(rows: &[(&'static str, &'static str)]) {
    let server = Server::new();
    Stage::new(&server).play(rows);
}

#[test]
fn shares_wait_for_a_writer() {
    plays(&[
        ("LOCK.ACQUIRE j a", "#1"),
        ("LOCK.SHARE k b 2", "#2"),
        ("b: LOCK.SHARE j b 2 BLOCK 0", "waits"),
        ("LOCK.ACQUIRE k a BLOCK 0", "DEADLOCK a -> k -> b -> j -> a"),
        ("b:", "waits"),
    ]);
}

#[test]
fn shares_wait_for_a_holder_that_must_give_some_back() {
    plays(&[
        ("LOCK.SHARE j a 3 TAKE 2", "#1"),
        ("LOCK.SHARE j x 3", "#2"),
        ("LOCK.ACQUIRE k b", "#3"),
        // Whatever x does: with two of a's there is no room for two more.
        ("b: LOCK.SHARE j b 3 TAKE 2 BLOCK 0", "waits"),
        ("LOCK.ACQUIRE k a BLOCK 0", "DEADLOCK a -> k -> b -> j -> a"),
        ("LOCK.RELEASE j a TO 1", "1"),
        ("LOCK.RELEASE j x", "0"),
        ("b:", "#4"),
    ]);
}

#[test]
fn shares_that_any_of_several_holders_can_free_are_in_no_deadlock() {
    plays(&[
        ("LOCK.SHARE j a 2", "#1"),
        ("LOCK.SHARE j x 2", "#2"),
        ("LOCK.ACQUIRE k b", "#3"),
        ("b: LOCK.SHARE j b 2 BLOCK 0", "waits"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("LOCK.RELEASE j x", "0"),
        ("b:", "#4"),
        ("LOCK.RELEASE k b", "0"),
        ("a:", "#5"),
    ]);
}

#[test]
fn shares_wait_for_the_waiters_before_them() {
    plays(&[
        ("LOCK.SHARE j x 3", "#1"),
        ("LOCK.ACQUIRE k b", "#2"),
        // It waits for x alone, and all behind it wait for it.
        ("w: LOCK.ACQUIRE j w BLOCK 0", "waits"),
        ("b: LOCK.SHARE j b 3 BLOCK 0", "waits"),
        ("w2: LOCK.ACQUIRE k w BLOCK 0", "DEADLOCK w -> k -> b -> j -> w"),
        ("LOCK.RELEASE j x", "0"),
        ("w:", "#3"),
    ]);
}

#[test]
fn readers_wait_through_shares_before_them() {
    plays(&[
        ("LOCK.SHARE j a 2 TAKE 2", "#1"),
        ("LOCK.ACQUIRE k r", "#2"),
        ("s: LOCK.SHARE j s 2 BLOCK 0", "waits"),
        // Beside a it might read, but not before s.
        ("r: LOCK.RW j r READ BLOCK 0", "waits"),
        ("LOCK.ACQUIRE k a BLOCK 0", "DEADLOCK a -> k -> r -> j -> s -> j -> a"),
    ]);
}

#[test]
fn a_light_waiter_behind_a_heavy_one_waits_for_what_that_waits_for_and_no_more() {
    plays(&[
        ("LOCK.SHARE j a 3", "#1"),
        ("LOCK.SHARE j x 3", "#2"),
        ("LOCK.ACQUIRE k r", "#3"),
        // Two of three: one of a and x has to leave, and it may be either.
        ("s: LOCK.SHARE j s 3 TAKE 2 BLOCK 0", "waits"),
        ("r: LOCK.SHARE j r 3 BLOCK 0", "waits"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("LOCK.RELEASE j x", "0"),
        ("s:", "#4"),
        ("LOCK.RELEASE j s TO 1", "1"),
        ("r:", "#5"),
    ]);
}

#[test]
fn the_second_upgrade_of_holders_of_shares_is_refused() {
    plays(&[
        ("LOCK.SHARE k a 2", "#1"),
        ("LOCK.SHARE k b 2", "#2"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("LOCK.ACQUIRE k b BLOCK 0", "DEADLOCK b -> k -> a -> k -> b"),
        ("LOCK.RELEASE k b", "0"),
        ("a:", "#3"),
    ]);
}

#[test]
fn a_limit_that_is_lowered_while_it_waits_may_close_a_cycle() {
    plays(&[
        ("LOCK.SHARE j a 9 TAKE 2", "#1"),
        ("LOCK.SHARE j x 9 TAKE 2", "#2"),
        ("LOCK.ACQUIRE k b", "#3"),
        ("b: LOCK.SHARE j b 4 BLOCK 0", "waits"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        // With two of a's there is no room under the lower limit.
        ("c: LOCK.SHARE j b 2 BLOCK 0 RETRY 1", "DEADLOCK b -> j -> a -> ? -> b"),
        ("b:", "nil"),
        ("a:", "waits"),
    ]);
}

#[test]
fn a_reader_that_reads_once_more_may_close_a_cycle() {
    plays(&[
        ("LOCK.RW j a READ", "#1"),
        ("LOCK.SHARE j x 2", "#2"),
        ("LOCK.ACQUIRE k b", "#3"),
        ("b: LOCK.SHARE j b 2 BLOCK 0", "waits"),
        ("a: LOCK.ACQUIRE k a BLOCK 0", "waits"),
        ("LOCK.RW j a READ", "#1"),
        ("a:", "DEADLOCK a -> k -> b -> ? -> a"),
    ]);
}

#[test]
fn an_offer_that_is_collected_with_more_reads_may_close_a_cycle() {
    let server = Server::new();
    let mut stage = Stage::new(&server);
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
    let server = Server::setup().lock_option("allow-hold", "yes").start();
    let mut stage = Stage::new(&server);
    stage.play(&[("LOCK.ACQUIRE j b", "#1"), ("LOCK.SHARE k x 3", "#2")]);
    let fence = stage.ask(&["LOCK.SHARE", "k", "a", "3"]).int().to_string();
    stage.play(&[("a: LOCK.ACQUIRE j a BLOCK 0", "waits"), ("b: LOCK.SHARE k b 3 TAKE 2 BLOCK 0", "waits")]);
    assert_eq!(stage.ask(&["LOCK.HOLD", "k", "a", "2", "0", &fence, "0", "60000"]).int(), 1);
    stage.play(&[("a:", "DEADLOCK a -> j -> b -> ? -> a"), ("b:", "waits")]);
}
