//! Takes a lock at once, and gives back what is not wanted any more. Whatever happens, an owner that did not get it
//! holds nothing afterwards, as soon as the server can be reached.

use crate::channel::{Failure, Parting};
use crate::clock::{ANSWER, LEAVE, Moment, QUEUE, READ_ON, renewal_interval, renewal_limit};
use crate::errand::Errand;
use crate::error::Error;
#[cfg(feature = "tokio")]
use crate::error::was_cut;
use crate::owner::{Claim, Owner};
use crate::pool::{Repeat, Request};
use crate::request::{Queue, Terms, fences_of};
use crate::sync::{Caller, Mailbox};
use crate::transport::Transport;
use redis::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

/// What the server granted, and when it was asked for it.
pub(crate) struct Granted {
    pub(crate) fences: Vec<u64>,
    pub(crate) sent: Moment,
    /// The keys are in use by the owner as long as this lives.
    pub(crate) claim: Claim,
}

/// An acquisition at one server: for whom, where, of what, by which owner.
pub(crate) struct Acquisition<'a> {
    pub(crate) caller: Caller,
    pub(crate) transport: &'a Arc<Transport>,
    pub(crate) terms: &'a Terms,
    pub(crate) owner: &'a Owner,
    /// How many requests about what it was granted the server may read yet.
    pub(crate) unread: Arc<AtomicUsize>,
}

impl Acquisition<'_> {
    /// Asks once, within this time. Nobody waits for it. If it is given up, so is what it was granted.
    pub(crate) async fn try_once(&self, claim: Claim, limit: Duration) -> Result<Option<Granted>, Error> {
        let mut asked = Asked { acquisition: self, claim: Some(claim), is_asked: false };
        let (slot, lanes) = (self.terms.slot(), &self.transport.lanes);
        let events = Mailbox::new();
        let told = events.clone();
        if !lanes.prepare(slot, limit, move |opened| told.send(opened)) {
            let opened = events.next(self.caller, Some(limit + LEAVE)).await;
            opened.unwrap_or_else(|| Err(lanes.silence(slot, limit)))?;
        }
        let sent = Moment::now();
        asked.is_asked = true;
        let reply = match self.ask_once(limit).await {
            Ok(reply) => reply,
            Err(Failure { error, .. }) if self.is_of_old_client(&error) => {
                asked.is_asked = false;
                return Ok(None);
            }
            Err(Failure { error, sent }) => {
                // A reply that did not come may have been a fence.
                asked.is_asked = sent && matches!(error, Error::Connection(_));
                return Err(error);
            }
        };
        let Some(fences) = fences_of(reply)? else {
            asked.is_asked = false;
            return Ok(None);
        };
        let confirmed = self.confirmed(fences, sent).await?;
        asked.is_asked = false;
        let granted = confirmed.zip(asked.claim.take());
        Ok(granted.map(|((fences, sent), claim)| Granted { fences, sent, claim }))
    }

    /// True if an old client holds a key with a lock of another kind, which may be.
    pub(crate) fn is_of_old_client(&self, error: &Error) -> bool {
        self.terms.old_clients && error.is_overwritten()
    }

    /// The reply to one request, which has no place in the queue.
    async fn ask_once(&self, limit: Duration) -> Result<Value, Failure> {
        let (slot, command) = (self.terms.slot(), self.terms.acquire(self.owner, Queue::No, None));
        // Once it is answered late, it is given up.
        let parting = Some(self.parting(&Arc::new(AtomicBool::new(true))));
        match self.caller {
            Caller::Thread => {
                let request = Request { slot, command, limit, repeat: Repeat::AfterIdle, parting };
                self.transport.pool.ask(self.caller, request).await
            }
            // Over the connection on which it is given back, so that neither overtakes the other.
            #[cfg(feature = "tokio")]
            Caller::Task => {
                let replies = Mailbox::new();
                let mut failure = None;
                // The connection may have died long ago.
                for _ in 0..2 {
                    let told = replies.clone();
                    let errand = Errand::once(slot, vec![command.clone()], limit, move |replies, _| told.send(replies));
                    self.transport.lanes.send(errand.parting_with(parting.clone()));
                    let silence = || Err(self.transport.lanes.silence(slot, limit));
                    match replies.next(self.caller, Some(limit * 2)).await.unwrap_or_else(silence) {
                        Err(why) if was_cut(&why.error) => failure = Some(why),
                        Err(why) => return Err(why),
                        Ok(mut replies) => {
                            let reply = replies.pop().unwrap_or(Value::Nil).extract_error();
                            return reply.map_err(|error| Failure { error: error.into(), sent: true });
                        }
                    }
                }
                Err(failure.unwrap_or_else(|| self.transport.lanes.silence(slot, limit)))
            }
        }
    }

    /// The grant, if it is sure to last for a while still. The moment of the grant is not known, so it counts from when
    /// it was asked for. If that is long ago, the lease is renewed first. None if the hold is gone already.
    pub(crate) async fn confirmed(&self, fences: Vec<u64>, sent: Moment) -> Result<Option<(Vec<u64>, Moment)>, Error> {
        if sent.elapsed() < renewal_interval(self.terms.lasts()) {
            return Ok(Some((fences, sent)));
        }
        let sent = Moment::now();
        let limit = renewal_limit(self.terms.lasts()).min(ANSWER);
        let requests = self.terms.extend(self.owner, &fences);
        for reply in self.transport.lanes.ask(self.caller, self.terms.slot(), requests, limit, &self.unread).await? {
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
    pub(crate) fn leave(&self, claim: Claim, then: impl FnOnce() + Send + 'static) {
        let (request, debt) = (self.terms.leave(self.owner), self.transport.owe());
        let errand = Errand::once(self.terms.slot(), vec![request], READ_ON, move |replies, _| {
            // Where something else lies on the key, nothing is held.
            let is_refused = |reply: &Value| matches!(reply, Value::ServerError(error) if error.code() != "WRONGTYPE");
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

    pub(crate) fn parting(&self, is_given_up: &Arc<AtomicBool>) -> Parting {
        Parting { command: self.terms.leave(self.owner), is_given_up: is_given_up.clone() }
    }
}

/// A request that has no place. Whatever it may have been granted is given back, unless the claim is taken.
struct Asked<'a> {
    acquisition: &'a Acquisition<'a>,
    claim: Option<Claim>,
    is_asked: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take().filter(|_| self.is_asked) {
            self.acquisition.leave(claim, || {});
        }
    }
}
