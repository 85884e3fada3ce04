//! Starts the program, and looks at what it does.

use rustix::process::{Pid, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use testbed::{Client, Server, Signal, wait_for};

/// A run of the program. Both of its processes and the command are killed when it is dropped.
pub(crate) struct Run {
    pub(crate) child: Child,
    started: Vec<u32>,
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code; None if a signal ended the program.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The program with these words. Its standard input is empty.
pub(crate) fn program<S: AsRef<OsStr>>(port: u16, words: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redis-lock"));
    command.args(words).env("REDIS_LOCK_URL", format!("redis://127.0.0.1:{port}")).env_remove("REDISCLI_AUTH");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts it.
pub(crate) fn start<S: AsRef<OsStr>>(port: u16, words: &[S]) -> Run {
    Run::of(program(port, words))
}

/// Runs it until it ends.
pub(crate) fn run<S: AsRef<OsStr>>(port: u16, words: &[S]) -> Outcome {
    start(port, words).end()
}

impl Run {
    pub(crate) fn of(mut command: Command) -> Run {
        // As a shell does it. A stop is for this run alone.
        command.process_group(0);
        Run { child: command.spawn().unwrap(), started: Vec::new() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        testbed::signal(&self.child, signal);
    }

    /// The process that has the network.
    pub(crate) fn keeper(&mut self) -> Pid {
        self.part("__keeper")
    }

    fn part(&mut self, word: &str) -> Pid {
        let parent = self.child.id();
        let mut found = None;
        wait_for(word, || {
            let is_it = |pid: &u32| words_of(*pid).iter().any(|part| part == word);
            found = children(parent).into_iter().find(is_it);
            found.is_some()
        });
        let pid = found.unwrap();
        self.started.push(pid);
        Pid::from_raw(pid.cast_signed()).unwrap()
    }

    /// Waits until it ends by itself.
    pub(crate) fn end(mut self) -> Outcome {
        let (mut out, mut err) = (String::new(), String::new());
        let mut stderr = self.child.stderr.take().unwrap();
        let mut stdout = self.child.stdout.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| stderr.read_to_string(&mut err).unwrap());
            stdout.read_to_string(&mut out).unwrap();
        });
        Outcome { code: self.child.wait().unwrap().code(), out, err }
    }

    /// Waits for its exit code alone: others may still have its output.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for pid in children(self.child.id()).into_iter().chain(self.started.drain(..)) {
            let ours = words_of(pid).iter().any(|word| word == "__keeper");
            if ours || parent_of(pid) == Some(self.child.id()) {
                let _gone = Pid::from_raw(pid.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
            }
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn children(pid: u32) -> Vec<u32> {
    let file = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn words_of(pid: u32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Whether a process runs; not one that has ended and waits to be reaped.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The letter of the state of a process.
pub(crate) fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('-')
}

/// A folder for what commands write.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What is in a file; nothing while it is not there.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file has a line, and gives its first one.
    pub(crate) fn line(&self, name: &str) -> String {
        wait_for(name, || self.read(name).contains('\n'));
        self.read(name).lines().next().unwrap().to_owned()
    }

    /// A number that a command writes, such as its process.
    pub(crate) fn number(&self, name: &str) -> u32 {
        self.line(name).parse().unwrap()
    }

    /// A line of the shell that writes the time into a file again and again, beginning with the number of its process.
    /// Before it comes what the line is to do first.
    pub(crate) fn heartbeat(&self, first: &str) -> String {
        let (pid, beat) = (self.path("pid"), self.path("beat"));
        let (pid, beat) = (pid.display(), beat.display());
        format!("{first}; echo $$ >> {pid}; while :; do date +%s%N >> {beat}; sleep 0.01; done")
    }

    /// The last time that a heartbeat wrote.
    pub(crate) fn last_beat(&self) -> u64 {
        self.read("beat").lines().last().unwrap().parse().unwrap()
    }

    /// Runs a second holder, which waits for the lock, and gives the time when it had it.
    pub(crate) fn second_holder(&self, port: u16, key: &str) -> u64 {
        let second = run(port, &["run", key, "date", "+%s%N"]);
        assert_eq!(second.code, Some(0), "{second:?}");
        second.out.trim().parse().unwrap()
    }

    /// The same path, as text.
    pub(crate) fn text(&self, name: &str) -> String {
        Path::display(&self.path(name)).to_string()
    }
}

/// Waits until somebody holds a key.
pub(crate) fn wait_held(server: &Server, key: &str) {
    let mut conn = server.connect();
    wait_for("the lock to be held", || is_held(&mut conn, key));
}

/// Whether somebody holds it.
pub(crate) fn is_held(conn: &mut Client, key: &str) -> bool {
    conn.lock_info(key).is_some_and(|info| !info.holders.is_empty())
}

/// Waits until so many stand in line.
pub(crate) fn wait_waiters(server: &Server, key: &str, count: usize) {
    let mut conn = server.connect();
    wait_for("the line", || conn.lock_info(key).map_or(0, |info| info.waiters.len()) == count);
}
