//! What the two processes share with others, and what they do not: signals, descriptors, sessions, orphans.

use crate::harness::{Folder, Run, is_held, not_run, program, program_at, run, start, wait_held};
use crate::process::{self, files, lives, pid};
use rustix::process::kill_process;
use std::fs;
use std::path::{Path, PathBuf};
use testbed::{Server, Signal, wait_for};

#[test]
fn the_keeper_ignores_what_can_be_ignored_in_a_session_of_its_own() {
    let server = Server::new();
    let run = start(server.port(), &["run", "k", "sleep", "1000"]);
    wait_held(&server, "k");
    let keeper = run.keeper();
    let number = keeper.as_raw_nonzero().get().unsigned_abs();
    for signal in 1..=31 {
        if let Some(signal) = Signal::from_named_raw(signal).filter(|s| ![Signal::KILL, Signal::STOP].contains(s)) {
            kill_process(keeper, signal).unwrap();
        }
    }
    assert!(lives(number) && is_held(&mut server.connect(), "k"));
    // No terminal reaches it.
    assert_eq!(process::fields(number)[3], number.to_string());
}

/// A shell that opens a pipe and two files for the program that takes its place, as a careless starter does.
const WITH_FILES: &str = "exec 7> \"$0\" 8< \"$0\" 9> >(cat); exec \"$@\"";

#[test]
fn the_keeper_has_no_file_of_its_starter_and_the_command_has_those_alone() {
    let server = Server::new();
    let folder = Folder::new();
    let with_files = |words: &[&str]| {
        let mut command = program_at(Path::new("bash"), server.port(), &["-c", WITH_FILES, &folder.text("file")]);
        command.args(words);
        Run::of(command)
    };
    let is_sleep = |pid: &u32| process::words(*pid).first().is_some_and(|word| word == "sleep");
    let sleep_of = |run: &Run| {
        wait_for("the command", || run.processes().iter().any(is_sleep));
        run.processes().into_iter().find(is_sleep).unwrap()
    };
    let run = with_files(&[env!("CARGO_BIN_EXE_redis-lock"), "run", "k", "sleep", "1000"]);
    let command = sleep_of(&run);
    // It has what it has without the program before it.
    let other = with_files(&["sleep", "1000"]);
    let numbers = |pid: u32| files(pid).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    let (other, same) = (sleep_of(&other), "the files to be the same");
    // While a program is loaded it has one more.
    wait_for(same, || numbers(command) == numbers(other));
    assert!(numbers(command).contains(&9));
    let keeper = run.keeper().as_raw_nonzero().get().unsigned_abs();
    assert_eq!(fs::read_link(format!("/proc/{keeper}/cwd")).unwrap(), Path::new("/"));
    for (number, to) in files(keeper) {
        let known = ["socket:", "anon_inode:", "/dev/null"];
        assert!(known.iter().any(|known| to.starts_with(known)), "{number}: {to}");
    }
}

#[test]
fn as_the_first_process_of_a_container_it_reaps_orphans() {
    let server = Server::new();
    // The orphan leaves the group, and ends when its parent is gone. Then nothing of it may be left.
    let script = "setsid sh -c 'sleep 0.2 & exit' & wait; sleep 0.3; \
                  while grep -qsE '^State:.Z' /proc/[0-9]*/status; do sleep 0.01; done; exit 6";
    let words = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut command = program_at(Path::new("unshare"), server.port(), &words);
    command.args([env!("CARGO_BIN_EXE_redis-lock"), "run", "k", "-c", script]);
    let outcome = Run::of(command).end();
    if outcome.code == Some(1) {
        return not_run("no right to make a PID namespace");
    }
    assert_eq!(outcome.code, Some(6), "{outcome:?}");
    assert_eq!(run(server.port(), &["run", "-n", "k", "true"]).code, Some(0));
}

/// A control group of this machine, such as a service manager makes for each service.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// None where there are none, or no right to make one.
    fn new() -> Option<ControlGroup> {
        let mounts = fs::read_to_string("/proc/mounts").ok()?;
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?.split(' ').nth(1)?;
        let path = Path::new(mount).join(format!("redis-lock-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = ControlGroup(path);
        let enter = program_at(Path::new("sh"), 0, &["-c", &group.enter("true")]);
        (Run::of(enter).end().code == Some(0)).then_some(group)
    }

    /// A line for a shell that enters the group, and then does this.
    fn enter(&self, then: &str) -> String {
        format!("echo $$ > {}/cgroup.procs && {then}", self.0.display())
    }

    fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        fs::write(self.0.join("cgroup.kill"), "1").ok();
        wait_for("the control group to be empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn a_signal_to_a_whole_control_group_ends_the_command_with_its_own_code() {
    let server = Server::new();
    let folder = Folder::new();
    let script = folder.heartbeat(&format!("trap 'echo told >> {}; sleep 0.2; exit 3' TERM", folder.text("told")));
    let group = ControlGroup::new();
    let run = match &group {
        Some(group) => {
            let enter = group.enter("exec \"$0\" \"$@\"");
            let made = program(server.port(), &["run", "k", "-c", &script]);
            let mut command = program_at(Path::new("sh"), server.port(), &["-c", &enter]);
            command.arg(made.get_program()).args(made.get_args());
            Run::of(command)
        }
        None => start(server.port(), &["run", "k", "-c", &script]),
    };
    folder.line("beat");
    // One after the other, as a service manager does it.
    let processes = group.as_ref().map_or_else(|| run.processes(), ControlGroup::processes);
    assert!(processes.len() >= 3 && processes.contains(&run.child.id()), "{processes:?}");
    for process in processes {
        // Its sleep may have ended meanwhile.
        kill_process(pid(process), Signal::TERM).ok();
    }
    assert_eq!(run.end().code, Some(3));
    assert!(!is_held(&mut server.connect(), "k"));
    if group.is_none() {
        not_run("no right to make a control group: the signal went to each process");
    }
}
