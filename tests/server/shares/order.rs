//! First come, first served: no request passes one that waits for shares.

use crate::harness::transcript::Stage;

#[test]
fn readers_and_writers_do_not_pass_a_request_for_shares() {
    Stage::alone().play(&[
        ("LOCK.SHARE k a 2", "#1"),
        ("LOCK.SHARE k b 2", "#2"),
        ("c: LOCK.SHARE k c 2 BLOCK 0", "waits"),
        // No limit refuses readers, but one waits.
        ("LOCK.RW k d READ", "nil"),
        ("d: LOCK.RW k d READ BLOCK 0", "waits"),
        ("e: LOCK.ACQUIRE k e BLOCK 0", "waits"),
        ("f: LOCK.RW k f READ BLOCK 0", "waits"),
        // A reader of several keys waits there as well.
        ("m: LOCK.MACQUIRE 2 j k m READ BLOCK 0", "waits"),
        ("LOCK.RELEASE k a", "0 | c: #3 | d: #4 | e: waits | f: waits"),
        ("LOCK.RELEASE k b", "0"),
        ("LOCK.RELEASE k c", "0"),
        ("LOCK.RELEASE k d", "0 | e: #5"),
        ("LOCK.RELEASE k e", "0 | f: #6 | m: [#7 #8]"),
    ]);
}
