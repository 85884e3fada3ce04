//! The search itself: breadth first from owner to owner, so that the cycle which is named is a short one.

use super::budget::Budget;
use super::graph::{Graph, KeyNode, Waiting};
use super::held::{Beside, Held};
use crate::model::hold::Mode;
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use crate::model::request::{Cycle, Hop, WaiterId};
use crate::wait::order::Requester;
use crate::wait::queue::Position;
use crate::wait::waiter::{Waiter, Wanted};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// A cycle that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) cycle: Cycle,
    /// The wait of the requester that the first hop names: to end it opens the cycle.
    pub(crate) wait: WaiterId,
}

/// An owner that was reached, and how.
pub(super) struct Reached<'r> {
    pub(super) owner: &'r Owner,
    from: Option<Via<'r>>,
}

/// Waiters in a queue between two owners, without which the one would not wait for the other, the nearest first.
pub(super) type Behind<'r> = SmallVec<[&'r Owner; 2]>;

/// How an owner was reached: from which, and at which key that waits for it.
#[derive(Clone)]
pub(super) struct Via<'r> {
    reached: usize,
    node: usize,
    behind: Behind<'r>,
}

/// A waiter that is visited at one of its keys.
#[derive(Clone, Copy)]
pub(super) struct Visit<'r> {
    reached: usize,
    pub(super) waiter: &'r Waiter,
    pub(super) node: usize,
    position: Position,
}

impl<'r> Visit<'r> {
    pub(super) fn of(reached: usize, waiter: &'r Waiter, wanted: &Wanted, node: usize) -> Visit<'r> {
        Visit { reached, waiter, node, position: waiter.position_at(wanted) }
    }

    pub(super) fn via(&self, behind: Behind<'r>) -> Via<'r> {
        Via { reached: self.reached, node: self.node, behind }
    }

    pub(super) fn reads(&self) -> bool {
        self.waiter.operation.mode == Mode::Read
    }
}

pub(super) struct Search<'r> {
    pub(super) graph: Graph<'r>,
    pub(super) reached: Vec<Reached<'r>>,
    /// The waits of the requester, each with the number of owners that were reached before it was visited.
    own_waits: SmallVec<[(usize, WaiterId); 1]>,
    /// How much the search may still cost before it is worth asking whether anybody waits for the requester; None once
    /// that was asked.
    pub(super) unchecked: Option<usize>,
    /// True if it follows holds alone.
    pub(super) direct: bool,
}

impl<'r> Search<'r> {
    pub(super) fn new(graph: Graph<'r>) -> Search<'r> {
        let unchecked = Some(graph.worth_checking());
        Search { graph, reached: Vec::new(), own_waits: SmallVec::new(), unchecked, direct: false }
    }

    /// Begins at the requester, with what is known of keys.
    pub(super) fn begin(&mut self, requester: &'r Owner) {
        self.reached.clear();
        self.own_waits.clear();
        self.graph.begin_pass();
        self.reached.push(Reached { owner: requester, from: None });
    }

    /// A wait of the requester is visited from now on.
    pub(super) fn note_own_wait(&mut self, id: WaiterId) {
        self.own_waits.push((self.reached.len(), id));
    }

    /// All owners that were reached.
    pub(super) fn owners_reached(&self) -> impl Iterator<Item = &'r Owner> {
        self.reached.iter().map(|reached| reached.owner)
    }

    /// Visits all waiters that can be reached from the requester, until a path leads back to it. None also if the
    /// budget was spent.
    pub(super) fn cycle_through<K: Keyspace>(
        &mut self,
        keys: &mut K,
        requester: &'r Owner,
        waited_for: &mut Budget,
    ) -> Option<Found> {
        self.direct = false;
        self.begin(requester);
        let wait_table = self.graph.order.wait_table;
        let mut at = 0;
        while let Some(owner) = self.reached.get(at).map(|reached| reached.owner) {
            for (id, waiter) in wait_table.waiting_of(owner) {
                if at == 0 {
                    self.note_own_wait(id);
                }
                for (nth, wanted) in waiter.keys.iter().enumerate() {
                    let Some(node) = self.graph.node_of(waiter.db, &wanted.name, nth) else { continue };
                    if !self.graph.budget.pay(1) {
                        return None;
                    }
                    let visit = Visit::of(at, waiter, wanted, node);
                    if let Some(left) = self.unchecked {
                        self.unchecked = left.checked_sub(self.graph.price(node, visit.position));
                        if self.unchecked.is_none() && !self.graph.may_be_waited_for(keys, waited_for) {
                            return None;
                        }
                    }
                    if let Some(last) = self.visit(keys, visit) {
                        return self.cycle(&last);
                    }
                }
            }
            at += 1;
        }
        None
    }

    /// Visits all waiters that can be reached from the owners that were.
    pub(super) fn visit_all<K: Keyspace>(&mut self, keys: &mut K) {
        let wait_table = self.graph.order.wait_table;
        let mut at = 0;
        while let Some(owner) = self.reached.get(at).map(|reached| reached.owner) {
            for (_, waiter) in wait_table.waiting_of(owner) {
                for (nth, wanted) in waiter.keys.iter().enumerate() {
                    if !self.graph.budget.pay(1) {
                        return;
                    }
                    if let Some(node) = self.graph.node_of(waiter.db, &wanted.name, nth) {
                        self.visit(keys, Visit::of(at, waiter, wanted, node));
                    }
                }
            }
            at += 1;
        }
    }

    /// Reaches all that a waiter waits for at one of its keys. The way back to the requester, if that is among them.
    fn visit<K: Keyspace>(&mut self, keys: &mut K, visit: Visit<'r>) -> Option<Via<'r>> {
        let Visit { waiter, node, position, .. } = visit;
        self.graph.learn_all_holders(keys, node);
        if self.graph.is_exhausted(node, position) {
            return None;
        }
        let beside = match self.graph.hold_of(node, &waiter.owner) {
            // It has what it asks for on this key, or is answered at once: a holder does not wait for shares.
            Some(held) if held.writes || visit.reads() => return None,
            // An upgrade waits for holders alone.
            Some(_) => Beside::NOBODY,
            None => {
                let found = self.reach_waiters_before(keys, visit);
                if found.is_some() {
                    return found;
                }
                if visit.reads() { self.beside(visit) } else { Beside::NOBODY }
            }
        };
        self.reach_holders(visit, beside)
    }

    /// Beside how many reads of one holder a waiter that does not write can be served, and all before it.
    fn beside(&mut self, visit: Visit<'r>) -> Beside<'r> {
        let Visit { waiter, node, position, .. } = visit;
        if let Some((_, writer)) = self.graph.writers(node, position, waiter).next() {
            return Beside { by: Some(&writer.owner), ..Beside::NOBODY };
        }
        Beside::of(waiter).stricter(self.graph.beside_shares(node, position))
    }

    /// Reaches the waiters before this one that wait elsewhere too, as far as it waits for them: itself, or through
    /// waiters for this key alone.
    fn reach_waiters_before<K: Keyspace>(&mut self, keys: &mut K, visit: Visit<'r>) -> Option<Via<'r>> {
        let Visit { waiter, node, position, .. } = visit;
        self.graph.list_waiters(keys, node, position);
        let via = visit.via(Behind::new());
        if self.reach_delaying(node, position, Requester::of(waiter), &via) {
            return Some(via);
        }
        if !visit.reads() {
            return self.reach_through_plain(visit, position, None);
        }
        // A reader waits for other readers only if a writer stands between.
        if !self.graph.has_left(node, position, |_| true) {
            return None;
        }
        // Shares wait for what readers wait for, and for waiters of this owner that stand before them.
        if let Some((end, share)) = self.graph.last_share(node, position, waiter) {
            let via = visit.via(Behind::from_slice(&[&share.owner]));
            if self.reach_delaying(node, end, Requester::of(share), &via) {
                return Some(via);
            }
        }
        let (end, writer) = self.graph.last_writer(node, position, waiter)?;
        let via = visit.via(Behind::from_slice(&[&writer.owner]));
        if self.reach_delaying(node, end, Requester::of(writer), &via) {
            return Some(via);
        }
        self.reach_through_plain(visit, end, Some(&writer.owner))
    }

    /// Reaches what delays waiters for this key alone that stand before `end`, and so the visited one behind `first`.
    fn reach_through_plain(&mut self, visit: Visit<'r>, end: Position, first: Option<&'r Owner>) -> Option<Via<'r>> {
        let (node, order) = (visit.node, self.graph.order);
        let KeyNode { queue, passed, .. } = self.graph.nodes[node];
        // Waiters for this key alone have been reached by now, but for the requester itself from its own position.
        let own = visit.waiter.owner == *self.graph.requester;
        if own || !queue.reservation_expired(order.now) {
            for (position, id) in queue.backwards(passed, end) {
                if !self.graph.budget.pay(1) || !self.graph.has_left(node, position, |kind| own || kind.many) {
                    break;
                }
                let other = order.wait_table.waiter(id);
                let other = other.filter(|other| !other.is_many() && other.owner != visit.waiter.owner);
                let Some(other) = other.filter(|other| self.graph.hold_of(node, &other.owner).is_none()) else {
                    continue;
                };
                let via = visit.via(first.into_iter().chain([&other.owner]).collect());
                if self.reach_delaying(node, position, Requester::of(other), &via) {
                    return Some(via);
                }
            }
        }
        self.graph.nodes[node].passed = passed.max(Some(end));
        None
    }

    /// Reaches the waiters before a position that delay this one. Whether the requester is among them.
    fn reach_delaying(&mut self, node: usize, before: Position, behind: Requester<'_>, via: &Via<'r>) -> bool {
        let mut waiting = core::mem::take(&mut self.graph.nodes[node].waiting);
        let mut found = false;
        waiting.retain(|kind, those| {
            let has_some = those.front().is_some_and(|(position, _)| *position < before);
            if !found && has_some && self.graph.delays(node, *kind, behind) {
                found = self.reach_all(those, before, behind.owner, via);
            }
            !those.is_empty()
        });
        self.graph.nodes[node].waiting = waiting;
        found
    }

    fn reach_all(&mut self, those: &mut Waiting, before: Position, owner: &Owner, via: &Via<'r>) -> bool {
        let mut own: SmallVec<[(Position, WaiterId); 2]> = SmallVec::new();
        while let Some((position, id)) = those.front().copied().filter(|(position, _)| *position < before) {
            those.pop_front();
            let Some(waiter) = self.graph.order.wait_table.waiter(id) else { continue };
            if self.graph.is_reached(id) {
                continue;
            }
            if waiter.owner == *owner {
                own.push((position, id));
            } else if waiter.owner == *self.graph.requester {
                return true;
            } else {
                self.reach(&waiter.owner, Some(via.clone()));
            }
        }
        own.into_iter().rev().for_each(|own| those.push_front(own));
        false
    }

    /// Reaches the holders that a waiter waits for: those that conflict with it, or with a waiter before it.
    pub(super) fn reach_holders(&mut self, visit: Visit<'r>, beside: Beside<'r>) -> Option<Via<'r>> {
        let own = visit.waiter.operation.most_beside();
        let way = |holder: &Owner, held: Held| {
            let behind = match beside.by {
                _ if !held.exceeds(beside.most) => return None,
                // It conflicts with the waiter itself.
                _ if held.writes || own.is_some_and(|most| held.reads > most) => Behind::new(),
                // It stands before this one, too.
                Some(between) if between != holder => Behind::from_slice(&[between]),
                _ => Behind::new(),
            };
            (*holder != visit.waiter.owner).then(|| visit.via(behind))
        };
        let requester = self.graph.hold_of(visit.node, self.graph.requester);
        if let Some(found) = requester.and_then(|held| way(self.graph.requester, held)) {
            return Some(found);
        }
        while let Some((held, holder)) = self.graph.next_holder(visit.node, beside.most) {
            if let Some(via) = way(holder, held) {
                self.reach(holder, Some(via));
            }
        }
        None
    }

    /// Reaches an owner, with all its waits.
    pub(super) fn reach(&mut self, owner: &'r Owner, from: Option<Via<'r>>) {
        if *owner == *self.graph.requester {
            return;
        }
        let wait_table = self.graph.order.wait_table;
        // All waits of an owner are reached together.
        if wait_table.waiting_of(owner).next().is_none_or(|(id, _)| self.graph.is_reached(id)) {
            return;
        }
        // A queue may name any of them, but none is read where holds alone are followed.
        let marked = if self.direct { 1 } else { usize::MAX };
        for (id, _) in wait_table.waiting_of(owner).take(marked) {
            self.graph.mark(id).reached_in = self.graph.pass;
            if !self.graph.budget.pay(1) {
                return;
            }
        }
        self.reached.push(Reached { owner, from });
    }

    /// The cycle that is closed by this way back to the requester.
    pub(super) fn cycle(&self, last: &Via<'r>) -> Option<Found> {
        let mut hops = Vec::new();
        // The owner that was reached from the requester itself. If a wait of the requester leads back at once, there is
        // none: then it is the wait that is visited now.
        let (mut via, mut second) = (last, self.reached.len());
        loop {
            let KeyNode { db, name, .. } = self.graph.nodes[via.node];
            let hop = |owner: &Owner| Hop { owner: owner.clone(), db, key: name.clone() };
            hops.extend(via.behind.iter().rev().map(|between| hop(between)));
            let Reached { owner, from } = &self.reached[via.reached];
            hops.push(hop(owner));
            let Some(from) = from else { break };
            (via, second) = (from, via.reached);
        }
        hops.reverse();
        let wait = self.own_waits.iter().rev().find(|(reached_before, _)| *reached_before <= second)?.1;
        Some(Found { cycle: Cycle(hops), wait })
    }
}
