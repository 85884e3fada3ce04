//! When the timer cannot fire: a lease that is over counts for nothing all the same. The module ends nothing in the
//! background while a client may not write, and ends all of it when writes may flow again.

use crate::harness::hold_back::HoldBack;
use crate::harness::lapses::{Lapses, Lease, lease, sleep_until};
use std::time::{Duration, Instant};
use testbed::{PATIENCE, Server, wait_for};

/// Takes a lock for a millisecond and spins until that is long over: no timer fires and nothing is settled meanwhile.
/// Then comes what is to be tried.
fn after_a_lapse_in_a_script(acquire: &str, then: &str) -> String {
    // Redis 7.0 gives a script no clock that runs. No processor does this much of interpreted Lua in a millisecond.
    format!(
        "local fence = redis.call({acquire}, 'PX', 1)
         assert(fence)
         for _ = 1, 3000000 do end
         {then}"
    )
}

#[test]
fn a_lapsed_hold_is_gone_though_the_alarm_has_not_rung() {
    // A hold that is over could be brought back to life, released as if it had been kept, or counted.
    let write = "'LOCK.ACQUIRE', KEYS[1], 'a'";
    let read = "'LOCK.RW', KEYS[1], 'a', 'READ'";
    for (acquire, then) in [
        (write, "return redis.call('LOCK.EXTEND', KEYS[1], 'a', 'PX', 60000)"),
        (write, "return redis.call('LOCK.EXTEND', KEYS[1], 'a', 'PX', 60000, 'FENCE', fence)"),
        (read, "return redis.call('LOCK.EXTEND', KEYS[1], 'a', 'PX', 60000)"),
        (write, "return redis.call('LOCK.RELEASE', KEYS[1], 'a')"),
        (write, "return redis.call('LOCK.RELEASE', KEYS[1], 'a', 'TO', 1)"),
        (write, "return redis.call('LOCK.RELEASE', KEYS[1], 'a', 'ALL', 'FENCE', fence)"),
        (read, "return redis.call('LOCK.RELEASE', KEYS[1], 'a', 'READ')"),
        (write, "return redis.call('LOCK.INFO', KEYS[1])"),
        (write, "return redis.call('LOCK.INFO', KEYS[1], 'OWNER', 'a')"),
    ] {
        let server = Server::setup().option("appendonly", "yes").start();
        let mut lapses = Lapses::of(&server);
        let mut conn = server.connect();
        let script = after_a_lapse_in_a_script(acquire, then);
        assert_eq!(conn.int(&["EVAL", &script, "1", "k"]), None, "{then}");
        let lapse = lapses.next();
        assert_eq!(lapse.key, "k", "{then}");
        lapses.expect_no_more(&mut conn);
        assert_eq!(conn.info("lock", "lock_lapsed"), "2", "{then}: once, and the marker");
        assert_eq!(conn.info("lock", "lock_released"), "0", "{then}");
        assert_eq!(conn.info("lock", "lock_extended"), "0", "{then}");
        assert_eq!(conn.get::<i64>(&["EXISTS", "k"]), 0, "{then}");
        let of_k: Vec<Vec<String>> =
            server.aof_tail().into_iter().filter(|command| command[1..].contains(&"k".to_owned())).collect();
        assert_eq!(of_k.len(), 2, "{then}: {of_k:?}");
        assert_eq!(of_k[1][..5], ["LOCK.HOLD", "k", "a", "0", "0"], "{then}");
    }
}

#[test]
fn after_a_lapse_that_nobody_saw_asking_again_starts_anew() {
    // The count or the fence of the hold that is over could be carried on.
    let server = Server::new();
    let mut conn = server.connect();
    let again = "local new = redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'PX', 60000); return {fence, new}";
    let script = after_a_lapse_in_a_script("'LOCK.ACQUIRE', KEYS[1], 'a'", again);
    let (old, new) = conn.get::<(i64, i64)>(&["EVAL", &script, "1", "k"]);
    assert!(new > old, "{new} after {old}");
    assert_eq!(conn.lock_info("k").unwrap().holders[0].writes, 1);
    assert_eq!(conn.info("lock", "lock_lapsed"), "1");
    assert_eq!(conn.info("lock", "lock_leases"), "1");
}

#[test]
fn a_lapsed_holder_keeps_nobody_out_though_the_alarm_has_not_rung() {
    // A writer could be refused because of a reader, or the other way round, whose lease is over.
    for (held, asked) in [("READ", "WRITE"), ("WRITE", "READ"), ("WRITE", "WRITE")] {
        let server = Server::new();
        let mut conn = server.connect();
        let ask = format!("return redis.call('LOCK.RW', KEYS[1], 'b', '{asked}', 'PX', 60000)");
        let script = after_a_lapse_in_a_script(&format!("'LOCK.RW', KEYS[1], 'a', '{held}'"), &ask);
        assert!(conn.int(&["EVAL", &script, "1", "k"]).is_some(), "{held}, then {asked}");
        let info = conn.lock_info("k").unwrap();
        assert_eq!((info.holding, &*info.holders[0].owner), (1, &b"b"[..]));
        assert_eq!(conn.info("lock", "lock_lapsed"), "1");
    }
}

/// Runs leases out while something keeps writes back; nothing may end until it is taken away.
fn nothing_ends_during(server: &Server, hold_back: &HoldBack<'_>) {
    let mut lapses = Lapses::of(server);
    let mut conn = server.connect();
    let mut fifteen = server.connect();
    fifteen.ok(&["SELECT", "15"]);
    let over = [lease(&mut conn, "LOCK.ACQUIRE k a PX 4000"), lease(&mut conn, "LOCK.RW shared a READ PX 4050")];
    let elsewhere = lease(&mut fifteen, "LOCK.ACQUIRE k a PX 4100");
    lease(&mut conn, "LOCK.RW shared b READ PX 600000");
    hold_back.begin(&mut conn);
    assert!(Instant::now() < over[0].earliest, "the machine is too slow for this test");

    // Five ticks later, in each of which the module has checked.
    sleep_until(elsewhere.latest + Duration::from_millis(500));
    assert_eq!(conn.info("lock", "lock_lapsed"), "0");
    assert_eq!(conn.info("lock", "lock_leases"), "3");
    assert_eq!(conn.get::<i64>(&["EXISTS", "k", "shared"]), 2);
    // Shown as if it had been ended, which it has not.
    assert!(conn.lock_info("k").is_none());
    assert!(fifteen.lock_info("k").is_none());
    let shared = conn.lock_info("shared").expect("b holds it");
    assert_eq!((shared.holding, &*shared.holders[0].owner), (1, &b"b"[..]));
    assert_eq!(conn.get::<i64>(&["EXISTS", "k", "shared"]), 2);
    assert_eq!(conn.info("lock", "lock_lapsed"), "0");

    let flowing = Instant::now();
    hold_back.end(&mut conn);
    let mut lapsed: Vec<(u32, String)> = (0..3)
        .map(|_| {
            let lapse = lapses.next();
            assert!(lapse.at >= flowing, "{} lapsed though writes were held back", lapse.key);
            (lapse.db, lapse.key)
        })
        .collect();
    lapsed.sort();
    assert_eq!(lapsed, [(0, "k".to_owned()), (0, "shared".to_owned()), (15, "k".to_owned())]);
    lapses.expect_no_more(&mut conn);
    assert_eq!(conn.get::<i64>(&["EXISTS", "k", "shared"]), 1);
    assert_eq!(conn.info("lock", "lock_leases"), "1");
    let effects = server.aof_tail();
    for Lease { key, fence, .. } in &over {
        let end = ["LOCK.HOLD", key, "a", "0", "0", &fence.to_string()].map(str::to_owned);
        assert_eq!(effects.iter().filter(|effect| **effect == end).count(), 1, "{effects:?}");
    }
}

#[test]
fn nothing_ends_while_clients_are_paused() {
    // Replication during a pause aborts the server: a failover may be under way that would lose the effect.
    for mode in ["WRITE", "ALL"] {
        let server = Server::setup().option("appendonly", "yes").start();
        let mut lapses = Lapses::of(&server);
        let mut conn = server.connect();
        if mode == "WRITE" {
            nothing_ends_during(&server, &HoldBack::Pause);
            continue;
        }
        // No client is answered before this pause is over.
        let end = lease(&mut conn, "LOCK.ACQUIRE k a PX 2000");
        let paused = Instant::now();
        conn.ok(&["CLIENT", "PAUSE", "3000", mode]);
        assert_eq!(conn.get::<String>(&["PING"]), "PONG");
        let lapse = lapses.next();
        assert!(lapse.at >= paused + Duration::from_millis(3000), "lapsed during the pause");
        assert_eq!(lapse.key, end.key);
        assert_eq!(conn.info("lock", "lock_lapsed"), "1");
    }
}

#[test]
fn an_extension_that_arrives_during_a_pause_comes_too_late() {
    // It is served after the pause, maybe before the timer, when the lease is over: it must not bring it back.
    let server = Server::new();
    let mut conn = server.connect();
    let mut late = server.connect();
    let end = lease(&mut conn, "LOCK.ACQUIRE k a PX 300");
    conn.ok(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    late.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let waiting = std::thread::spawn(move || late.int(&["LOCK.EXTEND", "k", "a", "PX", "60000"]));
    sleep_until(end.latest + Duration::from_millis(50));
    assert!(!waiting.is_finished(), "the pause keeps it waiting");
    conn.ok(&["CLIENT", "UNPAUSE"]);
    assert_eq!(waiting.join().unwrap(), None);
    wait_for("the key to go", || conn.get::<i64>(&["EXISTS", "k"]) == 0);
    assert_eq!(conn.info("lock", "lock_extended"), "0");
}

#[test]
fn nothing_ends_without_the_replicas_that_are_asked_for() {
    // A primary that has lost its replicas must not go on writing in the background when clients may not.
    let server = Server::setup().option("appendonly", "yes").start();
    nothing_ends_during(&server, &HoldBack::Replicas);
}

#[test]
fn nothing_ends_while_the_disk_is_out_of_order() {
    // As with NOREPLICAS: what is ended now would be there again after a restart.
    let server = Server::setup().option("appendonly", "yes").start();
    let disk = HoldBack::disk(&server);
    nothing_ends_during(&server, &disk);
}
