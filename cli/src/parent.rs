//! The process that the user started: it waits for the lock, then looks after the command. It has no network.

use crate::args::{Purpose, Run};
use crate::command::Command;
use crate::events::{Event, Events};
use crate::exit::{self, say_of};
use crate::keeper;
use crate::message::{Order, Report};
use crate::supervise::{Ended, supervise};
use crate::sys::{self, Signals};
use crate::time::text;
use crate::timer::Timer;
use crate::wire::Wire;
use redis_lock_client::Moment;
use rustix::process::Signal;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::time::Duration;

/// How long the keeper has to leave the wait queue.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// How long after the end of the wait the keeper has to say how it came out: what its last requests may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long the keeper has to give the lock back: it asks twice if need be.
const RELEASE_LIMIT: Duration = Duration::from_secs(11);

/// Runs the command under the lock, and gives the exit code.
pub(crate) fn run(run: &Run) -> u8 {
    match Parent::start(run) {
        Ok(parent) => parent.run(),
        Err(error) => {
            say_of(&run.key, error);
            exit::UNAVAILABLE
        }
    }
}

struct Parent<'a> {
    run: &'a Run,
    events: Events,
    keeper: Child,
}

struct Grant {
    fence: u64,
    owner: String,
}

impl Parent<'_> {
    fn start(run: &Run) -> io::Result<Parent<'_>> {
        if !Path::new("/proc/self/exe").exists() {
            return Err(io::Error::other("redis-lock needs /proc"));
        }
        sys::wait_for_children();
        let signals = Signals::take()?;
        let hold = Timer::new()?;
        let (here, there) = UnixStream::pair()?;
        let mut keeper = Program::new("/proc/self/exe");
        keeper
            .arg0("redis-lock")
            .arg(keeper::ROLE)
            .args(std::env::args_os().skip(1))
            .stdin(Stdio::from(OwnedFd::from(there)));
        keeper.stdout(Stdio::from(hold.as_fd().try_clone_to_owned()?)).stderr(Stdio::null());
        // It leaves this folder. What names files for it still names them there.
        for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            let paths = std::env::var_os(name).unwrap_or_default();
            let paths = std::env::split_paths(&paths).filter_map(|path| std::path::absolute(path).ok());
            if let Some(paths) = std::env::join_paths(paths).ok().filter(|paths| !paths.is_empty()) {
                keeper.env(name, paths);
            }
        }
        let keeper = keeper.spawn()?;
        Ok(Parent { run, events: Events::new(signals, Wire::new(here)?, hold)?, keeper })
    }

    fn run(mut self) -> u8 {
        let grant = match self.wait() {
            Ok(grant) => grant,
            Err(code) => return code,
        };
        self.explain(format_args!("held, owner {}, fence {}", grant.owner, grant.fence));
        let command = match Command::start(self.run, &grant.owner, grant.fence) {
            Ok(command) => command,
            Err(error) => {
                say_of(&self.run.key, error);
                return self.release(Ended { code: exit::CANNOT_RUN, is_lost: false, has_run: false, released: None });
            }
        };
        let ended = supervise(self.run, &mut self.events, command);
        self.release(ended)
    }

    /// Waits for the lock, or for the exit code.
    fn wait(&mut self) -> Result<Grant, u8> {
        self.explain("asked for");
        let (mut leaving, mut is_late) = (None, false);
        self.events.wake_at(self.run.wait.map(|wait| Moment::now() + wait));
        loop {
            match (self.events.next(), leaving) {
                (Event::Signal(Signal::CHILD | Signal::CONT | Signal::WINCH | Signal::TTOU), _) => {}
                (Event::Signal(Signal::TSTP), _) => sys::stop(false, || {}),
                (Event::Signal(signal), None) => {
                    leaving = Some(exit::by_signal(signal.as_raw()));
                    self.events.tell(&Order::Leave);
                    self.events.wake_at(Some(Moment::now() + LEAVE_LIMIT));
                }
                // Once more, or too late. The keeper leaves the queue alone, and what it is granted meanwhile.
                (Event::Signal(_) | Event::Timer, Some(code)) => return Err(code),
                (Event::Timer, None) => match self.run.wait {
                    // The keeper says how the wait came out, unless the machine slept for so long. It may be stopped.
                    Some(_) if !is_late => {
                        is_late = true;
                        self.events.wake_at(Some(Moment::now() + ANSWER_LIMIT));
                    }
                    Some(_) => {
                        drop(self.keeper.kill());
                        say_of(&self.run.key, "the process that waits for the lock stands still");
                        return Err(exit::UNAVAILABLE);
                    }
                    None => {}
                },
                (Event::Report(Report::Left) | Event::KeeperGone, Some(code)) => return Err(code),
                (Event::Report(Report::Granted { fence, owner }), None) => return Ok(Grant { fence, owner }),
                (Event::Report(Report::Conflict), None) => {
                    match self.run.wait {
                        Some(wait) if !wait.is_zero() => self.warn(format_args!("not got within {}", text(wait))),
                        _ => self.explain("others hold it"),
                    }
                    return Err(self.run.conflict_exit);
                }
                (Event::Report(Report::Failed(code, text)), None) => {
                    say_of(&self.run.key, text);
                    return Err(code);
                }
                (Event::Report(Report::Warning(text)), _) => self.warn(text),
                (Event::KeeperGone, None) => {
                    say_of(&self.run.key, "the process that waits for the lock has died");
                    return Err(exit::UNAVAILABLE);
                }
                (Event::Report(_) | Event::HoldEnds(_), _) => {}
            }
        }
    }

    /// Lets the keeper give the lock back, now that the command has ended.
    fn release(&mut self, ended: Ended) -> u8 {
        let Ended { code, is_lost, has_run, released } = ended;
        let stays = "it stays held until its lease ends";
        match released {
            Some(Report::Unreleased(why)) => {
                self.warn(format_args!("the lock was not released: {stays} ({why})"));
                return code;
            }
            Some(Report::Released(stays)) => {
                self.explain_release(stays);
                return code;
            }
            _ => {}
        }
        if self.events.keeper_is_gone() {
            if !is_lost {
                self.warn(format_args!("the lock was not released, since the process that keeps it died: {stays}"));
            }
            return code;
        }
        // Without a token nobody could release it.
        let has_run = has_run && (code == 0 || self.run.purpose != Purpose::Token);
        self.events.tell(if has_run { &Order::Ended } else { &Order::NotRun });
        let limit = Moment::now() + RELEASE_LIMIT;
        self.events.wake_at(Some(limit));
        loop {
            match self.events.next() {
                // It was for what came before.
                Event::Timer if !limit.is_past() => {}
                Event::Report(Report::Released(stays)) => {
                    self.explain_release(stays);
                    return code;
                }
                Event::Report(Report::Lost) => {
                    if !is_lost {
                        self.warn("the lock was lost before its release");
                    }
                    return exit::LOST;
                }
                Event::Report(Report::Unreleased(why)) => {
                    self.warn(format_args!("the lock was not released: {stays} ({why})"));
                    return code;
                }
                Event::Report(Report::Warning(text)) => self.warn(text),
                // The user has waited long enough, or it takes too long. The keeper goes on alone.
                Event::Signal(Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
                | Event::Timer
                | Event::KeeperGone
                | Event::HoldEnds(_) => {
                    if !is_lost {
                        self.warn(format_args!("the lock may not have been released: {stays}"));
                    }
                    return code;
                }
                Event::Signal(_) | Event::Report(_) => {}
            }
        }
    }

    fn warn(&self, text: impl std::fmt::Display) {
        if !self.run.quiet {
            say_of(&self.run.key, text);
        }
    }

    fn explain_release(&self, stays: Duration) {
        if stays.is_zero() {
            self.explain("released");
        } else {
            let why = if self.run.purpose == Purpose::Token { "" } else { " (--at-least)" };
            self.explain(format_args!("stays for {}{why}", text(stays)));
        }
    }

    fn explain(&self, text: impl std::fmt::Display) {
        if self.run.verbose {
            say_of(&self.run.key, text);
        }
    }
}
