//! What docs/guide/command-line.md shows: its examples are run as cron, systemd, Kubernetes and a CI pipeline run them.

use crate::harness::{Folder, Run, program, program_at, wait_held, wait_waiters};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use testbed::{Server, Signal, wait_for};

const PAGE: &str = include_str!("../../../docs/guide/command-line.md");

/// The only block of this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

/// The line that begins with this, without it.
fn line(block: &'static str, start: &str) -> &'static str {
    block.lines().find_map(|line| line.strip_prefix(start)).unwrap()
}

/// The fields of an object of JSON, in the row of the table that begins with this.
pub(crate) fn json_names(row: &str) -> BTreeSet<&'static str> {
    let fields = line(PAGE, &format!("| {row} | "));
    fields.split('`').skip(1).step_by(2).collect()
}

/// A machine on which the programs of the examples are installed.
fn machine(script: &str) -> Folder {
    let folder = Folder::new();
    symlink(env!("CARGO_BIN_EXE_redis-lock"), folder.path("redis-lock")).unwrap();
    for name in ["report", "scheduler"] {
        fs::write(folder.path("script"), format!("#!/bin/sh\n{script}\n")).unwrap();
        folder.install(&folder.text("script"), "755", name);
    }
    folder
}

fn shell(server: &Server, folder: &Folder, command: &str) -> Run {
    // Packages install redis-lock in /usr/bin, a site its own programs in /usr/local/bin.
    let command = command.replace("/usr/bin/redis-lock", &folder.text("redis-lock"));
    let words = ["-c", &command.replace("/usr/local/bin/", &folder.text(""))];
    let mut shell = program_at(Path::new("/bin/sh"), server.port(), &words);
    shell.env("PATH", format!("{}:/usr/bin:/bin", folder.text("")));
    Run::of(shell)
}

#[test]
fn of_all_machines_with_that_crontab_one_runs_the_command() {
    let server = Server::new();
    let command = line(block("crontab"), "0 3 * * * ");
    let machines: Vec<Folder> = (0..3).map(|_| machine("echo ran")).collect();
    let runs: Vec<Run> = machines.iter().map(|folder| shell(&server, folder, command)).collect();
    let outcomes: Vec<_> = runs.into_iter().map(Run::end).collect();
    assert!(outcomes.iter().all(|outcome| outcome.code == Some(0)), "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.out == "ran\n").count(), 1, "{outcomes:?}");
}

#[test]
fn a_late_write_of_the_example_is_refused() {
    let server = Server::new();
    let (_, example) = PAGE.split_once("```sh\nredis-lock check").unwrap();
    let example = format!("redis-lock check{}", example.split_once("```").unwrap().0);
    let machine = machine(&format!("text=$1\n$2\n{}", example.replacen("\n", "\n$3\n", 1)));
    let run =
        |words: &str| shell(&server, &machine, &format!("redis-lock run --no-kill {{report}}:lock report {words}"));
    assert_eq!(run("first").end().code, Some(0));
    let lose = format!("'redis-cli -p {} LOCK.BREAK {{report}}:lock'", server.port());
    for words in [format!("second {lose} ''"), format!("second '' {lose}")] {
        // The lock was lost, whatever the command says.
        let outcome = run(&words).end();
        assert_eq!(outcome.code, Some(76), "{}", outcome.err);
    }
    assert_eq!(server.connect().get::<String>(&["GET", "{report}:text"]), "first");
}

#[test]
fn the_user_of_the_page_has_all_the_rights_that_are_needed() {
    let server = Server::new();
    let user = PAGE.lines().find_map(|line| line.strip_prefix("ACL SETUSER ")).unwrap();
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(user.split(' ')).collect();
    let mut conn = server.connect();
    conn.ok(&words);
    let url = |database: &str| format!("redis://jobs:change-me@127.0.0.1:{}{database}", server.port());
    let run = |url: &str, options: &[&str]| {
        let mut command = program(server.port(), &[&["run", "-v"], options, &["nightly-report", "sh", "-c"]].concat());
        command.env("REDIS_LOCK_URL", url).args(["\"$0\" check", env!("CARGO_BIN_EXE_redis-lock")]);
        Run::of(command).end()
    };
    let outcome = run(&url(""), &["--at-least", "40s"]);
    assert!(outcome.code == Some(0) && outcome.err.contains("stays for"), "{}", outcome.err);
    conn.int(&["LOCK.BREAK", "nightly-report"]);
    for (right, url, options) in
        [("+lock.rw", url(""), &["-s"][..]), ("+lock.share", url(""), &["-N", "3"]), ("+select", url("/2"), &[])]
    {
        assert_eq!(run(&url, options).code, Some(69), "{right}");
        conn.ok(&["ACL", "SETUSER", "jobs", right]);
        let outcome = run(&url, options);
        assert_eq!(outcome.code, Some(0), "{right}: {}", outcome.err);
    }
    // It waits, and says for whom.
    assert!(conn.int(&["LOCK.ACQUIRE", "nightly-report", "other", "PX", "600000"]).is_some());
    let waiting = run(&url(""), &["-w", "500ms"]);
    assert_eq!(waiting.code, Some(75), "{}", waiting.err);
}

/// The users for operators, as ACL SETUSER has them: the first may look, the second may also break.
pub(crate) fn users() -> impl Iterator<Item = &'static str> {
    PAGE.lines().filter_map(|line| line.strip_prefix("ACL SETUSER ")).skip(1)
}

#[test]
fn the_users_for_operators_may_do_what_the_page_says_and_no_more() {
    let server = Server::new();
    let mut conn = server.connect();
    for (user, may_break) in users().zip([false, true]) {
        let name = user.split(' ').next().unwrap();
        conn.ok(&["ACL", "SETUSER"].into_iter().chain(user.split(' ')).collect::<Vec<_>>());
        assert!(conn.int(&["LOCK.ACQUIRE", "k", "me", "PX", "600000"]).is_some());
        let asked = |words: &[&str]| {
            let mut command = program(server.port(), words);
            command.env("REDIS_LOCK_URL", format!("redis://{name}:change-me@127.0.0.1:{}", server.port()));
            Run::of(command).end()
        };
        assert!(asked(&["ls"]).err.contains("1 lock in database 0, went through 1 key"), "{name}");
        let other = format!("redis://{name}:change-me@127.0.0.1:{}/2", server.port());
        assert_eq!(asked(&["-u", &other, "ls"]).code, Some(0), "{name}");
        for words in [&["info", "k"][..], &["log"]] {
            assert_eq!(asked(words).code, Some(0), "{name} {words:?}");
        }
        assert_eq!(asked(&["break", "--yes", "k"]).code, Some(if may_break { 0 } else { 69 }), "{name}");
        assert_eq!(asked(&["run", "-n", "other", "true"]).code, Some(69), "{name}");
    }
}

#[test]
fn scripts_hold_locks_as_the_page_shows() {
    let server = Server::new();
    let machine = machine("redis-lock info nightly-report; redis-lock run -n nightly-report true; echo $?");
    fs::write(machine.path("job"), block("bash")).unwrap();
    let outcome = shell(&server, &machine, &format!("cd {}; bash job", machine.text(""))).end();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.out.starts_with("nightly-report: write") && outcome.out.ends_with("\n75\n"), "{outcome:?}");
    assert!(server.connect().lock_info("nightly-report").is_none());
    let (_, tokens) = PAGE.split_once("```sh\nredis-lock acquire").unwrap();
    let tokens = tokens.split_once("```").unwrap().0;
    let outcome =
        shell(&server, &machine, &format!("set -e; cd {}; redis-lock acquire{tokens}", machine.text(""))).end();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(server.connect().lock_info("deploy-production").is_none());
}

#[test]
fn the_service_on_one_machine_follows_that_on_another() {
    let server = Server::new();
    let command = format!("exec {}", line(block("ini"), "ExecStart="));
    let machines: Vec<Folder> = (0..2).map(|_| machine("echo up; exec sleep 1000")).collect();
    let first = shell(&server, &machines[0], &command);
    wait_held(&server, "scheduler");
    let second = shell(&server, &machines[1], &command);
    wait_waiters(&server, "scheduler", 1);
    let holder = || server.connect().lock_info("scheduler").map(|info| info.fence);
    let fence = holder();
    // As systemd stops it.
    first.signal(Signal::TERM);
    assert_eq!(first.end().code, Some(143));
    wait_for("the other machine", || holder() > fence);
    second.signal(Signal::TERM);
    second.end();
}

#[test]
fn the_other_examples_run_their_commands() {
    let server = Server::new();
    let machine = machine("echo ran");
    let of_container = PAGE.lines().find_map(|line| line.trim().strip_prefix("command: ")).unwrap();
    let words: Vec<String> = serde_json::from_str(of_container).unwrap();
    let of_pipeline = PAGE.lines().find_map(|line| line.trim().strip_prefix("- redis-lock ")).unwrap();
    for command in [words.join(" "), format!("redis-lock {of_pipeline}")] {
        let command = command.replace("/app/", &machine.text("")).replace("./deploy.sh", "report");
        let outcome = shell(&server, &machine, &command).end();
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "ran\n"), "{command}: {}", outcome.err);
    }
}

#[test]
fn the_table_of_faults_is_that_of_the_program_that_makes_it() {
    let program = include_str!("../../compare/compare.py");
    let (_, faults) = program.split_once("FAULTS = {").unwrap();
    let (faults, _) = faults.split_once('}').unwrap();
    let played: Vec<&str> =
        faults.lines().filter_map(|line| Some(line.trim().strip_prefix('"')?.split_once('"')?.0)).collect();
    let (_, table) = PAGE.split_once("| fault |").unwrap();
    let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
    assert_eq!(rows.collect::<Vec<_>>(), played);
    assert_eq!(played.len(), 10);
}

#[test]
fn the_first_line_of_each_page_runs_its_command_under_the_lock() {
    // What could go wrong: a reader copies it, and the command does not run, or runs without the lock.
    for page in [include_str!("../../../README.md"), PAGE] {
        let (_, line) = page.split_once("```sh\n").unwrap();
        let (line, _) = line.split_once("\n```").unwrap();
        let (server, machine) = (Server::new(), machine("redis-lock check && echo held"));
        fs::copy(machine.path("report"), machine.path("report.sh")).unwrap();
        let outcome = shell(&server, &machine, &format!("cd {} && {line}", machine.text(""))).end();
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "held\n"), "{line}: {}", outcome.err);
    }
}
