//! Requests that are sent in the background until they are answered, or until their time is over. Sends nothing itself.

use crate::backoff::Backoff;
use crate::channel::{Failure, Parting};
use crate::clock::Moment;
use crate::error::Error;
use crate::request::is_some;
use redis::{Cmd, Value};
use std::time::Duration;

/// What came of an errand, and of all attempts.
type Done = dyn FnOnce(Result<Vec<Value>, Failure>, Before) + Send;

/// What came of the attempts before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    /// How many had no answer, or not to each request: the server may have done them, or read them yet.
    pub(crate) unanswered: usize,
    /// True if the last one was refused, since its fence is ahead of the server's clock.
    pub(crate) is_ahead: bool,
    /// True if one had null for an answer while no request before may have been done.
    pub(crate) was_lost: bool,
}

pub(crate) struct Errand {
    pub(crate) slot: u16,
    requests: Box<dyn Fn(Before) -> Vec<Cmd> + Send>,
    /// How long an attempt may take.
    pub(crate) limit: Duration,
    /// Until when attempts are repeated.
    until: Moment,
    pub(crate) parting: Option<Parting>,
    /// True if a server that is named by a redirection is asked over a connection for that request alone.
    pub(crate) follows: bool,
    /// True if other requests follow where a fence is ahead.
    adapts: bool,
    done: Box<Done>,
    backoff: Backoff,
    before: Before,
}

impl Errand {
    /// One attempt.
    pub(crate) fn once(
        slot: u16,
        requests: Vec<Cmd>,
        limit: Duration,
        done: impl FnOnce(Result<Vec<Value>, Failure>, Before) + Send + 'static,
    ) -> Errand {
        let (requests, done) = (Box::new(move |_| requests.clone()), Box::new(done));
        let (until, backoff, before) = (Moment::now(), Backoff::default(), Before::default());
        let (parting, follows, adapts) = (None, true, false);
        Errand { slot, requests, limit, until, parting, follows, adapts, done, backoff, before }
    }

    /// Attempts that are repeated until then.
    pub(crate) fn until(self, until: Moment) -> Errand {
        Errand { until, ..self }
    }

    /// Requests that are other ones at another time, or after other attempts.
    pub(crate) fn of(self, requests: impl Fn(Before) -> Vec<Cmd> + Send + 'static) -> Errand {
        Errand { requests: Box::new(requests), adapts: true, ..self }
    }

    /// What is to be sent now. Nothing only opens the connection.
    pub(crate) fn requests(&self) -> Vec<Cmd> {
        (self.requests)(self.before)
    }

    pub(crate) fn parting_with(self, parting: Option<Parting>) -> Errand {
        Errand { parting, ..self }
    }

    /// A redirection is the reply: a request counts only over the connection that stays.
    pub(crate) fn staying(self) -> Errand {
        Errand { follows: false, ..self }
    }

    /// It cannot be done.
    pub(crate) fn fail(self, failure: Failure) {
        (self.done)(Err(failure), self.before);
    }

    /// Hears of the replies to an attempt. The errand, and when it is to be tried again; None if it is over.
    pub(crate) fn settle(mut self, replies: Result<Vec<Value>, Failure>) -> Option<(Errand, Moment)> {
        let failure = match &replies {
            Err(failure) => Some(failure.clone()),
            Ok(replies) => replies.iter().find_map(failure_of),
        };
        let now = Moment::now();
        let may_pass = |error: &Error| error.is_transient() || (self.adapts && error.is_ahead());
        let may_be_done = self.before.unanswered > 0;
        self.before.was_lost |= !may_be_done && replies.as_ref().is_ok_and(|replies| !replies.iter().all(is_some));
        self.before.unanswered += usize::from(failure.as_ref().is_some_and(Failure::is_unanswered));
        let Some(failure) = failure.filter(|failure| may_pass(&failure.error) && now < self.until) else {
            (self.done)(replies, self.before);
            return None;
        };
        // Of several requests some may be done.
        let is_done = |reply: &Value| failure_of(reply).is_none() && is_some(reply);
        let in_part = replies.is_ok_and(|replies| replies.iter().any(is_done));
        self.before.unanswered += usize::from(in_part);
        self.before.is_ahead = failure.error.is_ahead();
        // A connection may have died long ago: a new one is tried at once. So is a fence that is not ahead.
        let is_connection = matches!(failure.error, Error::Connection(_));
        let at_once = self.before.is_ahead || (self.backoff.is_new() && is_connection);
        let pause = self.backoff.pause();
        Some((self, if at_once { now } else { now + pause }))
    }
}

fn failure_of(reply: &Value) -> Option<Failure> {
    let error = reply.clone().extract_error().err()?;
    Some(Failure { error: error.into(), sent: true })
}
