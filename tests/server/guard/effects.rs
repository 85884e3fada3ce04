//! What a guarded command leaves behind: what replicas and files receive, what trackers hear, and what becomes of the
//! lock when the command changes the lock itself.

use crate::harness::connection::{Connection, Reply};
use crate::harness::texts::WRONGTYPE;
use crate::harness::transcript::{Row, Stage};
use crate::waiting::effects::{self, Scene};
use testbed::Server;

#[test]
fn a_guarded_command_is_sent_as_itself_and_a_guard_never() {
    // What could go wrong: a replica judges the lock anew, by its own clock, and does not run what the primary ran.
    let server = effects::server();
    let mut scene = Scene::new(&server);
    scene.check(&[("LOCK.ACQUIRE k a PX 600000", "#1")], &["LOCK.HOLD k a 0 1 #1 ~ 600000"]);
    scene.check(&[("LOCK.GUARD k a #1 SET d 1", "[#1 OK]")], &["SET d 1"]);
    // Refused, failed, or nothing to send.
    scene.check(
        &[
            ("LOCK.GUARD k b #1 SET d x", "nil"),
            ("LOCK.GUARD k a #1+1 SET d x", "nil"),
            ("LOCK.GUARD k a #1 GET d", "[#1 1]"),
            ("LOCK.GUARD k a #1 DEL nothing", "[#1 0]"),
            ("LOCK.GUARD k a #1 LPUSH d x", WRONGTYPE),
        ],
        &[],
    );
    // As the server rewrites it.
    scene.check(&[("LOCK.GUARD k a #1 INCRBYFLOAT d 0.5", "[#1 1.5]")], &["SET d 1.5 KEEPTTL"]);
    scene.check(&[("SADD s m", "1"), ("LOCK.GUARD k a #1 SPOP s", "[#1 m]")], &["SADD s m", "SREM s m"]);
    // Within a transaction, with the rest of it.
    scene.check(
        &[
            ("w: MULTI", "OK"),
            ("w: LOCK.GUARD k a #1 SET d 2", "QUEUED"),
            ("w: LOCK.GUARD k b #1 SET d x", "QUEUED"),
            ("w: SET e 3", "QUEUED"),
            ("w: EXEC", "[[#1 OK] nil OK]"),
        ],
        &["MULTI", "SET d 2", "SET e 3", "EXEC"],
    );
    // A command of this module sends its record.
    scene.check(&[("LOCK.GUARD k a #1 LOCK.ACQUIRE j a PX 600000", "[#1 #2]")], &["LOCK.HOLD j a 0 1 #2 ~ 600000"]);
    scene.check(&[("LOCK.GUARD k a #1 LOCK.RELEASE k a", "[#1 0]")], &["LOCK.HOLD k a 0 0 #1"]);
}

#[test]
fn what_a_guard_ends_and_what_it_runs_are_sent_as_one() {
    // What could go wrong: a replica that takes over has the write, and still the lease that it was judged by.
    let server = effects::server();
    let mut scene = Scene::new(&server);
    scene.check(&[("s: LOCK.ACQUIRE k a PX 600000 SESSION 60000", "#1")], &["LOCK.HOLD k a 0 1 #1 ~ 600000"]);
    // In one turn the connection closes, which cuts the lease, and another one guards a command.
    let id = scene.stage.waiter("s").id();
    let fence = server.connect().lock_info("k").unwrap().holders[0].fence;
    let mut wire = Connection::resp2(&server);
    wire.send_line(&format!("CLIENT KILL ID {id}\r\nLOCK.GUARD k a {fence} SET d 1"));
    assert_eq!((wire.read(), wire.read().items()[1].clone()), (Reply::Int(1), Reply::simple("OK")));
    scene.check(&[], &["MULTI", "LOCK.HOLD k a 0 1 #1 ~ ~", "SET d 1", "EXEC"]);
    // A lease that is over ends, and nothing is run.
    scene.check(
        &[("LOCK.ACQUIRE j b PX 40", "#2"), ("DEBUG SLEEP 0.1", "OK"), ("LOCK.GUARD j b #2 SET d x", "nil")],
        &["LOCK.HOLD j b 0 1 #2 ~ 40", "LOCK.HOLD j b 0 0 #2"],
    );
}

/// Commands that change the lock that guards them.
const SUICIDES: &[(&str, &str, &str)] = &[
    ("DEL k", "1", "nil"),
    ("UNLINK k", "1", "nil"),
    ("FLUSHALL", "OK", "nil"),
    ("FLUSHALL ASYNC", "OK", "nil"),
    ("FLUSHDB", "OK", "nil"),
    ("RENAME k moved", "OK", "nil"),
    ("MOVE k 1", "1", "nil"),
    ("SWAPDB 0 1", "OK", "nil"),
    ("SET k text", "OK", WRONGTYPE),
    ("COPY d k REPLACE", "1", WRONGTYPE),
    ("PEXPIRE k 1", "1", "nil"),
    ("LOCK.RELEASE k a", "0", "nil"),
    ("LOCK.BREAK k", "1", "nil"),
    ("LOCK.EXTEND k a PX 600000", "#1", "#1"),
    ("LOCK.ACQUIRE k a", "#1", "#1"),
    ("LOCK.ACQUIRE j a", "#2", "#1"),
    ("LOCK.RW k a READ", "#1", "#1"),
    ("LOCK.CHECK k a", "#1", "#1"),
    ("LOCK.MACQUIRE 2 j k a", "[#2 #1]", "#1"),
    ("LOCK.MRELEASE 1 k a", "[0]", "nil"),
];

#[test]
fn a_guarded_command_may_change_its_own_lock() {
    // What could go wrong: the module has the key open, or is at work itself, and the server crashes. Or waiters are
    // not served.
    for (command, reply, after) in SUICIDES {
        let server = Server::new();
        let mut stage = Stage::new(&server);
        stage.play(&[
            ("LOCK.ACQUIRE k a PX 600000", "#1"),
            ("SET d 1", "OK"),
            ("b: LOCK.ACQUIRE w b PX 600000", "#2"),
            ("c: LOCK.ACQUIRE k c PX 600000 BLOCK 0", "waits"),
        ]);
        let fence = server.connect().lock_info("k").unwrap().holders[0].fence.to_string();
        let words: Vec<&str> = ["LOCK.GUARD", "k", "a", &fence].into_iter().chain(command.split(' ')).collect();
        let got = stage.ask(&words).items();
        assert_eq!(stage.name_of(got[0].int()), "#1", "{command}");
        // Fence 2 was given to b.
        let expected = reply.replace("#2", "#3");
        let shown = stage.show(&got[1]);
        assert_eq!(shown, expected, "{command}");
        let gone = *after == "nil" && *command != "PEXPIRE k 1";
        if gone {
            let row: Row = ("c:", "#3");
            stage.play(&[row]);
        }
        let mut conn = server.connect();
        assert_eq!(conn.get::<String>(&["PING"]), "PONG", "{command}");
        if *command == "PEXPIRE k 1" {
            continue;
        }
        match stage.ask(&["LOCK.CHECK", "k", "a", "FENCE", &fence]) {
            Reply::Error(text) => assert_eq!(text, *after, "{command}"),
            reply => assert_eq!(stage.show(&reply), *after, "{command}"),
        }
    }
}

#[test]
fn trackers_and_watchers_hear_of_a_guarded_write() {
    let server = Server::new();
    let (mut cache, mut wire) = (Connection::resp3(&server), Connection::resp2(&server));
    cache.say("CLIENT TRACKING ON");
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    cache.say("GET d");
    wire.say("WATCH d");
    let mut other = Connection::resp2(&server);
    other.say(&format!("LOCK.GUARD k a {fence} SET d 1"));
    let invalidation = Reply::Push(vec![Reply::bulk("invalidate"), Reply::Array(vec![Reply::bulk("d")])]);
    assert_eq!(cache.read(), invalidation);
    wire.say("MULTI");
    wire.say("PING");
    assert_eq!(wire.say("EXEC"), Reply::Other("*-1".to_owned()));
    // The lock was not changed.
    wire.say("WATCH k");
    other.say(&format!("LOCK.GUARD k a {fence} SET d 2"));
    other.say(&format!("LOCK.GUARD k b {fence} SET d 2"));
    wire.say("MULTI");
    wire.say("PING");
    assert_eq!(wire.say("EXEC").items().len(), 1);
}

#[test]
fn guarded_writes_are_there_after_a_restart_and_on_replicas() {
    let (mut primary, replica) =
        (Server::setup().option("appendonly", "yes").option("appendfsync", "always").start(), Server::new());
    replica.follow(&primary);
    let mut wire = Connection::resp2(&primary);
    let fence = wire.say("LOCK.ACQUIRE k a PX 600000").int();
    for number in 0..100 {
        assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} INCR d")).items()[1], Reply::Int(number + 1));
    }
    replica.catch_up(&primary);
    assert_eq!(replica.connect().int(&["GET", "d"]), Some(100));
    primary.crash();
    let mut wire = Connection::resp2(&primary);
    assert_eq!(wire.say("GET d"), Reply::bulk("100"));
    assert_eq!(wire.say(&format!("LOCK.GUARD k a {fence} INCR d")).items()[1], Reply::Int(101));
}

#[test]
fn a_slow_log_and_the_statistics_name_the_command_and_the_guard() {
    // What could go wrong: an operator who looks for what made the server slow finds nothing but guards.
    let server = Server::setup().option("slowlog-log-slower-than", "0").start();
    let (mut wire, mut conn) = (Connection::resp2(&server), server.connect());
    let fence = wire.say("LOCK.ACQUIRE k a").int();
    wire.say("SLOWLOG RESET");
    wire.say(&format!("LOCK.GUARD k a {fence} SET d 1"));
    let names: Vec<String> = wire
        .say("SLOWLOG GET")
        .items()
        .into_iter()
        .map(|entry| entry.items()[3].clone().items()[0].text().to_uppercase())
        .collect();
    for name in ["LOCK.GUARD", "SET"] {
        assert!(names.iter().any(|logged| logged == name), "{names:?}");
    }
    for name in ["lock.guard", "set"] {
        assert!(conn.info("commandstats", &format!("cmdstat_{name}")).starts_with("calls=1,"), "{name}");
    }
}
