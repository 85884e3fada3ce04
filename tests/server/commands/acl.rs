//! What a user may do with locks, by categories where the server lets a module have them, by names everywhere, and by
//! key patterns. How the commands are put into categories is in commands/watch.rs.

use crate::commands::watch::has_own_categories;
use crate::harness::connection::{Connection, Reply};
use std::collections::BTreeSet;
use testbed::{Server, wait_for};

/// What every user of locks needs, on keys of its own.
const LOCKING: &[&str] = &[
    "LOCK.ACQUIRE lock:k a",
    "LOCK.ACQUIRE lock:k a BLOCK 10 SESSION 60000 NOTE x RETRY 1",
    "LOCK.RW lock:r a READ",
    "LOCK.SHARE lock:s a 5 TAKE 2 QUEUE 1000",
    "LOCK.EXTEND lock:k a PX 5000",
    "LOCK.CHECK lock:k a",
    "LOCK.INFO lock:k",
    "LOCK.RELEASE lock:k a ALL",
    "LOCK.MACQUIRE 2 lock:k lock:r a",
    "LOCK.MEXTEND 2 lock:k lock:r a PX 5000",
    "LOCK.MRELEASE 2 lock:k lock:r a WRITE",
    "LOCK.MRELEASE 2 lock:k lock:r a ALL",
];

/// What is the operators' and the primary's.
const NOT_HIS: &[&str] =
    &["LOCK.BREAK lock:k", "LOCK.BREAK lock:k a", "LOCK.TOP", "LOCK.LOG", "LOCK.LOG RESET", "LOCK.HOLD lock:k a 0 0"];

/// What a client library sends besides, here where there is no cluster and no replica.
const CONNECTING: &[&str] = &[
    "PING",
    "SELECT 0",
    "WAIT 0 0",
    "COMMAND COUNT",
    "COMMAND DOCS lock.acquire",
    "CLIENT SETNAME worker",
    "CLUSTER SLOTS",
    "ASKING",
];

/// The password in the lines of docs/operations/acl.md.
pub(crate) const PASSWORD: &str = "change-me";

const PAGE: &str = include_str!("../../../docs/operations/acl.md");

/// Lines of that page that make a user of this name, in order: the servers they are for, and the line.
fn page_lines(user: &str) -> Vec<(&'static str, &'static str)> {
    let lines: Vec<&str> = PAGE.lines().collect();
    let pairs = lines.windows(2).filter(|pair| pair[1].starts_with(&format!("ACL SETUSER {user} ")));
    pairs.map(|pair| (pair[0].rsplit_once(": ").expect("for which servers").1, pair[1])).collect()
}

/// The same, for this server.
fn page_lines_here(server: &Server, user: &str) -> Vec<&'static str> {
    let mut wire = Connection::resp2(server);
    let by_category = has_own_categories(&mut wire);
    let [no_touch] = &wire.say("COMMAND INFO client|no-touch").items()[..] else { panic!("one command") };
    let no_touch = !matches!(no_touch, Reply::Null | Reply::Other(_));
    let is_for = |servers| match servers {
        "Redis from 7.4 on, Valkey" => by_category,
        "Redis from 7.2 on, Valkey" => no_touch,
        // Where there are categories, commands can be named as well.
        "any server" | "Redis 7.0 and 7.2" | "Redis 7.0" => true,
        other => panic!("which servers are meant by {other}?"),
    };
    let lines: Vec<&str> =
        page_lines(user).into_iter().filter(|(servers, _)| is_for(servers)).map(|(_, line)| line).collect();
    assert!(!lines.is_empty(), "no line of {user} is for this server");
    lines
}

/// The lines by which an application's user is made on this server.
pub(crate) fn application_lines(server: &Server) -> Vec<&'static str> {
    page_lines_here(server, "app")
}

/// A connection of the user that a line of that page makes.
fn user_of_page(server: &Server, line: &str) -> Connection {
    assert_eq!(Connection::resp2(server).say(line).text(), "OK", "{line}");
    let name = line.split(' ').nth(2).unwrap();
    let mut wire = Connection::resp2(server);
    refused_with(&mut wire, &format!("AUTH {name} another"), "WRONGPASS ");
    assert_eq!(wire.say(&format!("AUTH {name} {PASSWORD}")).text(), "OK", "{line}");
    wire
}

/// Makes a user with these rights, and nothing else; a connection of this user.
fn user(server: &Server, rights: &str) -> Connection {
    let mut admin = Connection::resp2(server);
    assert_eq!(admin.say(&format!("ACL SETUSER user reset on nopass {rights}")).text(), "OK", "{rights}");
    let mut wire = Connection::resp2(server);
    assert_eq!(wire.say("AUTH user any").text(), "OK");
    wire
}

#[track_caller]
fn refused(wire: &mut Connection, command: &str) {
    refused_with(wire, command, "NOPERM ");
}

#[track_caller]
fn refused_with(wire: &mut Connection, command: &str, code: &str) {
    let Reply::Error(text) = wire.say(command) else { panic!("{command} was served") };
    assert!(text.starts_with(code), "{command}: {text}");
}

#[track_caller]
fn not_refused(wire: &mut Connection, command: &str) {
    let reply = wire.say(command);
    assert!(!matches!(&reply, Reply::Error(text) if text.starts_with("NOPERM ")), "{command}: {reply:?}");
}

#[test]
fn users_of_the_page_can_do_what_they_are_for_and_no_more() {
    // What could go wrong: a user that may lock may also take others' locks away, or see their owners on all keys. Or a
    // user made by the page's line cannot log in, or not do what a client library does first.
    let server = Server::new();
    let mut admin = Connection::resp2(&server);
    for line in application_lines(&server) {
        let mut wire = user_of_page(&server, line);
        for command in LOCKING {
            let reply = wire.say(command);
            assert!(!matches!(reply, Reply::Error(_) | Reply::Null), "{command} with {line}: {reply:?}");
        }
        for command in CONNECTING {
            not_refused(&mut wire, command);
        }
        // As a helper does for its waits.
        not_refused(&mut wire, "LOCK.ACQUIRE lock:n a QUEUE 1000 NOTIFY lock:notify:x");
        not_refused(&mut wire, "PUBLISH lock:notify:x a");
        refused(&mut wire, "PUBLISH secrets x");
        // Crashes some servers: docs/compatibility.md. Redis 7.0 does not know it.
        assert!(matches!(wire.say("CLIENT NO-TOUCH ON"), Reply::Error(_)));
        refused(&mut wire, "CLIENT UNBLOCK 1");
        refused(&mut wire, "LOCK.ACQUIRE other:k a");
        assert_eq!(wire.say("LOCK.INFO lock:k"), Reply::Null);
        assert!(admin.say("LOCK.ACQUIRE lock:k other").int() > 0);
        for command in NOT_HIS {
            refused(&mut wire, command);
        }
        // Nor by a detour.
        refused(&mut wire, "MULTI");
        refused(&mut wire, "EVAL return 1 0");
        refused(&mut wire, "SET lock:k x");
        refused(&mut wire, "DEL lock:k");
        refused(&mut wire, "CONFIG SET lock.max-keys 5");
        assert_eq!(admin.say("LOCK.BREAK lock:k").int(), 1);
    }
}

#[test]
fn the_operator_of_the_page_can_look_at_everything_and_break_a_lock() {
    // What could go wrong: the operator on call at night may not do what the page says.
    let server = Server::new();
    let [line] = page_lines_here(&server, "operator")[..] else { panic!("one line") };
    let mut wire = user_of_page(&server, line);
    let mut admin = Connection::resp2(&server);
    assert!(admin.say("LOCK.ACQUIRE k a").int() > 0);
    let may = "LOCK.INFO k; SELECT 0; LOCK.TOP; LOCK.LOG; LOCK.LOG RESET; INFO lock; SCAN 0 TYPE redislock; MEMORY USAGE k; \
         CLIENT LIST ID 1; SLOWLOG GET; LATENCY HISTOGRAM lock.acquire; PING";
    for command in may.split("; ") {
        let reply = wire.say(command);
        assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
    }
    assert_eq!(wire.say("LOCK.BREAK k").int(), 1);
    let may_not = "LOCK.ACQUIRE k a; LOCK.HOLD k a 0 0; SET k v; GET k; DEL k; CLIENT UNBLOCK 1; CLIENT KILL ID 1; SLOWLOG \
         RESET; CONFIG SET lock.max-keys 5; SUBSCRIBE secrets; PSUBSCRIBE *";
    for command in may_not.split("; ") {
        refused(&mut wire, command);
    }
    assert!(matches!(wire.say("CLIENT NO-TOUCH ON"), Reply::Error(_)));
    not_refused(&mut wire, "SUBSCRIBE __keyevent@0__:lock.lapse");
    not_refused(&mut wire, "PSUBSCRIBE __keyevent@*__:lock.lapse");
}

/// The users of the page but those of applications and operators: what each may do and what it may not, while it holds
/// its locks.
const ROLES: &[(&str, &str, &str)] = &[
    (
        "admin",
        "CONFIG SET lock.max-keys 5; SET s x; DEL s; LOCK.ACQUIRE k b; LOCK.BREAK k; LOCK.LOG RESET; ACL LIST",
        "LOCK.HOLD k a 0 0; CLIENT UNBLOCK 1",
    ),
    (
        "writer",
        "LOCK.ACQUIRE lock:w a; LOCK.RELEASE lock:w a; LOCK.ACQUIRE lock:w a; LOCK.GUARD lock:w a FENCE SET data:w x; \
         LOCK.GUARD lock:w a FENCE GET data:w; LOCK.EXTEND lock:w a PX 5000; GET data:w",
        "LOCK.GUARD lock:w a FENCE DEL data:w; LOCK.GUARD lock:w a FENCE SET s x; LOCK.BREAK lock:k; SET s x",
    ),
    (
        "jobs",
        "LOCK.ACQUIRE lock:nightly a; LOCK.CHECK lock:nightly a; LOCK.EXTEND lock:nightly a PX 5000; LOCK.INFO \
         lock:nightly; LOCK.RELEASE lock:nightly a; LOCK.RW lock:nightly a READ; LOCK.RELEASE lock:nightly a; \
         LOCK.SHARE lock:nightly a 3; LOCK.RELEASE lock:nightly a",
        "LOCK.ACQUIRE lock:k b; LOCK.BREAK lock:nightly; LOCK.GUARD lock:nightly a 1 GET data:w; GET data:w",
    ),
    (
        "waiter",
        "LOCK.ACQUIRE lock:w a BLOCK 10 QUEUE 1000; LOCK.RELEASE lock:w a",
        "LOCK.EXTEND lock:k a PX 5000; LOCK.INFO lock:k; LOCK.RW lock:w a READ; LOCK.BREAK lock:k; LOCK.ACQUIRE k b",
    ),
    (
        "notified",
        "LOCK.ACQUIRE lock:w a QUEUE 1000 NOTIFY lock:notify:app1:x; LOCK.RELEASE lock:w a; PUBLISH \
         lock:notify:app1:x a",
        "LOCK.ACQUIRE lock:w a QUEUE 1000 NOTIFY lock:notify:app2:x; LOCK.ACQUIRE lock:w a QUEUE 1000 NOTIFY secrets; LOCK.BREAK lock:k; PUBLISH secrets x; SUBSCRIBE secrets",
    ),
    (
        "notified-in-cluster",
        "LOCK.ACQUIRE lock:w a QUEUE 1000; LOCK.RELEASE lock:w a; SPUBLISH lock:notify:app1:x a",
        "LOCK.ACQUIRE lock:w a QUEUE 1000 NOTIFY lock:notify:app1:x; LOCK.BREAK lock:k; PUBLISH lock:notify:app1:x a; SPUBLISH secrets x; SSUBSCRIBE secrets",
    ),
    (
        "watcher",
        "LOCK.INFO lock:k; PING",
        "LOCK.ACQUIRE lock:w a; LOCK.RELEASE lock:k a; LOCK.INFO k; LOCK.TOP; PSUBSCRIBE *; SUBSCRIBE secrets",
    ),
    (
        "resource",
        "LOCK.CHECK lock:k a",
        "LOCK.CHECK k a; LOCK.INFO lock:k; LOCK.RELEASE lock:k a; LOCK.ACQUIRE lock:w a; GET data:w",
    ),
    (
        "monitor",
        "INFO lock; INFO ALL; PING",
        "LOCK.INFO lock:k; LOCK.TOP; GET data:w; SET s x; CONFIG GET lock.max-keys; EVAL_RO return_1 0",
    ),
    (
        "sentinel",
        "PING; INFO; ROLE; PUBLISH __sentinel__:hello x; CLIENT SETNAME sentinel-cmd",
        "LOCK.ACQUIRE lock:w a; LOCK.INFO lock:k; LOCK.TOP; GET data:w; PUBLISH secrets x; CONFIG GET dir; CONFIG SET lock.max-keys 5; FLUSHALL",
    ),
    (
        "replica",
        "PING; REPLCONF capa eof",
        "LOCK.ACQUIRE lock:w a; LOCK.INFO lock:k; GET data:w; INFO lock; CONFIG GET dir",
    ),
];

#[test]
fn each_user_of_the_page_may_do_what_it_is_for_and_no_more() {
    // What could go wrong: a line that this server refuses, or that gives a program more than the page says.
    let server = Server::new();
    let mut admin = Connection::resp2(&server);
    for (name, may, may_not) in ROLES {
        for line in page_lines_here(&server, name) {
            assert!(admin.say("LOCK.ACQUIRE lock:k a").int() > 0);
            let mut wire = user_of_page(&server, line);
            let mut fence = 0;
            for command in may.split("; ") {
                let reply = wire.say(&command.replace("FENCE", &fence.to_string()));
                assert!(!matches!(reply, Reply::Error(_)), "{name}: {command}: {reply:?}");
                if command.starts_with("LOCK.ACQUIRE") {
                    fence = reply.int();
                }
            }
            for command in may_not.split("; ") {
                let reply = wire.say(&command.replace("FENCE", &fence.to_string()));
                let refused = matches!(&reply, Reply::Error(text) if text.starts_with("NOPERM "));
                assert!(refused, "{name}: {command}: {reply:?}");
            }
            assert_eq!(admin.say("LOCK.BREAK lock:k").int(), 1, "{name} has taken the lock away");
            admin.say("LOCK.BREAK lock:w");
            assert_eq!(admin.say(&format!("ACL DELUSER {name}")).int(), 1);
        }
    }
}

#[test]
fn every_user_of_the_page_is_tried() {
    // What could go wrong: a line that is never typed before an operator does.
    let there: BTreeSet<&str> =
        PAGE.lines().filter_map(|line| line.strip_prefix("ACL SETUSER ")?.split(' ').next()).collect();
    let tried: BTreeSet<&str> = ROLES.iter().map(|role| role.0).chain(["app", "operator"]).collect();
    assert_eq!(there, tried);
}

#[test]
fn a_watcher_of_the_page_hears_that_a_lock_is_free_and_a_monitor_runs_the_script() {
    let server = Server::new();
    let mut admin = Connection::resp2(&server);
    for user in ["watcher", "monitor", "replica"] {
        assert_eq!(admin.say(page_lines_here(&server, user)[0]).text(), "OK");
    }
    let mut watcher = Connection::resp2(&server);
    assert_eq!(watcher.say(&format!("AUTH watcher {PASSWORD}")).text(), "OK");
    not_refused(&mut watcher, "PSUBSCRIBE __keyevent@*__:lock.*");
    not_refused(&mut watcher, "SUBSCRIBE __keyevent@0__:lock.release");

    let log_in = format!("AUTH monitor {PASSWORD}");
    let mut conn = server.connect();
    conn.ok(&log_in.split(' ').collect::<Vec<_>>());
    let script = include_str!("../../../contrib/redis_exporter/lock.lua");
    let pairs: Vec<String> = conn.get(&["EVAL", script, "0"]);
    assert!(pairs.contains(&"lock_leases".to_owned()));
    // A script gives it no command that it has not.
    let stolen = conn.call(&["EVAL", "return redis.call('GET', 'k')", "0"]);
    assert!(stolen.is_err(), "{stolen:?}");

    let replica = Server::new();
    for (name, value) in [("masteruser", "replica"), ("masterauth", PASSWORD)] {
        replica.connect().ok(&["CONFIG", "SET", name, value]);
    }
    // Nobody gets in without a name.
    assert_eq!(admin.say("ACL SETUSER default resetpass").text(), "OK");
    replica.connect().ok(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let mut follower = replica.connect();
    wait_for("the link", || {
        let text: String = follower.get(&["INFO", "replication"]);
        text.contains("master_link_status:up")
    });
}

#[test]
fn the_operators_commands_can_be_given_to_an_operator() {
    // What could go wrong: a right that no user but the default one can have.
    let server = Server::new();
    let mut wire = user(&server, "~* +lock.break +lock.top +lock.log +lock.info");
    assert!(Connection::resp2(&server).say("LOCK.ACQUIRE k a").int() > 0);
    assert_eq!(wire.say("LOCK.BREAK k").int(), 1);
    for command in ["LOCK.TOP", "LOCK.LOG"] {
        assert!(matches!(wire.say(command), Reply::Array(_)), "{command}");
    }
    refused(&mut wire, "LOCK.ACQUIRE k a");
    refused(&mut wire, "LOCK.HOLD k a 0 0");
}

#[test]
fn a_user_without_the_key_is_refused_whatever_the_command() {
    // What could go wrong: a command whose keys the server does not find is a way around every pattern.
    let server = Server::new();
    let mut admin = Connection::resp2(&server);
    assert!(admin.say("LOCK.ACQUIRE other:k a").int() > 0);
    let mut wire = user(&server, "~lock:* +@all");
    for command in LOCKING {
        refused(&mut wire, &command.replace("lock:", "other:"));
    }
    for command in [
        "LOCK.BREAK other:k",
        "LOCK.HOLD other:k a 0 0",
        // One of the keys is enough, wherever it stands.
        "LOCK.MACQUIRE 2 lock:k other:k a",
        "LOCK.MACQUIRE 2 other:free lock:k a",
        "LOCK.MACQUIRE 3 lock:k lock:l other:k a BLOCK 5",
        "LOCK.MRELEASE 2 lock:k other:k a",
        "LOCK.MEXTEND 2 lock:k other:k a PX 5",
    ] {
        refused(&mut wire, command);
    }
    assert_eq!(admin.say("DBSIZE").int(), 1);
    assert_eq!(admin.say("LOCK.RELEASE other:k a").int(), 0);
}

#[test]
fn a_number_of_keys_that_lies_opens_no_door() {
    // What could go wrong: the server reads keys where the number says, and the module reads others.
    let server = Server::new();
    let mut admin = Connection::resp2(&server);
    assert!(admin.say("LOCK.ACQUIRE other:k a").int() > 0);
    let before = admin.say("DEBUG DIGEST-VALUE other:k");
    let mut wire = user(&server, "~lock:* +@all");
    let lies = "0 -1 01 +1 x 1.0 3 9 64 65 4294967295 4294967296 4294967297 18446744073709551617";
    for number in lies.split(' ') {
        for command in ["LOCK.MACQUIRE", "LOCK.MRELEASE", "LOCK.MEXTEND"] {
            for keys in ["other:k", "lock:k other:k", "other:free other:k"] {
                let lease = if command == "LOCK.MEXTEND" { " PX 5" } else { "" };
                let reply = wire.say(&format!("{command} {number} {keys} a{lease}"));
                assert!(matches!(reply, Reply::Error(_)), "{command} {number} {keys}: {reply:?}");
            }
        }
    }
    // Where the number is too small, what it leaves out is no key for the module either.
    assert_eq!(wire.say("LOCK.MACQUIRE 1 lock:k other:k").items().len(), 1);
    assert_eq!(admin.say("LOCK.INFO lock:k OWNER other:k").field("holding").int(), 1);
    assert_eq!(wire.say("LOCK.MRELEASE 1 lock:k other:k ALL").items(), [Reply::Int(0)]);
    assert_eq!(wire.say("LOCK.MACQUIRE 1 lock:k other:k a"), Reply::Error(r#"ERR unknown option "a""#.to_owned()));
    assert_eq!((admin.say("DBSIZE").int(), admin.say("DEBUG DIGEST-VALUE other:k")), (1, before));
}

#[test]
fn to_see_a_lock_needs_the_right_to_read_and_to_take_one_both() {
    // What could go wrong: a user that may only read can lock. Or a user that may only write learns owners and fences
    // by which to release.
    let server = Server::new();
    assert!(Connection::resp2(&server).say("LOCK.ACQUIRE lock:k x").int() > 0);
    let mut reader = user(&server, "%R~lock:* +@all");
    assert!(matches!(reader.say("LOCK.INFO lock:k"), Reply::Array(_)));
    refused(&mut reader, "LOCK.INFO other:k");
    for command in LOCKING.iter().chain(["LOCK.BREAK lock:k", "LOCK.HOLD lock:k x 0 0"].iter()) {
        match command.split(' ').next() {
            Some("LOCK.INFO" | "LOCK.CHECK") => not_refused(&mut reader, command),
            _ => refused(&mut reader, command),
        }
    }
    // All of them read before they change.
    let mut writer = user(&server, "%W~lock:* +@all");
    for command in LOCKING.iter().chain(["LOCK.BREAK lock:k", "LOCK.HOLD lock:k x 0 0"].iter()) {
        refused(&mut writer, command);
    }
    let mut both = user(&server, "%RW~lock:* +@all");
    assert_eq!(both.say("LOCK.BREAK lock:k").int(), 1);
    for command in LOCKING {
        assert!(!matches!(both.say(command), Reply::Error(_)), "{command}");
    }
}
