//! Connections to a node of a cluster that close while holds are bound to them. The holds are in many slots, in slots
//! that have moved away, in slots that no node serves.

use crate::harness::connection::{Connection, Reply};
use crate::harness::servers::not_run;
use crate::harness::state::{holders, let_it_tick};
use crate::sessions::binding::only_hold;
use testbed::{Cluster, wait_for};

/// Another key of the first node, in another slot than this one.
fn other_key(cluster: &Cluster, key: &str) -> String {
    let mut conn = cluster.conn(0);
    let mut slot = |key: &str| conn.int(&["CLUSTER", "KEYSLOT", key]).unwrap();
    let first = slot(key);
    let found = (0..).map(|number| format!("other{number}")).find(|key| slot(key) < 16384 / 4 && slot(key) != first);
    found.unwrap()
}

/// A holder of both keys, bound to a connection to the first node.
fn holder_of(cluster: &Cluster, keys: &[&str]) -> Connection {
    let mut holder = Connection::resp2(&cluster.nodes[0]);
    for key in keys {
        assert!(holder.say(&format!("LOCK.ACQUIRE {key} a PX 600000 SESSION 0")).int() > 0);
    }
    holder
}

#[test]
fn holds_in_many_slots_end_with_their_connection() {
    // A step sees the keys of one slot, on some servers: here there are many.
    let cluster = Cluster::start(1, 0);
    let mut conn = cluster.conn(0);
    let keys: Vec<String> = (0..300).map(|number| format!("k{number}")).collect();
    let holder = holder_of(&cluster, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let mut waiters: Vec<Connection> = keys[..20]
        .iter()
        .map(|key| Connection::waiting(&cluster.nodes[0], &format!("LOCK.ACQUIRE {key} b PX 600000 BLOCK 0 SESSION 0")))
        .collect();
    holder.leave(&mut conn);
    for waiter in &mut waiters {
        assert!(waiter.read().int() > 0);
    }
    wait_for("all to be ended", || conn.get::<usize>(&["DBSIZE"]) == waiters.len());
    assert_eq!(conn.info_number("lock", "lock_session_holds"), waiters.len() as u64);
    drop(waiters);
    wait_for("those to be ended as well", || conn.get::<usize>(&["DBSIZE"]) == 0);
}

#[test]
fn a_redirection_ends_nothing() {
    // It is how every client finds its way in a cluster.
    let cluster = Cluster::start(2, 0);
    let (key, _) = cluster.key();
    let mut conn = cluster.conn(0);
    let mut holder = holder_of(&cluster, &[&key]);
    let foreign = cluster.key_of(1);
    for command in ["LOCK.ACQUIRE {} a SESSION 0", "LOCK.ACQUIRE {} a BLOCK 0", "LOCK.EXTEND {} a PX 5 SESSION 0"] {
        let reply = holder.say(&command.replace("{}", &foreign));
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with("MOVED")), "{reply:?}");
    }
    let_it_tick(&mut conn);
    assert_eq!(only_hold(&mut conn, &key).client, Some(holder.id()));
    assert_eq!(conn.info("lock", "lock_session_holds"), "1");
}

/// What was bound and has moved to the second node lives on there by lease; what has not, ends.
fn assert_moved_on(cluster: &Cluster, holder: Connection, moved: &str, stays: &str) {
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    let facts = |number: usize| {
        let file = cluster.nodes[number].aof_tail();
        file.into_iter().filter(|command| command[0] == "LOCK.HOLD" && command[1] == moved).count()
    };
    let before = facts(0);
    holder.leave(&mut old);
    wait_for("what stays to be ended", || old.int(&["EXISTS", stays]) == Some(0));
    let_it_tick(&mut old);
    assert_eq!(facts(0), before, "said of a key that another node serves");
    assert_eq!(old.info("lock", "lock_session_holds"), "0");
    let hold = only_hold(&mut new, moved);
    assert!(hold.ttl_ms > 400_000 && hold.session.is_none() && hold.client.is_none(), "{hold:?}");
    // And can be bound there.
    let mut again = Connection::resp2(&cluster.nodes[1]);
    assert!(again.say(&format!("LOCK.EXTEND {moved} a PX 600000 SESSION 0")).int() > 0);
    drop(again);
    wait_for("it to be ended", || new.int(&["EXISTS", moved]) == Some(0));
}

#[test]
fn a_hold_that_was_migrated_lives_on_by_lease() {
    // The new node does not know the connection; the old one must not say anything of the key any more.
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let other = other_key(&cluster, &key);
    let mut old = cluster.conn(0);
    let holder = holder_of(&cluster, &[&key, &other]);
    cluster.begin_move(&slot, 0, 1);
    assert_eq!(only_hold(&mut old, &key).client, Some(holder.id()));
    cluster.migrate(&key, 0, 1);
    cluster.end_move(&slot, 0, 1);
    assert_moved_on(&cluster, holder, &key, &other);
}

#[test]
fn a_hold_in_a_slot_that_is_on_its_way_ends_where_it_is() {
    // Until the key has gone this node serves it, also in the background.
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let mut old = cluster.conn(0);
    let holder = holder_of(&cluster, &[&key]);
    cluster.begin_move(&slot, 0, 1);
    holder.leave(&mut old);
    wait_for("it to be ended", || old.get::<usize>(&["DBSIZE"]) == 0);
    assert_eq!(old.info("lock", "lock_released"), "1");
}

#[test]
fn a_hold_whose_slot_was_moved_at_once_lives_on_by_lease() {
    // The newest servers drop what lies in it without notice: what is remembered of the connection's holds is out of
    // date.
    if not_run("cluster::sessions::a_hold_whose_slot_was_moved_at_once_lives_on_by_lease") {
        return;
    }
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let other = other_key(&cluster, &key);
    let mut old = cluster.conn(0);
    let holder = holder_of(&cluster, &[&key, &other]);
    cluster.move_at_once(&slot);
    wait_for("the slot to be the other's", || old.call(&["EXISTS", &key]).is_err());
    let mut new = cluster.conn(1);
    wait_for("the other to serve it", || new.call(&["EXISTS", &key]).is_ok());
    assert_moved_on(&cluster, holder, &key, &other);
}

#[test]
fn a_hold_in_a_slot_that_nobody_serves_lives_on_by_lease() {
    // Another node may be about to serve it: what this node says of it then would contradict that one.
    let cluster = Cluster::start(1, 0);
    let (key, slot) = cluster.key();
    let mut conn = cluster.conn(0);
    let holder = holder_of(&cluster, &[&key]);
    let facts = cluster.nodes[0].aof_tail().len();
    conn.ok(&["CLUSTER", "DELSLOTS", &slot]);
    wait_for("the cluster to be down", || conn.cluster_info("cluster_state") == "fail");
    holder.leave(&mut conn);
    let_it_tick(&mut conn);
    conn.ok(&["CLUSTER", "ADDSLOTS", &slot]);
    wait_for("the cluster to be up", || conn.cluster_info("cluster_state") == "ok");
    let_it_tick(&mut conn);
    let sent = cluster.nodes[0].aof_tail().split_off(facts);
    assert!(!sent.iter().any(|command| command[0] == "LOCK.HOLD"), "{sent:?}");
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
    // Some servers drop the keys of a slot that they do not serve any more.
    if conn.get::<usize>(&["DBSIZE"]) > 0 {
        let hold = only_hold(&mut conn, &key);
        assert!(hold.ttl_ms > 400_000 && hold.client.is_none(), "{hold:?}");
    }
}

#[test]
fn a_node_that_has_lost_the_cluster_ends_nothing_until_it_is_back() {
    // The majority may have given its slots to others.
    let mut cluster = Cluster::start(2, 0);
    let (key, _) = cluster.key();
    let mut conn = cluster.conn(0);
    let holder = holder_of(&cluster, &[&key]);
    let facts = cluster.nodes[0].aof_tail().len();
    cluster.nodes[1].stop(true);
    wait_for("the cluster to be down", || conn.cluster_info("cluster_state") == "fail");
    holder.leave(&mut conn);
    let_it_tick(&mut conn);
    assert_eq!(cluster.nodes[0].aof_tail().len(), facts);
    assert_eq!(conn.info("lock", "lock_session_holds"), "1");
    cluster.nodes[1].start();
    wait_for("it to be ended", || conn.get::<usize>(&["DBSIZE"]) == 0);
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
}

#[test]
fn after_a_failover_in_a_cluster_holds_live_on_by_lease() {
    // The old primary keeps its clients, and is a replica when they go.
    for how in [&["CLUSTER", "FAILOVER"][..], &["CLUSTER", "FAILOVER", "TAKEOVER"]] {
        let cluster = Cluster::start(1, 1);
        let (key, _) = cluster.key();
        let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
        let holder = holder_of(&cluster, &[&key]);
        cluster.nodes[1].catch_up(&cluster.nodes[0]);
        new.ok(how);
        wait_for("the other to be primary", || new.info("replication", "role") == "master");
        wait_for("the first to be its replica", || old.info("replication", "role") == "slave");
        holder.leave(&mut old);
        let_it_tick(&mut old);
        let hold = only_hold(&mut new, &key);
        assert!(hold.ttl_ms > 400_000 && hold.client.is_none(), "{how:?}: {hold:?}");
        assert_eq!(holders(&mut new, &key), ["a"], "{how:?}");
        assert_eq!(old.info("lock", "lock_session_holds"), "0", "{how:?}");
    }
}
