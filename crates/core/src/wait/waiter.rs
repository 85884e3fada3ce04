//! A waiter: a request that waits in the queues of its keys, or was granted and may not have received that yet.
//!
//! With QUEUE it is a *place*: it outlives its request, and its owner asks again for it.
//!
//! | state | client | stands in queues | ends by |
//! | --- | --- | --- | --- |
//! | waiting | parked | of all its keys | a grant: granted. Another answer: forgotten; a place is detached |
//! | detached | none | of all its keys | a grant: forgotten, the hold is an offer. BLOCK: waiting. Time: forgotten |
//! | granted | answered | none | the reply was delivered: forgotten. The client has gone: undelivered |
//! | undelivered | none | none | rolled back, or, of a place, made an offer: forgotten |
//!
//! An offer is a hold that no client knows of ([`crate::model::offers`]).
//!
//! A request without QUEUE is a place whose time is 0: it ends with its request.

use super::connections::Client;
use super::queue::{Position, WaitQueue};
use crate::collections::arena::Arena;
use crate::collections::heap::{allocated, of_tree};
use crate::collections::wheel::{EntryId, Wheel};
use crate::model::fence::Fence;
use crate::model::hold::{Connection, Epoch, Hold, Mode, Session};
use crate::model::key::{Db, KeyName, NameSet};
use crate::model::notify::{ChannelId, Message};
use crate::model::owner::Owner;
use crate::model::request::{Acquire, PerKey, Wait, WaiterId};
use crate::model::time::{Millis, Timestamp};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

/// An admitted, unanswered request.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The owner that waits.
    pub owner: Owner,
    /// For what.
    pub operation: Acquire,
    /// In which database.
    pub db: Db,
    /// For which keys.
    pub keys: PerKey<Wanted>,
    /// Since when.
    pub since: Timestamp,
    /// Until when; None without a limit.
    pub until: Option<Timestamp>,
    /// The number of its arrival: its place among the waiters of its class in each queue.
    pub(super) ticket: u64,
    pub(super) state: State,
    pub(super) entry: Option<EntryId>,
    /// True if its time was up while nothing could be granted.
    pub(super) overdue: bool,
    /// The place among its keys of the one that kept it waiting when that was seen last.
    pub(super) blocked_on: usize,
    /// How many bytes count for it: its own, and those of the queues that it pays for.
    pub(super) bytes: usize,
    /// The count of scans ([`super::table::WaitTable`]) when all its queues were put on the ready list.
    pub(super) marked_at: u64,
    /// The channel on which its owner is told to ask again. Of a place alone.
    pub(super) channel: Option<ChannelId>,
    /// The client over whose connection its owner asked last with BLOCK or NOTIFY. Of a place alone.
    pub(super) client: Option<Client>,
    /// Its place among the waiters of that connection.
    pub(super) at: u32,
}

/// A timer of the table: a time limit, or the end of a reservation.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    Wait(WaiterId),
    // Apart: there are far more waits.
    Reservation(Box<(Db, KeyName)>),
}

/// A key that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: KeyName,
    /// True if the owner held it for reading when it asked to write.
    pub upgrade: bool,
}

#[derive(Clone, Debug)]
pub(super) enum State {
    Waiting,
    // Apart: places wait in great numbers, and a grant is as large as all else that is kept of them.
    Granted(Box<Grant>),
}

/// The grant of a waiter, until it is known whether the client has received it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The parts of the grant, by key.
    pub given: PerKey<GrantUndo>,
    /// True if the owner has shown since that it knows, by ACQUIRE, RETRY or EXTEND.
    pub confirmed: bool,
    /// Where each of the given lies now, once one was renamed or moved, or databases were swapped; none while each lies
    /// where it was asked for.
    pub(super) locations: Vec<(Db, KeyName)>,
}

/// An undelivered grant, as far as it lies in one database.
#[derive(Debug)]
pub(crate) struct Undelivered {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) confirmed: bool,
    /// For how long the owner may collect it; None if it is taken back at once.
    pub(crate) queue: Option<Millis>,
    /// The client over whose connection its owner waited, if that is open.
    pub(crate) client: Option<u64>,
    /// The message by which its owner is told, with the last part of the grant.
    pub(crate) message: Option<Message>,
    /// The count of the offer that is made of it then.
    pub(crate) offered: u32,
    /// Of shares: the limit up to which they were granted.
    pub(crate) limit: Option<NonZeroU32>,
    /// The parts of the grant, by key.
    pub(crate) given: PerKey<(KeyName, GrantUndo)>,
}

/// The part of a grant on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantUndo {
    /// The fence that the hold has now.
    pub fence: Fence,
    /// The last fence that a later grant of the same owner gave the same hold; this grant's own if there was none. None
    /// when the hold is gone.
    pub latest: Option<Fence>,
    /// How much was added to its count.
    pub added: u32,
    /// When its lease ends now.
    pub deadline: Timestamp,
    /// The connection that it is bound to now.
    pub session: Option<Session>,
    /// The hold as its owner knew it before; None when there was none.
    pub prior: Option<PriorHold>,
}

/// The parts of an earlier hold that an acquisition changed, beside its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorHold {
    pub(super) fence: Fence,
    pub(super) granted_in: Epoch,
    pub(super) deadline: Timestamp,
    pub(super) session: Option<Session>,
    /// When it would have ended because the connection closed that it was bound to.
    pub(super) closed_until: Option<Timestamp>,
}

/// The event that may have closed a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CycleCause {
    /// The requester, which has begun to wait.
    NewWait,
    /// Holds that came after the waiters for them: with a lock from elsewhere, or by a grant that passed them.
    NewHold,
}

impl PriorHold {
    /// Returns what a rollback needs of a hold that is about to change.
    pub(crate) fn of(hold: &Hold) -> PriorHold {
        PriorHold {
            fence: hold.fence(),
            granted_in: hold.granted_in(),
            deadline: hold.deadline,
            session: hold.session(),
            closed_until: None,
        }
    }
}

impl GrantUndo {
    /// Returns its connection, if that is another one than before, and the fence of the hold. A hold that was not
    /// there before counts for a place alone: without one it ends by the rollback as it would by its connection.
    pub(crate) fn newly_bound(&self, queue: Option<Millis>) -> Option<(Connection, Fence)> {
        if self.prior.is_none() && queue.is_none() {
            return None;
        }
        let before = self.prior.and_then(|prior| prior.session);
        let session = self.session.filter(|_| self.session != before)?;
        Some((session.connection, self.fence))
    }

    /// The fence that the hold had before; None when there was no hold.
    pub(crate) fn prior_fence(&self) -> Option<Fence> {
        self.prior.map(|prior| prior.fence)
    }

    /// True if a hold is the one that this was given on.
    pub(crate) fn is_of(&self, hold: &Hold) -> bool {
        self.has_had(hold.fence())
    }

    /// True if the hold has had this fence since the grant. It may have an earlier one of these again: that of a later
    /// grant goes when that grant is rolled back.
    pub(super) fn has_had(&self, fence: Fence) -> bool {
        self.latest.is_some_and(|latest| (self.fence..=latest).contains(&fence))
    }

    /// The hold as it would be if this had not been given. Its owner never learnt of the new fence: by the old one, it
    /// would be told that it holds nothing. Where a later grant has given another fence, only the count is undone: what
    /// else the hold has is of that grant.
    pub(crate) fn undo(&self, hold: &Hold, mode: Mode) -> Hold {
        let mut hold = hold.clone();
        hold.set_count(mode, hold.count(mode).saturating_sub(self.added));
        if let Some(prior) = self.prior.filter(|_| hold.fence() == self.fence) {
            hold.set_fence(prior.fence);
            // What was carried here since stays so.
            if hold.granted_in() != Epoch::CARRIED {
                hold.set_granted_in(prior.granted_in);
            }
            if hold.deadline == self.deadline {
                hold.deadline = prior.deadline;
            }
            if hold.session() == self.session {
                hold.bind(prior.session);
                hold.deadline =
                    prior.closed_until.map_or(hold.deadline, |closed_until| closed_until.min(hold.deadline));
            }
        }
        hold
    }
}

impl Waiter {
    /// True if its place outlives its request.
    #[must_use]
    pub fn is_place(&self) -> bool {
        self.operation.queue.is_some()
    }

    /// True if it is a place for which no client is parked.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.operation.wait == Wait::Never
    }

    /// Returns its request as a place without a client; None if it is no place. The lease and the terms of a grant are
    /// those of the request that collects it.
    pub(crate) fn detached(&self) -> Option<Acquire> {
        let Acquire { mode, queue, share, .. } = self.operation;
        Some(Acquire { mode, lease: queue?, wait: Wait::Never, retry: Some(self.offered()), queue, share, terms: None })
    }

    /// The count of an offer of what it asks for.
    pub(super) fn offered(&self) -> u32 {
        self.operation.share.map_or(1, |_| self.operation.count_after(0))
    }

    /// Until when its owner may collect a grant that is made now; None if its client receives the grant.
    pub(crate) fn offered_until(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.until.filter(|_| self.is_detached())?;
        // Its owner may have been kept from asking until now.
        let again = self.operation.queue.filter(|_| self.overdue).map(|queue| now + queue);
        Some(again.unwrap_or(until))
    }

    /// True if it waits for just these keys, in this order.
    pub(crate) fn has_keys(&self, wanted: &[Wanted]) -> bool {
        self.keys.iter().map(|key| &key.name).eq(wanted.iter().map(|key| &key.name))
    }

    /// True if it waits for several keys.
    #[must_use]
    pub fn is_many(&self) -> bool {
        self.keys.len() > 1
    }

    /// Its position in the queue of one of its keys.
    pub(crate) fn position_at(&self, key: &Wanted) -> Position {
        Position::new(key.upgrade, self.ticket)
    }

    /// True if it waits still.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// The place among its keys of the one that kept it waiting when that was seen last.
    pub(crate) fn blocked_on(&self) -> usize {
        self.blocked_on
    }

    /// Returns its grant.
    #[must_use]
    pub fn grant(&self) -> Option<&Grant> {
        match &self.state {
            State::Waiting => None,
            State::Granted(grant) => Some(grant),
        }
    }

    /// Returns the connections that its grant bound holds to, each with the fence of the hold.
    pub(crate) fn newly_bound(&self) -> impl Iterator<Item = (Connection, Fence)> {
        let given = self.grant().map_or(&[][..], |grant| &grant.given);
        given.iter().filter_map(|given| given.newly_bound(self.operation.queue))
    }

    /// Returns the connections that the holds of its grant were bound to before.
    pub(super) fn prior_connections(&self) -> Vec<Connection> {
        let given = self.grant().map_or(&[][..], |grant| &grant.given);
        let prior = given.iter().filter_map(|given| Some(given.prior?.session?.connection));
        let own = self.operation.terms.as_ref().and_then(|terms| terms.session).map(|session| session.connection);
        prior.filter(|connection| Some(*connection) != own).collect()
    }

    /// Where the hold lies now that it was given for one of its keys.
    pub(super) fn location(&self, at: usize) -> (Db, &KeyName) {
        match self.grant().and_then(|grant| grant.locations.get(at)) {
            Some((db, name)) => (*db, name),
            None => (self.db, &self.keys[at].name),
        }
    }

    /// True if it stands in the queue of one of these keys of a database.
    pub(crate) fn wants_any(&self, db: Db, names: &NameSet) -> bool {
        self.db == db && self.keys.iter().any(|key| names.contains(&key.name))
    }

    /// True if one of the holds that it was given lies there now.
    pub(super) fn lies_at(&self, db: Db, name: &KeyName) -> bool {
        !self.is_waiting() && (0..self.keys.len()).map(|at| self.location(at)).any(|place| place == (db, name))
    }

    /// As [`Waiter::lies_at`], under one of these names.
    pub(super) fn lies_at_any(&self, db: Db, names: &NameSet) -> bool {
        let mut locations = (0..self.keys.len()).map(|at| self.location(at));
        !self.is_waiting() && locations.any(|(at, key)| at == db && names.contains(key))
    }

    /// Notes that the lock under this key is gone: the grant there belongs to no hold any more.
    pub(super) fn forget_given_at(&mut self, (db, name): (Db, &KeyName)) {
        for at in 0..self.keys.len() {
            let (lies_in, key) = self.location(at);
            if (lies_in, key) == (db, name)
                && let State::Granted(grant) = &mut self.state
                && let Some(given) = grant.given.get_mut(at)
            {
                given.latest = None;
            }
        }
    }

    /// Changes where the holds lie that it was given.
    pub(super) fn relocate(&mut self, change: impl FnMut(&mut (Db, KeyName))) {
        let State::Granted(grant) = &mut self.state else { return };
        if grant.locations.is_empty() {
            grant.locations = self.keys.iter().map(|key| (self.db, key.name.clone())).collect();
        }
        grant.locations.iter_mut().for_each(change);
    }

    /// True if this key is one of those that it wants.
    #[must_use]
    pub fn wants(&self, db: Db, name: &KeyName) -> bool {
        self.db == db && self.keys.iter().any(|key| key.name == *name)
    }
}

// Each just fills a step of the allocator: a word more would cost a place 64 bytes.
const _: () = assert!(Arena::<Waiter>::SLOT == 256 && Wheel::<Timer>::ENTRY == 32);

/// Bytes of memory that a waiter of this owner for so many keys takes, without the queues of these.
pub(super) fn seat_bytes(owner: &Owner, keys: usize) -> usize {
    // A position and a waiter in a list, with some of the room that is kept free beside it.
    const SEAT: usize = 18;
    // Its entry by the owner, with the same.
    const BY_OWNER: usize = 40;
    // In the order of a queue, and among its writers or among those that wait elsewhere too.
    let seats = 2 * keys * SEAT;
    let waiter = Arena::<Waiter>::slot_bytes() + Wheel::<Timer>::entry_bytes() + BY_OWNER;
    let wanted = if keys > 1 { allocated(keys * size_of::<Wanted>()) } else { 0 };
    waiter + owner.heap_bytes() + wanted + seats
}

/// Bytes of memory that the queue of a key takes, with the name that its waiters share.
pub(super) fn queue_bytes(name: &KeyName) -> usize {
    // An entry of a tree, as of many. They come in no order, which fills the nodes better by a tenth.
    const MANY: usize = 1_000;
    const QUEUE: usize = of_tree(MANY, size_of::<(KeyName, WaitQueue)>()) * 9 / (10 * MANY);
    QUEUE + name.heap_bytes()
}
