//! The first part of a search: it follows holds alone, and reads no queue. So waiters cannot keep it from an end,
//! however many they are. Most deadlocks are of two or three owners that hold something: it finds all of those whose
//! owners wait for few keys, whatever else waits. docs/internals/deadlocks.md has the proof.
//!
//! What others can make it read is bounded in three ways. Of each owner it visits few keys. Of a key with many holders
//! it knows the requester's hold alone. And it looks for short cycles before it looks for long ones.

use super::holders::{Beside, Held};
use super::search::{Behind, Found, Search, Via, Visit};
use crate::lock::model::keyspace::Keyspace;
use crate::lock::model::owner::Owner;

/// How many owners a short cycle has at most.
const SHORT_CYCLE: usize = 3;

/// How many keys of an owner are visited while short cycles are looked for.
const FEW_KEYS: usize = 10;

/// How many keys of an owner are visited at all, and of the requester always: as many as a request has by default. The
/// requester's last request comes first: it closes the cycle, if there is one.
const MANY_KEYS: usize = 64;

/// How many holders of a key are looked at.
const FEW_HOLDERS: usize = 128;

/// Why no more owners are to be visited.
enum Stop<'r> {
    /// This way leads back to the requester.
    Found(Via<'r>),
    /// The budget is spent.
    Spent,
}

impl<'r> Search<'r> {
    /// Follows holds from the requester, until a path leads back to it.
    pub(super) fn cycle_of_holds<K: Keyspace>(&mut self, keys: &mut K, requester: &'r Owner) -> Option<Found> {
        self.direct = true;
        for (levels, keys_of_each) in [(SHORT_CYCLE, FEW_KEYS), (usize::MAX, MANY_KEYS)] {
            self.begin(requester);
            match self.follow_holds(keys, levels, keys_of_each) {
                Ok(true) => return None,
                Ok(false) => {}
                Err(Stop::Found(last)) => return self.cycle(&last),
                Err(Stop::Spent) => return None,
            }
        }
        None
    }

    /// Visits the owners that are reached, level by level. Whether these are all that there are.
    fn follow_holds<K: Keyspace>(
        &mut self,
        keys: &mut K,
        levels: usize,
        keys_of_each: usize,
    ) -> Result<bool, Stop<'r>> {
        let (mut level, mut all) = (0..self.reached.len(), true);
        for _ in 0..levels {
            for at in level.clone() {
                let most = if at == 0 { MANY_KEYS } else { keys_of_each };
                all &= self.follow_holds_of(keys, at, most)?;
            }
            level = level.end..self.reached.len();
            if level.is_empty() {
                return Ok(all);
            }
        }
        Ok(false)
    }

    /// Visits an owner at this many of the keys that it waits for. Whether it waits for no more.
    fn follow_holds_of<K: Keyspace>(&mut self, keys: &mut K, at: usize, most: usize) -> Result<bool, Stop<'r>> {
        let mut left = most;
        for (id, waiter) in self.graph.order.wait_table.waiting_of(self.reached[at].owner).rev() {
            if at == 0 {
                self.note_own_wait(id);
            }
            for (nth, wanted) in waiter.keys.iter().enumerate() {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                let node = self.graph.node_of(waiter.db, &wanted.name, nth).ok_or(Stop::Spent)?;
                if !self.graph.budget.pay(1) {
                    return Err(Stop::Spent);
                }
                if let Some(last) = self.follow_holds_at(keys, Visit::of(at, waiter, wanted, node)) {
                    return Err(Stop::Found(last));
                }
            }
        }
        Ok(true)
    }

    /// Reaches the holders that keep a waiter waiting at one of its keys. The way back to the requester, if that is one
    /// of them.
    fn follow_holds_at<K: Keyspace>(&mut self, keys: &mut K, visit: Visit<'r>) -> Option<Via<'r>> {
        let Visit { waiter, node, .. } = visit;
        let is_known = self.graph.learn_holders(keys, node, FEW_HOLDERS);
        let (requesters, own) = if is_known {
            (None, self.graph.hold_of(node, &waiter.owner))
        } else {
            let [requesters, own] = self.graph.holds_in_crowd(keys, node, &waiter.owner);
            (requesters, own)
        };
        let beside = match own {
            // It has what it asks for on this key, or is answered at once.
            Some(held) if held.writes || visit.reads() => return None,
            Some(_) => Beside::NOBODY,
            None => Beside::of(waiter),
        };
        if is_known {
            return self.reach_holders(visit, beside);
        }
        let keeps_waiting = |held: Held| held.exceeds(beside.most) && waiter.owner != *self.graph.requester;
        requesters.filter(|held| keeps_waiting(*held)).map(|_| visit.via(Behind::new()))
    }
}
