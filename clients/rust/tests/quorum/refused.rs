//! Servers that make no quorum.

use crate::harness::{LONG, Servers, quorum_of};
use redis_lock_client::{Error, Guard, Quorum};
use testbed::{Server, Signal, wait_for};

fn why(outcome: Result<Guard, Error>) -> String {
    match outcome {
        Err(Error::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_is_named_twice_is_refused_and_never_counts_twice() {
    let servers = Servers::start(2);
    let [one, two] = [servers.0[0].port(), servers.0[1].port()];
    let quorum = quorum_of([one, two, one]);
    assert!(why(quorum.lock("k")).contains("are one and the same server"));
    servers.await_free("k");
    // One that stands for two of three is no quorum, whatever becomes of the third.
    servers.0[1].signal(Signal::STOP);
    let other_name = Quorum::open([("127.0.0.1", one), ("localhost", one), ("127.0.0.1", two)]).unwrap();
    assert!(why(other_name.lock("k")).contains("are one and the same server"));
    servers.0[1].signal(Signal::CONT);
    servers.await_free("k");
}

#[test]
fn a_replica_is_refused_and_a_primary_that_has_one_is_not() {
    let servers = Servers::start(4);
    servers.0[3].follow(&servers.0[0]);
    let ports: Vec<u16> = servers.0.iter().map(Server::port).collect();
    assert!(why(quorum_of(ports[1..].to_vec()).lock("k")).contains("is a replica"));
    assert!(why(quorum_of(ports.clone()).lock("k")).contains("is a replica"));
    servers.await_free("k");
    quorum_of(ports[..3].to_vec()).key("k").lease(LONG).lock().unwrap().release().unwrap();
}

#[test]
fn a_node_of_a_cluster_is_refused() {
    let cluster = testbed::Cluster::start(3, 0);
    let quorum = quorum_of(cluster.nodes.iter().map(Server::port));
    assert!(why(quorum.lock("k")).contains("is a node of a cluster"));
}

#[test]
fn a_node_that_comes_later_is_looked_at_then() {
    let mut servers = Servers::start(4);
    servers.0[2].stop(true);
    let ports: Vec<u16> = servers.0.iter().map(Server::port).collect();
    let quorum = quorum_of(ports[..3].to_vec());
    let guard = quorum.key("k").lease(LONG).lock().unwrap();
    servers.0[2].start();
    servers.0[2].follow(&servers.0[3]);
    wait_for("it to be refused", || matches!(quorum.try_lock("other"), Err(Error::Refused(_))));
    assert!(!guard.is_lost(), "the others hold it");
    assert!(servers.hold("k", &guard) == 2);
    guard.release().unwrap();
}

#[test]
fn a_user_that_may_not_ask_who_the_servers_are_is_not_refused_for_that() {
    let servers = Servers::start(3);
    for server in &servers.0 {
        server.connect().ok(&["ACL", "SETUSER", "alice", "on", ">secret", "~*", "+@all", "-info"]);
    }
    let urls = servers.0.iter().map(|server| format!("redis://alice:secret@127.0.0.1:{}", server.port()));
    let guard = Quorum::open(urls).unwrap().key("k").lease(LONG).lock().unwrap();
    guard.release().unwrap();
    // What a user may not do at all is said at once.
    for server in &servers.0 {
        server.connect().ok(&["ACL", "SETUSER", "alice", "-lock.acquire"]);
    }
    let urls = servers.0.iter().map(|server| format!("redis://alice:secret@127.0.0.1:{}", server.port()));
    let error = Quorum::open(urls).unwrap().lock("k").unwrap_err();
    assert!(error.to_string().starts_with("NOPERM"), "{error}");
}
