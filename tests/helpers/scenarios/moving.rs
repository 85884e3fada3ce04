//! Locks that move to another node while they are held or waited for.

use crate::stage::{Play, waits_for_held};
use serde_json::json;
use std::time::Duration;
use testbed::{Cluster, Proxy, Server, wait_for};

/// The wait goes on at the node that has the slot now.
pub(crate) fn a_wait_goes_with_a_slot_that_moves(play: Play) {
    let cluster = Cluster::start(2, 0);
    let (key, slot) = cluster.key();
    let (mut old, mut new) = (cluster.conn(0), cluster.conn(1));
    let mut agent = play.agent(cluster.nodes[1].port(), true);
    old.int(&["LOCK.ACQUIRE", &key, "first", "PX", "60000"]).unwrap();
    agent.open("held", json!({"keys": [format!("{{{key}}}held")], "lease": 6.0}));
    let held = agent.acquired("held");
    agent.open("a", json!({"keys": [key]}));
    let asked = agent.acquire("a");
    old.await_waiters(&key, 1);

    cluster.begin_move(&slot, 0, 1);
    let port = cluster.nodes[1].port().to_string();
    let both = format!("{{{key}}}held");
    old.ok(&["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS", &key, &both]);
    cluster.end_move(&slot, 0, 1);
    new.await_waiters(&key, 1);
    new.int(&["LOCK.RELEASE", &key, "first"]);
    let fence = asked.fence();
    assert_eq!(new.lock_info(&key).unwrap().fence, fence);
    agent.released("a");

    // What was held is renewed at the new node.
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(new.lock_info(&both).map(|info| info.fence), Some(held));
    assert!(!agent.is_lost("held"));
    agent.released("held");
    assert!(new.lock_info(&both).is_none() && new.lock_info(&key).is_none());
}

/// One node is dead, and its replica has the slots: the wait and the renewals go there.
pub(crate) fn a_primary_of_a_cluster_that_dies_is_left_for_its_replica(play: Play) {
    let mut cluster = Cluster::start(2, 1);
    let (key, _) = cluster.key();
    let mut agent = play.agent(cluster.nodes[1].port(), true);
    cluster.conn(0).int(&["LOCK.ACQUIRE", &key, "first", "PX", "60000"]).unwrap();
    let both = format!("{{{key}}}held");
    agent.open("held", json!({"keys": [both], "lease": 9.0}));
    let held = agent.acquired("held");
    agent.open("a", json!({"keys": [key], "wait": 90}));
    let asked = agent.acquire("a");
    cluster.conn(0).await_waiters(&key, 1);

    cluster.nodes[2].catch_up(&cluster.nodes[0]);
    cluster.nodes[0].stop(true);
    let mut new = cluster.conn(2);
    new.ok(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    wait_for("the promotion", || new.info("replication", "role") == "master");
    new.await_waiters(&key, 1);
    new.int(&["LOCK.RELEASE", &key, "first"]);
    assert_eq!(Some(asked.fence()), new.lock_info(&key).map(|info| info.fence));
    agent.released("a");

    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(new.lock_info(&both).map(|info| info.fence), Some(held));
    assert!(!agent.is_lost("held"));
    agent.released("held");
}

/// The address leads to the new primary, which refuses everybody for a while: the wait goes on.
pub(crate) fn a_failover_and_its_grace_are_waited_through(play: Play) {
    let (primary, replica) = with_a_grace();
    let proxy = Proxy::to(primary.port());
    let mut agent = play.agent(proxy.port(), false);
    let mut conn = primary.connect();
    agent.open("a", json!({"keys": ["k"], "wait": 90}));
    let asked = waits_for_held(&mut agent, &mut conn, "a", "k");
    fail_over(primary, &replica, &proxy);

    let mut conn = replica.connect();
    assert!(asked.within(Duration::from_millis(500)).is_none());
    conn.int(&["LOCK.RELEASE", "k", "first"]);
    let fence = asked.fence();
    assert_eq!(conn.lock_info("k").map(|info| info.fence), Some(fence));
    assert_eq!(conn.info_number("lock", "lock_grace_left_ms"), 0);
    agent.released("a");
    assert!(conn.lock_info("k").is_none());
}

/// EXTEND is served in a grace: only the renewals that met the dead primary have to be repeated.
pub(crate) fn a_held_lock_outlasts_a_failover(play: Play) {
    let (primary, replica) = with_a_grace();
    let proxy = Proxy::to(primary.port());
    let mut agent = play.agent(proxy.port(), false);
    agent.open("a", json!({"keys": ["k"], "lease": 6.0}));
    let fence = agent.acquired("a");
    fail_over(primary, &replica, &proxy);

    let mut conn = replica.connect();
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(conn.lock_info("k").map(|info| info.fence), Some(fence));
    assert!(!agent.is_lost("a"));
    agent.released("a");
}

/// A primary and its replica, where each begins with a grace when it is promoted.
fn with_a_grace() -> (Server, Server) {
    let (primary, replica) = (Server::new(), Server::setup().lock_option("grace-ms", "2000").start());
    replica.follow(&primary);
    (primary, replica)
}

fn fail_over(mut primary: Server, replica: &Server, proxy: &Proxy) {
    replica.catch_up(&primary);
    primary.stop(true);
    replica.connect().ok(&["REPLICAOF", "NO", "ONE"]);
    wait_for("the promotion", || replica.connect().info("replication", "role") == "master");
    proxy.lead_to(replica.port());
}
