//! A hold at one server: renewed and given back over the connection of its lane, so that neither needs a new one.

use crate::channel::Failure;
use crate::clock::{Moment, QUEUE, renewal_limit};
use crate::errand::{Before, Errand};
use crate::error::Error;
use crate::guard::{Ended, Ending, Keeper};
use crate::hold::Hold;
use crate::owner::Claim;
use crate::pool::{Repeat, Request};
use crate::request::is_some;
use crate::sync::{Caller, Mailbox, here};
use crate::transport::Transport;
use redis::{Cmd, RedisError, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How long the release of a lock that is lost is waited for.
const LOST_LIMIT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct OneServer {
    transport: Arc<Transport>,
    /// How long a request may take.
    limit: Duration,
}

impl OneServer {
    /// Keeps a hold alive from now on. Where it fails, it is released.
    pub(crate) fn keep(
        hold: &Arc<Hold>,
        sent: Moment,
        transport: &Arc<Transport>,
        limit: Duration,
    ) -> Result<OneServer, Error> {
        let keeper = OneServer { transport: transport.clone(), limit };
        match transport.lanes.add(hold, sent) {
            Ok(()) => Ok(keeper),
            Err(error) => {
                // Without a thread nothing goes on in the background.
                for request in hold.terms.release(&hold.owner, &hold.fences) {
                    drop(here(transport.ask(Caller::Thread, hold.terms.slot(), request, limit)));
                }
                Err(Error::Connection(RedisError::from(error)))
            }
        }
    }

    /// Whether all requests about a hold that is held are answered by something. What is not is lost.
    async fn holds(
        &self,
        caller: Caller,
        hold: &Hold,
        requests: Vec<Cmd>,
        limit: Duration,
        unread: &Arc<AtomicUsize>,
    ) -> Result<bool, Error> {
        for reply in self.transport.lanes.ask(caller, hold.terms.slot(), requests, limit, unread).await? {
            if !is_held(reply)? {
                hold.lose();
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) async fn check(&self, caller: Caller, hold: &Hold) -> Result<bool, Error> {
        if hold.is_lost() {
            return Ok(false);
        }
        let requests = hold.terms.ask(&hold.owner, &hold.fences);
        // It changes nothing, whenever it is read.
        Ok(self.holds(caller, hold, requests, self.limit, &Arc::default()).await? && !hold.is_lost())
    }

    pub(crate) async fn renew(&self, caller: Caller, hold: &Hold) -> Result<bool, Error> {
        self.extend(caller, hold, hold.extend(), renewal_limit(hold.terms.lasts())).await
    }

    pub(crate) async fn set_note(&self, caller: Caller, hold: &Hold, note: &str) -> Result<(), Error> {
        let requests = hold.extend().into_iter().map(|mut request| request.arg("NOTE").arg(note).take()).collect();
        if self.extend(caller, hold, requests, self.limit).await? { Ok(()) } else { Err(Error::Lost) }
    }

    /// Sends what renews it, and tells whether it is held.
    async fn extend(&self, caller: Caller, hold: &Hold, requests: Vec<Cmd>, limit: Duration) -> Result<bool, Error> {
        if hold.is_over() {
            return Ok(false);
        }
        let sent = Moment::now();
        if self.holds(caller, hold, requests, limit, &hold.unread).await? {
            hold.extended(sent);
        }
        Ok(!hold.is_lost())
    }

    pub(crate) async fn guard(&self, caller: Caller, hold: &Hold, command: &Cmd) -> Result<Value, Error> {
        let request = Request {
            slot: hold.terms.slot(),
            command: hold.terms.guard(&hold.owner, &hold.fences, command),
            limit: self.limit,
            repeat: Repeat::Never,
            parting: None,
        };
        let reply = match self.transport.pool.ask(caller, request).await? {
            Value::Array(mut fence_and_reply) if fence_and_reply.len() == 2 => fence_and_reply.pop(),
            _ => None,
        };
        reply.ok_or_else(|| {
            hold.lose();
            Error::Lost
        })
    }

    pub(crate) async fn end(
        &self,
        caller: Caller,
        hold: &Arc<Hold>,
        end: Ending,
        claim: Claim,
        patience: Option<Duration>,
    ) -> Ended {
        self.transport.lanes.remove(hold);
        let was_lost = hold.is_lost();
        let limit = if was_lost { self.limit.min(LOST_LIMIT) } else { self.limit };
        let ends_at = end.after().map(|time| Moment::now() + time);
        // Whoever takes it over raises its fence.
        let may_raise = matches!(end, Ending::After(_)) && !was_lost;
        let (of_request, is_late) = (hold.clone(), Arc::new(AtomicBool::new(false)));
        let was_late = is_late.clone();
        let requests = move |before: Before| {
            let (terms, owner, fences) = (&of_request.terms, &of_request.owner, &of_request.fences);
            // What the server reads after this, a renewal or an attempt, would undo it: a higher fence makes that void.
            is_late.fetch_or(of_request.unread.load(Ordering::Relaxed) > 0, Ordering::Relaxed);
            let raises = may_raise && (before.unanswered > 0 || is_late.load(Ordering::Relaxed)) && !before.is_ahead;
            // Of what is lost nothing is kept for anybody.
            match ends_at.filter(|end| !was_lost && !end.is_past()) {
                Some(end) if raises => terms.shorten_and_raise(owner, fences, end.left()),
                Some(end) => terms.shorten(owner, fences, end.left()),
                None => terms.release(owner, fences),
            }
        };
        let replies = Mailbox::new();
        let (told, debt) = (replies.clone(), self.transport.owe());
        // Two attempts fit into the time of a request. It goes on after that, until the server has forgotten the lock.
        let tell = move |ended: Ended| {
            if ended.failure.is_some() {
                claim.keep();
            } else {
                drop(claim);
            }
            drop(debt);
            told.send(ended);
        };
        let until = Moment::now() + hold.terms.lasts() + QUEUE;
        let (slot, looks, transport) = (hold.terms.slot(), hold.terms.look(&hold.owner), self.transport.clone());
        let errand = Errand::once(slot, Vec::new(), limit / 2, move |replies, Before { unanswered, was_lost, .. }| {
            // What is to end later has not ended by an attempt before. But one that was read may have raised the fence.
            let is_over = unanswered > 0 && ends_at.is_none_or(Moment::is_past);
            let is_raised = may_raise && unanswered + usize::from(was_late.load(Ordering::Relaxed)) > 1;
            let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
            let is_doubted = |all: &Vec<Value>| !all.iter().all(is_some) && !all.iter().any(is_error);
            if is_raised && !is_over && replies.as_ref().is_ok_and(is_doubted) {
                // Null is its answer, or the lock was lost before it.
                let look = Errand::once(slot, looks, limit / 2, move |replies, _| tell(ended(replies, false)));
                transport.lanes.send(look.until(until));
            } else {
                let ended = ended(replies, is_over || is_raised);
                tell(Ended { was_lost: ended.was_lost || was_lost, ..ended });
            }
        });
        self.transport.lanes.send(errand.of(requests).until(until));
        replies.next(caller, Some(patience.unwrap_or(limit))).await.unwrap_or_else(|| {
            let silence = self.transport.lanes.silence(hold.terms.slot(), limit);
            Ended { was_lost: false, failure: Some(silence.error) }
        })
    }
}

/// Whether a reply says that it is held. Null does not, nor does it if something else lies at the key.
fn is_held(reply: Value) -> Result<bool, Error> {
    match reply.extract_error().map_err(Error::from) {
        Ok(reply) => Ok(is_some(&reply)),
        Err(error) if error.is_overwritten() => Ok(false),
        Err(error) => Err(error),
    }
}

impl Keeper for OneServer {
    fn check(&self, hold: &Hold) -> Result<bool, Error> {
        here(self.check(Caller::Thread, hold))
    }

    fn renew(&self, hold: &Hold) -> Result<bool, Error> {
        here(self.renew(Caller::Thread, hold))
    }

    fn try_lease(&self, hold: &Hold, time: Duration) -> Result<bool, Error> {
        let requests = hold.terms.shorten(&hold.owner, &hold.fences, time);
        let is_held = here(self.holds(Caller::Thread, hold, requests, self.limit, &hold.unread))?;
        if is_held { here(self.renew(Caller::Thread, hold)) } else { Ok(false) }
    }

    fn set_note(&self, hold: &Hold, note: &str) -> Result<(), Error> {
        here(self.set_note(Caller::Thread, hold, note))
    }

    fn guard(&self, hold: &Hold, command: &Cmd) -> Result<Value, Error> {
        here(self.guard(Caller::Thread, hold, command))
    }

    fn may_be_handed_over(&self) -> Result<(), Error> {
        Ok(())
    }

    fn end(&self, hold: &Arc<Hold>, end: Ending, claim: Claim, patience: Option<Duration>) -> Ended {
        here(self.end(Caller::Thread, hold, end, claim, patience))
    }
}

/// What came of a release. Null says nothing if an attempt before may have done it.
fn ended(replies: Result<Vec<Value>, Failure>, may_be_done: bool) -> Ended {
    let replies = match replies {
        Ok(replies) => replies,
        Err(failure) if failure.error.is_overwritten() => return Ended { was_lost: true, failure: None },
        Err(failure) => return Ended { was_lost: false, failure: Some(failure.error) },
    };
    let (mut was_lost, mut failure) = (false, None);
    for reply in replies {
        match is_held(reply) {
            Ok(is_held) => was_lost |= !is_held && !may_be_done,
            Err(error) => failure = Some(error),
        }
    }
    Ended { was_lost, failure }
}
