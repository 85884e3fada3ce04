//! Settling: what is over on a key ends. A step ends a bounded number of holds, however many are over.
//!
//! A hold that is over counts as over at once ([`Sessions::end_of`]), and leaves its lock when a step comes to it.
//! Where more are over than the step may end:
//!
//! - none stands but that of the owner that asks: the others end together. They leave the lock as a whole, replicas are
//!   told that the key was emptied, and the background announces each;
//! - others stand: the step ends as many as it may. The key is *unsettled*, and the background goes on. All its holds
//!   are readers', since a writer holds alone (I2).
//!
//! The owner that asks never has a hold that is over: its own ends first.

use super::effect::{Cause, Effects, EndedHolds, lapse_of};
use super::hold::{Hold, Session};
use super::holds::Holds;
use super::key::KeyIndex;
use super::keyspace::{KeyEntry, Keyspace};
use super::lock::Lock;
use super::owner::Owner;
use super::session::Sessions;
use super::step::Step;
use super::time::Timestamp;
use alloc::vec::Vec;

/// So many bytes of a key's name count as one more hold that ends: each record names the key.
const NAME_BYTES_PER_HOLD: usize = 1_024;

/// How many sessions and holds one step looks at to find out whether any hold stands. Where that is not enough, one
/// stands until the background has ended the others.
const LOOKS_PER_STEP: usize = 8_192;

/// By what a key is settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settling<'s> {
    pub(crate) sessions: &'s Sessions,
    /// How many holds the step may end, on all its keys.
    pub(crate) most: usize,
}

/// The holds of a lock that are over and have not left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) holds: usize,
    pub(crate) reads: u64,
}

impl Over {
    /// Counts it. O(N) where holds may be over, and N is their number.
    pub(crate) fn on(lock: &Lock, sessions: &Sessions, judged: Timestamp) -> Over {
        let has_lapsed = lock.holds.earliest().is_some_and(|(deadline, _)| deadline <= judged);
        if !has_lapsed && closed_sessions(&lock.holds, sessions).all(|closed| closed.is_none()) {
            return Over::default();
        }
        let over = lock.holds.iter().filter(|(_, hold)| sessions.end_of(hold) <= judged);
        over.fold(Over::default(), |sum, (_, hold)| Over {
            holds: sum.holds + 1,
            reads: sum.reads + u64::from(hold.reads()),
        })
    }
}

/// The sessions that bind holds of a lock and whose connections have closed, in order, and how many each. It looks at
/// the sessions of the lock or at the closed connections, whichever are fewer.
fn closed_sessions<'l>(
    holds: &'l Holds,
    sessions: &'l Sessions,
) -> impl Iterator<Item = Option<(Session, usize)>> + 'l {
    let by_session = holds.sessions() <= sessions.closed().len();
    let is_closed = |(session, _): &(Session, usize)| sessions.is_closed(session.connection);
    let of_lock = by_session.then(|| holds.bound().map(move |bound| Some(bound).filter(is_closed)));
    let of_closed = (!by_session).then(|| {
        // One that binds nothing here costs a look, too.
        sessions.closed().flat_map(|connection| [None].into_iter().chain(holds.bound_to(connection).map(Some)))
    });
    of_lock.into_iter().flatten().chain(of_closed.into_iter().flatten())
}

impl<K: Keyspace> Step<'_, K> {
    /// Ends what is over on a key for an owner that asks, or for nobody: at least what is its own, and of the rest as
    /// much as the step may end. Keeps I5.
    #[inline(always)]
    pub(crate) fn settle(&mut self, key: KeyIndex, owner: Option<&Owner>, by: Settling<'_>) {
        let earliest = self.keys.lock(key).and_then(|lock| lock.holds.earliest());
        if by.sessions.some_closed() || earliest.is_some_and(|(deadline, _)| deadline <= self.judged) {
            self.end_over(key, owner, by);
        }
    }

    /// True if holds may be over on a key that the step has settled.
    pub(crate) fn is_unsettled(&self, key: KeyIndex) -> bool {
        self.unsettled.contains(&key)
    }

    #[inline(never)]
    fn end_over(&mut self, key: KeyIndex, owner: Option<&Owner>, by: Settling<'_>) {
        let Step { keys, effects, judged, ended, looks, unsettled, .. } = self;
        let (sessions, judged) = (by.sessions, *judged);
        let KeyEntry { name, lock: Some(lock), .. } = keys.entry(key) else { return };
        let (first, cost) = (effects.changes.len(), 1 + name.len() / NAME_BYTES_PER_HOLD);
        if let Some(owner) = owner {
            effects.close(lock, key, sessions, owner, judged);
            lapse(effects, lock, key, owner, judged);
        }
        let most = (by.most.saturating_sub(*ended) / cost).max(1);
        let closed = ended_sessions(&lock.holds, (sessions, judged), looks);
        unsettled.retain(|unsettled| *unsettled != key);
        if lock.holds.len() > most
            && closed
                .as_ref()
                .is_some_and(|closed| !stands_beside(&lock.holds, owner, (sessions, judged, closed), looks))
        {
            let own = owner.and_then(|owner| Some((owner.clone(), lock.holds.take(owner.as_bytes())?)));
            end_together(effects, lock, key, (sessions, judged), Cause::Lapse);
            if let Some((owner, hold)) = own {
                effects.put_back(lock, key, owner, hold);
            }
        } else {
            let has_looked = closed.is_some();
            let closed = closed.unwrap_or_default();
            let before = effects.changes.len();
            let left = |effects: &Effects| most.saturating_sub(effects.changes.len() - before);
            let orphans: Vec<Owner> = if closed.is_empty() {
                Vec::new()
            } else if lock.holds.len() <= most {
                let is_over =
                    |(_, hold): &(&Owner, &Hold)| sessions.end_of_grace(hold).is_some_and(|end| end <= judged);
                lock.holds.iter().filter(is_over).map(|(owner, _)| owner.clone()).collect()
            } else {
                let of = |(session, _): &(Session, usize)| lock.holds.owners_by(*session..=*session);
                closed.iter().flat_map(of).take(most).cloned().collect()
            };
            for owner in orphans {
                effects.close(lock, key, sessions, &owner, judged);
            }
            for _ in 0..left(effects) {
                let Some((owner, hold)) = lock.holds.take_lapsed(judged) else { break };
                effects.ended(key, lapse_of(&hold), owner, hold);
            }
            let binds = |(ended, _): &(Session, usize)| {
                lock.holds.bound_to(ended.connection).any(|(session, _)| session == *ended)
            };
            let has_lapsed = lock.holds.earliest().is_some_and(|(deadline, _)| deadline <= judged);
            if has_lapsed || !has_looked || closed.iter().any(binds) {
                unsettled.push(key);
            }
        }
        *ended += (effects.changes.len() - first) * cost;
    }

    /// Ends all holds on a key for this cause: what is over has ended as it would have.
    ///
    /// How many were not over.
    pub(crate) fn end_all(&mut self, key: KeyIndex, cause: Cause, by: Settling<'_>) -> usize {
        let Step { keys, effects, judged, .. } = self;
        let Some(lock) = keys.lock(key) else { return 0 };
        let standing = lock.holds.len() - Over::on(lock, by.sessions, *judged).holds;
        end_together(effects, lock, key, (by.sessions, *judged), cause);
        standing
    }
}

/// Ends the hold of an owner if its lease is over.
fn lapse(effects: &mut Effects, lock: &mut Lock, key: KeyIndex, owner: &Owner, judged: Timestamp) {
    if lock.holds.get(owner.as_bytes()).is_some_and(|hold| hold.deadline <= judged)
        && let Some(hold) = lock.holds.take(owner.as_bytes())
    {
        effects.ended(key, lapse_of(&hold), owner.clone(), hold);
    }
}

/// Ends all holds of a lock together.
fn end_together(
    effects: &mut Effects,
    lock: &mut Lock,
    key: KeyIndex,
    (sessions, judged): (&Sessions, Timestamp),
    cause: Cause,
) {
    let closed = closed_sessions(&lock.holds, sessions).flatten().map(|(session, _)| session);
    let closed = closed.filter(|session| sessions.has_ended(*session, judged)).collect();
    effects.end_together(lock, key, EndedHolds { holds: Holds::default(), at: judged, sessions: closed, cause });
}

/// The sessions that have ended and bind holds of a lock, in order, and how many each. None if that would take too many
/// looks.
fn ended_sessions(
    holds: &Holds,
    (sessions, judged): (&Sessions, Timestamp),
    looks: &mut usize,
) -> Option<Vec<(Session, usize)>> {
    let mut ended = Vec::new();
    for closed in closed_sessions(holds, sessions) {
        *looks += 1;
        // A writer holds alone, and is ended in any case.
        if *looks > LOOKS_PER_STEP && holds.len() > 1 {
            return None;
        }
        ended.extend(closed.filter(|(session, _)| sessions.has_ended(*session, judged)));
    }
    Some(ended)
}

/// True if a hold stands that is not this owner's, whose own stands if it has one. True as well if that would take too
/// many looks.
fn stands_beside(
    holds: &Holds,
    owner: Option<&Owner>,
    (sessions, judged, ended): (&Sessions, Timestamp, &[(Session, usize)]),
    looks: &mut usize,
) -> bool {
    if holds.earliest().is_none_or(|(deadline, _)| deadline > judged) {
        // No lease is over, so none of those that have ended with their sessions counts twice.
        let ended: usize = ended.iter().map(|(_, count)| count).sum();
        let own = owner.is_some_and(|owner| holds.get(owner.as_bytes()).is_some());
        return holds.len() - ended > usize::from(own);
    }
    for (holder, hold) in holds.running(judged) {
        *looks += 1;
        if *looks > LOOKS_PER_STEP || (Some(holder) != owner && sessions.end_of(hold) > judged) {
            return true;
        }
    }
    false
}
