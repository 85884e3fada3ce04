//! docs/guide/quorum.md: its configurations and its programs in Python, on several servers.

use crate::docs::documents::blocks;
use std::fs;
use std::process::Command;
use testbed::{Server, Setup, file_from, module};

const PAGE: &str = include_str!("../../../docs/guide/quorum.md");

/// The configurations of a node, in the order of the page: one that keeps its grants, and one that observes a grace.
fn configurations() -> [String; 2] {
    let found: Vec<String> =
        blocks(PAGE).into_iter().filter(|(kind, _)| *kind == "conf").map(|(_, lines)| lines.join("\n")).collect();
    found.try_into().expect("two configurations")
}

/// A server with exactly these lines, besides its port and the module.
fn with(lines: &str, test: impl FnOnce(Server)) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redis.conf");
    fs::write(&file, format!("loadmodule {}\n{lines}\n", module().display())).unwrap();
    let server = Setup::default().without_module().config_file(&file).start();
    let mut conn = server.connect();
    for line in lines.lines() {
        let (name, value) = line.split_once(' ').unwrap();
        let [_, here]: [String; 2] = conn.get(&["CONFIG", "GET", name]);
        assert_eq!(here, value.trim_matches('"'), "{name}");
    }
    test(server);
}

#[test]
fn a_node_that_is_to_keep_its_grants_has_them_after_it_was_killed() {
    // What could go wrong: a reader copies the lines, and the node forgets what it has granted.
    let [keeping, _] = configurations();
    with(&keeping, |mut server| {
        let fence = server.connect().int(&["LOCK.ACQUIRE", "report", "alice", "PX", "60000"]).unwrap();
        server.crash();
        let mut conn = server.connect();
        assert_eq!(conn.lock_info("report").unwrap().holders[0].fence, fence);
        assert_eq!(conn.int(&["LOCK.ACQUIRE", "report", "bob", "PX", "60000"]), None);
    });
}

#[test]
fn a_node_that_observes_a_grace_grants_nothing_while_a_lease_may_run_that_it_has_forgotten() {
    // What could go wrong: the grace is shorter than the longest lease, or off.
    let [_, forgetting] = configurations();
    with(&forgetting, |mut server| {
        let mut conn = server.connect();
        conn.ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
        let lease_ms_max = conn.get::<[String; 2]>(&["CONFIG", "GET", "lock.max-lease-ms"])[1].clone();
        conn.int(&["LOCK.ACQUIRE", "report", "alice", "PX", &lease_ms_max]).unwrap();
        server.crash();
        let mut conn = server.connect();
        assert!(conn.lock_info("report").is_none(), "it was to forget");
        assert!(conn.error(&["LOCK.ACQUIRE", "report", "bob"]).starts_with("GRACE "));
        let grace_ms = conn.get::<[String; 2]>(&["CONFIG", "GET", "lock.grace-ms"])[1].clone();
        assert_eq!(grace_ms, lease_ms_max);
    });
}

#[test]
fn the_program_in_python_runs_on_three_servers() {
    // What could go wrong: a reader copies a program that fails, or that takes no lock.
    let servers = [(); 3].map(|()| Server::new());
    let lines: Vec<&str> =
        blocks(PAGE).into_iter().filter(|(kind, _)| *kind == "python").flat_map(|(_, lines)| lines).collect();
    let mut text = lines.join("\n");
    // In two steps, because a port of this run may contain a usual one.
    let usual = ["6379", "6380", "6381"];
    for (number, port) in usual.iter().enumerate() {
        assert!(text.contains(port), "{text}");
        text = text.replace(port, &format!("<{number}>"));
    }
    for (number, server) in servers.iter().enumerate() {
        text = text.replace(&format!("<{number}>"), &server.port().to_string());
    }
    let python = file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python");
    let mut command = Command::new(&python);
    // The helper is one file, to be copied: it lies elsewhere here.
    command.arg("-c").arg(text).env("PYTHONPATH", file_from("REDIS_LOCK_PYTHON_HELPER", "clients/python"));
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", python.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for server in &servers {
        assert!(server.connect().info_number("lock", "lock_granted") > 0, "a server has granted no lock");
    }
}
