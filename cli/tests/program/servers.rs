//! Where the lock is kept: Sentinels, clusters, TLS; and a command that is another user's.

use crate::harness::{Folder, Run, not_run, program, program_at, run, start, wait_waiters};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use testbed::{Certificates, Client, Port, Server, Setup, Value, wait_for};

fn sentinel_of(primary: &Server) -> Server {
    let sentinel = Setup::default().sentinel(&config_of(primary)).start();
    let mut conn = sentinel.connect();
    wait_for("the replica to be known", || {
        let replicas: Vec<Value> = conn.get(&["SENTINEL", "REPLICAS", "main"]);
        !replicas.is_empty()
    });
    sentinel
}

fn config_of(primary: &Server) -> String {
    format!(
        "sentinel monitor main 127.0.0.1 {} 1\nsentinel down-after-milliseconds main 300\n\
         sentinel failover-timeout main 2000\n",
        primary.port()
    )
}

/// A connection; None if it was closed at once.
fn connect(server: &Server) -> Option<Client> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    client.get_connection().ok().map(Client)
}

/// A field of INFO; None if the connection was closed meanwhile.
fn replica_info(server: &Server, section: &str, field: &str) -> Option<String> {
    let text = connect(server)?.call(&["INFO", section]).ok()?;
    let text = text_of(text);
    text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")).map(str::to_owned))
}

fn text_of(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::VerbatimString { text, .. } => text,
        _ => String::new(),
    }
}

fn waiting_at(server: &Server) -> Option<usize> {
    let reply = connect(server)?.call(&["LOCK.INFO", "k"]).ok()?;
    Some(testbed::LockInfo::from(reply).waiters.len())
}

#[test]
fn a_failover_by_sentinel_is_lived_through() {
    let mut primary = Server::new();
    let replica = Server::new();
    replica.follow(&primary);
    let sentinel = sentinel_of(&primary);
    let folder = Folder::new();
    let script = folder.heartbeat("trap 'exit 2' TERM");
    let words = ["run", "--sentinel", "main", "-t", "60s", "-k", "1s", "k", "-c", &script];
    let running = start(sentinel.port(), &words);
    folder.line("beat");
    let waiting = start(sentinel.port(), &["run", "--sentinel", "main", "k", "echo", "ran"]);
    wait_waiters(&primary, "k", 1);
    let fence = primary.connect().lock_info("k").unwrap().fence;
    replica.catch_up(&primary);
    primary.stop(true);
    // A server that is promoted closes its connections.
    wait_for("the promotion", || replica_info(&replica, "replication", "role").as_deref() == Some("master"));
    wait_for("the queue", || waiting_at(&replica) == Some(1));
    let mut conn = replica.connect();
    assert_eq!(conn.lock_info("k").unwrap().fence, fence);
    running.signal(testbed::Signal::TERM);
    let outcome = running.end();
    assert_eq!(outcome.code, Some(2), "{}", outcome.err);
    let outcome = waiting.end();
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "ran\n"), "{}", outcome.err);
}

#[test]
fn the_password_is_for_the_server_behind_sentinel_and_for_sentinel_if_it_wants_one() {
    let primary = Server::new();
    let config = format!("{}sentinel auth-pass main right\n", config_of(&primary));
    primary.connect().ok(&["CONFIG", "SET", "requirepass", "right"]);
    let dead = Port::claim();
    let sentinel = Setup::default().sentinel(&config).start();
    for wants_one in [false, true] {
        if wants_one {
            sentinel.connect().ok(&["ACL", "SETUSER", "default", "resetpass", ">right"]);
        }
        let with = |url: &str, password: &str| {
            let mut command = program(9, &["run", "-n", "--sentinel", "main", "k", "echo", "ran"]);
            command.env("REDIS_LOCK_URL", url).env("REDISCLI_AUTH", password);
            Run::of(command).end()
        };
        // The first does not answer.
        let urls = format!("redis://127.0.0.1:{},redis://127.0.0.1:{}", dead.number(), sentinel.port());
        let outcome = with(&urls, "right");
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "ran\n"), "{wants_one}: {}", outcome.err);
        let outcome = with(&format!("redis://:right@127.0.0.1:{}", sentinel.port()), "");
        assert_eq!(outcome.code, Some(0), "{wants_one}: {}", outcome.err);
        assert_eq!(with(&urls, "wrong").code, Some(69));
    }
}

#[test]
fn a_name_that_sentinel_does_not_know_is_code_69() {
    let primary = Server::new();
    let replica = Server::new();
    replica.follow(&primary);
    let sentinel = sentinel_of(&primary);
    let outcome = run(sentinel.port(), &["run", "-n", "--sentinel", "other", "k", "true"]);
    assert_eq!(outcome.code, Some(69), "{}", outcome.err);
}

#[test]
fn tls_is_spoken_and_the_certificate_is_checked() {
    let Some(certificates) = Certificates::make() else { return not_run("openssl is not installed") };
    let options = certificates.options();
    let server = options.iter().fold(Server::setup(), |setup, (name, value)| setup.option(name, value)).start();
    let url = format!("rediss://127.0.0.1:{}", certificates.port());
    let with = |authority: &str, words: &[&str]| {
        let mut command = program(server.port(), words);
        command.env("SSL_CERT_FILE", authority).env("REDIS_LOCK_URL", &url);
        Run::of(command).end()
    };
    let outcome = with(&certificates.authority(), &["run", "-w", "1m", "k", "echo", "ran"]);
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(0), "ran\n"), "{}", outcome.err);
    // Another authority.
    let outcome = with("/etc/ssl/certs/ca-certificates.crt", &["run", "-n", "k", "echo", "ran"]);
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(69), ""), "{}", outcome.err);
}

#[test]
fn unix_sockets_are_spoken_to() {
    let folder = Folder::new();
    let server = Server::setup().option("unixsocket", &folder.text("s")).start();
    let url = format!("unix://{}", folder.text("s"));
    assert_eq!(run(server.port(), &["run", "-u", &url, "k", "true"]).code, Some(0));
}

/// `redis-lock run`, started by a user without rights. A program `sudo` becomes root whoever starts it. None where this
/// one may not become that user.
fn as_nobody(server: &Server, folder: &Folder) -> Option<Command> {
    const NOBODY: u32 = 65534;
    folder.install("/usr/bin/setpriv", "4755", "sudo");
    // Where that user can get at it.
    fs::set_permissions(folder.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    folder.install(env!("CARGO_BIN_EXE_redis-lock"), "755", "redis-lock");
    let mut command = program_at(&folder.path("redis-lock"), server.port(), &["run"]);
    command.uid(NOBODY).gid(NOBODY);
    rustix::process::geteuid().is_root().then_some(command)
}

#[test]
fn a_command_that_becomes_another_users_is_warned_of() {
    let server = Server::new();
    let folder = Folder::new();
    let Some(mut command) = as_nobody(&server, &folder) else {
        return not_run("not run by root");
    };
    command.stderr(fs::File::create(folder.path("err")).unwrap());
    // It ends when the warning is there, however busy the machine is.
    let script = "until grep -q 'another user' \"$0\" || ! [ -e \"$0\" ]; do sleep 0.05; done";
    command.arg("k").arg(folder.path("sudo")).args(["--reuid", "0", "sh", "-c", script, &folder.text("err")]);
    let outcome = Run::of(command).end();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn what_another_users_command_leaves_behind_is_warned_of() {
    let server = Server::new();
    let folder = Folder::new();
    let Some(mut command) = as_nobody(&server, &folder) else {
        return not_run("not run by root");
    };
    let script = "\"$0\" --reuid 0 sleep 4 & until grep -qE '^Uid:.0' /proc/$!/status; do :; done; exit 5";
    command.args(["-k", "100ms", "k", "sh", "-c", script]).arg(folder.path("sudo"));
    let outcome = Run::of(command).end();
    assert_eq!(outcome.code, Some(5), "{outcome:?}");
    assert!(outcome.err.contains("goes on without the lock"), "{outcome:?}");
}
