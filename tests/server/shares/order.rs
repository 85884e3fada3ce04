//! First come, first served: no request passes one that waits for shares.

use crate::harness::transcript::Stage;
use testbed::Server;

#[test]
fn a_heavy_request_is_served_after_at_most_those_before_it() {
    // What could go wrong: light requests fit where the heavy one does not, and keep it waiting for ever.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.SHARE k a 3", "#1"),
        ("LOCK.SHARE k b 3", "#2"),
        ("heavy: LOCK.SHARE k heavy 3 TAKE 3 BLOCK 0", "waits"),
        ("LOCK.SHARE k light 3", "nil"),
        ("light: LOCK.SHARE k light 3 BLOCK 0", "waits"),
        ("LOCK.RELEASE k a", "0"),
        ("heavy:", "waits"),
        ("light:", "waits"),
        ("LOCK.RELEASE k b", "0"),
        ("heavy:", "#3"),
        ("light:", "waits"),
        ("LOCK.RELEASE k heavy TO 2", "2"),
        ("light:", "#4"),
        (
            "LOCK.INFO k COUNT 0",
            "[mode read fence #4 shares 3 holding 2 holders [] waiting 0 waiters [] reserved_by nil]",
        ),
    ]);
}

#[test]
fn readers_and_writers_do_not_pass_a_request_for_shares() {
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
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
        ("LOCK.RELEASE k a", "0"),
        ("c:", "#3"),
        ("d:", "#4"),
        ("e:", "waits"),
        ("f:", "waits"),
        ("LOCK.RELEASE k b", "0"),
        ("LOCK.RELEASE k c", "0"),
        ("LOCK.RELEASE k d", "0"),
        ("e:", "#5"),
        ("LOCK.RELEASE k e", "0"),
        ("f:", "#6"),
        ("m:", "[#7 #8]"),
    ]);
}

#[test]
fn a_request_for_shares_waits_behind_a_writer_and_passes_a_reader_that_another_key_delays() {
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE other x", "#1"),
        ("m: LOCK.MACQUIRE 2 k other m READ BLOCK 0", "waits"),
        ("LOCK.SHARE k a 2", "#2"),
        ("w: LOCK.ACQUIRE k w BLOCK 0", "waits"),
        ("LOCK.SHARE k b 2", "nil"),
        ("b: LOCK.SHARE k b 2 BLOCK 0", "waits"),
        ("LOCK.RELEASE k a", "0"),
        ("w:", "#3"),
        ("LOCK.RELEASE k w", "0"),
        ("b:", "#4"),
    ]);
}

#[test]
fn a_lower_limit_stops_the_line_until_so_few_shares_are_held() {
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.SHARE k a 4 TAKE 2", "#1"),
        ("LOCK.SHARE k b 4", "#2"),
        ("low: LOCK.SHARE k low 2 BLOCK 0", "waits"),
        ("high: LOCK.SHARE k high 4 BLOCK 0", "waits"),
        ("LOCK.RELEASE k a", "1"),
        ("low:", "waits"),
        ("high:", "waits"),
        ("LOCK.RELEASE k a", "0"),
        ("low:", "#3"),
        ("high:", "#4"),
    ]);
}

#[test]
fn asking_again_with_another_limit_replaces_it() {
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.SHARE k a 2 TAKE 2", "#1"),
        ("b: LOCK.SHARE k b 2 BLOCK 0", "waits"),
        ("c: LOCK.RW k c READ BLOCK 0", "waits"),
        // Without RETRY it would wait twice.
        ("LOCK.SHARE k b 3 BLOCK 0", "ERR owner already waits there: use RETRY"),
        ("d: LOCK.SHARE k b 3 BLOCK 0 RETRY 1", "#2"),
        ("b:", "nil"),
        ("c:", "#3"),
    ]);
}

#[test]
fn a_writer_drains_a_semaphore_and_keeps_newcomers_out() {
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.SHARE k a 8", "#1"),
        ("LOCK.SHARE k b 8", "#2"),
        ("op: LOCK.ACQUIRE k op BLOCK 0", "waits"),
        ("LOCK.SHARE k c 8", "nil"),
        ("LOCK.RELEASE k a", "0"),
        ("LOCK.RELEASE k b", "0"),
        ("op:", "#3"),
        ("c: LOCK.SHARE k c 8 BLOCK 0", "waits"),
        ("d: LOCK.SHARE k d 8 BLOCK 0", "waits"),
        ("LOCK.RELEASE k op", "0"),
        ("c:", "#4"),
        ("d:", "#5"),
    ]);
}

#[test]
fn readers_and_shares_and_writers_of_one_owner_wait_side_by_side() {
    let server = Server::new();
    let mut stage = Stage::new(&server);
    stage.play(&[
        ("LOCK.ACQUIRE k a", "#1"),
        ("r: LOCK.RW k b READ BLOCK 0", "waits"),
        ("s: LOCK.SHARE k b 3 TAKE 2 BLOCK 0", "waits"),
        ("LOCK.SHARE k b 3 BLOCK 0", "ERR owner already waits there: use RETRY"),
        ("LOCK.RELEASE k a", "0"),
        ("r:", "#2"),
        // It fits and nobody stands before it: it is answered as any holder is.
        ("s:", "#2"),
        ("LOCK.RELEASE k b", "2"),
    ]);
}
