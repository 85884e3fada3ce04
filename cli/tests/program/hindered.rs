//! Something stands in the way: nobody reads what the program says, or the command hides.

use crate::harness::{self, Folder, Run, not_run, program, program_at, python, queued, start, taken, wait_waiters};
use crate::process;
use rustix::process::kill_process;
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use testbed::{Proxy, Request, Server, Signal, wait_for};

/// Lets the standard error output of a program be full. It stays so as long as the other end lives.
fn fill_stderr(command: &mut Command) -> UnixStream {
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    while here.write(&[b'x'; 1000]).is_ok() {}
    while here.write(b"x").is_ok() {}
    here.set_nonblocking(false).unwrap();
    command.stderr(OwnedFd::from(here));
    there
}

#[test]
fn a_parent_that_cannot_speak_ends_the_command_in_time() {
    let server = Server::new();
    let folder = Folder::new();
    let mut command = program(server.port(), &["run", "-t", "2s", "-k", "500ms", "k", "-c", &folder.stubborn()]);
    let _unread = fill_stderr(&mut command);
    let run = Run::of(command);
    folder.line("beat");
    // It has to say that first, and then that the lock could not be renewed.
    kill_process(run.keeper(), Signal::KILL).unwrap();
    folder.assert_over(server.port());
    assert_eq!(run.end().code, Some(76));
}

/// A command that does not mind TERM, and writes the time into a file again and again.
const EVASIVE: &str = "
import ctypes, os, signal, sys, threading, time
how, path = sys.argv[1:]
file = open(path, 'a')
def beat():
    print(time.time_ns(), file=file, flush=True)
def work():
    while True:
        beat()
        time.sleep(0.01)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == 'leaves its group':
    os.setpgid(0, os.getpgid(os.getppid()))
elif os.fork():
    os._exit(7)
if how == 'runs in a thread':
    threading.Thread(target=work).start()
    # Ends the first thread alone.
    ctypes.CDLL(None).pthread_exit(None)
while how == 'is another each moment':
    beat()
    if os.fork():
        os._exit(0)
work()
";

fn evasive(how: &str, folder: &Folder, server: &Server, options: &[&str]) -> Run {
    let python = python();
    let command = ["k", python.to_str().unwrap(), "-c", EVASIVE, how, &folder.text("beat")];
    let run = start(server.port(), &[&["run", "-k", "500ms"], options, &command].concat());
    folder.line("beat");
    run
}

#[test]
fn a_second_signal_does_not_keep_the_keeper_from_leaving_the_queue() {
    let (server, mut conn) = taken();
    let mut run = queued(&server, &["run", "k", "true"]);
    let keeper = run.keeper();
    // So that it cannot have left before the second one comes.
    testbed::send(keeper, Signal::STOP);
    run.signal(Signal::HUP);
    run.signal(Signal::TERM);
    assert_eq!(run.code(), Some(128 + Signal::HUP.as_raw()));
    assert!(process::lives(keeper.as_raw_nonzero().get().unsigned_abs()));
    kill_process(keeper, Signal::CONT).unwrap();
    wait_waiters(&server, "k", 0);
    wait_for("the keeper to end", || run.processes().is_empty());
    assert!(conn.info("commandstats", "cmdstat_lock.release").starts_with("calls="), "it left by itself");
}

#[test]
fn a_wait_ends_although_the_keeper_stands_still() {
    let (server, _conn) = taken();
    let run = start(server.port(), &["run", "-w", "2s", "k", "true"]);
    testbed::send(run.keeper(), Signal::STOP);
    let outcome = run.end();
    assert_eq!(outcome.code, Some(69), "{}", outcome.err);
    assert!(outcome.err.contains("stands still"), "{}", outcome.err);
}

#[test]
fn a_command_that_ran_on_beside_the_next_holder_is_code_76_also_if_that_shows_late() {
    let server = Server::new();
    for victim in [Signal::KILL, Signal::STOP] {
        let folder = Folder::new();
        let script =
            format!("echo up > {}; while [ ! -e {} ]; do :; done; exit 3", folder.text("up"), folder.text("go"));
        let run = start(server.port(), &["run", "-t", "2s", "-k", "500ms", "k", "-c", &script]);
        folder.line("up");
        let keeper = run.keeper();
        run.signal(Signal::STOP);
        testbed::send(keeper, victim);
        folder.second_holder(server.port());
        // Its end is the first that the parent hears of when it goes on.
        std::fs::write(folder.path("go"), "").unwrap();
        wait_for("the command to end", || {
            process::children(run.child.id()).iter().any(|pid| process::state(*pid) == 'Z')
        });
        run.signal(Signal::CONT);
        // Then the keeper is told, and answers or is dead.
        if victim == Signal::STOP {
            kill_process(keeper, Signal::CONT).unwrap();
        }
        let outcome = run.end();
        assert_eq!(outcome.code, Some(76), "{victim:?}: {}", outcome.err);
    }
}

#[test]
fn a_program_that_is_continued_all_the_time_renews_once_at_a_time() {
    let server = Server::new();
    let proxy = Proxy::to(server.port());
    let folder = Folder::new();
    let run = folder.beating(proxy.port(), &["-t", "60s"], &folder.heartbeat(":"));
    let keeper = run.keeper().as_raw_nonzero().get().unsigned_abs();
    let renewals = || process::threads(keeper).iter().filter(|name| name.starts_with("redis-lock-ext")).count();
    let mut conn = server.connect();
    let before = conn.info_number("lock", "lock_extended");
    proxy.freeze(true);
    run.signal(Signal::CONT);
    wait_for("a renewal", || renewals() > 0);
    for _ in 0..500 {
        run.signal(Signal::CONT);
        assert!(renewals() <= 1);
    }
    proxy.freeze(false);
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130));
    let extended = conn.info_number("lock", "lock_extended") - before;
    assert!(extended < 100, "{extended} renewals");
}

#[test]
fn a_wait_goes_on_after_a_server_that_was_busy_with_a_script() {
    let server = Server::setup().option("busy-reply-threshold", "50").start();
    let (mut conn, mut busy) = (server.connect(), server.connect());
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    let folder = Folder::new();
    let run = folder.told(program(server.port(), &["run", "-w", "100s", "k", "echo", "ran"]));
    wait_waiters(&server, "k", 1);
    busy.send(&["EVAL", "while true do end", "0"]);
    // Of the script, or that no answer comes, if the server has no time for either.
    wait_for("the user to be told", || folder.read("err").contains("it goes on waiting"));
    conn.ok(&["SCRIPT", "KILL"]);
    wait_for("the script to end", || conn.call(&["LOCK.RELEASE", "k", "other"]).is_ok());
    let outcome = run.end();
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "ran\n"), "{}", folder.read("err"));
}

/// Lets attempts to connect to 127.0.0.2 at this port wait for ever: more than it takes have come already.
const BLACK_HOLE: &str = "
import socket, sys
port, hosts = int(sys.argv[1]), sys.argv[2]
hole = socket.create_server(('127.0.0.2', port), backlog=0)
clients = [socket.socket() for _ in range(4)]
for client in clients:
    client.setblocking(False)
    client.connect_ex(('127.0.0.2', port))
with open(hosts, 'w') as file:
    print('127.0.0.2 two.test', '127.0.0.3 two.test', sep='\\n', file=file)
sys.stdin.read()
";

#[test]
fn a_name_whose_first_address_leads_nowhere_is_reached_by_its_second() {
    let unshare = Path::new("unshare");
    if Run::of(program_at(unshare, 0, &["--mount", "true"])).end().code != Some(0) {
        return not_run("no right to make a mount namespace");
    }
    let server = Server::new();
    let folder = Folder::new();
    server.connect().ok(&["CONFIG", "SET", "bind", "127.0.0.1 127.0.0.3"]);
    let (port, hosts) = (server.port().to_string(), folder.text("hosts"));
    let python = python();
    let mut hole = program_at(&python, 0, &["-c", BLACK_HOLE, &port, &hosts]);
    hole.stdin(Stdio::piped());
    let _hole = Run::of(hole);
    wait_for("the black hole", || folder.read("hosts").lines().count() == 2);
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    let words =
        ["--mount", "sh", "-c", script, &hosts, env!("CARGO_BIN_EXE_redis-lock"), "run", "-w", "20s", "k", "true"];
    let mut command = program_at(unshare, server.port(), &words);
    command.env("REDIS_LOCK_URL", format!("redis://two.test:{port}"));
    let outcome = Run::of(command).end();
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
}

/// A server that answers all that it is asked with this.
fn answering(reply: &'static str) -> u16 {
    serving(move |request| request.reply(reply))
}

/// A server that does this whenever it is asked something.
fn serving(answer: impl Fn(&Request) + Send + Clone + 'static) -> u16 {
    let (port, requests) = testbed::play();
    std::thread::spawn(move || {
        for request in requests {
            let answer = answer.clone();
            std::thread::spawn(move || answer(&request));
        }
    });
    port
}

#[test]
fn a_short_wait_takes_a_free_lock_from_a_server_that_takes_longer() {
    let slow = serving(|request| {
        std::thread::sleep(Duration::from_millis(50));
        request.reply(":5\r\n");
    });
    let outcome = harness::run(slow, &["run", "-w", "1ms", "k", "echo", "ran"]);
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "ran\n"), "{}", outcome.err);
}

#[test]
fn a_reply_that_never_ends_keeps_neither_process() {
    let dripping = serving(|request| {
        request.reply("$1000000\r\n");
        loop {
            request.reply("x");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    // The keeper ends later, by a limit of its own: the end is that of both.
    assert_eq!(harness::run(dripping, &["run", "-n", "k", "true"]).code, Some(69));
}

#[test]
fn what_a_server_says_controls_no_terminal() {
    let outcome = harness::run(answering("-ERR a\u{1b}[2Jb\r\n"), &["run", "k", "true"]);
    assert_eq!(outcome.code, Some(69));
    assert!(outcome.err.contains("a\\u{1b}[2Jb"), "{}", outcome.err);
}

#[test]
fn a_reply_that_is_no_fence_runs_nothing() {
    for reply in [":-1\r\n", ":0\r\n", "+OK\r\n"] {
        let outcome = harness::run(answering(reply), &["run", "k", "echo", "ran"]);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(69), ""), "{reply}: {}", outcome.err);
        assert!(outcome.err.contains("no fence"), "{}", outcome.err);
    }
}

#[test]
fn variables_that_name_no_server_are_a_mistake_of_typing() {
    for (name, value) in [("REDIS_LOCK_URL", &b","[..]), ("REDIS_LOCK_URL", b"\xff"), ("REDISCLI_AUTH", b"\xff")] {
        let mut command = program(0, &["run", "k", "true"]);
        command.env(name, OsStr::from_bytes(value));
        let outcome = Run::of(command).end();
        assert_eq!(outcome.code, Some(64), "{name}: {}", outcome.err);
        assert!(outcome.err.contains(&format!("${name}")), "{}", outcome.err);
    }
}

#[test]
fn what_a_command_leaves_is_ended_before_the_release_however_it_hides() {
    let server = Server::new();
    for how in ["runs in a thread", "is another each moment"] {
        let folder = Folder::new();
        let run = evasive(how, &folder, &server, &[]);
        folder.assert_over(server.port());
        assert_eq!(run.end().code, Some(7), "{how}");
    }
}

#[test]
fn a_command_that_leaves_its_group_is_ended_before_the_lease_is_over() {
    let server = Server::new();
    for victim in ["keeper", "parent"] {
        let folder = Folder::new();
        let run = evasive("leaves its group", &folder, &server, &["-t", "2s"]);
        match victim {
            "keeper" => kill_process(run.keeper(), Signal::KILL).unwrap(),
            _ => run.signal(Signal::KILL),
        }
        folder.assert_over(server.port());
        assert_eq!(run.end().code, if victim == "keeper" { Some(76) } else { None });
    }
}

#[test]
fn where_proc_shows_another_namespace_what_a_command_leaves_is_ended_before_the_release() {
    let unshare = Path::new("unshare");
    if Run::of(program_at(unshare, 0, &["--pid", "--fork", "true"])).end().code != Some(0) {
        return not_run("no right to make a PID namespace");
    }
    let server = Server::new();
    let folder = Folder::new();
    // The first process of the namespace lives on: with it all others would end.
    let script = "\"$0\" run -k 500ms k sh -c \"$1\"; echo $?; read end";
    let words = ["--pid", "--fork", "--kill-child", "sh", "-c", script, env!("CARGO_BIN_EXE_redis-lock")];
    let mut command = program_at(unshare, server.port(), &words);
    let leftover = format!("({}) & while [ ! -e {} ]; do :; done; exit 7", folder.stubborn(), folder.text("beat"));
    command.arg(leftover).stdin(Stdio::piped());
    let mut run = Run::of(command);
    folder.line("beat");
    folder.assert_over(server.port());
    drop(run.child.stdin.take());
    assert_eq!(run.end().out, "7\n");
}

#[test]
fn what_systemd_says_to_its_process_is_said_to_the_command() {
    let server = Server::new();
    let tool = env!("CARGO_BIN_EXE_redis-lock");
    let told = |listen: &str, watchdog: &str| {
        // A descriptor below those that the program itself opens, as a socket of systemd.
        let script = format!(
            "export LISTEN_PID={listen} WATCHDOG_PID={watchdog}; exec 3</dev/null; exec {tool} run k -- \
             sh -c 'echo $LISTEN_PID $WATCHDOG_PID $$; [ -e /proc/$$/fd/3 ] && echo passed'"
        );
        let outcome = Run::of(program_at(Path::new("/bin/sh"), server.port(), &["-c", &script])).end();
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        outcome.out.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let own = told("$$", "$$");
    assert!(own[0] == own[2] && own[1] == own[2] && own[3] == "passed", "{own:?}");
    // What is for another process stays.
    let others = told("1", "2");
    assert_eq!(others[..2], ["1", "2"]);
}
