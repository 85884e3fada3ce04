//! When the timer cannot fire: a lease that is over counts for nothing all the same. The module ends nothing in the
//! background while a client may not write, and ends all of it when writes may flow again.

use crate::harness::hold_back::HoldBack;
use crate::harness::lapses::{Lapses, Lease, lease, sleep_until};
use std::time::{Duration, Instant};
use testbed::{Client, PATIENCE, Server, Value, wait_for};

/// Lets the lease of `k` end in one turn of the event loop with a command, which comes after its end: no timer fires
/// and nothing is settled between. The reply to the command.
fn after_a_lapse_in_a_pipeline(conn: &mut Client, command: &[&str]) -> Value {
    let mut pipeline = redis::pipe();
    pipeline.cmd("LOCK.EXTEND").arg(&["k", "a", "PX", "1"]).cmd("DEBUG").arg(&["SLEEP", "0.02"]);
    pipeline.cmd(command[0]).arg(&command[1..]);
    let replies: Vec<Value> = pipeline.query(&mut conn.0).unwrap();
    let [extended, _, reply]: [Value; 3] = replies.try_into().unwrap();
    assert!(matches!(extended, Value::Int(_)), "{extended:?}");
    reply
}

#[test]
fn a_lapsed_hold_is_gone_though_the_alarm_has_not_rung() {
    // A hold that is over could be brought back to life, released as if it had been kept, or counted.
    for (mode, command) in [
        ("WRITE", "LOCK.EXTEND k a PX 60000"),
        ("WRITE", "LOCK.EXTEND k a PX 60000 FENCE fence"),
        ("READ", "LOCK.EXTEND k a PX 60000"),
        ("WRITE", "LOCK.RELEASE k a"),
        ("WRITE", "LOCK.RELEASE k a TO 1"),
        ("WRITE", "LOCK.RELEASE k a ALL FENCE fence"),
        ("READ", "LOCK.RELEASE k a READ"),
        ("WRITE", "LOCK.CHECK k a"),
        ("WRITE", "LOCK.GUARD k a fence SET data x"),
        ("WRITE", "LOCK.INFO k"),
        ("WRITE", "LOCK.INFO k OWNER a"),
    ] {
        let server = Server::setup().option("appendonly", "yes").start();
        let mut lapses = Lapses::of(&server);
        let mut conn = server.connect();
        let fence = conn.int(&["LOCK.RW", "k", "a", mode, "PX", "60000"]).expect("free").to_string();
        let then: Vec<&str> = command.split(' ').map(|word| if word == "fence" { &fence[..] } else { word }).collect();
        assert_eq!(after_a_lapse_in_a_pipeline(&mut conn, &then), Value::Nil, "{then:?}");
        let lapse = lapses.next();
        assert_eq!(lapse.key, "k", "{command}");
        lapses.expect_no_more(&mut conn);
        assert_eq!(conn.info("lock", "lock_lapsed"), "2", "{command}: once, and the marker");
        assert_eq!(conn.info("lock", "lock_released"), "0", "{command}");
        assert_eq!(conn.info("lock", "lock_extended"), "1", "{command}: to its end");
        assert_eq!(conn.get::<i64>(&["EXISTS", "k", "data"]), 0, "{command}");
        let of_k: Vec<Vec<String>> =
            server.aof_tail().into_iter().filter(|command| command[1..].contains(&"k".to_owned())).collect();
        assert_eq!(of_k.len(), 3, "{command}: {of_k:?}");
        assert_eq!(of_k[2][..5], ["LOCK.HOLD", "k", "a", "0", "0"], "{command}");
    }
}

/// Runs leases out while something keeps writes back; nothing may end until it is taken away.
fn nothing_ends_during(server: &Server, hold_back: &HoldBack<'_>) {
    let mut lapses = Lapses::of(server);
    let mut conn = server.connect();
    let mut fifteen = server.connect_in("15");
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
    let (server, mut conn) = Server::connected();
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
