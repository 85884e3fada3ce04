//! Exit codes, options, and what the command sees.

use crate::harness::{Folder, Run, is_held, program, program_at, queued, run, start, wait_held, wait_waiters};
use std::path::Path;
use std::time::Instant;
use testbed::Server;

#[test]
fn the_exit_code_is_that_of_the_command_and_the_lock_is_released() {
    let server = Server::new();
    let mut conn = server.connect();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)] {
        let outcome = run(server.port(), &["run", "k", "--", "sh", "-c", script]);
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(code), ""), "{script}");
        assert!(!is_held(&mut conn, "k"), "{script}");
    }
    assert_eq!(run(server.port(), &["run", "k", "-c", "exit 3"]).code, Some(3));
    // What comes after the command is the command's.
    let outcome = run(server.port(), &["run", "k", "echo", "-n", "--wait"]);
    assert_eq!(outcome.out, "--wait");
}

#[test]
fn a_command_that_cannot_be_run_or_found_is_told_as_shells_do() {
    let server = Server::new();
    let outcome = run(server.port(), &["run", "k", "/nonesuch"]);
    assert_eq!(outcome.code, Some(127));
    assert!(outcome.err.starts_with("redis-lock: k: \"/nonesuch\" was not found"), "{}", outcome.err);
    assert_eq!(run(server.port(), &["run", "k", "/etc/passwd"]).code, Some(126));
    assert!(!is_held(&mut server.connect(), "k"));
}

#[test]
fn others_that_hold_the_lock_are_code_75_or_the_one_that_is_asked_for() {
    let server = Server::new();
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "60000"]).is_some());
    for (options, code) in [(&["-n"][..], 75), (&["-w", "50ms"], 75), (&["-n", "-E", "0"], 0), (&["-w", "0"], 75)] {
        let outcome = run(server.port(), &[&["run"], options, &["k", "echo", "ran"]].concat());
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{options:?}");
    }
    assert!(conn.lock_info("k").unwrap().waiters.is_empty());
}

#[test]
fn a_command_line_that_makes_no_sense_is_code_64() {
    // No server is asked: there is none.
    for words in [
        &["run"][..],
        &["run", "k"],
        &["run", "-t", "1s", "k", "true"],
        &["run", "-t", "x", "k", "true"],
        &["run", "-t", "10s", "-k", "4s", "k", "true"],
        &["run", "-n", "-w", "1s", "k", "true"],
        &["run", "--take", "2", "k", "true"],
        &["run", "-N", "2", "--take", "3", "k", "true"],
        &["run", "-s", "-N", "2", "k", "true"],
        &["run", "-c", "true", "k", "true"],
        &["run", "--session", "2s", "-k", "1s", "k", "true"],
        &["run", "--session", "9s", "--at-least", "1s", "k", "true"],
        &["run", "--nonesuch", "k", "true"],
        &["run", "-u", "http://127.0.0.1", "k", "true"],
        &["run", "-u", "redis://a", "-u", "redis://b", "k", "true"],
        &["check", "k", "owner"],
        &["check", "k", "owner", "many"],
        &["completion", "nonesuch"],
        &["run", "-u", "unix://", "k", "true"],
        &["run", "--sentinel", "main", "-u", "unix:///nonesuch", "k", "true"],
        &["nonesuch"],
    ] {
        let outcome = run(9, words);
        assert_eq!(outcome.code, Some(64), "{words:?}: {}", outcome.err);
        assert!(!outcome.err.is_empty());
    }
}

#[test]
fn a_server_that_cannot_give_locks_is_code_69_with_the_reason() {
    let told = |port, words: &[&str], reason: &str| {
        let outcome = run(port, &[words, &["k", "true"]].concat());
        assert_eq!(outcome.code, Some(69), "{reason}: {}", outcome.err);
        assert!(outcome.err.contains(reason), "{reason}: {}", outcome.err);
    };
    let plain = Server::setup().without_module().start();
    told(plain.port(), &["run"], "load the module redis-lock");
    let server = Server::new();
    let mut conn = server.connect();
    conn.ok(&["ACL", "SETUSER", "poor", "on", ">secret", "~*", "+ping"]);
    conn.ok(&["CONFIG", "SET", "requirepass", "right"]);
    let url = |user: &str| format!("redis://{user}@127.0.0.1:{}", server.port());
    told(9, &["run", "-u", &url("poor:secret")], "NOPERM");
    told(9, &["run", "-u", &url(":wrong")], "wrong user or password");
    told(server.port(), &["run"], "NOAUTH");
    let port = testbed::Port::claim();
    told(port.number(), &["run", "-n"], "refused");
    told(port.number(), &["run", "-w", "300ms"], "refused");
}

#[test]
fn the_password_comes_from_the_environment() {
    let server = Server::new();
    server.connect().ok(&["CONFIG", "SET", "requirepass", "right"]);
    let mut command = program(server.port(), &["run", "k", "true"]);
    command.env("REDISCLI_AUTH", "right");
    assert_eq!(Run::of(command).end().code, Some(0));
}

#[test]
fn a_user_without_a_password_is_never_the_default_one() {
    let server = Server::new();
    let mut conn = server.connect();
    conn.ok(&["ACL", "SETUSER", "viewer", "on", ">secret", "~*", "+@all"]);
    conn.ok(&["ACL", "SETUSER", "free", "on", "nopass", "~*", "+@all"]);
    for (user, code) in [("viewer", 69), ("nobody", 69), ("free", 0)] {
        let url = format!("redis://{user}@127.0.0.1:{}", server.port());
        let outcome = run(9, &["run", "-n", "-u", &url, "k", "true"]);
        assert_eq!(outcome.code, Some(code), "{user}: {}", outcome.err);
        assert_eq!(outcome.err.contains("wrong user or password"), code != 0, "{user}: {}", outcome.err);
    }
}

#[test]
fn grace_is_waited_for_and_told_by_one_that_does_not_wait() {
    let server = Server::setup().lock_option("grace-ms", "3600000").start();
    for options in [&["-n"][..], &["-w", "100ms"]] {
        let outcome = run(server.port(), &[&["run"], options, &["k", "true"]].concat());
        assert_eq!(outcome.code, Some(69), "{}", outcome.err);
        assert!(outcome.err.contains("GRACE"), "{}", outcome.err);
    }
    let waiting = queued(&server, &["run", "k", "true"]);
    server.connect().ok(&["CONFIG", "SET", "lock.grace-ms", "0"]);
    assert_eq!(waiting.end().code, Some(0));
}

#[test]
fn a_server_that_has_too_many_waiters_already_is_code_69_when_the_time_is_up() {
    let server = Server::setup().lock_option("max-waiters-per-key", "1").start();
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "next", "PX", "600000", "QUEUE", "60000"]).is_none());
    let outcome = run(server.port(), &["run", "-w", "200ms", "k", "true"]);
    assert_eq!(outcome.code, Some(69), "{}", outcome.err);
    assert!(outcome.err.contains("LIMIT"), "{}", outcome.err);
    // It is asked again until then.
    let waiting = start(server.port(), &["run", "k", "echo", "ran"]);
    waiting.keeper();
    conn.int(&["LOCK.RELEASE", "k", "next"]);
    wait_waiters(&server, "k", 1);
    conn.int(&["LOCK.RELEASE", "k", "other"]);
    assert_eq!(waiting.end().out, "ran\n");
    // What no time mends is told at once.
    let outcome = run(server.port(), &["run", "--note", &"x".repeat(300), "k", "true"]);
    assert_eq!(outcome.code, Some(69), "{}", outcome.err);
    assert!(outcome.err.contains("LIMIT"), "{}", outcome.err);
}

#[test]
fn people_are_told_as_much_as_they_ask_for() {
    let server = Server::new();
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "held", "other", "PX", "600000"]).is_some());
    let told = |words: &[&str]| run(server.port(), words).err;
    assert_eq!((told(&["run", "k", "true"]), told(&["run", "-n", "held", "true"])), (String::new(), String::new()));
    let text = told(&["run", "-v", "k", "true"]);
    assert!(text.contains("k: asked for\n") && text.contains("k: held, owner "), "{text}");
    assert!(told(&["run", "-v", "-n", "held", "true"]).contains("held: others hold it\n"));
    let warning = ["run", "--max", "10ms", "k", "sleep", "1000"];
    assert!(told(&warning).contains("--max"));
    assert_eq!(told(&[&["run", "-q"], &warning[1..]].concat()), "");
    // An error is told all the same.
    assert!(!told(&["run", "-q", "k", "/nonesuch"]).is_empty());
}

#[test]
fn bash_completes_the_options() {
    let script = "eval \"$(\"$0\" completion bash)\"; COMP_WORDS=(redis-lock run --le); COMP_CWORD=2; \
                  of=$(complete -p redis-lock); of=${of#*-F }; ${of%% *} redis-lock --le run; echo \"${COMPREPLY[*]}\"";
    let bash = program_at(Path::new("bash"), 9, &["-c", script, env!("CARGO_BIN_EXE_redis-lock")]);
    assert_eq!(Run::of(bash).end().out, "--lease\n");
    for shell in ["elvish", "fish", "powershell", "zsh"] {
        let outcome = run(9, &["completion", shell]);
        assert!(outcome.code == Some(0) && outcome.out.contains("kill-after"), "{shell}: {}", outcome.out);
    }
}

#[test]
fn the_command_sees_the_lock_and_the_environment_as_it_was() {
    let server = Server::new();
    let script = "env | sort; redis-cli -p \"$1\" LOCK.CHECK k \"$REDIS_LOCK_OWNER\" WRITE FENCE \"$REDIS_LOCK_FENCE\"";
    let port = server.port().to_string();
    let mut command = program(9, &["run", "-u", &format!("redis://127.0.0.1:{port}"), "--owner-prefix", "night-", "k"]);
    command.args(["sh", "-c", script, "sh", &port]).env_clear().env("PATH", "/usr/bin:/bin").env("MINE", "a b");
    let outcome = Run::of(command).end();
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let lines: Vec<&str> = outcome.out.lines().collect();
    let value = |name: &str| lines.iter().find_map(|line| line.strip_prefix(&format!("{name}=")));
    assert_eq!(
        (value("MINE"), value("REDIS_LOCK_KEY"), value("REDIS_LOCK_MODE")),
        (Some("a b"), Some("k"), Some("WRITE"))
    );
    assert!(value("REDIS_LOCK_OWNER").unwrap().starts_with("night-"));
    assert_eq!(lines.last().copied(), value("REDIS_LOCK_FENCE"));
    assert!(value("REDIS_LOCK_URL").is_none());
}

#[test]
fn check_tells_the_holder_of_a_lock() {
    let server = Server::new();
    let mut conn = server.connect();
    let fence = conn.int(&["LOCK.ACQUIRE", "k", "me", "PX", "60000"]).unwrap();
    let check = |owner: &str, fence: i64| run(server.port(), &["check", "k", owner, &fence.to_string()]).code;
    assert_eq!((check("me", fence), check("me", fence + 1), check("other", fence)), (Some(0), Some(1), Some(1)));
    let plain = Server::setup().without_module().start();
    assert_eq!(run(plain.port(), &["check", "k", "me", "1"]).code, Some(69));
}

#[test]
fn shared_locks_and_semaphores_let_in_as_many_as_they_should() {
    let server = Server::new();
    let hold = |words: &[&str]| start(server.port(), &[&["run"], words, &["cat"]].concat());
    let holders = |key: &str| server.connect().lock_info(key).map_or(0, |info| info.holders.len());
    let once = |words: &[&str]| run(server.port(), &[&["run", "-n"], words, &["true"]].concat()).code;
    let sleepers = [hold_open(&server, &["-s", "r"]), hold_open(&server, &["-s", "r"])];
    testbed::wait_for("two readers", || holders("r") == 2);
    assert_eq!((once(&["-s", "r"]), once(&["r"])), (Some(0), Some(75)));
    let shares = [hold_open(&server, &["-N", "3", "s"]), hold_open(&server, &["-N", "3", "s"])];
    testbed::wait_for("two shares", || holders("s") == 2);
    assert_eq!(once(&["-N", "3", "s"]), Some(0));
    assert_eq!(once(&["-N", "3", "--take", "2", "s"]), Some(75));
    assert_eq!(once(&["-N", "2", "s"]), Some(75));
    drop((sleepers, shares));
    // Its input is empty.
    assert_eq!(hold(&["free"]).end().code, Some(0));
}

fn hold_open(server: &Server, words: &[&str]) -> Run {
    start(server.port(), &[&["run"], words, &["sleep", "1000"]].concat())
}

#[test]
fn a_command_that_runs_for_too_long_is_ended_with_code_124() {
    let server = Server::new();
    assert_eq!(run(server.port(), &["run", "--max", "100ms", "k", "sleep", "1000"]).code, Some(124));
    let stubborn = "trap '' TERM; while :; do sleep 0.01; done";
    let outcome = run(server.port(), &["run", "--max", "100ms", "-k", "200ms", "k", "-c", stubborn]);
    assert_eq!(outcome.code, Some(124));
    assert!(!is_held(&mut server.connect(), "k"));
    assert_eq!(run(server.port(), &["run", "--max", "1h", "k", "sh", "-c", "exit 5"]).code, Some(5));
}

#[test]
fn at_least_keeps_the_lock_for_what_is_left_of_it() {
    let server = Server::new();
    let mut conn = server.connect();
    let begin = Instant::now();
    assert_eq!(run(server.port(), &["run", "--at-least", "20s", "k", "true"]).code, Some(0));
    let took = u64::try_from(begin.elapsed().as_millis()).unwrap();
    let left = conn.lock_info("k").unwrap().holders[0].ttl_ms.unsigned_abs();
    assert!(left <= 20_000 && left + took + 1000 >= 20_000, "{left} ms left after {took} ms");
    // One that took longer gives it back at once.
    assert_eq!(run(server.port(), &["run", "--at-least", "1ms", "other", "sleep", "0.1"]).code, Some(0));
    assert!(!is_held(&mut conn, "other"));
}

#[test]
fn the_note_and_the_session_are_those_that_were_asked_for() {
    let server = Server::new();
    let run = start(server.port(), &["run", "--note", "night run", "--session", "9s", "k", "sleep", "1000"]);
    wait_held(&server, "k");
    let info = server.connect().lock_info("k").unwrap();
    assert_eq!(info.holders[0].note.as_deref(), Some("night run"));
    assert!(info.holders[0].session.is_some());
    drop(run);
}

#[test]
fn what_a_command_leaves_in_its_group_is_ended_before_the_lock_is_released() {
    let server = Server::new();
    let folder = Folder::new();
    let script = format!(
        "sh -c '{}' & echo $! > {}",
        folder.heartbeat("trap \"\" TERM").replace("'", "'\\''"),
        folder.text("bg")
    );
    let mut first = start(
        server.port(),
        &[
            "run",
            "-k",
            "300ms",
            "k",
            "-c",
            &format!("{script}; while [ ! -s {} ]; do sleep 0.01; done; exit 4", folder.text("beat")),
        ],
    );
    wait_held(&server, "k");
    assert_eq!(first.code(), Some(4));
    folder.assert_over(server.port());
}

#[test]
fn help_fits_a_screen() {
    let commands = "run check hold acquire renew release ls info log break completion top";
    for words in commands.split(' ').map(|command| vec![command, "--help"]).chain([vec!["--help"]]) {
        let outcome = run(9, &words);
        assert_eq!(outcome.code, Some(0));
        assert!(outcome.out.lines().count() <= 40, "{words:?}");
        assert!(outcome.out.lines().all(|line| line.len() <= 80), "{words:?}:\n{}", outcome.out);
    }
}
