//! Waits without a connection of their own: what all helpers have in common about them is in tests/helpers.

use crate::client_of;
use redis_lock_client::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use testbed::{Client, Server, wait_for, wait_so_long};

/// A wait asks by itself after 7.5 s at the earliest.
const SOON: Duration = Duration::from_secs(6);

fn await_waiters(conn: &mut Client, count: usize) {
    wait_for("waiters", || conn.lock_info("k").is_some_and(|info| info.waiting == count));
}

#[test]
fn waits_whose_requests_lost_their_connection_ask_again_at_once() {
    // The server ends their places soon after. No message comes, and the subscription is well.
    let server = Server::new();
    let (client, mut conn) = (client_of(&server).max_blocking(0), server.connect());
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| client.lock("k").unwrap().release().unwrap())).collect();
        await_waiters(&mut conn, 3);
        let before = conn.calls("lock.acquire");
        conn.int(&["CLIENT", "KILL", "TYPE", "normal"]);
        wait_so_long(SOON, "all to ask again", || conn.calls("lock.acquire") >= before + 3);
        await_waiters(&mut conn, 3);
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
            await_waiters(&mut conn, 1);
            conn.int(&["LOCK.RELEASE", "k", "first"]);
            wait.join().unwrap().unwrap();
        });
    }
    assert_eq!(conn.info_number("lock", "lock_notified"), 1);
}

#[test]
fn without_the_right_to_publish_all_waits_go_on_and_one_of_them_is_told() {
    const WAITS: usize = 20;
    let server = Server::new();
    let (client, mut conn) = (client_of(&server).max_blocking(0), server.connect());
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    conn.ok(&["ACL", "SETUSER", "default", "-publish"]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let (of_callback, done) = (told.clone(), AtomicUsize::new(0));
    let lock = client.key("k").on_trouble(move |error| of_callback.lock().unwrap().push(error.clone()));
    thread::scope(|scope| {
        for _ in 0..WAITS {
            scope.spawn(|| {
                lock.lock().unwrap().release().unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        await_waiters(&mut conn, WAITS);
        assert_eq!(conn.info_number("lock", "lock_notify_channels"), 0);
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        wait_for("all to have had it", || done.load(Ordering::Relaxed) == WAITS);
    });
    let told = told.lock().unwrap();
    let [Error::Notify(why)] = &told[..] else { panic!("{told:?}") };
    assert!(why.contains("NOPERM"), "{why}");
    // Each attempt would leave a row there.
    assert!(conn.get::<Vec<testbed::Value>>(&["ACL", "LOG"]).len() <= 1);
}
