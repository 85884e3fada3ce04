//! What a search knows of the holders of contended keys.

use super::budget::{HOLDER_COST, peeking};
use super::graph::{Graph, KeyNode, hold_nothing};
use super::held::Held;
use crate::model::hold::Hold;
use crate::model::keyspace::Keyspace;
use crate::model::lock::Lock;
use crate::model::owner::Owner;
use crate::wait::order::Order;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

impl<'r> Graph<'r> {
    /// Finds out which holders of a key wait for something, if no more than so many are to be looked at for it.
    ///
    /// How many were looked at now; None if these would be more.
    pub(super) fn learn_holders<K: Keyspace>(&mut self, keys: &mut K, node: usize, most: usize) -> Option<usize> {
        let KeyNode { db, name, queue, ref mut holders, .. } = self.nodes[node];
        if holders.is_some() {
            return Some(0);
        }
        let none_waits = hold_nothing(self.order, queue) && !self.late;
        let (order, requester) = (self.order, self.requester);
        let most = most.min(self.budget.affords(HOLDER_COST));
        let learnt = keys.peek(db, name, |lock: &Lock| {
            if !none_waits {
                return waiting_holders(order, lock, most);
            }
            let hold = lock.holds.get(requester.as_bytes()).filter(|hold| order.stands(hold));
            (hold.map(|hold| (requester, Held::of(hold))).into_iter().collect(), 0)
        });
        let (waiting, looked_at) = learnt.unwrap_or_default();
        if looked_at > most {
            return None;
        }
        *holders = Some(waiting);
        self.budget.pay(HOLDER_COST * looked_at);
        Some(looked_at)
    }

    /// The same, however many they are. If that is too much, the search is given up.
    pub(super) fn learn_all_holders<K: Keyspace>(&mut self, keys: &mut K, node: usize) {
        if self.learn_holders(keys, node, usize::MAX).is_none() {
            self.budget.take();
        }
    }

    /// How the requester and another owner hold a key, whose other holders are not known.
    pub(super) fn holds_in_crowd<K: Keyspace>(
        &mut self,
        keys: &mut K,
        node: usize,
        owner: &Owner,
    ) -> [Option<Held>; 2] {
        let KeyNode { db, name, .. } = self.nodes[node];
        let (order, requester) = (self.order, self.requester);
        self.budget.pay(peeking(name));
        let holds = keys.peek(db, name, |lock: &Lock| {
            [requester, owner].map(|owner| {
                let hold = lock.holds.get(owner.as_bytes()).filter(|hold| order.stands(hold));
                hold.map(Held::of)
            })
        });
        holds.unwrap_or_default()
    }

    /// The next holder to be reached of those that keep a waiter waiting which can be served beside so many reads. Each
    /// is named once.
    pub(super) fn next_holder(&mut self, node: usize, most: u32) -> Option<(Held, &'r Owner)> {
        let KeyNode { holders, to_reach, .. } = &mut self.nodes[node];
        let to_reach = to_reach.get_or_insert_with(|| {
            let all = holders.iter().flatten();
            let mut all: Vec<(Held, &'r Owner)> = all.map(|(owner, held)| (*held, *owner)).collect();
            all.sort_unstable_by(|(held, owner), (other, next)| held.cmp(other).then(next.cmp(owner)));
            all
        });
        to_reach.pop_if(|(held, _)| held.exceeds(most))
    }

    /// How an owner that waits holds this key, whose holders are known; None if it does not.
    pub(super) fn hold_of(&self, node: usize, owner: &Owner) -> Option<Held> {
        self.nodes[node].holders.as_ref()?.get(owner).copied()
    }

    /// All holders that wait, of all keys whose holders are known.
    pub(super) fn waiting_holders(&self) -> impl Iterator<Item = &'r Owner> {
        self.nodes.iter().filter_map(|node| node.holders.as_ref()).flat_map(BTreeMap::keys).copied()
    }
}

/// The holders of a lock that wait for something, and how many were looked at for it; none if these would be more than
/// so many.
pub(super) fn waiting_holders<'r>(order: Order<'r>, lock: &Lock, most: usize) -> (BTreeMap<&'r Owner, Held>, usize) {
    // To go through all that wait has a price of its own.
    const FEW: usize = 32;
    let wait_table = order.wait_table;
    let (holding, waiting) = (lock.holds.len(), wait_table.waiting());
    let looked_at = if holding <= FEW { holding } else { holding.min(waiting) };
    let stands = |hold: &&Hold| order.stands(hold);
    if looked_at > most {
        return (BTreeMap::new(), looked_at);
    }
    if looked_at == holding {
        let holders = lock.holds.iter().filter(|(_, hold)| stands(hold));
        let waiting = holders.filter_map(|(owner, hold)| {
            let id = wait_table.waiting_of(owner).map(|(id, _)| id).next()?;
            Some((&wait_table.waiter(id)?.owner, Held::of(hold)))
        });
        return (waiting.collect(), looked_at);
    }
    let waiting = wait_table.all_waiting().map(|waiter| &waiter.owner);
    let holding = waiting.filter_map(|owner| {
        let hold = lock.holds.get(owner.as_bytes()).filter(stands)?;
        Some((owner, Held::of(hold)))
    });
    (holding.collect(), looked_at)
}
