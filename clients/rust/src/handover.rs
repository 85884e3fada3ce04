//! A lock on its way from one process to another. The fence rises on the way, so that the giver's copy is void.

use crate::backoff::Backoff;
use crate::channel::Failure;
use crate::clock::{Moment, QUEUE, READ_ON};
use crate::errand::Errand;
use crate::error::Error;
use crate::hold::Hold;
use crate::owner::Owner;
use crate::pool::{Repeat, Request};
use crate::request::{Terms, fences_of};
use crate::sync::{Caller, Mailbox};
use crate::transport::Transport;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;

/// What another process needs to take over a lock: see [`Guard::detach`](crate::Guard::detach) and
/// [`Client::adopt`](crate::Client::adopt).
///
/// Whoever has it may have the lock, once. It is good for the length of its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldToken {
    /// The key of the lock.
    pub key: Vec<u8>,
    /// The name under which the server knows the holder.
    pub owner: String,
    /// The fence of the giver. It counts no more when the lock is taken over.
    pub fence: u64,
    /// How long the lock outlives its holder.
    pub lease: Duration,
    /// True if the lock is shared with other readers.
    pub shared: bool,
}

impl HoldToken {
    /// Of a hold. Refused for several keys, and for shares.
    pub(crate) fn of(hold: &Hold) -> Result<HoldToken, Error> {
        match &hold.terms {
            Terms { keys, limit: None, session: None, max: None, lease, shared, .. } if keys.len() == 1 => {
                let (owner, fence) = (hold.owner.to_string(), hold.fences[0]);
                Ok(HoldToken { key: keys[0].clone(), owner, fence, lease: *lease, shared: *shared })
            }
            _ => Err(Error::Refused("several keys, shares, a session and a max cannot be handed over".to_owned())),
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        Terms { lease: self.lease, shared: self.shared, ..Terms::new(vec![self.key.clone()]) }
    }

    /// Raises the fence, and takes over the lock with it: the fence, and when it was asked for. Asked again while the
    /// server cannot say, for so long at most.
    pub(crate) async fn raise(
        &self,
        caller: Caller,
        transport: &Arc<Transport>,
        limit: Duration,
    ) -> Result<(u64, Moment), Error> {
        let (terms, owner) = (self.terms(), Owner::named(&self.owner));
        let (deadline, mut backoff, mut may_be_done) = (Moment::now() + limit, Backoff::default(), false);
        loop {
            let [command] = &terms.raise(&owner, self.fence, self.fence + 1)[..] else { return Err(Error::Lost) };
            let (slot, sent, repeat) = (terms.slot(), Moment::now(), Repeat::Never);
            let request = Request { slot, command: command.clone(), limit: deadline.left(), repeat, parting: None };
            let error = match transport.pool.ask_or(caller, request, self.give_back(transport)).await {
                Ok(reply) => match fences_of(reply)? {
                    Some(fences) => return Ok((fences[0], sent)),
                    None => return Err(Error::Lost),
                },
                Err(Failure { error, .. }) if error.is_overwritten() => return Err(Error::Lost),
                Err(Failure { error, sent }) => {
                    may_be_done |= sent && matches!(error, Error::Connection(_));
                    error
                }
            };
            // After a start the clock of fences may be behind the fence of the giver. Else, where the request may have
            // been done, its answer is what is missing, and a null to the next one would say nothing.
            if may_be_done || !(error.is_ahead() || error.is_transient()) || deadline.is_past() {
                return Err(error);
            }
            let pause = backoff.pause().min(deadline.left());
            let _: Option<()> = Mailbox::new().next(caller, Some(pause)).await;
        }
    }

    /// Releases what a reply says was taken over for nobody. Without a reply nothing is released: under that fence
    /// another may have taken it over.
    fn give_back(&self, transport: &Arc<Transport>) -> impl FnOnce(Value) + Send + 'static {
        let (terms, owner) = (self.terms(), Owner::named(&self.owner));
        let (debt, transport) = (transport.owe(), transport.clone());
        move |reply| {
            let Ok(Some(fences)) = fences_of(reply) else { return };
            let requests = terms.release(&owner, &fences);
            let errand = Errand::once(terms.slot(), requests, READ_ON, move |_, _| drop(debt));
            transport.lanes.send(errand.until(Moment::now() + terms.lasts() + QUEUE));
        }
    }
}
