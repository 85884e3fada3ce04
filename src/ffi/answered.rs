//! Clients that have their answers, as long as the server may yet close them without having sent it.
//!
//! The server closes some clients later than it decides to: those of a user that ACL DELUSER or ACL LOAD removes, and those
//! whose output has outgrown its limit. Such a client exists still when it is answered and when it is let go of, and nothing
//! that a module may ask tells it from others. It is closed before the server sleeps, with its output unsent. So the server's
//! order of events decides:
//!
//! | server | order within one turn of the loop |
//! | --- | --- |
//! | Redis 7.0 | the command that ends the wait; other clients; event before sleep, answer; let go of; closed; event after sleep |
//! | Redis from 8.0 | the command; other clients; answer, let go of; closed, before or after the event before sleep; event after sleep |
//! | Valkey from 8.1 | the command, answer; other clients; let go of; closed, before or after the event before sleep; event after sleep |
//!
//! A client that is there at the first event after sleep has been sent its answer. (With I/O threads, Valkey may let go of a
//! client only in the turn after the one that closed it; it says then that the client is gone.) An end of its connection that
//! the server reads afterwards is one of a client that may have read its answer, and takes nothing back. To wait for that
//! event delays nobody: to unblock a client wakes the loop, so that the server does not sleep then.

use super::guard::guard;
use std::cell::RefCell;

/// A client that was answered and let go of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Its number. The same client may be here twice: what it sent behind its command may have waited as well.
    pub(super) client_id: u64,
    /// What the module knows its wait by.
    pub(super) ticket: u64,
    /// [`Parked::lost`](super::blocked::Parked::lost).
    pub(super) lost: fn(u64),
    /// [`Parked::done`](super::blocked::Parked::done).
    pub(super) done: fn(u64),
}

/// Those of one turn. Sorted only when one of them is closed, which is rare, so that thousands that are closed at once cost a
/// search each.
struct Turn {
    /// The flag says whether it was lost.
    clients: Vec<(Answered, bool)>,
    is_sorted: bool,
}

/// Beyond so many, the memory is given back at the end of the turn.
const KEPT: usize = 64;

thread_local! {
    static TURN: RefCell<Turn> = const { RefCell::new(Turn { clients: Vec::new(), is_sorted: true }) };
}

/// A client was let go of. The module must hear of the server's turns until `done`.
pub(super) fn await_delivery(client: Answered) {
    TURN.with_borrow_mut(|turn| {
        turn.is_sorted = turn.clients.is_empty();
        turn.clients.push((client, false));
    });
}

/// A connection is closed.
pub(super) fn client_gone(client_id: u64) {
    let mut at = TURN.with_borrow_mut(|turn| {
        if !turn.is_sorted {
            turn.clients.sort_unstable_by_key(|(client, _)| client.client_id);
            turn.is_sorted = true;
        }
        turn.clients.partition_point(|(client, _)| client.client_id < client_id)
    });
    let next = |at: usize| {
        TURN.with_borrow_mut(|turn| {
            let (client, is_lost) = turn.clients.get_mut(at).filter(|(client, _)| client.client_id == client_id)?;
            Some((*client, std::mem::replace(is_lost, true)))
        })
    };
    while let Some((client, was_lost)) = next(at) {
        if !was_lost {
            guard(|| (client.lost)(client.ticket));
        }
        at += 1;
    }
}

/// The server has slept: whoever is still there has its answer.
pub(super) fn after_sleep() {
    let mut clients = TURN.with_borrow_mut(|turn| {
        turn.is_sorted = true;
        std::mem::take(&mut turn.clients)
    });
    if clients.is_empty() {
        return;
    }
    for (client, _) in &clients {
        guard(|| (client.done)(client.ticket));
    }
    clients.clear();
    if clients.capacity() <= KEPT {
        TURN.with_borrow_mut(|turn| turn.clients = clients);
    }
}
