//! Takes a lock in the queue. Whatever happens, an owner that did not get it has no place there afterwards and holds
//! nothing, as soon as the server can be reached.

use crate::acquisition::{Acquisition, Granted};
use crate::backoff::{Backoff, until_poll};
use crate::cancel::{Cancel, Notified};
use crate::channel::{Failure, Parting};
use crate::clock::{ANSWER, BLOCK, LEAVE, Moment, NOTIFY_QUEUE, OVERTIME, QUEUE};
use crate::errand::Errand;
use crate::error::Error;
use crate::lanes::OPEN_LIMIT;
use crate::notices::Seat;
use crate::owner::Claim;
use crate::pool::{Checkout, Event, Repeat, Request};
use crate::request::{Queue, fences_of, queue_max_of};
use crate::sync::{Caller, Mailbox};
use crate::trouble::Told;
use crate::turns::{State, Turns, interval};
use redis::{RedisError, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

impl Acquisition<'_> {
    /// Waits in the queue until the deadline, or without one as long as it takes. Tells of each error that may pass,
    /// and whether it is of another kind than the last one; asks again if it is told to.
    pub(crate) async fn wait(
        &self,
        claim: Claim,
        deadline: Option<Moment>,
        cancel: Option<&Cancel>,
        tell: &(dyn Fn(&Error, bool) -> bool + Sync),
    ) -> Result<Option<Granted>, Error> {
        let events = Mailbox::new();
        let told = events.clone();
        let notified = cancel.map(|cancel| cancel.notify(move || told.send(Event::Cancelled)));
        let is_given_up = Arc::default();
        let wait = Wait {
            acquisition: self,
            claim: Some(claim),
            deadline,
            tell,
            told: Told::default(),
            events,
            notified,
            is_given_up,
            connection: None,
            seat: None,
            queue_max: Duration::MAX,
            is_moving: false,
            has_asked: false,
            is_asked: false,
            sent: Moment::now(),
        };
        wait.run().await
    }
}

/// One wait. Its owner may have a place in the queue from the first request on.
struct Wait<'a> {
    acquisition: &'a Acquisition<'a>,
    /// None once it is over.
    claim: Option<Claim>,
    deadline: Option<Moment>,
    tell: &'a (dyn Fn(&Error, bool) -> bool + Sync),
    told: Told,
    events: Mailbox<Event>,
    notified: Option<Notified<'a>>,
    is_given_up: Arc<AtomicBool>,
    /// The connection on which it waits. None while there is none to be had.
    connection: Option<Checkout>,
    /// Where it hears that it is its turn, while it has no connection.
    seat: Option<Seat>,
    /// How long the server keeps a place, if it has said so.
    queue_max: Duration,
    /// Whether its key is on its way to another server.
    is_moving: bool,
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
    /// Not yet; rest until it is its turn.
    InTurn,
    /// The deadline came first.
    TimeUp,
}

impl Wait<'_> {
    async fn run(mut self) -> Result<Option<Granted>, Error> {
        let outcome = self.ask_until_granted().await;
        let Some(claim) = self.claim.take() else { return Ok(None) };
        if let Ok(Some((fences, sent))) = outcome {
            return Ok(Some(Granted { fences, sent, claim }));
        }
        // That others hold it must come from the server. Without an answer nobody knows.
        let is_answered = !self.is_asked;
        let has_left = self.leave(claim).await;
        match outcome {
            Ok(_) if !is_answered && !has_left => {
                Err(self.acquisition.transport.lanes.silence(self.acquisition.terms.slot(), self.sent.elapsed()).error)
            }
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The fences; None when the time is up. An error that may pass is returned only if it came last.
    async fn ask_until_granted(&mut self) -> Result<Option<(Vec<u64>, Moment)>, Error> {
        let mut backoff = Backoff::default();
        let mut failure = None;
        loop {
            let pause = match self.ask().await {
                Ok(Answer::Granted(fences, sent)) => return Ok(Some((fences, sent))),
                Ok(answer @ (Answer::NotYet(_) | Answer::InTurn)) => {
                    backoff.reset();
                    self.told.forget();
                    failure = None;
                    if let Answer::NotYet(pause) = answer { Some(pause) } else { None }
                }
                // This attempt had no reply, so the last known error is reported.
                Ok(Answer::TimeUp) => return failure.map_or(Ok(None), Err),
                // Nobody can stand in line for it, and nothing is wrong.
                Err(error) if self.acquisition.is_of_old_client(&error) => {
                    self.told.forget();
                    failure = None;
                    Some(backoff.pause())
                }
                Err(error) if error.is_transient() && self.goes_on_after(&error) => {
                    failure = Some(error);
                    Some(backoff.pause())
                }
                Err(error) => return Err(error),
            };
            match pause {
                None => self.rest_until_turn().await?,
                Some(pause) => self.rest(pause).await?,
            }
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
    async fn ask(&mut self) -> Result<Answer, Error> {
        let Acquisition { caller, transport, terms, .. } = self.acquisition;
        let slot = terms.slot();
        let time = self.left().map(|left| left.saturating_add(OVERTIME));
        let events = self.events.clone();
        if !transport.lanes.prepare(slot, OPEN_LIMIT, move |opened| events.send(Event::Ready(opened))) {
            match self.next_event(time).await? {
                Some(Event::Ready(opened)) => opened?,
                _ => return Err(self.silence(time.unwrap_or(OPEN_LIMIT))),
            }
        }
        if self.connection.is_none() && *caller == Caller::Thread {
            self.connection = transport.pool.wait(slot).map_err(RedisError::from)?;
        }
        if self.connection.is_some() { self.ask_and_block(time).await } else { self.ask_in_turn(time).await }
    }

    /// A request that waits in the queue, on its own connection.
    async fn ask_and_block(&mut self, time: Option<Duration>) -> Result<Answer, Error> {
        self.seat = None;
        let Acquisition { terms, owner, .. } = self.acquisition;
        let slice = self.left().unwrap_or(BLOCK).min(BLOCK);
        let sent = self.begin();
        let command = terms.acquire(owner, Queue::Wait(QUEUE.min(self.queue_max), slice), None);
        let (limit, repeat, parting) = (slice + ANSWER, Repeat::AfterIdle, self.parting());
        let request = Request { slot: terms.slot(), command, limit, repeat, parting };
        if let Some(connection) = &mut self.connection {
            if self.deadline.is_none() && self.notified.is_none() {
                // Nothing can end it but the reply: that spares another thread.
                if let Some(reply) = connection.ask_here(request) {
                    self.events.send(Event::Reply(reply));
                }
            } else {
                connection.ask(request, &self.events);
            }
        }
        let Some(Event::Reply(reply)) = self.next_event(time).await? else { return Ok(Answer::TimeUp) };
        self.replied(&reply);
        let reply = reply.map_err(Error::from).and_then(|reply| reply.extract_error().map_err(Error::from));
        if self.has_lower_queue(&reply) {
            return Ok(Answer::NotYet(Duration::ZERO));
        }
        // Who answers at once does not let it wait: it must not be asked in a tight loop.
        Ok(self.granted(reply?, sent).await?.unwrap_or_else(|| Answer::NotYet(slice.saturating_sub(sent.elapsed()))))
    }

    /// A request that takes a place in the queue, over the connection of all. The server tells its owner when to ask
    /// again, if it can.
    async fn ask_in_turn(&mut self, time: Option<Duration>) -> Result<Answer, Error> {
        let Acquisition { transport, terms, owner, .. } = self.acquisition;
        let slot = terms.slot();
        let Some(state) = self.state().await? else {
            return if self.has_asked { Ok(Answer::TimeUp) } else { Err(self.silence(time.unwrap_or(OPEN_LIMIT))) };
        };
        let channel = match &state {
            State::There(channel) if !self.is_moving => Some(channel.as_str()),
            _ => None,
        };
        let queue = if channel.is_some() { NOTIFY_QUEUE } else { QUEUE }.min(self.queue_max);
        let (command, events) = (terms.acquire(owner, Queue::Place(queue, channel), None), self.events.clone());
        let sent = self.begin();
        self.with_turn(Turns::sends);
        let request = Errand::once(slot, vec![command], ANSWER, move |replies, _| {
            let reply = replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil));
            events.send(Event::Reply(reply));
        });
        let request = request.parting_with(self.parting());
        transport.lanes.send(if channel.is_some() { request.staying() } else { request });
        let Some(Event::Reply(reply)) = self.next_event(time).await? else { return Ok(Answer::TimeUp) };
        self.replied(&reply);
        let reply = reply.map_err(Error::from).and_then(|reply| reply.extract_error().map_err(Error::from));
        let (is_told, interval) = (channel.is_some(), until_poll(interval(channel.is_some(), queue)));
        let (connection, error) = (transport.lanes.connection(slot), reply.as_ref().err());
        let is_otherwise = self.with_turn(|turns, number| {
            let now = Moment::now();
            match &reply {
                Ok(Value::Nil) => turns.null(number, now, interval),
                _ => turns.failed(number, now),
            }
            if is_told && error.is_none() {
                turns.accepted();
            }
            turns.asks_over(connection, now);
            is_told && error.is_some_and(|error| turns.heed(error, now))
        });
        // Its key is on its way to another server, which is asked over another connection: no channel counts there.
        self.is_moving = error.is_some_and(|error| error.has_code(&["ASK", "TRYAGAIN"]));
        if is_otherwise || self.has_lower_queue(&reply) {
            return Ok(Answer::NotYet(Duration::ZERO));
        }
        Ok(self.granted(reply?, sent).await?.unwrap_or(Answer::InTurn))
    }

    /// How the subscription stands, once that is known; None when the time is up.
    async fn state(&mut self) -> Result<Option<State>, Error> {
        let Acquisition { transport, terms, owner, .. } = self.acquisition;
        let slot = terms.slot();
        loop {
            let address = transport.lanes.address(slot);
            let seat = self.seat.take().filter(|seat| seat.is_at(&address));
            let seat = seat.unwrap_or_else(|| transport.notices.seat(slot, owner.as_str(), self.events.clone()));
            let (state, trouble) = seat.with(|turns, _| (turns.state().clone(), turns.take_untold()));
            self.seat = Some(seat);
            if let Some(trouble) = trouble {
                (self.tell)(&trouble, true);
            }
            if state != State::Opening {
                return Ok(Some(state));
            }
            if self.any_event(self.left()).await?.is_none() {
                return Ok(None);
            }
        }
    }

    /// Does something to the turn of this wait, if it has one.
    fn with_turn<T: Default>(&self, change: impl FnOnce(&mut Turns, u64) -> T) -> T {
        self.seat.as_ref().map_or_else(T::default, |seat| seat.with(change))
    }

    /// A request goes out now.
    fn begin(&mut self) -> Moment {
        (self.has_asked, self.is_asked, self.sent) = (true, true, Moment::now());
        self.sent
    }

    /// What a reply grants; None if it was null, or the lock was lost before it was known here: back to the queue.
    async fn granted(&self, reply: Value, sent: Moment) -> Result<Option<Answer>, Error> {
        let Some(fences) = fences_of(reply)? else { return Ok(None) };
        let confirmed = self.acquisition.confirmed(fences, sent).await?;
        Ok(Some(confirmed.map_or(Answer::NotYet(Duration::ZERO), |(fences, sent)| Answer::Granted(fences, sent))))
    }

    /// Whether the server keeps no place for so long, but for less, which it names.
    fn has_lower_queue(&mut self, reply: &Result<Value, Error>) -> bool {
        let most = reply.as_ref().err().and_then(queue_max_of).filter(|most| *most < self.queue_max);
        self.queue_max = most.unwrap_or(self.queue_max);
        most.is_some()
    }

    fn parting(&self) -> Option<Parting> {
        Some(self.acquisition.parting(&self.is_given_up))
    }

    fn silence(&self, limit: Duration) -> Error {
        self.acquisition.transport.lanes.silence(self.acquisition.terms.slot(), limit).error
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
    async fn rest(&self, pause: Duration) -> Result<(), Error> {
        let pause = self.left().map_or(pause, |left| left.min(pause));
        if pause.is_zero() { Ok(()) } else { self.next_event(Some(pause)).await.map(drop) }
    }

    /// Waits until it is its turn to ask, unless it is cancelled or the time is up.
    async fn rest_until_turn(&self) -> Result<(), Error> {
        loop {
            let due = self.with_turn(|turns, number| turns.due(number)).map_or(Duration::ZERO, Moment::left);
            let pause = self.left().map_or(due, |left| left.min(due));
            if pause.is_zero() {
                return Ok(());
            }
            self.any_event(Some(pause)).await?;
        }
    }

    /// What is told next, but that it may be its turn; None when nothing came in time.
    async fn next_event(&self, time: Option<Duration>) -> Result<Option<Event>, Error> {
        let end = time.map(|time| Moment::now() + time);
        loop {
            match self.any_event(end.map(Moment::left)).await? {
                Some(Event::Woken) => {}
                event => return Ok(event),
            }
        }
    }

    /// What is told next; None when nothing came in time.
    async fn any_event(&self, time: Option<Duration>) -> Result<Option<Event>, Error> {
        match self.events.next(self.acquisition.caller, time).await {
            Some(Event::Cancelled) => Err(Error::Cancelled),
            event => Ok(event),
        }
    }

    /// Leaves the queue. The request that waits there, if there is one, is answered by that. Tells whether the server
    /// has said so; if not, all goes on in the background.
    async fn leave(&mut self, claim: Claim) -> bool {
        if !self.has_asked {
            return true;
        }
        let (acquisition, deadline) = (self.acquisition, Moment::now() + LEAVE);
        let left = Mailbox::new();
        let leave = |claim: &Claim| {
            let told = left.clone();
            acquisition.leave(claim.clone(), move || told.send(()));
        };
        let mut requests = 1;
        self.is_given_up.store(true, Ordering::Relaxed);
        leave(&claim);
        if self.is_asked {
            match self.last_reply(deadline).await {
                // It stood in the queue, and does not any more.
                Some(reply) => {
                    let is_null = matches!(reply, Ok(Value::Nil));
                    self.replied(&reply);
                    // It was granted, perhaps after the request to leave; or nobody knows.
                    if !is_null {
                        leave(&claim);
                        requests += 1;
                    }
                }
                // The server hangs, or has not read the request yet: then the first request to leave came too early.
                None => {
                    let Acquisition { caller, transport, terms, owner, .. } = *acquisition;
                    let (transport, terms, owner) = (transport.clone(), terms.clone(), owner.clone());
                    let debt = transport.owe();
                    let leave_again = move || {
                        let (transport, terms, owner) = (&transport, &terms, &owner);
                        let acquisition = Acquisition { caller, transport, terms, owner, unread: Arc::default() };
                        acquisition.leave(claim, || drop(debt));
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
        for _ in 0..requests {
            if left.next(acquisition.caller, Some(deadline.left())).await.is_none() {
                return false;
            }
        }
        true
    }

    async fn last_reply(&self, deadline: Moment) -> Option<Result<Value, Failure>> {
        loop {
            match self.events.next(self.acquisition.caller, Some(deadline.left())).await? {
                Event::Reply(reply) => return Some(reply),
                Event::Cancelled | Event::Ready(_) | Event::Woken => {}
            }
        }
    }
}

impl Drop for Wait<'_> {
    /// The task that waits was given up in the middle of it. It leaves the queue, and gives back what comes late: that
    /// goes out behind its last request, over the same connection.
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take().filter(|_| self.has_asked) {
            self.is_given_up.store(true, Ordering::Relaxed);
            self.acquisition.leave(claim, || {});
        }
    }
}
