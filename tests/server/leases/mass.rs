//! A million leases that end together: the server must go on serving, and keep nothing of them.

use crate::harness::lapses::{alone, sleep_until};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use testbed::{Client, Server, wait_for};

const LEASES: usize = 1_000_000;

/// Takes the locks of these numbers, all with leases that end at the same moment, in batches of which each is sent
/// within a millisecond or two.
fn take(conn: &mut Client, numbers: std::ops::Range<usize>, end: Instant) {
    let numbers: Vec<usize> = numbers.collect();
    for batch in numbers.chunks(500) {
        let left = end.saturating_duration_since(Instant::now()).as_millis() as u64;
        // One that has no time left would end while others are taken: seen by their number.
        let mut pipe = redis::pipe();
        for n in batch {
            pipe.cmd("LOCK.ACQUIRE").arg(format!("k{n}")).arg("owner").arg("PX").arg(left.max(1)).ignore();
        }
        pipe.query::<()>(&mut conn.0).unwrap();
    }
}

#[test]
fn a_million_leases_that_end_together_stall_nobody() {
    // Ended in one go they would keep every client waiting for seconds; and their memory could stay.
    let _alone = alone();
    let server = Server::new();
    let mut conn = server.connect();
    let memory_before = conn.info_number("memory", "used_memory");
    // To see how fast this machine is.
    let start = Instant::now();
    take(&mut conn, 0..20_000, start + Duration::from_secs(600));
    let each = start.elapsed() / 20_000;
    conn.ok(&["FLUSHALL", "SYNC"]);
    let end = Instant::now() + each * LEASES as u32 * 3 + Duration::from_secs(5);
    take(&mut conn, 0..LEASES, end);
    // Until writes may flow again, all of them are over and none has ended.
    conn.ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(
        conn.get::<usize>(&["DBSIZE"]),
        LEASES,
        "none has ended before its time, and none on a machine this slow"
    );
    sleep_until(end + Duration::from_millis(200));
    assert_eq!(conn.get::<usize>(&["DBSIZE"]), LEASES);
    assert_eq!(conn.info_number("lock", "lock_leases"), LEASES as u64);
    assert_eq!(conn.info_number("lock", "lock_lapsed"), 0);

    // What is served between two slices sees that some have ended and others have not. In one go, nothing would be.
    conn.ok(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let mut seen = HashSet::new();
    wait_for("all to end", || {
        let left = conn.get::<usize>(&["DBSIZE"]);
        seen.insert(left);
        left == 0
    });
    assert!(seen.len() > 20, "served only {} times while leases ended: {seen:?}", seen.len());
    assert_eq!(conn.info_number("lock", "lock_leases"), 0);
    assert_eq!(conn.info_number("lock", "lock_lapsed"), LEASES as u64);

    // All but what is allocated once. The server shrinks its own table of keys little by little.
    let bound = memory_before + (2 << 20);
    wait_for("the memory to be given back", || conn.info_number("memory", "used_memory") <= bound);
}
