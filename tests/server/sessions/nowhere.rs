//! Where there is no connection that a hold could be bound to: scripts, functions, other modules.

use crate::harness::connection::{Connection, Way};
use crate::harness::transcript::{Row, Stage, play_in};
use crate::sessions::binding::only_hold;
use testbed::Server;

const NOWHERE: &str = "ERR SESSION needs a connection: a script, a function or another module has none of its own";

/// Refused without a trace; what does not ask for it goes on as usual.
const REFUSED: &[Row] = &[
    ("LOCK.ACQUIRE k a SESSION 0", NOWHERE),
    ("LOCK.ACQUIRE k a SESSION 1000 BLOCK 0 NOTE x", NOWHERE),
    ("LOCK.RW k a READ SESSION 0", NOWHERE),
    ("LOCK.MACQUIRE 2 k l a SESSION 0", NOWHERE),
    ("LOCK.ACQUIRE k * SESSION 0", NOWHERE),
    ("EXISTS k l", "0"),
    ("LOCK.ACQUIRE k a", "#1"),
    ("LOCK.EXTEND k a PX 5000 SESSION 0", NOWHERE),
    ("LOCK.MEXTEND 1 k a PX 5000 SESSION 0", NOWHERE),
    ("LOCK.ACQUIRE k a SESSION 0", NOWHERE),
    ("LOCK.EXTEND k b PX 5000 SESSION 0", NOWHERE),
    ("LOCK.ACQUIRE k a SESSION x", "ERR SESSION must be a whole number from 0 to 315360000000"),
    ("LOCK.INFO k", "[mode write fence #1 holding 1 holders [[owner a mode write writes 1 fence #1]]]"),
    ("LOCK.RELEASE k a", "0"),
];

#[test]
fn a_script_or_a_function_cannot_bind_a_hold() {
    // They run as clients without a connection, whose numbers are used again. The hold would never end, or end with
    // another client's connection.
    let server = Server::setup().option("appendonly", "yes").start();
    play_in(&server, &[Way::Script, Way::Function], REFUSED);
    let mut conn = server.connect();
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
}

#[test]
fn within_a_transaction_a_script_cannot_bind_a_hold_either() {
    // There the command comes from a transaction, which may bind, and from a script, which may not.
    let server = Server::new();
    let mut stage = Stage::new(&server);
    let mut wire = Connection::resp2(&server);
    wire.load_function();
    let script = "EVAL \"return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'a', 'SESSION', '0')\" 1 k";
    stage.play(&[
        ("s: MULTI", "OK"),
        (script, NOWHERE),
        (format!("s: {script}").leak(), "QUEUED"),
        ("s: FCALL pass_on 0 LOCK.ACQUIRE k a SESSION 0", "QUEUED"),
        ("s: LOCK.ACQUIRE l a PX 600000 SESSION 0", "QUEUED"),
        ("s: EXEC", format!("[{NOWHERE} {NOWHERE} #1]").leak()),
        ("EXISTS k", "0"),
    ]);
    let bound = only_hold(&mut server.connect(), "l").client;
    assert_eq!(bound, Some(stage.waiter("s").id()));
}

#[test]
fn another_module_cannot_bind_a_hold() {
    // Its calls have a client each, which is never closed.
    const ERROR: i64 = 1;
    const INTEGER: i64 = 2;
    let (server, mut conn) = Server::setup().probe_module().connected();
    let mut wire = Connection::resp2(&server);
    for way in [Way::Plain, Way::Exec, Way::Script] {
        let kind = wire.ask_by(way, &["PANIC.CALL", "LOCK.ACQUIRE", "SESSION"]).int();
        assert_eq!(kind, ERROR, "{way:?}");
        assert_eq!(conn.int(&["EXISTS", "k"]), Some(0), "{way:?}");
    }
    assert_eq!(conn.int(&["PANIC.CALL", "LOCK.ACQUIRE", "PX"]), Some(ERROR), "no lease of 0");
    assert_eq!(conn.int(&["PANIC.CALL", "LOCK.ACQUIRE", "BLOCK"]), Some(INTEGER));
    assert_eq!(conn.info("lock", "lock_session_holds"), "0");
}
