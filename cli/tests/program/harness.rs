//! Starts the program, and looks at what it does.

use crate::process::{self, Mark};
use rustix::process::{Pid, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use tempfile::TempDir;
use testbed::{Client, PATIENCE, Server, Signal, file_from, wait_for};

/// A run of the program. It, its keeper, the command and whatever that started are killed when it is dropped.
pub(crate) struct Run {
    pub(crate) child: Child,
    mark: Mark,
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
    program_at(Path::new(env!("CARGO_BIN_EXE_redis-lock")), port, words)
}

/// The same for another program, such as one that starts it.
pub(crate) fn program_at<S: AsRef<OsStr>>(path: &Path, port: u16, words: &[S]) -> Command {
    let mut command = Command::new(path);
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
        let mark = Mark::new();
        mark.put_on(&mut command);
        // As a shell does it. A stop is for this run alone.
        command.process_group(0);
        Run { child: testbed::spawn(command).unwrap(), mark }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        testbed::signal(&self.child, signal);
    }

    /// The process that has the network.
    pub(crate) fn keeper(&self) -> Pid {
        let mut found = None;
        wait_for("the keeper", || {
            let is_it = |pid: &u32| process::words(*pid).iter().any(|word| word == "__keeper");
            found = self.mark.processes().into_iter().find(is_it);
            found.is_some()
        });
        process::pid(found.unwrap())
    }

    /// All that it has started and that lives, and itself.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.mark.processes()
    }

    /// Waits until it ends by itself, and until nothing of it is left.
    pub(crate) fn end(mut self) -> Outcome {
        let out = self.child.stdout.take().map(read_all);
        let err = self.child.stderr.take().map(read_all);
        let code = self.code();
        wait_for("all of it to end", || self.processes().is_empty());
        let [out, err] = [out, err].map(|text| text.map_or(String::new(), |text| text.recv_timeout(PATIENCE).unwrap()));
        Outcome { code, out, err }
    }

    /// Waits for its exit code alone: others may still have its output.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let mut status = None;
        wait_for("the program to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

/// Reads to the end, beside this thread.
fn read_all<R: Read + Send + 'static>(mut stream: R) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        drop(sender.send(String::from_utf8_lossy(&bytes).into_owned()));
    });
    receiver
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.child.kill());
        // Each that is found may have started another meanwhile.
        wait_for("all of it to be killed", || {
            let left = self.processes();
            for pid in &left {
                let _gone = kill_process(process::pid(*pid), Signal::KILL);
            }
            left.is_empty()
        });
        drop(self.child.wait());
    }
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

    /// Copies a program into it. Another process does it: one that this process had open for writing could not be run
    /// while another test starts a process, which has it open for a moment, too.
    pub(crate) fn install(&self, from: &str, mode: &str, name: &str) {
        let copied = Run::of(program_at(Path::new("install"), 0, &["-m", mode, from, &self.text(name)])).end();
        assert_eq!(copied.code, Some(0), "{}", copied.err);
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

    /// The same, for a command that does not mind TERM. It notes in the file `told` that it came.
    pub(crate) fn stubborn(&self) -> String {
        self.heartbeat(&format!("trap 'echo told >> {}' TERM", self.text("told")))
    }

    /// How often a heartbeat has written.
    pub(crate) fn beats(&self) -> usize {
        self.read("beat").lines().count()
    }

    /// Waits until it has written again.
    pub(crate) fn wait_beats(&self) {
        let beats = self.beats();
        wait_for("more beats", || self.beats() > beats + 2);
    }

    /// The last time that a heartbeat wrote.
    pub(crate) fn last_beat(&self) -> u64 {
        self.read("beat").lines().last().unwrap().parse().unwrap()
    }

    /// A run that says what it says to people into the file `err`.
    pub(crate) fn told(&self, mut command: Command) -> Run {
        command.stderr(fs::File::create(self.path("err")).unwrap());
        Run::of(command)
    }

    /// A run under the lock k that has written its heartbeat.
    pub(crate) fn beating(&self, port: u16, options: &[&str], script: &str) -> Run {
        let run = start(port, &[&["run"], options, &["k", "-c", script]].concat());
        self.line("beat");
        run
    }

    /// Runs a second holder of the lock k, and sees that the first one wrote nothing once that one had it.
    #[track_caller]
    pub(crate) fn assert_over(&self, port: u16) {
        let second = self.second_holder(port);
        assert!(self.last_beat() < second, "it ran on beside the next holder");
    }

    /// Runs a second holder, which waits for the lock, and gives the time when it had it.
    pub(crate) fn second_holder(&self, port: u16) -> u64 {
        let second = run(port, &["run", "k", "date", "+%s%N"]);
        assert_eq!(second.code, Some(0), "{second:?}");
        second.out.trim().parse().unwrap()
    }

    /// The same path, as text.
    pub(crate) fn text(&self, name: &str) -> String {
        Path::display(&self.path(name)).to_string()
    }
}

/// A Python, of which no test of the program needs more than its library.
pub(crate) fn python() -> PathBuf {
    Some(file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python"))
        .filter(|path| path.exists())
        .unwrap_or_else(|| "python3".into())
}

/// Says that this machine cannot run this test, or a part of it.
pub(crate) fn not_run(why: &str) {
    testbed::say_not_run(std::thread::current().name().unwrap_or("program"), why);
}

/// Waits until a key is held.
pub(crate) fn wait_held(server: &Server, key: &str) {
    let mut conn = server.connect();
    wait_for("the lock to be held", || is_held(&mut conn, key));
}

/// A server on which another holds the lock k, for long.
pub(crate) fn taken() -> (Server, Client) {
    let (server, mut conn) = Server::connected();
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "other", "PX", "600000"]).is_some());
    (server, conn)
}

/// A run with these words that stands in the queue for the lock k, which another holds.
pub(crate) fn queued(server: &Server, words: &[&str]) -> Run {
    let run = start(server.port(), words);
    wait_waiters(server, "k", 1);
    run
}

/// Whether it is held.
pub(crate) fn is_held(conn: &mut Client, key: &str) -> bool {
    conn.lock_info(key).is_some_and(|info| !info.holders.is_empty())
}

/// Waits until so many stand in the queue.
pub(crate) fn wait_waiters(server: &Server, key: &str, count: usize) {
    let mut conn = server.connect();
    wait_for("the queue", || conn.lock_info(key).map_or(0, |info| info.waiters.len()) == count);
}
