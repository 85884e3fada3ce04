//! The command, as the parent sees it: started behind a gate, waited for.

use crate::args::{Purpose, Run};
use crate::exit;
use crate::group::{Group, proc_is_ours};
use crate::held;
use crate::starter;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, wait, waitid};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process;

pub(crate) struct Command {
    pub(crate) group: Group,
    /// One byte through it lets the command begin. One comes back if it cannot be run.
    gate: UnixStream,
    has_begun: bool,
    /// The exit code of one that was waited for already.
    reaped: Option<u8>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Stopped(Signal),
    Ended(u8),
}

impl Command {
    /// Starts it in a process group of its own, behind the gate. Must be called by the main thread: the command is told
    /// when the thread dies that started it.
    pub(crate) fn start(run: &Run, owner: &str, fence: u64) -> io::Result<Command> {
        let (gate, opener) = UnixStream::pair()?;
        opener.set_nonblocking(true)?;
        fcntl_setfd(&gate, FdFlags::empty())?;
        let mut command = process::Command::new("/proc/self/exe");
        command.arg0("redis-lock").arg(starter::ROLE);
        command.args([gate.as_raw_fd().to_string(), process::id().to_string()]).args(&run.command);
        if run.purpose != Purpose::Command {
            // It reads the same command line.
            command.args(["/proc/self/exe", held::ROLE]).args(std::env::args_os().skip(1));
        }
        command.env("REDIS_LOCK_KEY", &run.key).env("REDIS_LOCK_OWNER", owner);
        command.env("REDIS_LOCK_FENCE", fence.to_string()).env("REDIS_LOCK_MODE", run.mode());
        let child = command.process_group(0).spawn()?;
        let group = Group::of(child.id()).ok_or(io::ErrorKind::Other)?;
        Ok(Command { group, gate: opener, has_begun: false, reaped: None })
    }

    /// Lets it begin.
    pub(crate) fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            // It may have been killed already.
            drop(self.gate.write_all(&[1]));
        }
    }

    /// Whether it has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether it could be run, as far as that has shown.
    pub(crate) fn has_run(&self) -> bool {
        !matches!((&self.gate).read(&mut [0]), Ok(1))
    }

    /// What became of it since it was asked last. It is not reaped, so that its number stays its own.
    pub(crate) fn poll(&mut self) -> Option<Change> {
        let leader = self.group.0;
        let id = || WaitId::Pid(leader);
        if let Some(code) = self.reaped {
            return Some(Change::Ended(code));
        }
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(status)) = waitid(id(), ended) {
            let of_signal = || status.terminating_signal().map(exit::by_signal);
            let code = status.exit_status().and_then(|code| u8::try_from(code & 0xff).ok()).or_else(of_signal);
            let code = code.unwrap_or(exit::UNAVAILABLE);
            if !proc_is_ours() {
                // Else the kernel would count it among the living of its group, and nothing else could tell.
                waitid(id(), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok();
                self.reaped = Some(code);
            }
            return Some(Change::Ended(code));
        }
        if getpid() == Pid::INIT {
            self.reap_orphans();
        }
        let stopped = waitid(id(), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).ok()??;
        Some(Change::Stopped(Signal::from_named_raw(stopped.stopping_signal()?)?))
    }

    /// As the first process of a container this one is the parent of all whose own parent has died.
    fn reap_orphans(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.group.0 {
                let of_signal = || status.terminating_signal().map(exit::by_signal);
                let code = status.exit_status().and_then(|code| u8::try_from(code & 0xff).ok()).or_else(of_signal);
                self.reaped = code;
            }
        }
    }
}
