//! Signals: while it waits, and while the command runs.

use crate::harness::{Folder, Run, is_held, program, program_at, queued, start, taken, wait_waiters};
use std::path::Path;
use std::process::Stdio;
use testbed::{Server, Signal, wait_for};

const ENDING: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

#[test]
fn a_signal_ends_the_wait_and_leaves_the_queue() {
    let (server, mut conn) = taken();
    for signal in ENDING {
        let waiting = queued(&server, &["run", "k", "echo", "ran"]);
        waiting.signal(signal);
        let outcome = waiting.end();
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(128 + signal.as_raw()), ""), "{}", outcome.err);
        assert!(conn.lock_info("k").unwrap().waiters.is_empty(), "{signal:?}");
    }
}

#[test]
fn a_signal_ends_a_wait_for_a_server_that_does_not_answer() {
    let server = Server::new();
    server.signal(Signal::STOP);
    let mut waiting = start(server.port(), &["run", "k", "true"]);
    waiting.keeper();
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.code(), Some(143));
    server.signal(Signal::CONT);
}

#[test]
fn signals_reach_the_command_and_all_of_its_group() {
    let server = Server::new();
    for signal in [Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2, Signal::WINCH] {
        let folder = Folder::new();
        let (ready, got) = (folder.text("ready"), folder.text("got"));
        let number = signal.as_raw();
        // The shell behind it is of the same group.
        let trap =
            format!("trap 'echo $$ >> {got}; exit 9' {number}; echo $$ >> {ready}; while :; do sleep 0.01; done");
        let script = format!("sh -c \"$0\" & trap 'wait; exit 8' {number}; sh -c \"$0\"; exit 1");
        let run = start(server.port(), &["run", "k", "sh", "-c", &script, &trap]);
        wait_for("both shells", || folder.read("ready").lines().count() == 2);
        run.signal(signal);
        let outcome = run.end();
        assert_eq!(outcome.code, Some(8), "{signal:?}: {}", outcome.err);
        assert_eq!(folder.read("got").lines().count(), 2, "{signal:?}");
        assert!(!is_held(&mut server.connect(), "k"));
    }
}

#[test]
fn the_keys_of_a_terminal_reach_the_command() {
    let server = Server::new();
    // What a shell starts in the background ignores these two, so there is one shell.
    for signal in [Signal::INT, Signal::QUIT] {
        let folder = Folder::new();
        let number = signal.as_raw();
        let script = format!("trap 'exit 8' {number}; echo up > {}; while :; do sleep 0.01; done", folder.text("up"));
        let run = start(server.port(), &["run", "k", "-c", &script]);
        folder.line("up");
        run.signal(signal);
        assert_eq!(run.end().code, Some(8), "{signal:?}");
    }
}

#[test]
fn a_command_that_ignores_a_signal_goes_on_under_the_lock() {
    let server = Server::new();
    let folder = Folder::new();
    let script = format!("trap '' TERM; echo up > {}; read line; echo $line", folder.text("up"));
    let mut command = program(server.port(), &["run", "-t", "6s", "k", "-c", &script]);
    command.stdin(Stdio::piped());
    let mut run = Run::of(command);
    folder.line("up");
    run.signal(Signal::TERM);
    let mut conn = server.connect();
    let fence = conn.lock_info("k").unwrap().fence;
    let extended = conn.info_number("lock", "lock_extended");
    wait_for("renewals after the signal", || conn.info_number("lock", "lock_extended") >= extended + 4);
    assert_eq!(conn.lock_info("k").unwrap().fence, fence);
    std::io::Write::write_all(&mut run.child.stdin.take().unwrap(), b"done\n").unwrap();
    let outcome = run.end();
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "done\n"));
}

#[test]
fn what_was_ignored_at_the_start_stays_ignored() {
    let server = Server::new();
    let folder = Folder::new();
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    // As nohup does it.
    let made = program(server.port(), &["run", "k", "sh", "-c"]);
    let script = format!("echo up > {}; read line; grep SigIgn /proc/$$/status", folder.text("up"));
    let words = ["-c", "trap '' HUP; exec \"$@\"", "sh"];
    let mut command = program_at(Path::new("sh"), server.port(), &words);
    command.arg(made.get_program()).args(made.get_args()).arg(&script).stdin(Stdio::piped());
    let mut run = Run::of(command);
    wait_waiters(&server, "k", 1);
    run.signal(Signal::HUP);
    conn.int(&["LOCK.RELEASE", "k", "other"]);
    folder.line("up");
    run.signal(Signal::HUP);
    std::io::Write::write_all(&mut run.child.stdin.take().unwrap(), b"done\n").unwrap();
    let outcome = run.end();
    assert_eq!(outcome.code, Some(0));
    let ignored = u64::from_str_radix(outcome.out.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(ignored & 1, 1, "SIGHUP is ignored: {}", outcome.out);
    // Nothing else is, least of all SIGPIPE; but for two that the C library has for itself.
    assert_eq!(ignored & !1 & !(0b11 << 31), 0, "{}", outcome.out);
}

#[test]
fn a_starter_that_leaves_its_children_to_the_system_changes_no_exit_code() {
    let server = Server::new();
    let words = ["-c", "trap '' CHLD; exec \"$0\" run k sh -c 'exit 7'", env!("CARGO_BIN_EXE_redis-lock")];
    assert_eq!(Run::of(program_at(Path::new("bash"), server.port(), &words)).end().code, Some(7));
}

#[test]
fn a_pipe_that_nobody_reads_ends_the_command() {
    let server = Server::new();
    let program = env!("CARGO_BIN_EXE_redis-lock");
    let script = format!("{program} run k yes | head -n 1; echo \"${{PIPESTATUS[0]}}\"");
    let command = program_at(Path::new("bash"), server.port(), &["-c", &script]);
    assert_eq!(Run::of(command).end().out, "y\n141\n");
}
