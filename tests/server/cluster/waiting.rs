//! Waiters on a node of a cluster, when it loses the slot, its role, or the cluster. Each is redirected to where the
//! lock is now, and none is granted what this node can no longer give.

use crate::harness::connection::{Connection, Reply};
use crate::harness::servers::not_run;
use crate::harness::state::{holders, let_it_tick, nobody_waits, waiters};
use testbed::{Client, Cluster, wait_for};

/// A client holds a key of the first node, and others wait there: writers, and readers behind them.
fn crowd(cluster: &Cluster, key: &str, lease_ms: u64) -> Vec<Connection> {
    cluster.conn(0).int(&["LOCK.RW", key, "a", "READ", "PX", &lease_ms.to_string()]).unwrap();
    (0..6)
        .map(|number| {
            let mode = if number < 3 { "WRITE" } else { "READ" };
            Connection::waiting(&cluster.nodes[0], &format!("LOCK.RW {key} w{number} {mode} PX 600000 BLOCK 0"))
        })
        .collect()
}

/// No client waits, no client was granted anything, and the holder is at the other node.
fn assert_gone(cluster: &Cluster, key: &str, granted: &str, how: &str) {
    let mut old = cluster.conn(0);
    nobody_waits(&mut old);
    let_it_tick(&mut old);
    assert_eq!(old.info("lock", "lock_granted"), granted, "{how}");
    assert_eq!(old.info("clients", "blocked_clients"), "0", "{how}");
    let mut new = cluster.conn(1);
    assert_eq!(holders(&mut new, key), ["a"], "{how}");
    // They go on there.
    let mut next = Connection::waiting(&cluster.nodes[1], &format!("LOCK.ACQUIRE {key} next PX 600000 BLOCK 0"));
    assert_eq!(new.int(&["LOCK.RELEASE", key, "a"]), Some(0), "{how}");
    next.only_reply().int();
}

#[test]
fn a_waiter_for_a_key_that_is_migrated_is_redirected_to_it() {
    // MIGRATE removes the key as DEL does: the next waiter in the queue would be granted a lock that its holder has
    // elsewhere.
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut old = cluster.conn(0);
    let mut crowd = crowd(&cluster, &key, 600_000);
    let granted = old.info("lock", "lock_granted");
    cluster.begin_move(&slot, 0, 1);
    let_it_tick(&mut old);
    assert!(crowd.iter_mut().all(Connection::is_waiting), "the key is there still");
    cluster.migrate(&key, 0, 1);
    // The key is gone, and the slot is this node's still.
    let_it_tick(&mut old);
    assert_eq!(old.info("lock", "lock_granted"), granted, "granted between MIGRATE and SETSLOT NODE");
    let facts = cluster.nodes[0].aof_tail();
    assert_ne!(facts.last().unwrap()[0], "LOCK.HOLD", "{facts:?}");
    cluster.end_move(&slot, 0, 1);
    for waiter in &mut crowd {
        waiter.assert_sent_away("migrated");
    }
    assert_gone(&cluster, &key, &granted, "migrated");
}

#[test]
fn a_waiter_for_a_key_in_a_moving_slot_is_served_while_the_key_is_there() {
    // Not before it has gone: until then this node serves it, also in the background.
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut old = cluster.conn(0);
    let mut crowd = crowd(&cluster, &key, 600_000);
    cluster.begin_move(&slot, 0, 1);
    assert_eq!(old.int(&["LOCK.RELEASE", &key, "a"]), Some(0));
    crowd[0].only_reply().int();
    // In the background: the writers between go, and the readers are not granted past the holder.
    for waiter in &crowd[1..3] {
        assert_eq!(old.int(&["CLIENT", "UNBLOCK", &waiter.id().to_string()]), Some(1));
    }
    let_it_tick(&mut old);
    assert!(crowd[3..].iter_mut().all(Connection::is_waiting));
    old.int(&["LOCK.EXTEND", &key, "w0", "PX", "1"]).expect("held");
    // The lease ends, and the key with it or not: the waiters are granted, or redirected to the other node.
    for waiter in &mut crowd[3..] {
        let end = waiter.read();
        assert!(matches!(end, Reply::Int(_)) || ["MOVED", "UNBLOCKED"].contains(&end.code()), "{end:?}");
    }
}

#[test]
fn a_waiter_for_a_key_in_a_slot_that_no_node_serves_is_not_granted() {
    // Another node may be serving it already, or will.
    for how in ["lapsed", "flushed"] {
        let cluster = Cluster::start(2, 0);
        let (key, slot) = cluster.key();
        let mut conn = cluster.conn(0);
        let mut crowd = crowd(&cluster, &key, if how == "flushed" { 600_000 } else { 2000 });
        let granted = conn.info("lock", "lock_granted");
        conn.ok(&["CLUSTER", "DELSLOTS", &slot]);
        if how == "flushed" {
            conn.ok(&["FLUSHALL"]);
        } else {
            let start = conn.info_number("server", "server_time_usec");
            let over = |conn: &mut Client| conn.info_number("server", "server_time_usec") > start + 2_000_000;
            wait_for("the lease to be over", || over(&mut conn));
        }
        let_it_tick(&mut conn);
        assert_eq!(conn.info("lock", "lock_granted"), granted, "{how}");
        for waiter in &mut crowd {
            if !waiter.is_waiting() {
                let end = waiter.read();
                assert!(["CLUSTERDOWN", "UNBLOCKED", "MOVED"].contains(&end.code()), "{how}: {end:?}");
            }
        }
    }
}

#[test]
fn no_waiter_is_granted_by_a_node_that_has_lost_the_cluster() {
    // The majority may have given its slots to others.
    let mut cluster = Cluster::start(2, 0);
    let (key, _) = cluster.key();
    let mut conn = cluster.conn(0);
    let mut crowd = crowd(&cluster, &key, 600_000);
    let granted = conn.info("lock", "lock_granted");
    cluster.nodes[1].stop(true);
    wait_for("the cluster to be down", || conn.cluster_info("cluster_state") == "fail");
    assert!(conn.error(&["LOCK.ACQUIRE", &key, "x"]).starts_with("CLUSTERDOWN"));
    // The writers that block the readers go, if the server has not ended every wait by now.
    for writer in &crowd[..3] {
        conn.call(&["CLIENT", "UNBLOCK", &writer.id().to_string()]).unwrap();
    }
    let_it_tick(&mut conn);
    assert_eq!(conn.info("lock", "lock_granted"), granted);
    conn.call(&["FLUSHALL"]).unwrap();
    let_it_tick(&mut conn);
    assert_eq!(conn.info("lock", "lock_granted"), granted, "after FLUSHALL");
    let left = waiters(&mut conn);
    let mut still = 0;
    for waiter in &mut crowd[3..] {
        if waiter.is_waiting() {
            still += 1;
        } else {
            let end = waiter.read();
            assert!(["CLUSTERDOWN", "UNBLOCKED"].contains(&end.code()), "{end:?}");
        }
    }
    assert_eq!(still, left);
    // Up again: a waiter that is left is served.
    cluster.nodes[1].start();
    wait_for("the cluster to be up", || conn.cluster_info("cluster_state") == "ok");
    for waiter in crowd[3..].iter_mut().rev().take(left as usize) {
        waiter.only_reply().int();
    }
    nobody_waits(&mut conn);
}

#[test]
fn a_cycle_over_two_slots_is_refused_too() {
    // Within a command, some servers show the keys of its own slot alone: the request that closes the cycle cannot see
    // that.
    let cluster = Cluster::start(1, 0);
    let mut conn = cluster.conn(0);
    for (j, k) in [("j", "k"), ("l", "m")] {
        assert_ne!(conn.int(&["CLUSTER", "KEYSLOT", j]), conn.int(&["CLUSTER", "KEYSLOT", k]));
        conn.int(&["LOCK.ACQUIRE", j, "a", "PX", "600000"]).expect("free");
        conn.int(&["LOCK.ACQUIRE", k, "b", "PX", "600000"]).expect("free");
        let mut first = Connection::waiting(&cluster.nodes[0], &format!("LOCK.ACQUIRE {k} a PX 600000 BLOCK 0"));
        let mut last = Connection::resp2(&cluster.nodes[0]);
        last.send_line(&format!("LOCK.ACQUIRE {j} b PX 600000 BLOCK 0"));
        // When the cycle is reported late, it is not known what the requester may read.
        let cycles = [k, "?"].map(|seen| Reply::Error(format!("DEADLOCK b -> {j} -> a -> {seen} -> b")));
        let end = last.only_reply();
        assert!(cycles.contains(&end), "{end:?}");
        // No other is disturbed.
        let_it_tick(&mut conn);
        assert!(first.is_waiting());
        assert_eq!(waiters(&mut conn), 1);
        assert_eq!(conn.int(&["LOCK.RELEASE", k, "b"]), Some(0));
        first.only_reply().int();
        for key in [j, k] {
            assert_eq!(conn.int(&["LOCK.RELEASE", key, "a"]), Some(0));
        }
    }
}

#[test]
fn a_failover_in_a_cluster_sends_everybody_to_the_new_primary() {
    // Valkey 9.1 leaves waiters where they are, unless they are parked on their keys.
    for how in [&["CLUSTER", "FAILOVER"][..], &["CLUSTER", "FAILOVER", "TAKEOVER"]] {
        let cluster = Cluster::start(1, 1);
        let (key, _) = cluster.key();
        let mut crowd = crowd(&cluster, &key, 600_000);
        let mut old = cluster.conn(0);
        let granted = old.info("lock", "lock_granted");
        cluster.nodes[1].catch_up(&cluster.nodes[0]);
        cluster.conn(1).ok(how);
        for waiter in &mut crowd {
            waiter.assert_sent_away(&how.join(" "));
        }
        wait_for("the other to be primary", || cluster.conn(1).info("replication", "role") == "master");
        assert_gone(&cluster, &key, &granted, &how.join(" "));
    }
}

#[test]
fn a_waiter_for_a_key_whose_slot_is_moved_at_once_is_redirected_to_it() {
    // The newest servers move a slot in one step, and drop what lies in it without notice: Redis from 8.4 on, Valkey
    // from 9.0.
    if not_run("cluster::waiting::a_waiter_for_a_key_whose_slot_is_moved_at_once_is_redirected_to_it") {
        return;
    }
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut old = cluster.conn(0);
    let mut crowd = crowd(&cluster, &key, 600_000);
    let granted = old.info("lock", "lock_granted");
    cluster.move_at_once(&slot);
    wait_for("the slot to be the other's", || old.call(&["EXISTS", &key]).is_err());
    for waiter in &mut crowd {
        waiter.assert_sent_away("moved at once");
    }
    let mut new = cluster.conn(1);
    wait_for("the other to serve it", || new.call(&["EXISTS", &key]).is_ok());
    assert_gone(&cluster, &key, &granted, "moved at once");
}

#[test]
fn a_reader_that_only_queue_order_keeps_in_a_cycle_through_slots_is_granted() {
    // In its own step the server shows keys of one slot alone: the cycle is seen after it.
    let cluster = Cluster::start(1, 0);
    let mut conn = cluster.conn(0);
    let wait = |command: &str| Connection::waiting(&cluster.nodes[0], command);
    conn.int(&["LOCK.RW", "k", "a", "READ", "PX", "600000"]).unwrap();
    conn.int(&["LOCK.ACQUIRE", "j", "r", "PX", "600000"]).unwrap();
    let _w = wait("LOCK.ACQUIRE k w PX 600000 BLOCK 0");
    let _a = wait("LOCK.ACQUIRE j a PX 600000 BLOCK 0");
    let fence = conn.int(&["LOCK.RW", "k", "r", "READ", "PX", "600000", "BLOCK", "0"]);
    assert!(fence.is_some());
    assert_eq!(conn.lock_info("k").map(|info| (info.holding, info.waiting)), Some((2, 1)));
}
