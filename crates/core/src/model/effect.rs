//! What a step did: to holds, which replicas must learn, and to waiters, which must be answered.

use super::hold::{Connection, Hold, Mode, Session};
use super::holds::Holds;
use super::key::KeyIndex;
use super::lock::Lock;
use super::notify::Message;
use super::offers::OfferId;
use super::owner::Owner;
use super::request::{WaitEnd, WaiterId};
use super::session::Sessions;
use super::time::Timestamp;
use alloc::boxed::Box;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// The waits that ended, and why.
pub type WaitEnds = SmallVec<[(WaiterId, WaitEnd); 1]>;

/// The end of waits together: what their clients are answered, and what the owners of places are told.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// The waits.
    pub waits: WaitEnds,
    /// The messages.
    pub messages: Vec<Message>,
}

/// The messages of a step.
#[derive(Clone, Debug, Default)]
struct Messages(Vec<Message>);

/// All that a step leaves to do for the rest of the module.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// The changes of holds, in order: in place for the usual hand-off.
    pub changes: SmallVec<[Change; 2]>,
    /// The waits that ended, and why.
    pub wait_ends: WaitEnds,
    /// The owners that are to ask again. Apart: hardly any step tells one, and each makes room for them.
    messages: Option<Box<Messages>>,
    /// True if the next deadline may be earlier now.
    pub needs_rearm: bool,
    /// True if the index of leases must follow: a hold is new or gone, its lease ends earlier than before, or its entry
    /// may be due or lost.
    pub(crate) check_leases: bool,
    /// The changes that the node's indexes, other than that of leases, must follow.
    pub(crate) index_changes: Vec<IndexChange>,
    /// Holds that have ended together, on these keys: each is yet to be announced.
    pub(crate) ended_together: Vec<(KeyIndex, EndedHolds)>,
}

/// Holds of one lock that have ended together. Replicas know it; the background announces, counts and logs each.
#[derive(Clone, Debug)]
pub(crate) struct EndedHolds {
    /// The part that was not announced yet.
    pub(crate) holds: Holds,
    /// When they ended: a lease that was over by then has lapsed.
    pub(crate) at: Timestamp,
    /// The sessions that had ended by then.
    pub(crate) sessions: Vec<Session>,
    /// How all others ended.
    pub(crate) cause: Cause,
}

impl EndedHolds {
    /// How this hold has ended.
    pub(crate) fn cause_of(&self, hold: &Hold) -> Cause {
        match hold.session() {
            _ if hold.deadline <= self.at => lapse_of(hold),
            Some(session) if self.sessions.contains(&session) => Cause::Close,
            _ => self.cause,
        }
    }
}

/// How a hold ends whose lease is over. An offer that was not collected is taken back: its owner has lost nothing that
/// it knew of.
pub(crate) fn lapse_of(hold: &Hold) -> Cause {
    if hold.offer().is_some() { Cause::RevokeUndelivered } else { Cause::Lapse }
}

/// A change of a hold that an index has to follow.
#[derive(Clone, Debug)]
pub(crate) enum IndexChange {
    /// To that of sessions.
    Binding(BindingChange),
    /// To that of offers: a hold is part of this one no more. Says whether it excludes fewer others now.
    LeftOffer { key: KeyIndex, offer: OfferId, is_weaker: bool },
}

impl IndexChange {
    /// The key of the hold.
    pub(crate) fn key(&self) -> KeyIndex {
        match self {
            IndexChange::Binding(binding) => binding.key,
            IndexChange::LeftOffer { key, .. } => *key,
        }
    }

    /// The same, to change.
    pub(crate) fn key_mut(&mut self) -> &mut KeyIndex {
        match self {
            IndexChange::Binding(binding) => &mut binding.key,
            IndexChange::LeftOffer { key, .. } => key,
        }
    }
}

/// A hold was bound to another connection than before, or to one where there was none, or the other way round.
#[derive(Clone, Debug)]
pub(crate) struct BindingChange {
    pub(crate) key: KeyIndex,
    pub(crate) was: Option<Session>,
    pub(crate) is: Option<Session>,
}

impl Effects {
    /// Nothing was done.
    #[must_use]
    pub fn new() -> Effects {
        Effects::default()
    }

    /// True if nothing was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.wait_ends.is_empty()
            && self.messages.is_none()
            && self.index_changes.is_empty()
            && self.ended_together.is_empty()
    }

    /// An owner is to ask again, if there is a message to it.
    pub(crate) fn tell(&mut self, message: Option<Message>) {
        if let Some(message) = message {
            self.messages.get_or_insert_default().0.push(message);
        }
    }

    /// The owners that are to ask again, each in a message.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        self.messages.as_ref().map_or(&[], |messages| &messages.0)
    }

    /// The same, of which nothing is left.
    pub fn take_messages(&mut self) -> Vec<Message> {
        self.messages.take().map_or_else(Vec::new, |messages| messages.0)
    }

    /// A hold has ended.
    pub(super) fn ended(&mut self, key: KeyIndex, cause: Cause, owner: Owner, hold: Hold) {
        self.note_binding(key, hold.session(), None);
        self.note_end((key, cause, Record::State), owner, hold);
    }

    fn note_end(&mut self, (key, cause, record): (KeyIndex, Cause, Record), owner: Owner, hold: Hold) {
        self.check_leases = true;
        if let Some(offer) = hold.offer() {
            self.index_changes.push(IndexChange::LeftOffer { key, offer, is_weaker: false });
        }
        self.changes.push(Change { key, cause, owner, hold, ended: true, record });
    }

    /// Ends all holds of a lock together: of each but one it is announced later. Cannot fail.
    pub(super) fn end_together(&mut self, lock: &mut Lock, key: KeyIndex, mut ended: EndedHolds) {
        ended.holds = lock.holds.take_all();
        let Some((owner, hold)) = ended.holds.take_any() else { return };
        self.note_binding(key, hold.session(), None);
        self.note_end((key, ended.cause_of(&hold), Record::Emptied), owner, hold);
        self.ended_together.push((key, ended));
    }

    /// Puts a hold back that was on a lock whose others have ended together. Cannot fail.
    pub(super) fn put_back(&mut self, lock: &mut Lock, key: KeyIndex, owner: Owner, hold: Hold) {
        lock.holds.put(&owner, hold.clone());
        let cause = Cause::Replicated;
        self.changes.push(Change { key, cause, owner, hold, ended: false, record: Record::State });
    }

    /// Announces the end of a hold that has ended together with others.
    pub(crate) fn announce_end(&mut self, (key, cause): (KeyIndex, Cause), owner: Owner, hold: Hold) {
        self.note_binding(key, hold.session(), None);
        self.note_end((key, cause, Record::Sent), owner, hold);
    }

    /// Cuts a lease to what the closed connection of its hold has left of it. Does nothing when it is bound to none.
    /// Cannot fail.
    pub(crate) fn close(&mut self, lock: &mut Lock, key: KeyIndex, sessions: &Sessions, owner: &Owner, now: Timestamp) {
        let Some(hold) = lock.holds.get(owner.as_bytes()) else { return };
        let Some(end) = sessions.end_of_grace(hold) else { return };
        let mut hold = hold.clone();
        if hold.deadline <= end {
            // Nothing is cut, and no client needs to know: it goes on to the end of its lease, or lapses if that is
            // over.
            self.note_binding(key, hold.session(), None);
            hold.bind(None);
            lock.holds.put(owner, hold);
            return;
        }
        if end <= now {
            return self.commit_end(lock, key, Cause::Close, owner);
        }
        hold.deadline = end;
        hold.orphan();
        self.commit_hold(lock, key, Cause::Close, owner, hold);
    }

    /// Cuts the leases of at most `most` holds that are bound to a closed connection. Cannot fail.
    ///
    /// True if nothing is left to be cut. What a grant has bound that is not delivered yet is left to its delivery.
    pub(crate) fn close_some(
        &mut self,
        (lock, key): (&mut Lock, KeyIndex),
        sessions: &Sessions,
        connection: Connection,
        now: Timestamp,
        most: usize,
    ) -> bool {
        let owners: Vec<Owner> = lock.holds.owners_bound_to(connection).take(most).cloned().collect();
        owners.iter().for_each(|owner| self.close(lock, key, sessions, owner, now));
        let is_left = |owner: &&Owner| lock.holds.get(owner.as_bytes()).is_some_and(|hold| hold.session().is_some());
        let undelivered = owners.iter().filter(is_left).count();
        lock.holds.owners_bound_to(connection).nth(undelivered).is_none()
    }

    /// Commits a hold as it is to be from now on. Cannot fail.
    pub(crate) fn commit_hold(&mut self, lock: &mut Lock, key: KeyIndex, cause: Cause, owner: &Owner, hold: Hold) {
        let old = lock.holds.put(owner, hold.clone());
        self.check_leases |= old.as_ref().is_none_or(|old| hold.deadline < old.deadline);
        self.note_binding(key, old.as_ref().and_then(Hold::session), hold.session());
        if let Some(old) = &old
            && old.offer().is_some()
        {
            self.note_left_offer(key, old, &hold);
        }
        if cause == Cause::Collect && self.joins_offer(key, owner, &hold) {
            return;
        }
        let record = Record::State;
        self.changes.push(Change { key, cause, owner: owner.clone(), hold, ended: false, record });
    }

    /// A hold that was part of an offer is about to be another one.
    #[cold]
    fn note_left_offer(&mut self, key: KeyIndex, old: &Hold, hold: &Hold) {
        let is_weaker = hold.mode() == Mode::Read && (old.mode() == Mode::Write || hold.reads() < old.reads());
        let left = old.offer().filter(|offer| hold.offer() != Some(*offer));
        self.index_changes.extend(left.map(|offer| IndexChange::LeftOffer { key, offer, is_weaker }));
    }

    /// True if a hold was offered in this step and is collected in it: replicas and subscribers learn of one grant.
    #[cold]
    fn joins_offer(&mut self, key: KeyIndex, owner: &Owner, hold: &Hold) -> bool {
        let same = |change: &&mut Change| change.key == key && change.owner == *owner;
        match self.changes.iter_mut().rev().find(same) {
            Some(offered) if offered.cause == Cause::Acquire => {
                offered.hold = hold.clone();
                true
            }
            _ => false,
        }
    }

    /// Commits that a hold is gone. Cannot fail.
    pub(crate) fn commit_end(&mut self, lock: &mut Lock, key: KeyIndex, cause: Cause, owner: &Owner) {
        if let Some(hold) = lock.holds.take(owner.as_bytes()) {
            self.ended(key, cause, owner.clone(), hold);
        }
    }

    #[inline(always)]
    fn note_binding(&mut self, key: KeyIndex, was: Option<Session>, is: Option<Session>) {
        if was != is {
            self.note_bound(BindingChange { key, was, is });
        }
    }

    #[inline(never)]
    fn note_bound(&mut self, change: BindingChange) {
        self.index_changes.push(IndexChange::Binding(change));
    }
}

/// One hold changed: what replicas, the AOF, subscribers and counters must learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// On which key.
    pub key: KeyIndex,
    /// By what.
    pub cause: Cause,
    /// The holder.
    pub owner: Owner,
    /// The hold as it is now, or as it was when it ended.
    pub hold: Hold,
    /// True if it is gone.
    pub ended: bool,
    /// The record that replicas get.
    pub record: Record,
}

/// The record of a change for replicas and the AOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The state of the hold.
    State,
    /// All holds on the key have ended. Changes that are [`Record::Sent`] follow for the others.
    Emptied,
    /// Nothing: they know it by an earlier one, and nothing lies there now that it is about.
    Sent,
}

impl Change {
    /// True if it is the end of the only hold on its key: a writer holds alone (I2). Its fence says which one ended.
    #[must_use]
    pub fn ends_writer(&self) -> bool {
        self.ended && self.hold.writes() > 0
    }
}

/// The cause of a change of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its owner took it or took it again.
    Acquire,
    /// Its owner gave some or all of it back.
    Release,
    /// Its owner moved the end of its lease.
    Extend,
    /// Its lease ended.
    Lapse,
    /// The grant could not be delivered, or was not collected.
    RevokeUndelivered,
    /// A grant that could not be delivered lies there for its owner to collect.
    Offer,
    /// Its owner asked again, and has what it was offered.
    Collect,
    /// The connection that it was bound to has closed.
    Close,
    /// An operator ended it.
    Break,
    /// A LOCK.HOLD said so.
    Replicated,
}

/// The records of the holds of a lock, in order, from behind that of an owner on: as if each had just been set.
pub fn records_after<'l>(
    lock: &'l Lock,
    key: KeyIndex,
    after: Option<&Owner>,
) -> impl Iterator<Item = Change> + use<'l> {
    let replicated = move |(owner, hold): (&Owner, &Hold)| Change {
        key,
        cause: Cause::Replicated,
        owner: owner.clone(),
        hold: hold.clone(),
        ended: false,
        record: Record::State,
    };
    lock.holds.after(after).map(replicated)
}
