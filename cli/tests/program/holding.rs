//! Locks that are held beside a script: `hold`, and `acquire`, `renew` and `release` with a token.

use crate::documents::json_names;
use crate::harness::{Folder, Outcome, Run, is_held, program, queued, run, start, wait_waiters};
use crate::operators::fields;
use serde_json::Value as Json;
use std::fs;
use std::io::{BufRead, BufReader, PipeWriter};
use std::os::unix::fs::PermissionsExt;
use testbed::{Cluster, LockInfo, Server, Signal, wait_for};

/// A hold with what it printed first, and its standard input.
fn hold(port: u16, words: &[&str]) -> (Run, String, PipeWriter) {
    let mut command = program(port, &[&["hold"], words].concat());
    let (input, output) = std::io::pipe().unwrap();
    command.stdin(input);
    let mut run = Run::of(command);
    let mut line = String::new();
    BufReader::new(run.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (run, line, output)
}

/// The same with a token in this file.
fn with_token(port: u16, folder: &Folder, words: &[&str]) -> Outcome {
    run(port, &[words, &["--token", &folder.text("token")]].concat())
}

fn owner_of(info: &LockInfo) -> String {
    String::from_utf8(info.holders[0].owner.clone()).unwrap()
}

fn ttl(server: &Server, key: &str) -> i64 {
    server.connect().lock_info(key).unwrap().holders[0].ttl_ms
}

#[test]
fn a_lock_is_held_until_the_input_ends() {
    let server = Server::new();
    let mut conn = server.connect();
    let (run, line, mut input) = hold(server.port(), &["-t", "3s", "a key"]);
    let words: Vec<&str> = line.trim_end().split('\t').collect();
    let info = conn.lock_info("a key").unwrap();
    assert_eq!(words, ["a key", &owner_of(&info), &info.fence.to_string()]);
    // What comes is no end. It is renewed meanwhile.
    std::io::Write::write_all(&mut input, b"words\n").unwrap();
    let extended = conn.info_number("lock", "lock_extended");
    wait_for("renewals", || conn.info_number("lock", "lock_extended") >= extended + 4);
    assert_eq!(conn.lock_info("a key").unwrap().fence, info.fence);
    drop(input);
    let outcome = run.end();
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    assert!(!is_held(&mut conn, "a key"));
    let (run, line, input) = hold(server.port(), &["--json", "k"]);
    let told: Json = serde_json::from_str(&line).unwrap();
    let info = conn.lock_info("k").unwrap();
    assert_eq!(told, serde_json::json!({ "key": "k", "owner": owner_of(&info), "fence": info.fence }));
    assert_eq!(fields(&told), json_names("`hold`, `acquire`"));
    drop(input);
    run.end();
}

#[test]
fn a_hold_that_is_told_to_stop_releases_the_lock() {
    let server = Server::new();
    for signal in [Signal::TERM, Signal::INT] {
        let (run, _, _input) = hold(server.port(), &["k"]);
        run.signal(signal);
        let outcome = run.end();
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{signal:?}");
        assert!(!is_held(&mut server.connect(), "k"));
    }
}

#[test]
fn a_hold_waits_in_the_queue_and_says_when_the_lock_is_lost() {
    let server = Server::new();
    let (first, _, input) = hold(server.port(), &["-t", "3s", "k"]);
    assert_eq!(run(server.port(), &["hold", "-n", "k"]).code, Some(75));
    let second = queued(&server, &["hold", "k"]);
    second.signal(Signal::TERM);
    assert_eq!(second.end().code, Some(143));
    drop(input);
    assert_eq!(first.end().code, Some(0));
    let (run, _, _input) = hold(server.port(), &["-t", "3s", "k"]);
    server.connect().int(&["LOCK.BREAK", "k"]);
    let outcome = run.end();
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(76), "redis-lock: k: the lock was lost\n"));
    // Or when it is released: there is no command to speak of.
    let (run, _, input) = hold(server.port(), &["-t", "1h", "k"]);
    server.connect().int(&["LOCK.BREAK", "k"]);
    drop(input);
    assert_eq!(run.end().err, "redis-lock: k: the lock was lost before its release\n");
}

#[test]
fn a_token_keeps_a_lock_without_a_process() {
    let server = Server::new();
    let folder = Folder::new();
    let on = |words: &[&str]| with_token(server.port(), &folder, words);
    let acquired = on(&["acquire", "-t", "1m", "--note", "job 7", "k"]);
    assert_eq!((acquired.code, acquired.err.as_str()), (Some(0), ""));
    let info = server.connect().lock_info("k").unwrap();
    let owner = owner_of(&info);
    assert_eq!(info.holders[0].note.as_deref(), Some("job 7"));
    assert_eq!(acquired.out, format!("k\t{owner}\t{}\n", info.fence));
    assert_eq!(fs::metadata(folder.path("token")).unwrap().permissions().mode() & 0o777, 0o600);
    let token: Json = serde_json::from_str(&folder.read("token")).unwrap();
    let servers = [format!("redis://127.0.0.1:{}", server.port())];
    let expected = serde_json::json!({
        "key": "k", "owner": owner, "fence": info.fence, "lease_ms": 60_000, "servers": servers, "sentinel": null
    });
    assert_eq!(token, expected);
    assert_eq!(fields(&token), json_names("a token"));
    // Others do not get it, and harm no token.
    assert_eq!(on(&["acquire", "-n", "k"]).code, Some(75));
    assert_eq!(serde_json::from_str::<Json>(&folder.read("token")).unwrap(), expected);

    assert!(ttl(&server, "k") <= 60_000);
    assert_eq!(on(&["renew", "-t", "10m"]).code, Some(0));
    assert!(ttl(&server, "k") > 300_000);
    let renewed = on(&["renew"]);
    assert_eq!((renewed.code, renewed.out.as_str(), renewed.err.as_str()), (Some(0), "", ""));
    assert!(ttl(&server, "k") <= 60_000);
    // Too short for anybody to renew it, and longer than the server allows.
    for (lease, why) in [("1s", "at least 2s"), ("25h", "lock.max-lease-ms is 86400000")] {
        let outcome = on(&["renew", "-t", lease]);
        assert!(outcome.code == Some(64) && outcome.err.contains(why), "{lease}: {outcome:?}");
    }
    assert!(ttl(&server, "k") > 2000);
    let released = on(&["release"]);
    assert_eq!((released.code, released.err.as_str()), (Some(0), ""));
    assert!(!is_held(&mut server.connect(), "k") && !folder.path("token").exists());
}

#[test]
fn a_token_whose_lock_was_lost_says_so() {
    let server = Server::new();
    let folder = Folder::new();
    let on = |words: &[&str]| with_token(server.port(), &folder, words);
    assert_eq!(on(&["acquire", "k"]).code, Some(0));
    server.connect().int(&["LOCK.BREAK", "k"]);
    let (other, _, _input) = hold(server.port(), &["k"]);
    for (word, stays) in [("renew", true), ("release", false)] {
        let outcome = on(&[word]);
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(76), "redis-lock: k: the lock was lost\n"), "{word}");
        assert_eq!(folder.path("token").exists(), stays, "{word}");
    }
    drop(other);
    // Without a token nothing is asked.
    let no_token = format!("redis-lock: no token in {}: ", folder.text("token"));
    for (word, why) in [("renew", "No such file"), ("release", "redis-lock acquire did not write it\n")] {
        let outcome = on(&[word]);
        assert_eq!(outcome.code, Some(64), "{outcome:?}");
        assert!(outcome.err.starts_with(&format!("{no_token}{why}")), "{outcome:?}");
        fs::write(folder.path("token"), "{}").unwrap();
    }
}

#[test]
fn a_file_that_holds_another_lock_is_left_as_it_is() {
    // What could go wrong: nobody can renew or release that lock any more.
    let server = Server::new();
    let folder = Folder::new();
    let mut conn = server.connect();
    let on = |words: &[&str]| with_token(server.port(), &folder, words);
    // One that is written while another waits.
    conn.int(&["LOCK.ACQUIRE", "other", "me", "PX", "600000"]);
    let late = start(server.port(), &["acquire", "--token", &folder.text("token"), "other"]);
    wait_waiters(&server, "other", 1);
    assert_eq!(on(&["acquire", "-s", "k"]).code, Some(0));
    let token = folder.read("token");
    conn.int(&["LOCK.RELEASE", "other", "me"]);
    let mut refused = vec![late.end()];
    // After the first of them no lock is taken at all, and then given back.
    let granted = conn.info_number("lock", "lock_granted");
    refused.extend([on(&["acquire", "other"]), on(&["acquire", "-s", "k"])]);
    assert_eq!(conn.info_number("lock", "lock_granted"), granted);
    for outcome in refused {
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(73), ""), "{outcome:?}");
        assert!(outcome.err.contains("token holds the lock k: release that"), "{outcome:?}");
    }
    assert!(folder.read("token") == token && !is_held(&mut conn, "other"));
    // One whose lock was lost holds nothing.
    conn.int(&["LOCK.BREAK", "k"]);
    assert_eq!(on(&["acquire", "other"]).code, Some(0));
    assert!(folder.read("token") != token && is_held(&mut conn, "other"));
}

#[test]
fn a_token_is_for_the_servers_where_it_was_acquired() {
    // What could go wrong: a release elsewhere finds no lock, and removes the token of one that is held.
    let [server, other] = [(); 2].map(|()| Server::new());
    server.connect().ok(&["CONFIG", "SET", "requirepass", "right"]);
    let folder = Folder::new();
    let on = |words: &[&str], urls: &str| {
        let mut command = program(1, &[words, &["--token", &folder.text("token")]].concat());
        command.env("REDIS_LOCK_URL", urls).env("REDISCLI_AUTH", "right");
        Run::of(command).end()
    };
    let at = |database: &str| format!("redis://127.0.0.1:{}{database}", server.port());
    let with_password = at("/2").replace("//", "//:right@");
    assert_eq!(on(&["acquire", "-u", &with_password, "k"], "").code, Some(0));
    assert!(!folder.read("token").contains("right"));
    for urls in [at(""), format!("redis://127.0.0.1:{}/2", other.port())] {
        for words in [&["renew"][..], &["release"]] {
            let outcome = on(words, &urls);
            assert_eq!(outcome.code, Some(64), "{outcome:?}");
            assert!(outcome.err.contains(&format!("the token is of {}: name these", at("/2"))), "{outcome:?}");
        }
    }
    assert_eq!([on(&["renew"], ""), on(&["renew"], &at("/2")), on(&["release"], "")].map(|it| it.code), [Some(0); 3]);
}

#[test]
fn a_lock_whose_token_cannot_be_written_is_free_again() {
    let server = Server::new();
    let outcome = run(server.port(), &["acquire", "--token", "/nonesuch/token", "k"]);
    assert!(outcome.code == Some(73) && outcome.err.contains("/nonesuch/token"), "{outcome:?}");
    assert!(!is_held(&mut server.connect(), "k"));
}

#[test]
fn a_token_of_a_cluster_finds_its_node() {
    let cluster = Cluster::start(2, 0);
    let (key, _) = cluster.key();
    let folder = Folder::new();
    // The node that does not have it.
    let on = |words: &[&str]| with_token(cluster.nodes[1].port(), &folder, words).code;
    let codes = [on(&["acquire", &key]), on(&["renew"])];
    assert!(is_held(&mut cluster.conn(0), &key));
    assert_eq!((codes, on(&["release"])), ([Some(0); 2], Some(0)));
    assert!(!is_held(&mut cluster.conn(0), &key));
}

#[test]
fn a_token_of_a_quorum_counts_while_more_than_half_of_the_servers_hold_it() {
    let mut servers = [(); 3].map(|()| Server::new());
    let urls: Vec<String> = servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port())).collect();
    let folder = Folder::new();
    let on = |words: &[&str]| {
        let mut command = program(1, &[words, &["--token", &folder.text("token")]].concat());
        command.env("REDIS_LOCK_URL", urls.join(","));
        Run::of(command).end()
    };
    assert_eq!(on(&["acquire", "-t", "10m", "k"]).code, Some(0));
    wait_for("all of them to hold it", || servers.iter().all(|server| is_held(&mut server.connect(), "k")));
    servers[0].stop(true);
    assert_eq!(on(&["renew"]).code, Some(0));
    servers[1].connect().int(&["LOCK.BREAK", "k"]);
    // One holds it, one does not, and one does not answer.
    let outcome = on(&["renew"]);
    assert!(outcome.code == Some(69) && outcome.err.contains("127.0.0.1"), "{outcome:?}");
    servers[2].connect().int(&["LOCK.BREAK", "k"]);
    assert_eq!(on(&["release"]).code, Some(76));
}
