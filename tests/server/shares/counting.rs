//! What is counted, and what fits: over one connection, in transactions and in scripts.

use super::HOLDS_SHARES;
use crate::harness::connection::Way;
use crate::harness::transcript::{Row, Stage, play_in};
use testbed::Server;

const EVERYWHERE: &[Way] = &[Way::Plain, Way::Exec, Way::Script, Way::Function];

/// As many as fit, and not one more.
const LIMIT: &[Row] = &[
    ("LOCK.SHARE k a 3", "#1"),
    ("LOCK.SHARE k b 3 TAKE 2", "#2"),
    ("LOCK.SHARE k c 3", "nil"),
    ("LOCK.INFO k COUNT 0", "[mode read fence #2 shares 3 holding 2 holders []]"),
    ("LOCK.RELEASE k b", "1"),
    ("LOCK.SHARE k c 3 TAKE 2", "nil"),
    ("LOCK.SHARE k c 3", "#3"),
    ("LOCK.RELEASE k a", "0"),
    ("LOCK.RELEASE k b", "0"),
    ("LOCK.SHARE k d 3 TAKE 2", "#4"),
    // TO leaves some of them.
    ("LOCK.RELEASE k d TO 1", "1"),
    ("LOCK.INFO k COUNT 0", "[mode read fence #4 shares 2 holding 2 holders []]"),
    ("LOCK.RELEASE k d ALL", "0"),
    ("LOCK.RELEASE k c", "0"),
    ("EXISTS k", "0"),
    // Of one share there is one holder.
    ("LOCK.SHARE k a 1", "#5"),
    ("LOCK.SHARE k b 1", "nil"),
    // The highest limit there is.
    ("LOCK.SHARE k b 4294967295 TAKE 4294967295", "nil"),
    ("LOCK.SHARE k b 4294967295 TAKE 4294967294", "#6"),
    ("LOCK.SHARE k c 4294967295", "nil"),
    // There is no room above it, for a holder neither.
    ("LOCK.SHARE k a 4294967295", "nil"),
    ("LOCK.RELEASE k b ALL", "0"),
    ("LOCK.SHARE k a 4294967295 TAKE 4294967294", "#5"),
    ("LOCK.SHARE k a 4294967295", "nil"),
    ("LOCK.SHARE k a 1", "nil"),
];

/// After a lost reply: at least so many shares, and none beside them.
const RETRY: &[Row] = &[
    ("LOCK.SHARE k a 3 TAKE 2 RETRY 2", "#1"),
    ("LOCK.SHARE k a 3 TAKE 2 RETRY 2", "#1"),
    ("LOCK.SHARE k a 3 RETRY 1", "#1"),
    ("LOCK.INFO k COUNT 0", "[mode read fence #1 shares 2 holding 1 holders []]"),
    ("LOCK.SHARE k a 3 TAKE 2 RETRY 3", "#1"),
    ("LOCK.SHARE k b 3 RETRY 1", "nil"),
    // What it has it keeps, whatever the limit is now.
    ("LOCK.SHARE k a 1 RETRY 1", "#1"),
    ("LOCK.SHARE k a 4 RETRY 4", "#1"),
    ("LOCK.RELEASE k a", "3"),
    ("LOCK.RELEASE k a ALL", "0"),
    // The first request was lost: it takes as many as it repeats.
    ("LOCK.SHARE k b 4 TAKE 1 RETRY 3", "#2"),
    ("LOCK.RELEASE k b", "2"),
];

/// A share is a hold as any: with a lease, a note, a fence; for CHECK, not for GUARD.
const HOLDS: &[Row] = &[
    ("LOCK.SHARE k a 3 TAKE 2 PX 60000 NOTE mine", "#1"),
    (
        "LOCK.INFO k OWNER a COUNT 0",
        "[mode read fence #1 shares 2 holding 1 holders [[owner a mode read reads 2 fence #1 note mine]]]",
    ),
    ("LOCK.CHECK k a READ FENCE #1", "#1"),
    ("LOCK.CHECK k a WRITE", "nil"),
    ("LOCK.GUARD k a #1 SET d 1", "nil"),
    ("LOCK.EXTEND k a EX 60 FENCE #1", "#1"),
    ("LOCK.SHARE k * 3", "[<made> #2]"),
    ("LOCK.SHARE k * 3", "nil"),
];

#[test]
fn shares_are_granted_up_to_the_limit_and_not_one_more() {
    play_in(&Server::new(), EVERYWHERE, LIMIT);
}

#[test]
fn retry_of_shares_takes_none_beside_those_that_it_names() {
    play_in(&Server::new(), EVERYWHERE, RETRY);
}

#[test]
fn shares_are_a_hold_like_any_other() {
    play_in(&Server::new(), &[Way::Plain, Way::Script], HOLDS);
}

#[test]
fn a_holder_never_waits_for_more() {
    // What could go wrong: it holds and waits on one key, and another one that does so waits for it.
    Stage::alone().play(&[
        ("LOCK.SHARE k a 2", "#1"),
        ("LOCK.SHARE k b 2", "#2"),
        ("LOCK.SHARE k a 2", "nil"),
        ("LOCK.SHARE k a 2 BLOCK 0", HOLDS_SHARES),
        ("LOCK.SHARE k a 2 BLOCK 0 RETRY 2", HOLDS_SHARES),
        ("LOCK.SHARE k a 2 TAKE 2 QUEUE 60000", HOLDS_SHARES),
        // What it has already it gets, with QUEUE too.
        ("LOCK.SHARE k a 2 QUEUE 60000", "#1"),
        ("LOCK.RELEASE k b", "0"),
        // There is room, but another owner waits for it.
        ("c: LOCK.SHARE k c 2 TAKE 2 BLOCK 0", "waits"),
        ("LOCK.SHARE k a 2", "nil"),
        ("LOCK.SHARE k a 2 BLOCK 0", HOLDS_SHARES),
        ("LOCK.SHARE k a 2 TAKE 2 QUEUE 60000", HOLDS_SHARES),
        ("LOCK.INFO k COUNT 0", "[mode read fence #2 shares 1 holding 1 holders [] waiting 1]"),
        ("LOCK.RELEASE k a", "0 | c: #3"),
        // A writer neither.
        ("LOCK.RELEASE k c ALL", "0"),
        ("LOCK.ACQUIRE k a", "#4"),
        ("LOCK.SHARE k a 1", "#4"),
        ("LOCK.SHARE k a 1 BLOCK 0", HOLDS_SHARES),
        ("LOCK.SHARE k a 2 BLOCK 0", "#4"),
    ]);
}

#[test]
fn info_counts_requests_for_shares_that_were_refused_or_wait() {
    // An operator who sees only that requests wait would not learn that a semaphore is full.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    let mut conn = server.connect();
    let mut expect = |refused: u64, queued: u64, waiting: u64| {
        let fields = ["lock_shares_refused", "lock_shares_queued", "lock_shares_waiting"];
        assert_eq!(fields.map(|field| conn.info_number("lock", field)), [refused, queued, waiting], "{fields:?}");
    };
    stage.play(&[("LOCK.SHARE k a 2 TAKE 2", "#1"), ("LOCK.SHARE k b 2", "nil")]);
    expect(1, 0, 0);
    // Others are not counted.
    stage.play(&[("LOCK.ACQUIRE k c", "nil"), ("w: LOCK.ACQUIRE j w", "#2"), ("x: LOCK.ACQUIRE j x BLOCK 0", "waits")]);
    expect(1, 0, 0);
    stage.play(&[("b: LOCK.SHARE k b 2 BLOCK 0", "waits"), ("LOCK.SHARE j d 9 QUEUE 60000", "nil")]);
    expect(2, 2, 2);
    // Asking again for a place is no other wait.
    stage.play(&[("LOCK.SHARE j d 9 QUEUE 60000", "nil")]);
    expect(3, 2, 2);
    stage.play(&[("LOCK.RELEASE k a", "1"), ("b:", "#3")]);
    expect(3, 2, 1);
    stage.play(&[("LOCK.RELEASE j w", "0"), ("x:", "#4"), ("LOCK.RELEASE j d", "nil")]);
    expect(3, 2, 0);
}
