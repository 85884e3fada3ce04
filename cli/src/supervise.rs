//! Looks after the command while the lock is held: hands signals on, and ends it before others can hold the lock.

use crate::args::{Purpose, Run};
use crate::command::{Change, Command};
use crate::events::{Event, Events};
use crate::exit::{self, say_of};
use crate::message::{Order, Report};
use crate::sys;
use crate::terminal::Terminal;
use redis_lock_client::Moment;
use rustix::process::Signal;
use std::time::Duration;

/// How often the process group is asked for, once the command itself has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time after which a setuid command has changed its user.
const SETTLED: Duration = Duration::from_millis(500);

/// After so long a renewal is asked for once more, if the command is continued once more.
const RENEW_LIMIT: Duration = Duration::from_secs(1);

/// How it came out.
pub(crate) struct Ended {
    pub(crate) code: u8,
    pub(crate) is_lost: bool,
    /// Whether the command could be run at all.
    pub(crate) has_run: bool,
    /// What the keeper has said of the release already: while this process was stopped it did not wait.
    pub(crate) released: Option<Report>,
}

/// Why the command is to end before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Lost,
    TooLong,
    /// The command itself has ended, but not all of its group.
    Leftovers,
}

struct Supervisor<'a> {
    run: &'a Run,
    events: &'a mut Events,
    command: Command,
    terminal: Terminal,
    /// The exit code of the command.
    code: Option<u8>,
    is_lost: bool,
    is_too_long: bool,
    /// When all that is left is killed.
    kill_at: Option<Moment>,
    was_killed: bool,
    /// When what cannot be killed is left alone.
    abandon_at: Option<Moment>,
    /// When a command that runs for too long is told to end.
    max_at: Option<Moment>,
    /// When it is asked whether it may be signalled at all.
    check_at: Option<Moment>,
    warned_of_user: bool,
    /// Why the last renewal failed, if it did.
    not_renewed: Option<String>,
    /// How often the keeper's timer has run out.
    hold_ended: u64,
    /// How often a renewal was asked for.
    renewals: u64,
    /// When the pending renewal was asked for; and whether one more must follow.
    renew_asked: Option<Moment>,
    renew_again: bool,
    released: Option<Report>,
    /// Whether the next stop of the command is one that came through here.
    stop_is_ours: bool,
}

/// Waits until the command and its process group have ended.
pub(crate) fn supervise(run: &Run, events: &mut Events, command: Command) -> Ended {
    let terminal = Terminal::find();
    terminal.give_if_wanted(command.group);
    events.tell(&Order::Started(command.group.0.as_raw_nonzero().get().unsigned_abs()));
    if events.keeper_is_gone() {
        command.group.signal_with_leader(Signal::KILL);
    }
    let now = Moment::now();
    let mut supervisor = Supervisor {
        run,
        events,
        command,
        terminal,
        code: None,
        is_lost: false,
        is_too_long: false,
        kill_at: None,
        was_killed: false,
        abandon_at: None,
        max_at: run.max.map(|max| now + max),
        check_at: Some(now + SETTLED),
        warned_of_user: false,
        not_renewed: None,
        hold_ended: 0,
        renewals: 0,
        renew_asked: None,
        renew_again: false,
        released: None,
        stop_is_ours: false,
    };
    supervisor.work()
}

impl Supervisor<'_> {
    fn work(&mut self) -> Ended {
        loop {
            self.plan();
            match self.events.next() {
                Event::Signal(Signal::CHILD | Signal::TTOU) => {}
                Event::Signal(Signal::TSTP) => self.stop_all(),
                // It is continued when the lock was renewed.
                Event::Signal(Signal::CONT) => self.renew(),
                Event::Signal(signal) => self.send(signal),
                Event::Report(Report::Ready) => self.command.begin(),
                Event::Report(Report::Renewed(number)) => self.renewed(number),
                Event::Report(Report::Lost) => self.lost("the lock was lost"),
                Event::Report(report @ (Report::Released(_) | Report::Unreleased(_))) => self.released = Some(report),
                Event::Report(Report::NotRenewed(why)) => self.not_renewed(why),
                Event::Report(Report::RenewedAgain) => self.not_renewed = None,
                Event::Report(Report::Warning(text)) => self.warn(&text),
                Event::Report(_) => {}
                Event::KeeperGone => self.keeper_gone(),
                Event::HoldEnds(times) => self.hold_ends(times),
                Event::Timer => {}
            }
            match self.command.poll() {
                Some(Change::Stopped(signal)) => self.stopped(signal),
                Some(Change::Ended(code)) => self.code = Some(code),
                None => {}
            }
            self.act();
            let Some(code) = self.code else { continue };
            let lives = !self.run.no_kill && self.command.group.lives();
            if !lives || self.abandon_at.is_some_and(Moment::is_past) {
                if lives {
                    self.warn("some of the command could not be killed, and goes on without the lock");
                }
                self.terminal.take_back(self.command.group);
                self.hear_the_rest();
                return self.ended(code);
            }
        }
    }

    /// What came before the end of the command was seen. This process may have been stopped for long.
    fn hear_the_rest(&mut self) {
        while let Some(event) = self.events.next_come() {
            match event {
                Event::Report(Report::Lost) => self.is_lost = true,
                Event::Report(report @ (Report::Released(_) | Report::Unreleased(_))) => self.released = Some(report),
                Event::Report(Report::Warning(text)) => self.warn(&text),
                Event::HoldEnds(times) => self.hold_ended += times,
                Event::Signal(_) | Event::Report(_) | Event::KeeperGone | Event::Timer => {}
            }
        }
        // Once for TERM, if it is told, and once for the end.
        let has_ended = self.hold_ended > u64::from(!self.run.no_kill);
        if has_ended && !self.is_lost && !matches!(self.released, Some(Report::Released(_))) {
            self.is_lost = true;
            self.warn("the lock could not be renewed in time: others may have held it before its release");
        }
    }

    fn ended(&mut self, code: u8) -> Ended {
        let code = match self {
            Supervisor { is_lost: true, .. } => exit::LOST,
            Supervisor { is_too_long: true, .. } => exit::TOO_LONG,
            _ => code,
        };
        let has_run = self.command.has_run();
        Ended { code, is_lost: self.is_lost, has_run, released: self.released.take() }
    }

    /// Asks for the next moment at which something is due.
    fn plan(&self) {
        let poll_at = self.code.map(|_| Moment::now() + POLL_INTERVAL);
        let kill_at = self.kill_at.filter(|_| !self.was_killed);
        let moments = [poll_at, kill_at, self.max_at, self.check_at];
        self.events.wake_at(moments.into_iter().flatten().min());
    }

    /// Does what is due.
    fn act(&mut self) {
        if self.check_at.take_if(|at| at.is_past()).is_some() && self.code.is_none() && !self.command.group.is_ours() {
            self.warn_of_user();
        }
        if self.max_at.take_if(|at| at.is_past()).is_some() && self.code.is_none() {
            self.is_too_long = true;
            self.end(Reason::TooLong);
            self.warn("the command runs for longer than --max, and is ended");
        }
        // At once, without a look whether any lives: to all of the group together, so that none can start another.
        if self.code.is_some() && !self.run.no_kill && self.kill_at.is_none() {
            self.end(Reason::Leftovers);
        }
        if self.kill_at.is_some_and(Moment::is_past) {
            self.kill();
        }
    }

    /// The time is over in which it could end by itself: so soon that nobody else can hold the lock yet.
    fn hold_ends(&mut self, times: u64) {
        self.hold_ended += times;
        // What ended before ended well.
        if self.code.is_none() || self.command.group.lives() {
            let why = self.not_renewed.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            self.lost(&format!("could not be renewed in time{why}"));
        }
        if self.hold_ended > 1 && !self.run.no_kill {
            self.kill();
        }
    }

    fn not_renewed(&mut self, why: String) {
        if self.not_renewed.is_none() {
            self.warn(&format!("not renewed: {why} (it goes on trying)"));
        }
        self.not_renewed = Some(why);
    }

    fn lost(&mut self, why: &str) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        // One that has not begun stands at its gate for ever.
        if self.run.no_kill && self.command.has_begun() {
            self.warn(&format!("{why}: the command goes on (--no-kill)"));
        } else {
            self.end(Reason::Lost);
            // What stands in the place of a command is no word to people.
            match self.run.purpose {
                Purpose::Command => self.warn(&format!("{why}: the command is ended")),
                Purpose::Hold | Purpose::Token => self.warn(why),
            }
        }
    }

    fn end(&mut self, reason: Reason) {
        if reason != Reason::TooLong {
            self.events.tell(&Order::Ending);
        }
        // The first reason has told it already.
        if self.kill_at.is_none() {
            self.send(Signal::TERM);
            self.kill_at = Some(Moment::now() + self.run.kill_after);
        }
    }

    fn kill(&mut self) {
        if !self.was_killed {
            self.send(Signal::KILL);
            self.was_killed = true;
            self.abandon_at = Some(Moment::now() + self.run.kill_after.max(Duration::from_secs(1)));
        }
    }

    fn send(&mut self, signal: Signal) {
        // Its number is its own until it is reaped, which it is when it has ended at the earliest.
        let group = self.command.group;
        let is_ours = if self.code.is_none() { group.signal_with_leader(signal) } else { group.signal(signal) };
        if !is_ours && (self.code.is_none() || group.lives()) {
            self.warn_of_user();
        }
    }

    fn keeper_gone(&mut self) {
        if self.released.is_some() {
            // It had nothing left to do.
        } else if self.command.has_begun() {
            self.warn("the process that keeps the lock has died: the lock is not renewed any more");
        } else {
            // Nobody else knows the command: it must not begin.
            self.lost("the process that keeps the lock has died");
        }
    }

    /// The terminal, or another process, has stopped the command.
    fn stopped(&mut self, signal: Signal) {
        if std::mem::take(&mut self.stop_is_ours) {
            return;
        }
        let asks_for_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if asks_for_terminal && self.terminal.is_ours() {
            // Such as one that asks for a password, while its output goes into a pipe.
            self.terminal.give(self.command.group);
            self.renew();
        } else if self.terminal.exists() && (asks_for_terminal || signal == Signal::TSTP)
            || self.terminal.is_with(self.command.group.0)
        {
            sys::stop(true, || {});
            // Back again: the signal says so. Or there is no shell that could continue it. Then what asks for the
            // terminal stays stopped: it would ask again at once.
            if !asks_for_terminal {
                self.renew();
            }
        }
    }

    /// Stops the command, and this process with it. A signal that continues this one once both are stopping is not
    /// missed: it takes the place of the stop.
    fn stop_all(&mut self) {
        self.stop_is_ours = true;
        self.terminal.take_back(self.command.group);
        let group = self.command.group;
        sys::stop(false, || {
            group.signal_with_leader(Signal::TSTP);
        });
        self.renew();
    }

    /// A command that was stopped goes on when this was done.
    fn renew(&mut self) {
        // One at a time, however often it is continued. Once more if the keeper could not do it.
        if self.renew_asked.is_some_and(|asked| asked.elapsed() < RENEW_LIMIT) {
            self.renew_again = true;
            return;
        }
        (self.renew_asked, self.renew_again) = (Some(Moment::now()), false);
        self.renewals += 1;
        self.events.tell(&Order::Renew(self.renewals));
    }

    fn renewed(&mut self, number: u64) {
        if number != self.renewals {
            return;
        }
        self.renew_asked = None;
        // It says nothing of the time since it was continued again.
        if self.renew_again { self.renew() } else { self.resume() }
    }

    /// The lock is held for sure: a command that was stopped may go on.
    fn resume(&mut self) {
        self.stop_is_ours = false;
        self.terminal.give_if_wanted(self.command.group);
        self.send(Signal::CONT);
    }

    fn warn_of_user(&mut self) {
        if !self.warned_of_user {
            self.warned_of_user = true;
            let advice = "run redis-lock itself as that user (sudo redis-lock run ...)";
            self.warn(&format!("the command runs as another user, and cannot be ended in time: {advice}"));
        }
    }

    fn warn(&self, text: &str) {
        if !self.run.quiet {
            say_of(&self.run.key, text);
        }
    }
}
