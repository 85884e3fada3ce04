//! The lock is lost, or cannot be renewed: the command has ended before anybody else holds it.

use crate::harness::{Folder, is_held, program, run, start, wait_held, wait_waiters};
use rustix::process::kill_process;
use std::time::{Duration, Instant};
use testbed::{Proxy, Server, Signal, wait_for};

#[test]
fn a_frozen_network_ends_the_command_before_the_lease_is_over() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let folder = Folder::new();
    let run = folder.beating(proxy.port(), &["-t", "3s", "-k", "1s"], &folder.stubborn());
    proxy.freeze(true);
    // The other goes by another way.
    folder.assert_over(server.port());
    // Both processes end it, and one of them tells it.
    assert_eq!(folder.read("told"), "told\n");
    let outcome = run.end();
    assert_eq!(outcome.code, Some(76));
    assert!(outcome.err.contains("could not be renewed"), "{}", outcome.err);
}

#[test]
fn a_server_that_stands_still_beyond_the_lease_ends_the_command() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-t", "2s", "-k", "500ms"], &folder.stubborn());
    server.signal(Signal::STOP);
    let pid = folder.number("pid");
    wait_for("the command to be killed", || !crate::process::lives(pid));
    server.signal(Signal::CONT);
    assert_eq!(run.end().code, Some(76));
    assert_eq!(crate::harness::run(server.port(), &["run", "k", "true"]).code, Some(0));
}

#[test]
fn a_lock_that_is_taken_away_ends_the_command_at_the_next_renewal() {
    let server = Server::new();
    let mut conn = server.connect();
    for words in [&["LOCK.BREAK", "k"][..], &["DEL", "k"], &["FLUSHALL"]] {
        let folder = Folder::new();
        let script = folder.heartbeat("trap 'exit 0' TERM");
        let run = folder.beating(server.port(), &["-t", "6s", "-k", "500ms"], &script);
        conn.call(words).unwrap();
        let outcome = run.end();
        assert_eq!(outcome.code, Some(76), "{words:?}");
        assert!(outcome.err.contains("the lock was lost"), "{}", outcome.err);
    }
}

#[test]
fn a_lock_that_is_taken_away_ends_a_command_that_does_not_mind_in_the_end() {
    let server = Server::new();
    let folder = Folder::new();
    // The lease would let it live on for another two seconds.
    let run = folder.beating(server.port(), &["-t", "3s", "-k", "300ms"], &folder.stubborn());
    server.connect().call(&["LOCK.BREAK", "k"]).unwrap();
    let outcome = run.end();
    assert_eq!((outcome.code, folder.line("told").as_str()), (Some(76), "told"), "{}", outcome.err);
}

#[test]
fn a_session_frees_the_lock_when_the_connection_breaks_and_not_before_the_command_is_dead() {
    let server = Server::new();
    let folder = Folder::new();
    let words = ["run", "-t", "1h", "--session", "3s", "-k", "500ms", "k", "-c", &folder.stubborn()];
    let run = start(server.port(), &words);
    folder.line("beat");
    let mut conn = server.connect();
    let extended = conn.info_number("lock", "lock_extended");
    wait_for("a renewal", || conn.info_number("lock", "lock_extended") > extended);
    kill_process(run.keeper(), Signal::KILL).unwrap();
    folder.assert_over(server.port());
    assert_eq!(run.end().code, Some(76));
}

#[test]
fn a_loss_that_only_the_release_shows_is_code_76() {
    let server = Server::new();
    let folder = Folder::new();
    let go = folder.text("go");
    let script = format!("while [ ! -e {go} ]; do sleep 0.01; done");
    let run = start(server.port(), &["run", "-t", "1h", "-k", "1s", "k", "-c", &script]);
    wait_held(&server, "k");
    server.connect().call(&["LOCK.BREAK", "k"]).unwrap();
    std::fs::write(go, "").unwrap();
    let outcome = run.end();
    assert_eq!(outcome.code, Some(76));
    assert!(outcome.err.contains("lost before its release"), "{}", outcome.err);
}

#[test]
fn without_killing_the_command_goes_on_and_the_code_tells_the_loss() {
    let server = Server::new();
    let folder = Folder::new();
    let script = "trap 'echo told' TERM; : >\"$1\"; while [ ! -e \"$0\" ]; do sleep 0.01; done; echo whole; exit 0";
    let [go, begun] = ["go", "begun"].map(|name| folder.text(name));
    let run = start(server.port(), &["run", "-t", "2s", "--no-kill", "k", "sh", "-c", script, &go, &begun]);
    wait_for("the command to begin", || folder.path("begun").exists());
    server.connect().call(&["LOCK.BREAK", "k"]).unwrap();
    assert_eq!(crate::harness::run(server.port(), &["run", "k", "touch", &folder.text("second")]).code, Some(0));
    // Another two leases.
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "clock", "me", "PX", "4000"]).is_some());
    wait_for("four seconds", || !is_held(&mut conn, "clock"));
    std::fs::write(folder.path("go"), "").unwrap();
    let outcome = run.end();
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(76), "whole\n"), "{}", outcome.err);
    assert!(outcome.err.contains("goes on"), "{}", outcome.err);
}

#[test]
fn a_server_that_never_comes_back_ends_the_command_and_not_sooner_than_needed() {
    let mut server = Server::new();
    let folder = Folder::new();
    let mut run = folder.beating(server.port(), &["-t", "6s", "-k", "500ms"], &folder.heartbeat(":"));
    server.stop(true);
    let begin = Instant::now();
    assert_eq!(run.code(), Some(76));
    // The last renewal was at most a third of the lease before. So there are 3.4 s, less what it came late.
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn a_release_that_fails_is_a_warning() {
    let mut server = Server::new();
    let folder = Folder::new();
    let go = folder.text("go");
    let script = format!("while [ ! -e {go} ]; do sleep 0.01; done; exit 3");
    let run = start(server.port(), &["run", "-t", "30s", "k", "-c", &script]);
    wait_held(&server, "k");
    server.stop(true);
    std::fs::write(go, "").unwrap();
    let outcome = run.end();
    assert_eq!(outcome.code, Some(3));
    assert!(outcome.err.contains("not released"), "{}", outcome.err);
}

#[test]
fn a_wait_through_a_restart_of_the_server_is_told_and_goes_on() {
    let mut server = Server::new();
    assert!(server.connect().int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    let folder = Folder::new();
    let waiting = folder.told(program(server.port(), &["run", "k", "echo", "ran"]));
    wait_waiters(&server, "k", 1);
    server.stop(true);
    wait_for("the user to be told", || folder.read("err").contains("goes on waiting"));
    server.start();
    let outcome = waiting.end();
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "ran\n"));
    assert_eq!(run(server.port(), &["run", "-n", "k", "true"]).code, Some(0));
}
