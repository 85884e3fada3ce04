//! The keyspace event `lock.wait`: when a request begins to wait, and at no other time.

use crate::harness::texts::TAKEN_OVER;
use crate::harness::transcript::{Row, Stage};
use crate::places::Events;
use testbed::Server;

/// Plays rows on a server of their own, each with the events that it sends.
#[track_caller]
fn check(rows: &[(Row, &[&str])]) {
    let server = Server::new();
    let mut events = Events::of(&server);
    let mut stage = Stage::new(&server);
    for (row, expected) in rows {
        stage.play(&[*row]);
        assert_eq!(events.since(), *expected, "{}", row.0);
    }
}

#[test]
fn a_request_with_block_that_begins_to_wait_sends_one_event() {
    // Without it a leader never learns that another candidate waits.
    check(&[
        (("LOCK.ACQUIRE k a", "#1"), &["acquire k"]),
        (("b: LOCK.ACQUIRE k b BLOCK 0", "waits"), &["wait k"]),
        (("c: LOCK.RW k c READ BLOCK 60000", "waits"), &["wait k"]),
        (("d: LOCK.SHARE k d 5 BLOCK 0", "waits"), &["wait k"]),
        // The end of a wait is none.
        (("LOCK.RELEASE k a", "0"), &["release k", "acquire k"]),
        (("b:", "#2"), &[]),
        (("LOCK.RELEASE k b", "0"), &["release k", "acquire k", "acquire k"]),
        (("c:", "#3"), &[]),
        (("d:", "#4"), &[]),
        // A holder that waits to write.
        (("c: LOCK.RW k c WRITE BLOCK 0", "waits"), &["wait k"]),
    ]);
}

#[test]
fn a_request_with_queue_and_without_block_sends_it_too() {
    // It is answered null at once, as one that leaves is; but its owner waits.
    check(&[
        (("LOCK.ACQUIRE k a", "#1"), &["acquire k"]),
        (("LOCK.ACQUIRE k b QUEUE 60000", "nil"), &["wait k"]),
        (("LOCK.SHARE k c 5 TAKE 2 QUEUE 60000", "nil"), &["wait k"]),
        (("MULTI", "OK"), &[]),
        (("LOCK.ACQUIRE k d QUEUE 60000", "QUEUED"), &[]),
        (("EXEC", "[nil]"), &["wait k"]),
    ]);
}

#[test]
fn a_request_for_two_keys_sends_it_for_both() {
    // It stands in both queues, and the holder of the second key is asked as well.
    check(&[
        (("LOCK.ACQUIRE k a", "#1"), &["acquire k"]),
        (("b: LOCK.MACQUIRE 2 k l b BLOCK 0", "waits"), &["wait k", "wait l"]),
        (("LOCK.MACQUIRE 2 l k c QUEUE 60000", "nil"), &["wait l", "wait k"]),
    ]);
}

#[test]
fn a_request_that_repeats_one_sends_none() {
    // An owner that polls would be heard as many times as it asks.
    check(&[
        (("LOCK.ACQUIRE k a", "#1"), &["acquire k"]),
        (("LOCK.ACQUIRE k b QUEUE 60000", "nil"), &["wait k"]),
        (("LOCK.ACQUIRE k b QUEUE 60000", "nil"), &[]),
        (("b: LOCK.ACQUIRE k b QUEUE 60000 BLOCK 0", "waits"), &[]),
        (("LOCK.ACQUIRE k b QUEUE 60000", "nil"), &[]),
        (("c: LOCK.ACQUIRE k b QUEUE 60000 BLOCK 0", "waits"), &[]),
        (("b:", TAKEN_OVER), &[]),
        // When the client has gone, and its owner asks again, it is the same wait.
        (("CLIENT UNBLOCK %c", "1"), &[]),
        (("c:", "nil"), &[]),
        (("c: LOCK.ACQUIRE k b QUEUE 60000 BLOCK 0", "waits"), &[]),
        (("d: LOCK.ACQUIRE k d BLOCK 0", "waits"), &["wait k"]),
        (("e: LOCK.ACQUIRE k d BLOCK 0 RETRY 1", "waits"), &[]),
        (("d:", "nil"), &[]),
        // A wait that ended, and another one.
        (("CLIENT UNBLOCK %e", "1"), &[]),
        (("e:", "nil"), &[]),
        (("e: LOCK.ACQUIRE k d BLOCK 0", "waits"), &["wait k"]),
    ]);
}

#[test]
fn a_request_that_is_answered_at_once_sends_none() {
    // A leader would step down for nobody.
    check(&[
        (("b: LOCK.ACQUIRE k a BLOCK 0", "#1"), &["acquire k"]),
        (("b: LOCK.ACQUIRE k a BLOCK 0 QUEUE 60000", "#1"), &["acquire k"]),
        (("LOCK.ACQUIRE k b", "nil"), &[]),
        (("LOCK.SHARE k b 5", "nil"), &[]),
        (("EVAL \"return redis.call('LOCK.ACQUIRE', 'k', 'b', 'BLOCK', 0)\" 1 k", "nil"), &[]),
        (("LOCK.SHARE s a 1", "#2"), &["acquire s"]),
        (("b: LOCK.SHARE s a 1 BLOCK 0", "ERR owner holds shares already: only another owner can wait for more"), &[]),
        // Refused, though it would wait: nothing is queued.
        (("LOCK.ACQUIRE j b", "#3"), &["acquire j"]),
        (("a: LOCK.ACQUIRE j a BLOCK 0", "waits"), &["wait j"]),
        (("b: LOCK.ACQUIRE k b BLOCK 0", "DEADLOCK b -> k -> a -> j -> b"), &[]),
    ]);
}
