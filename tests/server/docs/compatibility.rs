//! docs/compatibility.md against the server at hand: which commands crash it, without the module.

use crate::harness::connection::Connection;
use std::process::Command;
use testbed::{Client, Server, wait_for};

const PAGE: &str = include_str!("../../../docs/compatibility.md");

/// What this server is called there.
fn name() -> String {
    let program = std::env::var_os("REDIS_LOCK_SERVER").unwrap_or_else(|| "redis-server".into());
    // Redis server v=7.0.15 sha=...
    let output = Command::new(program).arg("--version").output().expect("the server can be started");
    let text = String::from_utf8(output.stdout).unwrap().replace(" server v=", " ");
    text.split(" sha=").next().unwrap().to_owned()
}

/// Whether this command crashes this server, as the page says; None when it says nothing of this server.
fn crashes(command: &str) -> Option<bool> {
    let row = PAGE.lines().find(|line| line.starts_with('|') && line.contains(command)).expect("a row of the page");
    let cells: Vec<&str> = row.split(" | ").collect();
    let name = name();
    let named = |cell: &str| cell.split(", ").any(|server| server == name);
    match (named(cells[1]), named(cells[2])) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        both => {
            assert_eq!(both, (false, false), "{name} is in both columns");
            None
        }
    }
}

/// A server without the module. What it would write about its end takes seconds, and is known.
fn plain() -> Server {
    Server::setup().without_module().option("crash-log-enabled", "no").start()
}

/// Whether the server lets this client wait.
fn is_held(conn: &mut Client, parked: &Connection) -> bool {
    conn.get::<String>(&["CLIENT", "LIST", "ID", &parked.id().to_string()]).contains(" flags=b ")
}

#[test]
fn no_touch_crashes_the_servers_that_the_page_names() {
    // What could go wrong: a server that crashes is not named, or one that no longer does is.
    let server = plain();
    let mut conn = server.connect();
    let mut waiter = Connection::resp2(&server);
    waiter.send_line("BLPOP k 0");
    wait_for("somebody to wait", || is_held(&mut conn, &waiter));
    let mut toucher = server.connect();
    let knows_it = toucher.call(&["CLIENT", "NO-TOUCH", "ON"]).is_ok();
    let _ = toucher.call(&["LPUSH", "k", "v"]);
    let crashed = conn.call(&["PING"]).is_err();
    assert!(knows_it || !crashed);
    if let Some(expected) = crashes("`CLIENT NO-TOUCH ON`") {
        assert_eq!(crashed, expected, "{}", name());
    }
}

#[test]
fn unblocking_whom_a_pause_holds_back_crashes_the_servers_that_the_page_names() {
    // The same, and that ERROR is a way out.
    for (reason, crashes) in [("TIMEOUT", crashes("`CLIENT UNBLOCK id`")), ("ERROR", Some(false))] {
        let server = plain();
        let mut conn = server.connect();
        conn.ok(&["CLIENT", "PAUSE", "3600000", "WRITE"]);
        let mut held = Connection::resp2(&server);
        held.send_line("SET k v");
        wait_for("the write to be held back", || is_held(&mut conn, &held));
        let answer = conn.call(&["CLIENT", "UNBLOCK", &held.id().to_string(), reason]);
        let crashed = answer.is_err() && conn.call(&["PING"]).is_err();
        if let Some(expected) = crashes {
            assert_eq!(crashed, expected, "{} {reason}: {answer:?}", name());
        }
    }
}
