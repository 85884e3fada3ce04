//! A hold at one server: renewed by the renewer of its client, asked about and given back over the client's pool.

use crate::channel::{Pool, Repeat};
use crate::clock::{Moment, renewal_limit};
use crate::error::Error;
use crate::guard::{Ended, Keeper};
use crate::hold::Hold;
use crate::renew::Renewer;
use crate::request::is_some;
use redis::{Cmd, RedisError, Value};
use std::sync::Arc;
use std::time::Duration;

/// How long the release of a lock that is lost may take.
const LOST_LIMIT: Duration = Duration::from_millis(500);

pub(crate) struct OneServer {
    pool: Arc<Pool>,
    renewer: Arc<Renewer>,
    /// How long a request may take.
    limit: Duration,
}

impl OneServer {
    /// Keeps a hold alive from now on. Where it fails, it is released.
    pub(crate) fn keep(
        hold: &Arc<Hold>,
        sent: Moment,
        (pool, renewer, limit): (Arc<Pool>, Arc<Renewer>, Duration),
    ) -> Result<OneServer, Error> {
        let keeper = OneServer { pool, renewer, limit };
        match keeper.renewer.add(hold, sent) {
            Ok(()) => Ok(keeper),
            Err(error) => {
                drop(keeper.end(hold, None));
                Err(Error::Connection(RedisError::from(error)))
            }
        }
    }
}

impl Keeper for OneServer {
    fn check(&self, hold: &Hold) -> Result<bool, Error> {
        let slot = hold.terms.slot();
        for request in hold.terms.ask(&hold.owner, &hold.fences) {
            if hold.is_lost() {
                return Ok(false);
            }
            if !is_some(&self.pool.ask_held(slot, &request, self.limit, Repeat::AfterIdle)?.0) {
                hold.lose();
                return Ok(false);
            }
        }
        Ok(!hold.is_lost())
    }

    fn renew(&self, hold: &Hold) -> Result<bool, Error> {
        let sent = Moment::now();
        let (slot, limit) = (hold.terms.slot(), renewal_limit(hold.terms.lasts()));
        for request in hold.terms.extend(&hold.owner, &hold.fences) {
            if hold.is_over() {
                return Ok(false);
            }
            if !is_some(&self.pool.ask(slot, &request, limit, Repeat::AfterIdle)?.0) {
                hold.lose();
                return Ok(false);
            }
        }
        hold.extended(sent);
        Ok(!hold.is_lost())
    }

    fn try_lease(&self, hold: &Hold, time: Duration) -> Result<bool, Error> {
        for request in hold.terms.shorten(&hold.owner, &hold.fences, time) {
            if !is_some(&self.pool.ask(hold.terms.slot(), &request, self.limit, Repeat::AfterIdle)?.0) {
                hold.lose();
                return Ok(false);
            }
        }
        self.renew(hold)
    }

    fn guard(&self, hold: &Hold, command: &Cmd) -> Result<Value, Error> {
        let request = hold.terms.guard(&hold.owner, &hold.fences, command);
        let reply = match self.pool.ask(hold.terms.slot(), &request, self.limit, Repeat::Never)?.0 {
            Value::Array(mut fence_and_reply) if fence_and_reply.len() == 2 => fence_and_reply.pop(),
            _ => None,
        };
        reply.ok_or_else(|| {
            hold.lose();
            Error::Lost
        })
    }

    fn end(&self, hold: &Arc<Hold>, after: Option<Duration>) -> Ended {
        self.renewer.remove(hold);
        // One that is lost may have to be released all the same, but nobody waits for that.
        let limit = if hold.is_lost() { self.limit.min(LOST_LIMIT) } else { self.limit };
        let requests = match after {
            None => hold.terms.release(&hold.owner, &hold.fences),
            Some(time) => hold.terms.shorten(&hold.owner, &hold.fences, time),
        };
        let (mut was_lost, mut failure) = (false, None);
        for request in requests {
            match self.pool.ask_held(hold.terms.slot(), &request, limit, Repeat::Once) {
                // Null to a repeated request: the first may have done it.
                Ok((reply, repeated)) => was_lost |= !is_some(&reply) && !repeated,
                Err(error) => failure = Some(error.into()),
            }
        }
        Ended { was_lost, failure }
    }
}
