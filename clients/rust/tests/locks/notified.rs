//! Waits without a connection of their own: what all helpers have in common about them is in tests/helpers.

use crate::client_of;
use std::thread;
use std::time::Duration;
use testbed::{Server, wait_so_long};

/// A wait asks by itself after 7.5 s at the earliest.
const SOON: Duration = Duration::from_secs(6);

#[test]
fn waits_whose_requests_lost_their_connection_ask_again_at_once() {
    // The server ends their places soon after. No message comes, and the subscription is well.
    let server = Server::new();
    let (client, mut conn) = (client_of(&server).max_blocking(0), server.connect());
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| client.lock("k").unwrap().release().unwrap())).collect();
        conn.await_waiters("k", 3);
        let before = conn.calls("lock.acquire");
        conn.int(&["CLIENT", "KILL", "TYPE", "normal"]);
        wait_so_long(SOON, "all to ask again", || conn.calls("lock.acquire") >= before + 3);
        conn.await_waiters("k", 3);
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        waits.into_iter().for_each(|wait| wait.join().unwrap());
    });
    assert!(conn.lock_info("k").is_none());
}

#[test]
fn a_place_is_asked_for_as_long_as_the_server_allows() {
    let server = Server::setup().lock_option("max-queue-ms", "5000").start();
    let mut conn = server.connect();
    for client in [client_of(&server), client_of(&server).max_blocking(0)] {
        conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
        thread::scope(|scope| {
            let wait = scope.spawn(|| client.lock("k").unwrap().release());
            conn.await_waiters("k", 1);
            conn.int(&["LOCK.RELEASE", "k", "first"]);
            wait.join().unwrap().unwrap();
        });
    }
    assert_eq!(conn.info_number("lock", "lock_notified"), 1);
}
