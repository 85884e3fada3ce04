//! Waits that end together, as many as a node has: their memory is given back in pieces.

use super::table::WaitTable;
use crate::model::request::WaiterId;
use alloc::vec::Vec;
use core::mem;

/// The table of waits that have ended together.
#[derive(Debug)]
pub(crate) struct Retired {
    table: WaitTable,
    left: Vec<WaiterId>,
}

impl WaitTable {
    /// Ends all waits together.
    pub(crate) fn retire(&mut self) -> Retired {
        let mut next = WaitTable::new(self.owners.hash());
        // No number is given twice, and what counts goes on.
        mem::swap(&mut next.generations, &mut self.generations);
        (next.tickets, next.grace_end) = (self.tickets, self.grace_end);
        (next.wakes_begun, next.sweeps_begun, next.swept_at) = (self.wakes_begun, self.sweeps_begun, self.swept_at);
        let left = self.waiters.iter().map(|(id, _)| id).collect();
        Retired { table: mem::replace(self, next), left }
    }
}

impl Retired {
    /// Gives back a bounded piece of the memory; false when there is none left.
    pub(crate) fn shed(&mut self) -> bool {
        const PIECE: usize = 64;
        for id in self.left.drain(self.left.len().saturating_sub(PIECE)..) {
            self.table.remove(id);
        }
        !self.left.is_empty()
    }

    /// True if nothing is left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.table.broken_invariant().is_none()
    }
}
