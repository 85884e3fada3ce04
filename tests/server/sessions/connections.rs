//! Connections: over which one a command came, and that the module learns of the end of each. Tested with
//! tests/support/probe-module, a module that is built on the same server-api and reports its events.

use crate::harness::connection::{Connection, Reply, Way};
use testbed::{Client, Server, Setup, wait_for};

fn setup() -> Setup {
    Server::setup().without_module().probe_module()
}

/// The connections that were closed, and how late a timer rang that was set then, in the order of the events.
fn gone(conn: &mut Client) -> Vec<(i64, Option<i64>)> {
    let flat: Vec<Option<i64>> = conn.get(&["PANIC.GONE"]);
    flat.chunks(2).map(|pair| (pair[0].expect("a number"), pair[1])).collect()
}

/// What the probe module logs when its timer fires.
const RUNG: &str = "the timer rings";

fn times_gone(conn: &mut Client, id: i64) -> usize {
    gone(conn).iter().filter(|(gone, _)| *gone == id).count()
}

fn id_of(conn: &mut Client) -> i64 {
    conn.get(&["CLIENT", "ID"])
}

fn clients(conn: &mut Client) -> Vec<Option<i64>> {
    conn.get(&["PANIC.CLIENTS"])
}

#[test]
fn a_command_names_the_connection_that_it_came_over() {
    // Held for the client of a script, or of another module, a lock would never be released: the module does not learn
    // of their end.
    let server = setup().start();
    let mut wire = Connection::resp2(&server);
    let id = wire.say("CLIENT ID");
    wire.load_function();
    let command = &["PANIC.CLIENT"];
    assert_eq!(wire.ask_by(Way::Plain, command), id);
    assert_eq!(wire.ask_by(Way::Exec, command), id);
    assert_eq!(wire.ask_by(Way::Script, command), Reply::Null);
    assert_eq!(wire.ask_by(Way::Function, command), Reply::Null);
    // What PANIC.CALL replies is the type of the reply that it got.
    let null = Reply::Int(4);
    let call = &["PANIC.CALL", "PANIC.CLIENT"];
    assert_eq!(wire.ask_by(Way::Plain, call), null);
    assert_eq!(wire.ask_by(Way::Exec, call), null);
    assert_eq!(wire.ask_by(Way::Script, call), null);
    let script = &["EVAL", "return redis.call('PANIC.CLIENT')", "0"];
    assert_eq!(wire.ask_by(Way::Exec, script), Reply::Null);
    // After all of that it is what it was, and another connection has another number.
    assert_eq!(wire.ask_by(Way::Plain, command), id);
    let mut other = server.connect();
    let number = id_of(&mut other);
    assert_ne!(Reply::Int(number), id);
    assert_eq!(other.int(command), Some(number));
}

#[test]
fn what_is_replicated_or_loaded_came_over_no_connection() {
    // The replica would release what the primary's clients hold whenever the link breaks.
    let mut primary = setup().option("appendonly", "yes").start();
    let replica = setup().start();
    let (mut there, mut here) = (primary.connect(), replica.connect());
    replica.follow(&primary);
    let number = id_of(&mut there);
    there.int(&["PANIC.CLIENT"]);
    let mut wire = Connection::resp2(&primary);
    wire.ask_by(Way::Exec, &["PANIC.CLIENT"]);
    wire.ask_by(Way::Script, &["PANIC.CLIENT"]);
    assert_eq!(clients(&mut there)[0], Some(number));
    assert_eq!(clients(&mut there)[2], None);
    replica.catch_up(&primary);
    assert_eq!(clients(&mut here), [None; 3]);
    primary.restart();
    assert_eq!(clients(&mut primary.connect()), [None; 3]);
}

/// Ends a client, of which the number is given too, with the help of another.
type End = fn(&mut Client, Client, i64);

#[test]
fn the_end_of_each_connection_is_told_once_however_it_comes() {
    // Missed, it would leave a lock without a live holder for as long as its lease runs.
    let (server, mut conn) = setup().connected();
    let ends: &[(&str, End)] = &[
        ("closed", |_, client, _| drop(client)),
        ("QUIT", |_, mut client, _| client.send(&["QUIT"])),
        ("killed", |other, _client, id| {
            other.int(&["CLIENT", "KILL", "ID", &id.to_string()]);
        }),
        ("killed by itself", |_, mut client, id| {
            client.send(&["CLIENT", "KILL", "ID", &id.to_string(), "SKIPME", "no"]);
            client.send(&["PING"]);
        }),
        ("killed while it waits", |other, mut client, id| {
            client.send(&["BLPOP", "list", "0"]);
            wait_for("it to wait", || other.info("clients", "blocked_clients") == "1");
            other.int(&["CLIENT", "KILL", "ID", &id.to_string()]);
        }),
        ("not understood", |_, mut client, _| {
            client.0.send_packed_command(b"*1\r\n$-5\r\n").unwrap();
        }),
        ("without its user", |other, mut client, _| {
            other.ok(&["ACL", "SETUSER", "user", "on", "nopass", "+@all"]);
            client.ok(&["AUTH", "user", "any"]);
            other.int(&["ACL", "DELUSER", "user"]);
        }),
        ("too slow to read", |other, mut client, id| {
            other.ok(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 100kb 0 0"]);
            client.send(&["SUBSCRIBE", "channel"]);
            let message = "x".repeat(1 << 20);
            wait_for("the output to be too much", || {
                other.get::<i64>(&["PUBLISH", "channel", &message]);
                times_gone(other, id) == 1
            });
        }),
        ("idle", |other, _client, id| {
            other.ok(&["CONFIG", "SET", "timeout", "1"]);
            wait_for("it to be closed", || times_gone(other, id) == 1);
            other.ok(&["CONFIG", "SET", "timeout", "0"]);
        }),
    ];
    for (how, end) in ends {
        let mut client = server.connect();
        let id = id_of(&mut client);
        assert_eq!(times_gone(&mut conn, id), 0, "{how}");
        end(&mut conn, client, id);
        wait_for(how, || times_gone(&mut conn, id) == 1);
    }
    let told = gone(&mut conn);
    let mut once = told.clone();
    once.sort();
    once.dedup_by_key(|(id, _)| *id);
    assert_eq!(once.len(), told.len(), "{told:?}");
}

#[test]
fn nothing_else_is_the_end_of_a_connection() {
    // A lock would be released while its holder works.
    let server = setup().start();
    let (mut conn, mut wire) = (server.connect(), Connection::resp2(&server));
    let id = wire.say("CLIENT ID").int();
    // The connection over which the server was seen to have started may end behind those two.
    wait_for("the start to be over", || conn.info("clients", "connected_clients") == "2");
    let before = gone(&mut conn).len();
    wire.load_function();
    for _ in 0..100 {
        for way in [Way::Exec, Way::Script, Way::Function] {
            wire.ask_by(way, &["PANIC.CLIENT"]);
        }
        wire.say("PANIC.CALL PANIC.CLIENT");
    }
    wire.say("SCRIPT FLUSH");
    wire.say("FUNCTION FLUSH");
    wire.send(&["BLPOP", "list", "0"]);
    wait_for("it to wait", || conn.info("clients", "blocked_clients") == "1");
    conn.int(&["CLIENT", "UNBLOCK", &id.to_string()]);
    wire.read();
    assert_eq!(wire.say("RESET"), Reply::Simple("RESET".to_owned()));
    drop(server.connect());
    wait_for("a later end to be told", || gone(&mut conn).len() == before + 1);
    assert_eq!(times_gone(&mut conn, id), 0);
    assert_eq!(wire.say("PANIC.CLIENT"), Reply::Int(id));
}

#[test]
fn a_timer_that_is_set_at_the_end_of_a_connection_rings_at_once() {
    // Servers close what they end by themselves when they are about to sleep. The oldest has decided by then for how
    // long, and the waiter for the lock would wait for a tick: a second, here.
    let (server, mut conn) = setup().option("hz", "1").option("dynamic-hz", "no").connected();
    wait_for("the start to be over", || {
        conn.info("clients", "connected_clients") == "1" && gone(&mut conn).iter().all(|(_, late_ms)| late_ms.is_some())
    });
    let before = gone(&mut conn).len();
    let rung_before = server.log().matches(RUNG).count();
    for round in 1..=11 {
        let mut client = server.connect();
        client.send(&["QUIT"]);
        // Any command to the server now would wake it: the log says that the timer has fired. A timer that waits for
        // the tick makes each round begin just behind a tick, so that the next is a whole one away.
        wait_for("the timer to ring", || server.log().matches(RUNG).count() == rung_before + round);
    }
    let mut late: Vec<_> = gone(&mut conn)[before..].iter().map(|(_, late_ms)| late_ms.expect("rung")).collect();
    late.sort_unstable();
    assert_eq!(late.len(), 11);
    // By the tick it would be half of one.
    assert!(late[5] < 300, "in milliseconds: {late:?}");
}
