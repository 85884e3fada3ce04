//! What locks cost: requests and connections. The numbers may only fall.

use crate::client_of;
use redis_lock_client::Client;
use std::path::Path;
use std::thread;
use std::time::Duration;
use testbed::{Server, wait_for, wait_so_long};

/// What clients/costs.json says.
fn costs(kind: &str) -> (u64, u64) {
    // Wherever in the repository this package lies.
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let file = above.map(|folder| folder.join("clients/costs.json")).find(|file| file.exists()).unwrap();
    let costs: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let of = |what: &str| costs["rust"][kind][what].as_u64().unwrap();
    (of("requests"), of("connections"))
}

fn connections(conn: &mut testbed::Client) -> usize {
    conn.get::<String>(&["CLIENT", "LIST"]).lines().count() - 1
}

/// Those of this process that a client started.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("redis-lock")).count()
}

#[test]
fn a_free_lock_costs_what_is_written_down() {
    let server = Server::new();
    let (client, mut conn) = (client_of(&server), server.connect());
    client.lock("k").unwrap().release().unwrap();
    let open = connections(&mut conn);
    assert!(open <= 2, "one to ask, one to renew");
    for _ in 0..10 {
        client.lock("k").unwrap().release().unwrap();
    }
    for _ in 0..9 {
        client.try_lock("k").unwrap().unwrap().release().unwrap();
    }
    assert_eq!((conn.calls("lock.") / 20, (connections(&mut conn) - open) as u64), costs("free"));
}

#[test]
fn a_lock_that_is_waited_for_costs_what_is_written_down() {
    let server = Server::new();
    assert_eq!(costs_of_waiting(&server, &client_of(&server)), costs("contended"));
}

#[test]
fn a_lock_that_is_waited_for_by_notify_costs_what_is_written_down() {
    let server = Server::new();
    assert_eq!(costs_of_waiting(&server, &client_of(&server).max_blocking(0)), costs("notified"));
    assert!(server.connect().info_number("lock", "lock_notified") >= 10);
}

/// The requests and the new connections of a wait for a lock that others hold.
fn costs_of_waiting(server: &Server, client: &Client) -> (u64, u64) {
    let mut conn = server.connect();
    let mut round = || {
        conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
        let lock = client.key("k");
        thread::scope(|scope| {
            let wait = scope.spawn(|| lock.lock().unwrap());
            conn.await_waiters("k", 1);
            conn.int(&["LOCK.RELEASE", "k", "first"]);
            wait.join().unwrap().release().unwrap();
        });
    };
    round();
    let mut seen = server.connect();
    let mut figures = |names: &[&str]| names.iter().map(|name| seen.calls(name)).collect::<Vec<_>>();
    let commands = ["lock.acquire", "lock.release", "lock.extend", "lock.check"];
    let before = figures(&commands);
    // Each of the test's own looks at the waiter is a connection, too.
    let clients = client_numbers(server);
    for _ in 0..10 {
        round();
    }
    let sent: Vec<u64> = figures(&commands).iter().zip(before).map(|(after, before)| after - before).collect();
    // One pair is the first holder's.
    let requests = (sent.iter().sum::<u64>() - 20) / 10;
    let new = client_numbers(server).iter().filter(|number| !clients.contains(number)).count();
    (requests, new as u64)
}

/// The connections that asked for locks, by their numbers. Those of the test ask for other things.
fn client_numbers(server: &Server) -> Vec<String> {
    let text: String = server.connect().get(&["CLIENT", "LIST"]);
    let ours = text.lines().filter(|line| {
        ["lock.acquire", "lock.release", "lock.extend", "hello", "subscribe"]
            .iter()
            .any(|cmd| line.contains(&format!("cmd={cmd}")))
    });
    ours.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn more_waits_than_connections_are_all_served_and_what_is_idle_is_closed() {
    let server = Server::new();
    let (client, mut conn) = (client_of(&server), server.connect());
    conn.int(&["LOCK.ACQUIRE", "k", "first", "PX", "60000"]).unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..500).map(|_| scope.spawn(|| client.lock("k").unwrap().release().unwrap())).collect();
        conn.await_waiters("k", 500);
        // 32 that wait, one for what the others are told, and one for all else.
        assert!(connections(&mut conn) <= 34, "{}", connections(&mut conn));
        conn.int(&["LOCK.RELEASE", "k", "first"]);
        waits.into_iter().for_each(|wait| wait.join().unwrap());
    });
    assert!(conn.lock_info("k").is_none());
    // Long before those that are kept are closed, too.
    wait_so_long(Duration::from_secs(15), "most connections to be closed", || connections(&mut conn) <= 10);
    wait_for("all connections to be closed", || connections(&mut conn) == 0);
}

#[test]
fn a_client_that_is_dropped_leaves_no_thread() {
    let server = Server::new();
    let mut conn = server.connect();
    let client = Client::open(("127.0.0.1", server.port())).unwrap();
    let guard = client.lock("k").unwrap();
    assert!(connections(&mut conn) > 0 && threads() > 0);
    drop(client);
    assert!(!guard.wait_lost(Duration::from_millis(50)) && guard.check().unwrap());
    guard.release().unwrap();
    wait_for("its connections to be closed", || connections(&mut conn) == 0);
}
