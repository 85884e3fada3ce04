//! Queues that one step does not come to the end of: it does a piece, and the background goes on.

use crate::harness::connection::{Connection, Reply};
use testbed::{Server, wait_for};

/// How many keys each waiter wants.
const KEYS: usize = 64;

/// The words of a waiter for many keys: one that all want, one of its own that is held until a connection closes, more
/// of its own, and one that is held by another.
fn words(n: usize) -> Vec<String> {
    let mut words = vec!["LOCK.MACQUIRE".to_owned(), KEYS.to_string(), "0".to_owned(), format!("over{n}")];
    words.extend((0..KEYS - 3).map(|other| format!("own{n}-{other}")));
    words.extend(["z".to_owned(), format!("w{n}"), "READ".to_owned(), "QUEUE".to_owned(), "60000".to_owned()]);
    words
}

/// So many waiters for 64 keys each, of which one has a hold that ends with a connection, and one is held by another.
/// The connection closes, and the holder waits behind them for what a third holds.
fn a_connection_closes_before(count: usize) {
    // What could go wrong: one step ends all those holds and has all those keys open. It takes one key for another, so
    // that two owners write at once; or it panics when locks were changed that replicas never hear of.
    let server = Server::setup().lock_option("max-place-bytes", "1000000000").start();
    let replica = Server::setup().option("replicaof", &format!("127.0.0.1 {}", server.port())).start();
    let (mut eye, mut copy) = (server.connect(), replica.connect());
    wait_for("the link", || copy.info("replication", "master_link_status") == "up");
    let mut wire = Connection::resp2(&server);
    assert!(matches!(wire.say("LOCK.ACQUIRE z h PX 600000"), Reply::Int(_)));
    let Reply::Int(fence) = wire.say("LOCK.ACQUIRE t t PX 600000") else { panic!("is free") };
    let mut session = Connection::resp2(&server);
    assert!(matches!(session.say("LOCK.ACQUIRE 0 a SESSION 0 PX 600000"), Reply::Int(_)));
    for n in 0..count {
        session.send_line(&format!("LOCK.ACQUIRE over{n} a{n} SESSION 0 PX 600000"));
    }
    assert!((0..count).all(|_| matches!(session.read(), Reply::Int(_))));
    (0..count).for_each(|n| wire.send(&words(n)));
    (0..count).for_each(|n| assert_eq!(wire.read(), Reply::Null, "waiter {n}"));
    let mut holder = Connection::waiting(&server, "LOCK.MACQUIRE 2 0 t h BLOCK 0");
    session.close();
    wait_for("all holds of the connection to end", || {
        eye.info_number("lock", "lock_session_holds") == 0 && eye.info_number("lock", "lock_waiters") == 1
    });
    holder.assert_waiting();
    for (key, owner) in [("t", "t"), ("z", "h")] {
        let info = eye.lock_info(key).expect("is held");
        assert_eq!(
            info.holders.iter().map(|holder| &holder.owner[..]).collect::<Vec<_>>(),
            [owner.as_bytes()],
            "{key}"
        );
    }
    assert_eq!(wire.say("LOCK.CHECK t t"), Reply::Int(fence));
    assert_eq!((server.log().matches("panic").count(), wire.say("DBSIZE")), (0, Reply::Int(2)));
    wait_for("the replica", || copy.get::<i64>(&["DBSIZE"]) == 2);
    // The queue goes on: what they wait for is given back, and they have it, one after the other as they fit.
    assert_eq!(wire.say("LOCK.RELEASE z h"), Reply::Int(0));
    wait_for("more of them than one step serves", || eye.info_number("lock", "lock_offered") > 32);
}

#[test]
fn one_step_takes_no_key_for_another_where_its_waiters_want_more_than_65536() {
    a_connection_closes_before(1_057);
}

#[test]
fn one_step_does_not_panic_where_its_waiters_want_far_more_than_65536() {
    a_connection_closes_before(1_100);
}
