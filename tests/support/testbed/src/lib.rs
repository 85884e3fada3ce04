//! Real servers for tests of the module from outside. Each is started on a port that no other process is given, in a
//! directory of its own, and killed by its handle when dropped. It is never killed by name, nor is a foreign server
//! killed.

mod client;
mod cluster;
mod commands;
#[expect(missing_docs, reason = "the fields are those that LOCK.INFO shows")]
mod lock_info;
mod played;
mod port;
mod process;
mod proxy;
mod server;
mod tls;

pub use client::{Client, text_of};
pub use cluster::Cluster;
pub use commands::{Speller, parse_commands};
pub use lock_info::{Fields, HolderInfo, LockInfo, WaiterInfo};
pub use played::{Request, play};
pub use port::Port;
pub use process::spawn;
pub use proxy::Proxy;
pub use redis::Value;
pub use rustix::process::Signal;
pub use server::{Server, Setup};
pub use tls::Certificates;

use rustix::process::{Pid, kill_process};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// How long a condition may take to come true before a test gives up. Generous, for a machine that others use: it ends
/// early when all is well.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A file of this machine that the tests need: from the environment, else where make puts it.
pub fn file_from(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable)
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(default), PathBuf::from)
}

/// The module under test.
pub fn module() -> PathBuf {
    let path = file_from("REDIS_LOCK_MODULE", "target/release/libredis_lock.so");
    assert!(path.exists(), "{} is missing: run the tests with make test", path.display());
    path
}

/// Waits until a condition holds; fails loudly if it does not.
pub fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    wait_so_long(PATIENCE, what, condition);
}

/// The same with a time limit of its own, for what takes long on a busy machine.
pub fn wait_so_long(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a process that this one has started a signal.
pub fn signal(process: &Child, signal: Signal) {
    send(Pid::from_child(process), signal);
}

/// Sends a process a signal. After one that stops it, each of its threads has stopped: they go on for a moment.
pub fn send(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
    if signal == Signal::STOP {
        wait_for("a process to stand still", || stands_still(pid));
    }
}

fn stands_still(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten();
    threads.map_while(Result::ok).all(|thread| {
        // A thread that ends meanwhile has no state.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z', 'X']))
    })
}

/// Waits until a process that this one has started ends by itself; false if that takes too long, or if it failed.
pub fn ends_within(process: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = process.try_wait().expect("a child") {
            return status.success();
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Says that a test, or a part of it, is left out, and why. It says so where tools/test.py finds it: in the file that
/// `REDIS_LOCK_NOT_RUN` names. The reason is that libtest counts such a test as passed and keeps what it prints to
/// itself.
pub fn say_not_run(test: &str, why: &str) {
    let line = format!("{test}: {why}\n");
    match std::env::var_os("REDIS_LOCK_NOT_RUN") {
        // In one write, since tests beside this one write there, too.
        Some(path) => File::options().append(true).create(true).open(path).unwrap().write_all(line.as_bytes()).unwrap(),
        #[expect(clippy::explicit_write, reason = "what eprint! says in a test that passes, nobody sees")]
        None => write!(std::io::stderr(), "not run: {line}").unwrap(),
    }
}
