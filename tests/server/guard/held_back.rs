//! LOCK.GUARD where the server may not write: it is refused as the write itself would be.

use crate::harness::connection::{Connection, Reply};
use crate::harness::hold_back::HoldBack;
use testbed::{Server, wait_for};

#[test]
fn a_guarded_command_is_refused_where_it_would_be_by_itself() {
    // What could go wrong: a write that the disk or the replicas would not keep is done all the same.
    for (how, code) in [(0, "NOREPLICAS"), (1, "MISCONF")] {
        let server = Server::new();
        let hold_back = if how == 0 { HoldBack::Replicas } else { HoldBack::disk(&server) };
        let (mut conn, mut wire) = (server.connect(), Connection::resp2(&server));
        let fence = wire.say("LOCK.ACQUIRE k a").int();
        hold_back.begin(&mut conn);
        let guarded = wire.say(&format!("LOCK.GUARD k a {fence} SET d x"));
        assert_eq!(guarded.code(), code, "{guarded:?}");
        assert_eq!(wire.say("EXISTS d"), Reply::Int(0));
        hold_back.end(&mut conn);
        assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} SET d x")).items()[1], Reply::simple("OK"));
    }
}

#[test]
fn a_full_memory_refuses_what_adds_and_not_what_deletes() {
    // What could go wrong: an owner can no longer delete under its lock, though that is what is needed now.
    let (_server, mut wire) = Connection::alone();
    wire.say("SET d 1");
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    assert_eq!(wire.say("CONFIG SET maxmemory 1"), Reply::simple("OK"));
    assert_eq!(wire.say("SET e x").code(), "OOM");
    assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} SET e x")).code(), "OOM");
    assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} GET d")).items()[1], Reply::bulk("1"));
    assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} DEL d")).items()[1], Reply::Int(1));
    assert_eq!(wire.say("EXISTS d e"), Reply::Int(0));
}

#[test]
fn a_guard_waits_until_a_pause_of_writes_is_over() {
    // What could go wrong: a write within the pause of a failover, which the new primary does not have.
    let server = Server::new();
    let (mut conn, mut wire) = (server.connect(), Connection::resp2(&server));
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    HoldBack::Pause.begin(&mut conn);
    // Also of what only reads.
    for (command, reply) in [("SET d 1", Reply::simple("OK")), ("GET d", Reply::bulk("1"))] {
        let mut late = Connection::resp2(&server);
        late.send_line(&format!("LOCK.GUARD k a {fence} {command}"));
        wait_for("the guard to be postponed", || conn.info("clients", "blocked_clients") != "0");
        assert!(!late.has_reply());
        assert_eq!(conn.int(&["EXISTS", "d"]), Some(i64::from(command == "GET d")));
        HoldBack::Pause.end(&mut conn);
        assert_eq!(late.read(), Reply::Array(vec![Reply::Int(fence), reply]));
        HoldBack::Pause.begin(&mut conn);
    }
    HoldBack::Pause.end(&mut conn);
}

#[test]
fn a_lease_that_ends_during_a_pause_guards_nothing_after_it() {
    // What could go wrong: the postponed command is run as if it were judged when it was sent.
    let server = Server::new();
    let (mut conn, mut wire) = (server.connect(), Connection::resp2(&server));
    let fence = wire.say("LOCK.ACQUIRE k a PX 300").int();
    HoldBack::Pause.begin(&mut conn);
    wire.send_line(&format!("LOCK.GUARD k a {fence} SET d x"));
    wait_for("the lease to end", || conn.lock_info("k").is_none());
    HoldBack::Pause.end(&mut conn);
    assert_eq!(wire.read(), Reply::Null);
    assert_eq!(wire.say("EXISTS d"), Reply::Int(0));
}

#[test]
fn a_replica_runs_no_guarded_command() {
    // What could go wrong: a replica that has not heard of the release runs a command of the old owner.
    let (primary, replica) = (Server::new(), Server::new());
    replica.follow(&primary);
    let mut wire = Connection::resp2(&primary);
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    replica.catch_up(&primary);
    let mut there = Connection::resp2(&replica);
    for command in ["SET d x", "GET d"] {
        let guarded = format!("LOCK.GUARD k a {fence} {command}");
        assert_eq!(there.say(&guarded).code(), "READONLY", "{command}");
        there.say("CONFIG SET replica-read-only no");
        assert_eq!(there.say(&guarded), Reply::error("READONLY locks are checked by the primary only"));
        there.say("CONFIG SET replica-read-only yes");
    }
    assert_eq!(there.say("EXISTS d"), Reply::Int(0));
}

#[test]
fn a_read_only_script_runs_no_guarded_command() {
    // GUARD is a write, whatever the command is. LOCK.CHECK is for these.
    let (_server, mut wire) = Connection::alone();
    let fence = wire.say("LOCK.ACQUIRE k a").int().to_string();
    let script = "return redis.pcall('LOCK.GUARD', KEYS[1], 'a', ARGV[1], 'GET', 'd')";
    assert_eq!(wire.ask(&["EVAL_RO", script, "1", "k", &fence]).code(), "ERR");
    assert_eq!(wire.ask(&["EVAL", script, "1", "k", &fence]).items()[0].int().to_string(), fence);
}
