//! A million leases that end together: the server must go on serving, and keep nothing of them.

use crate::harness::connection::Connection;
use crate::harness::hold_back::HoldBack;
use crate::harness::lapses::{alone, sleep_until};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use testbed::{Client, Server, wait_for};

const LEASES: usize = 200_000;

/// Takes the locks of these numbers, all with leases that end at the same moment. They go in batches of which each is
/// sent within a millisecond or two.
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
fn many_leases_that_end_together_stall_no_client() {
    // Ended in one go they would keep every client waiting for seconds; and their memory could stay.
    let _alone = alone();
    let (_server, mut conn) = Server::connected();
    let memory_before = conn.info_number("memory", "used_memory");
    // To see how fast this machine is.
    let start = Instant::now();
    take(&mut conn, 0..20_000, start + Duration::from_secs(600));
    let each = start.elapsed() / 20_000;
    conn.ok(&["FLUSHALL", "SYNC"]);
    // Other tests may need the processor meanwhile.
    let end = Instant::now() + each * LEASES as u32 * 8 + Duration::from_secs(10);
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

#[test]
fn leases_that_end_and_holds_of_a_closed_connection_share_one_slice_of_a_turn() {
    // With a slice each, the timer and the work before the event loop sleeps would keep clients waiting twice as long.
    const OVER: usize = 30_000;
    const BOUND: usize = 3_000;
    let (server, mut conn) = Server::setup().option("appendonly", "yes").option("appendfsync", "no").connected();
    let mut holder = Connection::resp2(&server);
    for n in 0..BOUND {
        assert!(holder.say(&format!("LOCK.ACQUIRE bound:{n} a PX 600000 SESSION 0")).int() > 0);
    }
    for batch in (0..OVER).collect::<Vec<_>>().chunks(1000) {
        let mut pipe = redis::pipe();
        for n in batch {
            pipe.cmd("LOCK.ACQUIRE").arg(format!("over:{n}")).arg("a").arg("PX").arg(600_000).ignore();
        }
        pipe.query::<()>(&mut conn.0).unwrap();
    }
    // In one step, so that none ends before writes are held back: the lease of each is over behind it.
    let shorten = "for n = 0, tonumber(ARGV[1]) - 1 do redis.call('LOCK.EXTEND', 'over:' .. n, 'a', 'PX', '1') end";
    conn.ok(&["MULTI"]);
    conn.get::<String>(&["EVAL", shorten, "0", &OVER.to_string()]);
    conn.get::<String>(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    conn.call(&["EXEC"]).unwrap();
    drop(holder);
    wait_for("the server to see that it has gone", || conn.info("lock", "lock_sessions_closed") == "1");
    assert_eq!(["lock_lapsed", "lock_released"].map(|field| conn.info_number("lock", field)), [0, 0]);

    HoldBack::Pause.end(&mut conn);
    wait_for("all to end", || conn.get::<usize>(&["DBSIZE"]) == 0);
    let ends = server.aof_tail().into_iter().filter(|command| command[0] == "LOCK.HOLD" && command[3..5] == ["0", "0"]);
    let ends: Vec<bool> = ends.map(|command| command[1].starts_with("bound:")).collect();
    assert_eq!(ends.len(), OVER + BOUND);
    // While leases are over the timer uses up its slice in each turn in which it fires. Behind it, one hold is ended,
    // for none may starve. In some turns a client comes before the timer, and the work has a slice of its own.
    let last = ends.iter().rposition(|bound| !bound).expect("leases have ended");
    let runs: Vec<usize> = ends[..last].split(|bound| !bound).map(<[bool]>::len).filter(|len| *len > 0).collect();
    println!("holds ended at once, between leases: {runs:?}");
    assert!(runs.iter().filter(|len| **len == 1).count() > 5, "a slice of its own: {runs:?}");
}
