//! Very many holds of one connection, ended at once.

use crate::harness::connection::Connection;
use std::time::{Duration, Instant};
use testbed::{Client, Server, wait_for};

const CROWD: usize = 10_000;

/// Sends all of these over one connection, in batches, and fails when one is not granted.
fn take(conn: &mut Client, command: impl Fn(usize) -> String) {
    for batch in (0..CROWD).collect::<Vec<_>>().chunks(500) {
        let mut pipe = redis::pipe();
        for number in batch {
            let line = command(*number);
            let mut words = line.split(' ');
            pipe.cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>());
        }
        let fences: Vec<i64> = pipe.query(&mut conn.0).unwrap();
        assert!(fences.iter().all(|fence| *fence > 0));
    }
}

#[test]
fn ten_thousand_keys_of_one_connection_are_all_handed_on() {
    // Worked off bit by bit, some could be forgotten between two bits, or each bit could wait for a tick.
    let (server, mut conn) = Server::setup().option("hz", "1").option("dynamic-hz", "no").connected();
    let mut holder = server.connect();
    take(&mut holder, |number| format!("LOCK.ACQUIRE k{number} a PX 600000 SESSION 0"));
    assert_eq!(conn.info_number("lock", "lock_session_holds"), CROWD as u64);
    let ends = ["k0".to_owned(), format!("k{}", CROWD / 2), format!("k{}", CROWD - 1)];
    let mut waiters: Vec<Connection> = ends
        .iter()
        .map(|key| Connection::waiting(&server, &format!("LOCK.ACQUIRE {key} b PX 600000 BLOCK 0")))
        .collect();
    let closed = Instant::now();
    drop(holder);
    // The last one first: nothing is sent meanwhile that would wake the server.
    for waiter in waiters.iter_mut().rev() {
        assert!(waiter.read().int() > 0);
    }
    // There are some twenty bits: from tick to tick that would be twenty seconds.
    assert!(closed.elapsed() < Duration::from_secs(10), "{:?}", closed.elapsed());
    wait_for("all to be ended", || conn.info("lock", "lock_session_holds") == "0");
    assert_eq!(conn.get::<usize>(&["DBSIZE"]), ends.len());
    assert_eq!(conn.info_number("lock", "lock_released"), CROWD as u64);
    assert_eq!(conn.info_number("lock", "lock_leases"), ends.len() as u64);
}

#[test]
fn ten_thousand_leases_are_cut_together() {
    // The same where the holds go on for a while.
    let (server, mut conn) = Server::connected();
    let mut holder = server.connect();
    take(&mut holder, |number| format!("LOCK.RW k{} r{number} READ PX 600000 SESSION 1000", number % 100));
    let mut writer = Connection::waiting(&server, "LOCK.ACQUIRE k7 w PX 600000 BLOCK 0");
    drop(holder);
    assert!(writer.read().int() > 0);
    wait_for("all to lapse", || conn.info_number("lock", "lock_lapsed") == CROWD as u64);
    assert_eq!(conn.get::<usize>(&["DBSIZE"]), 1);
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
}

#[test]
fn a_request_for_a_key_whose_many_holds_are_being_ended_finds_them_ended() {
    // The command comes while they are worked off bit by bit; what it does not find ended it must end itself.
    let (server, mut conn) = Server::connected();
    let holder = Connection::resp2(&server);
    let id = holder.id().to_string();
    let mut holder = holder;
    for number in 0..1000 {
        holder.send(&["LOCK.RW", "k", &format!("r{number}"), "READ", "PX", "600000", "SESSION", "0"]);
    }
    for _ in 0..1000 {
        assert!(holder.read().int() > 0);
    }
    let mut pipe = redis::pipe();
    pipe.cmd("CLIENT").arg(&["KILL", "ID", &id]).cmd("LOCK.ACQUIRE").arg(&["k", "w", "PX", "600000"]);
    let (killed, fence): (i64, Option<i64>) = pipe.query(&mut conn.0).unwrap();
    assert_eq!(killed, 1);
    assert!(fence.is_some(), "held by clients that are not there");
    wait_for("the work to be done", || conn.info("lock", "lock_session_holds") == "0");
    assert_eq!(conn.lock_info("k").unwrap().holding, 1);
}
