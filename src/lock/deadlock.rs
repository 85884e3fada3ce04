//! Deadlocks: circles of owners, each of whom waits for the next. Looked for at the moment somebody would close one.
//!
//! An owner waits for exactly what its service waits for: other owners' conflicting holds, and the waiters that go before
//! it, each through all keys that it waits for. All of those must leave, so a way back to the asker is a deadlock (the
//! AND-model of Knapp, "Deadlock detection in distributed databases", 1987). Only owners who wait have edges.
//!
//! Of the many who may stand in a line before somebody, most wait for this key alone: they wait for its holders and for
//! each other, which adds nothing but that the holders count for a reader too once a writer stands before it, and that who
//! branches off may go before one of them though not before the one that is looked at. So only those that branch off to
//! other keys are visited one by one, and a long line costs no more than a short one. Nor is a line looked at again and again
//! where many wait for the same keys: whoever stands before somebody who was looked at waits for nobody else there.

use super::hold::Mode;
use super::key::{Db, KeyName};
use super::keyspace::Keyspace;
use super::order::{Order, conflicts, is_upgrade};
use super::owner::Owner;
use super::request::PerKey;
use super::room::{ClosedBy, Line, Rank, Waiter};
use super::value::Lock;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// A circle: each owner waits at its key for the next one, and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle(pub Vec<(Owner, KeyName)>);

/// An owner that was reached: from which, and at which key it is waited for.
struct Reached {
    owner: Owner,
    from: Option<Via>,
}

#[derive(Clone)]
struct Via {
    reached: usize,
    key: KeyName,
    /// Those in line between the two, without whom the one would not wait for the other, the nearest first.
    behind: PerKey<Owner>,
}

struct Search<'a> {
    asker: &'a Owner,
    reached: SmallVec<[Reached; 1]>,
    seen: BTreeSet<Owner>,
    /// Lines of which all was reached that anybody waits for who stands no later than here.
    covered: BTreeMap<(Db, KeyName), Rank>,
    /// Whether there may be holds that came after those who wait for them.
    late: bool,
}

/// Looks for a circle through an owner.
pub(super) fn find<K: Keyspace>(order: Order<'_>, keys: &mut K, asker: &Owner, closed_by: ClosedBy) -> Option<Cycle> {
    let late = closed_by == ClosedBy::Latecomer;
    if !late && nobody_waits_for(order, asker) {
        return None;
    }
    let first = Reached { owner: asker.clone(), from: None };
    let reached = SmallVec::from([first]);
    let mut search = Search { asker, reached, seen: BTreeSet::new(), covered: BTreeMap::new(), late };
    let mut at = 0;
    while at < search.reached.len() {
        let owner = search.reached[at].owner.clone();
        for (_, waiter) in order.room.waiting_of(&owner) {
            for key in &waiter.keys {
                if let Some(last) = search.visit(order, keys, at, waiter, &key.name) {
                    return Some(search.circle(last));
                }
            }
        }
        at += 1;
    }
    None
}

/// Whether all who wait do so in one line, in which the asker has come last: whatever it holds elsewhere, nobody wants.
fn nobody_waits_for(order: Order<'_>, asker: &Owner) -> bool {
    let mut waiters = order.room.waiting_of(asker);
    let (Some((_, waiter)), None) = (waiters.next(), waiters.next()) else { return false };
    match &waiter.keys[..] {
        [key] if !key.upgrade => order.room.line(waiter.db, &key.name).is_some_and(|line| hold_nothing(order, line)),
        _ => false,
    }
}

/// Whether all who wait do so in this line, for this key alone, and hold nothing here: all but upgrades, of which the first
/// stands at the head.
fn hold_nothing(order: Order<'_>, line: &Line) -> bool {
    let head = line.iter().next().and_then(|id| order.room.waiter(id));
    let head_holds = head.is_some_and(|head| head.keys.iter().any(|key| key.upgrade));
    order.room.waiting() == line.len() && line.is_plain() && !head_holds
}

impl Search<'_> {
    /// Goes from a waiter to all that it waits for at one of its keys. The way back to the asker, if that is among them.
    fn visit<K: Keyspace>(
        &mut self,
        order: Order<'_>,
        keys: &mut K,
        at: usize,
        waiter: &Waiter,
        name: &KeyName,
    ) -> Option<Via> {
        let (owner, mode) = (&waiter.owner, waiter.ask.mode);
        let line = order.room.line(waiter.db, name)?;
        let is_ahead = |other: &Waiter| other.rank < waiter.rank;
        let asker_ahead = order.room.waiting_of(self.asker).map(|(_, other)| other);
        let mut asker_ahead = asker_ahead.filter(|other| is_ahead(other) && other.wants(waiter.db, name)).peekable();
        let place = (waiter.db, name.clone());
        if asker_ahead.peek().is_none() && self.covered.get(&place).is_some_and(|rank| *rank >= waiter.rank) {
            return None;
        }
        let via = |behind: PerKey<Owner>| Via { reached: at, key: name.clone(), behind };
        let own = keys.peek(waiter.db, name, |lock| {
            let hold = lock.holds.get(owner.as_bytes()).filter(|hold| order.stands(hold))?;
            Some(is_upgrade(hold, mode))
        });
        let own = own.flatten();
        if own == Some(false) {
            // It has what it asks for on this key.
            return None;
        }
        let mut behind = None;
        let mut covers = mode == Mode::Write;
        // An upgrade waits for holders alone.
        if own.is_none() {
            for other in asker_ahead {
                if let Some(behind) = between(order, keys, (line, name), other, waiter) {
                    return Some(via(behind));
                }
            }
            for other in line.branching(waiter.rank).filter_map(|id| order.room.waiter(id)) {
                if [self.asker, owner].contains(&&other.owner) || self.seen.contains(&other.owner) {
                    continue;
                }
                match between(order, keys, (line, name), other, waiter) {
                    Some(behind) => self.reach(&other.owner, via(behind)),
                    None => covers = false,
                }
            }
            let mut writers = line.writers(waiter.rank).filter_map(|id| order.room.waiter(id));
            behind = writers.find(|other| other.owner != *owner).map(|other| other.owner.clone());
        }
        let found = self.holders(order, keys, waiter, name, line, behind, via);
        if covers && own.is_none() && found.is_none() {
            self.covered.insert(place, waiter.rank);
        }
        found
    }

    /// The holders that a waiter waits for: those that conflict with it, or with a writer before it.
    #[allow(clippy::too_many_arguments, reason = "the parts of one look at one key")]
    fn holders<K: Keyspace>(
        &mut self,
        order: Order<'_>,
        keys: &mut K,
        waiter: &Waiter,
        name: &KeyName,
        line: &Line,
        behind: Option<Owner>,
        via: impl Fn(PerKey<Owner>) -> Via,
    ) -> Option<Via> {
        let none_waits = hold_nothing(order, line) && !self.late;
        let mut found = None;
        let mut next = Vec::new();
        keys.peek(waiter.db, name, |lock: &Lock| {
            let way = |who: &Owner| {
                let hold = lock.holds.get(who.as_bytes()).filter(|hold| order.stands(hold))?;
                if *who == waiter.owner {
                    return None;
                }
                if conflicts(hold, waiter.ask.mode) {
                    return Some(via(PerKey::new()));
                }
                behind.as_ref().filter(|writer| *writer != who).map(|writer| via(PerKey::from([writer.clone()])))
            };
            found = way(self.asker);
            if found.is_some() || none_waits {
                return;
            }
            if lock.holds.len() <= order.room.waiting() {
                let waiting = lock.holds.iter().filter(|(who, _)| order.room.waiting_of(who).next().is_some());
                next.extend(waiting.filter_map(|(who, _)| Some((who.clone(), way(who)?))));
            } else {
                let holding = order.room.all_waiting().map(|waiter| &waiter.owner);
                next.extend(holding.filter_map(|who| Some((who.clone(), way(who)?))));
            }
        });
        for (who, way) in next {
            self.reach(&who, way);
        }
        found
    }

    fn reach(&mut self, owner: &Owner, from: Via) {
        if owner != self.asker && self.seen.insert(owner.clone()) {
            self.reached.push(Reached { owner: owner.clone(), from: Some(from) });
        }
    }

    fn circle(&self, last: Via) -> Cycle {
        let mut hops = Vec::new();
        let mut via = Some(last);
        while let Some(Via { reached, key, behind }) = via {
            hops.extend(behind.into_iter().rev().map(|between| (between, key.clone())));
            let Reached { owner, from } = &self.reached[reached];
            hops.push((owner.clone(), key));
            via = from.clone();
        }
        hops.reverse();
        Cycle(hops)
    }
}

/// Whether a waiter waits for one before it in a line, and through whom of those who wait for this key alone: in none, the
/// nearest first.
fn between<K: Keyspace>(
    order: Order<'_>,
    keys: &mut K,
    (line, name): (&Line, &KeyName),
    ahead: &Waiter,
    waiter: &Waiter,
) -> Option<PerKey<Owner>> {
    if ahead.owner != waiter.owner && order.delays(keys, ahead, line, (&waiter.owner, waiter.ask.mode)) {
        return Some(PerKey::new());
    }
    let alone = |id| {
        order
            .room
            .waiter(id)
            .filter(|other| !other.is_many() && other.owner != waiter.owner && other.owner != ahead.owner)
    };
    // Who holds the key waits for holders alone.
    let delayed = |keys: &mut K, other: &Waiter| {
        let holds = |lock: &Lock| lock.holds.get(other.owner.as_bytes()).is_some_and(|hold| order.stands(hold));
        order.delays(keys, ahead, line, (&other.owner, other.ask.mode))
            && !keys.peek(waiter.db, name, holds).unwrap_or(false)
    };
    // A reader waits for other readers only if a writer stands between.
    let (end, through) = match waiter.ask.mode {
        Mode::Write => (waiter, None),
        Mode::Read => {
            let writer = line.writers(waiter.rank).rev().find_map(alone)?;
            if writer.rank > ahead.rank && delayed(keys, writer) {
                return Some(PerKey::from([writer.owner.clone()]));
            }
            (writer, Some(writer.owner.clone()))
        }
    };
    let last = line.between(ahead.rank, end.rank).filter_map(alone);
    let mut last = last.filter(|other| through.as_ref() != Some(&other.owner));
    let last = last.find(|other| delayed(keys, other))?;
    Some(through.into_iter().chain([last.owner.clone()]).collect())
}
