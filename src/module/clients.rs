//! The table of parked clients: each waits, or its reply has not been delivered yet.

use lock_core::model::owner::Owner;
use lock_core::model::request::{WaitEnd, WaiterId};
use server_api::{Blocked, Ctx};
use smallvec::SmallVec;

/// How a waiter is to be answered.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// True if the server made the owner: then the reply names it.
    pub generated: bool,
    /// Writes the reply.
    pub write: fn(&mut Ctx<'_>, &WaitEnd, Option<&Owner>),
}

/// A parked client.
#[derive(Debug)]
pub(crate) struct Client {
    /// None once it has been unblocked.
    pub blocked: Option<Blocked>,
    /// Its number at the server.
    pub id: u64,
    pub reply: Reply,
    /// The owner, if the server made it.
    pub generated: Option<Owner>,
    /// None while it waits.
    pub answer: Option<WaitEnd>,
}

/// The parked clients, each at the index of its waiter. The index may belong to another waiter already when a reply is
/// delivered.
#[derive(Debug, Default)]
pub struct Clients(Vec<SmallVec<[(WaiterId, Client); 1]>>);

impl Clients {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn insert(&mut self, waiter: WaiterId, client: Client) {
        let at = waiter.index() as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, SmallVec::new);
        }
        self.0[at].push((waiter, client));
    }

    pub(crate) fn get(&self, waiter: WaiterId) -> Option<&Client> {
        let there = self.0.get(waiter.index() as usize)?.iter();
        there.filter(|(there, _)| *there == waiter).map(|(_, client)| client).next()
    }

    pub(crate) fn get_mut(&mut self, waiter: WaiterId) -> Option<&mut Client> {
        let there = self.0.get_mut(waiter.index() as usize)?.iter_mut();
        there.filter(|(there, _)| *there == waiter).map(|(_, client)| client).next()
    }

    pub(crate) fn remove(&mut self, waiter: WaiterId) -> Option<Client> {
        let there = self.0.get_mut(waiter.index() as usize)?;
        let at = there.iter().position(|(there, _)| *there == waiter)?;
        let (_, client) = there.remove(at);
        while self.0.last().is_some_and(SmallVec::is_empty) {
            self.0.pop();
        }
        Some(client)
    }
}
