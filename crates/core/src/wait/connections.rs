//! Which places belong to which connection: each to the one over which its owner asked last with BLOCK or NOTIFY.
//!
//! When that closes, its process may be dead. Its places are then kept for a short time only, unless their owners ask
//! again. That is noted of some of them at a time: one connection may have very many.

use crate::model::request::WaiterId;
use crate::model::time::Timestamp;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use core::num::NonZeroU64;
use smallvec::SmallVec;

/// The number of a client at the server, whose connection places belong to.
pub(super) type Client = NonZeroU64;

type Places = SmallVec<[WaiterId; 1]>;

/// Places by their connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: BTreeMap<Client, Places>,
    /// Connections that have closed, with places of which that was not noted yet.
    closed: BTreeMap<Client, Closed>,
}

#[derive(Debug)]
struct Closed {
    at: Timestamp,
    places: Places,
}

impl Connections {
    /// Returns no connections.
    pub(super) const fn new() -> Connections {
        Connections { open: BTreeMap::new(), closed: BTreeMap::new() }
    }

    /// Adds a waiter to a connection. Returns its index there.
    pub(super) fn join(&mut self, client: Client, id: WaiterId) -> u32 {
        let places = self.open.entry(client).or_default();
        places.push(id);
        places.len() as u32 - 1
    }

    /// Notes that a waiter has another name now.
    pub(super) fn rename(&mut self, client: Client, at: u32, id: WaiterId) {
        let places = self.open.get_mut(&client).or_else(|| Some(&mut self.closed.get_mut(&client)?.places));
        if let Some(waiter) = places.and_then(|places| places.get_mut(at as usize)) {
            *waiter = id;
        }
    }

    /// Removes a waiter from a connection. Returns the waiter that has its index now.
    pub(super) fn leave(&mut self, client: Client, at: u32) -> Option<WaiterId> {
        // A waiter of a closed connection stays in its list, and is skipped there.
        let Entry::Occupied(mut entry) = self.open.entry(client) else { return None };
        let places = entry.get_mut();
        if (at as usize) < places.len() {
            places.swap_remove(at as usize);
        }
        let moved = places.get(at as usize).copied();
        if places.is_empty() {
            entry.remove();
        } else if places.len() < places.capacity() / 4 {
            places.shrink_to_fit();
        }
        moved
    }

    /// Notes that a connection has closed. True if places belong to it.
    pub(super) fn close(&mut self, client: Client, at: Timestamp) -> bool {
        let Some(places) = self.open.remove(&client) else { return false };
        self.closed.insert(client, Closed { at, places });
        true
    }

    /// Returns when a connection closed; None if it is open, or all its places know.
    pub(super) fn closed_at(&self, client: Client) -> Option<Timestamp> {
        Some(self.closed.get(&client)?.at)
    }

    /// True if places of closed connections are yet to be shortened.
    pub(super) fn some_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Takes the next waiter of a closed connection, and returns when that closed.
    pub(super) fn next_closed(&mut self) -> Option<(Client, Timestamp, WaiterId)> {
        while let Some(mut first) = self.closed.first_entry() {
            let (client, at) = (*first.key(), first.get().at);
            if let Some(id) = first.get_mut().places.pop() {
                return Some((client, at, id));
            }
            first.remove();
        }
        None
    }

    /// Returns the waiters of open connections, each with its connection and its index there.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Client, usize, WaiterId)> {
        self.open.iter().flat_map(|(client, places)| {
            let client = *client;
            places.iter().enumerate().map(move |(at, id)| (client, at, *id))
        })
    }
}
