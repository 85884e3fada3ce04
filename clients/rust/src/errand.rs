//! Requests that are sent in the background until they are answered, or until their time is over. Sends nothing itself.

use crate::backoff::Backoff;
use crate::channel::{Failure, Parting};
use crate::clock::Moment;
use crate::error::Error;
use redis::{Cmd, Value};
use std::time::Duration;

/// What came of an errand, and whether the server may have got the requests more than once.
type Done = dyn FnOnce(Result<Vec<Value>, Failure>, bool) + Send;

pub(crate) struct Errand {
    pub(crate) slot: u16,
    /// What is to be sent now. Nothing only opens the connection.
    pub(crate) requests: Box<dyn Fn() -> Vec<Cmd> + Send>,
    /// How long an attempt may take.
    pub(crate) limit: Duration,
    /// Until when attempts are repeated.
    until: Moment,
    pub(crate) parting: Option<Parting>,
    /// True if a server that is named by a redirection is asked over a connection for that request alone.
    pub(crate) follows: bool,
    done: Box<Done>,
    backoff: Backoff,
    /// Whether an attempt failed that the server may have got.
    was_sent: bool,
}

impl Errand {
    /// One attempt.
    pub(crate) fn once(
        slot: u16,
        requests: Vec<Cmd>,
        limit: Duration,
        done: impl FnOnce(Result<Vec<Value>, Failure>, bool) + Send + 'static,
    ) -> Errand {
        let (requests, done) = (Box::new(move || requests.clone()), Box::new(done));
        let (until, backoff) = (Moment::now(), Backoff::default());
        Errand { slot, requests, limit, until, parting: None, follows: true, done, backoff, was_sent: false }
    }

    /// Attempts that are repeated until then.
    pub(crate) fn until(self, until: Moment) -> Errand {
        Errand { until, ..self }
    }

    /// Requests that are other ones at another time.
    pub(crate) fn of(self, requests: impl Fn() -> Vec<Cmd> + Send + 'static) -> Errand {
        Errand { requests: Box::new(requests), ..self }
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
        (self.done)(Err(failure), self.was_sent);
    }

    /// Hears of the replies to an attempt. The errand, and when it is to be tried again; None if it is over.
    pub(crate) fn settle(mut self, replies: Result<Vec<Value>, Failure>) -> Option<(Errand, Moment)> {
        let failure = match &replies {
            Err(failure) => Some(failure.clone()),
            Ok(replies) => replies.iter().find_map(failure_of),
        };
        let now = Moment::now();
        let Some(failure) = failure.filter(|failure| failure.error.is_transient() && now < self.until) else {
            (self.done)(replies, self.was_sent);
            return None;
        };
        let is_connection = matches!(failure.error, Error::Connection(_));
        self.was_sent |= failure.sent && is_connection;
        // A connection may have died long ago: a new one is tried at once.
        let at_once = self.backoff.is_new() && is_connection;
        let pause = self.backoff.pause();
        Some((self, if at_once { now } else { now + pause }))
    }
}

fn failure_of(reply: &Value) -> Option<Failure> {
    let error = reply.clone().extract_error().err()?;
    Some(Failure { error: error.into(), sent: true })
}
