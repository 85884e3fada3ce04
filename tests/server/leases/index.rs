//! The index of leases follows what the server does to keys. After each of its commands every lease still ends once, at
//! its own time, on the right key of the right database. `lock_leases` counts the keys that have a lease.
//!
//! Leases in one test are far enough apart that one ending at another's time is seen by the order. They are long enough
//! that a busy machine gets to what comes before their ends. How many leases are left is asked when it cannot depend on
//! the clock.

use crate::harness::lapses::{Lapses, Lease, lease, sleep_until};
use std::time::{Duration, Instant};
use testbed::{Client, Server, wait_for};

fn leases(conn: &mut Client) -> u64 {
    conn.info_number("lock", "lock_leases")
}

fn exists(conn: &mut Client, key: &str) -> bool {
    conn.get::<i64>(&["EXISTS", key]) == 1
}

#[test]
fn a_renamed_lock_lapses_under_its_new_name() {
    // The entry could stay with the old name, where no scan would find the lock, or end a stranger there.
    for command in ["RENAME", "RENAMENX"] {
        let (_server, mut lapses, mut conn) = Lapses::alone();
        let moved = lease(&mut conn, "LOCK.ACQUIRE old a PX 4000").on("new");
        conn.get::<redis::Value>(&[command, "old", "new"]);
        assert_eq!(leases(&mut conn), 1, "{command}");
        // Takes the name that the first one left, with an end of its own on each side.
        let before = lease(&mut conn, "LOCK.ACQUIRE old b PX 500");
        lapses.expect(0, &before);
        assert!(leases(&mut conn) <= 1, "{command}");
        let after = lease(&mut conn, "LOCK.ACQUIRE old c PX 4500");
        lapses.expect(0, &moved);
        lapses.expect(0, &after);
        lapses.expect_no_more(&mut conn);
        assert_eq!(leases(&mut conn), 0, "{command}");
        assert_eq!(conn.get::<i64>(&["DBSIZE"]), 0, "{command}");
    }
}

#[test]
fn a_lock_that_a_rename_overwrites_takes_its_lease_along() {
    // The overwritten lock's entry could end the lock that lies there now.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    lease(&mut conn, "LOCK.ACQUIRE target a PX 3000");
    let stays = lease(&mut conn, "LOCK.ACQUIRE source b PX 5000").on("target");
    conn.ok(&["RENAME", "source", "target"]);
    assert_eq!(leases(&mut conn), 1);
    lapses.expect(0, &stays);
    lapses.expect_no_more(&mut conn);
    assert_eq!(conn.info_number("lock", "lock_lapsed"), 2, "and the marker");
}

#[test]
fn a_moved_lock_lapses_in_its_new_database() {
    // Each database has an index of its own. The entry must change from one to the other, and an entry's name from one
    // must not be taken for an entry of the other.
    let server = Server::new();
    let mut lapses = Lapses::of(&server);
    let (mut zero, mut one) = (server.connect(), server.connect_in("1"));
    let there = lease(&mut one, "LOCK.ACQUIRE there a PX 3000");
    let moved = lease(&mut zero, "LOCK.ACQUIRE moved b PX 5000");
    assert_eq!(zero.get::<i64>(&["MOVE", "moved", "1"]), 1);
    assert_eq!(leases(&mut zero), 2);
    lapses.expect(1, &there);
    assert!(leases(&mut zero) <= 1);
    lapses.expect(1, &moved);
    lapses.expect_no_more(&mut zero);
    assert_eq!(leases(&mut zero), 0);
}

#[test]
fn a_lock_that_is_moved_in_a_transaction_lapses_in_its_new_database() {
    // Valkey 9.1 reports it with the number of the database that it left.
    let (_server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "5000"]).unwrap();
    conn.ok(&["MULTI"]);
    assert_eq!(conn.get::<String>(&["MOVE", "k", "1"]), "QUEUED");
    conn.call(&["EXEC"]).unwrap();
    conn.ok(&["SELECT", "1"]);
    assert_eq!(conn.int(&["EXISTS", "k"]), Some(1));
    wait_for("it to lapse", || conn.int(&["EXISTS", "k"]) == Some(0));
    assert_eq!(conn.info("lock", "lock_leases"), "0");
}

#[test]
fn a_moved_lock_that_is_released_leaves_the_others_their_leases() {
    // With the wrong entry it would take another lock's lease away: that lock would stay for ever.
    let server = Server::new();
    let mut lapses = Lapses::of(&server);
    let (mut zero, mut one) = (server.connect(), server.connect_in("1"));
    let there = lease(&mut one, "LOCK.ACQUIRE there a PX 3000");
    lease(&mut zero, "LOCK.ACQUIRE moved b PX 600000");
    assert_eq!(zero.get::<i64>(&["MOVE", "moved", "1"]), 1);
    assert_eq!(one.int(&["LOCK.RELEASE", "moved", "b"]), Some(0));
    assert_eq!(leases(&mut zero), 1);
    lapses.expect(1, &there);
    assert_eq!(leases(&mut zero), 0);
}

#[test]
fn leases_of_swapped_databases_end_in_the_other_one() {
    // The index could stay behind, search for the keys in the wrong database and drop their entries as strays. One
    // database may not have an index yet.
    let swap = |other: &str, here_ms: u32, there_ms: Option<u32>| {
        let server = Server::new();
        let mut lapses = Lapses::of(&server);
        let (mut zero, mut conn) = (server.connect(), server.connect_in(other));
        let number = other.parse().unwrap();
        let mut expected = vec![(number, lease(&mut zero, &format!("LOCK.ACQUIRE k a PX {here_ms}")))];
        if let Some(ms) = there_ms {
            expected.push((0, lease(&mut conn, &format!("LOCK.ACQUIRE k b PX {ms}"))));
        }
        // A lock of the other databases stays.
        let mut two = server.connect_in("2");
        expected.push((2, lease(&mut two, "LOCK.ACQUIRE k c PX 6000")));
        zero.ok(&["SWAPDB", "0", other]);
        assert_eq!(leases(&mut zero), expected.len() as u64);
        // And one that comes after.
        expected.push((0, lease(&mut zero, "LOCK.ACQUIRE late d PX 7000")));
        expected.sort_by_key(|(_, lease)| lease.earliest);
        for (db, lease) in &expected {
            lapses.expect(*db, lease);
        }
        lapses.expect_no_more(&mut zero);
        assert_eq!(leases(&mut zero), 0);
    };
    // Beside each other: they wait more than they work.
    std::thread::scope(|threads| {
        for other in ["1", "15"] {
            for (here_ms, there_ms) in [(3000, Some(5000)), (5000, Some(3000)), (3000, None)] {
                threads.spawn(move || swap(other, here_ms, there_ms));
            }
        }
    });
}

#[test]
fn flushdb_takes_the_leases_of_that_database_alone() {
    // The other database's leases could go along, and its locks would stay for ever.
    let server = Server::new();
    let mut lapses = Lapses::of(&server);
    let (mut zero, mut one) = (server.connect(), server.connect_in("1"));
    lease(&mut zero, "LOCK.ACQUIRE k a PX 3000");
    let stays = lease(&mut one, "LOCK.ACQUIRE k b PX 4000");
    zero.ok(&["FLUSHDB"]);
    assert_eq!(leases(&mut zero), 1);
    let again = lease(&mut zero, "LOCK.ACQUIRE k c PX 5500");
    lapses.expect(1, &stays);
    lapses.expect(0, &again);
    lapses.expect_no_more(&mut zero);
    assert_eq!(leases(&mut zero), 0);
}

#[test]
fn a_database_without_locks_is_flushed_without_a_panic() {
    // Its number was once taken for that of an index.
    let (server, mut conn) = Server::connected();
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).unwrap();
    conn.ok(&["SELECT", "9"]);
    conn.ok(&["FLUSHDB"]);
    assert!(!server.log().contains("panic"), "{}", server.log());
    assert_eq!(conn.info("lock", "lock_leases"), "1");
}

#[test]
fn flushall_takes_all_leases_and_locks_after_it_have_their_own() {
    // An old entry could end the new lock on the same key early, or the new lock's could be lost.
    for how in ["SYNC", "ASYNC"] {
        let server = Server::new();
        let mut lapses = Lapses::of(&server);
        let (mut zero, mut fifteen) = (server.connect(), server.connect_in("15"));
        let mut pipe = redis::pipe();
        (0..1000).for_each(|n| {
            pipe.cmd("LOCK.ACQUIRE").arg(&[&format!("many-{n}"), "a", "PX", "4000"]).ignore();
        });
        pipe.query::<()>(&mut zero.0).unwrap();
        lease(&mut zero, "LOCK.ACQUIRE k a PX 4000");
        lease(&mut fifteen, "LOCK.ACQUIRE k a PX 600000");
        zero.ok(&["FLUSHALL", how]);
        assert_eq!(leases(&mut zero), 0, "{how}");
        let longer = lease(&mut zero, "LOCK.ACQUIRE k b PX 6000");
        let shorter = lease(&mut fifteen, "LOCK.ACQUIRE k b PX 5000");
        assert_eq!(leases(&mut zero), 2, "{how}");
        lapses.expect(15, &shorter);
        lapses.expect(0, &longer);
        lapses.expect_no_more(&mut zero);
        assert_eq!(leases(&mut zero), 0, "{how}");
    }
}

#[test]
fn a_deleted_lock_leaves_no_lease_that_ends_its_successor() {
    // The old lease's end could be taken for the new one's.
    for command in ["DEL", "UNLINK", "LOCK.RELEASE"] {
        let (_server, mut lapses, mut conn) = Lapses::alone();
        lease(&mut conn, "LOCK.ACQUIRE k a PX 3000");
        let args: &[&str] = if command == "LOCK.RELEASE" { &[command, "k", "a"] } else { &[command, "k"] };
        conn.get::<i64>(args);
        assert_eq!(leases(&mut conn), 0, "{command}");
        let next = lease(&mut conn, "LOCK.ACQUIRE k b PX 4000");
        assert_eq!(leases(&mut conn), 1, "{command}");
        lapses.expect(0, &next);
        lapses.expect_no_more(&mut conn);
        assert_eq!(leases(&mut conn), 0, "{command}");
    }
}

#[test]
fn a_lock_that_was_unlinked_with_many_readers_leaves_no_lease() {
    // Such a lock is freed on a background thread, which must not touch the index.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    let mut pipe = redis::pipe();
    (0..500).for_each(|n| {
        pipe.cmd("LOCK.RW").arg(&["k", &format!("r{n}"), "READ", "PX", "3000"]).ignore();
    });
    pipe.query::<()>(&mut conn.0).unwrap();
    assert_eq!(conn.get::<i64>(&["UNLINK", "k"]), 1);
    assert_eq!(leases(&mut conn), 0);
    let next = lease(&mut conn, "LOCK.ACQUIRE k b PX 4000");
    lapses.expect(0, &next);
    lapses.expect_no_more(&mut conn);
}

#[test]
fn a_value_set_over_a_lock_outlives_its_lease() {
    // The lapse of what lay there could delete another client's value.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    let over = lease(&mut conn, "LOCK.ACQUIRE k a PX 2000");
    conn.ok(&["SET", "k", "mine"]);
    assert_eq!(leases(&mut conn), 0);
    sleep_until(over.latest + Duration::from_millis(300));
    lapses.expect_no_more(&mut conn);
    assert_eq!(conn.get::<String>(&["GET", "k"]), "mine");
    assert_eq!(conn.get::<i64>(&["DEL", "k"]), 1);
    let next = lease(&mut conn, "LOCK.ACQUIRE k b PX 300");
    lapses.expect(0, &next);
}

/// DUMPs a key and says which lease the payload carries, counted from its arrival somewhere.
fn dump(conn: &mut Client, lease: &Lease) -> (Vec<u8>, Duration, Duration) {
    let before = Instant::now();
    let payload = conn.get(&["DUMP", &lease.key]);
    let after = Instant::now();
    // What is left is rounded up to the millisecond.
    (payload, lease.earliest - after, lease.latest - before + Duration::from_millis(1))
}

/// RESTOREs what was dumped, under a name, and says when it must lapse there.
fn restore(conn: &mut Client, key: &str, dumped: &(Vec<u8>, Duration, Duration), options: &[&[u8]]) -> Lease {
    let (payload, at_least, at_most) = dumped;
    let mut args: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), b"0", payload];
    args.extend(options);
    let before = Instant::now();
    conn.call(&args).unwrap();
    let after = Instant::now();
    Lease { key: key.to_owned(), fence: 0, earliest: before + *at_least, latest: after + *at_most }
}

#[test]
fn a_restored_lock_has_the_rest_of_its_lease_from_its_arrival() {
    // It could come back without a lease, or with the timer set for nothing: it is the only lock of the server then.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    let first = lease(&mut conn, "LOCK.ACQUIRE k a PX 3000");
    let dumped = dump(&mut conn, &first);
    assert_eq!(conn.get::<i64>(&["DEL", "k"]), 1);
    // The lease is over here while the payload is under way.
    sleep_until(first.latest);
    let restored = restore(&mut conn, "other", &dumped, &[]);
    assert_eq!(leases(&mut conn), 1);
    lapses.expect(0, &restored);
    lapses.expect_no_more(&mut conn);
    assert_eq!(leases(&mut conn), 0);
}

#[test]
fn a_lock_restored_over_another_lapses_at_its_own_time() {
    // The value that is replaced is unlinked after the new one was loaded under the same name: the wrong entry could
    // go.
    for (over_ms, dumped_ms) in [(3000, 6000), (600_000, 3000)] {
        let (_server, mut lapses, mut conn) = Lapses::alone();
        let source = lease(&mut conn, &format!("LOCK.ACQUIRE source a PX {dumped_ms}"));
        let dumped = dump(&mut conn, &source);
        assert_eq!(conn.get::<i64>(&["DEL", "source"]), 1);
        lease(&mut conn, &format!("LOCK.ACQUIRE k b PX {over_ms}"));
        let restored = restore(&mut conn, "k", &dumped, &[b"REPLACE"]);
        assert_eq!(leases(&mut conn), 1);
        lapses.expect(0, &restored);
        lapses.expect_no_more(&mut conn);
        assert_eq!(leases(&mut conn), 0);
    }
}

#[test]
fn a_restore_that_is_refused_leaves_no_lease() {
    // The payload is read before the server refuses it: its lease could stay in the index or end what lies there.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    let source = lease(&mut conn, "LOCK.ACQUIRE source a PX 3000");
    let dumped = dump(&mut conn, &source);
    assert_eq!(conn.get::<i64>(&["DEL", "source"]), 1);
    let stays = lease(&mut conn, "LOCK.ACQUIRE k b PX 4000");
    assert!(conn.error(&[b"RESTORE", &b"k"[..], b"0", &dumped.0]).starts_with("BUSYKEY"));
    assert_eq!(leases(&mut conn), 1);
    // With a time to live that is over already the payload is loaded and dropped. At most its entry is left, which must
    // end nothing and go by itself.
    conn.call(&[b"RESTORE", &b"gone"[..], b"1", &dumped.0, b"ABSTTL"]).unwrap();
    assert!(!exists(&mut conn, "gone"));
    lapses.expect(0, &stays);
    lapses.expect_no_more(&mut conn);
    assert_eq!(leases(&mut conn), 0);
}

#[test]
fn leases_go_on_through_a_reload() {
    // All values are made anew: each must be armed once, none twice, and none of the old entries may be left.
    let server = Server::new();
    let mut lapses = Lapses::of(&server);
    let (mut zero, mut fifteen) = (server.connect(), server.connect_in("15"));
    let short = lease(&mut zero, "LOCK.ACQUIRE short a PX 4000");
    let long = lease(&mut zero, "LOCK.ACQUIRE long a PX 8000");
    let other = lease(&mut fifteen, "LOCK.ACQUIRE other a PX 6000");
    zero.ok(&["DEBUG", "RELOAD"]);
    assert_eq!(leases(&mut zero), 3);
    lapses.expect(0, &short.over_the_wall_clock());
    assert!(leases(&mut zero) <= 2);
    lapses.expect(15, &other.over_the_wall_clock());
    lapses.expect(0, &long.over_the_wall_clock());
    lapses.expect_no_more(&mut zero);
    assert_eq!(leases(&mut zero), 0);
}

#[test]
fn a_time_to_live_that_a_user_sets_ends_the_lock_with_its_lease() {
    // The server removes the key by itself: the entry could stay behind and end the next lock on it.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    let cut = lease(&mut conn, "LOCK.ACQUIRE cut a PX 6000");
    assert_eq!(conn.get::<i64>(&["PEXPIRE", "cut", "100"]), 1);
    sleep_until(Instant::now() + Duration::from_millis(101));
    assert!(!exists(&mut conn, "cut"));
    assert_eq!(leases(&mut conn), 0);
    let next = lease(&mut conn, "LOCK.ACQUIRE cut b PX 8000");
    assert!(Instant::now() < cut.earliest, "the machine is too slow for this test");
    assert_eq!(conn.get::<i64>(&["PTTL", "cut"]), -1);
    lapses.expect(0, &next);
    lapses.expect_no_more(&mut conn);
    assert_eq!(leases(&mut conn), 0);
}

#[test]
fn a_time_to_live_beyond_the_lease_keeps_no_lock() {
    // Only the lease counts; and a new grant clears what a user has set.
    let (_server, mut lapses, mut conn) = Lapses::alone();
    let kept = lease(&mut conn, "LOCK.ACQUIRE kept a PX 2000");
    assert_eq!(conn.get::<i64>(&["EXPIRE", "kept", "1000"]), 1);
    lapses.expect(0, &kept);
    lease(&mut conn, "LOCK.ACQUIRE cleared a PX 600000");
    assert_eq!(conn.get::<i64>(&["PEXPIRE", "cleared", "3000"]), 1);
    let cleared = lease(&mut conn, "LOCK.EXTEND cleared a PX 4000");
    assert_eq!(conn.get::<i64>(&["PTTL", "cleared"]), -1);
    lapses.expect(0, &cleared);
    lapses.expect_no_more(&mut conn);
}

#[test]
fn a_promoted_replica_ends_the_leases_it_got_by_full_sync() {
    // A replica must end no lease in the background. After its promotion it must end each, at its time, not earlier
    // than the primary.
    let (primary, replica) = (Server::setup().option("repl-diskless-sync-delay", "0").start(), Server::new());
    let mut lapses = Lapses::of(&replica);
    let (mut there, mut here) = (primary.connect(), replica.connect());
    let short = lease(&mut there, "LOCK.ACQUIRE short a PX 15000");
    let other = lease(&mut primary.connect_in("15"), "LOCK.RW other a READ PX 18000");
    replica.follow(&primary);
    let synced = Instant::now();
    // And one by the stream, on top of the index that the sync has filled.
    let streamed = lease(&mut there, "LOCK.ACQUIRE streamed a PX 2000");
    replica.catch_up(&primary);
    // The stream after a sync may flow a second late, and what is left of a lease counts from its arrival.
    let arrived = Instant::now();
    assert_eq!(leases(&mut here), 3);
    drop(primary);
    sleep_until(arrived + Duration::from_millis(2001));
    assert!(exists(&mut here, "streamed"), "a replica ended a lease");
    assert!(here.lock_info("streamed").is_none(), "a lease that is over is shown");
    assert_eq!(leases(&mut here), 3);

    let promoted = Instant::now();
    here.ok(&["REPLICAOF", "NO", "ONE"]);
    // Over already, so that it ends at once, and not before.
    lapses.expect(0, &Lease { earliest: promoted, latest: promoted, ..streamed });
    // From its arrival here each has what was left when it was sent: up to the sync's duration longer.
    let sync = synced - (other.latest - Duration::from_millis(18_000));
    lapses.expect(0, &Lease { latest: short.latest + sync, ..short });
    lapses.expect(15, &Lease { latest: other.latest + sync, ..other });
    lapses.expect_no_more(&mut here);
    assert_eq!(leases(&mut here), 0);
}
