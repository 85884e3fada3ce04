//! The first part of a search: it follows holds alone, and reads no queue. So waiters cannot keep it from an end,
//! however many they are. Most deadlocks are of two or three owners that hold something. It finds all of those whose
//! owners wait for few keys, whatever else waits. docs/internals/deadlocks.md has the proof.
//!
//! What others can make it read is bounded in three ways. Of each owner it visits few keys, and few holders of these.
//! Of a key with more holders it knows the requester's hold alone. And it looks for short cycles before it looks for
//! long ones.

use super::held::{Beside, Held};
use super::search::{Behind, Found, Search, Via, Visit};
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;

/// How far holds are followed.
#[derive(Clone, Copy)]
struct Reach {
    /// How many owners a cycle has at most.
    owners: usize,
    /// How many keys of each owner are visited. The requester's last request comes first: it closes the cycle, if there
    /// is one.
    keys: usize,
    /// How many holders of each key are looked at.
    holders: usize,
    /// True if these count as keys.
    holders_count: bool,
}

/// As many keys as a request names by default.
const REQUEST_KEYS: usize = 64;

/// Far enough for cycles of two and three owners, each of which waits for few keys of writers.
const SHORT: Reach = Reach { owners: 3, keys: 8, holders: REQUEST_KEYS, holders_count: true };

/// As far as the budget goes.
const LONG: Reach = Reach { owners: usize::MAX, keys: REQUEST_KEYS, holders: 128, holders_count: false };

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
        for reach in [SHORT, LONG] {
            self.begin(requester);
            match self.follow_holds(keys, reach) {
                Ok(true) => return None,
                Ok(false) => {}
                Err(Stop::Found(last)) => return self.cycle(&last),
                Err(Stop::Spent) => return None,
            }
        }
        None
    }

    /// Visits the owners that are reached, level by level. Whether these are all that there are.
    fn follow_holds<K: Keyspace>(&mut self, keys: &mut K, reach: Reach) -> Result<bool, Stop<'r>> {
        let (mut level, mut all) = (0..self.reached.len(), true);
        for _ in 0..reach.owners {
            for at in level.clone() {
                all &= self.follow_holds_of(keys, at, reach)?;
            }
            level = level.end..self.reached.len();
            if level.is_empty() {
                return Ok(all);
            }
        }
        Ok(false)
    }

    /// Visits an owner at the keys that it waits for. Whether all that it waits for was reached.
    fn follow_holds_of<K: Keyspace>(&mut self, keys: &mut K, at: usize, reach: Reach) -> Result<bool, Stop<'r>> {
        let mut left = if at == 0 { REQUEST_KEYS } else { reach.keys };
        let mut all = true;
        for (id, waiter) in self.graph.order.wait_table.waiting_of(self.reached[at].owner).rev() {
            if at == 0 {
                self.note_own_wait(id);
            }
            for (nth, wanted) in waiter.keys.iter().enumerate() {
                if left == 0 {
                    return Ok(false);
                }
                let node = self.graph.node_of(waiter.db, &wanted.name, nth).ok_or(Stop::Spent)?;
                if !self.graph.budget.pay(1) {
                    return Err(Stop::Spent);
                }
                let most = if reach.holders_count { left } else { usize::MAX };
                let looked_at = self.graph.learn_holders(keys, node, most.min(reach.holders));
                all &= looked_at.is_some();
                let counted = looked_at.filter(|_| reach.holders_count).unwrap_or(1);
                left -= counted.max(1);
                let visit = Visit::of(at, waiter, wanted, node);
                if let Some(last) = self.follow_holds_at(keys, visit, looked_at.is_some()) {
                    return Err(Stop::Found(last));
                }
            }
        }
        Ok(all)
    }

    /// Reaches the holders that keep a waiter waiting at one of its keys. The way back to the requester, if that is one
    /// of them.
    fn follow_holds_at<K: Keyspace>(&mut self, keys: &mut K, visit: Visit<'r>, is_known: bool) -> Option<Via<'r>> {
        let Visit { waiter, node, .. } = visit;
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
