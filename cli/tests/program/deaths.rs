//! One of the two processes is killed, or both are.

use crate::harness::{Folder, Run, is_held, program_at, queued, start, taken, wait_waiters};
use crate::process::{self, lives, words};
use rustix::process::{Pid, kill_process};
use std::path::Path;
use testbed::{Server, Signal, wait_for};

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

#[test]
fn when_the_parent_is_killed_the_command_is_ended_before_the_lock_is_released() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-k", "300ms"], &folder.stubborn());
    let keeper = number(run.keeper());
    run.signal(Signal::KILL);
    // The lease is 30 s: it was released.
    folder.assert_over(server.port());
    assert!(!lives(folder.number("pid")));
    assert_eq!(folder.line("told"), "told");
    wait_for("the keeper to end", || !lives(keeper));
}

#[test]
fn when_the_parent_is_killed_all_of_the_group_is_told_and_what_stays_is_killed() {
    let server = Server::new();
    let folder = Folder::new();
    // The kernel tells the command alone, which ends. The shell behind it is told by the keeper.
    let script = "sh -c \"$0\" & wait";
    let run = start(server.port(), &["run", "-k", "500ms", "k", "sh", "-c", script, &folder.stubborn()]);
    folder.line("beat");
    run.keeper();
    run.signal(Signal::KILL);
    folder.assert_over(server.port());
    assert_eq!(folder.line("told"), "told");
}

/// A run whose parent stands still since it waited for the lock, and whose keeper has it by now.
fn granted_to_a_stopped_parent(server: &Server, folder: &Folder) -> Run {
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    let run = start(server.port(), &["run", "k", "touch", &folder.text("begun")]);
    wait_waiters(server, "k", 1);
    let keeper = number(run.keeper());
    run.signal(Signal::STOP);
    conn.int(&["LOCK.RELEASE", "k", "other"]);
    // It watches over the hold, and has nothing more to do: then it has told the parent.
    let watches = || process::threads(keeper).iter().any(|name| name.starts_with("redis-lock-watc"));
    wait_for("the keeper to have the lock", || watches() && process::state(keeper) == 'S');
    run
}

#[test]
fn when_the_parent_is_killed_before_the_command_begins_the_lock_is_released() {
    let server = Server::new();
    let folder = Folder::new();
    let run = granted_to_a_stopped_parent(&server, &folder);
    let mut conn = server.connect();
    assert!(is_held(&mut conn, "k"));
    run.signal(Signal::KILL);
    wait_for("the release", || !is_held(&mut conn, "k"));
    assert!(!folder.path("begun").exists());
}

#[test]
fn a_command_begins_only_when_the_keeper_knows_its_group() {
    let server = Server::new();
    let folder = Folder::new();
    let run = granted_to_a_stopped_parent(&server, &folder);
    // It stands still before it hears of the command.
    let keeper = run.keeper();
    testbed::send(keeper, Signal::STOP);
    run.signal(Signal::CONT);
    let is_starter = |pid: &u32| words(*pid).iter().any(|word| word == "__command");
    wait_for("the command to stand at the gate", || run.processes().iter().any(is_starter));
    // Another begins and ends meanwhile.
    assert_eq!(crate::harness::run(server.port(), &["run", "other", "true"]).code, Some(0));
    // Nobody else could end the command if the parent died now.
    kill_process(keeper, Signal::KILL).unwrap();
    let outcome = run.end();
    assert_eq!(outcome.code, Some(76), "{}", outcome.err);
    assert!(!folder.path("begun").exists());
}

#[test]
fn a_command_does_not_begin_when_the_lock_is_lost_before() {
    let server = Server::new();
    let mut conn = server.connect();
    for option in ["--verbose", "--no-kill"] {
        let folder = Folder::new();
        assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
        let run = queued(&server, &["run", "-t", "2s", option, "k", "touch", &folder.text("begun")]);
        let keeper = number(run.keeper());
        run.signal(Signal::STOP);
        conn.int(&["LOCK.RELEASE", "k", "other"]);
        let watches = || process::threads(keeper).iter().any(|name| name.starts_with("redis-lock-watc"));
        wait_for("the keeper to have the lock", watches);
        conn.call(&["LOCK.BREAK", "k"]).unwrap();
        wait_for("the keeper to find out", || !watches());
        run.signal(Signal::CONT);
        let outcome = run.end();
        assert_eq!(outcome.code, Some(76), "{option}: {}", outcome.err);
        assert!(!folder.path("begun").exists(), "{option}");
    }
}

#[test]
fn when_the_parent_is_killed_in_the_queue_the_queue_is_left() {
    let (server, _conn) = taken();
    let waiting = queued(&server, &["run", "k", "true"]);
    let keeper = number(waiting.keeper());
    waiting.signal(Signal::KILL);
    wait_waiters(&server, "k", 0);
    wait_for("the keeper to end", || !lives(keeper));
}

#[test]
fn when_the_keeper_is_killed_the_command_is_ended_before_the_lease_is_over() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-t", "2s", "-k", "500ms"], &folder.stubborn());
    kill_process(run.keeper(), Signal::KILL).unwrap();
    folder.assert_over(server.port());
    assert_eq!(folder.line("told"), "told");
    let outcome = run.end();
    assert_eq!(outcome.code, Some(76));
    assert!(outcome.err.contains("has died"), "{}", outcome.err);
}

#[test]
fn when_the_keeper_is_killed_a_command_that_ends_in_time_keeps_its_code() {
    let server = Server::new();
    let folder = Folder::new();
    let go = folder.text("go");
    let script = format!("echo up > {}; while [ ! -e {go} ]; do sleep 0.01; done; exit 5", folder.text("up"));
    let run = start(server.port(), &["run", "k", "-c", &script]);
    folder.line("up");
    kill_process(run.keeper(), Signal::KILL).unwrap();
    std::fs::write(go, "").unwrap();
    let outcome = run.end();
    assert_eq!(outcome.code, Some(5));
    assert!(outcome.err.contains("stays held until its lease ends"), "{}", outcome.err);
    assert!(is_held(&mut server.connect(), "k"));
}

#[test]
fn when_the_keeper_is_killed_in_the_queue_it_is_code_69() {
    let (server, _conn) = taken();
    let waiting = queued(&server, &["run", "k", "true"]);
    kill_process(waiting.keeper(), Signal::KILL).unwrap();
    assert_eq!(waiting.end().code, Some(69));
}

#[test]
fn a_pipe_behind_it_ends_after_either_process_was_killed() {
    let server = Server::new();
    for victim in ["__keeper", ""] {
        let folder = Folder::new();
        let run = folder.beating(server.port(), &["-t", "2s"], &folder.heartbeat(":"));
        let keeper = run.keeper();
        if victim.is_empty() {
            run.signal(Signal::KILL);
        } else {
            kill_process(keeper, Signal::KILL).unwrap();
        }
        // This reads to the end of its output.
        let outcome = run.end();
        assert_eq!(outcome.code, if victim.is_empty() { None } else { Some(76) });
    }
}

#[test]
fn a_command_whose_parent_died_before_it_could_hear_of_that_does_not_begin() {
    let folder = Folder::new();
    // As the parent starts it, with the gate open; but that parent is another process.
    let script = "printf x | \"$0\" __command 0 \"$1\" touch \"$2\"";
    let begin = |parent: &str| {
        let words = ["-c", script, env!("CARGO_BIN_EXE_redis-lock"), parent, &folder.text("begun")];
        Run::of(program_at(Path::new("sh"), 0, &words)).end().code
    };
    assert_eq!(begin("1"), Some(143));
    assert!(!folder.path("begun").exists());
}

#[test]
fn when_both_are_killed_the_command_is_told_by_the_kernel() {
    let server = Server::new();
    let folder = Folder::new();
    let script = folder.heartbeat(&format!("trap 'echo told >> {}; exit' TERM", folder.text("told")));
    let run = folder.beating(server.port(), &[], &script);
    kill_process(run.keeper(), Signal::KILL).unwrap();
    run.signal(Signal::KILL);
    assert_eq!(folder.line("told"), "told");
}
