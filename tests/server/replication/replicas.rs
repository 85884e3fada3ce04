//! Replicas: they have what the primary has, end nothing themselves, and take over with every lease still running.

use crate::harness::connection::Connection;
use crate::harness::payload::dump;
use crate::harness::picture::{Ttls, assert_running_on, fill, picture};
use crate::harness::servers::not_run;
use crate::harness::state::let_it_tick;
use crate::harness::transcript::each;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;
use testbed::{Client, PATIENCE, Server, Signal, wait_for};

/// How much later than on the primary a lease may end elsewhere: the time that a fact is under way. Generous, for a
/// machine that is busy with other tests.
const UNDER_WAY_MS: i64 = 60_000;

fn promote(conn: &mut Client) {
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
}

/// Stops following, but stays a replica.
fn orphan(conn: &mut Client) {
    conn.ok(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn digest(conn: &mut Client) -> String {
    conn.get(&["DEBUG", "DIGEST"])
}

/// No lease ends before it does on the primary, nor much later.
fn assert_never_earlier(before: &Ttls, after: &Ttls, began: Instant, how: &str) {
    let passed = i64::try_from(began.elapsed().as_millis()).unwrap() + 1;
    assert_eq!(before.len(), after.len(), "{how}");
    for (whose, ttl) in after {
        let was = before[whose];
        assert!(*ttl >= was - passed, "{how}: {whose:?} has {ttl} ms, {passed} ms ago it had {was} ms on the primary");
        assert!(*ttl <= was + UNDER_WAY_MS, "{how}: {whose:?} has {ttl} ms, on the primary it had {was} ms");
    }
}

#[test]
fn a_full_sync_brings_every_lock() {
    // By disk or by wire the replica loads what the primary saved; a field left out would show nowhere else.
    for diskless in ["yes", "no"] {
        for load in ["disabled", "on-empty-db", "swapdb"] {
            let how = format!("diskless sync {diskless}, load {load}");
            let primary = Server::setup().option("repl-diskless-sync", diskless).start();
            let replica = Server::setup().option("repl-diskless-load", load).start();
            // What the replica had before must go, its leases too.
            replica.connect().int(&["LOCK.ACQUIRE", "stale", "a"]).unwrap();
            fill(&primary);
            let (began, before) = (Instant::now(), picture(&primary));
            replica.follow(&primary);
            let after = picture(&replica);
            assert_eq!(after.0, before.0, "{how}");
            assert_never_earlier(&before.1, &after.1, began, &how);
            let mut conn = replica.connect();
            assert_eq!(conn.info_number("lock", "lock_leases"), before.0.locks.len() as u64, "{how}");
            let clock = primary.connect().info("lock", "lock_fence_clock");
            assert_eq!(conn.info("lock", "lock_fence_clock"), clock, "{how}");
            assert_eq!(digest(&mut conn), digest(&mut primary.connect()), "{how}");
        }
    }
}

#[test]
fn the_stream_brings_every_lock() {
    // Here each hold comes as LOCK.HOLD, not in the saved form.
    let primary = Server::new();
    let replica = Server::new();
    replica.follow(&primary);
    fill(&primary);
    let (began, before) = (Instant::now(), picture(&primary));
    replica.catch_up(&primary);
    let after = picture(&replica);
    assert_eq!(after.0, before.0);
    assert_never_earlier(&before.1, &after.1, began, "the stream");
}

#[test]
fn a_partial_sync_brings_what_was_missed() {
    // The link breaks; what comes from the backlog comes late, and all of it counts from then.
    let primary = Server::new();
    let replica = Server::new();
    replica.follow(&primary);
    fill(&primary);
    let mut conn = primary.connect();
    for round in 1..=3 {
        let ok = conn.info_number("stats", "sync_partial_ok");
        conn.int(&["CLIENT", "KILL", "TYPE", "replica"]);
        // While it is away: a new hold, one that goes, one that changes, one that lapses.
        conn.int(&["LOCK.ACQUIRE", &format!("new {round}"), "a", "PX", "600000"]).unwrap();
        conn.int(&["LOCK.RELEASE", "crowd", &format!("reader {round}")]).unwrap();
        conn.int(&["LOCK.EXTEND", "plain", "a", "PX", "500000"]).unwrap();
        conn.int(&["LOCK.ACQUIRE", "short", "a", "PX", "1"]).unwrap();
        wait_for("the lease to end", || conn.int(&["EXISTS", "short"]) == Some(0));
        wait_for("the link to be back", || conn.info_number("stats", "sync_partial_ok") > ok);
        replica.catch_up(&primary);
        assert_eq!(digest(&mut replica.connect()), digest(&mut conn), "round {round}");
        assert_eq!(replica.connect().info("lock", "lock_leases"), conn.info("lock", "lock_leases"));
    }
    assert_eq!(conn.info("stats", "sync_full"), "1");
}

/// Lets a thread end also when the test fails.
struct StopsOnDrop<'a>(&'a AtomicBool);

impl Drop for StopsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes and gives back locks until the test stops it, so that some lie there at every moment and none for long.
fn keep_changing(server: &Server, stop: &AtomicBool) {
    let mut conn = server.connect();
    let mut n = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let (new, old) = (format!("k{}", n % 50), format!("k{}", (n + 25) % 50));
        conn.int(&["LOCK.ACQUIRE", &new, "a", "PX", "600000"]);
        conn.int(&["LOCK.RELEASE", &old, "a"]);
        n += 1;
    }
}

#[test]
fn a_replica_that_attaches_at_any_moment_misses_nothing() {
    // While no replica listens nothing is sent. A stream that begins unnoticed would lack what changes until the module
    // notices: hz 1 makes the time in which it could happen a second.
    for diskless in ["yes", "no"] {
        let primary = Server::setup().option("repl-diskless-sync", diskless).option("hz", "1").start();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stops = StopsOnDrop(&stop);
            scope.spawn(|| keep_changing(&primary, &stop));
            for _ in 0..3 {
                let replica = Server::new();
                let mut conn = replica.connect();
                conn.ok(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
                wait_for("the replica to be in sync", || conn.info("replication", "master_link_status") == "up");
                let mut here = primary.connect();
                here.ok(&["CLIENT", "PAUSE", "25000", "WRITE"]);
                replica.catch_up(&primary);
                assert_eq!(digest(&mut conn), digest(&mut here), "diskless {diskless}");
                here.ok(&["CLIENT", "UNPAUSE"]);
            }
        });
    }
}

#[test]
fn a_replica_that_comes_back_alone_gets_what_changed_meanwhile() {
    // With its only replica away the primary has no replica to send to, but must keep what it would have sent.
    let (primary, replica) = (Server::setup().option("hz", "100").start(), Server::new());
    let (mut there, mut here) = (primary.connect(), replica.connect());
    replica.follow(&primary);
    let syncs = there.info_number("stats", "sync_full");
    here.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    wait_for("the replica to leave", || there.info_number("replication", "connected_slaves") == 0);
    let_it_tick(&mut there);
    there.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
    replica.follow(&primary);
    assert_eq!(digest(&mut here), digest(&mut there));
    assert_eq!(there.info_number("stats", "sync_full"), syncs, "a full sync would have brought it anyway");
}

#[test]
fn changes_that_nobody_hears_count_for_the_save_points() {
    // A server that saves by RDB alone would never save its locks.
    let (_server, mut conn) = Server::connected();
    let_it_tick(&mut conn);
    let before = conn.info_number("persistence", "rdb_changes_since_last_save");
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
    assert!(conn.info_number("persistence", "rdb_changes_since_last_save") > before);
}

#[test]
fn a_replica_whose_wall_clock_is_off_keeps_every_lease() {
    // Read by its own wall clock, every lease would be over at once, or an hour too long.
    for offset in ["+1h", "-1h"] {
        for diskless in ["yes", "no"] {
            let primary = Server::setup().option("repl-diskless-sync", diskless).start();
            let replica = Server::setup().wall_offset(offset).start();
            fill(&primary);
            let (began, before) = (Instant::now(), picture(&primary));
            replica.follow(&primary);
            assert_never_earlier(&before.1, &picture(&replica).1, began, &format!("{offset}, full sync"));
            // And by the stream.
            let mut conn = primary.connect();
            conn.int(&["LOCK.ACQUIRE", "streamed", "a", "PX", "700000"]).unwrap();
            conn.int(&["LOCK.EXTEND", "plain", "a", "PX", "700000"]).unwrap();
            let (began, before) = (Instant::now(), picture(&primary));
            replica.catch_up(&primary);
            let after = picture(&replica);
            assert_never_earlier(&before.1, &after.1, began, &format!("{offset}, stream"));
            let mut conn = replica.connect();
            promote(&mut conn);
            let promoted = picture(&replica);
            assert_eq!(promoted.0, before.0, "{offset}, promoted");
            assert_never_earlier(&before.1, &promoted.1, began, &format!("{offset}, promoted"));
            assert_eq!(conn.int(&["LOCK.ACQUIRE", "plain", "other"]), None);
        }
    }
}

#[test]
fn a_replica_whose_wall_clock_is_off_restarts_from_its_own_file_with_every_lease() {
    // What it writes to its own disk must be by its own clock, which reads it again.
    for offset in ["+1h", "-1h"] {
        for preamble in ["yes", "no"] {
            if preamble == "yes"
                && not_run(
                    "replication::replicas::a_replica_whose_wall_clock_is_off_restarts_from_its_own_file_with_every_lease",
                )
            {
                continue;
            }
            let how = format!("{offset}, preamble {preamble}");
            let primary = Server::new();
            let mut replica = Server::setup()
                .wall_offset(offset)
                .option("appendonly", "yes")
                .option("appendfsync", "always")
                .option("aof-use-rdb-preamble", preamble)
                .start();
            fill(&primary);
            replica.follow(&primary);
            let mut conn = replica.connect();
            // After a full sync the replica writes its file anew.
            wait_for("the replica's file to be written", || {
                conn.info("persistence", "aof_rewrite_in_progress") == "0"
                    && conn.info("persistence", "aof_rewrite_scheduled") == "0"
            });
            primary.connect().int(&["LOCK.ACQUIRE", "streamed", "a", "PX", "700000"]).unwrap();
            primary.connect().int(&["LOCK.EXTEND", "plain", "a", "PX", "700000"]).unwrap();
            replica.catch_up(&primary);
            let (began, before) = (Instant::now(), picture(&replica));
            replica.crash();
            let after = picture(&replica);
            assert_eq!(after.0, before.0, "{how}");
            assert_running_on(&before.1, &after.1, began, &how);
        }
    }
}

#[test]
fn a_promoted_replica_enforces_every_lease_to_its_end_and_then_ends_it() {
    // Two ways to go wrong: to give the lock away at once, or never.
    let primary = Server::new();
    let replica = Server::setup().option("appendonly", "yes").option("appendfsync", "always").start();
    replica.follow(&primary);
    let taken = Instant::now();
    let fence = primary.connect().int(&["LOCK.ACQUIRE", "k", "a", "PX", "1500"]).unwrap();
    replica.catch_up(&primary);
    drop(primary);
    let mut conn = replica.connect();
    promote(&mut conn);
    loop {
        // Asked before the time is taken, so that a grant that is refused for being too early is seen as such.
        let granted = conn.int(&["LOCK.ACQUIRE", "k", "b", "PX", "60000"]);
        if let Some(granted) = granted {
            assert!(taken.elapsed().as_millis() >= 1500, "granted after {:?}", taken.elapsed());
            assert!(granted > fence);
            break;
        }
        assert!(taken.elapsed() < PATIENCE, "never granted");
    }
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
    let gone = ["LOCK.HOLD", "k", "a", "0", "0", &fence.to_string()];
    assert!(replica.aof_tail().iter().any(|command| command == &gone), "{:?}", replica.aof_tail());
}

#[test]
fn a_replica_ends_no_lease_itself() {
    // The primary may be alive and have extended it: then the replica's data would be others than the primary's.
    let primary = Server::new();
    let replica = Server::new();
    replica.follow(&primary);
    let mut conn = replica.connect();
    primary.connect().int(&["LOCK.ACQUIRE", "k", "a", "PX", "6000"]).unwrap();
    primary.connect().int(&["LOCK.RW", "mixed", "b", "READ", "PX", "6000"]).unwrap();
    primary.connect().int(&["LOCK.RW", "mixed", "c", "READ", "PX", "600000"]).unwrap();
    replica.catch_up(&primary);
    primary.signal(Signal::STOP);
    // Shown as they are to be seen.
    wait_for("the lease to be over", || conn.lock_info("k").is_none());
    wait_for("the other to be over", || conn.lock_info("mixed").unwrap().holding == 1);
    assert_eq!(conn.lock_info("mixed").unwrap().holders[0].owner, b"c");
    let_it_tick(&mut conn);
    assert_eq!(conn.int(&["EXISTS", "k", "mixed"]), Some(2), "the keys stay");
    assert_eq!((conn.info("lock", "lock_lapsed"), conn.info("lock", "lock_leases")), ("0".into(), "2".into()));
    primary.signal(Signal::CONT);
    wait_for("the primary to end them", || conn.int(&["EXISTS", "k"]) == Some(0));
    assert_eq!(conn.info("lock", "lock_lapsed"), "0");
    assert_eq!(primary.connect().info("lock", "lock_lapsed"), "2");
    replica.catch_up(&primary);
    assert_eq!(digest(&mut conn), digest(&mut primary.connect()));
}

#[test]
fn a_former_primary_ends_no_lease_any_more() {
    // Its timer is still set when it becomes a replica.
    let (server, mut conn) = Server::setup().option("appendonly", "yes").option("appendfsync", "always").connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "6000"]).unwrap();
    orphan(&mut conn);
    let written = server.aof_tail().len();
    wait_for("the lease to be over", || conn.lock_info("k").is_none());
    let_it_tick(&mut conn);
    assert_eq!(conn.int(&["EXISTS", "k"]), Some(1));
    assert_eq!(conn.info("lock", "lock_lapsed"), "0");
    assert_eq!(server.aof_tail().len(), written, "nothing was written");
    // Primary again: now it is its to end.
    promote(&mut conn);
    wait_for("the lease to end", || conn.int(&["EXISTS", "k"]) == Some(0));
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
}

#[test]
fn primary_and_replica_change_places_and_back() {
    // Each has an index of leases from before, and a fence clock that must never fall behind the other's.
    let (one, other) = (Server::new(), Server::new());
    other.follow(&one);
    let mut fence = 0;
    for round in 0..4 {
        let (primary, replica) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let (mut old, mut new) = (primary.connect(), replica.connect());
        let given = old.int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]).unwrap();
        assert!(given > fence, "round {round}: {given} is not above {fence}");
        fence = given;
        replica.catch_up(primary);
        promote(&mut new);
        primary.follow(replica);
        assert_eq!(new.lock_info("k").unwrap().holders[0].writes, round + 1);
        assert_eq!(digest(&mut old), digest(&mut new), "round {round}");
        for conn in [&mut old, &mut new] {
            assert_eq!(conn.info("lock", "lock_leases"), "1", "round {round}");
        }
        let refused = old.error(&["LOCK.ACQUIRE", "k", "a"]);
        assert_eq!(refused, "READONLY You can't write against a read only replica.");
    }
}

#[test]
fn a_writable_replica_refuses_to_change_locks() {
    // It would grant what the primary has granted to another owner.
    let primary = Server::new();
    let replica = Server::setup().lock_option("allow-hold", "yes").start();
    replica.follow(&primary);
    primary.connect().int(&["LOCK.ACQUIRE", "k", "a", "PX", "60000"]).unwrap();
    replica.catch_up(&primary);
    let mut conn = replica.connect();
    let before = picture_of(&mut conn);
    for (read_only, refusal) in [("yes", "READONLY "), ("no", "READONLY locks are granted by the primary only")] {
        conn.ok(&["CONFIG", "SET", "replica-read-only", read_only]);
        for (command, refusal) in each(&[
            ("LOCK.{ACQUIRE|RELEASE} {free|k} a", refusal),
            ("LOCK.{ACQUIRE k *|RW free a READ|SHARE free a 5|EXTEND k a PX 1000}", refusal),
            // Such a replica would keep a queue of its own, or end a hold on itself alone.
            ("LOCK.{ACQUIRE k b BLOCK 0|ACQUIRE k a SESSION 0|EXTEND k a PX 5 SESSION 0}", refusal),
            ("LOCK.{HOLD k b 0 1 1 1 1000|HOLD k a 0 0}", refusal),
            ("LOCK.{MACQUIRE 2 free k a|MRELEASE 2 free k a|MEXTEND 2 free k a PX 5}", refusal),
            // Syntax is checked first, as everywhere.
            ("LOCK.ACQUIRE k a PX 0", if read_only == "no" { "ERR PX must be" } else { refusal }),
        ]) {
            let refused = conn.error(&command.split(' ').collect::<Vec<_>>());
            assert!(refused.starts_with(refusal), "{command}: {refused}");
        }
    }
    assert_eq!(picture_of(&mut conn), before);
    assert_eq!(conn.lock_info("k").unwrap().holding, 1, "looking is allowed");
    assert_eq!(["lock_waiters", "lock_session_holds"].map(|field| conn.info_number("lock", field)), [0, 0]);
}

fn picture_of(conn: &mut Client) -> (Vec<String>, String, String) {
    let mut keys: Vec<String> = conn.get(&["KEYS", "*"]);
    keys.sort();
    (keys, conn.get::<Vec<String>>(&["DEBUG", "DIGEST-VALUE", "k"]).concat(), conn.info("lock", "lock_fence_clock"))
}

#[test]
fn a_time_to_live_that_is_set_just_after_a_restore_is_the_same_on_both() {
    // The holds of a restored lock are sent a millisecond later, and would end a time to live on the replica alone.
    let (primary, replica) = (Server::new(), Server::new());
    replica.follow(&primary);
    let (mut conn, mut there) = (primary.connect(), replica.connect());
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).expect("free");
    let payload = dump(&mut conn, "k");
    for ttl in ["0", "500000"] {
        conn.ok(&["MULTI"]);
        conn.call(&[b"RESTORE", &b"k"[..], ttl.as_bytes(), &payload, b"REPLACE"]).unwrap();
        conn.call(&["PEXPIRE", "k", "400000"]).unwrap();
        conn.call(&["EXEC"]).unwrap();
        let at_ms = |conn: &mut Client| conn.int(&["PEXPIRETIME", "k"]).unwrap();
        let set = at_ms(&mut conn);
        assert!(set > 0);
        // By then they are sent.
        let_it_tick(&mut conn);
        replica.catch_up(&primary);
        assert_eq!((at_ms(&mut conn), at_ms(&mut there)), (set, set));
    }
}

#[test]
fn wait_confirms_a_grant_on_its_own_connection_and_outside_of_multi_alone() {
    // What could go wrong: a client believes that a replica has the grant, while the replica never received it.
    let (primary, replica) = (Server::new(), Server::new());
    replica.follow(&primary);
    let [mut conn, mut other] = [primary.connect(), primary.connect()];
    assert_eq!(other.get::<String>(&["PING"]), "PONG");
    // All that was sent so far has arrived, and the primary knows.
    conn.int(&["LOCK.ACQUIRE", "before", "a"]).expect("free");
    assert_eq!(conn.int(&["WAIT", "1", "0"]), Some(1));
    replica.signal(Signal::STOP);
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000"]).expect("free");
    assert_eq!(other.int(&["WAIT", "1", "0"]), Some(1), "of what this connection wrote, nothing is missing");
    assert_eq!(conn.int(&["WAIT", "1", "1"]), Some(0));
    // A waiter that was granted it asks on the connection that waited.
    let mut waiter = Connection::waiting(&primary, "LOCK.ACQUIRE k b BLOCK 0 PX 600000");
    conn.int(&["LOCK.RELEASE", "k", "a"]);
    assert!(waiter.read().int() > 0);
    waiter.send_line("WAIT 1 1");
    assert_eq!(waiter.read().int(), 0);
    // In MULTI the timeout of zero would be for ever.
    conn.ok(&["MULTI"]);
    for queued in [&["LOCK.ACQUIRE", "in-multi", "a"][..], &["WAIT", "1", "0"]] {
        assert_eq!(conn.get::<String>(queued), "QUEUED");
    }
    assert_eq!(conn.get::<Vec<i64>>(&["EXEC"]).len(), 2);
    replica.signal(Signal::CONT);
    assert_eq!(conn.int(&["WAIT", "1", "0"]), Some(1));
}
