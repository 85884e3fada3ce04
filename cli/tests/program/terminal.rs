//! A terminal: what its keys do, and which process group has it. Played by a program behind a pseudo-terminal.

use crate::harness::{Folder, Run, is_held, not_run, program_at, python};
use crate::process::state;
use std::process::{Command, Stdio};
use testbed::{Server, wait_for};

/// The program that plays this scene.
fn player(server: &Server, scene: &str) -> Command {
    let python = python();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/terminal.py");
    let mut command = program_at(&python, server.port(), &[script, scene]);
    command.env("PROGRAM", env!("CARGO_BIN_EXE_redis-lock"));
    command
}

/// Plays this scene to its end.
fn play(server: &Server, scene: &str) {
    let command = player(server, scene);
    let outcome = Run::of(command).end();
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    if let Some(why) = outcome.out.lines().find_map(|line| line.strip_prefix("not run: ")) {
        not_run(why);
    }
}

#[test]
fn a_shell_with_a_terminal_can_interrupt_stop_continue_and_pipe_it() {
    play(&Server::new(), "keys");
}

#[test]
fn a_lock_is_broken_when_yes_is_answered_for_those_that_held_it_when_asked() {
    let server = Server::new();
    play(&server, "question");
    assert!(!is_held(&mut server.connect(), "k"));
}

#[test]
fn a_terminal_that_is_closed_ends_the_command_and_the_wait() {
    let server = Server::new();
    // The run ends only when nothing is left of it.
    play(&server, "closed");
    let mut conn = server.connect();
    for key in ["alone", "front", "back"] {
        wait_for("the release", || !is_held(&mut conn, key));
        assert!(conn.lock_info(key).is_none_or(|info| info.waiters.is_empty()), "{key}");
    }
}

#[test]
fn a_command_that_reads_a_terminal_without_a_shell_stays_stopped() {
    let server = Server::new();
    let folder = Folder::new();
    let mut command = player(&server, "orphan");
    command.env("UP", folder.path("up")).stdin(Stdio::piped());
    let run = Run::of(command);
    folder.line("up");
    let mut conn = server.connect();
    let extended = conn.info_number("lock", "lock_extended");
    assert!(conn.int(&["LOCK.ACQUIRE", "clock", "me", "PX", "3000"]).is_some());
    let is_stopped = |pid: &u32| state(*pid) == 'T';
    wait_for("it to be stopped", || run.processes().iter().any(is_stopped));
    wait_for("three seconds", || !is_held(&mut conn, "clock"));
    // Each time that it were continued, the lock would be renewed.
    let extended = conn.info_number("lock", "lock_extended") - extended;
    assert!(extended < 20, "{extended} renewals");
}
