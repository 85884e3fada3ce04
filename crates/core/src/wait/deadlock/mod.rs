//! Deadlocks: cycles of owners, each of which waits for the next. A search is made when a request would close one.
//!
//! An owner waits for exactly what its service waits for: other owners' conflicting holds, and the waiters that go
//! before it, each through all keys that they wait for. All of those must leave, so a path back to the requester is a
//! deadlock. This is the AND model of Knapp, "Deadlock detection in distributed databases", 1987. Only owners that wait
//! have edges.
//!
//! Most waiters of a long queue wait for its key alone. They wait for its holders and for each other, which adds only
//! two things. A reader behind a writer waits for all holders. And a waiter of several keys may go before one of them
//! though not before the waiter that is visited. So only waiters that wait elsewhere too are visited one by one, and a
//! long queue costs no more than a short one.
//!
//! A search has two parts. The first follows holds alone (`direct`): waiters cannot keep it from cycles of few holders.
//! The second follows queues as well (`search`).
//!
//! A search costs what it reaches, however many wait for the same keys. Four things see to that:
//!
//! - No lock changes during a search: which holders of a key wait is asked once per key.
//! - Whether a waiter delays another depends on its `Kind` alone: waiters of a kind are reached together.
//! - A waiter that was reached leaves the lists of the search (`KeyNode::waiting`), so it is never reached again.
//! - A requester that nobody waits for closes no cycle. The holds on the contended keys tell that, so it is asked as
//!   soon as the search would take longer than the answer.
//!
//! What can be reached has no bound: requests for several keys can stand in any number of queues. So each part of a
//! search has a budget. One that would exceed it finds nothing. Locks are as safe without: the wait ends by its time
//! limit.

mod budget;
mod direct;
mod graph;
mod held;
mod holders;
mod search;

use super::order::Order;
use super::waiter::{CycleCause, Waiter};
use crate::model::key::{Db, KeyName};
use crate::model::keyspace::Keyspace;
use crate::model::owner::Owner;
use alloc::vec::Vec;
pub use budget::Budgets;
use budget::HOLDER_COST;
pub(crate) use budget::TooMuch;
use graph::{Graph, hold_nothing};
pub(crate) use search::Found;
use search::Search;

/// Searches for a cycle through an owner.
pub(crate) fn find<K: Keyspace>(
    order: Order<'_>,
    keys: &mut K,
    (requester, cause): (&Owner, CycleCause),
    budgets: &mut Budgets,
) -> Result<Option<Found>, TooMuch> {
    let late = cause == CycleCause::NewHold;
    if !late && all_wait_in_one_queue(order, requester) {
        return Ok(None);
    }
    let first = order.wait_table.waiting_of(requester).next();
    let Some((_, Waiter { owner: requester, .. })) = first else { return Ok(None) };
    let mut search = Search::new(Graph::new(order, requester, late, budgets.holds.take()));
    let of_holds = search.cycle_of_holds(keys, requester);
    budgets.holds = search.graph.budget.take();
    if of_holds.is_some() {
        return Ok(of_holds);
    }
    search.graph.budget = budgets.queues.take();
    let found = search.cycle_through(keys, requester, &mut budgets.waited_for);
    budgets.queues = search.graph.budget.take();
    if !budgets.queues.is_spent() {
        return Ok(found);
    }
    // What it had found by then may be wrong.
    if search.unchecked.is_some() && !search.graph.may_be_waited_for(keys, &mut budgets.waited_for) {
        return Ok(None);
    }
    Err(TooMuch)
}

/// Searches for a cycle of holds alone through an owner.
pub(crate) fn find_among_holds<K: Keyspace>(
    order: Order<'_>,
    keys: &mut K,
    requester: &Owner,
    budgets: &mut Budgets,
) -> Option<Found> {
    let (_, Waiter { owner: requester, .. }) = order.wait_table.waiting_of(requester).next()?;
    let mut search = Search::new(Graph::new(order, requester, true, budgets.holds.take()));
    let found = search.cycle_of_holds(keys, requester);
    budgets.holds = search.graph.budget;
    found
}

/// The holders of a key that wait for something.
pub(crate) fn waiting_holders<K: Keyspace>(
    order: Order<'_>,
    keys: &mut K,
    (db, name): (Db, &KeyName),
    budgets: &mut Budgets,
) -> Result<Vec<Owner>, TooMuch> {
    let most = budgets.holds.affords(HOLDER_COST);
    let learnt = keys.peek(db, name, |lock| holders::waiting_holders(order, lock, most));
    let (waiting, looked_at) = learnt.unwrap_or_default();
    if looked_at > most {
        return Err(TooMuch);
    }
    budgets.holds.pay(HOLDER_COST * looked_at);
    Ok(waiting.into_keys().cloned().collect())
}

/// The suspects among the waiters of a queue and those that they wait for: a cycle must lead through one of them. A
/// suspect waits more than once, or holds something that is waited for. All other owners wait only for earlier waiters.
pub(crate) fn suspects<K: Keyspace>(
    order: Order<'_>,
    keys: &mut K,
    (db, name): (Db, &KeyName),
    budgets: &mut Budgets,
) -> Result<Vec<Owner>, TooMuch> {
    let Some(queue) = order.wait_table.queue(db, name) else { return Ok(Vec::new()) };
    // No owner has this name, so the search ends nowhere.
    let nobody = Owner::new(b"");
    let mut search = Search::new(Graph::new(order, &nobody, true, budgets.queues.take()));
    search.graph.begin_pass();
    for waiter in queue.iter().filter_map(|id| order.wait_table.waiter(id)) {
        if !search.graph.budget.pay(1) {
            break;
        }
        search.reach(&waiter.owner, None);
    }
    search.visit_all(keys);
    let waits_twice = |owner: &Owner| order.wait_table.waiting_of(owner).nth(1).is_some();
    let twice = search.owners_reached().filter(|owner| waits_twice(owner));
    let mut suspects: Vec<&Owner> = twice.chain(search.graph.waiting_holders()).collect();
    suspects.sort_unstable();
    suspects.dedup();
    let suspects = suspects.into_iter().cloned().collect();
    budgets.queues = search.graph.budget.take();
    if budgets.queues.is_spent() { Err(TooMuch) } else { Ok(suspects) }
}

/// True if all waiters stand in one queue, and the requester came last: no waiter wants what it holds elsewhere.
fn all_wait_in_one_queue(order: Order<'_>, requester: &Owner) -> bool {
    let mut waiters = order.wait_table.waiting_of(requester);
    let (Some((_, waiter)), None) = (waiters.next(), waiters.next()) else { return false };
    match &waiter.keys[..] {
        [key] if !key.upgrade => {
            order.wait_table.queue(waiter.db, &key.name).is_some_and(|queue| hold_nothing(order, queue))
        }
        _ => false,
    }
}
