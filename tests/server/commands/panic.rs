//! A panic anywhere in the module is a line in the server's log and, in a command, one error; the server lives on.
//! Tested with tests/support/probe-module, a module that is built on the same server-api and panics
//! wherever it is called.

use crate::harness::connection::{Connection, Reply, Way};
use testbed::{Client, Server, wait_for};

/// The server runs with RUST_BACKTRACE=1, as all of these tests' servers do: see the crate testbed.
fn server() -> Server {
    Server::setup().without_module().probe_module().start()
}

const INTERNAL: &str = "ERR internal error of the module, see the server's log";

fn alive(server: &Server, wire: &mut Connection) {
    assert_eq!(wire.say("PING"), Reply::Simple("PONG".to_owned()), "the same connection is in step");
    assert_eq!(server.connect().get::<String>(&["PING"]), "PONG");
}

/// The log's lines of panics: `panic at file:line: message`.
fn panics(server: &Server) -> Vec<String> {
    let log = server.log();
    log.lines().filter_map(|line| line.find("panic at ").map(|at| line[at..].to_owned())).collect()
}

#[track_caller]
fn logged(server: &Server, message: &str) {
    let panics = panics(server);
    let last = panics.last().expect("a line in the log");
    let (place, text) = last["panic at ".len()..].split_once(": ").expect("a place and a message");
    let (file, line) = place.rsplit_once(':').expect("file:line");
    assert!(file.ends_with("probe-module/src/lib.rs"), "{last}");
    assert!(line.parse::<u32>().is_ok_and(|line| line > 0), "{last}");
    assert_eq!(text, message);
}

#[test]
fn a_panic_in_a_command_is_an_error_and_a_line_in_the_log() {
    // Unwinding into the server's frames, or a symboliser at work within it, ends the server and all that it holds.
    let server = server();
    for mut wire in [Connection::resp2(&server), Connection::resp3(&server)] {
        assert_eq!(wire.say("PANIC.NOW k"), Reply::Error(INTERNAL.to_owned()));
        logged(&server, "on purpose");
        alive(&server, &mut wire);
    }
    // Again and again: nothing is used up, and no lock is left poisoned.
    let mut wire = Connection::resp2(&server);
    for _ in 0..200 {
        assert_eq!(wire.say("PANIC.NOW k"), Reply::Error(INTERNAL.to_owned()));
    }
    assert_eq!(panics(&server).len(), 202);
}

/// A server with the module itself and an append-only file, and a replica of it.
fn pair() -> (Server, Server) {
    let server = Server::setup().option("appendonly", "yes").start();
    let replica = Server::setup().option("replicaof", &format!("127.0.0.1 {}", server.port())).start();
    wait_for("the link", || replica.connect().info("replication", "master_link_status") == "up");
    (server, replica)
}

/// Whether the module under test panics on purpose: a release build never does, and serves such keys as any.
fn panics_on_purpose(server: &Server) -> bool {
    let panics = panics(server);
    assert!(panics.iter().all(|line| line.ends_with(": on purpose")), "{panics:?}");
    !panics.is_empty()
}

#[test]
fn a_panic_in_a_step_leaves_no_change_that_nobody_hears_of() {
    // What could go wrong: a release has granted one key when it panics at the next. Replicas and file do not have the
    // grant, the client that waits is never answered, and neither its lease nor its connection ends its hold.
    let (mut server, replica) = pair();
    let (mut wire, mut copy) = (Connection::resp2(&server), replica.connect());
    assert!(matches!(wire.say("LOCK.MACQUIRE 2 a z h PX 600000"), Reply::Array(_)));
    let mut first = Connection::waiting(&server, "LOCK.RW a first READ SESSION 0 PX 600000 BLOCK 0");
    let mut brief = Connection::waiting(&server, "LOCK.RW a brief READ PX 1500 BLOCK 0");
    let ask = ["LOCK.MACQUIRE", "2", "z", "other<panics when opened>", "second", "BLOCK", "0"];
    let mut second = Connection::sent(&server, &ask);
    wait_for("all to wait", || server.connect().info_number("lock", "lock_waiters") == 3);
    let released = wire.say("LOCK.MRELEASE 2 a z h");
    for granted in [&mut first, &mut brief] {
        assert!(matches!(granted.read(), Reply::Int(_)));
    }
    if !panics_on_purpose(&server) {
        assert!(matches!((released, second.read()), (Reply::Array(_), Reply::Array(_))));
        return;
    }
    assert_eq!(released, Reply::Error(INTERNAL.to_owned()));
    alive(&server, &mut wire);
    second.assert_waiting();
    // A lease ends in its time, and what is bound to a connection with that, here and on the replica.
    let holders = |eye: &mut Client| {
        let info = eye.lock_info("a");
        info.map_or(Vec::new(), |info| info.holders.into_iter().map(|holder| holder.owner).collect())
    };
    wait_for("the replica", || holders(&mut copy).contains(&b"first".to_vec()));
    for mut eye in [server.connect(), replica.connect()] {
        wait_for("the lease to end", || holders(&mut eye) == [b"first"]);
        assert!(eye.lock_info("z").is_none_or(|info| info.holders.is_empty()));
    }
    server.crash();
    assert_eq!(holders(&mut server.connect()), [b"first"], "the file has what the server had");
}

#[test]
fn what_a_step_that_panics_has_granted_ends_with_its_connection() {
    // What could go wrong: the panic comes before the index of sessions has heard of the grant.
    let (server, mut wire) = Connection::alone();
    assert!(matches!(wire.say("LOCK.MACQUIRE 2 a z h PX 600000"), Reply::Array(_)));
    let mut first = Connection::waiting(&server, "LOCK.ACQUIRE a first SESSION 0 PX 600000 BLOCK 0");
    let ask = ["LOCK.MACQUIRE", "2", "z", "other<panics when opened>", "second", "BLOCK", "0"];
    let _second = Connection::sent(&server, &ask);
    wait_for("both to wait", || server.connect().info_number("lock", "lock_waiters") == 2);
    wire.say("LOCK.MRELEASE 2 a z h");
    assert!(matches!(first.read(), Reply::Int(_)));
    first.close();
    wait_for("the end of its hold", || server.connect().get::<i64>(&["EXISTS", "a"]) == 0);
}

#[test]
fn a_panic_where_others_are_told_ends_the_waits_of_the_step_with_an_error() {
    // What could go wrong: the client that was granted the key hears nothing, and waits for ever.
    let (server, mut wire) = Connection::alone();
    let key = "k<panics when told>";
    let taken = wire.ask(&["LOCK.ACQUIRE", key, "h"]);
    if !panics_on_purpose(&server) {
        assert!(matches!(taken, Reply::Int(_)));
        return;
    }
    assert_eq!(taken, Reply::Error(INTERNAL.to_owned()));
    let mut waiter = Connection::sent(&server, &["LOCK.ACQUIRE", key, "w", "BLOCK", "0"]);
    wait_for("it to wait", || server.connect().info_number("lock", "lock_waiters") == 1);
    assert_eq!(wire.ask(&["LOCK.RELEASE", key, "h"]), Reply::Error(INTERNAL.to_owned()));
    let ended = "UNBLOCKED lock wait ended: internal error of the module, see the server's log";
    assert_eq!(waiter.read(), Reply::Error(ended.to_owned()));
    alive(&server, &mut waiter);
    alive(&server, &mut wire);
}

#[test]
fn a_panic_within_a_transaction_a_script_or_a_function_is_an_error_there() {
    // The server is in the middle of a step of its own, which it must be able to finish.
    let server = server();
    let mut wire = Connection::resp2(&server);
    wire.load_function();
    for way in [Way::Exec, Way::Script, Way::Function] {
        assert_eq!(wire.ask_by(way, &["PANIC.NOW", "k"]), Reply::Error(INTERNAL.to_owned()), "{way:?}");
        logged(&server, "on purpose");
        alive(&server, &mut wire);
    }
}

#[test]
fn a_panic_after_the_reply_adds_none() {
    // A second reply to one command is taken for the reply to the next, and so on for ever.
    let server = server();
    let mut wire = Connection::resp2(&server);
    assert_eq!(wire.say("PANIC.REPLIED k"), Reply::Int(7));
    alive(&server, &mut wire);
    logged(&server, "after the reply");
    assert_eq!(wire.ask_by(Way::Exec, &["PANIC.REPLIED", "k"]), Reply::Int(7));
    assert_eq!(wire.ask_by(Way::Script, &["PANIC.REPLIED", "k"]), Reply::Int(7));
    alive(&server, &mut wire);
}

#[test]
fn a_panic_with_the_clients_bytes_is_one_line() {
    // A NUL would cut the line, and a format character must not be one to the server's printf.
    let server = server();
    let mut wire = Connection::resp2(&server);
    assert_eq!(wire.ask(&[&b"PANIC.FORMATTED"[..], b"%s%n\0%d"]), Reply::Error(INTERNAL.to_owned()));
    logged(&server, "key is %s%n\\u{0}%d");
    let forged = "x\n1:M 01 Jan 2026 00:00:00.000 * Ready to accept";
    assert_eq!(wire.ask(&["PANIC.FORMATTED", forged]), Reply::Error(INTERNAL.to_owned()));
    let log = server.log();
    assert!(!log.lines().any(|line| line.starts_with("1:M 01 Jan")), "a client wrote a line of the log:\n{log}");
    alive(&server, &mut wire);
}

#[test]
fn a_panic_where_nobody_waits_for_a_reply_is_caught_too() {
    // Timers, events, INFO and CONFIG call the module without a command around it.
    let server = server();
    let mut wire = Connection::resp2(&server);
    assert_eq!(wire.say("PANIC.TIMER k"), Reply::Int(1));
    wait_for("the timer", || panics(&server).len() == 1);
    logged(&server, "in a timer");
    assert_eq!(wire.say("SET panic 1"), Reply::simple("OK"));
    assert_eq!(wire.say("EXPIRE panic 100"), Reply::Int(1));
    logged(&server, "in a keyspace event");
    assert_eq!(wire.say("FLUSHALL"), Reply::simple("OK"));
    logged(&server, "in a server event");
    assert_eq!(wire.say("DBSIZE"), Reply::Int(0));
    let info = wire.say("INFO panic").text();
    assert!(info.contains("panic_before:1"), "{info}");
    logged(&server, "in INFO");
    assert!(matches!(wire.say("CONFIG SET panic.level 3"), Reply::Error(_)));
    logged(&server, "in CONFIG SET");
    assert_eq!(wire.say("CONFIG SET panic.level 2"), Reply::simple("OK"));
    alive(&server, &mut wire);
}
