//! Shares with QUEUE: places for them, and offers of them.

use crate::harness::transcript::{Row, Stage};

const OTHER_TAKE: &str = "ERR owner stands there with another TAKE: release that first";
const OTHER_MODE: &str = "ERR owner stands there in another mode: release that first";

/// All shares of `k` are held, and `b` has a place for two of them.
const PLACED: &[Row] = &[("LOCK.SHARE k a 3 TAKE 3", "#1"), ("LOCK.SHARE k b 3 TAKE 2 QUEUE 60000", "nil")];

#[test]
fn a_place_for_shares_becomes_an_offer_of_as_many() {
    let mut stage = Stage::alone();
    stage.play(PLACED);
    stage.play(&[
        (
            "LOCK.INFO k",
            "[mode read fence #1 shares 3 holding 1 holders [[owner a mode read reads 3 fence #1]] \
             waiting 1 waiters [[owner b mode read limit 3 take 2 queue_left_ms ~ client nil]]]",
        ),
        ("LOCK.RELEASE k a", "2"),
        ("LOCK.SHARE k b 3 TAKE 2 QUEUE 60000", "nil"),
        ("LOCK.RELEASE k a", "1"),
        (
            "LOCK.INFO k OWNER b",
            "[mode read fence #2 shares 3 holding 2 holders [[owner b mode read reads 2 fence #2 offered 1]]]",
        ),
        ("LOCK.CHECK k b", "nil"),
        // An offer counts.
        ("LOCK.SHARE k c 3", "nil"),
        ("LOCK.SHARE k b 3 TAKE 2 QUEUE 60000 PX 100000", "#2"),
        ("LOCK.SHARE k b 3 TAKE 2 QUEUE 60000", "#2"),
        ("LOCK.RELEASE k b", "1"),
        ("LOCK.RELEASE k b", "0"),
    ]);
}

#[test]
fn a_place_is_for_one_mode_and_one_take() {
    let mut stage = Stage::alone();
    stage.play(PLACED);
    stage.play(&[
        ("LOCK.SHARE k b 3 QUEUE 60000", OTHER_TAKE),
        ("LOCK.SHARE k b 3 TAKE 3 QUEUE 60000 BLOCK 0", OTHER_TAKE),
        ("LOCK.RW k b READ QUEUE 60000", OTHER_MODE),
        ("LOCK.ACQUIRE k b QUEUE 60000", OTHER_MODE),
        ("LOCK.SHARE k b 3 TAKE 2 BLOCK 0", "ERR owner already waits there: use RETRY"),
        // It tries once, and the place stays.
        ("LOCK.SHARE k b 3 TAKE 2", "nil"),
        ("LOCK.RELEASE k a ALL", "0"),
        // So is an offer.
        ("LOCK.SHARE k b 3 QUEUE 60000", OTHER_TAKE),
        ("LOCK.SHARE k b 3 TAKE 3 QUEUE 60000", OTHER_TAKE),
        ("LOCK.ACQUIRE k b QUEUE 60000", OTHER_MODE),
        ("LOCK.SHARE k b 3 TAKE 2", "#2"),
        ("LOCK.INFO k COUNT 0", "[mode read fence #2 shares 2 holding 1 holders []]"),
    ]);
}
