//! The server's own tools, run on locks: its command line client, and the commands that search for what is big, slow or
//! unused. A type and commands that they do not know must not stop them.

use crate::harness::connection::{Connection, Reply};
use crate::harness::servers::not_run;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::{Server, wait_for};

/// The command line client that belongs to the server under test.
pub(crate) fn client() -> PathBuf {
    let server = std::env::var_os("REDIS_LOCK_SERVER").map_or_else(|| PathBuf::from("redis-server"), PathBuf::from);
    let name = server.file_name().unwrap().to_string_lossy().replace("-server", "-cli");
    server.parent().unwrap_or(Path::new("")).join(name)
}

/// What it says when it is run with these arguments; fails when it fails.
fn run(server: &Server, args: &[&str]) -> String {
    let mut command = Command::new(client());
    command.args(["-h", "127.0.0.1", "-p", &server.port().to_string()]).args(args);
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", client().display()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} ended with {}:\n{said}{complaints}", output.status);
    said
}

/// Ten locks, one of many readers, and a string.
fn filled() -> Server {
    let (server, mut conn) = Server::connected();
    for number in 0..9 {
        conn.int(&["LOCK.ACQUIRE", &format!("lock{number}"), "a", "PX", "600000"]).expect("free");
    }
    for reader in 0..200 {
        conn.int(&["LOCK.RW", "crowd", &format!("reader {reader}"), "READ", "PX", "600000"]).expect("free");
    }
    conn.ok(&["SET", "s", "text"]);
    server
}

/// Whether it is said to be the biggest; from Redis 8.0 on the quotes are others.
fn names_crowd(said: &str) -> bool {
    said.lines().any(|line| line.starts_with("Biggest redislock found ") && line.contains(r#""crowd""#))
}

#[test]
fn the_tools_that_look_for_big_keys_count_locks_and_go_on() {
    // What could go wrong: the tool ends at the first key of a type that it does not know.
    let server = filled();
    let said = run(&server, &["--bigkeys"]);
    assert!(said.contains("Sampled 11 keys") && said.contains("10 redislocks with 0 ?"), "{said}");
    assert!(said.contains("Biggest string found"), "{said}");
    let said = run(&server, &["--memkeys"]);
    assert!(said.contains("10 redislocks with") && names_crowd(&said), "{said}");
    if !not_run("operators::tools::the_tools_that_look_for_big_keys_count_locks_and_go_on") {
        let said = run(&server, &["--keystats"]);
        assert!(said.contains("Keys sampled: 11") && said.contains("redislock  crowd is"), "{said}");
    }
}

#[test]
fn a_scan_finds_every_lock_once() {
    // What could go wrong: locks are keys that cannot be found.
    let server = filled();
    let found = run(&server, &["--scan"]);
    let names: BTreeSet<&str> = found.lines().collect();
    assert_eq!((names.len(), found.lines().count()), (11, 11));
    assert!(names.contains("crowd") && names.contains("lock8"));
    let locks = run(&server, &["--scan", "--pattern", "lock*"]);
    assert_eq!(locks.lines().count(), 9);
}

#[test]
fn the_client_prints_replies_as_people_and_programs_read_them() {
    // What could go wrong: nested maps that a terminal or a JSON reader cannot show.
    let (server, mut conn) = Server::connected();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "600000", "NOTE", "host 1"]).unwrap();
    assert_eq!(run(&server, &["LOCK.RELEASE", "k", "b"]), "\n");
    assert_eq!(run(&server, &["LOCK.MACQUIRE", "2", "k", "l", "b"]), "\n");
    let flat = run(&server, &["LOCK.INFO", "k"]);
    assert!(
        flat.starts_with(&format!("mode\nwrite\nfence\n{fence}\nshares\n0\nholding\n1\nholders\nowner\na\n")),
        "{flat}"
    );
    let json = run(&server, &["-3", "--json", "LOCK.INFO", "k"]);
    let head =
        format!(r#"{{"mode":"write","fence":{fence},"shares":0,"holding":1,"holders":[{{"owner":"a","mode":"write","#);
    assert!(json.starts_with(&head) && json.contains(r#""note":"host 1"}]"#), "{json}");
    assert_eq!(run(&server, &["-3", "--json", "LOCK.TOP"]).trim_end(), r#"{"waits":[],"keys":[]}"#);
    assert_eq!(run(&server, &["LOCK.BREAK", "k"]), "1\n");
    assert!(run(&server, &["-3", "--json", "LOCK.LOG"]).contains(r#""reason":"break","db":0,"key":"k","owner":"a""#));
}

#[test]
fn memory_is_told_for_locks_as_for_other_keys() {
    // What could go wrong: a lock costs nothing as far as an operator can see.
    let server = filled();
    let mut wire = Connection::resp2(&server);
    let usage = |wire: &mut Connection, key: &str| wire.say(&format!("MEMORY USAGE {key}")).int();
    let (one, crowd) = (usage(&mut wire, "lock0"), usage(&mut wire, "crowd"));
    assert!(one > 100 && crowd > 50 * one, "{one}, {crowd}");
    assert!(wire.say("MEMORY USAGE lock0 SAMPLES 0").int() == one);
    assert_eq!(wire.say("MEMORY USAGE free"), Reply::Null);
    assert!(!wire.say("MEMORY DOCTOR").text().is_empty());
    assert!(matches!(wire.say("MEMORY STATS"), Reply::Array(_)));
}

#[test]
fn the_slow_log_and_the_monitor_show_what_clients_sent() {
    // What could go wrong: they show what the module sends to replicas as if a client had sent it, or not what one did.
    let server = Server::new();
    let (mut wire, mut monitor) = (Connection::resp2(&server), Connection::resp2(&server));
    assert_eq!(wire.say("CONFIG SET slowlog-log-slower-than 0").text(), "OK");
    assert_eq!(wire.say("SLOWLOG RESET").text(), "OK");
    assert_eq!(monitor.say("MONITOR").text(), "OK");
    let mut waiter = Connection::resp2(&server);
    let commands = ["LOCK.MACQUIRE 2 j k a", "LOCK.RELEASE k a", "LOCK.RELEASE j a", "LOCK.BREAK k", "LOCK.TOP"];
    assert_eq!(wire.say(commands[0]).items().len(), 2);
    waiter.send(&["LOCK.ACQUIRE", "k", "b", "BLOCK", "0"]);
    waiter.expect_blocked(&mut server.connect(), "LOCK.ACQUIRE");
    for command in &commands[1..] {
        wire.say(command);
    }
    assert!(waiter.read().int() > 0);
    wire.say("ECHO end");
    let mut seen = Vec::new();
    loop {
        let line = monitor.read().text();
        let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        match words[0].to_uppercase().as_str() {
            "ECHO" => break,
            name if name.starts_with("LOCK.") => seen.push(words.join(" ")),
            _ => {}
        }
    }
    let mut expected: Vec<&str> = commands.to_vec();
    expected.insert(1, "LOCK.ACQUIRE k b BLOCK 0");
    assert_eq!(seen, expected);

    let slow = wire.say("SLOWLOG GET 100").items();
    let logged = |entry: &Reply| {
        let Reply::Array(fields) = entry else { panic!("an entry is an array") };
        fields[3].clone().items().iter().map(Reply::text).collect::<Vec<_>>().join(" ")
    };
    let mut slow: Vec<String> = slow.iter().map(logged).filter(|command| command.starts_with("LOCK.")).collect();
    slow.sort();
    slow.dedup();
    // Whether one that waited is logged differs between servers.
    slow.retain(|command| !command.contains("BLOCK"));
    expected.retain(|command| !command.contains("BLOCK"));
    expected.sort_unstable();
    assert_eq!(slow, expected);
}

#[test]
fn the_server_measures_our_commands_like_its_own() {
    // What could go wrong: an operator searches for what takes the server's time, and does not find it.
    let (server, mut wire) = Connection::alone();
    assert_eq!(wire.say("CONFIG RESETSTAT").text(), "OK");
    for command in ["LOCK.ACQUIRE k a", "LOCK.ACQUIRE k b", "LOCK.ACQUIRE k a PX 0", "LOCK.MACQUIRE 2 k l a"] {
        wire.say(command);
    }
    let stats = |wire: &mut Connection, name: &str| {
        let text = wire.say("INFO commandstats").text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:"))).unwrap().to_owned();
        let field =
            |field: &str| line.split(',').find_map(|pair| pair.strip_prefix(&format!("{field}="))).unwrap().to_owned();
        [field("calls"), field("rejected_calls"), field("failed_calls")]
    };
    assert_eq!(stats(&mut wire, "lock.acquire"), ["3", "0", "1"]);
    assert_eq!(stats(&mut wire, "lock.macquire"), ["1", "0", "0"]);
    let histogram = wire.say("LATENCY HISTOGRAM lock.macquire");
    assert_eq!(histogram.field("lock.macquire").field("calls").int(), 1);
    assert!(wire.say("INFO errorstats").text().contains("errorstat_ERR:count=1"));
    // A waiter is shown with what it waits in.
    let waiter = Connection::waiting(&server, "LOCK.MACQUIRE 2 k m b BLOCK 0");
    let listed = wire.say(&format!("CLIENT LIST ID {}", waiter.id())).text();
    assert!(listed.contains(" cmd=lock.macquire "), "{listed}");
}

#[test]
fn object_tells_of_a_lock_what_it_tells_of_any_key() {
    // What could go wrong: a lock counts as never used, and is the first to be evicted.
    let (_server, mut wire) = Connection::alone();
    assert!(wire.say("LOCK.ACQUIRE k a PX 600000").int() > 0);
    assert_eq!(wire.say("OBJECT ENCODING k").text(), "raw");
    assert_eq!(wire.say("OBJECT REFCOUNT k").int(), 1);
    wait_for("the key to be idle for a second", || wire.say("OBJECT IDLETIME k").int() >= 1);
    // To use it is to use it.
    assert_eq!(wire.say("LOCK.EXTEND k a PX 600000").int(), wire.say("LOCK.ACQUIRE k a").int());
    assert_eq!(wire.say("OBJECT IDLETIME k").int(), 0);
    assert_eq!(wire.say("CONFIG SET maxmemory-policy allkeys-lfu").text(), "OK");
    assert!(wire.say("LOCK.ACQUIRE l a").int() > 0);
    assert!(wire.say("OBJECT FREQ l").int() > 0);
}
