//! What operators ask for: `ls`, `info`, `log` and `break`.

use crate::documents::json_names;
use crate::harness::{Folder, Outcome, Run, is_held, program, run, wait_held, wait_waiters};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::process::Command;
use testbed::{Client, Cluster, Server, Setup, wait_for};

const FIELDS: &str = include_str!("../../../docs/reference/info-fields.md");

/// The names in the table below this heading.
fn names(heading: &str) -> BTreeSet<&'static str> {
    let (_, rest) = FIELDS.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

pub(crate) fn fields(object: &Json) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The objects that it prints, when all goes well.
fn objects(outcome: &Outcome) -> Vec<Json> {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// How often the server did what this command is for.
pub(crate) fn calls(conn: &mut Client, command: &str) -> u64 {
    let text = conn.info("commandstats", &format!("cmdstat_{command}"));
    let calls = text.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.unwrap().parse().unwrap()
}

fn take(conn: &mut Client, key: &str, owner: &str, note: &str) -> i64 {
    conn.int(&["LOCK.ACQUIRE", key, owner, "PX", "600000", "NOTE", note]).unwrap()
}

/// A server with a lock that is waited for, one that is shared, and another key. The client is the one that waits.
fn busy() -> (Server, i64, Client) {
    let server = Server::new();
    let mut conn = server.connect();
    let fence = take(&mut conn, "report", "alice", "night run");
    let mut waiting = server.connect();
    waiting.send(&["LOCK.ACQUIRE", "report", "bob", "PX", "600000", "BLOCK", "0"]);
    wait_waiters(&server, "report", 1);
    for owner in ["carol", "dave"] {
        conn.int(&["LOCK.RW", "shelf", owner, "READ", "PX", "600000"]).unwrap();
    }
    conn.ok(&["SET", "other", "1"]);
    (server, fence, waiting)
}

#[test]
fn locks_are_listed_for_people_and_for_programs() {
    let (server, fence, _waiting) = busy();
    let outcome = run(server.port(), &["ls"]);
    let rows: Vec<Vec<&str>> = outcome.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(rows[0], ["KEY", "MODE", "HOLDER", "HELD", "LEFT", "WAITING", "NOTE"]);
    assert_eq!((&rows[1][..3], &rows[1][5..]), (&["report", "write", "alice"][..], &["1", "night", "run"][..]));
    assert_eq!((&rows[2][..2], &rows[2][3..4], rows.len()), (&["shelf", "read"][..], &["+1"][..], 3));
    assert_eq!(outcome.err, "redis-lock: 2 locks in database 0, went through 3 keys\n");
    let starts: Vec<_> = outcome.out.lines().map(|line| line.find("write").or(line.find("read"))).collect();
    assert_eq!(starts[1], starts[2], "{}", outcome.out);

    let found = objects(&run(server.port(), &["ls", "--json", "rep*"]));
    assert_eq!(found.len(), 1);
    let (lock, place) = (&found[0], format!("127.0.0.1:{}", server.port()));
    assert_eq!((&lock["server"], &lock["key"], &lock["fence"]), (&json!(place), &json!("report"), &json!(fence)));
    assert_eq!((&lock["holders"][0]["owner"], &lock["waiting"]), (&json!("alice"), &json!(1)));

    // Options may come before the command.
    let outcome = run(9, &["-u", &format!("redis://127.0.0.1:{}/2", server.port()), "ls"]);
    assert_eq!(outcome.err, "redis-lock: 0 locks in database 2, went through 0 keys\n");
    let outcome = run(Server::setup().without_module().start().port(), &["ls"]);
    assert!(outcome.code == Some(69) && outcome.err.contains("load the module"), "{outcome:?}");
}

#[test]
fn many_keys_are_gone_through_in_steps() {
    let server = Server::new();
    let mut conn = server.connect();
    conn.get::<Option<String>>(&["EVAL", "for i = 1, 5000 do redis.call('SET', i, 1) end", "0"]);
    take(&mut conn, "k", "me", "");
    let outcome = run(server.port(), &["ls"]);
    assert_eq!(outcome.err, "redis-lock: 1 lock in database 0, went through 5001 keys\n");
    let calls = calls(&mut conn, "scan");
    assert!(calls >= 4, "{calls}");
}

#[test]
fn the_locks_of_a_step_are_asked_for_in_one_go() {
    // What could go wrong: each lock costs a round trip, which over a slow network takes minutes.
    let server = Server::new();
    let mut conn = server.connect();
    conn.get::<Option<String>>(&[
        "EVAL",
        "for i = 1, 500 do redis.call('LOCK.ACQUIRE', 'k' .. i, 'me', 'PX', 600000) end",
        "0",
    ]);
    let reads = |conn: &mut Client| conn.info_number("stats", "total_reads_processed");
    let before = reads(&mut conn);
    assert_eq!(objects(&run(server.port(), &["ls", "--json"])).len(), 500);
    let reads = reads(&mut conn) - before;
    assert!(reads < 250, "{reads} reads");
}

#[test]
fn one_lock_is_shown_with_its_holders_and_waiters() {
    let (server, fence, _waiting) = busy();
    let show = |key: &str| run(server.port(), &["info", key]);
    assert_eq!((show("none").out.as_str(), show("none").code), ("none is free\n", Some(0)));
    let text = show("report").out;
    let head = format!("report: write, fence {fence}, 1 holding, 1 waiting\n");
    assert!(text.starts_with(&head) && text.contains("\nalice ") && text.contains("\nbob "), "{text}");

    // Of shares, how many are taken, and how many a waiter wants of which limit.
    let mut conn = server.connect();
    conn.int(&["LOCK.SHARE", "seats", "alice", "5", "TAKE", "4", "PX", "600000"]).unwrap();
    conn.call(&["LOCK.SHARE", "seats", "bob", "5", "TAKE", "2", "QUEUE", "60000"]).unwrap();
    let text = show("seats").out;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(text.contains(", 4 shares, 1 holding, 1 waiting\n"), "{text}");
    assert_eq!((&rows[1][..3], &rows[2][..3]), (&["HOLDER", "MODE", "SHARES"][..], &["alice", "read", "4"][..]));
    assert_eq!(rows[3][..7], ["WAITER", "MODE", "TAKE", "LIMIT", "WAITED", "REQUEST", "LEFT"]);
    assert_eq!(rows[4][..4], ["bob", "read", "2", "5"]);

    let shown = objects(&run(server.port(), &["info", "--json", "report"]));
    assert_eq!(fields(&shown[0]), &names("LOCK.INFO") | &json_names("`ls`, `info`"));
    assert_eq!(fields(&shown[0]["holders"][0]), names("Holders of LOCK.INFO"));
    assert_eq!(fields(&shown[0]["waiters"][0]), names("Waiters of LOCK.INFO"));
    let free = objects(&run(server.port(), &["info", "--json", "none"]));
    assert_eq!(fields(&free[0]), fields(&shown[0]));
    assert_eq!((&free[0]["holding"], &free[0]["mode"]), (&json!(0), &Json::Null));
}

#[test]
fn lost_holds_are_logged_the_latest_first() {
    let (server, _, _waiting) = busy();
    let mut conn = server.connect();
    for key in ["report", "shelf"] {
        conn.int(&["LOCK.BREAK", key]);
        let mut now = || conn.get::<(u64, u64)>(&["TIME"]);
        let then = now().1 / 1000;
        wait_for("another millisecond", || now().1 / 1000 != then);
    }
    let rows = objects(&run(server.port(), &["log", "--json"]));
    assert_eq!(fields(&rows[0]), &names("LOCK.LOG") | &json_names("`log`"));
    let keys: Vec<_> = rows.iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["shelf", "shelf", "report"]);
    let outcome = run(server.port(), &["log", "--count", "1"]);
    let rows: Vec<Vec<&str>> = outcome.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["AGO", "REASON", "DB", "KEY", "OWNER", "HELD", "NOTE"]);
    assert_eq!((&rows[1][1..4], rows.len()), (&["break", "0", "shelf"][..], 2));
}

#[test]
fn a_lock_is_broken_for_those_who_say_so() {
    let (server, _, _waiting) = busy();
    let mut conn = server.connect();
    let end = |words: &[&str]| run(server.port(), &[&["break"], words].concat());
    let unasked = end(&["report"]);
    assert_eq!(unasked.code, Some(64), "{unasked:?}");
    assert!(unasked.err.contains("--yes") && is_held(&mut conn, "report"), "{unasked:?}");
    let one = end(&["--yes", "shelf", "carol"]);
    assert_eq!((one.code, one.out.as_str()), (Some(0), "shelf: ended the hold of carol\n"));
    assert_eq!(conn.lock_info("shelf").unwrap().holders.len(), 1);
    let again = end(&["--yes", "shelf", "carol"]);
    assert!(again.code == Some(1) && again.err.contains("is not held by carol"), "{again:?}");
    let ended = objects(&end(&["--yes", "--json", "shelf"]));
    let place = format!("127.0.0.1:{}", server.port());
    assert_eq!(ended, [json!({ "server": place, "key": "shelf", "owner": "dave", "ended": 1 })]);
    assert_eq!(fields(&ended[0]), json_names("`break`"));
    let free = end(&["--yes", "shelf"]);
    assert!(free.code == Some(1) && free.err.contains("is free"), "{free:?}");
}

#[test]
fn more_holds_are_broken_than_a_server_names_at_once() {
    let server = Server::new();
    let mut conn = server.connect();
    let script = "for i = 1, 5000 do redis.call('LOCK.RW', 'k', i, 'READ', 'PX', 600000) end";
    conn.get::<Option<String>>(&["EVAL", script, "0"]);
    assert_eq!(run(server.port(), &["break", "--yes", "k", "5000"]).out, "k: ended the hold of 5000\n");
    let ended = objects(&run(server.port(), &["break", "--yes", "--json", "k"]));
    let owners: BTreeSet<&str> = ended.iter().map(|row| row["owner"].as_str().unwrap()).collect();
    assert_eq!((ended.len(), owners.len()), (4999, 4999));
    assert!(ended.iter().all(|row| row["ended"] == 1) && !is_held(&mut conn, "k"));
}

#[test]
fn what_controls_a_terminal_is_not_printed() {
    let server = Server::new();
    take(&mut server.connect(), "k", "\u{1b}[2Jme", "\u{7}");
    for words in [&["ls"][..], &["info", "k"], &["break", "--yes", "k"], &["log"]] {
        let outcome = run(server.port(), words);
        assert!(!outcome.out.contains(['\u{1b}', '\u{7}']), "{outcome:?}");
        assert!(outcome.out.contains("\\u{1b}[2Jme"), "{outcome:?}");
    }
}

#[test]
fn a_right_that_lacks_is_named() {
    let (server, _, _waiting) = busy();
    let mut conn = server.connect();
    let url = format!("redis://op:change-me@127.0.0.1:{}", server.port());
    conn.ok(&["ACL", "SETUSER", "op", "reset", "on", ">change-me", "~*"]);
    let asked = |words: &[&str]| {
        let mut command = program(server.port(), words);
        command.env("REDIS_LOCK_URL", &url);
        Run::of(command).end()
    };
    for (words, rights) in [
        (&["ls"][..], &["+scan", "+lock.info"][..]),
        (&["info", "report"], &[]),
        (&["log"], &["+lock.log"]),
        (&["break", "--yes", "report"], &["+lock.break"]),
    ] {
        for right in rights {
            let outcome = asked(words);
            assert!(outcome.code == Some(69) && outcome.err.contains(right), "{right}: {outcome:?}");
            conn.ok(&["ACL", "SETUSER", "op", right]);
        }
        let outcome = asked(words);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    // It may not know how many keys there are. What it may see is shown beside what it may not.
    assert!(asked(&["ls"]).err.contains("went through all keys"));
    conn.ok(&["ACL", "SETUSER", "op", "resetkeys", "%R~rep*"]);
    let outcome = asked(&["ls"]);
    assert!(outcome.code == Some(69) && outcome.err.contains("NOPERM"), "{outcome:?}");
    assert!(outcome.out.contains("report") && !outcome.out.contains("shelf"), "{outcome:?}");
}

#[test]
fn all_nodes_of_a_cluster_are_asked() {
    let cluster = Cluster::start(2, 0);
    let (key, _) = cluster.key();
    let mut keys: Vec<String> = (0..100).map(|number| format!("k{number}")).collect();
    keys.retain(|key| cluster.conn(1).call(&["LOCK.ACQUIRE", key, "me", "PX", "600000"]).is_ok());
    take(&mut cluster.conn(0), &key, "me", "");
    // The node that does not have it.
    let port = cluster.nodes[1].port();
    let found = objects(&run(port, &["ls", "--json"]));
    assert_eq!(found.len(), keys.len() + 1);
    let places: BTreeSet<_> = found.iter().map(|lock| lock["server"].as_str().unwrap()).collect();
    assert_eq!(places.len(), 2);
    assert!(run(port, &["ls"]).out.starts_with("SERVER"));
    assert!(run(port, &["info", &key]).out.contains("\nme "));
    assert_eq!(run(port, &["break", "--yes", &key]).code, Some(0));
    assert!(!is_held(&mut cluster.conn(0), &key));
    // What was lost is in the log of the other node.
    assert_eq!(objects(&run(port, &["log", "--json"])).len(), 1);
}

#[test]
fn the_primary_that_sentinels_know_is_asked() {
    let (primary, _, _waiting) = busy();
    let config = format!("sentinel monitor main 127.0.0.1 {} 1\n", primary.port());
    let sentinel = Setup::default().sentinel(&config).start();
    let asked = |words: &[&str]| run(sentinel.port(), &[words, &["--sentinel", "main"]].concat());
    let found = objects(&asked(&["ls", "--json"]));
    assert_eq!((found.len(), &found[0]["server"]), (2, &json!("main")));
    assert_eq!(asked(&["break", "--yes", "report"]).code, Some(0));
    assert_eq!(objects(&asked(&["log", "--json"])).len(), 1);
}

#[test]
fn all_servers_of_a_quorum_are_asked_and_those_named_that_do_not_answer() {
    let mut servers = [(); 3].map(|()| Server::new());
    let urls: Vec<String> = servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port())).collect();
    let asked = |words: &[&str]| -> Command {
        let mut command = program(1, words);
        command.env("REDIS_LOCK_URL", urls.join(","));
        command
    };
    let folder = Folder::new();
    let script = format!("echo > {}; exec sleep 1000", folder.text("begun"));
    let holding = Run::of(asked(&["run", "k", "-c", &script]));
    // Before it has begun it may ask the servers more than once.
    folder.line("begun");
    for server in &servers {
        wait_held(server, "k");
    }
    let shown = objects(&Run::of(asked(&["info", "--json", "k"])).end());
    let owners: BTreeSet<_> = shown.iter().map(|lock| lock["holders"][0]["owner"].as_str().unwrap()).collect();
    assert_eq!((shown.len(), owners.len()), (3, 1));
    servers[0].stop(true);
    let outcome = Run::of(asked(&["break", "--yes", "k"])).end();
    assert_eq!((outcome.code, outcome.out.lines().count()), (Some(69), 2), "{outcome:?}");
    assert!(outcome.err.contains(&format!("127.0.0.1:{}", servers[0].port())), "{outcome:?}");
    assert_eq!(holding.end().code, Some(76));
}
