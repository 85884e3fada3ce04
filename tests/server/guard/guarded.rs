//! LOCK.GUARD: what is run and what is not. What is malformed is in commands/replies_syntax.rs.

use crate::harness::connection::{Connection, Reply, Way};
use crate::harness::state::gone;
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Player, Row, each, play_in};
use testbed::{Server, wait_for};

const ALL_WAYS: [Way; 4] = [Way::Plain, Way::Exec, Way::Script, Way::Function];

/// Only a writer, and only under its fence.
const HELD: &[Row] = &[
    ("LOCK.GUARD k a 5 SET d x", "nil"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.GUARD k a #1 SET d 1", "[#1 OK]"),
    ("lock.guard k a #1 get d", "[#1 1]"),
    ("LOCK.GUARD k a #1 GET nothing", "[#1 nil]"),
    ("LOCK.GUARD k a #1+1 SET d x", "nil"),
    ("LOCK.GUARD k a #1-1 SET d x", "nil"),
    ("LOCK.GUARD k b #1 SET d x", "nil"),
    ("GET d", "1"),
    // Held in both modes: for writing as well.
    ("LOCK.RW k a READ", "#1"),
    ("LOCK.GUARD k a #1 INCR d", "[#1 2]"),
    // A reader shares: what it writes, others may write at the same time.
    ("LOCK.RELEASE k a WRITE", "1"),
    ("LOCK.GUARD k a #1 SET d x", "nil"),
    ("LOCK.RELEASE k a", "0"),
    ("LOCK.GUARD k a #1 SET d x", "nil"),
    // Lost, and taken again: a late command of the former hold must fail.
    ("LOCK.ACQUIRE k a", "#2"),
    ("LOCK.GUARD k a #1 SET d x", "nil"),
    ("LOCK.GUARD k a #2 INCR d", "[#2 3]"),
    ("LOCK.BREAK k", "1"),
    ("LOCK.GUARD k a #2 SET d x", "nil"),
    ("LOCK.RW k a WRITE", "#3"),
    ("LOCK.EXTEND k a PX 60000", "#3"),
    ("LOCK.GUARD k a #3 APPEND d 4", "[#3 2]"),
    ("DEL k", "1"),
    ("LOCK.GUARD k a #3 SET d x", "nil"),
    ("GET d", "34"),
    ("SET k text", "OK"),
    ("LOCK.GUARD k a #3 SET d x", WRONGTYPE),
];

#[test]
fn a_command_runs_only_while_its_owner_holds_for_writing_under_that_fence() {
    // Broken on purpose, this test has failed for a guard that takes any fence of its owner.
    let server = Server::new();
    play_in(&server, &ALL_WAYS, HELD);
    Player::new(&mut Connection::resp3(&server), Way::Plain).play(HELD);
}

#[test]
fn a_command_of_an_owner_whose_lease_is_over_is_not_run_though_nothing_has_ended_the_lease_yet() {
    // What could go wrong: a process sleeps through its lease, its command arrives together with the end of the lease,
    // and overwrites what the next holder will read.
    let (_server, mut wire) = Connection::alone();
    let fence = wire.say("LOCK.ACQUIRE k a PX 100").int();
    // All of it comes in one turn of the event loop, in which no timer rings.
    wire.send_line(&format!("DEBUG SLEEP 0.15\r\nLOCK.GUARD k a {fence} SET d x\r\nEXISTS d\r\nINFO lock"));
    let [slept, guarded, there, info] = [(); 4].map(|()| wire.read());
    assert_eq!([slept, guarded, there], [Reply::simple("OK"), Reply::Null, Reply::Int(0)]);
    assert!(info.text().contains("lock_lapsed:1\r\n"), "it settles what it finds over: {}", info.text());
}

#[test]
fn all_guards_of_a_script_or_a_transaction_run_or_none_does() {
    // What could go wrong: the lease ends between two of them, and half of a change is done.
    let (_server, mut wire) = Connection::alone();
    let beyond = "local function left() local map = redis.call('LOCK.INFO', 'k')[10][1]; return map[12] end
        local fence = string.format('%.0f', redis.call('LOCK.CHECK', 'k', 'a'))
        local first = redis.call('LOCK.GUARD', 'k', 'a', fence, 'INCR', 'd')
        repeat until left() == 0
        local second = redis.call('LOCK.GUARD', 'k', 'a', fence, 'INCR', 'd')
        return {first[2], second[2]}";
    let both = |number| Reply::Array(vec![Reply::Int(number), Reply::Int(number + 1)]);
    assert!(wire.say("LOCK.ACQUIRE k a PX 300").int() > 0);
    assert_eq!(wire.ask(&["EVAL", beyond, "0"]), both(1));
    let fence = wire.say("LOCK.ACQUIRE k a PX 300").int();
    assert_eq!(wire.say("MULTI"), Reply::simple("OK"));
    wire.say("LOCK.CHECK k a");
    wire.ask(&["EVAL", beyond, "0"]);
    wire.say(&format!("LOCK.GUARD k a {fence} INCR d"));
    assert_eq!(wire.say("EXEC").items()[1..], [both(3), Reply::Array(vec![Reply::Int(fence), Reply::Int(5)])]);
    wait_for("the lease to end", || wire.say("LOCK.CHECK k a") == Reply::Null);
}

/// Refused, and nothing is run. The same from a transaction, a script and a function.
const REFUSED: &[Row] = &[
    ("LOCK.ACQUIRE k a", "#1"),
    (
        "LOCK.GUARD k a #1 {EVAL|eval_ro|EVALSHA|FCALL} x 0",
        r#"ERR LOCK.GUARD cannot run "{}": use LOCK.CHECK inside the script"#,
    ),
    ("LOCK.GUARD k a #1 {MULTI|EXEC|RESET|MONITOR}", CANNOT),
    ("LOCK.GUARD k a #1 {WATCH|SUBSCRIBE|AUTH|HELLO} 3", CANNOT),
    ("LOCK.GUARD k a #1 {CLIENT} ID", CANNOT),
    ("LOCK.GUARD k a #1 {CLIENT} REPLY OFF", CANNOT),
    ("LOCK.GUARD k a #1 {CONFIG} GET port", CANNOT),
    ("LOCK.GUARD k a #1 {SHUTDOWN} NOSAVE", CANNOT),
    ("LOCK.GUARD k a #1 {REPLICAOF} NO ONE", CANNOT),
    ("LOCK.GUARD k a #1 {DEBUG} SLEEP 0", CANNOT),
    // Scripts may run these, which would do nothing here, or say what is not so.
    ("LOCK.GUARD k a #1 {WAIT|waitaof} 0 0 0", CANNOT),
    ("LOCK.GUARD k a #1 {SELECT} 1", CANNOT),
    ("LOCK.GUARD k a #1 {Lock.Guard} k a #1 SET d x", CANNOT),
    // Even of an owner that holds nothing.
    ("LOCK.GUARD k b 5 {WAIT} 0 0", CANNOT),
    (r#"LOCK.GUARD k a #1 "SET\x00" d x"#, r#"ERR LOCK.GUARD cannot run "SET\x00""#),
    (r#"LOCK.GUARD k a #1 "SET\r\n" d x"#, r#"ERR unknown command 'SET  ', with args beginning with: 'd' 'x' "#),
    ("LOCK.GUARD k a #1 NOSUCH d x", r#"ERR unknown command 'NOSUCH', with args beginning with: 'd' 'x' "#),
    ("LOCK.GUARD k a #1 SET d", "ERR wrong number of arguments for 'set' command"),
    ("LOCK.GUARD k a #1 LPUSH k x", WRONGTYPE),
    ("LOCK.GUARD k a #1 SET d x NOSUCH", "ERR syntax error"),
    ("EXISTS d", "0"),
    ("LOCK.CHECK k a FENCE #1", "#1"),
];

const CANNOT: &str = r#"ERR LOCK.GUARD cannot run "{}""#;

#[test]
fn what_a_script_may_not_run_is_refused_by_name_and_an_error_is_the_whole_reply() {
    // What could go wrong: a client that looks for an error finds an array, and takes its write for done. Or the state
    // of its connection is changed in the middle of a command.
    let server = Server::new();
    play_in(&server, &ALL_WAYS, &each(REFUSED));
    let mut wire = Connection::resp3(&server);
    wire.load_function();
    Player::new(&mut wire, Way::Plain).play(&each(REFUSED));
    assert_eq!(wire.say("PING"), Reply::simple("PONG"));
}

#[test]
fn a_command_that_would_wait_is_answered_at_once() {
    // What could go wrong: a guarded command is served later, when its lock has another holder.
    let (server, mut wire) = Connection::alone();
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    for command in ["BLPOP l 0", "BLMOVE l m LEFT RIGHT 0", "BZPOPMIN z 0", "XREAD BLOCK 0 STREAMS x 0"] {
        let name = command.split(' ').next().unwrap();
        let refused = Reply::error(&format!("ERR LOCK.GUARD cannot run \"{name}\""));
        match wire.say(&format!("LOCK.GUARD k a {fence} {command}")) {
            // Redis 7.0.
            error @ Reply::Error(_) => assert_eq!(error, refused),
            null => {
                let nothing = null.items().remove(1);
                assert!(nothing == Reply::Null || nothing == Reply::Other("*-1".to_owned()), "{command}: {nothing:?}");
            }
        }
    }
    // With something there it is no wait.
    wire.say("LPUSH l 1");
    // A request for a lock is tried once.
    assert!(wire.say("LOCK.ACQUIRE held other").int() > 0);
    let tried = wire.say(&format!("LOCK.GUARD k a {fence} LOCK.ACQUIRE held a BLOCK 0"));
    assert_eq!(tried, Reply::Array(vec![Reply::Int(fence), Reply::Null]));
    assert_eq!(server.connect().info_number("lock", "lock_waiters"), 0);
    // Nor can it bind a hold to a connection that it does not have.
    let bound = wire.say(&format!("LOCK.GUARD k a {fence} LOCK.ACQUIRE free a SESSION 0"));
    assert!(bound.text().starts_with("ERR SESSION needs a connection"), "{bound:?}");
}

#[test]
fn a_command_that_sends_no_reply_is_an_error() {
    // What could go wrong: an array of two with one element. The client takes the reply to its next command for the
    // second, and is out of step for good.
    let server = Server::setup().probe_module().start();
    for mut wire in [Connection::resp2(&server), Connection::resp3(&server)] {
        let fence = wire.say("LOCK.ACQUIRE k a").int();
        let mut in_multi = |command: &str| {
            wire.say("MULTI");
            wire.say(&format!("LOCK.GUARD k a {fence} {command}"));
            let reply = wire.say("EXEC").items().remove(0);
            assert_eq!(wire.say("PING"), Reply::simple("PONG"));
            reply
        };
        let silent = in_multi("PANIC.SILENT k");
        assert_eq!(silent, Reply::error("ERR the command that LOCK.GUARD ran sent no reply"));
        // A panic of another module is its own error.
        assert_eq!(in_multi("PANIC.NOW k").code(), "ERR");
    }
}

#[test]
fn a_command_of_another_module_is_guarded_within_a_transaction_alone() {
    // It may block the client that calls it, at which servers end. Within a transaction modules ask first.
    let server = Server::setup().probe_module().start();
    let mut wire = Connection::resp2(&server);
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    let of_module = "use MULTI, since a command of a module might block";
    let mut commands = vec!["PANIC.SILENT k", "panic.now k"];
    // Redis 8 has these from a module of its own, and they do block.
    let has_vectors = wire.say("COMMAND INFO VSIM").items()[0] != Reply::Null;
    if has_vectors {
        wire.say("VADD v VALUES 2 1 2 e");
        commands.extend(["VSIM v VALUES 2 1 1", "VADD v VALUES 2 1 5 f CAS"]);
    }
    for command in commands {
        let name = command.split(' ').next().unwrap();
        let refused = Reply::error(&format!("ERR LOCK.GUARD cannot run \"{name}\": {of_module}"));
        // Asked twice: what is known of the server's own commands must not include it.
        for _ in 0..2 {
            assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} {command}")), refused);
        }
        assert_eq!(wire.say(&format!("LOCK.GUARD k b {fence} {command}")), Reply::Null);
    }
    if has_vectors {
        wire.say("MULTI");
        wire.say(&format!("LOCK.GUARD k a {fence} VSIM v VALUES 2 1 1"));
        let found = wire.say("EXEC").items().remove(0).items().remove(1);
        assert_eq!(found, Reply::Array(vec![Reply::bulk("e")]));
    }
    // Commands that are the server's own or this module's, or none at all.
    assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} STRLEN nothing")).items()[1], Reply::Int(0));
    assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} LOCK.CHECK k a")).items()[1], Reply::Int(fence));
    assert!(wire.say(&format!("LOCK.GUARD k a {fence} NOTHING x")).text().starts_with("ERR unknown command"));
}

#[test]
fn the_error_of_a_command_is_its_reply_and_never_that_of_the_next_one() {
    // Valkey leaves the error of these two behind, with a client that its next user shares.
    let server = Server::new();
    let (mut wire, mut other) = (Connection::resp2(&server), Connection::resp2(&server));
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    wire.say("LOCK.ACQUIRE job a");
    wire.say("HSET h field 1");
    for command in ["GETDEL h", "GETSET h x"] {
        assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} {command}")).code(), "WRONGTYPE", "{command}");
        assert!(matches!(wire.say(&format!("LOCK.GUARD k a {fence} INCR n")).items()[1], Reply::Int(_)), "{command}");
        assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} {command}")).code(), "WRONGTYPE", "{command}");
        // A client that waits is answered by such a client of the server, too.
        assert_eq!(other.say("LOCK.ACQUIRE job b BLOCK 20"), Reply::Null, "{command}");
        assert_eq!(other.say("PING"), Reply::simple("PONG"), "{command}");
    }
    for nested in ["MULTI", "EVAL"] {
        let guarded = format!("LOCK.GUARD k a {fence} GETDEL h");
        let reply = if nested == "MULTI" {
            wire.say("MULTI");
            wire.say(&guarded);
            wire.say("EXEC").items().remove(0)
        } else {
            wire.ask(&[
                "EVAL",
                "return redis.pcall(unpack(ARGV))",
                "0",
                "LOCK.GUARD",
                "k",
                "a",
                &fence.to_string(),
                "GETDEL",
                "h",
            ])
        };
        assert_eq!(reply.code(), "WRONGTYPE", "{nested}");
        assert_eq!(other.say("LOCK.ACQUIRE job b BLOCK 20"), Reply::Null, "{nested}");
        assert_eq!(other.say("PING"), Reply::simple("PONG"), "{nested}");
    }
}

#[test]
fn a_guard_confirms_the_grant_of_its_owner() {
    // What could go wrong: a client gets its grant and guards a write at once over another connection. The grant is
    // taken back, because the connection that waited closes in the same turn.
    let (server, mut conn) = Server::connected();
    let mut eye = Connection::resp2(&server);
    assert!(eye.say("LOCK.ACQUIRE k a").int() > 0);
    let waiter = Connection::waiting(&server, "LOCK.ACQUIRE k b BLOCK 0");
    let id = waiter.id();
    let script = "local f = redis.call('LOCK.CHECK', 'k', 'b'); return redis.call('LOCK.GUARD', 'k', 'b', string.format('%.0f', f), 'SET', 'd', '1')";
    eye.send_line("LOCK.RELEASE k a");
    eye.send(&["EVAL", script, "0"]);
    eye.send_line(&format!("CLIENT KILL ID {id}"));
    assert_eq!(eye.read(), Reply::Int(0));
    assert_eq!(eye.read().items()[1], Reply::simple("OK"));
    assert_eq!(eye.read(), Reply::Int(1));
    gone(&mut conn, id);
    assert_eq!(conn.lock_info("k").unwrap().holders[0].owner, b"b");
    drop(waiter);
}

#[test]
fn guards_are_not_nested_by_a_detour_either() {
    // What could go wrong: another module's command that calls commands lets a client nest guards until the stack is
    // full.
    let server = Server::setup().probe_module().start();
    let mut wire = Connection::resp2(&server);
    let fence = wire.say("LOCK.ACQUIRE k b").int();
    let guarded = |wire: &mut Connection| {
        let info = wire.say("INFO lock").text();
        let line = info.lines().find_map(|line| line.strip_prefix("lock_guarded:")).unwrap();
        line.parse::<u64>().unwrap()
    };
    // PANIC.CALL calls LOCK.GUARD k b <fence> 0, on behalf of nobody: that has no rights.
    let called = wire.say(&format!("PANIC.CALL LOCK.GUARD {fence}"));
    assert_eq!(called, Reply::Int(1), "an error");
    assert_eq!(guarded(&mut wire), 1);
    // Only a transaction gets as far as that.
    wire.say("MULTI");
    wire.say(&format!("LOCK.GUARD k b {fence} PANIC.CALL LOCK.GUARD {fence}"));
    let nested = wire.say("EXEC").items().remove(0);
    assert_eq!(nested, Reply::Array(vec![Reply::Int(fence), Reply::Int(1)]));
    assert_eq!(guarded(&mut wire), 2, "the inner one got as far as its command");
    // And the next is served.
    assert_eq!(wire.say(&format!("LOCK.GUARD k b {fence} PING")).items()[1], Reply::simple("PONG"));
}

#[test]
fn what_was_guarded_and_what_was_refused_is_counted() {
    let (server, mut wire) = Connection::alone();
    let mut conn = server.connect();
    let mut counts = || ["lock_guarded", "lock_guard_refused"].map(|field| conn.info_number("lock", field));
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    for (command, expected) in [
        (format!("LOCK.GUARD k a {fence} SET d 1"), [1, 0]),
        (format!("LOCK.GUARD k a {fence} LPUSH d 1"), [2, 0]),
        (format!("LOCK.GUARD k b {fence} SET d 1"), [2, 1]),
        ("LOCK.GUARD k a 5 SET d 1".to_owned(), [2, 2]),
        (format!("LOCK.GUARD k a {fence} SELECT 1"), [2, 2]),
        (format!("LOCK.CHECK k a FENCE {fence}"), [2, 2]),
    ] {
        wire.say(&command);
        assert_eq!(counts(), expected, "{command}");
    }
}
