//! Configuration: CONFIG, the configuration file, the arguments of loadmodule; and LOCK.HOLD, which one of them opens.

use crate::harness::connection::{Connection, Way};
use crate::harness::transcript::Player;
use linked::module::config::TABLE;
use server_api::config::ConfigKind;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use testbed::{Client, Server, module, wait_for};

/// Every configuration that is a number: name, default, least, most. The page of configurations has the same.
fn numbers() -> impl Iterator<Item = (String, i64, i64, i64)> {
    TABLE.iter().filter_map(|spec| match spec.kind {
        ConfigKind::Number(least, most) => Some((format!("lock.{}", spec.name), spec.default, least, most)),
        ConfigKind::YesNo => None,
    })
}

fn value(conn: &mut Client, name: &str) -> String {
    let pair: Vec<String> = conn.get(&["CONFIG", "GET", name]);
    assert_eq!(pair.len(), 2, "{name}: {pair:?}");
    pair[1].clone()
}

#[test]
fn every_configuration_has_its_default_and_its_range() {
    // A limit that can be set to nonsense is none; one that is missing cannot be raised in need.
    let (_server, mut conn) = Server::connected();
    let mut all: Vec<String> = conn.get(&["CONFIG", "GET", "lock.*"]);
    all = all.into_iter().step_by(2).collect();
    all.sort();
    let mut known: Vec<String> = TABLE.iter().map(|spec| format!("lock.{}", spec.name)).collect();
    known.sort_unstable();
    assert_eq!(all, known);
    for (name, default, least, most) in numbers() {
        let name = &name;
        assert_eq!(value(&mut conn, name), default.to_string(), "{name}");
        // So that the default lease is not above the longest, whichever is set.
        conn.ok(&["CONFIG", "SET", "lock.default-lease-ms", "1", "lock.max-lease-ms", "315360000000"]);
        for good in [most, least, default] {
            conn.ok(&["CONFIG", "SET", name, &good.to_string()]);
            assert_eq!(value(&mut conn, name), good.to_string(), "{name}");
        }
        for bad in [&(most + 1).to_string(), &(least - 1).to_string(), "", "x", "1.5", "99999999999999999999"] {
            assert!(conn.error(&["CONFIG", "SET", name, bad]).contains(name), "{name} {bad:?}");
            assert_eq!(value(&mut conn, name), default.to_string(), "{name} {bad:?}");
        }
        conn.ok(&["CONFIG", "SET", "lock.default-lease-ms", "30000", "lock.max-lease-ms", "86400000"]);
    }
}

#[test]
fn a_default_lease_above_the_longest_is_refused_and_rolled_back() {
    // A request that names no lease would get one that no client may ask for.
    let (_server, mut conn) = Server::connected();
    let reason = "lock.default-lease-ms must not be above lock.max-lease-ms";
    let refused: &[&[&str]] = &[
        &["lock.max-lease-ms", "29999"],
        &["lock.default-lease-ms", "86400001"],
        &["lock.default-lease-ms", "5", "lock.max-lease-ms", "4"],
        // The others of the same CONFIG SET are rolled back too.
        &["lock.max-owner-bytes", "32", "lock.max-lease-ms", "29999", "lock.max-note-bytes", "1"],
    ];
    for pairs in refused {
        let command: Vec<_> = ["CONFIG", "SET"].iter().chain(*pairs).copied().collect();
        let error = conn.error(&command);
        assert!(error.contains(reason), "{pairs:?}: {error}");
        for (name, default, ..) in numbers() {
            assert_eq!(value(&mut conn, &name), default.to_string(), "{pairs:?}");
        }
    }
    // In force is what CONFIG GET says.
    conn.int(&["LOCK.ACQUIRE", "k", "an-owner-of-more-than-thirty-two-bytes"]).expect("granted");
    assert!(conn.lock_info("k").unwrap().holders[0].ttl_ms > 25_000);
    // Both at once may pass what either alone may not.
    conn.ok(&["CONFIG", "SET", "lock.default-lease-ms", "100000000", "lock.max-lease-ms", "100000000"]);
    conn.ok(&["CONFIG", "SET", "lock.max-lease-ms", "20", "lock.default-lease-ms", "20"]);
}

#[test]
fn a_configuration_is_in_force_as_soon_as_it_is_set() {
    // An operator who lowers a limit in need must not have to restart.
    let (_server, mut conn) = Server::connected();
    for (name, value, command, error) in [
        ("max-lease-ms", "40000", "LOCK.ACQUIRE k a PX 40001", "ERR PX must be a whole number from 1 to 40000"),
        (
            "max-owner-bytes",
            "32",
            "LOCK.ACQUIRE k an-owner-of-more-than-thirty-two-bytes",
            "LIMIT owner is longer than lock.max-owner-bytes (32)",
        ),
        ("max-note-bytes", "2", "LOCK.ACQUIRE k a NOTE abc", "LIMIT note is longer than lock.max-note-bytes (2)"),
    ] {
        let command: Vec<_> = command.split(' ').collect();
        conn.int(&command).expect("granted");
        conn.call(&["DEL", "k"]).unwrap();
        conn.ok(&["CONFIG", "SET", &format!("lock.{name}"), value]);
        assert_eq!(conn.error(&command), error);
    }
}

#[test]
fn ex_is_refused_with_a_reason_where_no_whole_second_is_allowed() {
    // What could go wrong: "a whole number from 1 to 0", which no number can be.
    let (_server, mut conn) = Server::connected();
    let set = |conn: &mut Client, ms: &str| {
        conn.ok(&["CONFIG", "SET", "lock.default-lease-ms", "1", "lock.max-lease-ms", ms]);
    };
    set(&mut conn, "999");
    for command in ["LOCK.ACQUIRE k a EX 1", "LOCK.MACQUIRE 1 k a EX 0", "LOCK.EXTEND k a EX x"] {
        let error = conn.error(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(error, "ERR EX counts whole seconds and lock.max-lease-ms is 999: use PX", "{command}");
    }
    assert_eq!(conn.error(&["LOCK.ACQUIRE", "k", "a", "EX"]), "ERR EX needs a value");
    conn.int(&["LOCK.ACQUIRE", "k", "a", "PX", "999"]).expect("free");
    set(&mut conn, "1000");
    conn.int(&["LOCK.ACQUIRE", "k", "a", "EX", "1"]).expect("granted");
    assert_eq!(conn.error(&["LOCK.ACQUIRE", "k", "a", "EX", "2"]), "ERR EX must be a whole number from 1 to 1");
}

#[test]
fn locks_held_under_a_looser_limit_stay_usable_under_a_stricter_one() {
    // A lowered limit must not leave locks that their holders cannot give back, nor end any.
    let (server, mut conn) = Server::connected();
    let mut wire = Connection::resp2(&server);
    let mut player = Player::new(&mut wire, Way::Plain);
    player.play(&[("LOCK.RW k @200 READ PX 60000 NOTE long", "#1"), ("LOCK.RW k p READ", "#2")]);
    for (name, value) in
        [("max-owner-bytes", "100"), ("max-note-bytes", "0"), ("max-lease-ms", "50000"), ("max-holders-per-key", "1")]
    {
        conn.ok(&["CONFIG", "SET", &format!("lock.{name}"), value]);
    }
    let info = conn.lock_info("k").unwrap();
    assert_eq!((info.holding, info.holders[0].note.as_deref()), (2, Some("long")));
    assert!(info.holders[0].ttl_ms > 50_000);
    player.go_on(&[
        ("LOCK.RW k @200 READ", "LIMIT owner is longer than lock.max-owner-bytes (100)"),
        ("LOCK.RW k q READ", "LIMIT key has lock.max-holders-per-key holders"),
        ("LOCK.RW k p READ", "#2"),
        ("LOCK.EXTEND k @200 PX 50000", "#1"),
        ("LOCK.RELEASE k @200", "0"),
        ("LOCK.RELEASE k @200", "nil"),
        ("LOCK.EXTEND k @100000 PX 1", "nil"),
        ("LOCK.RELEASE k p ALL", "0"),
    ]);
}

#[test]
fn allow_hold_can_be_set_at_the_start_only() {
    // A user that may CONFIG SET could take the right to forge holds.
    let (_server, mut conn) = Server::connected();
    assert_eq!(value(&mut conn, "lock.allow-hold"), "no");
    assert!(conn.error(&["CONFIG", "SET", "lock.allow-hold", "yes"]).contains("immutable"));
    assert_eq!(value(&mut conn, "lock.allow-hold"), "no");
    assert!(conn.error(&["LOCK.HOLD", "k", "a", "0", "1", "5", "5", "5"]).contains("LOCK.HOLD is for replication"));
    let server = Server::setup().lock_option("allow-hold", "yes").start();
    assert_eq!(value(&mut server.connect(), "lock.allow-hold"), "yes");
}

#[test]
fn arguments_of_loadmodule_set_configurations() {
    // An argument that is taken and then forgotten gives the operator a limit that is not there.
    let load = format!("{} DEFAULT-lease-ms 1000 lock.max-owner-bytes 70 allow-hold yes", module().display());
    let (_server, mut conn) = Server::setup().without_module().option("loadmodule", &load).connected();
    assert_eq!(value(&mut conn, "lock.default-lease-ms"), "1000");
    assert_eq!(value(&mut conn, "lock.max-owner-bytes"), "70");
    assert_eq!(value(&mut conn, "lock.allow-hold"), "yes");
    assert_eq!(value(&mut conn, "lock.max-lease-ms"), "86400000");
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).expect("granted");
    assert!(conn.lock_info("k").unwrap().holders[0].ttl_ms <= 1000);
    // A line of the configuration file goes before an argument.
    let server = Server::setup()
        .without_module()
        .option("loadmodule", &format!("{} default-lease-ms 1000", module().display()))
        .lock_option("default-lease-ms", "2000")
        .start();
    assert_eq!(value(&mut server.connect(), "lock.default-lease-ms"), "2000");
}

#[test]
fn the_module_can_be_loaded_while_the_server_runs() {
    // MODULE LOAD is how one tries it; the arguments must work there as well.
    let (_server, mut conn) = Server::setup().without_module().option("enable-module-command", "yes").connected();
    let path = module().display().to_string();
    assert!(conn.error(&["MODULE", "LOAD", &path, "default-lease-ms", "0"]).starts_with("ERR"));
    assert!(conn.error(&["LOCK.INFO", "k"]).contains("unknown command"));
    conn.ok(&["MODULE", "LOAD", &path, "default-lease-ms", "1234"]);
    assert_eq!(value(&mut conn, "lock.default-lease-ms"), "1234");
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "a"]).is_some());
    assert_eq!(conn.get::<i64>(&["EXISTS", "k"]), 1);
}

/// A server with a configuration file of its own, which listens on a socket in its directory.
struct Filed {
    dir: TempDir,
    child: Option<Child>,
}

impl Filed {
    /// Not started yet. The lines stand behind loadmodule.
    fn new(module_args: &str, lines: &str) -> Filed {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display();
        let text = format!(
            "port 0\nunixsocket {path}/socket\ndir {path}\nlogfile {path}/log\nsave \"\"\n\
             loadmodule {} {module_args}\n{lines}\n",
            module().display()
        );
        fs::write(dir.path().join("server.conf"), text).unwrap();
        Filed { dir, child: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn spawn(&mut self) {
        let program = std::env::var_os("REDIS_LOCK_SERVER").unwrap_or_else(|| "redis-server".into());
        let output = File::options().create(true).append(true).open(self.path("output")).unwrap();
        let mut command = Command::new(program);
        command.arg(self.path("server.conf")).stdin(Stdio::null()).stderr(output.try_clone().unwrap()).stdout(output);
        self.child = Some(command.spawn().unwrap());
    }

    fn start(&mut self) -> Client {
        self.spawn();
        let url = format!("unix://{}", self.path("socket").display());
        let mut conn = None;
        wait_for("the server to answer", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "does not start:\n{}", self.log());
            conn = redis::Client::open(url.as_str()).unwrap().get_connection().ok();
            conn.is_some()
        });
        Client(conn.unwrap())
    }

    /// Starts it and waits until it gives up; returns its log.
    fn fails(&mut self) -> String {
        self.spawn();
        wait_for("the server to give up", || {
            self.child.as_mut().unwrap().try_wait().unwrap().is_some_and(|status| !status.success())
        });
        self.child = None;
        self.log()
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let _ = fs::remove_file(self.path("socket"));
    }
}

impl Drop for Filed {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn the_server_does_not_start_with_an_argument_that_the_module_does_not_know() {
    // A misspelt limit that is silently left out is found when it is needed.
    for (args, named) in [
        ("defalt-lease-ms 1000", "unknown argument of loadmodule: defalt-lease-ms"),
        ("1000", "unknown argument of loadmodule: 1000"),
        ("default-lease-ms", "default-lease-ms lacks its value"),
        ("default-lease-ms 1000 max-note-bytes", "max-note-bytes lacks its value"),
        ("default-lease-ms 0", "default-lease-ms is a number from 1 to 315360000000"),
        ("max-owner-bytes many", "max-owner-bytes is a number from 32 to 65535"),
        ("allow-hold perhaps", "allow-hold is yes or no"),
        ("max-lease-ms 1000", "lock.default-lease-ms must not be above lock.max-lease-ms"),
    ] {
        let log = Filed::new(args, "").fails();
        assert!(log.contains(&format!("module lock is not loaded: {named}")), "{args}:\n{log}");
    }
}

#[test]
fn the_server_does_not_start_with_a_line_that_the_module_does_not_take() {
    // As with arguments; here it is the server that checks, but the module must ask it to.
    for (line, named) in [
        // Redis 7.0 does not say which.
        ("lock.defalt-lease-ms 1000", "Module Configuration detected without"),
        ("lock.default-lease-ms 0", "lock.default-lease-ms"),
        ("lock.max-lease-ms 1000", "lock.default-lease-ms must not be above lock.max-lease-ms"),
    ] {
        let log = Filed::new("", line).fails();
        assert!(log.contains(named), "{line}:\n{log}");
    }
}

#[test]
fn lines_of_the_configuration_file_are_in_force_and_survive_a_rewrite() {
    // CONFIG REWRITE that loses a line gives the operator another server at the next restart.
    let mut server = Filed::new(
        "promotion-skew-ms 500 max-note-bytes 9",
        "lock.default-lease-ms 5000\nlock.max-lease-ms 6000\nlock.allow-hold yes",
    );
    let mut conn = server.start();
    let expect = |conn: &mut Client, values: &[(&str, &str)]| {
        for (name, expected) in values {
            assert_eq!(value(conn, &format!("lock.{name}")), *expected, "{name}");
        }
    };
    expect(
        &mut conn,
        &[
            ("default-lease-ms", "5000"),
            ("max-lease-ms", "6000"),
            ("allow-hold", "yes"),
            ("promotion-skew-ms", "500"),
            ("max-note-bytes", "9"),
        ],
    );
    conn.int(&["LOCK.ACQUIRE", "k", "a"]).expect("granted");
    assert!(conn.lock_info("k").unwrap().holders[0].ttl_ms <= 5000);
    // Changed from a line, from an argument, from the default; and one set to the module's default, away from a line.
    conn.ok(&["CONFIG", "SET", "lock.max-lease-ms", "86400000"]);
    conn.ok(&["CONFIG", "SET", "lock.default-lease-ms", "7000"]);
    conn.ok(&["CONFIG", "SET", "lock.promotion-skew-ms", "1000"]);
    conn.ok(&["CONFIG", "SET", "lock.max-owner-bytes", "99"]);
    conn.ok(&["CONFIG", "REWRITE"]);
    server.stop();
    let mut conn = server.start();
    let after = [
        ("default-lease-ms", "7000"),
        ("max-lease-ms", "86400000"),
        ("allow-hold", "yes"),
        ("promotion-skew-ms", "1000"),
        ("max-note-bytes", "9"),
        ("max-owner-bytes", "99"),
        ("max-holders-per-key", "65536"),
    ];
    expect(&mut conn, &after);
    // And once more, though nothing was changed.
    conn.ok(&["CONFIG", "REWRITE"]);
    server.stop();
    expect(&mut server.start(), &after);
}

#[test]
fn the_log_warns_of_a_policy_that_evicts_locks() {
    // What could go wrong: a lock is taken from a holder that does not know it, and no operator was told of it.
    let warning =
        |policy: &str| format!("<module> maxmemory-policy is {policy}: at maxmemory the server drops locks while they");
    let policies = ["allkeys-lru", "allkeys-lfu", "allkeys-random"];
    for policy in policies {
        let server = Server::setup().option("maxmemory-policy", policy).start();
        assert_eq!(server.log().matches(&warning(policy)).count(), 1, "{}", server.log());
    }
    let (server, mut conn) = Server::connected();
    let warned = || policies.map(|policy| server.log().matches(&warning(policy)).count());
    for policy in ["noeviction", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"] {
        conn.ok(&["CONFIG", "SET", "maxmemory-policy", policy]);
    }
    conn.ok(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu", "maxmemory-samples", "7"]);
    assert_eq!(warned(), [0, 1, 0]);
    // What has to do with something else, or is refused, adds none.
    conn.ok(&["CONFIG", "SET", "maxmemory-samples", "6"]);
    conn.error(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "lock.max-lease-ms", "5"]);
    assert_eq!(warned(), [0, 1, 0]);
    conn.ok(&["CONFIG", "SET", "maxmemory-samples", "5", "maxmemory-policy", "allkeys-random"]);
    assert_eq!(warned(), [0, 1, 1]);
}
