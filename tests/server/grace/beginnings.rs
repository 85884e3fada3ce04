//! From when a grace runs: from the start of the process and from each promotion, on the monotonic clock. A full
//! synchronisation and DEBUG RELOAD begin none.

use super::{LONG, Scene, left, promote, started, with_grace};
use crate::harness::connection::{Connection, Reply};
use crate::harness::state::{holders, let_it_tick};
use std::time::Instant;
use testbed::{Client, Server, module, wait_for};

const LONG_MS: u64 = 600_000;

/// A whole grace has begun since then, by the clock of the test.
#[track_caller]
fn assert_whole(conn: &mut Client, since: Instant) {
    let left = left(conn);
    let elapsed = u64::try_from(since.elapsed().as_millis()).unwrap() + 1;
    assert!(left <= LONG_MS && left + elapsed >= LONG_MS, "{left} left after {elapsed} ms");
    assert!(conn.error(&["LOCK.ACQUIRE", "new", "a"]).starts_with("GRACE "));
}

#[test]
fn the_start_of_the_process_and_each_promotion_begin_a_whole_grace() {
    // What could go wrong: a grace that is a second short, or that began before the crash. The later end counts.
    let mut since = Instant::now();
    let mut server = started();
    assert_whole(&mut server.connect(), since);
    since = Instant::now();
    server.crash();
    let mut conn = server.connect();
    assert_whole(&mut conn, since);
    for _ in 0..2 {
        // As long as it takes to be seen.
        wait_for("some time to go by", || left(&mut conn) < LONG_MS - 50);
        since = Instant::now();
        promote(&mut conn);
        assert_whole(&mut conn, since);
    }
    // Also on a node that is no primary until then, and where none runs any more.
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", LONG]);
    assert_eq!(left(&mut conn), 0);
    since = Instant::now();
    promote(&mut conn);
    assert_whole(&mut conn, since);
}

#[test]
fn module_load_begins_a_grace() {
    // Nobody knows whether the module ran before in this process's data.
    let (_server, mut conn) = Server::setup().without_module().option("enable-module-command", "yes").connected();
    let since = Instant::now();
    conn.ok(&["MODULE", "LOAD", module().to_str().unwrap(), "grace-ms", LONG]);
    assert_whole(&mut conn, since);
}

#[test]
fn the_wall_clock_neither_shortens_nor_lengthens_a_grace() {
    let server = with_grace().wall_offset("+0").start();
    let mut scene = Scene::new(&server);
    scene.play(&[("w: LOCK.ACQUIRE k a BLOCK 0", "waits")]);
    for offset in ["+10h", "-10h"] {
        let before = scene.left();
        server.set_wall_offset(offset);
        let_it_tick_by_itself(&mut scene.conn);
        let after = scene.left();
        assert!(before - 60_000 < after && after <= before, "{offset}: {before}, {after}");
        scene.play(&[("w:", "waits"), ("LOCK.ACQUIRE other a", "GRACE ~")]);
    }
    scene.end();
    scene.play(&[("w:", "#1")]);
}

/// Lets the server tick, whatever its wall clock says.
fn let_it_tick_by_itself(conn: &mut Client) {
    let before = left(conn);
    wait_for("some ticks", || left(conn) + 300 < before);
}

#[test]
fn a_reload_and_a_full_synchronisation_begin_no_grace() {
    // What could go wrong: a backup that is loaded, or a replica that starts anew, keeps all waiting for minutes.
    let server = started();
    let mut conn = server.connect();
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    conn.ok(&["CONFIG", "SET", "lock.grace-ms", LONG]);
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", LONG]);
    conn.ok(&["DEBUG", "RELOAD"]);
    assert_eq!((left(&mut conn), holders(&mut conn, "k")), (0, vec!["a".to_owned()]));
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "a"]) > fence);

    let replica = started();
    let mut there = replica.connect();
    there.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    there.ok(&["CONFIG", "SET", "lock.grace-ms", LONG]);
    replica.follow(&server);
    replica.catch_up(&server);
    assert_eq!((left(&mut there), holders(&mut there, "k")), (0, vec!["a".to_owned()]));
    assert_eq!(left(&mut conn), 0, "the primary goes on");
    assert!(conn.int(&["LOCK.ACQUIRE", "other", "a"]).is_some());
}

#[test]
fn a_waiter_is_served_at_the_end_of_the_grace_by_the_timer() {
    // What could go wrong: the end is noticed by the next command alone, or the queue was scanned before.
    for waits in ["LOCK.ACQUIRE k a BLOCK 0", "LOCK.RW k a READ BLOCK 600000", "LOCK.MACQUIRE 2 j k a BLOCK 0"] {
        let server = Server::setup().lock_option("grace-ms", "700").option("hz", "1").start();
        let mut wire = Connection::resp2(&server);
        let began = Instant::now();
        wire.send_line(waits);
        let reply = wire.read();
        assert!(matches!(reply, Reply::Int(1..) | Reply::Array(_)), "{waits}: {reply:?}");
        // Not much later than it ends: by the timer, not by the tick of once a second. A machine may be slow.
        assert!(began.elapsed().as_secs() < 20, "{waits}");
        let mut conn = server.connect();
        assert_eq!((left(&mut conn), holders(&mut conn, "k")), (0, vec!["a".to_owned()]));
    }
}

#[test]
fn a_place_without_a_client_is_served_at_the_end_of_the_grace() {
    let (_server, mut conn) = Server::setup().lock_option("grace-ms", "1000").connected();
    if conn.call(&["LOCK.ACQUIRE", "k", "a", "QUEUE", "60000"]).is_ok() {
        // A slow machine: the grace was over.
        return;
    }
    wait_for("the offer", || conn.info_number("lock", "lock_offered") == 1);
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "a", "QUEUE", "60000"]).is_some());
}

#[test]
fn a_grace_that_is_over_while_nothing_may_be_written_serves_the_queue_afterwards() {
    let mut scene = Scene::owning(started());
    scene.play(&[("w: LOCK.ACQUIRE k a BLOCK 0", "waits")]);
    scene.conn.ok(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    scene.end();
    let_it_tick(&mut scene.conn);
    scene.play(&[("w:", "waits")]);
    scene.conn.ok(&["CLIENT", "UNPAUSE"]);
    scene.play(&[("w:", "#1")]);
}
