//! The renewal of one hold: when it is due, what is sent, and what the reply says of the hold. Sends nothing itself.

use crate::backoff::Backoff;
use crate::channel::Failure;
use crate::clock::{Moment, renewal_limit};
use crate::error::{Error, was_cut};
use crate::hold::Hold;
use crate::trouble::Told;
use redis::{Cmd, RedisError, Value};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) struct Renewal {
    hold: Arc<Hold>,
    sent: Moment,
    backoff: Backoff,
    told: Told,
}

impl Renewal {
    /// Of a hold that was granted, or extended, by a request that was sent then.
    pub(crate) fn new(hold: Arc<Hold>, sent: Moment) -> Renewal {
        Renewal { hold, sent, backoff: Backoff::default(), told: Told::default() }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn due(&self) -> Moment {
        self.hold.due_after(self.sent)
    }

    /// How long an attempt may take.
    pub(crate) fn limit(&self) -> Duration {
        renewal_limit(self.hold.terms.lasts())
    }

    pub(crate) fn requests(&self) -> Vec<Cmd> {
        self.hold.extend()
    }

    /// Hears of the replies to an attempt that was sent then. The next one, and when it is due; None after a loss.
    pub(crate) fn settle(mut self, replies: Result<Vec<Value>, Failure>, sent: Moment) -> Option<(Renewal, Moment)> {
        if replies.as_ref().is_err_and(Failure::is_unanswered) {
            self.hold.unread.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = match replies {
            Ok(replies) => outcome_of(&replies),
            Err(failure) if failure.error.is_overwritten() => Ok(Outcome::Lost),
            Err(failure) => Err(failure.error),
        };
        match outcome {
            Ok(Outcome::Extended) => {
                self.hold.extended(sent);
                let next = Renewal::new(self.hold, sent);
                let due = next.due();
                Some((next, due))
            }
            Ok(Outcome::Lost) => {
                self.hold.lose();
                None
            }
            Ok(Outcome::Redirected) => {
                let due = Moment::now() + self.backoff.pause();
                Some((self, due))
            }
            Err(error) => {
                self.hold.renewal_failed();
                let is_first = self.backoff.is_new();
                let pause = self.backoff.pause();
                // A connection may have died long ago: a new one is tried at once.
                let at_once = is_first && matches!(error, Error::Connection(_));
                if !(is_first && was_cut(&error)) && self.told.is_new(&error) {
                    self.hold.not_extended(error);
                }
                Some((self, if at_once { Moment::now() } else { Moment::now() + pause }))
            }
        }
    }
}

/// What the server said to the renewal of one hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Extended,
    Lost,
    Redirected,
}

/// Of the replies for all its keys. One key that is lost is the whole: nobody works under half of the locks.
fn outcome_of(replies: &[Value]) -> Result<Outcome, Error> {
    let is_redirection = |reply: &Value| match reply {
        Value::ServerError(error) => ["MOVED", "ASK", "TRYAGAIN"].contains(&error.code()),
        _ => false,
    };
    // Something else than a lock lies at the key: it was overwritten.
    let is_overwritten = |reply: &Value| matches!(reply, Value::ServerError(error) if error.code() == "WRONGTYPE");
    if replies.iter().any(|reply| matches!(reply, Value::Nil) || is_overwritten(reply)) {
        return Ok(Outcome::Lost);
    }
    if replies.iter().any(is_redirection) {
        return Ok(Outcome::Redirected);
    }
    for reply in replies {
        match reply.clone().extract_error()? {
            Value::Int(_) => {}
            _ => return Err(RedisError::from(io::Error::other("the reply to a renewal is no fence")).into()),
        }
    }
    Ok(Outcome::Extended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_said_decides_for_all_keys_together() {
        let error = |text: &str| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("a reply");
        let outcome_of = |replies: &[Value]| outcome_of(replies).map_err(|error| error.to_string());
        assert_eq!(outcome_of(&[Value::Int(7), Value::Int(8)]), Ok(Outcome::Extended));
        assert_eq!(outcome_of(&[Value::Int(7), Value::Nil]), Ok(Outcome::Lost));
        assert_eq!(outcome_of(&[error("LOADING x"), Value::Nil]), Ok(Outcome::Lost));
        assert_eq!(outcome_of(&[Value::Int(7), error("WRONGTYPE x")]), Ok(Outcome::Lost));
        assert_eq!(outcome_of(&[error("MOVED 1 a:1"), Value::Int(8)]), Ok(Outcome::Redirected));
        assert_eq!(outcome_of(&[error("LOADING x"), Value::Int(8)]), Err("LOADING x".to_owned()));
        assert!(outcome_of(&[Value::Okay]).is_err());
    }
}
