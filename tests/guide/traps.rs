//! What each client does by default, observed on a server: the table of the page.
//!
//! The programs in traps/ take a library, a port and a mode:
//! - `wait`: asks for the lock with a BLOCK of ten minutes and says `reply ...` or `error NAME ...`;
//! - `shared`: the same, and when it is told so sends a GET through the same client: `get answered` or `get failed`;
//! - `replies`: says `version ...`, what null looks like (`null ...`), and what an error is (`error NAME ...`).
//!
//! BLOCK outlasts the test, and the server says how long a request has waited. That nothing happens can only be seen
//! for a while, so this is asked only where the table says that nothing happens: a busy machine may be late.

use crate::library::{Library, node, python};
use crate::page;
use crate::program::Program;
use crate::redis_rs;
use std::path::Path;
use std::process::Command;
use testbed::{Client, Server, WaiterInfo, say_not_run, wait_for};

/// For so long a request must have waited to show that no timeout of its client ends it: 5 s and 0.5 s are usual.
const OUTLASTS_MS: i64 = 6000;

/// For so long the request must have waited when another command counts as held up behind it.
const HELD_UP_MS: i64 = 2000;

/// Observes a client, and compares with its row: version, BLOCK, closed, others, null, error.
pub(crate) fn check(library: Library, test: &str) {
    let [version, block, closed, others, null, error] = &page::row(library.row()).unwrap()[..] else {
        panic!("{library:?} has not seven cells")
    };
    let said = Stage::new(library, "replies").end();
    let word = |what: &str| said.iter().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
    if !["", version].contains(&word("version ")) {
        return say_not_run(test, &format!("the page is about {version}, and this machine has {}", word("version ")));
    }
    assert_eq!(word("null ").split(' ').next().unwrap().to_lowercase(), null.to_lowercase(), "{said:?}");
    // The table may leave out the module.
    let name = word("error ").split(' ').next().unwrap();
    let last = |name: &str| name.rsplit(['.', ':', '\\']).next().unwrap_or_default().to_owned();
    assert_eq!(last(name), last(error), "{said:?}");

    let seen = wait(library, block == "waits");
    assert!(block.starts_with(seen), "BLOCK: {block}, and not {seen}");
    let after = killed(library);
    assert!(closed.starts_with(after), "closed: {closed}, and not {after}");
    // A client for one thread at a time has nobody to hold up.
    if others != "one thread" {
        let seen = shared(library, others == "held up");
        assert!(others.starts_with(seen), "others: {others}, and not {seen}");
    }
}

/// A server on which somebody else has the lock, and a program.
struct Stage {
    holder: Client,
    program: Program,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Stage {
    fn new(library: Library, mode: &'static str) -> Stage {
        let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
        let mut holder = server.connect();
        holder.int(&["LOCK.ACQUIRE", "traps", "holder", "PX", "600000"]).expect("free");
        let program = if library.language() == "rust" {
            redis_rs::trap(library, server.port(), mode)
        } else {
            let mut command = command(library, folder.path());
            command.args([&server.port().to_string(), mode]);
            Program::process(command)
        };
        Stage { holder, program, _server: server, _folder: folder }
    }

    fn end(self) -> Vec<String> {
        self.program.end().unwrap()
    }

    fn waiter(&mut self) -> Option<WaiterInfo> {
        self.holder.lock_info("traps").unwrap().waiters.pop()
    }

    /// The connection that waits, once it does.
    fn waits(&mut self) -> i64 {
        let mut client = None;
        wait_for("the program to wait", || {
            client = self.waiter().and_then(|waiter| waiter.client);
            client.is_some()
        });
        client.unwrap()
    }

    fn says(&mut self, word: &str) -> bool {
        self.program.said().iter().any(|line| line.starts_with(word))
    }

    /// What comes of a request that waited on this connection. Whether it may be that nothing does.
    fn comes_to(&mut self, first: i64, may_wait: bool) -> &'static str {
        let mut seen = "";
        wait_for("what comes of a request", || {
            let now = self.waiter();
            if self.says("error ") {
                seen = "error";
            } else if let Some(waiter) = now {
                if waiter.client.is_some_and(|client| client != first) {
                    seen = "sent again";
                } else if may_wait && waiter.waited_ms > OUTLASTS_MS {
                    seen = "waits";
                }
            }
            !seen.is_empty()
        });
        seen
    }
}

/// What comes of a request that takes longer than any timeout.
fn wait(library: Library, may_wait: bool) -> &'static str {
    let mut stage = Stage::new(library, "wait");
    let first = stage.waits();
    stage.comes_to(first, may_wait)
}

/// What comes of a request whose connection closes.
fn killed(library: Library) -> &'static str {
    let mut stage = Stage::new(library, "wait");
    let first = stage.waits();
    stage.holder.int(&["CLIENT", "KILL", "ID", &first.to_string()]).unwrap();
    stage.comes_to(first, false)
}

/// What becomes of another command of the same client meanwhile.
fn shared(library: Library, may_be_held_up: bool) -> &'static str {
    let mut stage = Stage::new(library, "shared");
    stage.waits();
    stage.program.go_on();
    let mut seen = "";
    wait_for("what becomes of the GET", || {
        // Asked before the program is heard: what it says then came while the request waited.
        let waited = stage.waiter().map(|waiter| waiter.waited_ms);
        if stage.says("get failed") {
            seen = "held up";
        } else if stage.says("get answered") && waited.is_some() {
            seen = "go on";
        } else if stage.says("get sent") && may_be_held_up && waited.is_some_and(|ms| ms > HELD_UP_MS) {
            seen = "held up";
        }
        !seen.is_empty()
    });
    seen
}

/// The program of a client, without port and mode.
fn command(library: Library, folder: &Path) -> Command {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guide/traps").join(name);
    let script = |interpreter: &Path, name: &str, word: &str| {
        let mut command = Command::new(interpreter);
        command.arg(file(name)).arg(word).env("REDIS_LOCK_NODE_MODULES", library.node_modules().parent().unwrap());
        command
    };
    match library {
        Library::RedisPy => script(&python(), "traps.py", "redis"),
        Library::RedisPyAsyncio => script(&python(), "traps.py", "redis-asyncio"),
        Library::ValkeyPy => script(&python(), "traps.py", "valkey"),
        Library::GlidePython => script(&python(), "traps.py", "glide"),
        Library::GlidePythonSync => script(&python(), "traps.py", "glide-sync"),
        Library::NodeRedis => script(&node(), "traps.mjs", "node-redis"),
        Library::Ioredis => script(&node(), "traps.mjs", "ioredis"),
        Library::Iovalkey => script(&node(), "traps.mjs", "iovalkey"),
        Library::GlideNode => script(&node(), "traps.mjs", "glide"),
        Library::RedisRb => script("ruby".as_ref(), "traps.rb", "redis-rb"),
        Library::Phpredis | Library::Predis => {
            let mut command = Command::new("php");
            // The page says that this setting is the timeout of both, and how long it is.
            command.args(["-d", "default_socket_timeout=2"]).arg(file("traps.php"));
            command.arg(if library == Library::Phpredis { "phpredis" } else { "predis" });
            command
        }
        Library::Hiredis | Library::Redigo | Library::GoRedis => {
            let name = if library == Library::Hiredis { "traps.c" } else { "traps.go" };
            let mut command = library.command(&std::fs::read_to_string(file(name)).unwrap(), folder);
            command.arg(library.row());
            command
        }
        Library::RedisRs | Library::RedisRsAsync => unreachable!("it runs in this process"),
        Library::Jedis => unreachable!("its defaults are those of its sources"),
    }
}
