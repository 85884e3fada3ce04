//! What the program says, and when: each line names the lock, the server and the option that it is about.

use crate::harness::{Folder, Outcome, Run, is_held, program, run, start, wait_held};
use crate::process;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use testbed::{Server, Signal, wait_for};

#[test]
fn a_command_line_that_makes_no_sense_is_told_in_one_line() {
    let run_help = " (see redis-lock run --help)";
    for (words, text) in [
        (&["run", "", "true"][..], format!("KEY is empty{run_help}")),
        (&["run", "-N", "x", "k", "true"], format!("--limit: \"x\" is no number from 1 to 4294967295{run_help}")),
        (&["run", "-N", "0", "k", "true"], format!("--limit: \"0\" is no number from 1 to 4294967295{run_help}")),
        (&["run", "-w", "-1", "k", "true"], "--wait: \"-1\" is no time".to_owned()),
        (&["run", "--session", "0", "k", "true"], "--session must be at least 1s".to_owned()),
        (&["run", "-t", "0", "k", "true"], "--lease must be at least 2s".to_owned()),
        (&["run", "--wiat", "1", "k", "true"], format!("unexpected argument '--wiat' found; is it --wait?{run_help}")),
        (&["run", "k", "-c", "echo", "hi"], format!("-c takes one argument: quote the line{run_help}")),
        (&["run", "k"], format!("the following required arguments were not provided: <COMMAND>...{run_help}")),
        (&["run", "-s", "-x", "k", "true"], "the argument '--shared' cannot be used with '--exclusive'".to_owned()),
        (&["chekc"], "unrecognized subcommand 'chekc'; is it check? (see redis-lock --help)".to_owned()),
        (&["check"], "REDIS_LOCK_KEY is not set: not inside redis-lock run? (see redis-lock check --help)".to_owned()),
        (&["check", "", "me", "1"], "KEY is empty".to_owned()),
        (&["check", "k", "me", ""], "FENCE is empty: not inside redis-lock run?".to_owned()),
        (&["check", "k", "me"], "FENCE is missing".to_owned()),
        (&["run", "-u", "http://a", "k", "true"], "k: --url must be redis://HOST:PORT".to_owned()),
    ] {
        let outcome = run(9, words);
        assert_eq!((outcome.code, outcome.err.lines().count()), (Some(64), 1), "{words:?}: {}", outcome.err);
        assert!(outcome.err.starts_with(&format!("redis-lock: {text}")), "{words:?}: {}", outcome.err);
    }
    let mut command = program(9, &["run", "k", "true"]);
    command.env("REDIS_LOCK_URL", "nonsense");
    assert!(Run::of(command).end().err.starts_with("redis-lock: k: $REDIS_LOCK_URL must be redis://HOST:PORT"));
}

#[test]
fn the_words_of_flock_are_understood() {
    let server = Server::new();
    for words in [
        &["run", "-x", "--nb", "k", "echo", "hi"][..],
        &["run", "-e", "--timeout", "9", "k", "echo", "hi"],
        &["run", "--exclusive", "--conflict-exit-code", "3", "k", "--command", "echo hi"],
    ] {
        let outcome = run(server.port(), words);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "hi\n"), "{words:?}: {}", outcome.err);
    }
    assert_eq!(run(9, &["help", "run"]).out, run(9, &["run", "--help"]).out);
    assert!(run(9, &["--version"]).out.starts_with("redis-lock "));
}

#[test]
fn a_command_that_is_not_there_is_told_with_what_may_be_wrong() {
    let server = Server::new();
    let folder = Folder::new();
    fs::write(folder.path("script"), "#!/nonesuch/sh\n").unwrap();
    fs::set_permissions(folder.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let interpreter = format!("k: {}: its interpreter was not found", folder.text("script"));
    for (command, text) in [
        ("echo hi", "k: \"echo hi\" was not found: a shell command needs -c"),
        ("nonesuch", "k: \"nonesuch\" was not found"),
        (&folder.text("script"), &interpreter),
    ] {
        let outcome = run(server.port(), &["run", "k", command]);
        assert_eq!((outcome.code, outcome.err), (Some(127), format!("redis-lock: {text}\n")));
    }
}

/// Runs it until it ends; again, if the server had no time to answer.
fn run_in_time(port: u16, words: &[&str]) -> Outcome {
    let lates = ["1s", "2s"].map(|limit| format!("no answer from 127.0.0.1:{port} within {limit}\n"));
    let is_late = |outcome: &Outcome| lates.iter().any(|late| outcome.err.ends_with(late));
    (0..20).map(|_| run(port, words)).find(|outcome| !is_late(outcome)).expect("an answer in time")
}

#[test]
fn a_port_without_tls_is_found_out() {
    let server = Server::new();
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let expected = format!("redis-lock: k: no answer from 127.0.0.1:{}: the TLS handshake", server.port());
    for words in [&["run", "-n", "-u", &url, "k", "true"][..], &["check", "-u", &url, "k", "me", "1"]] {
        let outcome = run_in_time(server.port(), words);
        assert_eq!(outcome.code, Some(69), "{words:?}: {}", outcome.err);
        assert!(outcome.err.starts_with(&expected), "{words:?}: {}", outcome.err);
    }
    // One that waits goes on, and ends with whoever started it.
    let folder = Folder::new();
    let waiting = folder.told(program(server.port(), &["run", "-u", &url, "k", "true"]));
    wait_for("the user to be told", || folder.read("err").contains("it goes on waiting"));
    waiting.signal(Signal::KILL);
    waiting.end();
}

#[test]
fn a_server_that_does_not_answer_delays_nobody_beyond_the_time() {
    let server = Server::new();
    server.signal(Signal::STOP);
    let expected = format!("k: no answer from 127.0.0.1:{} within ", server.port());
    for words in [&["run", "-n", "k", "true"][..], &["run", "-w", "1s", "k", "true"]] {
        let folder = Folder::new();
        let mut silent = folder.told(program(server.port(), words));
        assert_eq!(silent.code(), Some(69));
        // Where even the second process was late, it is named as "the server".
        assert!(folder.read("err").contains("k: no answer from "), "{words:?}: {}", folder.read("err"));
        silent.end();
    }
    assert!(run(server.port(), &["check", "k", "me", "1"]).err.contains(&expected));
    server.signal(Signal::CONT);
}

#[test]
fn what_is_no_server_for_locks_is_told_in_plain_words() {
    let told = |port: u16, words: &[&str]| run(port, &[&["run"], words, &["k", "true"]].concat()).err;
    let server = Server::setup().lock_option("max-queue-ms", "9999").start();
    let port = server.port();
    assert_eq!(told(port, &["--sentinel", "main"]), format!("redis-lock: k: 127.0.0.1:{port} is no Sentinel\n"));
    // A place that is kept for less time is asked for more often.
    assert_eq!(told(port, &[]), "");
    server.connect().ok(&["CONFIG", "SET", "requirepass", "right"]);
    assert!(told(port, &[]).ends_with("(set $REDISCLI_AUTH)\n"));
    let url = format!("redis://:wrong@127.0.0.1:{port}");
    assert_eq!(told(port, &["-u", &url]), "redis-lock: k: wrong user or password\n");
    let plain = Server::setup().without_module().start();
    let text = "redis-lock: k: the server has no locks: load the module redis-lock there\n";
    assert_eq!(told(plain.port(), &[]), text);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            if stream.read(&mut [0; 64]).is_ok() {
                drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
            }
        }
    });
    let text = format!("redis-lock: k: 127.0.0.1:{port} does not speak the Redis protocol\n");
    assert_eq!(told(port, &[]), text);
}

#[test]
fn a_lease_that_the_server_would_not_keep_is_found_out_before_the_command_runs() {
    let server = Server::setup().lock_option("max-lease-ms", "60000").start();
    let mut conn = server.connect();
    for (option, long) in [("--at-least", "--at-least"), ("-t", "--lease")] {
        let outcome = run(server.port(), &["run", option, "70s", "k", "echo", "ran"]);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(64), ""), "{}", outcome.err);
        let text = format!("redis-lock: k: {long} is longer than the server allows: its lock.max-lease-ms is 60000\n");
        assert_eq!(outcome.err, text);
        assert!(!is_held(&mut conn, "k"));
    }
    // While the command runs, the lease is that of the command line.
    let running = start(server.port(), &["run", "--at-least", "50s", "k", "cat", "/dev/zero"]);
    wait_for("the command", || running.processes().iter().any(|pid| process::words(*pid)[0] == "cat"));
    assert!(conn.lock_info("k").unwrap().holders[0].ttl_ms <= 30_000);
}

#[test]
fn a_command_that_could_not_be_run_does_not_keep_the_lock() {
    let server = Server::new();
    let mut conn = server.connect();
    for (command, code) in [("/nonesuch", 127), ("/etc/passwd", 126)] {
        assert_eq!(run(server.port(), &["run", "--at-least", "20s", "k", command]).code, Some(code));
        assert!(!is_held(&mut conn, "k"), "{command}");
    }
    // One that ran keeps it, whatever came of it: 127 of a shell, too.
    assert_eq!(run(server.port(), &["run", "--at-least", "20s", "k", "-c", "exit 127"]).code, Some(127));
    assert!(is_held(&mut conn, "k"));
}

#[test]
fn a_renewal_that_fails_is_told_once_and_the_loss_names_its_cause() {
    let server = Server::new();
    let folder = Folder::new();
    let mut running = folder.told(program(server.port(), &["run", "-t", "12s", "-k", "1s", "k", "sleep", "1000"]));
    wait_held(&server, "k");
    let mut conn = server.connect();
    let warnings = || folder.read("err").matches("redis-lock: k: not renewed: NOPERM").count();
    conn.ok(&["ACL", "SETUSER", "default", "-lock.extend"]);
    wait_for("a warning", || warnings() == 1);
    conn.ok(&["ACL", "SETUSER", "default", "+lock.extend"]);
    let extended = conn.info_number("lock", "lock_extended");
    wait_for("two renewals", || conn.info_number("lock", "lock_extended") > extended + 1);
    conn.ok(&["ACL", "SETUSER", "default", "-lock.extend"]);
    assert_eq!(running.code(), Some(76));
    assert_eq!(warnings(), 2, "{}", folder.read("err"));
    let loss = "redis-lock: k: could not be renewed in time (NOPERM";
    assert!(folder.read("err").contains(loss), "{}", folder.read("err"));
}

#[test]
fn a_wait_is_told_with_its_holder_and_its_end() {
    let server = Server::new();
    let mut conn = server.connect();
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000", "NOTE", "night run"]).is_some());
    let told = |options: &[&str]| run_in_time(server.port(), &[&["run"], options, &["k", "true"]].concat()).err;
    assert!(told(&["-w", "500ms"]).ends_with("redis-lock: k: not got within 500ms\n"));
    assert_eq!([told(&["-q", "-w", "500ms"]), told(&["-n"])], ["", ""]);
    // Nobody has to have the right to ask.
    for (right, text) in [("+lock.info", "waiting, held by other (night run)"), ("-lock.info", "waiting")] {
        conn.ok(&["ACL", "SETUSER", "default", right]);
        let folder = Folder::new();
        let _waiting = folder.told(program(server.port(), &["run", "k", "true"]));
        assert_eq!(folder.line("err"), format!("redis-lock: k: {text}"));
    }
}

#[test]
fn the_end_of_the_lock_is_told_to_those_that_want_to_know() {
    let server = Server::new();
    let told = |words: &[&str]| run(server.port(), &[&["run", "-v"], words].concat()).err;
    assert!(told(&["k", "true"]).ends_with("redis-lock: k: released\n"));
    let text = told(&["--at-least", "1h", "k", "true"]);
    assert!(text.contains("redis-lock: k: stays for ") && text.ends_with(" (--at-least)\n"), "{text}");
}

#[test]
fn all_processes_have_the_name_of_the_program() {
    let server = Server::new();
    let run = start(server.port(), &["run", "k", "sleep", "1000"]);
    wait_held(&server, "k");
    let keeper = run.keeper().as_raw_nonzero().get().unsigned_abs();
    assert_eq!(process::words(keeper)[0], "redis-lock");
    wait_for("its name", || {
        fs::read_to_string(format!("/proc/{keeper}/comm")).is_ok_and(|name| name == "redis-lock\n")
    });
}

#[test]
fn a_check_without_words_asks_about_the_lock_of_the_run_around_it() {
    let server = Server::new();
    let check = env!("CARGO_BIN_EXE_redis-lock");
    assert_eq!(run(server.port(), &["run", "k", check, "check"]).code, Some(0));
    let script = format!("redis-cli -p {} LOCK.BREAK k; \"$0\" check; echo $?", server.port());
    let outcome = run(server.port(), &["run", "--no-kill", "k", "sh", "-c", &script, check]);
    assert!(outcome.out.ends_with("1\n"), "{}", outcome.out);
}

#[test]
fn a_prefix_is_set_apart_from_the_rest_of_the_owner() {
    let server = Server::new();
    for (prefix, begins) in [("web-1", "web-1:"), ("web-1/", "web-1/")] {
        let words = ["run", "--owner-prefix", prefix, "k", "-c", "echo $REDIS_LOCK_OWNER; hostname"];
        let out = run(server.port(), &words).out;
        let (owner, host) = out.trim().split_once('\n').unwrap();
        assert!(owner.starts_with(&format!("{begins}{host}:")), "{owner}");
    }
}
