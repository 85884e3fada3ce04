//! The process that has the network: it takes the lock, keeps it, gives it back. If the parent does not end the command
//! in time, because it died or stands still, this one does.

use crate::acquire::{acquire, before, request_limit, waiting, watch};
use crate::args::Run;
use crate::backend::Backend;
use crate::exit;
use crate::followed::Followed;
use crate::group::Group;
use crate::kept;
use crate::message::{Order, Report};
use crate::notices::{Notice, NoticeReceiver, NoticeSender, notices};
use crate::sys;
use crate::timer::{Timer, end_process_after};
use crate::wire::Wire;
use redis_lock_client::{Cancel, Error, Guard, Moment, Owner};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Signal, setsid};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The word that makes this program a keeper.
pub(crate) const ROLE: &str = "__keeper";

/// How much later than the parent this one tells the command to end: it is to be told once.
const SLACK: Duration = Duration::from_millis(250);

/// How often the process group is asked for, once the command itself has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A wait that is shorter is not told.
const WAIT_SHOWN: Duration = Duration::from_millis(200);

/// How long after its time a wait may still be answered: the queue is left then.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// How long this process has once it has no command: longer than the server keeps its place in the queue, and than the
/// requests take that give back the lock.
const ORPHAN_LIMIT: Duration = Duration::from_secs(20);

/// How long the parent has to say that the command has ended.
const NOTICE: Duration = Duration::from_secs(1);

/// Keeps the lock for the parent, whose socket is the standard input and whose timer is the standard output.
pub(crate) fn keep(run: Run) -> u8 {
    match Keeper::start(run) {
        Ok(mut keeper) => {
            let code = keeper.work();
            // The parent knows how it came out. What had no answer is given back as soon as the server goes on.
            keeper.wire.flush();
            drop(keeper.guard.take());
            if let Some(backend) = keeper.backend.get() {
                backend.wait_released(ORPHAN_LIMIT);
            }
            code
        }
        Err(_) => exit::UNAVAILABLE,
    }
}

struct Keeper {
    run: Arc<Run>,
    wire: Wire<Order>,
    /// For its threads.
    sender: NoticeSender,
    notices: NoticeReceiver,
    /// Seen by the parent.
    hold: Arc<Timer>,
    /// For what is due here.
    timer: Timer,
    cancel: Cancel,
    guard: Option<Arc<Guard>>,
    /// Until when --at-least keeps the lock.
    keep_until: Option<Moment>,
    command: Option<Followed>,
    /// When the parent was found to be gone.
    orphaned: Option<Moment>,
    /// When the lock was found to be lost.
    lost: Option<Moment>,
    /// What was wrong with the last request, if it was told.
    trouble: Option<String>,
    owner: Owner,
    /// Where the lock is kept, once that is known.
    backend: Arc<OnceLock<Backend>>,
    /// When the user is told that it waits.
    waiting_at: Option<Moment>,
    /// When the wait is over, whether or not the server has answered.
    answer_by: Option<Moment>,
    /// The parent knows how the wait came out; the queue is yet to be left.
    is_over: bool,
    /// The number of the renewal that was asked for last, and whether a thread is at one.
    renewal: u64,
    is_renewing: bool,
}

impl Keeper {
    fn start(run: Run) -> io::Result<Keeper> {
        sys::name();
        sys::ignore_all();
        sys::close_inherited();
        // It keeps no file system busy.
        std::env::set_current_dir("/")?;
        // It is no leader of a group, since its parent did not make it one.
        setsid().ok();
        let socket = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let hold = Arc::new(Timer::of(fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?));
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        let (sender, notices) = notices()?;
        let (cancel, owner) = (Cancel::new(), Owner::with_prefix(&run.owner_prefix));
        let run = Arc::new(run);
        let thread = std::thread::Builder::new().name("redis-lock-taker".to_owned());
        let (of_thread, name, cancelled_by, notify) = (run.clone(), owner.clone(), cancel.clone(), sender.clone());
        let backend = Arc::<OnceLock<Backend>>::default();
        let at = backend.clone();
        thread.spawn(move || {
            notify.send(match kept::refusal(&of_thread, false) {
                Some((code, text)) => Notice::Refused(code, text),
                None => Notice::Acquired(acquire(&of_thread, &name, &cancelled_by, &notify, &at)),
            });
        })?;
        let now = Moment::now();
        let waits = !run.quiet && run.wait != Some(Duration::ZERO);
        let limit = run.wait.map(|wait| if wait.is_zero() { request_limit(&run) } else { wait });
        Ok(Keeper {
            run,
            wire: Wire::new(UnixStream::from(socket))?,
            sender,
            notices,
            hold,
            timer: Timer::new()?,
            cancel,
            guard: None,
            keep_until: None,
            command: None,
            orphaned: None,
            lost: None,
            trouble: None,
            owner,
            backend,
            waiting_at: waits.then(|| now + WAIT_SHOWN),
            answer_by: limit.map(|limit| now + limit + LAST_ANSWER),
            is_over: false,
            renewal: 0,
            is_renewing: false,
        })
    }

    fn work(&mut self) -> u8 {
        loop {
            self.sleep();
            for notice in self.notices.receive() {
                if let Some(code) = self.on_notice(notice) {
                    return code;
                }
            }
            for order in self.wire.receive() {
                if let Some(code) = self.on_order(&order) {
                    return code;
                }
            }
            if self.wire.is_closed() && self.orphaned.is_none() {
                self.orphaned = Some(Moment::now());
                self.cancel.cancel();
                if self.command.is_none() {
                    end_process_after(ORPHAN_LIMIT);
                }
            }
            self.wire.flush();
            self.note_loss();
            if self.command_is_over() || (self.command.is_none() && self.orphaned.is_some() && self.guard.is_some()) {
                return self.release_and_end();
            }
            self.guard_command();
            self.follow_wait();
        }
    }

    /// Until something comes, or is due.
    fn sleep(&self) {
        self.timer.set(self.next_deadline(), Duration::ZERO);
        let process = self.command.as_ref().and_then(|command| command.process.as_ref());
        let mut files = vec![self.notices.as_fd(), self.timer.as_fd()];
        files.extend(process.map(AsFd::as_fd));
        let mut files: Vec<PollFd<'_>> =
            files.into_iter().map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)).collect();
        if self.orphaned.is_none() {
            files.push(self.wire.poll_fd());
        }
        poll(&mut files, None).ok();
        self.timer.count();
    }

    /// What its own threads say.
    fn on_notice(&mut self, notice: Notice) -> Option<u8> {
        match notice {
            // What was granted after all is given back.
            Notice::Acquired(outcome) if self.is_over => {
                drop(outcome);
                return Some(0);
            }
            Notice::Acquired(Ok(Some(guard))) => {
                self.keep_until = self.run.at_least.map(|time| Moment::now() + time);
                if watch(&self.run, &guard, self.hold.clone(), self.sender.clone()).is_err()
                    || self.cancel.is_cancelled()
                {
                    drop(guard);
                    return Some(self.say(Report::Left));
                }
                let (fence, owner) = (guard.fence(), guard.owner().to_string());
                self.guard = Some(Arc::new(guard));
                self.trouble = None;
                self.wire.send(&Report::Granted { fence, owner });
            }
            Notice::Refused(code, text) => return Some(self.say(Report::Failed(code, text))),
            Notice::Acquired(Ok(None)) => return Some(self.say(Report::Conflict)),
            Notice::Acquired(Err(Error::Cancelled)) => return Some(self.say(Report::Left)),
            Notice::Acquired(Err(error)) => {
                let (code, text) = self.explain(&error);
                return Some(self.say(Report::Failed(code, text)));
            }
            // It is noticed anyway.
            Notice::Trouble(Error::Lost) => {}
            Notice::Trouble(error) if self.guard.is_some() => self.not_renewed(&error),
            // The wait ends with it.
            Notice::Trouble(error) if !error.is_transient() => {}
            // To leave takes time as well, and nobody answers.
            Notice::Trouble(error) if self.run.wait == Some(Duration::ZERO) => {
                let (code, text) = exit::of_error(&error);
                self.end_wait(code, text);
            }
            Notice::Trouble(error) => {
                let text = exit::of_error(&error).1;
                if self.trouble.is_none() {
                    self.send_if_read(&Report::Warning(format!("{text}: it goes on waiting")));
                }
                self.trouble = Some(text);
            }
            Notice::Waiting(text) => {
                if self.guard.is_none() && !self.is_over {
                    self.send_if_read(&Report::Warning(text));
                }
            }
            Notice::Changed => {
                if self.trouble.is_some() && self.guard.as_ref().is_some_and(|guard| !guard.is_lost()) {
                    self.trouble = None;
                    self.send_if_read(&Report::RenewedAgain);
                }
            }
            Notice::Renewed(number, Ok(true)) if number == self.renewal => {
                self.is_renewing = false;
                self.wire.send(&Report::Renewed(number));
            }
            Notice::Renewed(_, Ok(true)) => self.renew(Duration::ZERO),
            Notice::Renewed(_, Ok(false)) => self.is_renewing = false,
            // Asked again, since the command stands still until then.
            Notice::Renewed(_, Err(error)) => {
                self.not_renewed(&error);
                self.renew(Duration::from_secs(1));
            }
        }
        None
    }

    /// What the parent says.
    fn on_order(&mut self, order: &Order) -> Option<u8> {
        match order {
            Order::Leave => {
                self.cancel.cancel();
                if self.guard.is_some() {
                    self.release();
                    return Some(self.say(Report::Left));
                }
            }
            Order::Started(group) => {
                self.command = Some(Followed::new(Group::of(*group)?));
                self.note_loss();
                if self.lost.is_none() {
                    self.wire.send(&Report::Ready);
                }
            }
            Order::Renew(number) => {
                self.renewal = *number;
                // One at a time: the next one counts for all that came meanwhile.
                if !std::mem::replace(&mut self.is_renewing, true) {
                    self.renew(Duration::ZERO);
                }
            }
            Order::Ending => {
                if let Some(command) = &mut self.command {
                    command.told.get_or_insert(Moment::now());
                }
            }
            Order::Ended => return Some(self.release_and_end()),
            Order::NotRun => {
                self.keep_until = None;
                return Some(self.release_and_end());
            }
        }
        None
    }

    /// Renews the lock on a thread, so that the command is watched meanwhile.
    fn renew(&mut self, after: Duration) {
        let Some(guard) = self.guard.as_ref().map(Arc::downgrade) else { return };
        let (number, sender) = (self.renewal, self.sender.clone());
        let thread = std::thread::Builder::new().name("redis-lock-extra".to_owned());
        let thread = thread.spawn(move || {
            std::thread::sleep(after);
            // It may have been released meanwhile.
            let Some(guard) = guard.upgrade() else { return };
            let renewed = guard.renew();
            drop(guard);
            sender.send(Notice::Renewed(number, renewed));
        });
        // Without a thread the command stands still until it is continued once more.
        self.is_renewing = thread.is_ok();
    }

    fn note_loss(&mut self) {
        if self.lost.is_none() && self.guard.as_ref().is_some_and(|guard| guard.is_lost()) {
            self.lost = Some(Moment::now());
            self.wire.send(&Report::Lost);
        }
    }

    /// Whether the command has ended, and all of its group.
    fn command_is_over(&mut self) -> bool {
        let no_kill = self.run.no_kill;
        let Some(command) = &mut self.command else { return false };
        command.look();
        // While the parent lives, it is asked first: it knows the exit code.
        let is_ours = self.orphaned.is_some() || command.ended.is_some_and(|ended| ended.elapsed() > NOTICE);
        is_ours && command.is_over(no_kill)
    }

    /// When the command is told to end, and when it is killed, as things stand.
    fn limits(&self) -> (Option<Moment>, Option<Moment>) {
        let (Some(guard), Some(command)) = (&self.guard, &self.command) else { return (None, None) };
        let (end, kill_after) = (guard.valid_until(), self.run.kill_after);
        let slack = SLACK.min(kill_after / 4);
        let (mut tell, mut kill) = (Vec::new(), Vec::new());
        if !self.run.no_kill {
            tell.push(self.lost.unwrap_or_else(|| before(end, kill_after)) + slack);
            // A loss that the server told of is no reason to spare it beyond the end.
            kill.push(end);
            kill.extend(self.lost.map(|lost| lost + kill_after));
        }
        if let Some(orphaned) = self.orphaned {
            tell.push(orphaned);
            kill.push(orphaned + kill_after);
        }
        if let Some(ended) = command.ended.filter(|_| !self.run.no_kill) {
            tell.push(ended + NOTICE);
            kill.push(ended + NOTICE + kill_after);
        }
        (tell.into_iter().min().filter(|_| command.told.is_none()), kill.into_iter().min())
    }

    /// Ends the command, if that is due.
    fn guard_command(&mut self) {
        let (tell, kill) = self.limits();
        let Some(command) = &mut self.command else { return };
        if kill.is_some_and(Moment::is_past) {
            command.signal(Signal::KILL);
        } else if tell.is_some_and(Moment::is_past) {
            command.told = Some(Moment::now());
            command.signal(Signal::TERM);
        }
    }

    fn next_deadline(&self) -> Option<Moment> {
        let Some(command) = &self.command else {
            return [self.waiting_at, self.answer_by].into_iter().flatten().min();
        };
        let (tell, kill) = self.limits();
        let is_past = kill.is_some_and(Moment::is_past);
        let polls = self.orphaned.is_some() || command.ended.is_some() || is_past;
        let poll = polls.then(|| Moment::now() + POLL_INTERVAL);
        [poll, tell, kill.filter(|_| !is_past)].into_iter().flatten().min()
    }

    /// Gives the lock back, since the command has ended.
    fn release_and_end(&mut self) -> u8 {
        end_process_after(ORPHAN_LIMIT);
        let report = self.release();
        self.say(report)
    }

    fn release(&mut self) -> Report {
        let Some(mut guard) = self.guard.take() else { return Report::Left };
        let guard = loop {
            // A renewal may be under way; it takes a while at most.
            match Arc::try_unwrap(guard) {
                Ok(guard) => break guard,
                Err(shared) => {
                    guard = shared;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        };
        let remaining = self.keep_until.map_or(Duration::ZERO, Moment::left);
        let released = if remaining.is_zero() { guard.release() } else { guard.release_after(remaining) };
        match released {
            Ok(()) => Report::Released(remaining),
            Err(Error::Lost) => Report::Lost,
            Err(error) => Report::Unreleased(exit::of_error(&error).1),
        }
    }

    /// The last word.
    fn say(&mut self, report: Report) -> u8 {
        self.wire.send(&report);
        0
    }

    /// Unless the parent does not read.
    fn send_if_read(&mut self, report: &Report) {
        if !self.wire.is_full() {
            self.wire.send(report);
        }
    }

    /// Does what is due in a wait.
    fn follow_wait(&mut self) {
        if self.guard.is_some() || self.is_over {
            (self.waiting_at, self.answer_by) = (None, None);
        }
        if self.waiting_at.take_if(|at| at.is_past()).is_some() {
            let (run, owner, sender) = (self.run.clone(), self.owner.clone(), self.sender.clone());
            let thread = std::thread::Builder::new().name("redis-lock-holder".to_owned());
            // Without a thread it is not told.
            drop(thread.spawn(move || {
                if let Some(text) = waiting(&run, &owner) {
                    sender.send(Notice::Waiting(text));
                }
            }));
        }
        if self.answer_by.take_if(|at| at.is_past()).is_some() {
            let text = self.trouble.take().unwrap_or_else(|| "no answer from the server in time".to_owned());
            self.end_wait(exit::UNAVAILABLE, text);
        }
    }

    /// Tells the parent how the wait came out, before the queue is left.
    fn end_wait(&mut self, code: u8, text: String) {
        self.is_over = true;
        self.cancel.cancel();
        self.wire.send(&Report::Failed(code, text));
    }

    fn not_renewed(&mut self, error: &Error) {
        let text = exit::of_error(error).1;
        if self.trouble.as_ref() != Some(&text) {
            self.send_if_read(&Report::NotRenewed(text.clone()));
            self.trouble = Some(text);
        }
    }

    /// Exit code and text, in the words of the command line.
    fn explain(&self, error: &Error) -> (u8, String) {
        let (code, text) = exit::of_error(error);
        let Some(limit) = exit::lease_limit(error) else { return (code, text) };
        let option = if self.run.lease.as_millis() > limit { "--lease" } else { "--at-least" };
        (code, text.replace("--lease", option))
    }
}
