//! Servers of all kinds, and ways to name them.

use crate::{SHORT, client_of, holds};
use redis_lock_client::{Client, Error, redis};
use std::time::Duration;
use testbed::{Cluster, PATIENCE, Server, Signal, wait_for};

#[test]
fn a_client_of_the_crate_redis_gives_all_its_settings() {
    let server = Server::setup().option("unixsocket", "socket").start();
    server.connect().ok(&["CONFIG", "SET", "requirepass", "secret"]);
    let port = server.port();
    let socket = server.dir().join("socket").display().to_string();
    for url in [
        format!("redis://:secret@127.0.0.1:{port}/3"),
        format!("redis://:secret@127.0.0.1:{port}/3?protocol=resp3"),
        format!("unix://{socket}?pass=secret&db=3"),
    ] {
        let client = Client::from(&redis::Client::open(url.as_str()).unwrap());
        let guard = client.lock("k").unwrap();
        assert!(guard.check().unwrap());
        assert!(client.try_lock_for("k", Duration::from_millis(20)).unwrap().is_none());
        let in_database: u32 = guard.guard(redis::cmd("EXISTS").arg("k")).unwrap();
        assert_eq!(in_database, 1, "{url}");
        guard.release().unwrap();
    }
    let error = client_of(&server).try_lock("k").unwrap_err();
    assert!(error.to_string().contains("NOAUTH"), "{error:?}");
    assert!(matches!(error, Error::Server(_)));
    let wrong = Client::open(format!("redis://:wrong@127.0.0.1:{port}")).unwrap();
    // It does not pass: nobody waits for it.
    assert!(matches!(wrong.lock("k"), Err(Error::Server(_))));
}

#[test]
fn many_requests_are_answered_in_their_order_over_one_connection() {
    let server = Server::new();
    let client = client_of(&server);
    let mut conn = server.connect();
    let command = |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).take();
    let requests = vec![command(&["SET", "k", "1"]), command(&["HGETALL", "k"]), command(&["INCR", "k"])];
    let reads = conn.info_number("stats", "total_reads_processed");
    for key in ["k", ""] {
        let replies = client.ask_all(key, requests.clone()).unwrap();
        assert_eq!((replies.len(), &replies[0], &replies[2]), (3, &redis::Value::Okay, &redis::Value::Int(2)));
        assert!(matches!(replies[1], redis::Value::ServerError(_)), "{replies:?}");
    }
    let many = client.ask_all("k", vec![command(&["INCR", "k"]); 1000]).unwrap();
    assert_eq!((many.len(), &many[999]), (1000, &redis::Value::Int(1002)));
    let reads = conn.info_number("stats", "total_reads_processed") - reads;
    assert!(reads < 500, "{reads} reads");

    // Those about a key are sent on to the node that has it, all others to the one that was named.
    let cluster = Cluster::start(2, 0);
    let client = Client::cluster([("127.0.0.1", cluster.nodes[0].port())]).unwrap();
    for key in ["a", "b", "c", "d"] {
        let replies = client.ask_all(key, vec![command(&["INCR", key]); 2]).unwrap();
        assert_eq!(replies, [1, 2].map(redis::Value::Int), "{key}");
    }
    // This key has the first slot, which is another node's.
    let named = client_of(&cluster.nodes[1]);
    let requests = vec![command(&["INCR", "{06S}"]), command(&["CLUSTER", "MYID"])];
    for number in 1..=2 {
        let replies = named.ask_all("", requests.clone()).unwrap();
        assert_eq!(replies[1], redis::Value::BulkString(cluster.id(1).into_bytes()), "{number}");
    }
}

#[test]
fn what_is_no_address_is_refused_at_once() {
    assert!(matches!(Client::open("127.0.0.1"), Err(Error::Refused(_))));
    assert!(matches!(Client::cluster(Vec::<&str>::new()), Err(Error::Refused(_))));
    let none = Client::sentinel(Vec::<&str>::new(), "locks", redis::RedisConnectionInfo::default());
    assert!(matches!(none, Err(Error::Refused(_))));
}

#[test]
fn a_port_without_tls_is_an_error_in_time() {
    // It waits for the end of a line that never comes.
    let server = Server::new();
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let client = Client::open(url.as_str()).unwrap().timeout(Duration::from_secs(1));
    let text = format!("no answer from 127.0.0.1:{}: the TLS handshake was not answered", server.port());
    for error in [client.check("k", "me", 1).unwrap_err(), client.try_lock("k").unwrap_err()] {
        assert!(matches!(error, Error::Connection(_)) && error.to_string().starts_with(&text), "{error}");
    }
}

#[test]
fn any_node_of_a_cluster_leads_to_all_locks() {
    let mut cluster = Cluster::start(3, 0);
    let client = client_of(&cluster.nodes[0]);
    let keys: Vec<String> = (0..12).map(|number| format!("{{k{number}}}lock")).collect();
    let guards: Vec<_> = keys.iter().map(|key| client.key(key).lease(SHORT).lock().unwrap()).collect();
    for (key, guard) in keys.iter().zip(&guards) {
        let nodes = cluster.nodes.iter().filter(|node| node.connect().call(&["LOCK.INFO", key]).is_ok());
        let nodes: Vec<&Server> = nodes.collect();
        assert!(nodes.len() == 1 && holds(nodes[0], key, guard), "{key}");
    }
    // All are renewed, each by the node that has it.
    assert!(!guards[0].wait_lost(SHORT * 2));
    assert!(guards.iter().all(|guard| !guard.is_lost() && guard.check().unwrap()));
    // The first is at another node already, and its slot is still on its way there.
    let (old, new) = move_key(&cluster, &keys[0]);
    assert!(!guards[0].wait_lost(SHORT * 2));
    assert!(guards[0].check().unwrap());
    assert!(cluster.conn(old).error(&["LOCK.INFO", &keys[0]]).starts_with("ASK"));
    move_slot(&cluster, &keys[0], new);
    let both = client.keys(["{k1}a", "{k1}b"]).try_lock().unwrap().unwrap();
    assert_eq!(both.fences().len(), 2);
    both.release().unwrap();
    let error = client.keys(["k1", "k2"]).try_lock().unwrap_err();
    assert!(error.to_string().starts_with("CROSSSLOT"), "{error}");
    // A node that hangs does not delay the renewal at the others.
    for node in &cluster.nodes {
        node.connect().ok(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let (hung, sound): (Vec<_>, Vec<_>) = keys.iter().zip(guards).partition(|(key, _)| is_at(&cluster, key, 0));
    cluster.nodes[0].signal(Signal::STOP);
    assert!(hung[0].1.wait_lost(PATIENCE));
    assert!(!sound[0].1.wait_lost(SHORT * 2));
    assert!(sound.iter().all(|(_, guard)| !guard.is_lost()));
    // The node that was named is gone: the others lead to what they have.
    cluster.nodes[0].stop(true);
    let client = Client::cluster([("127.0.0.1", cluster.nodes[0].port()), ("127.0.0.1", cluster.nodes[1].port())]);
    let key = format!("{} too", sound[0].0);
    let guard = client.unwrap().key(&key).try_lock_for(PATIENCE).unwrap().unwrap();
    let node = (1..3).find(|number| is_at(&cluster, &key, *number)).unwrap();
    assert!(holds(&cluster.nodes[node], &key, &guard));
}

/// Whether a node serves a key.
fn is_at(cluster: &Cluster, key: &str, number: usize) -> bool {
    cluster.conn(number).call(&["LOCK.INFO", key]).is_ok()
}

/// Moves a key, while its slot is not moved yet: from which node, and to which.
fn move_key(cluster: &Cluster, key: &str) -> (usize, usize) {
    let slot = slot_of(cluster, key);
    let old = (0..3).find(|number| is_at(cluster, key, *number)).unwrap();
    let new = (old + 1) % 3;
    cluster.begin_move(&slot, old, new);
    let port = cluster.nodes[new].port().to_string();
    cluster.conn(old).ok(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    (old, new)
}

fn move_slot(cluster: &Cluster, key: &str, to: usize) {
    let slot = slot_of(cluster, key);
    for number in [to, 0, 1, 2] {
        cluster.conn(number).ok(&["CLUSTER", "SETSLOT", &slot, "NODE", &cluster.id(to)]);
    }
}

fn slot_of(cluster: &Cluster, key: &str) -> String {
    cluster.conn(0).int(&["CLUSTER", "KEYSLOT", key]).unwrap().to_string()
}

/// A Sentinel that makes a primary closes all connections to it.
fn is_primary(server: &Server) -> bool {
    let client = redis::Client::open(("127.0.0.1", server.port())).unwrap();
    let role = client.get_connection().and_then(|mut conn| redis::cmd("ROLE").query::<Vec<redis::Value>>(&mut conn));
    role.is_ok_and(|role| role[0] == redis::Value::BulkString(b"master".to_vec()))
}

#[test]
fn a_lock_that_sentinels_lead_to_outlasts_their_failover() {
    let (primary, replica) = (Server::new(), Server::new());
    replica.follow(&primary);
    let config =
        format!("sentinel monitor locks 127.0.0.1 {} 1\nsentinel failover-timeout locks 5000\n", primary.port());
    let sentinel = Server::setup().sentinel(&config).start();
    let mut conn = sentinel.connect();
    wait_for("the Sentinel to know the replica", || {
        conn.info("sentinel", "master0").contains("status=ok") && conn.info("sentinel", "master0").contains("slaves=1")
    });
    // The first Sentinel is down.
    let nobody = ("127.0.0.1", 1);
    let sentinels = [nobody, ("127.0.0.1", sentinel.port())];
    let client = Client::sentinel(sentinels, "locks", redis::RedisConnectionInfo::default()).unwrap();
    let guard = client.key("k").lease(SHORT * 4).lock().unwrap();
    assert!(holds(&primary, "k", &guard));
    replica.catch_up(&primary);
    wait_for("the failover to begin", || conn.call(&["SENTINEL", "FAILOVER", "locks"]).is_ok());
    wait_for("the failover", || is_primary(&replica));
    // The Sentinel tells the old primary of it after 10 s only: until then that would extend the lease, for nothing.
    assert!(!guard.wait_lost(SHORT * 5), "it is renewed at the new primary");
    assert!(guard.check().unwrap() && holds(&replica, "k", &guard));
    guard.release().unwrap();
    let other = Client::sentinel(sentinels, "nobody", redis::RedisConnectionInfo::default()).unwrap();
    assert!(matches!(other.try_lock("k"), Err(Error::Connection(_))));
}
