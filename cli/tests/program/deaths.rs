//! Each of the two processes killed, stopped, and continued.

use crate::harness::{Folder, Run, children, is_held, lives, run, start, state, wait_held, wait_waiters};
use rustix::process::kill_process;
use testbed::{Server, Signal, wait_for};

/// A run whose command writes its heartbeat, and does not mind TERM.
fn stubborn(server: &Server, folder: &Folder, options: &[&str]) -> Run {
    let script = folder.heartbeat("trap '' TERM");
    let run = start(server.port(), &[&["run"], options, &["k", "-c", &script]].concat());
    folder.line("beat");
    run
}

#[test]
fn when_the_parent_is_killed_the_command_is_ended_before_the_lock_is_released() {
    let server = Server::new();
    let folder = Folder::new();
    let mut run = stubborn(&server, &folder, &["-k", "300ms"]);
    let keeper = run.keeper();
    run.signal(Signal::KILL);
    // The lease is 30 s: it was released.
    let second = folder.second_holder(server.port(), "k");
    assert!(folder.last_beat() < second);
    assert!(!lives(folder.number("pid")));
    let keeper = keeper.as_raw_nonzero().get().unsigned_abs();
    wait_for("the keeper to end", || !lives(keeper));
}

#[test]
fn when_the_parent_is_killed_the_command_is_told_first() {
    let server = Server::new();
    let folder = Folder::new();
    let script = folder.heartbeat(&format!("trap 'echo told >> {}; exit' TERM", folder.text("told")));
    let mut run = start(server.port(), &["run", "-k", "10s", "k", "-c", &script]);
    folder.line("beat");
    run.keeper();
    run.signal(Signal::KILL);
    assert!(folder.last_beat() < folder.second_holder(server.port(), "k"));
    assert_eq!(folder.line("told"), "told");
}

#[test]
fn when_the_parent_is_killed_in_the_line_the_line_is_left() {
    let server = Server::new();
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    let mut waiting = start(server.port(), &["run", "k", "true"]);
    wait_waiters(&server, "k", 1);
    let keeper = waiting.keeper().as_raw_nonzero().get().unsigned_abs();
    waiting.signal(Signal::KILL);
    wait_waiters(&server, "k", 0);
    wait_for("the keeper to end", || !lives(keeper));
}

#[test]
fn when_the_keeper_is_killed_the_command_is_ended_before_the_lease_is_over() {
    let server = Server::new();
    let folder = Folder::new();
    let mut run = stubborn(&server, &folder, &["-t", "2s", "-k", "500ms"]);
    kill_process(run.keeper(), Signal::KILL).unwrap();
    let second = folder.second_holder(server.port(), "k");
    assert!(folder.last_beat() < second);
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
    let mut run = start(server.port(), &["run", "k", "-c", &script]);
    folder.line("up");
    kill_process(run.keeper(), Signal::KILL).unwrap();
    std::fs::write(go, "").unwrap();
    let outcome = run.end();
    assert_eq!(outcome.code, Some(5));
    assert!(outcome.err.contains("stays held until its lease ends"), "{}", outcome.err);
    assert!(is_held(&mut server.connect(), "k"));
}

#[test]
fn when_the_keeper_is_killed_in_the_line_it_is_code_69() {
    let server = Server::new();
    assert!(server.connect().int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    let mut waiting = start(server.port(), &["run", "k", "true"]);
    wait_waiters(&server, "k", 1);
    kill_process(waiting.keeper(), Signal::KILL).unwrap();
    assert_eq!(waiting.end().code, Some(69));
}

#[test]
fn when_the_keeper_is_stopped_the_command_is_ended_before_the_lease_is_over() {
    let server = Server::new();
    let folder = Folder::new();
    let mut run = stubborn(&server, &folder, &["-t", "2s", "-k", "500ms"]);
    let keeper = run.keeper();
    kill_process(keeper, Signal::STOP).unwrap();
    let second = folder.second_holder(server.port(), "k");
    assert!(folder.last_beat() < second);
    kill_process(keeper, Signal::CONT).unwrap();
    assert_eq!(run.end().code, Some(76));
}

#[test]
fn a_keeper_that_was_stopped_for_a_moment_renews_again() {
    let server = Server::new();
    let folder = Folder::new();
    let mut run = stubborn(&server, &folder, &["-t", "2s"]);
    let keeper = run.keeper();
    let mut conn = server.connect();
    for _ in 0..3 {
        kill_process(keeper, Signal::STOP).unwrap();
        let beats = folder.read("beat").lines().count();
        wait_for("some beats", || folder.read("beat").lines().count() > beats + 10);
        let extended = conn.info_number("lock", "lock_extended");
        kill_process(keeper, Signal::CONT).unwrap();
        wait_for("a renewal", || conn.info_number("lock", "lock_extended") > extended);
    }
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130));
}

#[test]
fn while_the_parent_is_stopped_the_lock_is_renewed_and_the_command_goes_on() {
    let server = Server::new();
    let folder = Folder::new();
    let run = stubborn(&server, &folder, &["-t", "2s"]);
    let mut conn = server.connect();
    run.signal(Signal::STOP);
    let fence = conn.lock_info("k").unwrap().fence;
    let extended = conn.info_number("lock", "lock_extended");
    // Two leases and more.
    wait_for("renewals", || conn.info_number("lock", "lock_extended") >= extended + 7);
    let beats = folder.read("beat").lines().count();
    wait_for("more beats", || folder.read("beat").lines().count() > beats + 3);
    assert_eq!(conn.lock_info("k").unwrap().fence, fence);
    run.signal(Signal::CONT);
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130));
}

#[test]
fn while_the_parent_is_stopped_the_end_of_the_command_releases_the_lock() {
    let server = Server::new();
    let folder = Folder::new();
    let run = start(server.port(), &["run", "k", "sh", "-c", &folder.heartbeat("trap 'exit 4' TERM")]);
    folder.line("beat");
    run.signal(Signal::STOP);
    let pid = rustix::process::Pid::from_raw(folder.number("pid").cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_for("the release", || !is_held(&mut server.connect(), "k"));
    run.signal(Signal::CONT);
    let outcome = run.end();
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(4), ""));
}

#[test]
fn while_the_parent_is_stopped_the_keeper_ends_the_command_in_time() {
    let server = Server::new();
    let folder = Folder::new();
    let proxy = testbed::Proxy::to(server.port());
    let script = folder.heartbeat("trap '' TERM");
    let run = start(proxy.port(), &["run", "-t", "2s", "-k", "500ms", "k", "-c", &script]);
    folder.line("beat");
    run.signal(Signal::STOP);
    proxy.freeze(true);
    let second = folder.second_holder(server.port(), "k");
    assert!(folder.last_beat() < second);
    run.signal(Signal::CONT);
    assert_eq!(run.end().code, Some(76));
}

#[test]
fn a_signal_to_all_processes_ends_the_command_with_its_own_code() {
    let server = Server::new();
    let folder = Folder::new();
    let mut run = start(server.port(), &["run", "k", "-c", &folder.heartbeat("trap 'exit 3' TERM")]);
    folder.line("beat");
    let keeper = run.keeper();
    // As a service manager sends it to a whole control group.
    let command = rustix::process::Pid::from_raw(folder.number("pid").cast_signed()).unwrap();
    for pid in [keeper, rustix::process::Pid::from_child(&run.child), command] {
        kill_process(pid, Signal::TERM).unwrap();
    }
    assert_eq!(run.end().code, Some(3));
    assert!(!is_held(&mut server.connect(), "k"));
}

#[test]
fn the_keeper_ignores_what_can_be_ignored_and_has_no_file_of_its_starter() {
    let server = Server::new();
    let mut run = start(server.port(), &["run", "k", "sleep", "1000"]);
    wait_held(&server, "k");
    let keeper = run.keeper();
    let number = keeper.as_raw_nonzero().get().unsigned_abs();
    for signal in 1..=31 {
        if let Some(signal) = Signal::from_named_raw(signal).filter(|s| ![Signal::KILL, Signal::STOP].contains(s)) {
            kill_process(keeper, signal).unwrap();
        }
    }
    let mut conn = server.connect();
    assert!(lives(number) && is_held(&mut conn, "k"));
    for file in std::fs::read_dir(format!("/proc/{number}/fd")).unwrap().flatten() {
        let to = std::fs::read_link(file.path()).unwrap_or_default().display().to_string();
        let known = ["socket:", "anon_inode:", "/dev/null"];
        assert!(known.iter().any(|known| to.starts_with(known)), "{to}");
    }
    // A session of its own: no terminal reaches it.
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
    assert_eq!(stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap(), number.to_string());
    // The command has none of their files.
    let is_sleep = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default() == "sleep\n";
    let find = || children(run.child.id()).into_iter().find(is_sleep);
    wait_for("the command", || find().is_some());
    let command = find().unwrap();
    // It has what any other process has that is started here.
    let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    wait_for("the other", || is_sleep(&other.id()));
    let there = files(other.id());
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(files(command), there);
}

fn files(pid: u32) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let mut files: Vec<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    files.sort();
    files
}

#[test]
fn a_pipe_behind_it_ends_after_either_process_was_killed() {
    let server = Server::new();
    for victim in ["__keeper", ""] {
        let folder = Folder::new();
        let mut run = start(server.port(), &["run", "-t", "2s", "k", "-c", &folder.heartbeat(":")]);
        folder.line("beat");
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
fn a_stopped_command_goes_on_only_when_the_lock_was_renewed() {
    let server = Server::new();
    let folder = Folder::new();
    let run = start(server.port(), &["run", "-t", "3s", "k", "-c", &folder.heartbeat(":")]);
    folder.line("beat");
    let pid = folder.number("pid");
    run.signal(Signal::TSTP);
    // The command stopped before. Its own state need not say so: while it starts another program it is D.
    wait_for("the program to stop", || state(run.child.id()) == 'T');
    let stood_at = folder.read("beat").lines().count();
    let mut conn = server.connect();
    let extended = conn.info_number("lock", "lock_extended");
    wait_for("renewals meanwhile", || conn.info_number("lock", "lock_extended") >= extended + 4);
    assert_eq!(folder.read("beat").lines().count(), stood_at);
    // Now nothing is answered: it must not go on.
    server.signal(Signal::STOP);
    run.signal(Signal::CONT);
    let beats = folder.read("beat").lines().count();
    wait_for("the command to be killed", || !lives(pid));
    assert_eq!(folder.read("beat").lines().count(), beats);
    server.signal(Signal::CONT);
    assert_eq!(run.end().code, Some(76));
}

#[test]
fn a_stopped_command_goes_on_when_it_is_continued() {
    let server = Server::new();
    let folder = Folder::new();
    let run = start(server.port(), &["run", "k", "-c", &folder.heartbeat(":")]);
    folder.line("beat");
    for _ in 0..3 {
        run.signal(Signal::TSTP);
        wait_for("the program to stop", || state(run.child.id()) == 'T');
        run.signal(Signal::CONT);
        let beats = folder.read("beat").lines().count();
        wait_for("more beats", || folder.read("beat").lines().count() > beats + 2);
    }
    run.signal(Signal::TERM);
    assert_eq!(run.end().code, Some(143));
}

#[test]
fn as_the_first_process_of_a_container_it_reaps_orphans() {
    let server = Server::new();
    let program = env!("CARGO_BIN_EXE_redis-lock");
    // The orphan leaves the group, and ends at once. Then nothing of it may be left.
    let script = "setsid sh -c 'sh -c \"exit 0\" & exit' & wait; until ! grep -lsE '^State:.Z' /proc/[0-9]*/status; do sleep 0.01; done; exit 6";
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", program, "run", "k", "-c", script]);
    command.env("REDIS_LOCK_URL", format!("redis://127.0.0.1:{}", server.port()));
    let output = command.output().unwrap();
    if output.status.code() == Some(1) {
        return testbed::say_not_run("program", "no right to make a PID namespace");
    }
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert_eq!(run(server.port(), &["run", "-n", "k", "true"]).code, Some(0));
}

#[test]
fn when_both_are_killed_the_command_is_told_by_the_kernel() {
    let server = Server::new();
    let folder = Folder::new();
    let script = folder.heartbeat(&format!("trap 'echo told >> {}; exit' TERM", folder.text("told")));
    let mut run = start(server.port(), &["run", "k", "-c", &script]);
    folder.line("beat");
    kill_process(run.keeper(), Signal::KILL).unwrap();
    run.signal(Signal::KILL);
    assert_eq!(folder.line("told"), "told");
}
