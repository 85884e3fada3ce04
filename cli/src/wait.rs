//! Takes a lock: at once, or in the line. Whatever happens, an owner that did not get it stands in no line afterwards
//! and holds nothing, as far as the server can be reached.

use crate::backoff::Backoff;
use crate::cancel::{Cancel, Notified};
use crate::channel::{Failure, Pool, Repeat};
use crate::clock::{Moment, renewal_limit};
use crate::courier::{Courier, Event};
use crate::error::Error;
use crate::owner::{Claim, Owner};
use crate::request::{Queue, Terms, fences_of};
use redis::{RedisError, Value};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long the server keeps the place of a client that does not ask again.
const QUEUE: Duration = Duration::from_secs(10);

/// How long one request waits in the line. The pauses between two stay below a third of `QUEUE`.
const SLICE: Duration = Duration::from_secs(3);

/// How much later than its end the reply to such a request may come.
const REPLY_LIMIT: Duration = Duration::from_secs(2);

/// How long after the deadline the last reply is listened for. It says more than silence: null, or `GRACE`.
const LAST_WORD: Duration = Duration::from_millis(200);

/// How long each request may take that is not to wait: a server that is well answers it at once. A cancel or a deadline
/// is not heard meanwhile.
const SHORT_LIMIT: Duration = Duration::from_secs(1);

/// How long to listen for the end of a waiting request after each of the requests that end it: 1 s in all. The server
/// may read the one that waits after the first of those.
const LEAVING: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(600)];

/// What the server granted, and when it was asked for it.
pub(crate) struct Granted {
    pub(crate) fences: Vec<u64>,
    pub(crate) sent: Moment,
    /// The keys are in use by the owner as long as this lives.
    pub(crate) claim: Claim,
}

/// One that asks: where, for what, under which name.
pub(crate) struct Asker<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) terms: &'a Terms,
    pub(crate) owner: &'a Owner,
}

impl Asker<'_> {
    /// Asks once, within this time. Nobody waits for it. Tells that no answer came, since to leave takes time as well.
    pub(crate) fn try_once(
        &self,
        claim: Claim,
        limit: Duration,
        tell: &dyn Fn(&Error),
    ) -> Result<Option<Granted>, Error> {
        let sent = Moment::now();
        let request = self.terms.acquire(self.owner, Queue::No, None);
        let granted = match self.pool.ask(self.terms.slot(), &request, limit, Repeat::AfterIdle) {
            Ok((reply, _)) => fences_of(reply).and_then(|fences| match fences {
                Some(fences) => self.confirmed(fences, sent),
                None => Ok(None),
            }),
            Err(Failure { error, sent: false }) => return Err(error),
            Err(Failure { error, .. }) => Err(error),
        };
        match granted {
            Ok(Some((fences, sent))) => Ok(Some(Granted { fences, sent, claim })),
            Ok(None) => Ok(None),
            Err(error) => {
                // A reply that did not come may have been a fence.
                if matches!(error, Error::Connection(_)) {
                    tell(&error);
                    if self.leave_line().is_err() {
                        claim.keep();
                    }
                }
                Err(error)
            }
        }
    }

    /// Waits in the line until the deadline, or without one as long as it takes. Tells of each error that may pass, and
    /// asks again after it if it is told to.
    pub(crate) fn wait(
        &self,
        claim: Claim,
        deadline: Option<Moment>,
        cancel: Option<&Cancel>,
        tell: &dyn Fn(&Error) -> bool,
    ) -> Result<Option<Granted>, Error> {
        let (events, received) = channel();
        let notified = cancel.map(|cancel| cancel.notify(events.clone(), || Event::Cancelled));
        let line =
            Line { asker: self, deadline, tell, events, received, _notified: notified, courier: None, asked: false };
        line.stand(claim)
    }

    /// The grant, if it is sure to last for a while still. Where the moment of the grant is not known, or long ago, the
    /// lease is renewed first.
    fn confirmed(&self, fences: Vec<u64>, sent: Moment) -> Result<Option<(Vec<u64>, Moment)>, Error> {
        if sent.elapsed() < self.terms.lasts() / 3 { Ok(Some((fences, sent))) } else { self.renewed(fences) }
    }

    /// The same after a lease was renewed. None when the hold is gone already.
    fn renewed(&self, fences: Vec<u64>) -> Result<Option<(Vec<u64>, Moment)>, Error> {
        let sent = Moment::now();
        for request in self.terms.extend(self.owner, &fences) {
            let limit = renewal_limit(self.terms.lasts()).min(SHORT_LIMIT);
            match self.pool.ask(self.terms.slot(), &request, limit, Repeat::AfterIdle)?.0 {
                Value::Nil => return Ok(None),
                _ => continue,
            }
        }
        Ok(Some((fences, sent)))
    }

    /// Ends the place in the line, and gives back what was granted meanwhile. Asked twice if need be.
    fn leave_line(&self) -> Result<(), Error> {
        let request = self.terms.leave(self.owner);
        self.pool.ask(self.terms.slot(), &request, SHORT_LIMIT, Repeat::Once)?;
        Ok(())
    }
}

/// One wait. Its owner may have a place in the line from the first request on.
struct Line<'a> {
    asker: &'a Asker<'a>,
    deadline: Option<Moment>,
    tell: &'a dyn Fn(&Error) -> bool,
    events: Sender<Event>,
    received: Receiver<Event>,
    _notified: Option<Notified<'a>>,
    /// Carries the requests that wait. Not needed when the lock is free.
    courier: Option<Courier>,
    /// Whether the courier has a request under way.
    asked: bool,
}

/// What came of one request.
enum Answer {
    Granted(Vec<u64>, Moment),
    /// Not yet; rest so long before the next request.
    NotYet(Duration),
    /// The deadline came first.
    TimeUp,
}

impl Line<'_> {
    fn stand(mut self, claim: Claim) -> Result<Option<Granted>, Error> {
        let outcome = self.ask_until_granted();
        if let Ok(Some((fences, sent))) = outcome {
            // Its hold may be bound to this connection until the lease was renewed over another.
            if let Some(courier) = self.courier {
                courier.end();
            }
            return Ok(Some(Granted { fences, sent, claim }));
        }
        let left = self.leave(claim);
        match outcome {
            Err(error) => Err(error),
            // That others hold it must come from the server. Without an answer nobody knows.
            Ok(_) => left.map(|()| None),
        }
    }

    /// The fences; None when the time is up. An error that may pass is told only if it came last.
    fn ask_until_granted(&mut self) -> Result<Option<(Vec<u64>, Moment)>, Error> {
        let mut backoff = Backoff::default();
        let mut answer = self.ask_at_once();
        loop {
            let (pause, failure) = match answer {
                Ok(Answer::Granted(fences, sent)) => return Ok(Some((fences, sent))),
                Ok(Answer::NotYet(pause)) => {
                    backoff.reset();
                    (pause, None)
                }
                Ok(Answer::TimeUp) => return Ok(None),
                Err(error) if error.passes() && (self.tell)(&error) => (backoff.pause(), Some(error)),
                Err(error) => return Err(error),
            };
            self.rest(pause)?;
            if self.left() == Some(Duration::ZERO) {
                return failure.map_or(Ok(None), Err);
            }
            answer = match self.ask_in_line() {
                // It was asked in vain, but not refused: what was wrong before is what is known.
                Ok(Answer::TimeUp) => return failure.map_or(Ok(None), Err),
                answer => answer,
            };
        }
    }

    /// One request that takes a place, and is answered at once.
    fn ask_at_once(&mut self) -> Result<Answer, Error> {
        let Asker { pool, terms, owner } = self.asker;
        let request = terms.acquire(owner, Queue::Place(QUEUE), None);
        let sent = Moment::now();
        // In all of its time, however short the wait is: a lock that is free is to be had.
        let (reply, _) = pool.ask(terms.slot(), &request, SHORT_LIMIT, Repeat::AfterIdle)?;
        match fences_of(reply)? {
            Some(fences) => self.granted(self.asker.confirmed(fences, sent)?),
            None => Ok(Answer::NotYet(Duration::ZERO)),
        }
    }

    /// One request that waits in the line.
    fn ask_in_line(&mut self) -> Result<Answer, Error> {
        let Asker { pool, terms, owner } = self.asker;
        let slice = self.left().unwrap_or(SLICE).min(SLICE);
        let courier = match &mut self.courier {
            Some(courier) => courier,
            none => {
                let started = Courier::start(pool.servers(), terms.slot(), self.events.clone());
                none.insert(started.map_err(RedisError::from)?)
            }
        };
        courier.ask(terms.acquire(owner, Queue::Wait(QUEUE, slice), None), slice + REPLY_LIMIT);
        self.asked = true;
        let sent = Moment::now();
        let time = self.left().map(|left| left.saturating_add(LAST_WORD));
        let Some(event) = self.next_event(time)? else { return Ok(Answer::TimeUp) };
        self.asked = false;
        match fences_of(event?)? {
            Some(fences) => self.granted(self.asker.renewed(fences)?),
            // Who answers at once does not let it wait: it must not be asked in a tight loop.
            None => Ok(Answer::NotYet(slice.saturating_sub(sent.elapsed()))),
        }
    }

    fn granted(&self, confirmed: Option<(Vec<u64>, Moment)>) -> Result<Answer, Error> {
        Ok(match confirmed {
            Some((fences, sent)) => Answer::Granted(fences, sent),
            // Granted, and lost before it was known here: back to the line.
            None => Answer::NotYet(Duration::ZERO),
        })
    }

    fn left(&self) -> Option<Duration> {
        self.deadline.map(Moment::left)
    }

    /// Waits so long, unless it is cancelled or the time is up.
    fn rest(&self, pause: Duration) -> Result<(), Error> {
        let pause = self.left().map_or(pause, |left| left.min(pause));
        self.next_event(Some(pause)).map(drop)
    }

    /// The reply of the courier; None when it did not come in time.
    fn next_event(&self, time: Option<Duration>) -> Result<Option<Result<Value, Failure>>, Error> {
        let event = match time {
            Some(time) => self.received.recv_timeout(time),
            None => self.received.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Reply(reply)) => Ok(Some(reply)),
            Ok(Event::Cancelled) => Err(Error::Cancelled),
            // It cannot be disconnected: the line itself has a sender.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    /// Leaves the line. The waiting request, if there is one, is answered by that.
    fn leave(mut self, claim: Claim) -> Result<(), Error> {
        let Some(courier) = self.courier.take() else { return self.leave_for_good(claim) };
        if !self.asked {
            courier.end();
            return self.leave_for_good(claim);
        }
        let mut left = Ok(());
        for pause in LEAVING {
            left = self.asker.leave_line();
            if left.is_err() {
                break;
            }
            match self.last_reply(pause) {
                // It stood in the line, and does not any more.
                Some(Ok(Value::Nil)) => {
                    courier.end();
                    return Ok(());
                }
                // It was granted, perhaps after the request to leave; or nobody knows.
                Some(_) => {
                    courier.end();
                    return self.leave_for_good(claim);
                }
                None => {}
            }
        }
        // The server hangs, or has not read the waiting request yet. The courier sees to it when it knows.
        let (pool, terms, owner) = (self.asker.pool.clone(), self.asker.terms.clone(), self.asker.owner.clone());
        courier.end_with(move || {
            if (Asker { pool: &pool, terms: &terms, owner: &owner }).leave_line().is_err() {
                claim.keep();
            }
        });
        left
    }

    fn leave_for_good(&self, claim: Claim) -> Result<(), Error> {
        let left = self.asker.leave_line();
        if left.is_err() {
            claim.keep();
        }
        left
    }

    fn last_reply(&self, time: Duration) -> Option<Result<Value, Failure>> {
        let deadline = Moment::now() + time;
        loop {
            match self.received.recv_timeout(deadline.left()) {
                Ok(Event::Reply(reply)) => return Some(reply),
                Ok(Event::Cancelled) => {}
                Err(_) => return None,
            }
        }
    }
}
