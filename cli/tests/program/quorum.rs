//! Several URLs without `--sentinel`: the lock is held at more than half of the servers.

use crate::harness::{Folder, Outcome, Run, is_held, program};
use std::process::Command;
use testbed::{Proxy, Server, wait_for};

/// The program with these servers, which are named by their ports.
fn at(ports: &[u16], words: &[&str]) -> Command {
    let mut command = program(1, words);
    let urls: Vec<String> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
    command.env("REDIS_LOCK_URL", urls.join(","));
    command
}

fn run(ports: &[u16], words: &[&str]) -> Outcome {
    Run::of(at(ports, words)).end()
}

fn ports(servers: &[Server]) -> Vec<u16> {
    servers.iter().map(Server::port).collect()
}

/// How many of the servers say that the key is held.
fn holding(servers: &[Server], key: &str) -> usize {
    servers.iter().filter(|server| is_held(&mut server.connect(), key)).count()
}

#[test]
fn a_command_runs_while_more_than_half_of_the_servers_hold_the_lock() {
    let servers = [(); 3].map(|()| Server::new());
    let ports = ports(&servers);
    let folder = Folder::new();
    let script = format!("echo $REDIS_LOCK_OWNER $REDIS_LOCK_FENCE > {}; read line; exit 7", folder.text("told"));
    let urls: Vec<String> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
    let words = ["run", "-u", &urls[0], "-u", &urls[1], "-u", &urls[2], "k", "-c", &script];
    let mut command = program(1, &words);
    let (input, output) = std::io::pipe().unwrap();
    command.stdin(input);
    let first = Run::of(command);
    let told = folder.line("told");
    let (owner, fence) = told.split_once(' ').unwrap();
    wait_for("all of them to hold it", || holding(&servers, "k") == 3);
    assert_eq!(run(&ports, &["run", "-n", "k", "true"]).code, Some(75));
    assert_eq!(run(&ports, &["check", "k", owner, fence]).code, Some(0));
    assert_eq!(run(&ports, &["check", "k", "nobody", fence]).code, Some(1));
    drop(output);
    assert_eq!(first.end().code, Some(7));
    assert_eq!(holding(&servers, "k"), 0);
    let second = run(&ports, &["run", "k", "-c", "echo $REDIS_LOCK_FENCE"]);
    assert!(second.out.trim().parse::<u64>().unwrap() > fence.parse().unwrap(), "{second:?} after {fence}");
}

#[test]
fn it_goes_on_when_one_of_three_servers_dies() {
    let mut servers = [(); 3].map(|()| Server::new());
    let folder = Folder::new();
    let script = format!("echo > {}; sleep 15; exit 7", folder.text("begun"));
    let first = Run::of(at(&ports(&servers), &["run", "-t", "6s", "-k", "1s", "k", "-c", &script]));
    folder.line("begun");
    servers[0].stop(true);
    // Longer than two leases.
    assert_eq!(first.end().code, Some(7));
    let second = run(&ports(&servers), &["run", "k", "true"]);
    assert_eq!(second.code, Some(0), "{second:?}");
}

#[test]
fn it_ends_before_others_hold_the_lock_when_two_of_three_cannot_be_reached() {
    let servers = [(); 3].map(|()| Server::new());
    let proxies = [1, 2].map(|number: usize| Proxy::to(servers[number].port()));
    let folder = Folder::new();
    let script = folder.heartbeat("trap '' TERM");
    let through = [servers[0].port(), proxies[0].port(), proxies[1].port()];
    let first = Run::of(at(&through, &["run", "-t", "6s", "-k", "1s", "k", "-c", &script]));
    folder.line("beat");
    wait_for("all of them to hold it", || holding(&servers, "k") == 3);
    for proxy in &proxies {
        proxy.freeze(true);
    }
    // The other goes by another way.
    let second = run(&ports(&servers), &["run", "k", "date", "+%s%N"]);
    assert_eq!(second.code, Some(0), "{second:?}");
    assert!(folder.last_beat() < second.out.trim().parse().unwrap(), "it ran on beside the next holder");
    let outcome = first.end();
    assert_eq!(outcome.code, Some(76), "{outcome:?}");
}

#[test]
fn what_is_no_quorum_is_a_usage_error() {
    let servers = [(); 3].map(|()| Server::new());
    let ports = ports(&servers);
    let refused = |ports: &[u16], words: &[&str]| {
        let outcome = run(ports, words);
        assert_eq!(outcome.code, Some(64), "{outcome:?}");
        outcome.err
    };
    assert!(refused(&ports, &["run", "-N", "2", "k", "true"]).contains("limit"));
    assert!(refused(&ports[..2], &["run", "k", "true"]).contains("at least 3"));
    assert!(refused(&ports[..2], &["check", "k", "me", "7"]).contains("at least 3"));
    assert!(refused(&[ports[0], ports[1], ports[0]], &["run", "k", "true"]).contains("one and the same"));
    servers[2].follow(&servers[0]);
    assert!(refused(&ports, &["run", "k", "true"]).contains("is a replica"));
    assert_eq!(holding(&servers, "k"), 0);
}

#[test]
fn servers_that_do_not_answer_are_named() {
    let mut servers = [(); 3].map(|()| Server::new());
    let ports = ports(&servers);
    for server in &mut servers[1..] {
        server.stop(true);
    }
    let outcome = run(&ports, &["run", "-n", "k", "true"]);
    assert_eq!(outcome.code, Some(69), "{outcome:?}");
    for port in &ports[1..] {
        assert!(outcome.err.contains(&format!("127.0.0.1:{port}")), "{}", outcome.err);
    }
}
