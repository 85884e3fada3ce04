//! Takes a lock: at once, or in the queue. Whatever happens, an owner that did not get it has no place in the queue
//! afterwards and holds nothing, as soon as the server can be reached.

use crate::backoff::{Backoff, until_poll};
use crate::cancel::{Cancel, Notified};
use crate::channel::{Failure, Parting};
use crate::clock::{ANSWER, BLOCK, LEAVE, Moment, OVERTIME, POLL, QUEUE, READ_ON, renewal_interval, renewal_limit};
use crate::errand::Errand;
use crate::error::Error;
use crate::lanes::OPEN_LIMIT;
use crate::owner::{Claim, Owner};
use crate::pool::{Checkout, Event, Repeat, Request};
use crate::request::{Queue, Terms, fences_of};
use crate::transport::Transport;
use crate::trouble::Told;
use redis::{RedisError, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// What the server granted, and when it was asked for it.
pub(crate) struct Granted {
    pub(crate) fences: Vec<u64>,
    pub(crate) sent: Moment,
    /// The keys are in use by the owner as long as this lives.
    pub(crate) claim: Claim,
}

/// An acquisition at one server: where, of what, by which owner.
pub(crate) struct Acquisition<'a> {
    pub(crate) transport: &'a Arc<Transport>,
    pub(crate) terms: &'a Terms,
    pub(crate) owner: &'a Owner,
}

impl Acquisition<'_> {
    /// Asks once, within this time. Nobody waits for it.
    pub(crate) fn try_once(&self, claim: Claim, limit: Duration) -> Result<Option<Granted>, Error> {
        let slot = self.terms.slot();
        let (events, received) = channel();
        if !self.transport.lanes.prepare(slot, limit, move |opened| drop(events.send(opened))) {
            let opened = received.recv_timeout(limit + LEAVE);
            opened.unwrap_or_else(|_| Err(self.transport.lanes.silence(slot, limit)))?;
        }
        let sent = Moment::now();
        let asked = self.transport.pool.ask(Request {
            slot,
            command: self.terms.acquire(self.owner, Queue::No, None),
            limit,
            repeat: Repeat::AfterIdle,
            // Once it is answered late, it is given up.
            parting: Some(self.parting(&Arc::new(AtomicBool::new(true)))),
        });
        let reply = match asked {
            Ok(reply) => reply,
            Err(Failure { error, sent }) => {
                // A reply that did not come may have been a fence.
                if sent && matches!(error, Error::Connection(_)) {
                    self.leave(claim, || {});
                }
                return Err(error);
            }
        };
        let Some(fences) = fences_of(reply)? else { return Ok(None) };
        match self.confirmed(fences, sent) {
            Ok(granted) => Ok(granted.map(|(fences, sent)| Granted { fences, sent, claim })),
            Err(error) => {
                self.leave(claim, || {});
                Err(error)
            }
        }
    }

    /// Waits in the queue until the deadline, or without one as long as it takes. Tells of each error that may pass,
    /// and whether it is of another kind than the last one; asks again if it is told to.
    pub(crate) fn wait(
        &self,
        claim: Claim,
        deadline: Option<Moment>,
        cancel: Option<&Cancel>,
        tell: &dyn Fn(&Error, bool) -> bool,
    ) -> Result<Option<Granted>, Error> {
        let (events, received) = channel();
        let notified = cancel.map(|cancel| cancel.notify(events.clone(), || Event::Cancelled));
        let is_given_up = Arc::default();
        let wait = Wait {
            acquisition: self,
            deadline,
            tell,
            told: Told::default(),
            events,
            received,
            notified,
            is_given_up,
            connection: None,
            has_asked: false,
            is_asked: false,
            sent: Moment::now(),
        };
        wait.run(claim)
    }

    /// The grant, if it is sure to last for a while still. The moment of the grant is not known, so it counts from when
    /// it was asked for. If that is long ago, the lease is renewed first. None if the hold is gone already.
    fn confirmed(&self, fences: Vec<u64>, sent: Moment) -> Result<Option<(Vec<u64>, Moment)>, Error> {
        if sent.elapsed() < renewal_interval(self.terms.lasts()) {
            return Ok(Some((fences, sent)));
        }
        let sent = Moment::now();
        let limit = renewal_limit(self.terms.lasts()).min(ANSWER);
        let requests = self.terms.extend(self.owner, &fences);
        for reply in self.transport.lanes.ask(self.terms.slot(), requests, limit)? {
            match reply.extract_error().map_err(Error::from) {
                Ok(Value::Nil) => return Ok(None),
                Err(error) if error.is_overwritten() => return Ok(None),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(Some((fences, sent)))
    }

    /// Gives up the place in the queue, and what was granted meanwhile: again and again, until the server says so or
    /// has forgotten all. Then the keys may be asked for again.
    fn leave(&self, claim: Claim, then: impl FnOnce() + Send + 'static) {
        let (request, debt) = (self.terms.leave(self.owner), self.transport.owe());
        let errand = Errand::once(self.terms.slot(), vec![request], READ_ON, move |replies, _| {
            let is_refused = |reply: &Value| matches!(reply, Value::ServerError(_));
            if replies.is_ok_and(|replies| !replies.iter().any(is_refused)) {
                drop(claim);
            } else {
                claim.keep();
            }
            drop(debt);
            then();
        });
        self.transport.lanes.send(errand.until(Moment::now() + self.terms.lasts() + QUEUE));
    }

    fn parting(&self, is_given_up: &Arc<AtomicBool>) -> Parting {
        Parting { command: self.terms.leave(self.owner), is_given_up: is_given_up.clone() }
    }
}

/// One wait. Its owner may have a place in the queue from the first request on.
struct Wait<'a> {
    acquisition: &'a Acquisition<'a>,
    deadline: Option<Moment>,
    tell: &'a dyn Fn(&Error, bool) -> bool,
    told: Told,
    events: Sender<Event>,
    received: Receiver<Event>,
    notified: Option<Notified<'a>>,
    is_given_up: Arc<AtomicBool>,
    /// The connection on which it waits. None while there is none to be had.
    connection: Option<Checkout>,
    /// Whether it has asked at all, and whether a request is on its way.
    has_asked: bool,
    is_asked: bool,
    /// When it asked last.
    sent: Moment,
}

/// What came of one request.
enum Answer {
    Granted(Vec<u64>, Moment),
    /// Not yet; rest so long before the next request.
    NotYet(Duration),
    /// The deadline came first.
    TimeUp,
}

impl Wait<'_> {
    fn run(mut self, claim: Claim) -> Result<Option<Granted>, Error> {
        let outcome = self.ask_until_granted();
        if let Ok(Some((fences, sent))) = outcome {
            return Ok(Some(Granted { fences, sent, claim }));
        }
        // That others hold it must come from the server. Without an answer nobody knows.
        let is_answered = !self.is_asked;
        let has_left = self.leave(claim);
        match outcome {
            Ok(_) if !is_answered && !has_left => {
                Err(self.acquisition.transport.lanes.silence(self.acquisition.terms.slot(), self.sent.elapsed()).error)
            }
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The fences; None when the time is up. An error that may pass is returned only if it came last.
    fn ask_until_granted(&mut self) -> Result<Option<(Vec<u64>, Moment)>, Error> {
        let mut backoff = Backoff::default();
        let mut failure = None;
        loop {
            let pause = match self.ask() {
                Ok(Answer::Granted(fences, sent)) => return Ok(Some((fences, sent))),
                Ok(Answer::NotYet(pause)) => {
                    backoff.reset();
                    self.told.forget();
                    failure = None;
                    pause
                }
                // It was asked in vain, but not refused: what was wrong before is what is known.
                Ok(Answer::TimeUp) => return failure.map_or(Ok(None), Err),
                Err(error) if error.is_transient() && self.goes_on_after(&error) => {
                    failure = Some(error);
                    backoff.pause()
                }
                Err(error) => return Err(error),
            };
            self.rest(pause)?;
            if self.left() == Some(Duration::ZERO) {
                return failure.map_or(Ok(None), Err);
            }
        }
    }

    fn goes_on_after(&mut self, error: &Error) -> bool {
        let is_new = self.told.is_new(error);
        (self.tell)(error, is_new)
    }

    /// One request: one that waits in the queue, or, while too many do, one that takes a place there.
    fn ask(&mut self) -> Result<Answer, Error> {
        let Acquisition { transport, terms, owner } = self.acquisition;
        let slot = terms.slot();
        let time = self.left().map(|left| left.saturating_add(OVERTIME));
        let events = self.events.clone();
        if !transport.lanes.prepare(slot, OPEN_LIMIT, move |opened| drop(events.send(Event::Ready(opened)))) {
            match self.next_event(time)? {
                Some(Event::Ready(opened)) => opened?,
                _ => return Err(transport.lanes.silence(slot, time.unwrap_or(OPEN_LIMIT)).error),
            }
        }
        if self.connection.is_none() {
            self.connection = transport.pool.wait(slot).map_err(RedisError::from)?;
        }
        let slice = self.left().unwrap_or(BLOCK).min(BLOCK);
        let parting = Some(self.acquisition.parting(&self.is_given_up));
        let sent = Moment::now();
        (self.has_asked, self.sent) = (true, sent);
        let pause = if let Some(connection) = &mut self.connection {
            let command = terms.acquire(owner, Queue::Wait(QUEUE, slice), None);
            let (limit, repeat) = (slice + ANSWER, Repeat::AfterIdle);
            let request = Request { slot, command, limit, repeat, parting };
            if self.deadline.is_none() && self.notified.is_none() {
                // Nothing can end it but the reply: that spares another thread.
                if let Some(reply) = connection.ask_here(request) {
                    drop(self.events.send(Event::Reply(reply)));
                }
            } else {
                connection.ask(request, &self.events);
            }
            slice
        } else {
            let (command, events) = (terms.acquire(owner, Queue::Place(QUEUE), None), self.events.clone());
            let poll = Errand::once(slot, vec![command], POLL, move |replies, _| {
                let reply = replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil));
                drop(events.send(Event::Reply(reply)));
            });
            transport.lanes.send(poll.parting_with(parting));
            until_poll()
        };
        self.is_asked = true;
        let Some(Event::Reply(reply)) = self.next_event(time)? else { return Ok(Answer::TimeUp) };
        self.replied(&reply);
        let reply = reply?.extract_error().map_err(Error::from)?;
        let granted = match fences_of(reply)? {
            Some(fences) => self.acquisition.confirmed(fences, sent)?,
            // Who answers at once does not let it wait: it must not be asked in a tight loop.
            None => return Ok(Answer::NotYet(pause.saturating_sub(sent.elapsed()))),
        };
        // If it was lost before it was known here: back to the queue.
        Ok(granted.map_or(Answer::NotYet(Duration::ZERO), |(fences, sent)| Answer::Granted(fences, sent)))
    }

    fn replied(&mut self, reply: &Result<Value, Failure>) {
        self.is_asked = false;
        if let Some(connection) = &mut self.connection {
            connection.replied(reply);
        }
    }

    fn left(&self) -> Option<Duration> {
        self.deadline.map(Moment::left)
    }

    /// Waits so long, unless it is cancelled or the time is up.
    fn rest(&self, pause: Duration) -> Result<(), Error> {
        let pause = self.left().map_or(pause, |left| left.min(pause));
        if pause.is_zero() { Ok(()) } else { self.next_event(Some(pause)).map(drop) }
    }

    /// What is told next; None when nothing came in time.
    fn next_event(&self, time: Option<Duration>) -> Result<Option<Event>, Error> {
        let event = match time {
            Some(time) => self.received.recv_timeout(time),
            None => self.received.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Cancelled) => Err(Error::Cancelled),
            Ok(event) => Ok(Some(event)),
            // It cannot be disconnected: the wait itself has a sender.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    /// Leaves the queue. The request that waits there, if there is one, is answered by that. Tells whether the server
    /// has said so; if not, all goes on in the background.
    fn leave(&mut self, claim: Claim) -> bool {
        if !self.has_asked {
            return true;
        }
        let (acquisition, deadline) = (self.acquisition, Moment::now() + LEAVE);
        let (sender, left) = channel();
        let leave = |claim: &Claim| {
            let sender = sender.clone();
            acquisition.leave(claim.clone(), move || {
                // Nobody listens any more if it took long.
                let _: Result<(), _> = sender.send(());
            });
        };
        self.is_given_up.store(true, Ordering::Relaxed);
        leave(&claim);
        if self.is_asked {
            match self.last_reply(deadline) {
                // It stood in the queue, and does not any more.
                Some(reply) => {
                    let is_null = matches!(reply, Ok(Value::Nil));
                    self.replied(&reply);
                    // It was granted, perhaps after the request to leave; or nobody knows.
                    if !is_null {
                        leave(&claim);
                    }
                }
                // The server hangs, or has not read the request yet: then the first request to leave came too early.
                None => {
                    let (transport, terms, owner) =
                        (acquisition.transport.clone(), acquisition.terms.clone(), acquisition.owner.clone());
                    let debt = transport.owe();
                    let leave_again = move || {
                        Acquisition { transport: &transport, terms: &terms, owner: &owner }.leave(claim, || drop(debt));
                    };
                    match self.connection.take() {
                        Some(connection) => connection.end_with(leave_again),
                        None => leave_again(),
                    }
                    return false;
                }
            }
        }
        drop(claim);
        drop(sender);
        // All of them.
        loop {
            match left.recv_timeout(deadline.left()) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }

    fn last_reply(&self, deadline: Moment) -> Option<Result<Value, Failure>> {
        loop {
            match self.received.recv_timeout(deadline.left()) {
                Ok(Event::Reply(reply)) => return Some(reply),
                Ok(Event::Cancelled | Event::Ready(_)) => {}
                Err(_) => return None,
            }
        }
    }
}
