//! A request that begins to wait: what becomes of it once the server has said whether its client is parked.
//!
//! Only the server knows that, and only when it is asked. Until then a request that repeats another leaves its place as
//! it was.

use super::LockManager;
use crate::model::notify::Notify;
use crate::model::request::{Acquire, Begun, Outcome, WaitEnd, WaiterId};
use crate::model::time::Timestamp;
use crate::wait::waiter::Waiter;

/// A request that begins to wait.
#[derive(Debug)]
pub struct Asked<'a> {
    /// How it begins.
    pub begun: Begun,
    /// What it asks for.
    pub operation: &'a Acquire,
    /// What it says of the channel of its owner's place.
    pub notify: Notify,
    /// Its client's number at the server.
    pub client: u64,
    /// True if its step could not see all locks: then it is checked for a deadlock once more, after the step.
    pub is_partial: bool,
    /// When its step was run.
    pub now: Timestamp,
}

/// The result of a request that began to wait.
#[derive(Debug)]
pub struct Settled {
    /// [`Outcome::Queued`], [`Outcome::Placed`] or [`Outcome::Unavailable`].
    pub outcome: Outcome,
    /// True unless the request goes on with a wait that was counted when that began.
    pub counts: bool,
    /// The waiter whose place it has taken over, and the answer to its client.
    pub taken_over: Option<(WaiterId, WaitEnd)>,
}

impl LockManager {
    /// True if the client of a request that begins to wait is to be parked.
    #[must_use]
    pub fn may_park(&self, begun: Begun) -> bool {
        match begun {
            Begun::New(_) => true,
            Begun::Place(_) => false,
            Begun::Repeat(old) => self.waits(old),
        }
    }

    /// The client of a request that begins to wait is parked, for this waiter: [`LockManager::may_park`]. It takes over
    /// the place of the request that it repeats, if it repeats one.
    pub fn client_parked(&mut self, asked: &Asked<'_>) -> (WaiterId, Settled) {
        let (waiter, taken_over) = match asked.begun {
            Begun::New(id) | Begun::Place(id) => (id, None),
            Begun::Repeat(old) => {
                let (heir, answer) = self.take_over(old, asked);
                (heir, Some((old, answer)))
            }
        };
        self.wait_table.belong(waiter, asked.client);
        let counts = !matches!(taken_over, Some((_, WaitEnd::TakenOver)));
        (waiter, Settled { counts, taken_over, ..self.settled(Outcome::Queued(waiter), asked) })
    }

    /// The client of a request that begins to wait is not parked: the request has tried once, and a place goes on
    /// without a client.
    pub fn client_not_parked(&mut self, asked: &Asked<'_>) -> Settled {
        let outcome = match asked.begun {
            Begun::Place(place) => Outcome::Placed(place),
            Begun::New(waiter) => match self.cancel(waiter, asked.now) {
                Some(WaitEnd::Detached(place) | WaitEnd::InGrace { place: Some(place), .. }) => Outcome::Placed(place),
                _ => Outcome::Unavailable,
            },
            Begun::Repeat(old) => self.renew(old, asked.operation, asked.notify, asked.now),
        };
        self.settled(outcome, asked)
    }

    fn settled(&mut self, outcome: Outcome, asked: &Asked<'_>) -> Settled {
        if let Outcome::Queued(id) | Outcome::Placed(id) = outcome
            && asked.is_partial
            && self.contended() > 1
        {
            self.check_later(id);
        }
        Settled { outcome, counts: true, taken_over: None }
    }

    /// Gives the place of a waiter to the request that repeats it. Returns the new waiter, and the answer to the client
    /// of the old one.
    fn take_over(&mut self, old: WaiterId, asked: &Asked<'_>) -> (WaiterId, WaitEnd) {
        let Asked { operation, notify, now, .. } = *asked;
        let has_queue = operation.queue.is_some();
        let is_about_place = has_queue || self.wait_table.waiter(old).is_some_and(Waiter::is_place);
        let before = self.most_beside(old);
        let id = self.wait_table.take_over(old, operation, now).expect("it waits: see `may_park`");
        if has_queue {
            self.wait_table.tell(id, notify);
        }
        self.note_new_limit(id, before);
        (id, if is_about_place { WaitEnd::TakenOver } else { WaitEnd::Replaced })
    }
}
