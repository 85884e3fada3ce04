//! Fences: of any two grants on a key the later has the higher one, whatever lies between them.
//!
//! The wall clock alone would let most of these tests pass. So wherever the module must remember, it is set back by an
//! hour between the two grants.

use super::minfence::{fence_clock, leave};
use crate::harness::payload::{dump, restore, restore_over};
use crate::harness::servers::not_run;
use crate::harness::state::{AOF, AOF_PLAIN, rewrite_aof};
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testbed::{Client, Cluster, LockInfo, Server, text_of, wait_for};

const LEASE_MS: &str = "3600000";

/// A grant; its fence.
fn take(conn: &mut Client, key: &str, owner: &str) -> i64 {
    conn.int(&["LOCK.ACQUIRE", key, owner, "PX", LEASE_MS]).unwrap_or_else(|| panic!("{owner} was refused {key}"))
}

fn info(conn: &mut Client, key: &str) -> LockInfo {
    conn.lock_info(key).unwrap_or_else(|| panic!("nobody holds {key}"))
}

/// A hold that was carried keeps its fence in all that shows or lengthens it, until its owner asks again.
fn carried_hold_gets_a_new_fence(conn: &mut Client, key: &str, owner: &str, old: i64, highest: i64) -> i64 {
    assert_eq!(info(conn, key).holders[0].fence, old, "INFO shows the fence that the holder knows");
    assert_eq!(conn.int(&["LOCK.EXTEND", key, owner, "PX", LEASE_MS]), Some(old), "EXTEND keeps it");
    assert_eq!(conn.int(&["LOCK.EXTEND", key, owner, "PX", LEASE_MS, "FENCE", &old.to_string()]), Some(old));
    let new = take(conn, key, owner);
    assert!(new > highest, "{new} is not above {highest}, the highest fence so far");
    assert_eq!(info(conn, key).holders[0].fence, new);
    assert_eq!(take(conn, key, owner), new, "from then on it is its own");
    new
}

/// A server whose wall clock can be set.
fn clocked(options: &[(&str, &str)]) -> Server {
    Server::setup().wall_offset("+0").options(options).start()
}

/// Sets the wall clock of a running server back by an hour, and sees that it is.
fn set_back(server: &Server) {
    server.set_wall_offset("-1h");
    assert_set_back(&mut server.connect());
}

/// Without this the tests would pass wherever the clock cannot be set at all.
fn assert_set_back(conn: &mut Client) {
    let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (there, _): (u64, u64) = conn.get(&["TIME"]);
    assert!((here - 3660..here - 3500).contains(&there), "the server's wall clock was not set back: {there}");
}

/// One way in which a hold ends: its name, and what is done.
type End = (&'static str, fn(&mut Client));

#[test]
fn a_grant_has_a_higher_fence_however_the_one_before_it_ended() {
    // A counter kept in the value would begin anew with each new value; a wall clock would go back.
    const ENDS: [End; 10] = [
        ("release", |conn| leave(conn, "k", "a")),
        ("lapse", |conn| {
            conn.int(&["LOCK.EXTEND", "k", "a", "PX", "1"]).unwrap();
            wait_for("the lease to end", || conn.lock_info("k").is_none());
        }),
        ("DEL", |conn| assert_eq!(conn.int(&["DEL", "k"]), Some(1))),
        ("UNLINK", |conn| assert_eq!(conn.int(&["UNLINK", "k"]), Some(1))),
        ("FLUSHALL", |conn| conn.ok(&["FLUSHALL"])),
        ("FLUSHALL ASYNC", |conn| conn.ok(&["FLUSHALL", "ASYNC"])),
        ("FLUSHDB", |conn| conn.ok(&["FLUSHDB"])),
        ("SET over it", |conn| {
            conn.ok(&["SET", "k", "v"]);
            conn.int(&["DEL", "k"]);
        }),
        ("the server's expiry", |conn| {
            conn.int(&["PEXPIRE", "k", "1"]);
            wait_for("the key to expire", || conn.int(&["EXISTS", "k"]) == Some(0));
        }),
        ("RENAME away", |conn| conn.ok(&["RENAME", "k", "elsewhere"])),
    ];
    for back in [false, true] {
        let server = clocked(&[]);
        let mut conn = server.connect();
        let mut last = take(&mut conn, "k", "a");
        if back {
            set_back(&server);
        }
        for (name, end) in ENDS {
            end(&mut conn);
            let fence = take(&mut conn, "k", "a");
            assert!(fence > last, "after {name}: {fence} is not above {last}; wall clock set back: {back}");
            last = fence;
        }
    }
}

#[test]
fn a_lock_that_is_renamed_does_not_bring_an_old_fence_to_another_key() {
    // On the new name a higher fence may have been given already: the resource would refuse the carried holder.
    let server = clocked(&[]);
    let mut conn = server.connect();
    let old = take(&mut conn, "from", "a");
    set_back(&server);
    let highest = take(&mut conn, "onto", "b");
    assert!(highest > old);
    conn.ok(&["RENAME", "from", "onto"]);
    let new = carried_hold_gets_a_new_fence(&mut conn, "onto", "a", old, highest);
    // And the name it left is free for a fence that is higher still.
    assert!(take(&mut conn, "from", "b") > new);
    // There and back again is carried twice.
    conn.ok(&["RENAME", "onto", "away"]);
    conn.ok(&["RENAME", "away", "onto"]);
    carried_hold_gets_a_new_fence(&mut conn, "onto", "a", new, new);
}

#[test]
fn a_lock_that_is_moved_does_not_bring_an_old_fence_to_another_database() {
    // MOVE reports nothing to the module but an event in the other database.
    let server = clocked(&[]);
    let (mut zero, mut one) = (server.connect(), server.connect());
    one.ok(&["SELECT", "1"]);
    let old = take(&mut zero, "k", "a");
    set_back(&server);
    let highest = take(&mut one, "k", "b");
    assert!(highest > old);
    leave(&mut one, "k", "b");
    assert_eq!(zero.int(&["MOVE", "k", "1"]), Some(1));
    let new = carried_hold_gets_a_new_fence(&mut one, "k", "a", old, highest);
    assert!(take(&mut zero, "k", "b") > new);
}

#[test]
fn databases_that_change_places_carry_their_holds() {
    // SWAPDB reports no key: a hold that resembles this node's own grant would keep a fence below one given here.
    let server = clocked(&[]);
    let (mut zero, mut one) = (server.connect(), server.connect());
    one.ok(&["SELECT", "1"]);
    let of_a = take(&mut zero, "k", "a");
    set_back(&server);
    let of_b = take(&mut one, "k", "b");
    assert!(of_b > of_a);
    zero.ok(&["SWAPDB", "0", "1"]);
    carried_hold_gets_a_new_fence(&mut zero, "k", "b", of_b, of_b);
    carried_hold_gets_a_new_fence(&mut one, "k", "a", of_a, of_b);
}

#[test]
fn an_old_payload_that_is_restored_does_not_bring_its_fence_back() {
    // A grant has happened on the key since the payload was made.
    let server = clocked(&[]);
    let mut conn = server.connect();
    let old = take(&mut conn, "k", "a");
    let payload = dump(&mut conn, "k");
    leave(&mut conn, "k", "a");
    set_back(&server);
    let highest = take(&mut conn, "k", "b");
    assert!(highest > old);
    leave(&mut conn, "k", "b");
    restore(&mut conn, "k", &payload).unwrap();
    assert_eq!(conn.int(&["LOCK.ACQUIRE", "k", "b"]), None, "it is held again");
    carried_hold_gets_a_new_fence(&mut conn, "k", "a", old, highest);
}

/// Where the clock is kept over a restart: the server's options, and what is done before it.
type Kept = (&'static str, &'static [(&'static str, &'static str)], fn(&mut Client));

const KEPT: [Kept; 6] = [
    ("RDB", &[("save", "3600 1000000")], |_| {}),
    ("RDB, saved by hand", &[], |conn| conn.ok(&["SAVE"])),
    ("AOF", AOF, |_| {}),
    ("AOF without preamble", AOF_PLAIN, |_| {}),
    ("AOF, rewritten", AOF, rewrite_aof),
    ("AOF without preamble, rewritten", AOF_PLAIN, rewrite_aof),
];

#[test]
fn fences_rise_over_a_restart_although_the_wall_clock_was_set_back() {
    // A node that takes the time from the wall clock alone gives yesterday's fences again.
    for (name, options, save) in KEPT {
        let mut server = clocked(options);
        let mut conn = server.connect();
        let old = take(&mut conn, "carried", "a");
        let highest = take(&mut conn, "free", "b");
        leave(&mut conn, "free", "b");
        // The last record is of a fence that is held, since a rewritten AOF without preamble knows of no other.
        let kept = take(&mut conn, "kept", "c");
        assert!(kept > highest);
        save(&mut conn);
        server.restart_at("-1h");
        let mut conn = server.connect();
        assert_set_back(&mut conn);
        let fence = take(&mut conn, "free", "d");
        assert!(fence > kept, "{name}: {fence} is not above {kept}");
        carried_hold_gets_a_new_fence(&mut conn, "carried", "a", old, fence);
    }
}

#[test]
fn the_clock_is_kept_when_no_lock_is_left_to_carry_it() {
    // Nothing in the data shows that a fence was ever given: only the record beside them, or the release in the tail.
    for (name, options, save) in &KEPT[..5] {
        let mut server = clocked(options);
        let mut conn = server.connect();
        // A server that has nothing to save does not save.
        conn.ok(&["SET", "something", "else"]);
        let last = take(&mut conn, "k", "a");
        leave(&mut conn, "k", "a");
        save(&mut conn);
        server.restart_at("-1h");
        let mut conn = server.connect();
        assert_set_back(&mut conn);
        assert_eq!(conn.get::<String>(&["GET", "something"]), "else", "{name}");
        assert_eq!(fence_clock(&mut conn), last, "{name}");
        // And from that load once more, without a grant between.
        save(&mut conn);
        server.restart();
        let mut conn = server.connect();
        assert_eq!(fence_clock(&mut conn), last, "{name}");
        assert!(take(&mut conn, "k", "b") > last, "{name}");
    }
}

#[test]
fn fences_rise_over_a_restart_with_nothing_saved() {
    // All memory is lost: the wall clock must do alone.
    for at_once in [false, true] {
        let mut server = Server::new();
        let last = take(&mut server.connect(), "k", "a");
        server.stop(at_once);
        server.start();
        assert!(take(&mut server.connect(), "k", "a") > last);
    }
}

#[test]
fn fences_rise_over_a_crash() {
    // With kill -9 nothing is saved at the end but what the AOF has.
    for options in [AOF, AOF_PLAIN] {
        let mut server = clocked(options);
        let last = take(&mut server.connect(), "k", "a");
        server.stop(true);
        server.set_wall_offset("-1h");
        server.start();
        let mut conn = server.connect();
        assert_set_back(&mut conn);
        carried_hold_gets_a_new_fence(&mut conn, "k", "a", last, last);
    }
}

fn incr_file(server: &Server) -> PathBuf {
    let dir = fs::read_dir(server.dir().join("appendonlydir")).unwrap();
    let mut files: Vec<PathBuf> = dir.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".incr.aof"));
    assert_eq!(files.len(), 1);
    files.remove(0)
}

#[test]
fn fences_rise_after_the_end_of_the_aof_was_lost() {
    // With appendfsync everysec a power cut takes a second of records along; the grants in it have been answered.
    for preamble in ["yes", "no"] {
        for cut_command in [false, true] {
            let (mut server, mut conn) = Server::setup()
                .option("appendonly", "yes")
                .option("appendfsync", "always")
                .option("aof-use-rdb-preamble", preamble)
                .option("aof-load-truncated", "yes")
                .connected();
            take(&mut conn, "k", "a");
            let kept = fs::metadata(incr_file(&server)).unwrap().len();
            leave(&mut conn, "k", "a");
            let mut lost = 0;
            for _ in 0..20 {
                lost = take(&mut conn, "k", "b");
                leave(&mut conn, "k", "b");
            }
            server.stop(true);
            let file = File::options().write(true).open(incr_file(&server)).unwrap();
            file.set_len(kept + if cut_command { 20 } else { 0 }).unwrap();
            server.start();
            let mut conn = server.connect();
            let holder = info(&mut conn, "k").holders.remove(0);
            assert_eq!(holder.owner, b"a", "back at the last record that is whole");
            let fence = take(&mut conn, "k", "a");
            assert!(fence > lost, "{fence} is not above {lost}, which was lost");
        }
    }
}

#[test]
fn fences_rise_over_a_failover_to_a_replica_whose_clock_is_behind() {
    // The new primary has not seen the last grants, and its wall clock says that they are yet to come. Seconds instead
    // of the default's milliseconds, so that the test is not decided by how long it takes.
    let primary = Server::new();
    let replica = Server::setup().wall_offset("-50").lock_option("promotion-skew-ms", "60000").start();
    replica.follow(&primary);
    let (mut old, mut new) = (primary.connect(), replica.connect());
    let carried = take(&mut old, "carried", "c");
    replica.catch_up(&primary);
    // The link is cut, the role stays.
    new.ok(&["REPLICAOF", "127.0.0.1", "1"]);
    take(&mut old, "k", "a");
    leave(&mut old, "k", "a");
    let unseen = take(&mut old, "k", "b");
    assert_eq!(new.int(&["EXISTS", "k"]), Some(0), "the replica has not seen it");
    drop(primary);
    new.ok(&["REPLICAOF", "NO", "ONE"]);
    let fence = take(&mut new, "k", "a");
    assert!(fence > unseen, "{fence} is not above {unseen}");
    carried_hold_gets_a_new_fence(&mut new, "carried", "c", carried, fence);
}

#[test]
fn fences_rise_over_a_crash_right_after_a_failover() {
    // The promoted replica's clock was ahead of its wall clock by the jump; what it granted then was in no file.
    let primary = Server::new();
    let mut replica = Server::new();
    replica.follow(&primary);
    drop(primary);
    let mut conn = replica.connect();
    conn.ok(&["REPLICAOF", "NO", "ONE"]);
    let before = take(&mut conn, "k", "a");
    replica.crash();
    let after = take(&mut replica.connect(), "k", "a");
    assert!(after > before, "{after} is not above {before}");
}

#[test]
fn fences_rise_over_a_slot_that_is_moved_right_after_a_failover() {
    // The promoted node's clock is ahead of the wall clock, and a key that is free takes no fence along. The new node
    // would go by its wall clock, and give the same fences once more.
    let cluster = Cluster::start(2, 1);
    let (key, slot) = cluster.key();
    let [mut promoted, mut other] = [2, 1].map(|number| cluster.conn(number));
    // The other has been giving fences for long: it does not jump any more.
    take(&mut other, &cluster.key_of(1), "x");
    promoted.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "60000"]);
    promoted.ok(&["CLUSTER", "FAILOVER"]);
    wait_for("the replica to take over", || promoted.call(&["EXISTS", &key]).is_ok());
    let before = take(&mut promoted, &key, "a");
    leave(&mut promoted, &key, "a");
    wait_for("the other node to hear how far that was", || fence_clock(&mut other) >= before);
    cluster.begin_move(&slot, 2, 1);
    cluster.end_move(&slot, 2, 1);
    let after = take(&mut other, &key, "b");
    assert!(after > before, "{after} is not above {before}");
}

#[test]
fn nodes_do_not_talk_of_fences_all_the_time() {
    // Ahead of the wall clock for a minute, each new fence would be published by its node, and by all that received it.
    let cluster = Cluster::start(3, 0);
    let (key, _) = cluster.key();
    let mut conns = [0, 1, 2].map(|number| cluster.conn(number));
    conns[0].ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "60000"]);
    let began = Instant::now();
    let mut fence = 0;
    while began.elapsed() < Duration::from_secs(2) {
        fence = take(&mut conns[0], &key, "a");
        leave(&mut conns[0], &key, "a");
    }
    for conn in &mut conns {
        wait_for("all to know how far that was", || fence_clock(conn) >= fence);
        let sent: f64 = conn.cluster_info("cluster_stats_messages_module_sent").parse().unwrap();
        // To two others, each second, and once more.
        let most = 2.0 * (began.elapsed().as_secs_f64() + 2.0);
        assert!(sent <= most, "{sent} messages where {most} would do");
    }
}

#[test]
fn fences_rise_over_a_slot_that_is_moved_at_once_to_a_node_whose_clock_is_behind() {
    // A key that is free takes no fence along: the new node leaves a gap for what the old one may have given.
    if not_run("commands::fences::fences_rise_over_a_slot_that_is_moved_at_once_to_a_node_whose_clock_is_behind") {
        return;
    }
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let [mut old, mut new] = [0, 1].map(|number| cluster.conn(number));
    // It has been giving fences for long: it does not jump any more.
    take(&mut new, &cluster.key_of(1), "x");
    new.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "60000"]);
    let before = take(&mut old, &key, "a");
    leave(&mut old, &key, "a");
    cluster.move_at_once(&slot);
    wait_for("the new node to serve it", || new.call(&["EXISTS", &key]).is_ok());
    let after = take(&mut new, &key, "b");
    assert!(after >= before + 50_000_000, "{after} leaves no room above {before} for a clock that is ahead");
}

#[test]
fn a_promoted_replica_goes_on_from_what_it_has_seen() {
    // Its wall clock is behind by far more than the skew, but it has seen every grant: releases, too, carry the fence.
    let primary = Server::new();
    let replica = Server::setup().wall_offset("-1h").start();
    let mut old = primary.connect();
    // Seen by full sync, in the record beside the data.
    let synced = take(&mut old, "k", "a");
    leave(&mut old, "k", "a");
    replica.follow(&primary);
    let mut new = replica.connect();
    assert_eq!(fence_clock(&mut new), synced);
    // Seen in the stream.
    let streamed = take(&mut old, "k", "b");
    leave(&mut old, "k", "b");
    replica.catch_up(&primary);
    assert_eq!(fence_clock(&mut new), streamed);
    new.ok(&["REPLICAOF", "NO", "ONE"]);
    // The default of lock.promotion-skew-ms.
    assert_eq!(fence_clock(&mut new), streamed + 1_000_000);
    assert!(take(&mut new, "k", "a") > streamed);
}

#[test]
fn a_payload_with_a_fence_far_ahead_is_refused_and_leaves_no_trace() {
    // Accepted, it would lift the clock for good, and every resource would remember fences years ahead.
    let (ahead, server) = (Server::setup().wall_offset("+2y").start(), Server::new());
    let (mut there, mut here) = (ahead.connect(), server.connect());
    let poison = take(&mut there, "k", "a");
    let payload = dump(&mut there, "k");
    take(&mut here, "other", "a");
    let clock = fence_clock(&mut here);
    assert!(poison > clock + 366 * 24 * 3600 * 1_000_000);
    for replace in [false, true] {
        let mut args: Vec<&[u8]> = vec![b"RESTORE", b"k", b"0", &payload];
        args.extend(replace.then_some(&b"REPLACE"[..]));
        assert_eq!(text_of(&here.call(&args).unwrap_err()), "ERR Bad data format");
        assert_eq!(here.int(&["EXISTS", "k"]), Some(0));
    }
    assert!(server.log().contains("its fence lies more than a year ahead of the clock"), "{}", server.log());
    assert_eq!(fence_clock(&mut here), clock);
    assert_eq!(here.info("lock", "lock_leases"), "1");
    assert!(take(&mut here, "k", "b") < poison);
    // What lies there is not replaced.
    let error = restore_over(&mut here, "k", &payload).unwrap_err();
    assert_eq!(text_of(&error), "ERR Bad data format");
    assert_eq!(info(&mut here, "k").holders[0].owner, b"b");
}

#[test]
fn a_fence_half_a_year_ahead_is_taken() {
    // The wall clock of a server that is restored to may have been wrong itself; the clock then goes on from there.
    let (ahead, server) = (Server::setup().wall_offset("+180d").start(), Server::new());
    let (mut there, mut here) = (ahead.connect(), server.connect());
    let came = take(&mut there, "k", "a");
    restore(&mut here, "k", &dump(&mut there, "k")).unwrap();
    assert_eq!(fence_clock(&mut here), came);
    assert!(take(&mut here, "k", "a") > came);
}

#[test]
fn a_hold_of_a_client_with_a_fence_far_ahead_is_refused_and_leaves_no_trace() {
    // The same poison by another way in.
    let (_server, mut conn) = Server::setup().lock_option("allow-hold", "yes").connected();
    let clock = take(&mut conn, "other", "a");
    let day_us = 24 * 3600 * 1_000_000;
    let poison = (clock + 367 * day_us).to_string();
    for counts in [["0", "1"], ["1", "0"], ["0", "0"]] {
        let hold = ["LOCK.HOLD", "k", "a", counts[0], counts[1], &poison, "0", "60000"];
        assert_eq!(conn.error(&hold), "ERR fence is more than a year ahead of the clock");
        assert_eq!(conn.int(&["EXISTS", "k"]), Some(0));
        assert_eq!(fence_clock(&mut conn), clock);
    }
    assert_eq!(conn.info("lock", "lock_leases"), "1");
    // Out of range altogether.
    let hold = ["LOCK.HOLD", "k", "a", "0", "1", "9007199254740992", "0", "60000"];
    assert_eq!(conn.error(&hold), "ERR fence must be a whole number from 1 to 9007199254740991");
    // And one that is believed moves it.
    let ahead = (clock + 180 * day_us).to_string();
    assert_eq!(conn.int(&["LOCK.HOLD", "k", "a", "0", "1", &ahead, "0", "60000"]), Some(1));
    assert_eq!(fence_clock(&mut conn).to_string(), ahead);
    carried_hold_gets_a_new_fence(&mut conn, "k", "a", clock + 180 * day_us, clock + 180 * day_us);
}
