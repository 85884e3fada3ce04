//! What the parent waits for, one thing after the other: signals, words of the keeper, timers.

use crate::message::{Order, Report};
use crate::sys::Signals;
use crate::timer::Timer;
use crate::wire::Wire;
use redis_lock_client::Moment;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Duration;

/// Something that the parent has to act on.
#[derive(Debug)]
pub(crate) enum Event {
    Signal(Signal),
    Report(Report),
    /// The keeper has died.
    KeeperGone,
    /// The command has to be told to end, since the hold ends soon; then, that it has to be killed.
    /// How often this came since the last event of the kind.
    HoldEnds(u64),
    /// The moment that was asked for has come.
    Timer,
}

pub(crate) struct Events {
    signals: Signals,
    keeper: Wire<Report>,
    is_closed: bool,
    /// Whether that was told; until then there may be words of it.
    keeper_is_gone: bool,
    /// Set by the keeper.
    hold: Timer,
    timer: Timer,
    come: VecDeque<Event>,
}

impl Events {
    pub(crate) fn new(signals: Signals, keeper: Wire<Report>, hold: Timer) -> std::io::Result<Events> {
        let timer = Timer::new()?;
        Ok(Events { signals, keeper, is_closed: false, keeper_is_gone: false, hold, timer, come: VecDeque::new() })
    }

    /// The next one, as soon as there is one.
    pub(crate) fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.come.pop_front() {
                self.keeper_is_gone |= matches!(event, Event::KeeperGone);
                return event;
            }
            let files = [self.signals.as_fd(), self.hold.as_fd(), self.timer.as_fd()];
            let mut files = files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)).to_vec();
            if !self.is_closed {
                files.push(self.keeper.poll_fd());
            }
            // A signal interrupts it at most: then it looks again.
            poll(&mut files, None).ok();
            self.keeper.flush();
            self.collect();
        }
    }

    /// A signal comes before what it did to the keeper: one that was sent to both has ended the wait.
    fn collect(&mut self) {
        while let Some(signal) = self.signals.next() {
            self.come.push_back(Event::Signal(signal));
        }
        self.come.extend(self.keeper.receive().into_iter().map(Event::Report));
        if self.keeper.is_closed() && !self.is_closed {
            self.is_closed = true;
            self.come.push_back(Event::KeeperGone);
        }
        let times = self.hold.count();
        if times > 0 {
            self.come.push_back(Event::HoldEnds(times));
        }
        if self.timer.count() > 0 {
            self.come.push_back(Event::Timer);
        }
    }

    /// The next one that has come already.
    pub(crate) fn next_come(&mut self) -> Option<Event> {
        if self.come.is_empty() {
            self.collect();
        }
        let event = self.come.pop_front();
        self.keeper_is_gone |= matches!(event, Some(Event::KeeperGone));
        event
    }

    /// Asks for an event at this moment, instead of the one that was asked for before.
    pub(crate) fn wake_at(&self, at: Option<Moment>) {
        self.timer.set(at, Duration::ZERO);
    }

    /// Tells the keeper, if it is there.
    pub(crate) fn tell(&mut self, order: &Order) {
        self.keeper.send(order);
    }

    /// Whether the event of its death has come.
    pub(crate) fn keeper_is_gone(&self) -> bool {
        self.keeper_is_gone
    }
}
