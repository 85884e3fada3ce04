//! Clients that were answered in this turn of the event loop. The server may still close them with the reply unsent.
//!
//! The server decides to close some clients earlier than it does so. Such a client has a user that ACL DELUSER or ACL
//! LOAD removed, or its output has outgrown a limit. It still exists when it is answered and when it is released, and
//! no function of the module API tells it from other clients. The server closes it before it sleeps. So the order of
//! events decides. Below, the command is the one that ends the wait; released is when the server calls `done` of
//! blocked.rs:
//!
//! | server | order within one turn of the event loop |
//! | --- | --- |
//! | Redis 7.0 | command, other clients, event before sleep, reply, released, closed, event after sleep |
//! | Redis from 8.0 | command, other clients, reply, released, event before sleep, event after sleep |
//! | Valkey from 8.1 | command, reply, other clients, released, event before sleep, event after sleep |
//!
//! On Redis from 8.0 and on Valkey, the client is closed after its release, before or after the event before sleep.
//!
//! With I/O threads, Redis 8.6 may serve the command after the event before sleep. The reply then comes in the next
//! turn. The server may have closed the client by then, and says so before it replies.
//!
//! A client that is there at the first event after sleep has been sent its reply. If its connection ends later, it may
//! have read the reply, so nothing is rolled back. To wait for that event delays no client: unblocking wakes the event
//! loop, so that the server does not sleep. With I/O threads, Valkey may release a client one turn after it closed it;
//! it then says that the client is gone.

use super::client::client_exists;
use super::guard::guard;
use std::cell::{Cell, RefCell};

/// A client that was answered and released.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Its number. A client may be here twice: a command that it sent behind the first may have waited as well.
    pub(super) client_id: u64,
    /// The module's number of its wait.
    pub(super) ticket: u64,
    /// [`Parked::lost`](super::blocked::Parked::lost).
    pub(super) lost: fn(u64, bool),
    /// [`Parked::done`](super::blocked::Parked::done).
    pub(super) done: fn(u64),
}

/// The clients of one turn. They are sorted when the first of them is closed, which is rare. Then thousands that are
/// closed at once cost one search each.
struct Turn {
    /// The flag says whether the client was reported as lost.
    clients: Vec<(Answered, bool)>,
    is_sorted: bool,
}

/// A list with room for more is freed at the end of the turn.
const CAPACITY_KEPT: usize = 64;

thread_local! {
    static TURN: RefCell<Turn> = const { RefCell::new(Turn { clients: Vec::new(), is_sorted: true }) };
    /// The number of the connection that closed last. No other has it after that.
    static LAST_CLOSED: Cell<u64> = const { Cell::new(0) };
}

/// True if the connection of this number has closed, or is being closed. The server reports it right before the wait of
/// its client ends, when the client still exists.
pub(super) fn has_closed(client_id: u64) -> bool {
    LAST_CLOSED.get() == client_id || !client_exists(client_id)
}

/// A client was released. The module must watch the event loop until `done`.
pub(super) fn await_delivery(client: Answered) {
    TURN.with_borrow_mut(|turn| {
        turn.is_sorted = turn.clients.is_empty();
        turn.clients.push((client, false));
    });
}

/// The server closes a connection: its client, if it is here, did not get its reply.
pub(super) fn client_gone(client_id: u64) {
    LAST_CLOSED.set(client_id);
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
            guard(|| (client.lost)(client.ticket, true));
        }
        at += 1;
    }
}

/// The server has slept: all clients that are still here have been sent their replies.
pub(super) fn after_sleep() {
    if TURN.with_borrow(|turn| turn.clients.is_empty()) {
        return;
    }
    let mut clients = TURN.with_borrow_mut(|turn| {
        turn.is_sorted = true;
        std::mem::take(&mut turn.clients)
    });
    for (client, _) in &clients {
        guard(|| (client.done)(client.ticket));
    }
    clients.clear();
    if clients.capacity() <= CAPACITY_KEPT {
        TURN.with_borrow_mut(|turn| turn.clients = clients);
    }
}
