//! How tests start processes. Whatever ends a run of the tests ends these as well, also `kill -9`. What the run itself
//! was told to ignore (nohup, a job in the background of a script) does not reach them.
#![expect(unsafe_code, reason = "what a new process does before its program begins has no safe interface")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// A process to be started, and where to say what came of it.
type Request = (Command, Sender<io::Result<Child>>);

/// Starts a process: with all signals as a new terminal has them, and to be killed when the tests end.
///
/// # Errors
///
/// As of [`Command::spawn`].
pub fn spawn(mut command: Command) -> io::Result<Child> {
    // Linux kills it at the end of the thread that started it. So that is a thread that lasts.
    static STARTER: OnceLock<Sender<Request>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, requests) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in requests {
                // A test that has ended meanwhile wants no answer.
                drop(answer.send(command.spawn()));
            }
        });
        sender
    });
    // SAFETY: the function only makes system calls, which are allowed between fork and exec.
    unsafe { command.pre_exec(prepare) };
    let (answer, answered) = channel();
    starter.send((command, answer)).expect("the thread lasts");
    answered.recv().expect("the thread lasts")
}

/// In the new process. Its signal mask was emptied already.
fn prepare() -> io::Result<()> {
    for signal in 1..=64 {
        // SAFETY: no handler is installed. What cannot be changed is refused, and stays as it is.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::{Server, wait_for};
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    /// Whether a process runs: it is there, and did not end already.
    fn lives(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn a_server_ends_with_a_run_of_the_tests_that_is_killed() {
        // This test is also the run that is killed.
        if std::env::var_os("TESTBED_IS_KILLED").is_some() {
            let server = Server::setup().without_module().start();
            println!("server {}", server.pid());
            std::thread::park();
        }
        let mut run = Command::new(std::env::current_exe().unwrap());
        run.args(["--exact", "--nocapture", "process::tests::a_server_ends_with_a_run_of_the_tests_that_is_killed"]);
        let mut run = run.env("TESTBED_IS_KILLED", "1").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let server =
            lines.map_while(Result::ok).find_map(|line| Some(line.split_once("server ")?.1.to_owned())).unwrap();
        assert!(lives(&server));
        run.kill().unwrap();
        run.wait().unwrap();
        wait_for("the server to end", || !lives(&server));
    }

    #[test]
    fn a_process_ignores_no_signal_whatever_its_starter_ignores() {
        // A shell that ignores signals starts this test once more, which starts a process.
        if std::env::var_os("TESTBED_IGNORES").is_some() {
            let mut grep = Command::new("grep");
            grep.args(["SigIgn", "/proc/self/status"]);
            assert!(spawn(grep).unwrap().wait().unwrap().success());
            return;
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' HUP INT QUIT TERM; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
        shell.args([
            "--exact",
            "--nocapture",
            "process::tests::a_process_ignores_no_signal_whatever_its_starter_ignores",
        ]);
        let output = shell.env("TESTBED_IGNORES", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        // The C library has two signals above 31 for itself.
        assert_eq!(u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff, 0, "{text}");
    }
}
